"""BLEU of translations."""

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

from keras_plm.metrics._inputs import both


def bleu(y_true: Iterable[Any], y_pred: Iterable[Any]) -> float:
    """Computes the BLEU of a corpus of translations with sacrebleu.

    Pass detokenized texts: sacrebleu tokenizes them, which makes models with different tokenizers
    comparable. It is a score of the whole corpus, not a mean over sentences. Publish it together
    with `bleu_signature`.

    Reference: Papineni et al. 2002, https://aclanthology.org/P02-1040; Post 2018,
    https://aclanthology.org/W18-6319.

    Args:
        y_true: Reference translations: a string for each sentence, or a list of strings, of equal
            length for all sentences.
        y_pred: Translations, strings.

    Returns:
        The BLEU score, in [0, 100].

    Raises:
        ValueError: If the numbers of sentences differ, there are none, or they are not strings.
        ImportError: If sacrebleu is not installed.

    >>> round(bleu(["Das Haus ist sehr klein."], ["Das Haus ist klein."]), 1)
    40.9
    """
    for name, texts in (("y_true", y_true), ("y_pred", y_pred)):
        if isinstance(texts, str):
            raise ValueError(
                f"`{name}` must be a list of sentences, even for one. Received: {name}={texts!r}"
            )
    y_true, y_pred = both(y_true, y_pred)
    references = [[texts] if isinstance(texts, str) else list(texts) for texts in y_true]
    for i, (texts, predicted) in enumerate(zip(references, y_pred, strict=True)):
        if not texts or not all(isinstance(text, str) for text in (*texts, predicted)):
            raise ValueError(
                "A sentence needs at least one reference and one translation, all strings. "
                f"Received: {texts} and {predicted!r} as sentence {i}"
            )
    # sacrebleu takes all first references, then all second ones; None if a sentence has fewer.
    by_rank = [list(texts) for texts in zip_longest(*references)]
    return float(_sacrebleu().corpus_score(list(y_pred), by_rank).score)


def bleu_signature(references: int = 1) -> str:
    """Returns the signature of `bleu` for papers, with settings and version of sacrebleu.

    Args:
        references: Number of references per sentence.

    Returns:
        The signature, a string.

    >>> bleu_signature().rpartition("|")[0]
    'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp'
    """
    score = _sacrebleu()
    score.corpus_score(["a"], [["a"]] * references)  # the signature counts these references
    return str(score.get_signature())


def _sacrebleu():
    try:
        from sacrebleu.metrics import BLEU
    except ImportError as error:
        raise ImportError("BLEU needs the package sacrebleu: pip install sacrebleu.") from error
    # `force` changes no score: it hides a warning about texts that end in " .".
    return BLEU(force=True)
