"""The tests themselves: every fault fits the current code, and no test imports another test."""

import ast

import pytest

from tests import ROOT
from tests.faults import FAULTS

pytestmark = pytest.mark.backend_neutral


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_faults_apply_to_current_code(fault):
    path = fault.file()
    ast.parse(path.read_text().replace(fault.right, fault.wrong))
    for near in fault.near:
        path, *names = near.split("::")
        assert (ROOT / path).exists(), near
        defined = {
            n.name for n in ast.walk(ast.parse((ROOT / path).read_text())) if hasattr(n, "name")
        }
        assert set(names) <= defined, near


def test_no_test_imports_another():
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                assert not [n for n in names if n.startswith("tests.") and ".test_" in n], path


def test_each_library_folder_has_a_test_folder():
    library = {path.parent.name for path in (ROOT / "keras_plm").glob("*/__init__.py")}
    assert library == {
        path.parent.name for path in (ROOT / "tests/keras_plm").glob("*/__init__.py")
    }
