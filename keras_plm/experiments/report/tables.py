"""Tables that can be written as Markdown, HTML, CSV and LaTeX.

The suites write Markdown for pages, and `blocks` parses it. A cell is Markdown with few marks:
`**best**`, `` `code` ``, `<br>`, and backslashes before signs.
"""

import csv
import dataclasses
import html
import io
import math
import re

MARKS = re.compile(r"\\([\\`*_{}\[\]()#+.!|<>~-])|\*\*(.+?)\*\*|`([^`]+)`|<br>")
NUMBER = re.compile(r"[+−-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?(e[+-]?\d+)?")
# Text that begins like a formula, but is none: numbers, also several in brackets.
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
LONG_HEAD = 16  # characters; a longer header keeps its column of numbers wide on the page
ROOMY = 22  # characters; a longer cell keeps its column of text wide on the page
LONGEST_NAME = 200  # characters of a name in a plot
WIDE = 45  # characters; a longer cell makes its column break lines in LaTeX


@dataclasses.dataclass(frozen=True)
class Table:
    """Columns and rows of cells.

    Attributes:
        columns: Headers, as cells.
        rows: Tuples of cells, one for each column.
        numeric: For each column, whether it is right-aligned and sorts by number.
        title: Title of the table.
    """

    columns: tuple
    rows: tuple
    numeric: tuple
    title: str = ""

    def __post_init__(self):
        for row in (self.numeric, *self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"A row must have a cell for each of {len(self.columns)} columns. "
                    f"Received: {row}"
                )

    @classmethod
    def of(cls, rows, numeric=(), title=""):
        """Creates a table from dicts with the same keys, its columns; `numeric` names some."""
        columns = tuple(rows[0])
        cells = tuple(tuple(str(row[name]) for name in columns) for row in rows)
        return cls(columns, cells, tuple(name in numeric for name in columns), title)

    def markdown(self):
        rule = "|".join("---:" if numeric else "---" for numeric in self.numeric)
        lines = [f"| {' | '.join(self.columns)} |", f"|{rule}|"]
        return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in self.rows)]) + "\n"

    def html(self):
        """Returns a `<table>` with buttons as headers; its cells hold the numbers they sort by."""
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
        """Returns CSV, with separate columns for deviations and numbers of runs."""
        columns = []
        for i, (name, numeric) in enumerate(zip(self.columns, self.numeric, strict=True)):
            cells = [plain(row[i]) for row in self.rows]
            parts = [SPREAD.match(cell) if numeric else None for cell in cells]
            spread = any(part and (part["deviation"] or part["n"]) for part in parts)
            means = [part["mean"] if part and spread else cell
                     for part, cell in zip(parts, cells, strict=True)]  # fmt: skip
            # Unique headers, for programs that identify columns by them.
            name = plain(name) or ("row" if i == 0 else "of")
            name += f" ({i + 1})" if name in (column[0] for column in columns) else ""
            columns.append([name, *(_bare(mean) if numeric else mean for mean in means)])
            if not spread:
                continue
            for key in ("deviation", "n"):
                found = [_bare((part and part[key]) or "") for part in parts]
                if any(found):
                    columns.append([f"{name}: {key}", *found])
        file = io.StringIO()
        columns = [[_no_formula(text) for text in column] for column in columns]
        csv.writer(file, lineterminator="\n").writerows(zip(*columns, strict=True))
        return file.getvalue()

    def latex(self):
        """Returns a `table` for the LaTeX package booktabs."""
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
    """Removes the thousands separators of a number; returns other text unchanged."""
    return text.replace(",", "") if NUMBER.fullmatch(text) else text


def _no_formula(text):
    """Puts an apostrophe before a text that spreadsheet programs would compute.

    Reference: OWASP, CSV injection.
    """
    text = text.replace("\r", " ")  # the module csv does not quote it
    harmful = text.lstrip()[:1] in tuple("=+-@") or text[:1] in ("\t", "\n")
    return f"'{text}" if text and harmful and not HARMLESS.fullmatch(text) else text


def _render(text, escape, strong, code, newline):
    """Converts the marks of a cell to those of a format, and escapes the text between them."""

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
    """Converts a cell or a paragraph to HTML."""
    return _render(text, html.escape, "<strong>{}</strong>", "<code>{}</code>", "<br>")


def to_latex(text):
    """Converts a cell to LaTeX."""

    def escape(text):
        return "".join(TEX.get(character, character) for character in text)

    return _render(text, escape, r"\textbf{{{}}}", r"\texttt{{{}}}", " ")


def plain(text):
    """Returns a cell without marks."""
    return _render(text, str, "{}", "{}", "\n")


def cell(text):
    """Converts any text to a cell, with a backslash before each mark."""
    text = " ".join(str(text).split())
    return re.sub(r"([\\|*`<>\[\]])", r"\\\1", text)


def file_name(text):
    """Converts a text to a file name without special characters of paths, shells and links."""
    return re.sub(r"[^\w.+=-]+", "_", text)[:150].lstrip(".") or "_"


def plot_text(text):
    """Prepares a text for matplotlib: shortened, without formulas and characters invalid in SVG."""
    text = text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}..."
    return re.sub(r"[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]", "\ufffd", text).replace("$", r"\$")


def number(text):
    """Returns the number that a cell sorts by: its first number, or `None` without one.

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
    """Parses the Markdown of a suite: `Table`s, paragraphs (strings) and lists (of strings).

    The paragraph before a table is its title if it ends with a colon.

    Raises:
        ValueError: If a row of a table has more or fewer cells than its header.
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
