"""How good are word vectors: human scores of similarity, analogies, and nearest neighbours.

All of it is of `words`, a list of different strings, the most frequent first, and `vectors`, an
array (N, D) with a row for each; which model made them does not matter. Rows of no word, such as
that of padding, would be candidates too: leave them out before. A word is looked up as it is
written, then lower-cased. A vector of zeros has the cosine 0 with every other.
"""

import math
import re
from itertools import chain

import numpy as np

from keras_plm.data.task import find_file
from keras_plm.metrics import spearman_correlation
from keras_plm.tokenizers import open_text
from keras_plm.tokenizers.text import fields

PAIRS = {name: f"word_similarity/EN-{file}.txt" for name, file in {
    "WS-353": "WS-353-ALL", "SimLex-999": "SIMLEX-999", "MEN": "MEN-TR-3k", "RG-65": "RG-65",
}.items()}  # fmt: skip
QUESTIONS = "word_similarity/google_questions-words.txt"
SOURCE = "github.com/mfaruqui/eval-word-vectors and github.com/tmikolov/word2vec"
LICENCE = "see there"
QUERIES = ("France", "king", "three", "river", "good", "walked")  # of several kinds
SHOWN = 4  # of their nearest, in a table
SCORES_AT_ONCE = 1 << 24  # 64 MiB


def read_pairs(path):
    """A list of `(word, word, score)` from a file of such lines, with tabs or spaces.

    Raises:
        ValueError: Naming file and line, if a line is neither that nor blank; if all are blank.
    """
    pairs = []
    for where, line in _lines(path):
        columns = fields(line)
        number = columns[2] if len(columns) == 3 else ""
        if not re.fullmatch(r"-?[0-9]+(\.[0-9]*)?", number) or math.isinf(float(number)):
            raise ValueError(
                f"{where}: Each line is two words and a score, as 'tiger cat 7.35'. "
                f"Received: {line[:60]!r}"
            )
        pairs.append((columns[0], columns[1], float(columns[2])))
    return pairs


def read_questions(path):
    """`{section: [(a, b, c, d)]}` from a file of such lines, each section after a line `: name`.

    Raises:
        ValueError: Naming file and line, if a line is neither nor blank, a question has no section
            or a section no name of its own; if all are blank.
    """
    sections, name = {}, None
    for where, line in _lines(path):
        words, rule = tuple(fields(line)), None
        if line.startswith(":"):
            name = line[1:].strip()
            if not name or name in sections:
                rule = "Each section has a name of its own"
            sections[name] = []
        elif name is None:
            rule = "Questions stand in a section, which begins with a line as ': family'"
        elif len(words) != 4:
            rule = "Each question is four words, as 'boy girl king queen'"
        else:
            sections[name].append(words)
        if rule is not None:
            raise ValueError(f"{where}: {rule}. Received: {line[:60]!r}")
    return sections


def _lines(path):
    """Place and text of each line that is not blank."""
    with open_text(path) as file:
        lines = [(f"{path}:{n}", line.strip(" \t\n")) for n, line in enumerate(file, 1)]
    lines = [(where, line) for where, line in lines if line]
    if not lines:
        raise ValueError(f"{path}: No line in this file. Received: an empty file")
    return lines


def similarity(words, vectors, pairs):
    """Spearman's correlation of cosines with what people say.

    Returns:
        A dict: `pairs`, the number of all; `missing`, how many of them have an unknown word; and
        `spearman` of the others, in [-1, 1], where equals share their mean rank; `None` of fewer
        than two, or if all have one score or one cosine.
    """
    index, vectors = _index(words, vectors)
    rows = _rows(index, [pair[:2] for pair in pairs], 2)
    known = (rows >= 0).all(axis=1)
    scores = np.array([pair[2] for pair in pairs], float)[known]
    left, right = (_unit(vectors[rows[known, i]], "float64") for i in range(2))
    cosines = np.einsum("pd,pd->p", left, right).round(12)  # rounding errors would part ties
    constant = len(scores) < 2 or np.ptp(scores) == 0 or np.ptp(cosines) == 0
    return {
        "spearman": None if constant else spearman_correlation(scores, cosines),
        "pairs": len(rows),
        "missing": int((~known).sum()),
    }


def analogies(words, vectors, sections, limit=None, block=SCORES_AT_ONCE):
    """Questions "a is to b as c is to what?", answered by 3CosAdd.

    Mikolov et al. 2013 (arXiv:1301.3781), section 4, and `compute-accuracy` of word2vec: the answer
    is the word whose unit vector has the greatest product with b - a + c, of unit vectors too; a,
    b and c are no candidates. Of equals, the more frequent word is taken.

    Args:
        sections: As of `read_questions`; those whose names begin with "gram" are syntactic.
        limit: Only the first so many words exist, as under the original's threshold: they alone
            are candidates, and questions with others are missing. By default all.
        block: At most so many products are held at once, or those of one question.

    Returns:
        A dict: `total`, `semantic`, `syntactic`, and `sections` by name, each a dict: `questions`,
        the number of all; `missing`, how many of them have an unknown word, or (by lower-casing;
        never in the original file) the row of a, b or c as answer; `accuracy`, the share of right
        answers to the others; `accuracy_of_all`, where missing ones are wrong; `None` of nothing.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"`limit` must be at least 1. Received: limit={limit}")
    index, vectors = _index(words, vectors)
    index = {word: index[word] for word in words[:limit]}
    names = np.array([name for name, part in sections.items() for _ in part], str)
    rows = _rows(index, [question for part in sections.values() for question in part], 4)
    known = (rows >= 0).all(axis=1) & (rows[:, :3] != rows[:, 3:]).all(axis=1)
    products = _products(_unit(vectors[:limit]), rows[known, :3], (-1, 1, 1), block)
    answers = [row for scores in products for row in scores.argmax(axis=1)]
    right = np.zeros(len(rows), bool)
    right[known] = np.array(answers, int) == rows[known, 3]
    syntactic = np.char.startswith(names, "gram")
    parts = {"total": slice(None), "semantic": ~syntactic, "syntactic": syntactic}
    of_name = {name: _tally(known[names == name], right[names == name]) for name in sections}
    found = {kind: _tally(known[part], right[part]) for kind, part in parts.items()}
    return found | {"sections": of_name}


def _tally(known, right):
    return {
        "accuracy": float(right[known].mean()) if known.any() else None,
        "accuracy_of_all": float(right.mean()) if len(right) else None,
        "questions": len(known),
        "missing": int((~known).sum()),
    }


def neighbours(words, vectors, queries, count=8, block=SCORES_AT_ONCE):
    """For each query the `count` words of the greatest cosines, without the query itself.

    Returns:
        A dict: for each query a list of `(word, cosine)`, greatest first, of equals the more
        frequent word; `None` for a query that is not known.
    """
    if count < 1:
        raise ValueError(f"`count` must be at least 1. Received: count={count}")
    index, vectors = _index(words, vectors)
    count = min(count, len(words) - 1)
    rows = _rows(index, [[query] for query in queries], 1)
    found, known = dict.fromkeys(queries), np.flatnonzero(rows[:, 0] >= 0)
    products = chain.from_iterable(_products(_unit(vectors), rows[known], (1,), block))
    for i, cosines in zip(known, products, strict=True):
        best = np.flatnonzero(cosines >= np.partition(cosines, -count)[-count])
        best = best[np.argsort(-cosines[best], kind="stable")][:count]
        found[queries[i]] = [(words[row], float(cosines[row])) for row in best]
    return found


def _index(words, vectors):
    vectors = np.asarray(vectors)
    if vectors.ndim != 2 or len(vectors) != len(words):
        raise ValueError(
            "`vectors` has one row for each of `words`. "
            f"Received: {len(words)} words and vectors of shape {vectors.shape}"
        )
    index = {word: row for row, word in enumerate(words)}
    if len(index) < len(words):
        twice = next(word for row, word in enumerate(words) if index[word] != row)
        raise ValueError(f"`words` must differ. Received: {twice!r} more than once")
    return index, vectors


def _rows(index, groups, size):
    rows = [[index.get(w, index.get(w.lower(), -1)) for w in group] for group in groups]
    return np.array(rows, int).reshape(-1, size)  # -1 where unknown


def _unit(vectors, dtype="float32"):
    """A copy with rows of length 1, or 0."""
    vectors = vectors.astype(dtype)
    lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype="float64"))
    if not np.isfinite(lengths).all():
        raise ValueError("`vectors` must be finite. Received: an infinite number or NaN")
    return np.divide(vectors, np.where(lengths > 0, lengths, 1)[:, None], out=vectors)


def _products(unit, rows, signs, block):
    """Products of signed sums of rows with all rows, in blocks (B, N); summands have -inf."""
    step = max(1, block // max(1, len(unit)))
    for first in range(0, len(rows), step):
        part = rows[first : first + step]  # (B, K)
        targets = np.einsum("k,bkd->bd", np.array(signs, unit.dtype), unit[part])
        scores = targets @ unit.T  # (B, N)
        np.put_along_axis(scores, part, -np.inf, axis=1)
        yield scores


def evaluate(words, vectors, folder, limit=None, queries=QUERIES, count=8):
    """All of it, from the files of `PAIRS` and `QUESTIONS` in a data folder, as JSON holds it:
    `words`, `dim`, `limit`, `similarity` by name of the set, `analogies`, and `neighbours` with
    lists `[word, cosine]`, to four digits.
    """
    pairs = {name: read_pairs(find_file(folder, file)) for name, file in PAIRS.items()}
    sections = read_questions(find_file(folder, QUESTIONS))
    nearest = neighbours(words, vectors, queries, count)
    for query, near in nearest.items():
        nearest[query] = near and [[word, round(cosine, 4)] for word, cosine in near]
    return {
        "words": len(words),
        "dim": int(np.shape(vectors)[1]),
        "limit": limit,
        "similarity": {name: similarity(words, vectors, part) for name, part in pairs.items()},
        "analogies": analogies(words, vectors, sections, limit),
        "neighbours": nearest,
    }


def table(results):
    """Two tables: scores, a row for each name of vectors, and nearest neighbours.

    Scores are in points, mean ± deviation between seeds (n), the best of a column bold; analogies
    are of known questions, but for the last column. How many are missing follows: of different
    vocabularies, different questions are scored.

    Args:
        results: A list of dicts: `name`, the same for all seeds; `scores`, as of `evaluate`; where
            known `source`, a text of what made them.
    """
    if not results:
        raise ValueError("A table needs at least one result. Received: none")
    names = dict.fromkeys(result["name"] for result in results)
    rows, values, missing = {n: [r for r in results if r["name"] == n] for n in names}, {}, {}
    for name, seeds in rows.items():
        if len({(r.get("source"), _vocabulary(r["scores"])) for r in seeds}) > 1:
            raise ValueError(
                "Seeds of one name share source, vocabulary and limit: remove the older files. "
                f"Received: different ones of {name}"
            )
        missing.setdefault(_vocabulary(seeds[0]["scores"]), []).append(_plain(name))
        columns = [_columns(result["scores"]) for result in seeds]
        values[name] = {key: [c[key] for c in columns if c[key] is not None] for key in columns[0]}
    best = {k: max([np.mean(v[k]) for v in values.values() if v[k]], default=0) for k in columns[0]}
    lines = [f"| vectors | source | {' | '.join(best)} |"]
    lines.append("|---|---|" + "---:|" * len(best))
    for name, seeds in rows.items():
        cells = [_plain(name), _plain(seeds[0].get("source", ""))]
        cells += [_cell(found, best[key]) for key, found in values[name].items()]
        lines.append(f"| {' | '.join(cells)} |")
    for text, names in missing.items():
        lines += ["", f"{'; '.join(names) if len(missing) > 1 else 'All'}: {text}."]
    nearest = {name: seeds[0]["scores"]["neighbours"] for name, seeds in rows.items()}
    queries = list(dict.fromkeys(query for found in nearest.values() for query in found))
    lines += ["", f"| nearest to | {' | '.join(map(_plain, queries))} |"]
    lines.append("|---|" + "---|" * len(queries))
    for name, found in nearest.items():
        cells = [
            ", ".join(_plain(word) for word, _ in (found.get(query) or ())[:SHOWN]) or "(not known)"
            for query in queries
        ]
        lines.append(f"| {_plain(name)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _columns(scores):
    """Heads of columns with their numbers."""
    found = {name: part["spearman"] for name, part in scores["similarity"].items()}
    for kind, head in (("semantic", "analogies: semantic"), ("syntactic",) * 2, ("total", "all")):
        found[head] = scores["analogies"][kind]["accuracy"]
    return found | {"all, missing as wrong": scores["analogies"]["total"]["accuracy_of_all"]}


def _vocabulary(scores):
    """What tells vocabularies apart, and what of the tests they miss."""
    total = scores["analogies"]["total"]
    counts = [(n, part["missing"], part["pairs"]) for n, part in scores["similarity"].items()]
    counts.append(("analogies", total["missing"], total["questions"]))
    first = f" (analogies of the first {scores['limit']:,})" if scores["limit"] else ""
    missing = ", ".join(f"{name} {part:,} of {whole:,}" for name, part, whole in counts)
    return f"{scores['words']:,} words{first}, {scores['dim']} wide; missing: {missing}"


def _cell(values, best):
    if not values:
        return ""  # nothing known
    mean, n = float(np.mean(values)), len(values)
    spread = f" ± {100 * np.std(values, ddof=1):.1f}" if n > 1 else ""
    cell = f"{100 * mean:.1f}{spread} ({n})"
    return f"**{cell}**" if mean == best else cell


def _plain(text):
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\|*_<>`\[\]])", r"\\\1", text)
