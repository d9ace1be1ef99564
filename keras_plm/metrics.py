"""Scores of predictions: plain functions `(y_true, y_pred) -> float`, and one for `fit`."""

import re
import string
from collections import Counter
from itertools import chain, zip_longest

import keras
import numpy as np
from keras import ops

from keras_plm.files.sequences import as_list, as_names, is_missing

# Prefixes of tags by scheme: M is inside, L the last word of a span, U a span of one word.
PREFIXES = {"BIO": "BI", "IOBES": "BIES", "BILOU": "BILU", "BMES": "BMES"}
BEGINS, ENDS = ("B", "S", "U"), ("E", "L", "S", "U")


def accuracy(y_true, y_pred):
    """Share of predictions that equal the truth, in [0, 1].

    >>> accuracy(["a", "b", "b"], ["a", "b", "a"])
    0.6666666666666666
    """
    y_true, y_pred = _single(y_true, y_pred)
    hits = [true == pred for true, pred in zip(y_true, y_pred, strict=True)]
    return float(np.mean(hits))


def f1(y_true, y_pred, positive=None):
    """F1 of the positive class of two, in [0, 1]; by default of the one that sorts last.

    Raises:
        ValueError: Without `positive`, if there are not two classes.

    >>> f1([0, 1, 1], [1, 1, 0])
    0.5
    """
    from sklearn.metrics import f1_score

    y_true, y_pred = _single(y_true, y_pred)
    if positive is None:
        labels = sorted(set(y_true) | set(y_pred))
        if len(labels) > 2:
            raise ValueError(f"`f1` is of two classes. Received: {labels}")
        if len(labels) < 2:
            raise ValueError(f"Of one class, say which is `positive`. Received: {labels}")
        positive = labels[-1]
    true = [label == positive for label in y_true]
    return float(f1_score(true, [label == positive for label in y_pred], zero_division=0.0))


def matthews_correlation(y_true, y_pred):
    """Matthews' correlation of two labelings, in [-1, 1].

    >>> matthews_correlation([0, 1, 1, 0], [0, 1, 1, 0])
    1.0
    """
    from sklearn.metrics import matthews_corrcoef

    y_true, y_pred = _single(y_true, y_pred)
    return float(matthews_corrcoef(y_true, y_pred))


def pearson_correlation(y_true, y_pred):
    """Pearson's correlation of numbers, in [-1, 1]; 0 if all on one side are equal.

    >>> round(pearson_correlation([1, 2, 3], [2, 4, 6]), 6)
    1.0
    """
    from scipy.stats import pearsonr

    y_true, y_pred = _single(y_true, y_pred)
    _check_finite(y_true, y_pred)
    return 0.0 if _constant(y_true, y_pred) else float(pearsonr(y_true, y_pred).statistic)


def spearman_correlation(y_true, y_pred):
    """Spearman's rank correlation of numbers, in [-1, 1]; 0 if all on one side are equal.

    >>> round(spearman_correlation([1, 2, 3], [2, 4, 60]), 6)
    1.0
    """
    from scipy.stats import spearmanr

    y_true, y_pred = _single(y_true, y_pred)
    _check_finite(y_true, y_pred)
    return 0.0 if _constant(y_true, y_pred) else float(spearmanr(y_true, y_pred).statistic)


def word_accuracy(y_true, y_pred):
    """Share of words whose tag equals the true one, in [0, 1].

    >>> word_accuracy([["DET", "NOUN"], ["VERB", "NOUN"]], [["DET", "VERB"], ["VERB", "NOUN"]])
    0.75
    """
    y_true, y_pred = _both(y_true, y_pred)
    y_true, y_pred = [[as_list(tags, "tags", "tags") for tags in side] for side in (y_true, y_pred)]
    for i, (true, pred) in enumerate(zip(y_true, y_pred, strict=True)):
        if len(true) != len(pred):
            raise ValueError(
                "Every word needs one true and one predicted tag. "
                f"Received: {len(true)} and {len(pred)} tags in sentence {i}"
            )
    return accuracy(list(chain.from_iterable(y_true)), list(chain.from_iterable(y_pred)))


def tag_scheme(tags, where=None):
    """Scheme by which tags mark spans, or `None` for tags of words, as parts of speech.

    A tag marks a span if it is a prefix, "-" and a type, as `"B-PER"`. Tags without types, as
    `"B"`, mark spans if all tags are such letters and B or I is among them: a part of speech may
    have the name of a letter too. One file or split may use a part of a scheme only: give those of
    all splits.

    Args:
        tags: Sentences, each a list of tags; or only the names of tags, in any order.
        where: `where(sentence, word)`, both from 0: the place of a tag, for the error.

    Returns:
        `"IOB1"`, `"IOB2"`, `"IOBES"`, `"BILOU"` or `"BMES"`; of names alone also `"IOB1 or IOB2"`;
        of tags without types `"BIO without types"` and the like; or `None`. Where some spans begin
        as in IOB1 and others as in IOB2, which are read alike, the more frequent one.

    Raises:
        ValueError: If the tags are of several schemes, naming the first one that does not fit; if a
            span of IOBES, BILOU or BMES does not begin and end as its scheme says, with the first
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
    """True for a list of tags, False for a list of sentences."""
    return not len(tags) or isinstance(tags[0], str) or not hasattr(tags[0], "__len__")


def _sentences(tags):
    return [tags] if _are_names(tags) else tags


def _family(tags, where=None):
    """As `tag_scheme`, with "BIO" for both IOB1 and IOB2."""
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
            rule = "A tag that marks a span is a prefix, '-' and a type, as 'B-PER'; others are 'O'"
            raise _wrong_tag(sentences, plain, where, names_alone, rule)
        if plain or not bare & {"B", "I"}:
            return None
    elif len(typed) <= len(bare | plain) and (
        counts["O"] + _count(counts, typed) < _count(counts, bare | plain)
    ):
        return None  # as S-PRO among parts of speech

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
    """Raises unless all spans of a scheme that marks both ends have both.

    Tags of IOB2 among those of IOBES pass every check of their names, and break this one.
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
            f"In {scheme} a span is {single}, or begins with {first}, has {inside} within, and "
            f"ends with {last}, all of one type: convert all tags to one scheme"
        )
        raise _error_at(i, j, where, rule, f"{received}, the first of {len(broken)} such tags")


def _mark(tag):
    """`(prefix, type)` of a tag that marks a span, the type "" without one; else `("", "")`."""
    prefix, dash, kind = tag.partition("-")
    known = len(prefix) == 1 and prefix in "BIESLUM" and bool(dash) == bool(kind)
    return (prefix, kind) if known else ("", "")


def _repaired(tag):
    """The tag that was meant, as "B-PER" by "b_PER "."""
    return tag.strip().upper().replace("_", "-", 1)


def _count(counts, tags):
    return sum(counts[tag] for tag in tags)


def _wrong_tag(sentences, wrong, where, names_alone, rule):
    """The error that names the first of the wrong tags."""
    places = ((i, j) for i, tags in enumerate(sentences) for j, tag in enumerate(tags))
    i, j = next((i, j) for i, j in places if sentences[i][j] in wrong)
    if names_alone:
        return ValueError(f"{rule}. Received: {sentences[i][j]!r}")
    return _error_at(i, j, where, rule, repr(sentences[i][j]))


def _error_at(i, j, where, rule, received):
    """The error about word j of sentence i; `where` as in `tag_scheme`."""
    if where is None:
        return ValueError(f"{rule}. Received: {received} as sentence {i}, word {j}")
    return ValueError(f"{where(i, j)}: {rule}. Received: {received}")


def are_spans(tags):
    """True where the names of tags mark spans, as `"B-PER"` and `"O"` do and `"NOUN"` does not.

    >>> are_spans(["O", "B-PER", "I-PER"]), are_spans(["NOUN", "VERB"])
    (True, False)
    """
    return tag_scheme(as_list(tags, "tags", "tags")) is not None


def spans(tags):
    """The chunks of one sentence's tags, as conlleval reads them.

    A chunk begins at B, at I after O or at the sentence's start, and where the type changes; it
    ends before the next chunk or O. So IOB1 and IOB2 are read alike. E and L end a chunk, S and U
    are one of a word: IOBES, BILOU and BMES are read too.

    Args:
        tags: Strings such as `"O"`, `"B-PER"`, `"I-PER"`; or `"B"` and `"I"`, of the type `""`.

    Returns:
        A list of `(type, first word, last word + 1)`.

    >>> spans(["I-PER", "I-PER", "B-PER", "O", "I-LOC"])
    [('PER', 0, 2), ('PER', 2, 3), ('LOC', 4, 5)]
    """
    found, start, open_type, ended = [], None, None, False
    for i, tag in enumerate([*as_list(tags, "tags", "tags"), "O"]):
        prefix, _, kind = tag.partition("-")
        goes_on = start is not None and prefix != "O" and prefix not in BEGINS
        if not (goes_on and kind == open_type and not ended):
            if start is not None:
                found.append((open_type, start, i))
            start, open_type = (None, None) if prefix == "O" else (i, kind)
        ended = prefix in ENDS
    return found


def span_scores(y_true, y_pred):
    """What conlleval prints: precision, recall, F1 and counts, over all spans and by type.

    A span is correct if its type, first and last word all agree with a true one. Agrees with the
    CoNLL-2003 script conlleval, and with seqeval's default mode. True tags that training did not
    have are spans as others, which no prediction finds.

    Args:
        y_true, y_pred: Lists of sentences, each a list of tags.

    Returns:
        A dict with `"all"` and each type, of dicts with `precision`, `recall`, `f1` in [0, 1],
        `true`, `found`, `correct`, and `"accuracy"`, the share of equal tags.

    Raises:
        ValueError: If sentences or words are not equally many, or tags mark no spans or are of
            several schemes, see `tag_scheme`. Spans of IOBES without an end are read as others.
    """
    y_true, y_pred = _both(y_true, y_pred)
    for sentences in (y_true, y_pred):
        _check_marks(sentences)
    true, found, correct = Counter(), Counter(), Counter()
    words = equal = 0
    for i, (gold, guess) in enumerate(zip(y_true, y_pred, strict=True)):
        gold, guess = as_list(gold, f"y_true[{i}]", "tags"), as_list(guess, f"y_pred[{i}]", "tags")
        if len(gold) != len(guess):
            raise ValueError(
                "Every word needs one true and one predicted tag. "
                f"Received: {len(gold)} and {len(guess)} tags in sentence {i}"
            )
        gold_spans, guess_spans = set(spans(gold)), set(spans(guess))
        true.update(kind for kind, _, _ in gold_spans)
        found.update(kind for kind, _, _ in guess_spans)
        correct.update(kind for kind, _, _ in gold_spans & guess_spans)
        words += len(gold)
        equal += sum(a == b for a, b in zip(gold, guess, strict=True))

    def scores(true, found, correct):
        precision = correct / found if found else 0.0
        recall = correct / true if true else 0.0
        total = precision + recall
        return {
            "precision": precision,
            "recall": recall,
            "f1": 2 * precision * recall / total if total else 0.0,
            "true": true,
            "found": found,
            "correct": correct,
        }

    table = {"all": scores(true.total(), found.total(), correct.total())}
    for kind in sorted(set(true) | set(found)):
        table[kind] = scores(true[kind], found[kind], correct[kind])
    return table | {"accuracy": equal / words if words else 0.0}


def _check_marks(sentences):
    """Raises unless all tags mark spans, by one scheme."""
    _family(sentences)
    tags = set(chain.from_iterable(sentences))
    if wrong := {tag for tag in tags if tag != "O" and not _mark(tag)[0]}:
        rule = "Spans are marked by 'O' and tags as 'B-PER'; score others by `word_accuracy`"
        raise _wrong_tag(sentences, wrong, None, False, rule)


def span_f1(y_true, y_pred):
    """F1 over all spans as conlleval counts them, in [0, 1]; see `span_scores`.

    >>> span_f1([["B-A", "O"]], [["I-A", "O"]])
    1.0
    """
    return span_scores(y_true, y_pred)["all"]["f1"]


def squad_exact_match(y_true, y_pred, version=1):
    """Share of answers that equal a gold answer after `normalize_answer`, in [0, 1].

    Reference: Rajpurkar et al. 2016, arXiv 1606.05250, section 6.1, and 2018, arXiv 1806.03822;
    agrees with the official scripts of SQuAD 1.1 and 2.0, whose percentages are 100 times this.

    Args:
        y_true: The gold answers of each question, a list of lists of strings; in version 2 `[]`
            where there is no answer.
        y_pred: The answers, strings; in version 2 `""` says that there is none.
        version: 1, or 2: gold answers of which normalising leaves nothing are then left out, and
            none at all is the answer `""`.

    Raises:
        ValueError: If the two are not equally many, empty or of other things; in version 1, if a
            question has no gold answer.

    >>> squad_exact_match([["denver broncos"], ["1882", "in 1882"]], ["The Denver Broncos!", "82"])
    0.5
    """
    return float(np.mean([exact for exact, _ in squad_scores(y_true, y_pred, version)]))


def squad_f1(y_true, y_pred, version=1):
    """Mean F1 of the words that answer and gold answer share, in [0, 1].

    Of several gold answers the best counts. Where a side has no words, the F1 is 0 in version 1, in
    version 2 it is 1 if both have none.

    Reference: as `squad_exact_match`.

    Args:
        y_true, y_pred, version: As in `squad_exact_match`.

    Raises:
        ValueError: As `squad_exact_match`.

    >>> round(squad_f1([["Santa Clara, California"]], ["Santa Clara"]), 6)
    0.8
    >>> squad_f1([["the"]], ["a"]), squad_f1([["the"]], ["a"], version=2)
    (0.0, 1.0)
    """
    return float(np.mean([f1 for _, f1 in squad_scores(y_true, y_pred, version)]))


def squad_scores(y_true, y_pred, version=1):
    """`(exact match, F1)` of each question, each in [0, 1]; see `squad_exact_match`."""
    if version not in (1, 2):
        raise ValueError(f"`version` of SQuAD's rules is 1 or 2. Received: version={version!r}")
    y_true, y_pred = _both(y_true, y_pred, complete=False)
    scores = []
    for i, (golds, guess) in enumerate(zip(y_true, y_pred, strict=True)):
        listed = not isinstance(golds, str) and hasattr(golds, "__iter__")
        golds = as_list(golds, "y_true") if listed else golds
        if not listed or not all(isinstance(text, str) for text in (*golds, guess)):
            raise ValueError(
                "A question has a list of gold answers and one answer, all strings. "
                f"Received: {golds!r} and {guess!r} as question {i}"
            )
        golds = [normalize_answer(text) for text in golds]
        if version == 2:
            golds = [text for text in golds if text] or [""]
        if not golds:
            raise ValueError(
                "In version 1 every question has an answer: score questions without one with "
                f"`version=2`. Received: no gold answer of question {i}"
            )
        guess = normalize_answer(guess)
        exact = max(float(text == guess) for text in golds)
        scores.append((exact, max(_shared_words(text, guess, version) for text in golds)))
    return scores


def _shared_words(gold, guess, version):
    """F1 of two bags of words."""
    gold, guess = gold.split(), guess.split()
    if version == 2 and not (gold and guess):
        return float(gold == guess)
    shared = (Counter(gold) & Counter(guess)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(guess), shared / len(gold)
    return 2 * precision * recall / (precision + recall)


_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text):
    """What SQuAD's scores compare: no case, ASCII punctuation, articles and spaces, in this order.

    >>> normalize_answer("The 10th-11th  centuries."), normalize_answer("U.S.")
    ('10th11th centuries', 'us')
    """
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def bleu(y_true, y_pred):
    """BLEU of a corpus of translations, in [0, 100], as sacrebleu computes it.

    Texts are passed as people write them, detokenized: sacrebleu splits them itself, so that
    scores of models with different tokenizers compare. It is a score of the whole corpus, not the
    mean of its sentences'. Publish it together with `bleu_signature`.

    Reference: Papineni et al. 2002, https://aclanthology.org/P02-1040; Post 2018,
    https://aclanthology.org/W18-6319.

    Args:
        y_true: Reference translations: a string for each sentence, or a list of strings where
            there are several references, as many as each sentence has.
        y_pred: The translations, strings.

    Raises:
        ValueError: If the two are not equally many, empty, or not lists of strings.
        ImportError: If sacrebleu is missing, with what to install.

    >>> round(bleu(["Das Haus ist sehr klein."], ["Das Haus ist klein."]), 1)
    40.9
    """
    for name, texts in (("y_true", y_true), ("y_pred", y_pred)):
        if isinstance(texts, str):
            raise ValueError(
                f"`{name}` is a list of sentences, also of one. Received: {name}={texts!r}"
            )
    y_true, y_pred = _both(y_true, y_pred)
    references = [[texts] if isinstance(texts, str) else list(texts) for texts in y_true]
    for i, (texts, guess) in enumerate(zip(references, y_pred, strict=True)):
        if not texts or not all(isinstance(text, str) for text in (*texts, guess)):
            raise ValueError(
                "A sentence has one reference or more and one translation, all strings. "
                f"Received: {texts} and {guess!r} as sentence {i}"
            )
    # sacrebleu takes all first references, then all second ones; None where a sentence has fewer.
    by_rank = [list(texts) for texts in zip_longest(*references)]
    return float(_sacrebleu().corpus_score(list(y_pred), by_rank).score)


def bleu_signature(references=1):
    """How `bleu` scores, in the form that papers quote, with sacrebleu's version.

    Args:
        references: How many each sentence has.

    >>> bleu_signature().rpartition("|")[0]
    'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp'
    """
    score = _sacrebleu()
    score.corpus_score(["a"], [["a"]] * references)  # it counts the references as it scores
    return str(score.get_signature())


def _sacrebleu():
    try:
        from sacrebleu.metrics import BLEU
    except ImportError as error:
        raise ImportError("BLEU needs the package sacrebleu: pip install sacrebleu.") from error
    # `force` changes no score: it keeps a warning from the log, of texts that end in " .".
    return BLEU(force=True)


def _constant(*numbers):
    """Whether one of the lists has no two different numbers: SciPy's correlation is then NaN."""
    return any(np.ptp(np.asarray(x, "float64")) == 0 for x in numbers)


def _check_finite(y_true, y_pred):
    """Raises unless all numbers are finite: a correlation with infinity is NaN."""
    for name, values in (("y_true", y_true), ("y_pred", y_pred)):
        finite = np.isfinite(np.asarray(values, "float64"))
        if not finite.all():
            i = int(np.argmin(finite))
            raise ValueError(
                f"Correlated numbers must be finite. Received: {name}[{i}]={values[i]}"
            )


def _single(y_true, y_pred):
    """As `_both`, for scores of one value a row."""
    sides = list(_both(y_true, y_pred))
    for side, (name, values) in enumerate(zip(("y_true", "y_pred"), sides, strict=True)):
        if all(isinstance(value, list) and len(value) == 1 for value in values):  # (N, 1)
            sides[side] = [value for (value,) in values]
            continue
        wrong = next(
            (i for i, value in enumerate(values) if isinstance(value, (list, tuple))), None
        )
        if wrong is not None:
            raise ValueError(
                "Every row has one true and one predicted value: of probabilities of classes take "
                "the class, `.argmax(axis=-1)`; `word_accuracy` takes lists of tags. "
                f"Received: {values[wrong]!r:.60} in row {wrong} of `{name}`"
            )
    return sides


def _both(y_true, y_pred, complete=True):
    """Truth and predictions as two lists, by position, of one length.

    With `complete` no value may be missing.
    """
    sides = []
    for name, values in (("y_true", y_true), ("y_pred", y_pred)):
        sides.append(as_list(values, name))
        missing = [i for i, value in enumerate(sides[-1]) if is_missing(value)]
        if missing and complete:
            raise ValueError(
                "A score needs a value on both sides of every row. "
                f"Received: {sides[-1][missing[0]]!r} in row {missing[0]} of `{name}`"
            )
    y_true, y_pred = sides
    if len(y_true) != len(y_pred) or not y_true:
        raise ValueError(
            "A score needs one prediction per truth, and at least one. "
            f"Received: {len(y_true)} truths and {len(y_pred)} predictions"
        )
    return y_true, y_pred


@keras.saving.register_keras_serializable("keras_plm")
class SpanF1(keras.metrics.Metric):
    """F1 over spans as conlleval counts them, as a streaming Keras metric.

    Counts what `span_f1` counts, in tensor operations, so that `fit` can show it
    and callbacks can watch it. Words of weight 0 are read as padding at the end of their row.

    Args:
        labels: The tags in the order of their ids, of a scheme of `tag_scheme`.

    Call arguments (`update_state`):
        y_true: (B, W) tag ids; -1 for a tag that is not among `labels`: words of such tags side by
            side are a span that no prediction finds.
        y_pred: (B, W, K) logits.
        sample_weight: (B, W), 0 at padding.
    """

    def __init__(self, labels, name="span_f1", **kwargs):
        super().__init__(name=name, **kwargs)
        self._direction = "up"  # by which callbacks know that more is better
        self.labels = labels = as_names(labels, "labels")
        prefixes = [label.partition("-")[0] for label in labels]
        types = sorted({label.partition("-")[2] for label in labels if label != "O"})
        types_of = [-1 if x == "O" else types.index(x.partition("-")[2]) for x in labels]
        # Last those of -1, a tag that is not among the labels.
        self.type_of = np.array([*types_of, len(types)], "int32")
        self.begins = np.array([*(prefix in BEGINS for prefix in prefixes), False])
        self.ends = np.array([*(prefix in ENDS for prefix in prefixes), False])
        self.counts = self.add_variable((3,), initializer="zeros", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = ops.cast(y_true, "int32")
        y_pred = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        real = ops.ones_like(y_true, dtype="bool")
        if sample_weight is not None:
            real = sample_weight > 0
        true_start, true_end, true_type = self._chunks(y_true, real)
        start, end, kind = self._chunks(y_pred, real)
        differs = (true_start != start) | (true_end != end) | (true_type != kind)
        # A true chunk is found if nothing differs from its first word to its last.
        chunk = ops.cumsum(ops.reshape(ops.cast(true_start, "int32"), (-1,)))
        inside = ops.reshape(true_type >= 0, (-1,))
        wrong = ops.cast(ops.reshape(differs, (-1,)) & inside, "float32")
        wrong = ops.segment_sum(wrong, chunk, num_segments=ops.size(y_true) + 1)
        whole = ops.take(wrong, chunk) == 0
        correct = ops.sum(ops.cast(ops.reshape(true_start, (-1,)) & whole, "float32"))
        true, found = (ops.sum(ops.cast(x, "float32")) for x in (true_start, start))
        self.counts.assign_add(ops.stack([true, found, correct]))

    def _chunks(self, tags, real):
        """Where chunks start and end, (B, W) each, and the type of each word, -1 outside."""
        tags = ops.where(tags < 0, len(self.labels), tags)
        kind = ops.where(real, ops.take(ops.convert_to_tensor(self.type_of), tags), -1)
        begins = ops.take(ops.convert_to_tensor(self.begins), tags)
        ends = ops.take(ops.convert_to_tensor(self.ends), tags)
        begins = begins | ops.pad(ends[:, :-1], ((0, 0), (1, 0)), constant_values=False)
        before = ops.pad(kind[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
        start = (kind >= 0) & (begins | (kind != before))
        after = ops.pad(kind[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
        next_start = ops.pad(start[:, 1:], ((0, 0), (0, 1)), constant_values=False)
        return start, (kind >= 0) & (next_start | (after != kind)), kind

    def result(self):
        true, found, correct = self.counts[0], self.counts[1], self.counts[2]
        return 2 * correct / ops.maximum(true + found, 1.0)

    def get_config(self):
        return {**super().get_config(), "labels": self.labels}
