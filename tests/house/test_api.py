"""Every public name has type hints and a docstring in the standard format with an example."""

import importlib
import inspect
import pkgutil
import re

import keras
import pytest

import glue_tasks
import keras_plm
from tests import ROOT

pytestmark = pytest.mark.backend_neutral
PACKAGES = (keras_plm, glue_tasks)
WITHOUT_LIST = ("keras_plm.attention_maps",)  # everything they define is public
# Mixins of Keras' classes, such as `FitsBatches`.
MIXED_INTO = (keras.Model,)
STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def exports():
    """Returns `{"package.name": object}` of the public classes and functions."""
    packages = [package.__name__ for package in PACKAGES]
    for package in PACKAGES:
        walked = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        packages += [module.name for module in walked if module.ispkg]
    found = {}
    for package in map(importlib.import_module, packages):
        for name in getattr(package, "__all__", ()):
            found[f"{package.__name__}.{name}"] = getattr(package, name)
    for module in map(importlib.import_module, WITHOUT_LIST):
        for name, value in vars(module).items():
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__:
                found[f"{module.__name__}.{name}"] = value
    return {n: x for n, x in found.items() if inspect.isclass(x) or inspect.isfunction(x)}


EXPORTS = exports()


def is_own(value):
    return value.__module__.split(".")[0] in {package.__name__ for package in PACKAGES}


def parameters(value):
    """Returns the parameters of a function or a class, without `self` and starred ones."""
    try:
        found = inspect.signature(value).parameters.values()
    except ValueError:  # built-in classes such as `Exception` have no signature
        return []
    found = [p for p in found if p.kind not in STARRED]
    return found[1:] if found and found[0].name in ("self", "cls") else found


def methods(cls):
    """Returns `{name: function}` of the public methods that our classes define."""
    others = [c for c in (*cls.__mro__, *MIXED_INTO) if not is_own(c)]
    found = {}
    for base in filter(is_own, reversed(cls.__mro__)):
        for name, value in vars(base).items():
            value = getattr(value, "fget", None) or getattr(value, "__func__", value)
            value = getattr(value, "func", value)  # unwraps a cached property
            if inspect.isfunction(value) and is_own(value) and not name.startswith("_"):
                if name == "call" or not any(hasattr(c, name) for c in others):
                    found[name] = value
    return {name: value for name, value in found.items() if name != "get_config"}


def unhinted(function):
    """Returns the names of parameters without a type hint; "return" stands for the result."""
    found = [p.name for p in parameters(function) if p.annotation is p.empty]
    returns = "return" in function.__annotations__ or function.__name__ == "__init__"
    return found if returns else [*found, "return"]


@pytest.mark.parametrize("name", EXPORTS)
def test_docstring(name):
    value = EXPORTS[name]
    doc = inspect.cleandoc(value.__doc__ or "")
    first, *rest = doc.split("\n")
    assert first.endswith("."), "the docstring begins with one line that ends in a full stop"
    assert not rest or not rest[0], "a blank line follows the first line"
    assert ">>> " in doc, "an example is missing"
    if parameters(value):
        assert re.search("^Args", doc, re.MULTILINE), "`Args:` is missing"
    if inspect.isfunction(value) and value.__annotations__.get("return") is not None:
        assert re.search("^(Returns|Yields):", doc, re.MULTILINE), "`Returns:` is missing"
    if inspect.isclass(value) and "call" in methods(value):
        assert re.search("call arguments", doc, re.IGNORECASE), "`Call arguments:` is missing"
        assert re.search("returns:", doc, re.IGNORECASE), "`Returns:` is missing"


@pytest.mark.parametrize("name", EXPORTS)
def test_type_hints(name):
    value = EXPORTS[name]
    if inspect.isfunction(value):
        assert not unhinted(value)
        return
    functions = methods(value)
    if inspect.isfunction(value.__init__) and is_own(value.__init__):
        functions["__init__"] = value.__init__
    missing = {method: unhinted(function) for method, function in functions.items()}
    assert not {method: names for method, names in missing.items() if names}


@pytest.mark.parametrize("name", [name for name, x in EXPORTS.items() if inspect.isclass(x)])
def test_methods_have_docstrings(name):
    own = methods(EXPORTS[name])
    own.pop("call", None)  # the class describes it
    assert not [method for method in own if not inspect.getdoc(getattr(EXPORTS[name], method))]


def test_package_contains_py_typed():
    assert (ROOT / "keras_plm" / "py.typed").is_file()
