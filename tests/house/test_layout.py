"""The house plan, kept true: imports go down only, and nothing heavy is loaded unasked."""

import ast
import os
import subprocess
import sys

import pytest

from tests import ROOT

pytestmark = pytest.mark.backend_neutral

# A part imports only from groups above its own, and its own files.
GROUPS = [
    ["_version", "_arguments", "_private_apis"],
    ["files"],
    ["layers", "tokenizers", "metrics", "plots"],
    ["data"],
    ["training"],
    ["models"],
    ["heads", "decoding", "attention_maps"],
    ["pretraining"],
    ["transfer"],
    ["checkpoints"],
    ["datasets"],
    ["experiments"],
    ["cli"],
    ["__main__"],
]
RANK = {name: i for i, group in enumerate(GROUPS) for name in group}


def imports(path):
    """The modules that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part(module):
    """The part of the library that a module is in, or None."""
    parts = module.split(".")
    return parts[1] if parts[0] == "keras_plm" and len(parts) > 1 and parts[1] in RANK else None


@pytest.mark.parametrize("path", sorted((ROOT / "keras_plm").rglob("*.py")), ids=str)
def test_library_imports_go_down(path):
    own = path.relative_to(ROOT / "keras_plm").parts[0].removesuffix(".py")
    if own == "__init__":
        return
    assert own in RANK, f"{own} has no place in the plan"
    for module in imports(path):
        assert module.split(".")[0] not in ("benchmarks", "tests")
        if RANK[own] < RANK["datasets"]:
            assert module.split(".")[0] != "glue_tasks"
        other = part(module)
        if other is not None and other != own:
            assert RANK[other] < RANK[own], f"{own} imports {other}"


@pytest.mark.parametrize("path", sorted((ROOT / "glue_tasks").rglob("*.py")), ids=str)
def test_glue_tasks_import_no_harness(path):
    assert not {m.split(".")[0] for m in imports(path)} & {"benchmarks", "tests"}


def test_files_are_one_idea():
    for path in [*ROOT.glob("keras_plm/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]:
        assert path.stem not in ("utils", "common", "base", "misc", "helpers")
        assert len(path.read_text().splitlines()) <= 700, path


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_import_loads_no_other_framework(backend):
    pytest.importorskip(backend)
    code = (
        "import sys, keras_plm, keras_plm.transfer, keras_plm.pretraining, glue_tasks\n"
        "heavy = {'tensorflow', 'keras_hub', 'keras_nlp', 'transformers'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
