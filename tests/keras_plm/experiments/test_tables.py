"""Tables as Markdown, HTML, CSV and LaTeX."""

import csv
import io
import math
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from keras_plm.experiments.report.result_tables import markdown
from keras_plm.experiments.report.tables import (
    Table,
    blocks,
    cell,
    number,
    plain,
    to_html,
    to_latex,
)
from keras_plm.experiments.results import read_results
from tests import ROOT

pytestmark = pytest.mark.backend_neutral
RESULTS = ROOT / "benchmarks" / "results"

TEXT = """The paper's (table 5):

| | a, 7,696 (f1) | of <b> & "c" | words |
|---|---:|---:|---|
| one | **42.4 ± 0.5 (3)** | 1,000 | a \\| b<br>**c** |
| two |  | 1.31 M | 50 % of_it |

A note,
of two lines.

- first: **x**
- second
"""


class Cells(HTMLParser):
    """Collects the cells of a table as `(tag, attributes, text)`."""

    def __init__(self, text):
        super().__init__()
        self.cells, self.open = [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag in ("td", "th"):
            self.cells.append([tag, dict(attrs), ""])
            self.open = True

    def handle_endtag(self, tag):
        self.open = self.open and tag not in ("td", "th")

    def handle_data(self, data):
        if self.open:
            self.cells[-1][2] += data


def test_markdown_tables_round_trip():
    table, note, points = blocks(TEXT)
    assert table.title == "The paper's (table 5)"
    assert table.columns == ("", "a, 7,696 (f1)", 'of <b> & "c"', "words")
    assert table.numeric == (False, True, True, False)
    assert table.rows[0] == ("one", "**42.4 ± 0.5 (3)**", "1,000", "a \\| b<br>**c**")
    assert note == "A note, of two lines." and points == ["first: **x**", "second"]
    assert blocks(table.markdown())[0].rows == table.rows
    text = markdown(read_results(RESULTS / "first"))
    table, note = blocks(text)
    assert f"{table.markdown()}\n{note}\n" == text


def test_html_is_escaped_and_contains_sort_numbers():
    table = blocks(TEXT)[0]
    page = table.html()
    assert "of &lt;b&gt; &amp; &quot;c&quot;" in page and "<b>" not in page
    assert "<strong>42.4 ± 0.5 (3)</strong>" in page and "a | b<br><strong>c</strong>" in page
    cells = Cells(page).cells
    assert [c[2] for c in cells[:4]] == ["row", "a, 7,696 (f1)", 'of <b> & "c"', "words"]
    assert [c[1].get("data-n") for c in cells[4:]] == [None, "42.4", "1000", None] + [
        None, None, "1310000", None,
    ]  # fmt: skip
    assert [c[0] for c in cells] == ["th"] * 5 + ["td"] * 3 + ["th"] + ["td"] * 3
    assert to_html('<script>"&') == "&lt;script&gt;&quot;&amp;"
    assert to_html(cell("**<a|b>**_")) == "**&lt;a|b&gt;**_"  # plain text, not markup
    assert plain(cell("a `b` \\| *c*")) == "a `b` \\| *c*"


@pytest.mark.parametrize(
    "text, value",
    [
        ("**42.4 ± 0.5 (3)**", 42.4), ("2,838.2 (1)", 2838.2), ("-6.4 (-6.4)", -6.4),
        ("+3.5 (+2.8, +4.4)", 3.5), ("36.1, 35.8", 36.1), ("1.31 M", 1.31e6), ("96%", 96),
        ("11,207 : 7,845 (1.43)", 11207), ("5, 3", 5), ("−2", -2), ("infinite", math.inf),
        ("", None), ("?", None), ("1e-05", 1e-5), ("loss 4.00 per piece", 4),
    ],
)  # fmt: skip
def test_cells_sort_by_their_first_number(text, value):
    assert number(text) == value


def test_csv_separates_means_deviations_and_run_counts():
    rows = list(csv.reader(io.StringIO(blocks(TEXT)[0].csv())))
    a = "a, 7,696 (f1)"
    assert rows == [
        ["row", a, f"{a}: deviation", f"{a}: n", 'of <b> & "c"', "words"],
        ["one", "42.4", "0.5", "3", "1000", "a | b\nc"],
        ["two", "", "", "", "1.31 M", "50 % of_it"],
    ]


def test_csv_column_names_are_unique():
    table = Table(
        ("", "", "mini", "mini"), (("a", "b", "1 ± 2 (3)", "4"),), (False, False, True, True)
    )
    assert table.csv().splitlines()[0] == "row,of,mini,mini: deviation,mini: n,mini (4)"


def test_latex_escapes_special_characters(tmp_path):
    text = blocks(TEXT)[0].latex()
    assert r"\textbf{42.4 $\pm$ 0.5 (3)}" in text and r"50 \% of\_it" in text
    assert r"\begin{tabular}{lrrl}" in text and r"\caption{The paper's (table 5)}" in text
    assert to_latex("a_b & 5 % #1 ^~\\ λ") == (
        r"a\_b \& 5 \% \#1 \textasciicircum{}\textasciitilde{}\textbackslash{} $\lambda$"
    )
    if shutil.which("pdflatex"):
        body = text.replace("table}", "center}").replace(r"\caption", r"\textit")
        whole = r"\documentclass{article}\usepackage{booktabs}\begin{document}" + body
        (tmp_path / "t.tex").write_text(whole + r"\end{document}")
        command = ["pdflatex", "-halt-on-error", "t.tex"]
        assert not subprocess.run(command, cwd=tmp_path, capture_output=True).returncode


def test_a_row_of_another_length_is_named():
    with pytest.raises(ValueError, match=r"a cell for each of 2 columns. Received: \('1',\)"):
        blocks("| a | b |\n|---|---|\n| 1 |\n")
    assert Table.of([{"a": 1, "b": "x"}], ("a",)).numeric == (True, False)
