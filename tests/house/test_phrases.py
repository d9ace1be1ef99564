"""Pages, docstrings, comments, help texts and names contain no forbidden phrase."""

import io
import re
import tokenize

import pytest

from tests import ROOT

pytestmark = pytest.mark.backend_neutral

# {regular expression of a phrase: its replacement}
PHRASES = {
    r"choosing set": "dev set",
    r"beside": "next to",
    r"told": "stated, named or shown",
    r"of which": "start a new sentence",
    r"made again|done again": "rerun, recompute",
    r"goes on|go on|went on": "resume, continue",
    r"what learns|that learn\b": "trained",
    r"behind": "after",
    r"nobody": "no process, no reader",
    r"mend(s|ed|ing)?": "fix",
    r"untaught": "zero-shot",
    r"read features": "extract features",
    r"a rival": "a peer",
    r"hand(s|ed)? over": "pass",
}  # fmt: skip
PATTERN = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE)
FOLDERS = ("keras_plm", "glue_tasks", "benchmarks", "tests", "docs")
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
GENERATED = re.compile(r"<!-- ([\w.]+) -->.*?<!-- end of \1 -->", re.DOTALL)


def lines_of(found):
    return "\n" * found[0].count("\n")


def prose(path):
    """Returns `(line, text)` of a whole page, or of the comments, strings and names of a script."""
    text = path.read_text()
    if path.suffix == ".md":
        text = GENERATED.sub(lines_of, text)
        text = CODE.sub(lines_of, text)
        return list(enumerate(text.split("\n"), 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    words = {tokenize.COMMENT: "_", tokenize.STRING: "_", tokenize.NAME: " "}
    return [
        (token.start[0], token.string.replace("_", words[token.type]))
        for token in tokens
        if token.type in words
    ]


def found_in(path):
    for line, text in prose(path):
        for found in PATTERN.finditer(text):
            place = line + text[: found.start()].count("\n")
            yield f"{path.relative_to(ROOT)}:{place}: {found[0]}"


def files():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            inside = set(path.relative_to(ROOT).parts)
            outside = {"build", "generated", "jupyter_execute", "weights"} & inside
            if path.suffix in (".py", ".md") and not outside and path.name != "test_phrases.py":
                yield path
    yield from (ROOT / "README.md", ROOT / "CHANGELOG.md")


@pytest.mark.parametrize("folder", (*FOLDERS, "README.md", "CHANGELOG.md"))
def test_files_contain_no_listed_phrase(folder):
    paths = [path for path in files() if path.relative_to(ROOT).parts[0] == folder]
    assert not [found for path in paths for found in found_in(path)]
