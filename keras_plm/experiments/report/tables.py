"""One structure of a table, written as Markdown, HTML, CSV and LaTeX.

The suites write Markdown for pages; `blocks` reads theirs back, so that each table is made once.
A cell is Markdown of a few marks: `**best**`, `` `code` ``, `<br>`, and backslashes before signs.
"""

import csv
import dataclasses
import html
import io
import math
import re

MARKS = re.compile(r"\\([\\`*_{}\[\]()#+.!|<>~-])|\*\*(.+?)\*\*|`([^`]+)`|<br>")
NUMBER = re.compile(r"[+−-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?(e[+-]?\d+)?")
# What begins like a formula and computes nothing: numbers, and several of them in brackets.
HARMLESS = re.compile(r"[+−-]?\d([\d.,e±%()\[\] +−-]| to )*")
UNITS = {"k": 1e3, "M": 1e6, "G": 1e9}
SPREAD = re.compile(r"^(?P<mean>\S+)(?: ± (?P<deviation>\S+))?(?: \((?P<n>\d+)\))?$")
TEX = {
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "±": r"$\pm$", "−": "$-$", "×": r"$\times$", "λ": r"$\lambda$", "→": r"$\to$",
    "≥": r"$\geq$", "≤": r"$\leq$", "…": r"\ldots{}", "≠": r"$\neq$",
}  # fmt: skip
LONG_HEAD = 16  # characters of a head from which on its column of numbers is not made narrow
ROOMY = 22  # characters of a cell from which on its column is not made narrow on the page
LONGEST_NAME = 200  # characters of a name in a plot
WIDE = 45  # characters of a cell from which on its column breaks lines in LaTeX


@dataclasses.dataclass(frozen=True)
class Table:
    """Columns and rows of cells.

    Attributes:
        columns: Heads, as cells.
        rows: Tuples of cells, as many as columns.
        numeric: Whether a column stands to the right and sorts by number, one for each.
        title: What is in it.
    """

    columns: tuple
    rows: tuple
    numeric: tuple
    title: str = ""

    def __post_init__(self):
        for row in (self.numeric, *self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"A row has a cell for each of {len(self.columns)} columns. Received: {row}"
                )

    @classmethod
    def of(cls, rows, numeric=(), title=""):
        """A table of dicts that share their keys, the columns; `numeric` names some of them."""
        columns = tuple(rows[0])
        cells = tuple(tuple(str(row[name]) for name in columns) for row in rows)
        return cls(columns, cells, tuple(name in numeric for name in columns), title)

    def markdown(self):
        rule = "|".join("---:" if numeric else "---" for numeric in self.numeric)
        lines = [f"| {' | '.join(self.columns)} |", f"|{rule}|"]
        return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in self.rows)]) + "\n"

    def html(self):
        """A `<table>` whose heads are buttons, and whose cells carry the numbers they sort by."""
        kinds = []
        for i, numeric in enumerate(self.numeric):
            room = len(plain(self.columns[i])) if numeric else self._longest(i)
            kind = ("n " if numeric else "") + (
                "w" if room > (LONG_HEAD if numeric else ROOMY) else ""
            )
            kinds.append(f' class="{kind.strip()}"' if kind else "")
        head = "".join(
            f'<th scope="col"{kind}><button type="button">{to_html(name) or "row"}</button></th>'
            for name, kind in zip(self.columns, kinds, strict=True)
        )
        body = []
        for row in self.rows:
            cells = []
            for i, (cell, numeric) in enumerate(zip(row, self.numeric, strict=True)):
                value = number(cell) if numeric else None
                sort = f' data-n="{_javascript(value)}"' if value is not None else ""
                tag, scope = ("th", ' scope="row"') if i == 0 else ("td", "")
                cells.append(f"<{tag}{scope}{kinds[i]}{sort}>{to_html(cell)}</{tag}>")
            body.append(f"<tr>{''.join(cells)}</tr>")
        caption = f"<caption>{to_html(self.title)}</caption>" if self.title else ""
        rows = "\n".join(body)
        return f"<table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>"

    def _longest(self, column):
        return max((len(plain(row[column])) for row in self.rows), default=0)

    def csv(self):
        """Numbers alone: what has a deviation or a number of runs has columns of its own."""
        columns = []
        for i, (name, numeric) in enumerate(zip(self.columns, self.numeric, strict=True)):
            cells = [plain(row[i]) for row in self.rows]
            parts = [SPREAD.match(cell) if numeric else None for cell in cells]
            spread = any(part and (part["deviation"] or part["n"]) for part in parts)
            means = [part["mean"] if part and spread else cell
                     for part, cell in zip(parts, cells, strict=True)]  # fmt: skip
            # Heads of their own, for programs that know columns by them.
            name = plain(name) or ("row" if i == 0 else "of")
            name += f" ({i + 1})" if name in (column[0] for column in columns) else ""
            columns.append([name, *(_bare(mean) if numeric else mean for mean in means)])
            if not spread:
                continue
            for key in ("deviation", "n"):
                found = [(part and part[key]) or "" for part in parts]
                if any(found):
                    columns.append([f"{name}: {key}", *found])
        file = io.StringIO()
        columns = [[_no_formula(text) for text in column] for column in columns]
        csv.writer(file, lineterminator="\n").writerows(zip(*columns, strict=True))
        return file.getvalue()

    def latex(self):
        """A `table` for the package booktabs."""
        kinds = []
        for i, numeric in enumerate(self.numeric):
            wide = self._longest(i) > WIDE
            kinds.append("r" if numeric else r"p{0.4\linewidth}" if wide else "l")
        lines = [r"% \usepackage{booktabs}", r"\begin{table}", r"\centering"]
        lines += [rf"\caption{{{to_latex(self.title)}}}"] if self.title else []
        lines += [rf"\begin{{tabular}}{{{''.join(kinds)}}}", r"\toprule"]
        for i, row in enumerate([self.columns, *self.rows]):
            lines.append(" & ".join(to_latex(cell) for cell in row) + r" \\")
            lines += [r"\midrule"] if i == 0 else []
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _javascript(value):
    return "Infinity" if math.isinf(value) else f"{value:.12g}"


def _bare(text):
    """A number without the commas of its thousands; anything else as it is."""
    return text.replace(",", "") if NUMBER.fullmatch(text) else text


def _no_formula(text):
    """A text that spreadsheet programs do not compute, with an apostrophe where they would.

    Reference: OWASP, CSV injection.
    """
    text = text.replace("\r", " ")  # which the module csv does not quote
    harmful = text.lstrip()[:1] in tuple("=+-@") or text[:1] in ("\t", "\n")
    return f"'{text}" if text and harmful and not HARMLESS.fullmatch(text) else text


def _render(text, escape, strong, code, newline):
    """A cell with its marks put as a format has them, and what is between them escaped."""

    def mark(match):
        sign, bold, verbatim = match.groups()
        if sign is not None:
            return escape(sign)
        if bold is not None:
            return strong.format(_render(bold, escape, strong, code, newline))
        return code.format(escape(verbatim)) if verbatim is not None else newline

    found, end = [], 0
    for match in MARKS.finditer(text):
        found += [escape(text[end : match.start()]), mark(match)]
        end = match.end()
    return "".join([*found, escape(text[end:])])


def to_html(text):
    """A cell or a paragraph as HTML."""
    return _render(text, html.escape, "<strong>{}</strong>", "<code>{}</code>", "<br>")


def to_latex(text):
    """A cell as LaTeX."""

    def escape(text):
        return "".join(TEX.get(character, character) for character in text)

    return _render(text, escape, r"\textbf{{{}}}", r"\texttt{{{}}}", " ")


def plain(text):
    """A cell without marks."""
    return _render(text, str, "{}", "{}", "\n")


def cell(text):
    """Any text as a cell: what would be read as a mark has a backslash before it."""
    text = " ".join(str(text).split())
    return re.sub(r"([\\|*`<>\[\]])", r"\\\1", text)


def file_name(text):
    """A text as the name of a file: without separators and what shells and links treat apart."""
    return re.sub(r"[^\w.+=-]+", "_", text)[:150].lstrip(".") or "_"


def plot_text(text):
    """A text as matplotlib shows it: short, no formulas, and nothing that SVG cannot hold."""
    text = text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}..."
    return re.sub(r"[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]", "\ufffd", text).replace("$", r"\$")


def number(text):
    """What a cell sorts by: its first number, or `None` where it has none.

    >>> number("**42.4 ± 0.5 (3)**"), number("1.31 M"), number("2,838.2 (1)"), number("")
    (42.4, 1310000.0, 2838.2, None)
    """
    text = plain(text).strip()
    found = NUMBER.search(text)
    if found is None:
        return math.inf if text.startswith("infinite") else None
    value = float(found[0].replace(",", "").replace("−", "-"))
    unit = re.match(r" ?([kMG])\b", text[found.end() :])
    return value * (UNITS[unit[1]] if unit else 1)


def blocks(markdown):
    """What a suite's Markdown is made of: tables, paragraphs (strings), lists (of strings).

    A table's title is the paragraph before it, where that ends with a colon.

    Raises:
        ValueError: If a row of a table has more or fewer cells than its head.
    """
    found = []
    for part in re.split(r"\n\s*\n", markdown.strip("\n")):
        lines = [line for line in part.split("\n") if line.strip()]
        if not lines:
            continue
        if len(lines) > 1 and lines[0].startswith("|") and set(lines[1]) <= set("|-: "):
            columns, rule, *rows = (_cells(line) for line in lines)
            title = ""
            if found and isinstance(found[-1], str) and found[-1].endswith(":"):
                title = found.pop().removesuffix(":")
            numeric = tuple(mark.endswith(":") for mark in rule)
            found.append(Table(columns, tuple(rows), numeric, title))
        elif all(line.startswith("- ") for line in lines):
            found.append([line[2:] for line in lines])
        else:
            found.append(" ".join(lines))
    return found


def _cells(line):
    inner = line.strip().removeprefix("|").removesuffix("|")
    return tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", inner))
