"""Token ids of raw text on disk, for pre-training."""

import hashlib
import itertools
import json
from pathlib import Path

import numpy as np

from keras_plm.data.corpus_writer import SHARD_TOKENS, split_sentences, write_stream
from keras_plm.files.arguments import check_one_of, check_whole
from keras_plm.files.fingerprint import fingerprint
from keras_plm.tokenizers import open_text
from keras_plm.tokenizers.subwords import check_special
from keras_plm.tokenizers.text import paths

__all__ = ["TokenStream", "check_stream", "read_ids", "split_sentences"]


class TokenStream:
    """Raw text as token ids on disk: sentences one after another, grouped in documents.

    Built once from text files of any size, then memory-mapped: what is in memory does not grow with
    the text. A document ends at a blank line and at the end of a file.

    Attributes:
        tokens: (number of tokens,) ids, to be indexed by a slice or an array of places.
        sentences: (number of sentences + 1,) where each begins in `tokens`.
        documents: (number of documents + 1,) where each begins in `sentences`.
    """

    def __init__(self, folder):
        folder = Path(folder)
        self.folder = folder
        self.description = json.loads((folder / "stream.json").read_text())
        dtype = self.description["dtype"]
        shards = [
            np.memmap(folder / name, dtype=dtype, mode="r") for name in self.description["shards"]
        ]
        self.tokens = shards[0] if len(shards) == 1 else Joined(shards)
        self.sentences = np.memmap(folder / "sentences.bin", dtype=np.int64, mode="r")
        self.documents = np.memmap(folder / "documents.bin", dtype=np.int64, mode="r")

    @classmethod
    def build(
        cls,
        files,
        tokenizer,
        folder,
        sentences="split",
        progress=None,
        end_id=None,
        workers=1,
        shard_tokens=SHARD_TOKENS,
    ):
        """Tokenises files, unless `folder` already holds the stream of these files.

        The stream is the same whatever the number of workers. A call that was stopped is gone on
        with by the next one with the same arguments.

        Args:
            files: One path or a list of paths, plain or .gz: a paragraph a line.
            tokenizer: Gives the ids.
            folder: Where to put the stream; written under a temporary name, then renamed.
            sentences: `"split"` to split paragraphs into sentences, `"lines"` if every line
                is one.
            progress: Called with the number of tokens written so far.
            end_id: A token that is put behind each sentence (with `"lines"` each line), if any.
            workers: Processes that tokenise; each begins with the seconds that importing takes.
            shard_tokens: About how many tokens a file of ids holds.

        Raises:
            ValueError: If a file is missing, there is no text at all, or the folder holds something
                else.
        """
        check_one_of(sentences, "sentences", ("split", "lines"))
        check_whole(workers, "workers", least=1)
        check_whole(shard_tokens, "shard_tokens", least=1)
        folder = Path(folder)
        files = [Path(path) for path in paths(files)]
        key = hashlib.sha256(b"2")  # the layout of the folder
        for path in files:
            open_text(path).close()  # says what is missing
            with open(path, "rb") as file:
                key.update(hashlib.file_digest(file, "sha256").digest())
        made_with = _text_fingerprint(tokenizer)
        key.update(f"{sentences} {made_with} {shard_tokens}".encode())
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
        write_stream(
            files, tokenizer, folder, description, sentences, end_id, workers, shard_tokens,
            progress,
        )  # fmt: skip
        return cls(folder)


class Joined:
    """Arrays one behind the other, read as one by slices and by arrays of places."""

    def __init__(self, arrays):
        self.arrays, self.dtype = arrays, arrays[0].dtype
        self.ends = np.cumsum([len(array) for array in arrays])
        self.shape = (int(self.ends[-1]),)

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, places):
        if isinstance(places, slice):
            places = np.arange(*places.indices(len(self)))
        places = np.asarray(places)
        places = np.where(places < 0, places + len(self), places)
        which = np.searchsorted(self.ends, places, side="right")
        found = np.empty(places.shape, self.dtype)
        for number in np.unique(which):
            array = self.arrays[number]  # one too many where a place lies behind the end
            here = which == number
            found[here] = array[places[here] - (self.ends[number] - len(array))]
        return found

    def __array__(self, dtype=None, copy=None):
        return np.concatenate(self.arrays).astype(dtype or self.dtype, copy=False)


def check_is_stream(stream, *more):
    """Raises a TypeError unless `stream` holds token ids in sentences, and `more`."""
    if not all(hasattr(stream, name) for name in ("tokens", "sentences", *more)):
        raise TypeError(
            "`stream` must be a `TokenStream`: TokenStream.build(files, tokenizer, folder) makes "
            f"one of text files. Received: stream={stream!r:.60} of type {type(stream).__name__}"
        )


def check_stream(stream, tokenizer):
    """Raises unless `stream` is a stream whose ids are this tokenizer's."""
    check_is_stream(stream)
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
        ValueError: If a file is missing, there is no text at all, or the tokenizer has no token for
            the end of a line.
    """
    check_special(tokenizer, ["end_id"], "Lines need a tokenizer with an end token, as `Words`.")
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
