"""Every example in a docstring runs."""

import doctest
import importlib
import pkgutil

import pytest

import glue_tasks
import keras_plm

pytestmark = [pytest.mark.compiles, pytest.mark.each_backend]
MODULES = sorted(
    module.name
    for package in (keras_plm, glue_tasks)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    found = doctest.testmod(importlib.import_module(name))
    assert not found.failed
