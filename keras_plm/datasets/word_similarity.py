"""Evaluation of word vectors: human scores of similarity, analogies, and nearest neighbours.

Its functions take `words`, a list of N different strings, the most frequent first, and `vectors`
(N, D), one row per word. Remove rows that stand for no word, such as padding: they would be
candidates. A word is looked up unchanged, then in lower case. A vector of zeros has the cosine 0
with every other vector.
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
SHOWN = 4  # nearest words per query in a table
SCORES_AT_ONCE = 1 << 24  # 64 MiB


def read_pairs(path):
    """Reads a list of `(word, word, score)`, one per line, separated by tabs or spaces.

    Raises:
        ValueError: If a line is neither such a line nor blank, with file and line. If all lines are
            blank.
    """
    pairs = []
    for where, line in _lines(path):
        columns = fields(line)
        number = columns[2] if len(columns) == 3 else ""
        if not re.fullmatch(r"-?[0-9]+(\.[0-9]*)?", number) or math.isinf(float(number)):
            raise ValueError(
                f"{where}: Each line must be two words and a score, as 'tiger cat 7.35'. "
                f"Received: {line[:60]!r}"
            )
        pairs.append((columns[0], columns[1], float(columns[2])))
    return pairs


def read_questions(path):
    """Reads `{section: [(a, b, c, d)]}` from lines of four words; a line `: name` starts a section.

    Raises:
        ValueError: If a line is malformed, a question has no section, or a section lacks its own
            name, with file and line. If all lines are blank.
    """
    sections, name = {}, None
    for where, line in _lines(path):
        words, rule = tuple(fields(line)), None
        if line.startswith(":"):
            name = line[1:].strip()
            if not name or name in sections:
                rule = "Each section needs its own name"
            sections[name] = []
        elif name is None:
            rule = "Questions need a section: begin it with a line as ': family'"
        elif len(words) != 4:
            rule = "Each question must be four words, as 'boy girl king queen'"
        else:
            sections[name].append(words)
        if rule is not None:
            raise ValueError(f"{where}: {rule}. Received: {line[:60]!r}")
    return sections


def _lines(path):
    """Returns the place and text of each line that is not blank."""
    with open_text(path) as file:
        lines = [(f"{path}:{n}", line.strip(" \t\n")) for n, line in enumerate(file, 1)]
    lines = [(where, line) for where, line in lines if line]
    if not lines:
        raise ValueError(f"{path}: No line in this file. Received: an empty file")
    return lines


def similarity(words, vectors, pairs):
    """Computes Spearman's correlation of cosines with human scores.

    Returns:
        A dict: `pairs`, the number of pairs; `missing`, the number with an unknown word; and
        `spearman` of the others, in [-1, 1]. Ties share their mean rank. It is `None` for fewer
        than two pairs, or if all have one score or one cosine.
    """
    index, vectors = _index(words, vectors)
    rows = _rows(index, [pair[:2] for pair in pairs], 2)
    known = (rows >= 0).all(axis=1)
    scores = np.array([pair[2] for pair in pairs], float)[known]
    left, right = (_unit(vectors[rows[known, i]], "float64") for i in range(2))
    cosines = np.einsum("pd,pd->p", left, right).round(12)  # rounding errors would break ties
    constant = len(scores) < 2 or np.ptp(scores) == 0 or np.ptp(cosines) == 0
    return {
        "spearman": None if constant else spearman_correlation(scores, cosines),
        "pairs": len(rows),
        "missing": int((~known).sum()),
    }


def analogies(words, vectors, sections, limit=None, block=SCORES_AT_ONCE):
    """Answers the questions "a is to b as c is to what?" by 3CosAdd.

    The answer is the word whose unit vector has the highest dot product with b - a + c, also of
    unit vectors. The words a, b and c are not candidates. At ties the more frequent word wins.

    Reference: Mikolov et al. 2013, arXiv 1301.3781, section 4; `compute-accuracy` of word2vec.

    Args:
        sections: A dict from `read_questions`; names that begin with "gram" are syntactic.
        limit: Number of most frequent words in the vocabulary, like the original's threshold.
            Other words are not candidates, and questions with them are missing. By default all.
        block: Largest number of products in memory; at least those of one question are.

    Returns:
        A dict of `total`, `semantic`, `syntactic`, and `sections` by name. Each is a dict:
        `questions`, the number of questions; `missing`, the number of those with an unknown word,
        or with a, b or c as the answer (by lower-casing; never in the original file); `accuracy`,
        the fraction of right answers to the others; and `accuracy_of_all`, with missing questions
        as wrong. Accuracies are `None` without questions.
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
    """Finds the `count` words with the highest cosines to each query, without the query itself.

    Returns:
        A dict from each query to a list of `(word, cosine)`, highest first; at ties the more
        frequent word is first. `None` for an unknown query.
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
            "`vectors` must have one row for each of `words`. "
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
    """Returns a copy with rows of length 1; rows of zeros stay."""
    vectors = vectors.astype(dtype)
    lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype="float64"))
    if not np.isfinite(lengths).all():
        raise ValueError("`vectors` must be finite. Received: an infinite number or NaN")
    return np.divide(vectors, np.where(lengths > 0, lengths, 1)[:, None], out=vectors)


def _products(unit, rows, signs, block):
    """Yields products of signed sums of rows with all rows, (B, N); summed rows have -inf."""
    step = max(1, block // max(1, len(unit)))
    for first in range(0, len(rows), step):
        part = rows[first : first + step]  # (B, K)
        targets = np.einsum("k,bkd->bd", np.array(signs, unit.dtype), unit[part])
        scores = targets @ unit.T  # (B, N)
        np.put_along_axis(scores, part, -np.inf, axis=1)
        yield scores


def evaluate(words, vectors, folder, limit=None, queries=QUERIES, count=8):
    """Evaluates vectors on the files of `PAIRS` and `QUESTIONS` in a data folder.

    Returns:
        A dict for JSON: `words`, `dim`, `limit`, `similarity` by name of the set, `analogies`, and
        `neighbours` with lists `[word, cosine]`, cosines to four digits.
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
    """Returns two tables: scores, one row per name of vectors, and nearest neighbours.

    Scores are in percent, mean ± standard deviation over seeds (n), the best of a column in bold.
    Analogies count only known questions, except in the last column. The numbers of missing
    questions follow, because vocabularies differ in the questions they cover.

    Args:
        results: A list of dicts: `name`, the same for all seeds; `scores` from `evaluate`; and
            optionally `source`, a description of the vectors.
    """
    if not results:
        raise ValueError("A table needs at least one result. Received: none")
    names = dict.fromkeys(result["name"] for result in results)
    rows, values, missing = {n: [r for r in results if r["name"] == n] for n in names}, {}, {}
    for name, seeds in rows.items():
        if len({(r.get("source"), _vocabulary(r["scores"])) for r in seeds}) > 1:
            raise ValueError(
                "Seeds of one name must share source, vocabulary and limit: remove older files. "
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
    """Returns a dict from the heads of columns to their numbers."""
    found = {name: part["spearman"] for name, part in scores["similarity"].items()}
    for kind, head in (("semantic", "analogies: semantic"), ("syntactic",) * 2, ("total", "all")):
        found[head] = scores["analogies"][kind]["accuracy"]
    return found | {"all, missing as wrong": scores["analogies"]["total"]["accuracy_of_all"]}


def _vocabulary(scores):
    """Returns a text that identifies a vocabulary, and the questions that it misses."""
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
    """Escapes a text for Markdown."""
    return re.sub(r"([\\|*_<>`\[\]])", r"\\\1", text)
