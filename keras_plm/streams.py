"""Raw text of any size as token ids on disk, for pre-training."""

import hashlib
import itertools
import json
import os
import shutil
from pathlib import Path

import numpy as np

from keras_plm.data import fingerprint
from keras_plm.tokenizers import open_text
from keras_plm.tokenizers.subwords import paths


def split_sentences(paragraph):
    """The sentences of a paragraph, by the rules of the package `sentencex`.

    Raises:
        ImportError: If the package is missing, with what to do.
    """
    try:
        from sentencex import segment
    except ImportError as error:
        raise ImportError(
            "Splitting raw text into sentences needs the package sentencex: "
            "pip install 'keras-plm[text]'. Text with one sentence a line needs no splitting: "
            "pass sentences='lines'."
        ) from error
    return [sentence for part in segment("en", paragraph) if (sentence := part.strip())]


class TokenStream:
    """Raw text as token ids on disk: sentences one after another, grouped in documents.

    Built once from text files of any size, then memory-mapped; a document ends at a blank line
    and at the end of a file.

    Attributes:
        tokens: (number of tokens,) ids.
        sentences: (number of sentences + 1,) where each begins in `tokens`.
        documents: (number of documents + 1,) where each begins in `sentences`.
    """

    def __init__(self, folder):
        folder = Path(folder)
        self.folder = folder
        self.description = json.loads((folder / "stream.json").read_text())
        dtype = self.description["dtype"]
        self.tokens = np.memmap(folder / "tokens.bin", dtype=dtype, mode="r")
        self.sentences = np.load(folder / "sentences.npy")
        self.documents = np.load(folder / "documents.npy")

    @classmethod
    def build(cls, files, tokenizer, folder, sentences="split", progress=None, end_id=None):
        """Tokenises files, unless `folder` already holds the stream of these files.

        Args:
            files: One path or a list of paths, plain or .gz: a paragraph a line.
            tokenizer: Gives the ids.
            folder: Where to put the stream; written under a temporary name, then renamed.
            sentences: `"split"` to split paragraphs into sentences, `"lines"` if every line
                is one.
            progress: Called with the number of tokens written so far.
            end_id: A token that is put behind each sentence (with `"lines"` each line), if any.

        Raises:
            ValueError: If a file is missing or there is no text at all.
        """
        if sentences not in ("split", "lines"):
            raise ValueError(f"`sentences` must be 'split' or 'lines'. Received: {sentences!r}")
        folder = Path(folder)
        files = [Path(path) for path in paths(files)]
        key = hashlib.sha256()
        for path in files:
            open_text(path).close()  # says what is missing
            with open(path, "rb") as file:
                key.update(hashlib.file_digest(file, "sha256").digest())
        made_with = _text_fingerprint(tokenizer)
        key.update(f"{sentences} {made_with}".encode())
        if end_id is not None:
            key.update(f" {end_id}".encode())
        description = {"key": key.hexdigest(), "tokenizer": made_with}
        description["files"] = [path.name for path in files]
        if (folder / "stream.json").is_file():
            known = json.loads((folder / "stream.json").read_text())
            if known["key"] == description["key"]:
                return cls(folder)
        elif folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
            raise ValueError(
                "A stream needs a folder of its own, a new one or that of an older stream. "
                f"Received: {str(folder)!r}"
            )

        temporary = folder.with_name(folder.name + ".tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        description["dtype"] = "uint16" if len(tokenizer) <= 2**16 else "int32"
        sizes, documents = [], [0]
        with open(temporary / "tokens.bin", "wb") as out:
            for batch in _sentence_batches(files, sentences):
                texts = [text for text in batch if text is not None]
                rows = tokenizer.encode(texts) if texts else None
                # Without [CLS] and [SEP], which the objective puts where it needs them.
                before, behind = tokenizer.framed
                keep = np.ones(0 if rows is None else len(rows.token_ids), dtype=bool)
                if rows is not None:
                    keep[rows.starts[before * rows.lengths > 0]] = False
                    keep[(rows.starts + rows.lengths - 1)[behind * rows.lengths > 0]] = False
                    ids, lengths = rows.token_ids[keep], rows.lengths - before - behind
                    if end_id is not None:
                        ids = np.insert(ids, np.cumsum(lengths), end_id)
                        lengths = lengths + 1
                    ids.astype(description["dtype"]).tofile(out)
                counts = iter([] if rows is None else lengths)
                for text in batch:
                    if text is not None:
                        sizes.append(int(next(counts)))
                    elif len(sizes) > documents[-1]:
                        documents.append(len(sizes))
                if progress is not None:
                    progress(out.tell() // np.dtype(description["dtype"]).itemsize)
        if not sizes:
            shutil.rmtree(temporary)
            raise ValueError(f"There is no text in these files. Received: {files}")
        if len(sizes) > documents[-1]:
            documents.append(len(sizes))
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        np.save(temporary / "sentences.npy", bounds)
        np.save(temporary / "documents.npy", np.array(documents))
        description |= {
            "tokens": int(bounds[-1]),
            "sentences": len(sizes),
            "documents": len(documents) - 1,
        }
        (temporary / "stream.json").write_text(json.dumps(description, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)
        return cls(folder)


def check_stream(stream, tokenizer):
    """Raises unless a stream's ids are this tokenizer's."""
    made_with = getattr(stream, "description", {}).get("tokenizer")
    if made_with is not None and made_with != _text_fingerprint(tokenizer):
        raise ValueError(
            "A stream's ids are of the tokenizer that it was made with, `TokenStream.build(files, "
            f"tokenizer, folder)`. Received: another one, of {len(tokenizer)} tokens"
        )


def _text_fingerprint(tokenizer):
    """Of what gives text its ids; special tokens around a text have no part in a stream."""
    return fingerprint(tokenizer.unframed() if hasattr(tokenizer, "unframed") else tokenizer)


def read_ids(files, tokenizer, blank_lines=False):
    """Text files as one array of token ids, each line ended by `tokenizer.end_id`.

    What n-grams, `NNLM` and word vectors are trained on; it is held in memory, 4 bytes a token.

    Args:
        files: One path or a list of paths, plain or .gz.
        tokenizer: One that puts nothing around a text, as `Words`.
        blank_lines: If True, a blank line gives an end too.

    Returns:
        (number of tokens,) int32.

    Raises:
        ValueError: If a file is missing or there is no text at all.
    """
    parts = []
    for batch in _line_batches(paths(files)):
        kept = [line for line in batch if blank_lines or line.strip()]
        rows = tokenizer.encode(kept)
        ends = np.cumsum(rows.lengths + 1) - 1
        ids = np.full(int(rows.lengths.sum()) + len(kept), tokenizer.end_id, np.int32)
        inside = np.ones(len(ids), bool)
        inside[ends] = False
        ids[inside] = rows.token_ids
        parts.append(ids)
    ids = np.concatenate(parts) if parts else np.zeros(0, np.int32)
    if not (ids != tokenizer.end_id).any():
        raise ValueError(f"There is no text in these files. Received: {files}")
    return ids


def _line_batches(files, size=20_000):
    for path in files:
        with open_text(path) as file:
            while batch := list(itertools.islice(file, size)):
                yield batch


def _sentence_batches(files, sentences, size=20_000):
    """Lists of sentences, with `None` at the end of each document."""

    def stream():
        for path in files:
            with open_text(path) as file:
                for line in file:
                    line = line.strip()
                    if not line:
                        yield None
                    elif sentences == "lines":
                        yield line
                    else:
                        yield from split_sentences(line)
            yield None

    texts = stream()
    while batch := list(itertools.islice(texts, size)):
        yield batch
