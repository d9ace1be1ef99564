"""Preparation of raw text as token ids on disk, for pre-training."""

from pathlib import Path

from keras_plm.checkpoints import load_tokenizer
from keras_plm.data.corpus import TokenStream, check_stream
from keras_plm.data.corpus_writer import DESCRIPTION
from keras_plm.datasets.tasks import checksum
from keras_plm.experiments.pretraining.objectives import OBJECTIVES
from keras_plm.files import manifest
from keras_plm.files.arguments import check_one_of, check_whole
from keras_plm.files.json_files import OneOf, Whole, check_shape, read_json
from keras_plm.files.locks import one_writer
from keras_plm.files.writing import remove_leftovers, write_json

NOTE, TOKENIZER, STREAM = "prepared.json", "tokenizer.json", "stream"
MODELS = ("bert", "gpt", "lstm")  # not ELMo: it takes its words from the text
# Types of the keys of a folder's note: `SHAPE` from the start, `ENDED` after the end. The manifests
# cover the files that `stream.json` and its manifest do not.
SHAPE = {
    "model": OneOf(MODELS),
    "corpus": [str],
    "corpus_sha256": [str],
    "sentences": OneOf(("split", "lines")),
    "tokenizer": (str, None),
    "vocabulary_size": (Whole(), None),
    "lowercase": (bool, None),
}
ENDED = {
    "counts": {"tokens": Whole(1), "sentences": Whole(1), "documents": Whole(1)},
    "manifest": manifest.SHAPE,
    "stream_manifest": manifest.SHAPE,
}


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
    """Writes a folder for `pretrain --prepared`: a tokenizer and a text as its tokens.

    A call with the same arguments resumes a stopped call. The content depends neither on the number
    of workers nor on stops. Training draws the masks and pairs.

    Args:
        corpus: Text files, plain or .gz: one paragraph per line, a blank line between documents.
        out: Folder to write.
        model: Model to pre-train on the text, one of `MODELS`.
        tokenizer: File or folder of a tokenizer; by default one is trained.
        vocabulary_size, lowercase: Settings of a trained tokenizer.
        sentences: `"split"` or `"lines"`, for BERT.
        workers: Number of processes.
        progress: Called with the number of tokens written so far.

    Returns:
        The `TokenStream`.

    Raises:
        ValueError: If a file is missing or empty, the tokenizer does not fit the model, or `out`
            holds other text or damaged files or has another writer.
    """
    check_one_of(model, "model", MODELS)
    check_one_of(sentences, "sentences", ("split", "lines"))
    check_whole(workers, "workers", least=1)
    if model != "bert" and sentences != "split":
        raise ValueError(f"`sentences` applies only to bert. Received: {sentences!r} for {model}")
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
    with one_writer(out):
        if _is_ended(out, described):
            _, kept, stream = read_prepared(out, model, verify=True)
            if tokenizer is not None and Path(tokenizer).exists():
                _check_same(_given(objective, tokenizer), kept, out)
            return stream
        found = _tokenizer(
            objective, out / TOKENIZER, corpus, tokenizer, vocabulary_size, lowercase
        )
        out.mkdir(parents=True, exist_ok=True)
        remove_leftovers(out, "*")
        write_json(out / NOTE, described)
        found.save(out / TOKENIZER)
        stream = objective.text_stream(
            corpus, found, out / STREAM, sentences, workers=workers, progress=progress
        )
        ended = {
            "counts": {name: stream.description[name] for name in ENDED["counts"]},
            "manifest": manifest.describe_files(out, [TOKENIZER]),
            "stream_manifest": manifest.describe_files(out / STREAM, [DESCRIPTION]),
        }
        write_json(out / NOTE, described | ended)
        return stream


def _is_ended(out, described):
    """Returns whether a folder holds all of this text; raises an error for other content."""
    note = out / NOTE
    remove_leftovers(out, NOTE)
    if not note.is_file():
        if out.is_file() or (out.is_dir() and any(out.iterdir())):
            raise ValueError(
                f"`out` must be a new folder, or one to resume. Received: {str(out)!r}"
            )
        return False
    before = read_json(note, SHAPE)
    for name, value in described.items():
        if before.get(name) != value:
            raise ValueError(
                f"{out} holds other text, or text for another model: choose another folder. "
                f"Received: {name}={value!r} instead of {before.get(name)!r}"
            )
    return "counts" in before


def _tokenizer(objective, saved, corpus, given, vocabulary_size, lowercase):
    """Returns the tokenizer: saved by an earlier call, given, or trained on the corpus."""
    kept = objective.tokenizer_class.load(saved) if saved.is_file() else None
    if given is None:
        return kept or objective.learn(corpus, vocabulary_size, lowercase)
    found = _given(objective, given)
    if kept is not None:
        _check_same(found, kept, saved.parent)
    return found


def _check_same(found, kept, out):
    """Raises if a given tokenizer is not that of an earlier call."""
    if found.get_config() != kept.get_config():
        raise ValueError(
            f"{out} holds the text of another tokenizer: choose another folder. Received: a "
            f"{type(found).__name__} of {len(found):,} tokens, unlike the kept one of {len(kept):,}"
        )


def _given(objective, given):
    """Loads the tokenizer of a file or folder."""
    kind, path = objective.tokenizer_class, Path(given)
    found = load_tokenizer(path) if path.is_dir() else kind.load(path)
    if type(found) is not kind:
        raise ValueError(
            f"The tokenizer of this model must be a {kind.__name__}. "
            f"Received: {type(found).__name__} in {str(given)!r}"
        )
    return found


def read_prepared(folder, model=None, verify=False):
    """Returns `(note, tokenizer, stream)` of a folder of `prepare`.

    Args:
        folder: The folder.
        model: Model to pre-train on it; by default the one that it was prepared for.
        verify: Whether to compare all checksums, which reads every byte.

    Raises:
        ValueError: If the folder holds no prepared text, or text that is unfinished, damaged or for
            another model.
    """
    folder = Path(folder)
    note = read_json(folder / NOTE, SHAPE) if (folder / NOTE).exists() else {}
    if "counts" not in note:
        raise ValueError(
            f"{folder} must hold prepared text: {'finish' if note else 'write'} it with "
            f"`keras-plm prepare --out {folder}`. Received: {str(folder)!r}"
        )
    check_shape(note, ENDED, folder / NOTE)
    objective = OBJECTIVES[model or note["model"]]
    if getattr(objective, "tokenizer_class", None) is not OBJECTIVES[note["model"]].tokenizer_class:
        raise ValueError(
            f"{folder} holds text for another model. Received: {note['model']} instead of {model}"
        )
    manifest.check_files(folder, note["manifest"], checksums=True)
    manifest.check_files(folder / STREAM, note["stream_manifest"], checksums=True)
    tokenizer = objective.tokenizer_class.load(folder / TOKENIZER)
    stream = TokenStream(folder / STREAM, verify)
    check_stream(stream, tokenizer)
    return note, tokenizer, stream
