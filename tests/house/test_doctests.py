"""Every example in a docstring runs, and imports what is not of its own module or this library."""

import doctest
import importlib
import pkgutil

import pytest

import glue_tasks
import keras_plm

pytestmark = pytest.mark.compiles
MODULES = sorted(
    module.name
    for package in (keras_plm, glue_tasks)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
)


def own_names(module):
    """Returns the names of a module without those of other packages, which an example imports."""
    ours = ("keras_plm", "glue_tasks")
    return {
        name: x
        for name, x in vars(module).items()
        if getattr(x, "__module__", getattr(x, "__name__", ours[0])).startswith(ours)
    }


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    module = importlib.import_module(name)
    found = doctest.testmod(module, globs=own_names(module))
    assert not found.failed
