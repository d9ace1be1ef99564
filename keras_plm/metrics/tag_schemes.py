"""Schemes of tags that mark spans: BIO, IOBES, BILOU, BMES."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from keras_plm.files.sequences import as_list

# Prefixes of tags by scheme: M is inside a span, L its last word, U a span of one word.
PREFIXES = {"BIO": "BI", "IOBES": "BIES", "BILOU": "BILU", "BMES": "BMES"}


def tag_scheme(tags: Iterable[Any], where: Callable[[int, int], str] | None = None) -> str | None:
    """Finds the scheme of tags that mark spans; `None` for other tags, such as parts of speech.

    A tag marks a span if it is a prefix, "-" and a type, such as `"B-PER"`. Tags without types,
    such as `"B"`, mark spans if all tags are such letters, including B or I. Pass the tags of all
    splits: one split may use only a part of a scheme.

    Args:
        tags: Sentences, each a list of tags; or only the names of tags, in any order.
        where: `where(sentence, word)`, both from 0, returns the place of a tag, for error messages.

    Returns:
        `"IOB1"`, `"IOB2"`, `"IOBES"`, `"BILOU"` or `"BMES"`; for only names also `"IOB1 or IOB2"`;
        for tags without types `"BIO without types"` and the like; or `None`. If some spans begin
        as in IOB1 and others as in IOB2, the more frequent one; both are read in the same way.

    Raises:
        ValueError: If the tags are of several schemes; it names the first one that does not fit. If
            a span of IOBES, BILOU or BMES does not begin and end by its scheme; it names the first
            place and the number of such tags.

    >>> tag_scheme([["O", "I-PER", "B-PER"]]), tag_scheme([["O", "B-PER", "I-PER"]])
    ('IOB1', 'IOB2')
    >>> tag_scheme([["B-PER", "L-PER", "U-LOC"]]), tag_scheme([["B", "O"]])
    ('BILOU', 'BIO without types')
    >>> tag_scheme(["NOUN", "O", "VERB"])
    """
    scheme = _family(tags, where)
    if scheme is not None and not scheme.startswith("BIO") and not _are_names(tags):
        _check_whole_spans(tags, scheme, where)
    if scheme != "BIO":
        return scheme
    marks = {tag: _mark(tag) for tag in set(chain.from_iterable(_sentences(tags)))}
    if _are_names(tags):
        prefixes = {prefix for prefix, kind in marks.values() if kind}
        return {"B": "IOB2", "I": "IOB1"}.get("".join(prefixes), "IOB1 or IOB2")
    starts = Counter()
    for sentence in tags:
        before = None
        for tag in sentence:
            prefix, kind = marks[tag]
            if kind and kind != before:
                starts[prefix] += 1
            before = kind
    return "IOB1" if starts["I"] > starts["B"] else "IOB2"


def _are_names(tags):
    """Returns True for a list of tags, False for a list of sentences."""
    return not len(tags) or isinstance(tags[0], str) or not hasattr(tags[0], "__len__")


def _sentences(tags):
    return [tags] if _are_names(tags) else tags


def _family(tags, where=None):
    """Returns the same as `tag_scheme`, but "BIO" for both IOB1 and IOB2."""
    names_alone, sentences = _are_names(tags), _sentences(tags)
    counts = Counter(chain.from_iterable(sentences))
    if not all(isinstance(tag, str) for tag in counts):
        return None
    marks = {tag: _mark(tag) for tag in counts if tag != "O"}
    typed = {tag for tag, (prefix, kind) in marks.items() if prefix and kind}
    bare = {tag for tag, (prefix, kind) in marks.items() if prefix and not kind}
    plain = marks.keys() - typed - bare
    if not typed:
        if plain and all(tag == "O" or all(_mark(tag)) for tag in map(_repaired, counts)):
            rule = "A tag must be a prefix, '-' and a type, as 'B-PER', or 'O' outside of spans"
            raise _wrong_tag(sentences, plain, where, names_alone, rule)
        if plain or not bare & {"B", "I"}:
            return None
    elif len(typed) <= len(bare | plain) and (
        counts["O"] + _count(counts, typed) < _count(counts, bare | plain)
    ):
        return None  # such as S-PRO among parts of speech

    def fits(scheme, tag):
        return marks[tag][0] in PREFIXES[scheme]

    wanted = typed or bare
    scheme = max(PREFIXES, key=lambda s: _count(counts, [tag for tag in wanted if fits(s, tag)]))
    wrong = {tag for tag in marks if tag not in wanted or not fits(scheme, tag)}
    if wrong:
        kinds = [prefix + "-TYPE" * bool(typed) for prefix in PREFIXES[scheme]]
        rule = f"All tags must be of one scheme. Most are of {scheme}: 'O', {', '.join(kinds)}"
        raise _wrong_tag(sentences, wrong, where, names_alone, rule)
    return f"{scheme} without types" if bare else scheme


def _check_whole_spans(sentences, scheme, where):
    """Raises unless all spans have both ends, for a scheme that marks both.

    Tags of IOB2 among those of IOBES pass all checks of names, but not this one.
    """
    prefixes = PREFIXES[scheme.partition(" ")[0]]
    first, inside, last, _ = prefixes
    marks = {tag: _mark(tag) for tag in set(chain.from_iterable(sentences))}
    marks[None] = ("", "")  # before and after a sentence
    opens = {tag for tag, (prefix, _) in marks.items() if prefix and prefix in (first, inside)}
    continues = {tag for tag, (prefix, _) in marks.items() if prefix and prefix in (inside, last)}
    broken = []  # (sentence, word, tag with its neighbour)
    for i, tags in enumerate(sentences):
        neighbours = zip([None, *tags], tags, [*tags[1:], None], strict=False)
        for j, (before, tag, after) in enumerate(neighbours):
            kind = marks[tag][1]
            if tag in continues and not (before in opens and marks[before][1] == kind):
                place = "at the start of a sentence" if before is None else f"after {before!r}"
                broken.append((i, j, f"{tag!r} {place}"))
            elif tag in opens and not (after in continues and marks[after][1] == kind):
                place = "at the end of a sentence" if after is None else f"before {after!r}"
                broken.append((i, j, f"{tag!r} {place}"))
    if broken:
        i, j, received = broken[0]
        first, inside, last, single = (p + "-TYPE" * ("without" not in scheme) for p in prefixes)
        rule = (
            f"In {scheme} a span must be {single}, or begin with {first}, have {inside} within, "
            f"and end with {last}, all of one type: convert all tags to one scheme"
        )
        raise _error_at(i, j, where, rule, f"{received}, the first of {len(broken)} such tags")


def _mark(tag):
    """Returns `(prefix, type)` of a tag that marks a span, with "" for no type.

    For other tags it returns `("", "")`.
    """
    prefix, dash, kind = tag.partition("-")
    known = len(prefix) == 1 and prefix in "BIESLUM" and bool(dash) == bool(kind)
    return (prefix, kind) if known else ("", "")


def _repaired(tag):
    """Returns the intended tag, such as "B-PER" for "b_PER "."""
    return tag.strip().upper().replace("_", "-", 1)


def _count(counts, tags):
    return sum(counts[tag] for tag in tags)


def _wrong_tag(sentences, wrong, where, names_alone, rule):
    """Returns an error that names the first of the wrong tags."""
    places = ((i, j) for i, tags in enumerate(sentences) for j, tag in enumerate(tags))
    i, j = next((i, j) for i, j in places if sentences[i][j] in wrong)
    if names_alone:
        return ValueError(f"{rule}. Received: {sentences[i][j]!r}")
    return _error_at(i, j, where, rule, repr(sentences[i][j]))


def _error_at(i, j, where, rule, received):
    """Returns an error about word j of sentence i; `where` as in `tag_scheme`."""
    if where is None:
        return ValueError(f"{rule}. Received: {received} as sentence {i}, word {j}")
    return ValueError(f"{where(i, j)}: {rule}. Received: {received}")


def are_spans(tags: Iterable[str]) -> bool:
    """Whether the names of tags mark spans: `"B-PER"` and `"O"` do, `"NOUN"` does not.

    Args:
        tags: Names of tags.

    Returns:
        True if they mark spans.

    >>> are_spans(["O", "B-PER", "I-PER"]), are_spans(["NOUN", "VERB"])
    (True, False)
    """
    return tag_scheme(as_list(tags, "tags", "tags")) is not None


def check_marks(sentences):
    """Raises unless all tags mark spans by one scheme."""
    _family(sentences)
    tags = set(chain.from_iterable(sentences))
    if wrong := {tag for tag in tags if tag != "O" and not _mark(tag)[0]}:
        rule = "Spans need tags such as 'B-PER' and 'O': score other tags with `word_accuracy`"
        raise _wrong_tag(sentences, wrong, None, False, rule)
