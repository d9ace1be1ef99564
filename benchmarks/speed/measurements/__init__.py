"""Speed measurements, one file per subject. Importing the package registers all of them."""

import importlib
import pkgutil


def load_all():
    """Imports every module of the package."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


load_all()
