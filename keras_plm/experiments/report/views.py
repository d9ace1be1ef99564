"""Parts of the page of results other than plain tables: plots, claims, attention of a text."""

import html
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter

from keras_plm.experiments.report.tables import Table, cell

XLINK = "{http://www.w3.org/1999/xlink}href"
# Matplotlib uses DejaVu Sans. Verdana has nearly the same widths.
FONT = "'DejaVu Sans', Verdana, sans-serif"
POINT = 4 / 3  # pixels
VERDICTS = {
    "reproduced": "✓",
    "contradicted": "✗",
    "not separable": "≈",
    "not run": "–",
}
DESCRIPTIVE = " (descriptive)"  # after a verdict that rests on few seeds only
MOST_WORDS = 80  # words of the attention view; its size grows with their square


def svg(figure, name, label):
    """Converts a matplotlib figure to an `<svg>` for a page, without namespaces or duplicate ids.

    Args:
        figure: The figure.
        name: Prefix of its ids, unique on the page.
        label: Description for screen readers.
    """
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        keep = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=keep)
    root = ElementTree.fromstring(file.getvalue())
    text = ElementTree.tostring(root, encoding="unicode")
    used = set(re.findall(r"url\(#([^)]+)\)", text))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        if XLINK in element.attrib:
            element.set("href", element.attrib.pop(XLINK))
        used.add(element.get("href", "#").removeprefix("#"))
    for element in list(root.iter()):
        for child in list(element):
            if child.tag in ("metadata", "style"):
                element.remove(child)
        mark = element.attrib.pop("id", None)
        if mark in used:
            element.set("id", f"{name}-{mark}")
        if element.get("href", "").startswith("#"):
            element.set("href", f"#{name}-{element.get('href')[1:]}")
        for key, value in element.attrib.items():
            element.set(key, re.sub(r"url\(#", f"url(#{name}-", value))
        if element.tag == "text":
            style = re.sub(r"(font(?:-family)?: [^;]*?)'DejaVu Sans'[^;]*", rf"\1{FONT}",
                           element.get("style", ""))  # fmt: skip
            element.set("style", style)
    width = float(root.attrib.pop("width").removesuffix("pt")) * POINT
    root.attrib.pop("height")
    root.attrib.pop("version", None)
    root.set("style", f"width: {width:.0f}px")
    root.set("role", "img")
    root.set("aria-label", label)
    return ElementTree.tostring(root, encoding="unicode")


def claims_table(rows):
    """Returns the verdicts on published orderings as a table.

    Args:
        rows: Dicts with `name`, `statement`, `task`, `source`, `verdict` (a key of `VERDICTS`,
            perhaps with `DESCRIPTIVE`), `trained` (numbers of examples), `p` (`adjusted` takes
            precedence), `seeds`, `published` figures, `verified` (whether they are) and `note`.
            `effect`, `low`, `high` and `detectable` are in the claim's `unit`, by default points.
            Unknown values are `None` or missing.

    Raises:
        ValueError: If a verdict is not in `VERDICTS`.
    """
    table = []
    for row in rows:
        verdict, effect = verdict_of(row), _signed(row.get("effect"))
        interval = [_signed(row.get(end)) for end in ("low", "high")]
        p = row.get("p") if row.get("adjusted") is None else row["adjusted"]
        source = str(row.get("source") or "")
        source += "" if row.get("verified", True) else ", unverified"
        table.append({
            "verdict": f"{VERDICTS[verdict]} {row['verdict']}",
            "claim": cell(row.get("statement") or ""),
            "task": cell(row.get("task") or ""),
            "effect": effect,
            "unit": cell(row.get("unit") or "points") if effect else "",
            "95 % interval": f"{interval[0]} to {interval[1]}" if all(interval) else "",
            "source": cell(source),
            "published": cell(_listed(row.get("published"))),
            "detectable": _signed(row.get("detectable")).removeprefix("+"),
            "p": "" if p is None else f"{p:.3f}" if p >= 0.001 else f"{p:.1g}",
            "seeds": cell(_listed(row.get("seeds"))),
            "trained on": trained_on(row),
            "note": cell(row.get("note") or ""),
            "name": cell(row.get("name") or ""),
        })  # fmt: skip
    return Table.of(table, ("effect", "95 % interval", "p", "detectable"))


def trained_on(row):
    """Formats the number of training examples of a claim's arms; two numbers if they differ."""
    return " and ".join(f"{count:,}" for count in dict.fromkeys(row.get("trained") or ()))


def verdict_of(row):
    """Returns a claim's verdict, a key of `VERDICTS`.

    Raises:
        ValueError: If it is not in `VERDICTS`.
    """
    verdict = str(row.get("verdict")).removesuffix(DESCRIPTIVE)
    if verdict not in VERDICTS:
        raise ValueError(
            f"A verdict must be one of {', '.join(VERDICTS)}. "
            f"Received: {row.get('verdict')!r} of {row.get('name')!r}"
        )
    return verdict


def _signed(value):
    return "" if value is None else f"{value:+.2f}"


def _listed(value):
    """Joins one value or several as text."""
    values = value if isinstance(value, list | tuple) else [value]
    return ", ".join(str(part) for part in values if part is not None)


def count_claims(rows):
    """Counts the claims of each verdict: `{verdict: text}` for all verdicts."""
    found = Counter(verdict_of(row) for row in rows)
    few = Counter(verdict_of(row) for row in rows if row["verdict"].endswith(DESCRIPTIVE))
    return {
        verdict: f"{found[verdict] - few[verdict]} {verdict}"
        + (f", {few[verdict]} more descriptively" if few[verdict] else "")
        for verdict in VERDICTS
    }


def claims_html(rows):
    """Returns the claims as HTML: counts that filter, a search field and a table per paper."""
    buttons = "".join(
        f'<button type="button" class="verdict {verdict.replace(" ", "-")}" aria-pressed="false" '
        f'data-verdict="{verdict.replace(" ", "-")}">{VERDICTS[verdict]} {text}</button>'
        for verdict, text in count_claims(rows).items()
    )
    papers = {}
    for row in rows:
        papers.setdefault(paper_of(row), []).append(row)
    parts = "".join(
        f"<details open><summary>{html.escape(paper)}: {_counts(of_paper)}</summary>"
        f'<div class="scroll tall" tabindex="0" role="region" aria-label="Claims of '
        f'{html.escape(paper)}">{_verdicts_html(of_paper)}</div></details>'
        for paper, of_paper in sorted(papers.items(), key=lambda item: -len(item[1]))
    )
    return (
        f'<div class="filters" role="group" aria-label="Filter of claims">{buttons}'
        '<label>Search <input type="search" autocomplete="off"></label>'
        f'<output aria-live="polite">{len(rows)} of {len(rows)} shown</output></div>'
        f'<div id="claims-tables">{parts}</div>'
    )


def paper_of(row):
    """Returns the paper of a claim: its source without the table or section."""
    return str(row.get("source") or "No source").partition(",")[0]


def _counts(rows):
    found = Counter(verdict_of(row) for row in rows)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS if found[verdict])


def _verdicts_html(rows):
    table = claims_table(rows).html()
    for verdict, sign in VERDICTS.items():
        slug = verdict.replace(" ", "-")
        for shown in (f"{sign} {verdict}", f"{sign} {verdict}{DESCRIPTIVE}"):
            table = re.sub(
                rf'<tr><th scope="row"[^>]*>{re.escape(shown)}</th>',
                f'<tr data-verdict="{slug}"><th scope="row" class="verdict {slug}">{shown}</th>',
                table,
            )
    return table


def attention_html(weights, words, about):
    """Returns a sentence as HTML; pointer or keyboard select a word and show its attention.

    Args:
        weights: (L, N, W, W), see `keras_plm.attention_maps.word_attention`.
        words: W strings.
        about: Name of the encoder.

    Raises:
        ValueError: If the text is too long.
    """
    if len(words) > MOST_WORDS:
        raise ValueError(
            f"The attention view shows at most {MOST_WORDS} words. Received: {len(words)}"
        )
    num_layers, heads = weights.shape[:2]
    thousandths = (weights * 1000).round().astype(int).reshape(-1).tolist()
    data = {"heads": heads, "layers": num_layers, "words": words, "weights": thousandths}
    buttons = "".join(
        f'<button type="button" tabindex="{0 if i == 0 else -1}">{html.escape(word)}</button> '
        for i, word in enumerate(words)
    )
    spans = "".join(f"<span>{html.escape(word)}</span> " for word in words)
    choices = "".join(
        f'<label><input type="radio" name="head" value="{head}"'
        f"{' checked' if head < 0 else ''}> {'mean of all' if head < 0 else head + 1}</label> "
        for head in range(-1, heads)
    )
    # The highest layer on top, as the papers draw them.
    rows = "".join(
        f'<div class="layer" data-layer="{i}"><b>layer {i + 1}</b><p>{spans}</p><small></small>'
        "</div>"
        for i in reversed(range(num_layers))
    )
    # `<` could end the script; JSON also has an escape for it.
    safe = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return (
        "<p>Point at a word of the sentence, or select it with Tab and the arrow keys, to see its "
        f"attention in {html.escape(about)}. A stronger colour means more attention. The attention "
        "of a word with several tokens is the mean over its tokens. The attention to such a word "
        "is the sum.</p>"
        f'<div id="look"><fieldset><legend>Head</legend>{choices}</fieldset>'
        f'<p class="sentence" role="group" aria-label="Words of the sentence">{buttons}</p>'
        f'<div aria-live="polite">{rows}</div>'
        f'<script type="application/json">{safe}</script></div>'
        "<noscript><p>This view needs JavaScript.</p></noscript>"
    )
