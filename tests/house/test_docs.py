"""The documentation works: its Python code, flags of commands, tutorials and links."""

import ast
import itertools
import re
import shlex

import pytest

import benchmarks.__main__
import glue_tasks.__main__
import keras_plm.cli.main
from tests import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PAGES = [page for page in PAGES if "build" not in page.relative_to(ROOT).parts]
TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))
PARSERS = {
    "keras-plm": keras_plm.cli.main.command_parser,
    "python -m benchmarks": benchmarks.__main__.command_parser,
    "python -m glue_tasks": glue_tasks.__main__.command_parser,
}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")
BACKENDS = ("torch", "jax", "tensorflow")
# They train models on batches of several shapes; JAX and TensorFlow compile each.
UNCOMPILED = ("05_elmo", "06_gpt", "08_features_or_fine_tuning")


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def blocks(page, *languages):
    return [text for language, text in BLOCK.findall(page.read_text()) if language in languages]


def with_python():
    return [page for page in PAGES if blocks(page, "python")]


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A working folder with the weights and results of the clone, and its own other files."""
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.backend_neutral
@pytest.mark.full
@pytest.mark.parametrize("page", with_python(), ids=name_of)
def test_python_blocks_of_pages_run(page, clone):
    names = {"__name__": "page"}
    for number, block in enumerate(blocks(page, "python"), 1):
        exec(compile(block, f"{name_of(page)}, block {number}", "exec"), names)


def small(script):
    """Returns the source of a tutorial with the small sizes from its comments."""
    source = script.read_text()
    found = re.sub(r"^(\w+) = .+?  # in tests: (.+)$", r"\1 = \2", source, flags=re.MULTILINE)
    assert found != source, "a size must have a comment `# in tests: ...`"
    return found


@pytest.mark.full
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            script,
            id=script.stem,
            marks=pytest.mark.split_to("torch" if script.stem in UNCOMPILED else backend),
        )
        for script, backend in zip(TUTORIALS, itertools.cycle(BACKENDS))
    ],
)
def test_tutorials_run(script, clone, monkeypatch):
    """Where the tests are split, other tutorials take turns with the backends."""
    import matplotlib.pyplot

    monkeypatch.setattr(matplotlib.pyplot, "show", lambda: None)
    try:
        exec(compile(small(script), name_of(script), "exec"), {"__name__": "tutorial"})
    finally:
        matplotlib.pyplot.close("all")


@pytest.mark.backend_neutral
@pytest.mark.parametrize("script", TUTORIALS, ids=lambda script: script.stem)
def test_notebooks_have_the_cells_of_their_scripts(script):
    jupytext = pytest.importorskip("jupytext")
    notebook = script.parent / "notebooks" / f"{script.stem}.ipynb"
    assert notebook.is_file(), "run make notebooks"
    wanted, found = jupytext.read(script), jupytext.read(notebook)
    for cell, built in itertools.zip_longest(wanted.cells, found.cells):
        assert cell is not None and built is not None, "run make notebooks"
        assert (cell.cell_type, cell.source) == (built.cell_type, built.source), "make notebooks"
        assert cell.cell_type != "code" or built.execution_count, "run make notebooks"


def commands():
    pattern = rf"^({'|'.join(PARSERS)}) (.+)$"
    for page in PAGES:
        for block in blocks(page, "", "console"):
            for program, line in re.findall(pattern, block, re.MULTILINE):
                yield pytest.param(program, line, id=f"{name_of(page)}: {program} {line}")


@pytest.fixture(scope="module")
def parsers():
    return {program: parser() for program, parser in PARSERS.items()}


@pytest.mark.backend_neutral
@pytest.mark.parametrize("program, line", commands())
def test_documented_commands_parse(program, line, parsers, capsys):
    """Parses each command line without running the command."""
    words = shlex.split(line)
    if words != ["--help"] and "--version" not in words:
        try:
            parsers[program].parse_args(words)
        except SystemExit:
            pytest.fail(capsys.readouterr().err)


@pytest.mark.backend_neutral
def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        text = "\n".join(blocks(page, "", "console"))
        for target in re.findall(r"^make (?:[A-Z]+=\S+ )*([a-z-]+)", text, re.MULTILINE):
            assert f"\n{target}:" in makefile, (name_of(page), target)


@pytest.mark.backend_neutral
def test_relative_links_point_to_existing_files():
    wrong = []
    texts = [(page, page.parent, page.read_text()) for page in PAGES]
    texts += [(script, script.parent / "notebooks", script.read_text()) for script in TUTORIALS]
    for page, folder, text in texts:
        for target in LINK.findall(BLOCK.sub("", text)):
            if not target.startswith(("http", "mailto:")) and not (folder / target).exists():
                wrong.append((name_of(page), target))
    assert not wrong


@pytest.mark.backend_neutral
def test_readme_is_one_page():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


@pytest.mark.backend_neutral
@pytest.mark.parametrize("script", TUTORIALS, ids=lambda script: script.stem)
def test_tutorials_are_scripts_with_cells(script):
    source = script.read_text()
    ast.parse(source)
    assert source.startswith("# %% [markdown]\n# # ")
    assert "# ## Exercises" in source
