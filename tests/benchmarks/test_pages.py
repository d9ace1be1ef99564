"""Pages of the documentation show the tables of the result files.

CPU seconds per table: 30 for the claims (in `test_claims`), 3.5 for `features_or_fine_tuning`, 0.6
for its short table, less than 0.3 for every other one.
"""

import re
import shutil

import pytest

from benchmarks import model_cards, pages
from benchmarks.__main__ import main
from benchmarks.suites.features_or_fine_tuning import BRIEF_NOTE, BRIEF_ROWS
from tests import ROOT

pytestmark = pytest.mark.backend_neutral

MARKS = pages.marks()
PAGES = {path.stem: path for path in MARKS.values()}


@pytest.mark.full
@pytest.mark.parametrize("page", sorted(PAGES))
def test_tables_in_pages_equal_the_result_files(page):
    """If a table is outdated, run `python -m benchmarks report --docs`."""
    for mark, path in MARKS.items():
        if path == PAGES[page] and mark != "claims":  # `test_claims` computes the verdicts
            assert pages.shown(mark) == pages.table(mark), mark


@pytest.mark.full
def test_the_short_table_has_an_interval_in_each_cell():
    lines = pages.table("features_or_fine_tuning.brief").splitlines()
    assert len(lines) == 2 + len(BRIEF_ROWS) + 2 and lines[-1] + "\n" == BRIEF_NOTE
    cell = r"\d+\.\d \[\d+\.\d, \d+\.\d\]"
    for (name, *_), line in zip(BRIEF_ROWS, lines[2:], strict=False):
        assert re.fullmatch(rf"\| {name} \| {cell} \| {cell} \|", line)
    whole = pages.shown("features_or_fine_tuning")
    for score in re.findall(r"\| (\d+\.\d) \[", "\n".join(lines)):
        assert f"| {score} ± " in whole


def test_every_picture_and_table_of_the_results_has_a_page():
    assert len(MARKS) >= 37
    assert {"results", "seq2seq_long", "claims", "speed_gpt", "check_scaling"} <= set(MARKS)
    text = "\n".join(path.read_text() for path in pages.PAGES.glob("*.md"))
    for picture in (ROOT / "benchmarks" / "results").glob("seq2seq/*.png"):
        assert f"../../benchmarks/results/seq2seq/{picture.name}" in text, picture.name


@pytest.mark.parametrize("page", [pages.PAGES / "index.md", pages.README], ids=lambda p: p.name)
def test_pages_repeat_the_counts_of_the_claims(page):
    line = pages.shown("claims").splitlines()[0]
    counts = sorted(re.findall(r"\d+", line))
    answer = re.search(r"\d+ orderings from papers.*?not\s+run", page.read_text(), re.DOTALL)
    assert sorted(re.findall(r"\d+", answer[0])) == counts


def test_readme_repeats_the_numbers_of_the_claims():
    rows = re.findall(r"^\| .* \|.*: ([\d.]+ and [\d.]+ \| .*?) \|", pages.README.read_text(), re.M)
    assert len(rows) == 6
    claims = pages.shown("claims")
    for numbers in rows:
        assert f"| {numbers} |" in claims, numbers


EXPLANATIONS = (ROOT / "docs" / "explanation").glob("*.md")

# Decimal numbers of the text without a table, and their sources.
WITHOUT_TABLE = {
    "devices.md": "2.11 0.11",  # versions of torch and JAX
    "elmo.md": "41.9 23.0 55.8 "  # dev scores of single epochs: `trials` in the records
    "0.37 0.40 0.41 0.44 0.48 0.55 0.56 "  # learned weights of layers: `mixes` in the records
    "21.9",  # a difference in `sample_efficiency`
    "equal_terms.md": "0.01",  # a bound
    "minilm.md": "68.4 52.7 80.3 79.5",  # fractions of the most frequent label; dev scores
    "speed.md": "7.6 13.5 9.3 11.7 1.42 "  # ratios of `seconds` in the files of `speed`
    "2.84 0.01",  # `benchmarks/results/disturbed`; a difference to an aim
    "translation.md": "28.0 31.4",  # single seeds of `seq2seq_long`
    "verdicts.md": "0.03 0.05 0.84 1.96 97.5",  # levels, quantiles and examples
    "README.md": "3.11 3.12 3.13",  # versions of Python
}


@pytest.mark.parametrize(
    "page",
    [*pages.PAGES.glob("*.md"), *EXPLANATIONS, pages.README],
    ids=lambda p: f"{p.parent.name}/{p.name}",
)
def test_numbers_of_the_text_stand_in_a_table(page):
    """The table is on the page, on a page that it links to, or among the claims."""
    decimal = re.compile(r"(?<![\w./])\d+(?:,\d{3})*\.\d+(?![\w.]*\d)")

    def tables_and_text(path):
        tables = re.compile(r"<!-- (\S+) -->\n.*?<!-- end of \1 -->", re.DOTALL)
        text = path.read_text()
        return "".join(m[0] for m in tables.finditer(text)), tables.sub("", text)

    tables, text = tables_and_text(page)
    links = {(page.parent / name).resolve() for name in re.findall(r"\]\(([^)#]+\.md)", text)}
    for path in links & {path.resolve() for path in pages.PAGES.glob("*.md")}:
        tables += tables_and_text(path)[0]
    tables += (ROOT / "benchmarks" / "results" / "claims.md").read_text()
    text = re.sub(r"```.*?```|https?://\S+|arXiv \S+", "", text, flags=re.DOTALL)
    without = set(decimal.findall(text)) - set(decimal.findall(tables))
    assert without <= set(WITHOUT_TABLE.get(page.name, "").split())


@pytest.fixture
def small_docs(tmp_path, monkeypatch):
    """Two small pages and a README."""
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "PAGES", tmp_path / "docs")
    monkeypatch.setattr(pages, "README", tmp_path / "README.md")
    page = "# A\n\n<!-- {0} -->\nold\n<!-- end of {0} -->\n\nb\n"
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "speed.md").write_text(page.format("check_scaling"))
    (tmp_path / "docs" / "other.md").write_text("# no table\n")
    brief = page.format("features_or_fine_tuning.brief")
    (tmp_path / "README.md").write_text(page.format("demo") + brief)
    return tmp_path


def test_into_page_replaces_the_table_between_its_marks(small_docs):
    assert pages.marks() == {
        "check_scaling": small_docs / "docs" / "speed.md",
        "features_or_fine_tuning.brief": small_docs / "README.md",
    }
    assert pages.into_page("check_scaling", "new \\1\n")
    page = (small_docs / "docs" / "speed.md").read_text()
    assert page == "# A\n\n<!-- check_scaling -->\nnew \\1\n<!-- end of check_scaling -->\n\nb\n"
    assert not pages.into_page("check_scaling", "new \\1\n")
    assert pages.shown("check_scaling") == "new \\1\n"


def test_wrong_marks_are_refused(small_docs):
    with pytest.raises(ValueError, match="Unknown mark 'check_scalling'.*mean 'check_scaling'"):
        pages.into_page("check_scalling", "")
    with pytest.raises(ValueError, match="Unknown mark 'demo'. .*language_models, word_vectors"):
        pages.table("demo")
    other = small_docs / "docs" / "other.md"
    other.write_text("<!-- check_scaling -->\n<!-- end of check_scaling -->\n")
    with pytest.raises(ValueError, match="once, on one page.*check_scaling in .*other.md and in"):
        pages.marks()
    other.write_text("<!-- speed -->\n")
    with pytest.raises(ValueError, match="needs a line '<!-- end of speed -->'"):
        pages.marks()


def test_the_command_updates_all_pages(small_docs, capsys):
    (small_docs / "README.md").write_text("no table\n")
    assert main(["report", "--docs"]) == 0
    assert "docs/speed.md, check_scaling: a new table" in capsys.readouterr().out
    assert pages.shown("check_scaling") == pages.table("check_scaling")
    assert main(["report", "--docs"]) == 0
    assert "check_scaling: up to date" in capsys.readouterr().out
    assert main(["report", "--docs", "--results", str(small_docs)]) == 2
    assert "Unknown result file 'check_scaling'" in capsys.readouterr().err


def test_the_command_updates_one_suite(small_docs, capsys):
    page = small_docs / "docs" / "other.md"
    page.write_text("<!-- language_models -->\n<!-- end of language_models -->\n")
    assert main(["report", "--docs", "--suite", "language_models"]) == 0
    assert "docs/other.md, language_models: a new table" in capsys.readouterr().out
    assert pages.shown("language_models") == pages.table("language_models")
    assert "old" in (small_docs / "docs" / "speed.md").read_text()


@pytest.mark.parametrize("flags, message", [
    (["--html", "a.html"], "`--docs` takes no page"),
    (["--plots", "plots"], "only with a --suite"),
    (["--suite", "speed"], "Unknown suite"),
])  # fmt: skip
def test_conflicting_flags_are_refused(flags, message, capsys):
    assert main(["report", "--docs", *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_model_card_needs_its_sections(tmp_path):
    folder = tmp_path / "bert_mini"
    shutil.copytree(model_cards.WEIGHTS / "bert_mini", folder)
    shown = model_cards.markdown(tmp_path)
    assert "## bert_mini" in shown and "9,766 steps, 40.0 M tokens" in shown
    assert "| Model | BERT, 4 layers, 256 wide, 5.9 M weights |" in shown
    assert re.search(r"\| `model.safetensors` \| 11,839,904 \| `[0-9a-f]{64}` \|", shown)
    text = (folder / "README.md").read_text()
    (folder / "README.md").write_text(text.replace("## Limits", "## Other"))
    with pytest.raises(ValueError, match="needs a section '## Limits'"):
        model_cards.markdown(tmp_path)
