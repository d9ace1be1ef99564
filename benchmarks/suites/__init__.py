"""Published comparisons as lists of runs: `python -m benchmarks suite NAME`.

Each module of this package lists its suites in `SUITES`, `{name: Suite}`. New modules are found
automatically.
"""

import importlib
import pkgutil

from keras_plm.experiments.results import suite_folder


def load_all():
    """Returns `{name: Suite}` of all modules, in the order of publication.

    Raises:
        ValueError: If two suites have the same name.
    """
    found = {}
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        module = importlib.import_module(module.name)
        for name, suite in getattr(module, "SUITES", {}).items():
            if name in found:
                raise ValueError(f"Names of suites must be unique. Received: {name!r} twice")
            found[name] = suite
    return dict(sorted(found.items(), key=lambda item: item[1].published))


SUITES = load_all()


def folder(results, suite, scale=None):
    """Returns the folder of a suite's results at a scale."""
    home = SUITES[suite].home if suite in SUITES else ""
    return suite_folder(results, home or suite, scale)
