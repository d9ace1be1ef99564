"""Every example in a docstring runs."""

import doctest
import importlib
import pkgutil

import pytest

import keras_plm

MODULES = sorted(m.name for m in pkgutil.walk_packages(keras_plm.__path__, "keras_plm."))


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name):
    found = doctest.testmod(importlib.import_module(name))
    assert not found.failed
