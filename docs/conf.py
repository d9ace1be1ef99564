"""Configuration of the documentation. `make docs` builds it."""

import inspect
import itertools
import os
import re
import sys
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import keras  # noqa: E402, F401  # before keras_plm, which registers its classes with Keras
from docutils import nodes  # noqa: E402
from docutils.utils.math import latex2mathml  # noqa: E402
from sphinx.util.inspect import stringify_signature  # noqa: E402

import keras_plm  # noqa: E402

project = "keras_plm"
author = "the keras_plm authors"
copyright = "the keras_plm authors, Apache-2.0"
version = release = keras_plm.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_argparse_cli",
    "sphinx_copybutton",
]
exclude_patterns = ["build", "jupyter_execute"]
templates_path = ["templates"]
default_role = "code"  # docstrings write `names` in single backticks
suppress_warnings = ["config.cache"]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # `make notebooks` runs them

autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_inherit_docstrings = False  # Keras writes its docstrings in Markdown
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_custom_sections = [("Call arguments", "params_style"), "Differs from the paper"]
copybutton_prompt_text = ">>> |... "

html_theme = "pydata_sphinx_theme"
html_title = "keras_plm"
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_context = {"default_mode": "auto"}
html_math_renderer = "mathml"
html_show_sourcelink = False

CODE = re.compile(r"(``.+?``|(?<![:\w])`[^`]+`)", re.DOTALL)
NAMES = re.compile(r" +[\w*]+(, [\w*]+)*,")


def mark_blocks(app, what, name, thing, options, lines):
    """Marks indented code and ``` fences as literal blocks; joins lists of names in `Args:`."""
    found, fenced, last = [], False, 0  # indentation of the last line with text
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line.strip().startswith("```"):
            found += [] if fenced else ["::", ""]
            fenced = not fenced
        elif fenced:
            found.append(f"    {line}")
        elif found and NAMES.fullmatch(found[-1]) and line.strip():
            found[-1] += f" {line.strip()}"
        else:
            if line.strip() and indent >= last + 4 and found and not found[-1].strip():
                found += [" " * last + "::", ""]
            found.append(line)
        last = indent if line.strip() else last
    lines[:] = found


def escape_markup(app, what, name, thing, options, lines):
    """Turns `code` into literals and escapes the rest, because docstrings have no other markup."""
    text, inside = [], False  # whether the line is inside an example
    for line in lines:
        inside = line.lstrip().startswith(">>>") or inside and bool(line.strip())
        kept = inside or line.lstrip().startswith("..")
        text.append((kept, line))
    parts = []
    for kept, group in itertools.groupby(text, key=lambda item: item[0]):
        found = "\n".join(line for _, line in group)
        parts.append(found if kept else _escaped(found))
    lines[:] = "\n".join(parts).split("\n")


def _escaped(text):
    parts = CODE.split(text)
    for i, part in enumerate(parts):
        if i % 2:
            after = "\\ " if re.match(r"\w", parts[i + 1]) else ""
            before = "\\ " if re.search(r"\w$", parts[i - 1]) else ""
            parts[i] = f"{before}``{part.strip('`')}``{after}"
        else:
            parts[i] = re.sub(r"(?<!\\)\*(?!\s)|(?<=\w)_(?!\w)|\|", r"\\\g<0>", part)
    return "".join(parts)


def arguments_of(app, what, name, thing, options, signature, returns):
    """Returns the arguments of the constructor, which Keras' `__new__` hides."""
    if what == "class" and issubclass(thing, keras.layers.Layer | keras.metrics.Metric):
        return stringify_signature(inspect.signature(thing)), returns
    return None


def visit_math(self, node):
    """Writes a formula as MathML, which browsers show without loading a script."""
    block = isinstance(node, nodes.math_block)
    # docutils supports neither \dots nor \Big.
    text = re.sub(r"\\[Bb]ig\b", "", node.astext().replace(r"\dots", r"\ldots"))
    mathml = latex2mathml.tex2mathml(text, as_block=block)
    self.body.append(f'<div class="math">{mathml}</div>' if block else mathml)
    raise nodes.SkipNode


def setup(app):
    app.connect("autodoc-process-docstring", mark_blocks, priority=400)
    app.connect("autodoc-process-docstring", escape_markup, priority=450)  # before napoleon
    app.connect("autodoc-process-signature", arguments_of)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
