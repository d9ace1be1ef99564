"""Preparation of raw text as token ids on disk, apart from pre-training."""

from pathlib import Path

from keras_plm.checkpoints import load_tokenizer
from keras_plm.data.corpus import TokenStream
from keras_plm.datasets.tasks import checksum
from keras_plm.experiments.pretraining.objectives import OBJECTIVES
from keras_plm.experiments.results import read_json
from keras_plm.files.arguments import check_one_of
from keras_plm.files.writing import write_json

NOTE, TOKENIZER = "prepared.json", "tokenizer.json"
MODELS = ("bert", "gpt", "lstm")  # ELMo's words are those of its text


def prepare(
    corpus,
    out,
    model="bert",
    tokenizer=None,
    vocabulary_size=10_000,
    lowercase=False,
    sentences="split",
    workers=1,
    progress=None,
):
    """Makes a folder for `pretrain --prepared`: a tokenizer and text as its tokens.

    The next call with the same arguments resumes one that was stopped. What is written
    depends neither on the number of workers nor on stops; masks and pairs are drawn in training.

    Args:
        corpus: Text files, plain or .gz: a paragraph a line, a blank line between documents.
        out: The folder.
        model: Whose text it is to be, one of `MODELS`.
        tokenizer: A file or folder of a tokenizer; by default one is learned.
        vocabulary_size, lowercase: Of one that is learned.
        sentences: `"split"` or `"lines"`, for BERT.
        workers: Processes that tokenise.
        progress: Called with the number of tokens written so far.

    Returns:
        The `TokenStream`.

    Raises:
        ValueError: If a file is missing or empty, the tokenizer is of another kind than the model's
            or `out` holds other text.
    """
    check_one_of(model, "model", MODELS)
    if model != "bert" and sentences != "split":
        raise ValueError(f"`sentences` is of bert alone. Received: {sentences!r} for {model}")
    out, objective = Path(out), OBJECTIVES[model]
    described = {
        "model": model,
        "corpus": [Path(path).name for path in corpus],
        "corpus_sha256": [checksum(path) for path in corpus],
        "sentences": sentences,
        "tokenizer": None if tokenizer is None else str(tokenizer),
        "vocabulary_size": vocabulary_size if tokenizer is None else None,
        "lowercase": lowercase if tokenizer is None else None,
    }
    _check_folder(out, described)
    found = _tokenizer(objective, out / TOKENIZER, corpus, tokenizer, vocabulary_size, lowercase)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / NOTE, described)
    found.save(out / TOKENIZER)
    stream = objective.text_stream(
        corpus, found, out / "stream", sentences, workers=workers, progress=progress
    )
    counts = {name: stream.description[name] for name in ("tokens", "sentences", "documents")}
    write_json(out / NOTE, described | {"counts": counts})
    return stream


def _check_folder(out, described):
    """Raises unless a folder is new, or holds the same text for the same model."""
    note = out / NOTE
    if not note.is_file():
        if out.is_file() or (out.is_dir() and any(out.iterdir())):
            raise ValueError(
                f"`out` must be a new folder, or one to resume. Received: {str(out)!r}"
            )
        return
    before = read_json(note)
    for name, value in described.items():
        if before.get(name) != value:
            raise ValueError(
                f"{out} holds other text, or text for another model: name another folder. "
                f"Received: {name}={value!r} instead of {before.get(name)!r}"
            )


def _tokenizer(objective, saved, corpus, given, vocabulary_size, lowercase):
    """The tokenizer that an earlier call saved, that is given, or that the corpus teaches."""
    kind = objective.tokenizer_class
    if saved.is_file():
        return kind.load(saved)
    if given is None:
        return objective.learn(corpus, vocabulary_size, lowercase)
    path = Path(given)
    found = load_tokenizer(path) if path.is_dir() else kind.load(path)
    if type(found) is not kind:
        raise ValueError(
            f"This model reads the tokens of a {kind.__name__}. "
            f"Received: {type(found).__name__} in {str(given)!r}"
        )
    return found


def read_prepared(folder, model):
    """`(note, tokenizer, stream)` of a folder that `prepare` made.

    Raises:
        ValueError: If it is none, is not done, or is text for another model.
    """
    folder = Path(folder)
    note = read_json(folder / NOTE) if (folder / NOTE).is_file() else {}
    if "counts" not in note:
        raise ValueError(
            f"{folder} does not hold prepared text: `keras-plm prepare --out {folder}` "
            f"makes it{' and is not done yet' if note else ''}. Received: {str(folder)!r}"
        )
    objective = OBJECTIVES[model]
    if getattr(objective, "tokenizer_class", None) is not OBJECTIVES[note["model"]].tokenizer_class:
        raise ValueError(
            f"{folder} holds text for another model. Received: {note['model']} instead of {model}"
        )
    return (
        note,
        objective.tokenizer_class.load(folder / TOKENIZER),
        TokenStream(folder / "stream"),
    )
