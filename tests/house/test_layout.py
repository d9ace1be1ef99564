"""The layout: imports only go down, without cycles, and the map in `docs/contributing` is right."""

import ast
import os
import re
import subprocess
import sys

import pytest

from tests import ROOT

pytestmark = pytest.mark.backend_neutral

# A part imports only from its own files and from the groups above its own.
GROUPS = [
    ["_version"],
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
]
PACKAGES = ("keras_plm", "glue_tasks", "benchmarks")
MAP = (ROOT / "docs" / "contributing" / "layout.md").read_text()
RANK = {name: i for i, group in enumerate(GROUPS) for name in group}


def imports(path):
    """Returns the modules that a file imports, including imports inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part(module):
    """Returns the part of the library that contains a module, or None."""
    parts = module.split(".")
    return parts[1] if parts[0] == "keras_plm" and len(parts) > 1 and parts[1] in RANK else None


@pytest.mark.parametrize("path", sorted((ROOT / "keras_plm").rglob("*.py")), ids=str)
def test_library_imports_only_lower_layers(path):
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


def modules():
    """Returns `{name: path}` of all modules of the library, the GLUE tasks and the benchmarks."""
    paths = [path for top in PACKAGES for path in (ROOT / top).rglob("*.py")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return {name.removesuffix(".__init__"): path for name, path in zip(names, paths, strict=True)}


def test_modules_have_no_import_cycles():
    """There are no cycles, including imports inside functions."""
    known, graph = modules(), {}
    for name, path in known.items():
        graph[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):  # a module, or an object in a package
                found = {f"{node.module}.{alias.name}" for alias in node.names}
                graph[name] |= {module if module in known else node.module for module in found}
        graph[name] = (graph[name] & known.keys()) - {name}
    finished = set()

    def visit(name, path):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in finished:
            for other in sorted(graph[name]):
                visit(other, [*path, name])
            finished.add(name)

    for name in graph:
        visit(name, [])


def rows(heading):
    """Returns the cells of a table in the map of the layout, without backquotes."""
    lines = MAP[MAP.index(heading) :].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|---"))
    for line in lines[first + 1 :]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


def test_layout_map_lists_every_file():
    mapped = {}
    for folder, _, files in rows("## The map"):
        mapped[folder.strip("` ").rstrip("/")] = set(re.findall(r"`(\w+)`", files))
    del mapped["tests"]
    found = {}
    for path in modules().values():
        folder = path.parent.relative_to(ROOT).as_posix()
        found.setdefault(folder, set())
        if not path.name.startswith("_"):
            found[folder].add(path.stem)
    assert mapped.keys() == found.keys()
    for folder in found:
        missing, gone = found[folder] - mapped[folder], mapped[folder] - found[folder]
        assert not missing, f"name {missing} in the row of {folder}/ in layout.md"
        assert not gone, f"remove {gone} from the row of {folder}/ in layout.md"


def test_layout_map_points_to_existing_definitions():
    questions = list(rows("## Where is ...?"))
    assert len(questions) >= 12
    for question, file, name in questions:
        file, name = file.strip("`"), name.strip("` ")
        defined = set()
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.add(node.name)
            elif isinstance(node, ast.Assign):
                defined |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        assert name in defined, f"{question} {file} does not define {name}"
    for *_, file in rows("## Adding things"):
        assert (ROOT / file.strip("` ")).is_file(), file


BUILT = {"__pycache__", "build", "generated", "jupyter_execute"}  # folders that git ignores


@pytest.mark.parametrize("top", ["keras_plm", "benchmarks", "glue_tasks", "docs", "tests"])
def test_folders_have_a_limited_number_of_entries(top):
    """A folder has at most 14 entries, `keras_plm/` 18, without `__init__.py` and `py.typed`."""
    for folder in [ROOT / top, *(path for path in (ROOT / top).rglob("*") if path.is_dir())]:
        parts = folder.relative_to(ROOT).parts
        if parts[:2] in (("benchmarks", "results"), ("benchmarks", "weights")):
            continue
        if BUILT & set(parts):
            continue
        names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
        entries = names - {"__init__.py", "py.typed"} - BUILT
        assert len(entries) <= (18 if parts[-1] == "keras_plm" else 14), (folder, sorted(entries))


def test_files_are_short_and_have_specific_names():
    for path in [*ROOT.glob("keras_plm/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]:
        assert path.stem not in ("utils", "common", "base", "misc", "helpers")
        assert len(path.read_text().splitlines()) <= 700, path


@pytest.mark.full
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
