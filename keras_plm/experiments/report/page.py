"""All results as one page: self-contained HTML, Markdown, and files of tables and plots."""

import dataclasses
import html
import os
import re
from pathlib import Path
from urllib.parse import quote

import keras_plm
from keras_plm.experiments.report import costs, tables
from keras_plm.experiments.report.answers import answers
from keras_plm.experiments.report.tables import Table, cell, to_html
from keras_plm.experiments.report.views import (
    attention_html,
    claims_html,
    claims_table,
    count_claims,
    svg,
)
from keras_plm.files.writing import replacing, write_text

TEMPLATE = Path(__file__).with_name("page.html")
BY_LAYER = "_by_layer"  # end of the names of plots of scores by layer
LONG = 40  # rows; a longer table scrolls in its own box
HOW = (
    "Scores are in points: means over seeds ± their standard deviation, with the number of seeds "
    "in parentheses. A dev set chose learning rates and epochs. Bold marks the best mean of a "
    "column. It may not be separable from the next one."
)
ANSWERS = (
    "The dev set ranks the runs of a task. The score is that of the first one on the evaluation "
    "split, with a 95 % interval from a bootstrap over seeds and examples. A run is not separable "
    "from it if the interval of their difference includes zero. Seconds are those of one training, "
    "without the search. TFLOP are those of its matrix products, if they were recorded."
)
LAYERS = (
    "Scores of the frozen encoder by layer, on the evaluation split. Lines show fine-tuning and "
    "training from random weights."
)


@dataclasses.dataclass
class Page:
    """Content of the page; `html()` and `markdown()` return its text, and `write` writes its files.

    Attributes:
        root: Folder of results.
        sections: List of `sections.Section`.
        claims: Dicts, see `views.claims_table`. `None` omits this part; a string states why it is
            missing.
        attention: `(weights, words, name of the encoder)`, or `None`.
        more: Markdown of other parts, such as speed: `{(name, title): text}`.
        more_left_out: Reasons why other parts are missing, by name.
    """

    root: Path
    sections: list
    claims: object = None
    attention: tuple | None = None
    more: dict = dataclasses.field(default_factory=dict)
    more_left_out: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        self.root = Path(self.root)
        self.shown = [s for s in self.sections if s.text]
        self.broken = {s.name: s.left_out for s in self.sections if s.left_out and not s.empty}
        self.not_run = [s for s in self.sections if s.empty]
        self.folders = {s.folder.resolve().name: s.folder for s in self.shown}
        self.broken |= self.more_left_out
        if not self.shown and not self.more:
            why = "; ".join(self.broken.values()) or "no suite has a result there"
            raise ValueError(f"Nothing to show below {self.root}: {why}")
        for kept in self.folders.values():
            strays = costs.strays(kept).items()
            self.broken |= {str(path.relative_to(self.root)): why for path, why in strays}
        self.where = costs.where(self.folders)
        self.failed = [why for kept in self.folders.values() for why in costs.failed(kept)]
        self.answers = answers(self.folders)
        self.costs, self.cost_pictures = {}, {}
        for name, kept in self.folders.items():
            results, odd = costs.priced(kept)
            self.broken |= {str(path.relative_to(self.root)): why for path, why in odd.items()}
            self.costs[name] = costs.costs(results)
            self.cost_pictures[name] = costs.cost_figures(results)

    def pictures(self):
        """Returns `{name: figure}` of all plots of the page."""
        found = {f"{s.name}.{name}": f for s in self.shown for name, f in s.pictures.items()}
        for folder_name, pictures in self.cost_pictures.items():
            found |= {f"cost.{folder_name}.{task}": f for task, f in pictures.items()}
        return found

    def tables(self):
        """Returns `{name: Table}` of all tables of the page."""
        texts = {s.name: s.text for s in self.shown} | {n: t for (n, _), t in self.more.items()}
        found = {}
        for name, text in texts.items():
            own = [block for block in tables.blocks(text) if isinstance(block, Table)]
            for i, table in enumerate(own, 1):
                found[f"{name}.{i}"] = table
        found |= {f"cost.{name}": table for name, table in self.costs.items() if table}
        if self.answers:
            found["answers"] = self.answers
        if self.where:
            found["where"] = self.where
        if self.claims and not isinstance(self.claims, str):
            found["claims"] = claims_table(self.claims)
        return found

    def summary(self):
        """Summarises the results of the page in one sentence."""
        number = sum(int(row[2].replace(",", "")) for row in self.where.rows) if self.where else 0
        hours = sum(float(row[5] or 0) for row in self.where.rows) if self.where else 0
        devices = sorted({row[7] for row in self.where.rows}) if self.where else []
        count = len(self.shown)
        text = f"{count} comparison{'s' if count != 1 else ''} from {number:,} result files"
        text += f", {hours:,.1f} hours of measured runs" if hours else ""
        text += f", on {len(devices)} kinds of machine" if len(devices) > 1 else ""
        text += f", on {devices[0]}" if len(devices) == 1 else ""
        return f"{text}. keras_plm {keras_plm.__version__}."

    def html(self):
        """Returns the page as HTML."""
        parts, contents = [], []

        def part(mark, title, body, level=2):
            contents.append((mark, title, level))
            name = f"h{level}"
            parts.append(f'<section id="{mark}"><{name}>{to_html(title)}</{name}>{body}</section>')

        if self.answers:
            body = f"<p>{to_html(ANSWERS)}</p>{_table_html(self.answers, 'Answers')}"
            part("answers", "Best run of each task", body)
        if any(self.cost_pictures.values()):
            part("score-against-cost", "Score against cost", self._cost_pictures_html())
        if layers := self._layers_html():
            part("layers", "Layers", f"<p>{to_html(LAYERS)}</p>{layers}")
        if self.claims is not None:
            part("claims", "Claims", self._claims_html())
        if self.broken:
            items = "".join(
                f"<li><b>{html.escape(name)}</b>: {html.escape(why)}</li>"
                for name, why in self.broken.items()
            )
            part("left-out", "Left out", f'<ul class="warning">{items}</ul>')
        part("suites", "All comparisons", f"<p>{to_html(HOW)} Click a header to sort a table.</p>")
        for section in self.shown:
            title = section.name.replace("_", " ")
            part(slug(section.name), title, _folded(section.title, _section_html(section)), 3)
        if self.not_run:
            names = "; ".join(f"{s.name} ({s.title})" for s in self.not_run)
            parts.append(f'<p class="quiet">Not run here: {html.escape(names)}.</p>')
        for (name, title), text in self.more.items():
            part(slug(name), title, _folded("Table", _text_html(text, title)))
        part("where", "Machines, versions and commits", _folded("Table", self._where_html()))
        if any(self.costs.values()):
            part("costs", "Costs of each run", self._costs_html())
        if self.attention is not None:
            part("attention", "Attention of a text", attention_html(*self.attention))
        links = "".join(
            f'<li class="level{level}"><a href="#{mark}">{to_html(title)}</a></li>'
            for mark, title, level in contents
        )
        text = TEMPLATE.read_text(encoding="utf-8")
        for mark, value in (
            ("summary", to_html(self.summary())),
            ("contents", links),
            ("body", "\n".join(parts)),
        ):
            text = text.replace(f"<!-- {mark} -->", value, 1)
        return text

    def _claims_html(self):
        if isinstance(self.claims, str):
            return f'<p class="warning">{html.escape(self.claims)}</p>'
        if not self.claims:
            return "<p>No claim was tested.</p>"
        said = (
            "A claim is an ordering that a paper published, compared with the results here. An "
            "effect is a difference of means in the unit of the claim, by default points. Its "
            "interval comes from a paired bootstrap over seeds and examples. Where scores of "
            "examples were not kept, it comes from Welch's t test over seeds only. p is adjusted "
            "within a table (Holm). A claim that is not separable may still hold: where there is a "
            "test, a column states the smallest difference that it detects. A verdict of few seeds "
            "is descriptive. Each encoder is one pre-trained checkpoint, which limits its verdicts."
        )
        return f"<p>{said}</p>{claims_html(self.claims)}"

    def _where_html(self):
        said = (
            "The table has a row for each folder of results, task, machine and set of versions. A "
            "+ after a commit marks uncommitted changes; the day is that of the commit. Hours "
            "include search and training."
        )
        failed = "".join(f"<li>{html.escape(why)}</li>" for why in self.failed)
        failed = f'<p>Runs that failed:</p><ul class="warning">{failed}</ul>' if failed else ""
        return f"<p>{said}</p>{_table_html(self.where, 'Machines')}{failed}"

    def _cost_pictures_html(self):
        """Returns the plots of the folder with the most tasks, then the others, folded."""
        said = (
            "Seconds are the mean over seeds; seed 0 includes the search of learning rates. Those "
            "of a frozen encoder leave out the extraction of its features. A number marks a run if "
            "no cheaper run is as good."
        )
        folders = sorted(self.cost_pictures, key=lambda name: -len(self.cost_pictures[name]))
        body = [f"<p>{said}</p>"]
        for place, name in enumerate(folders):
            pictures = "".join(
                _figure_html(figure, f"cost.{name}.{task}", f"{name}, {task}: score against cost")
                for task, figure in self.cost_pictures[name].items()
            )
            if pictures:
                body.append(_folded(name, pictures) if place else pictures)
        return "".join(body)

    def _layers_html(self):
        """Returns the plots of scores by layer."""
        return "".join(
            _figure_html(figure, f"{section.name}.{name}", name.replace("_", " "))
            for section in self.shown
            for name, figure in section.pictures.items()
            if name.endswith(BY_LAYER)
        )

    def _costs_html(self):
        said = (
            "Seconds are mean ± standard deviation over seeds; seed 0 includes the search of "
            "learning rates. For a frozen encoder they are those of the reader, without the "
            "extraction of the features."
        )
        return f"<p>{said}</p>" + "".join(
            _folded(f"{name}: {len(table.rows)} runs", _table_html(table, f"Costs of {name}"))
            for name, table in self.costs.items()
            if table
        )

    def markdown(self, pictures=None):
        """Returns the page as Markdown.

        Args:
            pictures: `{name of a plot: its path}`, for links.
        """
        text = ["# Results of keras_plm", self.summary()]
        if self.answers:
            text += ["## Best run of each task", ANSWERS, self.answers.markdown()]
        if isinstance(self.claims, str):
            text += ["## Claims", cell(self.claims)]
        elif self.claims:
            counts = "; ".join(count_claims(self.claims).values())
            text += ["## Claims", f"{counts}.", claims_table(self.claims).markdown()]
        if self.broken:
            lines = [f"- {cell(name)}: {cell(why)}" for name, why in self.broken.items()]
            text += ["## Left out", "\n".join(lines)]
        text += ["## All comparisons", HOW]
        links = pictures or {}
        for section in self.shown:
            text += [f"### {cell(section.name.replace('_', ' '))}", f"{cell(section.title)}."]
            text.append(section.text)
            for name in section.pictures:
                path = links.get(f"{section.name}.{name}")
                text += [f"![{cell(name.replace('_', ' '))}]({quote(path)})"] if path else []
        if self.not_run:
            text.append(f"Not run here: {', '.join(cell(s.name) for s in self.not_run)}.")
        for (_, title), table in self.more.items():
            text += [f"## {title}", table]
        if self.where:
            text += ["## Machines, versions and commits", self.where.markdown()]
        if self.failed:
            text += ["Runs that failed:", "\n".join(f"- {cell(w)}" for w in self.failed)]
        for name, table in self.costs.items():
            text += [f"## Costs of {cell(name)}", table.markdown()] if table else []
            for task in self.cost_pictures[name]:
                path = links.get(f"cost.{name}.{task}")
                text += [f"![{cell(task)}: score against cost]({quote(path)})"] if path else []
        if self.attention is not None:
            weights, words, name = self.attention
            text += [f"## Attention of a text: {cell(name)}", _looks(weights, words).markdown()]
        return "\n\n".join(part.strip("\n") for part in text) + "\n"


def slug(name):
    """Converts a name to the id of a part."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _text_html(text, title):
    found = []
    for block in tables.blocks(text):
        if isinstance(block, Table):
            found.append(_table_html(block, block.title or title))
        elif isinstance(block, list):
            found.append(f"<ul>{''.join(f'<li>{to_html(item)}</li>' for item in block)}</ul>")
        else:
            found.append(f"<p>{to_html(block)}</p>")
    return "".join(found)


def _table_html(table, label):
    if not table:
        return ""
    tall = " tall" if len(table.rows) > LONG else ""
    return (
        f'<div class="scroll{tall}" tabindex="0" role="region" '
        f'aria-label="{html.escape(label)}">{table.html()}</div>'
    )


def _figure_html(figure, name, label):
    picture = svg(figure, slug(name), label)
    return (
        f'<figure><div class="scroll" tabindex="0" role="region" aria-label="'
        f'{html.escape(label)}">{picture}</div>'
        f"<figcaption>{html.escape(label)}</figcaption></figure>"
    )


def _folded(title, body):
    return f"<details><summary>{to_html(title)}</summary>{body}</details>"


def _section_html(section):
    pictures = "".join(
        _figure_html(figure, f"{section.name}.{name}", name.replace("_", " "))
        for name, figure in section.pictures.items()
        if not name.endswith(BY_LAYER)
    )
    return _text_html(section.text, section.name) + pictures


def _looks(weights, words):
    """Returns a table of the most attended word of each word and layer, as a mean over heads."""
    rows = []
    for i, word in enumerate(words):
        row = {"word": cell(word)}
        for layer, heads in enumerate(weights.mean(axis=1), 1):
            best = heads[i].argmax()
            row[f"layer {layer}"] = f"{cell(words[best])} {100 * heads[i][best]:.0f} %"
        rows.append(row)
    return Table.of(rows)


def looks_of(folder, text):
    """Computes the `attention` of a `Page` from the encoder in a folder and a text."""
    from keras_plm.attention_maps import word_attention

    encoder, tokenizer = keras_plm.load(folder, dtype="float32")
    return (*word_attention(encoder, tokenizer, text), Path(folder).name)


def write(page, html_file=None, markdown_file=None, tables_folder=None, pictures_folder=None,
          picture_type="png"):  # fmt: skip
    """Writes the requested files of a page, and returns their paths.

    Args:
        page: A `Page`.
        html_file, markdown_file: Paths of the page.
        tables_folder: Folder for a .csv and a .tex file of each table.
        pictures_folder: Folder for a file of each plot.
        picture_type: "png" or "svg".
    """
    texts, links = {}, {}
    if html_file:
        texts[Path(html_file)] = page.html()
    if tables_folder:
        for name, table in page.tables().items():
            name += f".{slug(tables.plain(table.title))[:60]}" if table.title else ""
            name = tables.file_name(name)
            texts[Path(tables_folder) / f"{name}.csv"] = table.csv()
            texts[Path(tables_folder) / f"{name}.tex"] = table.latex()
    written = []
    if pictures_folder:
        for name, figure in page.pictures().items():
            path = Path(pictures_folder) / f"{tables.file_name(name)}.{picture_type}"
            with replacing(path, f".{picture_type}") as temporary:
                figure.savefig(temporary, dpi=150)
            links[name] = path
            written.append(path)
    if markdown_file:
        home = Path(markdown_file).resolve().parent
        near = {name: Path(os.path.relpath(path.resolve(), home)).as_posix()
                for name, path in links.items()}  # fmt: skip
        texts[Path(markdown_file)] = page.markdown(near)
    for path, text in texts.items():
        write_text(path, text)
        written.append(path)
    return written
