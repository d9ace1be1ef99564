"""The page of all results: its content, omitted results, and its script."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import keras_plm
from benchmarks.__main__ import main
from benchmarks.report import claims_of, sections
from benchmarks.suites.registry import Suite
from keras_plm.experiments.report.page import Page
from keras_plm.experiments.report.sections import sections as sections_of
from keras_plm.experiments.report.views import MOST_WORDS, attention_html, claims_html, claims_table
from keras_plm.experiments.results import read_results
from keras_plm.models import BERT
from keras_plm.tokenizers import WordPiece
from tests.keras_plm.experiments.planted_results import CLAIMS, EVIL, RESULTS, put

pytestmark = pytest.mark.backend_neutral


@pytest.fixture
def root(tmp_path):
    """Results of two folders and of a suite."""
    for seed in range(2):
        for i, layers in enumerate(("embeddings", "last", "concat_last_four")):
            put(tmp_path, "first", "ner", "features", 0.1 + i / 7, seed, layers=layers)
        put(tmp_path, "first", "ner", "fine_tune", 0.6 + seed / 100, seed)
        put(tmp_path, "first", "sst", "scratch", 0.3, seed, encoder="<i>x")
        put(tmp_path, "words", "sst", "fine_tune", 0.4, seed)
        put(tmp_path, "bert_tasks", "cola", "fine_tune", 0.4, seed)
    return tmp_path


class Links(HTMLParser):
    """Collects the links, ids and text of a page."""

    def __init__(self, page):
        super().__init__()
        self.found, self.ids, self.tags, self.text = [], [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "action", "data", "poster"):
                self.found.append(value)
            if name == "id":
                self.ids.append(value)

    def handle_data(self, data):
        self.text += data


def report(root, *flags):
    return main(["report", "--results", str(root), *map(str, flags)])


def test_page_contains_all_results_without_external_links(root, tmp_path, capsys):
    page = tmp_path / "out" / "page.html"
    assert report(root, "--html", page) == 0, capsys.readouterr().err
    text = page.read_text()
    links = Links(text)
    assert "60.5 ± 0.7 (2)" in text and "<strong>60.5 ± 0.7 (2)</strong>" in text
    for words in (
        "first",
        "words",
        "bert tasks",
        "Machines, versions and commits",
        "keras 3.15",
        "abcdef0+",
    ):
        assert words in links.text
    assert "A &amp; B, 2 cores" in text and "<i>x" not in text  # escaped
    assert re.search(r"Not run here: .*seq2seq", links.text)
    assert text.count("<svg") == 2  # score by layer, score against cost
    assert all(re.match(r"#|data:", target) for target in links.found), links.found
    assert not re.search(r"https?:|@import|url\((?!#)", text)
    assert len(links.ids) == len(set(links.ids))
    targets = {target[1:] for target in links.found if target.startswith("#")}
    assert targets <= set(links.ids)
    assert {"main", "nav", "header", "h1", "h2", "h3"} <= set(links.tags)
    assert not list(page.parent.glob("*.tmp*"))
    assert "3 comparisons from 14 result files" in capsys.readouterr().out


def test_report_of_one_suite_writes_all_formats(root, tmp_path, capsys):
    out = tmp_path / "out"
    flags = ["--suite", "first", "--html", out / "p.html", "--markdown", out / "p.md"]
    flags += ["--tables", out / "t", "--plots", out / "pictures", "--plot-type", "svg"]
    assert report(root, *flags) == 0, capsys.readouterr().err
    assert "bert tasks" not in (out / "p.html").read_text()
    text = (out / "p.md").read_text()
    assert "| mini: pre-trained, fine-tuned | **60.5 ± 0.7 (2)** |" in text
    linked = re.findall(r"!\[.*\]\((.*)\)", text)
    assert linked == ["pictures/first.ner_by_layer.svg", "pictures/cost.first.ner.svg"]
    assert all("<svg" in (out / path).read_text() for path in linked)
    names = {path.name for path in (out / "t").glob("*")}
    assert names == {f"{n}.{k}" for n in ("first.1", "cost.first", "where") for k in ("csv", "tex")}
    assert "60.5,0.7,2" in (out / "t" / "first.1.csv").read_text()
    assert r"\toprule" in (out / "t" / "first.1.tex").read_text()


@pytest.mark.parametrize(
    "text, why",
    [
        ('{"task": "sst", "sc', "is not a complete result file"),
        (
            "[1, 2]",
            "move it elsewhere: it must hold an object. Received: a list",
        ),
        ('{"name": "x"}', "`task` must be text. Received: no such key"),
        (
            '{"task": "t", "encoder": "e", "method": "features"}',
            "`settings` must be an object",
        ),
    ],
)
def test_suite_with_a_damaged_file_is_left_out(root, tmp_path, capsys, text, why):
    bad = root / "words" / "sst" / "mini.x.seed0.json"
    bad.write_text(text)
    page = tmp_path / "page.html"
    assert report(root, "--html", page, "--markdown", tmp_path / "p.md") == 0
    error = capsys.readouterr().err
    assert f"left out: words: {bad}" in error and why in error
    shown = Links(page.read_text()).text
    assert str(bad) in shown and why in shown and "Left out" in shown
    assert "first" in shown and 'id="words"' not in page.read_text()
    assert why in (tmp_path / "p.md").read_text().replace("\\", "")


def test_damaged_result_leaves_out_only_its_task(root, tmp_path, capsys):
    bad = root / "first" / "sst" / "mini.x.seed0.json"
    bad.write_text('{"task": "sst", "sc')
    page = tmp_path / "page.html"
    assert report(root, "--html", page) == 0
    assert f"left out: first: {bad} is not a complete result file" in capsys.readouterr().err
    shown = page.read_text()
    assert 'id="first"' in shown and "60.5 ± 0.7 (2)" in shown and str(bad) in Links(shown).text


def test_damaged_result_of_a_suite_leaves_out_only_its_task(root, tmp_path, capsys):
    bad = root / "bert_tasks" / "rte" / "mini.x.seed0.json"
    bad.parent.mkdir()
    bad.write_text('{"task": "rte", "sc')
    page = tmp_path / "page.html"
    assert report(root, "--html", page) == 0
    assert f"left out: bert_tasks: {bad} is not a complete result file" in capsys.readouterr().err
    assert 'id="bert-tasks"' in page.read_text() and "40.0 ± 0.0 (2)" in page.read_text()


def test_foreign_json_file_is_skipped_with_a_message(root, tmp_path, capsys):
    (root / "first" / "sst" / "hello.json").write_text('{"hello": 1}')
    assert report(root, "--html", tmp_path / "page.html") == 0
    said = "first/sst/hello.json: skipped: files of the harness must state backend, device, commit"
    assert said in capsys.readouterr().err
    assert report(root, "--suite", "first") == 0
    assert "hello.json: skipped: files of the harness" in capsys.readouterr().err


def test_conflicting_results_of_one_run_are_reported(root, tmp_path, capsys):
    first = put(root, "words", "sst", "fine_tune", 0.4, 0)
    copy = first.with_name("copied.seed0.json")
    copy.write_text(first.read_text().replace('"score": 0.4', '"score": 0.9'))
    assert report(root, "--html", tmp_path / "page.html") == 0
    error = capsys.readouterr().err
    assert str(first) in error and str(copy) in error
    assert "Received: scores 0.9 and 0.4" in error  # in the order of the file names
    copy.unlink()
    other = put(root, "words", "sst", "fine_tune", 0.5, 1)
    other.write_text(other.read_text().replace('"inputs": "abc"', '"inputs": "xyz"'))
    assert report(root, "--html", tmp_path / "page.html") == 0
    assert re.search(
        r"Seeds of one run share.*sst/mini\.fine_tune\.seed0\.json and .*seed1\.json",
        capsys.readouterr().err,
    )


def test_files_unreadable_to_a_suite_are_reported(root, tmp_path, capsys):
    odd = root / "gpt" / "samples" / "mini.json"
    odd.parent.mkdir(parents=True)
    odd.write_text("[]")
    (root / "encoders.json").write_text("{}")
    (root / "speed.json").write_text('{"results": ')
    assert report(root, "--html", tmp_path / "page.html") == 0
    error = capsys.readouterr().err
    assert f"gpt_samples: {odd} is not a result file: move it elsewhere. Received: a list" in error
    assert "encoders.json has unexpected content" in error
    assert "speed.json is not a complete result file" in error
    odd.write_text("{}")
    assert report(root, "--html", tmp_path / "page.html") == 0
    assert "has unexpected content: run the suite" in capsys.readouterr().err


def test_report_without_results_preserves_existing_page(tmp_path, capsys):
    page, root = tmp_path / "page.html", tmp_path / "results"
    page.write_text("old")
    assert report(root, "--html", page) == 2
    assert "is not a folder" in capsys.readouterr().err
    bad = root / "first" / "t" / "a.seed0.json"
    bad.parent.mkdir(parents=True)
    assert report(root, "--html", page) == 2
    assert "Nothing to show below" in capsys.readouterr().err
    bad.write_text("{")
    assert report(root, "--html", page) == 2
    assert f"{bad} is not a complete result file" in capsys.readouterr().err
    assert report(root, "--html", page, "--suite", "frist") == 2
    assert "Did you mean 'first'?" in capsys.readouterr().err
    assert report(root, "--html", page, "--attention", "x") == 2
    assert "`--attention` needs --text" in capsys.readouterr().err
    assert page.read_text() == "old" and [path.name for path in tmp_path.glob("page*")] == [
        "page.html"
    ]


def test_claims_are_counted_and_escaped():
    page = claims_html(CLAIMS)
    assert "✓ 2 reproduced<" in page and "– 1 not run<" in page
    assert EVIL not in page and "&lt;script&gt;" in page
    assert page.count('<tr data-verdict="not-separable">') == 1
    table = claims_table(CLAIMS)
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["effect"], row["95 % interval"], row["p"]) == ("+1.50", "+0.00 to +2.00", "0.100")
    assert (row["detectable"], row["seeds"]) == ("0.70", "5, 3")
    assert table.rows[3][3:6] == ("", "", "")
    nats = claims_table([CLAIMS[0] | {"unit": "nats"}])
    assert nats.rows[0][nats.columns.index("unit")] == "nats"
    few = CLAIMS[0] | {
        "verdict": "reproduced (descriptive)", "adjusted": 0.5, "published": (85.2, 84.7),
        "verified": False, "unit": "points",
    }  # fmt: skip
    row = dict(zip(table.columns, claims_table([few]).rows[0], strict=True))
    assert row["verdict"] == "✓ reproduced (descriptive)" and row["effect"] == "+1.50"
    assert row["p"] == "0.500" and row["published"] == "85.2, 84.7"
    assert row["source"] == "Devlin et al. 2018, table 7, unverified"
    page = claims_html([few, *CLAIMS])
    assert page.count('<tr data-verdict="reproduced">') == 3
    assert "✓ 2 reproduced, 1 more descriptively<" in page
    with pytest.raises(ValueError, match="A verdict must be .* Received: 'maybe' of 'claim_0'"):
        claims_table([CLAIMS[0] | {"verdict": "maybe"}])


def test_page_shows_costs_and_failures(root):
    path = put(root, "words", "sst", "fine_tune", 0.4, 0)
    cost = {"encoder_passes": 3, "learned_weights": 2_500_000, "feature_bytes": 0, "peak_mb": 812}
    path.write_text(json.dumps(json.loads(path.read_text()) | cost))
    path.with_name("x.seed2.failed").write_text('{"error": "ValueError: a < b"}')
    page = Page(root, sections(root))
    table = page.costs["words"]
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["run"] == "pre-trained, fine-tuned" and row["runs"] == "2"
    assert row["seconds"] == "40 ± 1" and row["fits of the search"] == "3"
    assert row["M trained weights"] == "2.5" and row["peak memory, MB"] == "812"
    assert "words/sst/x.seed2.failed: ValueError: a &lt; b" in page.html()
    assert "x.seed2.failed: ValueError" in page.markdown()
    where = dict(zip(page.where.columns, page.where.rows[0], strict=True))
    assert (where["files"], where["seeds"], where["fits in searches"]) == ("8", "2", "12")


def test_claims_of_results_without_claim_runs_are_none(root):
    assert claims_of(root) is None


@pytest.mark.full
def test_page_shows_claims_or_reason_for_their_absence(root):
    found = sections(root)
    assert 'id="claims"' not in Page(root, found).html()
    page = Page(root, found, CLAIMS)
    assert 'id="claims-tables"' in page.html() and "claims" in page.tables()
    assert "2 reproduced; 2 contradicted; 1 not separable; 1 not run." in page.markdown()
    broken = Page(root, found, "x is <broken>")
    assert "x is &lt;broken&gt;" in broken.html() and r"x is \<broken\>" in broken.markdown()
    assert "No claim was tested" in Page(root, found, []).html()


def test_attention_of_a_text(root, tmp_path, capsys):
    (tmp_path / "text").write_text("the cat sat on a mat\n" * 3)
    tokenizer = WordPiece.train([tmp_path / "text"], 40)
    encoder = BERT(len(tokenizer), 2, 3, 6, 5)
    keras_plm.save(tmp_path / "bert", encoder, tokenizer)
    flags = ["--attention", tmp_path / "bert", "--text", "The </script> cat"]
    out = tmp_path / "page.html"
    assert report(root, "--html", out, "--markdown", tmp_path / "p.md", *flags) == 0
    page = out.read_text()
    data = json.loads(re.search(r'application/json">(.*?)</script>', page, re.DOTALL)[1])
    assert data["words"] == ["[CLS]", "The", "<", "/", "script", ">", "cat", "[SEP]"]
    weights = np.array(data["weights"]).reshape(2, 3, 8, 8)
    assert np.abs(weights.sum(-1) - 1000).max() <= 8  # rounded to thousandths
    assert "## Attention of a text: bert" in (tmp_path / "p.md").read_text()
    with pytest.raises(ValueError, match=f"at most {MOST_WORDS} words. Received: 81"):
        attention_html(np.ones((1, 1, 81, 81)), ["a"] * 81, "bert")
    assert report(root, "--html", out, "--attention", tmp_path, "--text", "a") == 2


def test_one_record_that_a_suite_cannot_read_is_left_out(tmp_path):
    for task in ("ner", "sst5", "mrpc"):
        for seed in range(5):
            put(
                tmp_path, "own", task, "features", 0.1 if (task, seed) == ("sst5", 3) else 0.5, seed
            )
    sizes = []

    def markdown(folder):
        scores = [result.score for result in read_results(folder)]
        sizes.append(len(scores))
        if 0.1 in scores:
            raise KeyError("0.1")
        return f"{len(scores)} records"

    suite = Suite(markdown, lambda folder: {}, {"small": None}, "none", "2018-02")
    (section,) = sections_of(tmp_path, "own", suites={"own": suite})
    assert section.text == "14 records" and len(sizes) < 12
    assert "seed3.json is left out: A file below" in section.left_out


@pytest.mark.full
def test_committed_results_can_all_be_shown():
    left_out = {s.name: s.left_out for s in sections(RESULTS) if s.left_out and not s.empty}
    assert not left_out
