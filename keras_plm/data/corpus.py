"""Token ids of raw text on disk, for pre-training."""

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from keras_plm.data.corpus_writer import (
    BOUNDS,
    DESCRIPTION,
    SHARD_TOKENS,
    ids_dtype,
    shard_name,
    split_sentences,
    unfinished,
    write_stream,
)
from keras_plm.files import manifest
from keras_plm.files.arguments import check_one_of, check_whole
from keras_plm.files.fingerprint import fingerprint
from keras_plm.files.json_files import OneOf, Whole, read_json
from keras_plm.files.locks import one_writer
from keras_plm.tokenizers import open_text
from keras_plm.tokenizers.subwords import SubwordTokenizer, check_special
from keras_plm.tokenizers.text import batches_of, line_parts, paths

__all__ = ["TokenStream", "check_stream", "read_ids", "split_sentences"]


LAYOUT = 3  # version of the folder's layout
REPAIR = "Copy the folder again, or remove it to build it again."


class TokenStream:
    """Raw text as token ids on disk: sentences in order, grouped in documents.

    `build` writes it from text files of any size. The files are memory-mapped: memory does not
    grow with the text. A document ends at a blank line and at the end of a file.

    `stream.json` holds the size and the SHA-256 of every other file. Opening checks the sizes and
    reads the bounds of sentences, 8 bytes each. Reading checks ids against the vocabulary. `build`
    also verifies the checksums.

    Args:
        folder: A folder that `build` wrote.
        verify: If True, read every byte to check the checksums and all ids.

    Attributes:
        tokens: (number of tokens,) ids; index it by a slice or an array of positions.
        sentences: (number of sentences + 1,) start of each sentence in `tokens`.
        documents: (number of documents + 1,) start of each document in `sentences`.
        description: Content of `stream.json`.

    Raises:
        ValueError: If a file is missing or changed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from keras_plm.tokenizers import Words
    >>> tokenizer = Words(["[PAD]", "[UNK]", "[EOS]", "a", "b"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "text.txt")
    ...     size = file.write_text("a b\\na a b\\n\\nb\\n")
    ...     stream = TokenStream.build(file, tokenizer, f"{folder}/stream", sentences="lines")
    ...     stream.sentences.tolist(), stream.documents.tolist(), stream.tokens[:5].tolist()
    ([0, 2, 5, 6], [0, 2, 3], [3, 4, 3, 3, 4])
    """

    shape = {
        "layout": OneOf((LAYOUT,)),
        "key": str,
        "tokenizer": str,
        "vocabulary_size": Whole(1, 2**31 - 1),
        "dtype": OneOf(("uint16", "int32")),
        "files": [str],
        "tokens": Whole(1),
        "sentences": Whole(1),
        "documents": Whole(1),
        "shards": [str],
        "manifest": manifest.SHAPE,
    }

    def __init__(self, folder: str | os.PathLike, verify: bool = False):
        self.folder = folder = Path(folder)
        about = read_json(folder / DESCRIPTION, self.shape, description="of a TokenStream")
        self.description = about
        self._check_description()
        manifest.check_files(folder, about["manifest"], verify, REPAIR)
        shards = [np.memmap(folder / name, about["dtype"], mode="r") for name in about["shards"]]
        self.tokens = Tokens(shards, about["vocabulary_size"], folder)
        self.sentences, self.documents = (
            np.memmap(folder / name, np.int64, mode="r") for name in BOUNDS
        )
        _check_bounds(folder / BOUNDS[0], self.sentences, about["tokens"])
        _check_bounds(folder / BOUNDS[1], self.documents, about["sentences"])
        if verify:
            self.tokens.check()

    def _check_description(self):
        """Raises unless the entries of `stream.json` agree with each other."""
        about, shards = self.description, self.description["shards"]
        size = np.dtype(about["dtype"]).itemsize
        files = {name: entry["bytes"] for name, entry in about["manifest"].items()}
        wanted = {
            "shards": ([*map(shard_name, range(len(shards)))], shards),
            "files": (sorted({*shards, *BOUNDS}), sorted(files)),
            "dtype": (ids_dtype(about["vocabulary_size"]), about["dtype"]),
        }
        if wanted["files"][0] == wanted["files"][1]:
            whole = sum(files[name] for name in shards if files[name] and not files[name] % size)
            wanted |= {
                "bytes of tokens": (size * about["tokens"], whole),
                "bytes of sentences": (8 * (about["sentences"] + 1), files[BOUNDS[0]]),
                "bytes of documents": (8 * (about["documents"] + 1), files[BOUNDS[1]]),
            }
        for name, (right, found) in wanted.items():
            if found != right:
                raise ValueError(
                    f"{self.folder / DESCRIPTION}: the entries must agree with each other. "
                    f"{REPAIR} Received: {name} {found!r:.80} instead of {right!r:.80}"
                )

    @classmethod
    def build(
        cls,
        files: str | os.PathLike | Sequence[str | os.PathLike],
        tokenizer: SubwordTokenizer,
        folder: str | os.PathLike,
        sentences: str = "split",
        progress: Callable[[int], Any] | None = None,
        end_id: int | None = None,
        workers: int = 1,
        shard_tokens: int = SHARD_TOKENS,
    ) -> Self:
        """Tokenises files, unless `folder` already holds their stream.

        The stream does not depend on the number of workers. A second call with the same arguments
        resumes a stopped one.

        Args:
            files: One path or a list of paths, plain or .gz, with one paragraph per line.
            tokenizer: Tokenizer of the text.
            folder: Folder of the stream; written as `.NAME.KEY.tmp` next to it, then renamed.
            sentences: `"split"` to split paragraphs into sentences, `"lines"` if every line
                is a sentence.
            progress: Function to call with the number of tokens written so far, or `None`.
            end_id: Token id to add after each sentence (with `"lines"`, each line), or `None`.
            workers: Number of processes that tokenise; each takes some seconds to import.
            shard_tokens: Approximate number of tokens in a file of ids.

        Raises:
            ValueError: If a file is missing, or there is no text. If the folder holds something
                else or a damaged stream, or has another writer.
            OSError: If the disk is full; the next call resumes.
        """
        check_one_of(sentences, "sentences", ("split", "lines"))
        check_whole(workers, "workers", least=1)
        check_whole(shard_tokens, "shard_tokens", least=1)
        folder = Path(os.path.realpath(folder))
        files = [Path(path) for path in paths(files)]
        key = hashlib.sha256(str(LAYOUT).encode())
        for path in files:
            open_text(path).close()  # raises if it is missing
            key.update(bytes.fromhex(manifest.file_sha256(path)))
        made_with = _text_fingerprint(tokenizer)
        key.update(f"{sentences} {made_with} {shard_tokens}".encode())
        if end_id is not None:
            key.update(f" {end_id}".encode())
        description = {"layout": LAYOUT, "key": key.hexdigest(), "tokenizer": made_with}
        description["files"] = [path.name for path in files]
        if _key_of(folder) == description["key"]:
            if unfinished(folder):  # left by a killed call, or by one for other text
                with contextlib.suppress(ValueError, OSError), one_writer(folder):
                    for path in unfinished(folder):
                        shutil.rmtree(path)
            return cls(folder, verify=True)
        with one_writer(folder):
            if _key_of(folder) != description["key"]:  # another call may have finished it
                write_stream(
                    files, tokenizer, folder, description, sentences, end_id, workers,
                    shard_tokens, progress,
                )  # fmt: skip
            return cls(folder)


def _key_of(folder):
    """Returns the key of the stream in a folder, or `None` if the folder is new or empty.

    Raises:
        ValueError: If the folder holds anything else: it must not be replaced.
    """
    if not os.path.lexists(folder):
        return None
    names = sorted(os.listdir(folder)) if folder.is_dir() else [folder.name]
    known = re.compile("|".join(map(re.escape, (DESCRIPTION, *BOUNDS))) + r"|tokens\.\d{5}\.bin")
    foreign = [name for name in names if not known.fullmatch(name)]
    if foreign or (names and DESCRIPTION not in names):
        raise ValueError(
            "A stream needs its own folder, a new one or that of an older stream. "
            f"Received: {str(folder)!r} with {(foreign or names)[0]!r:.60}"
        )
    if not names:
        return None
    return read_json(folder / DESCRIPTION, {"key": str}, description="of a TokenStream")["key"]


def _check_bounds(path, bounds, last, size=1 << 20):
    """Raises unless bounds ascend from 0 to `last`."""
    right = bounds[0] == 0 and bounds[-1] == last
    for begin in range(0, len(bounds), size) if right else ():
        part = bounds[begin : begin + size + 1]
        right = right and bool((part[1:] >= part[:-1]).all())
    if not right:
        raise ValueError(
            f"{path} is not the file that was written. {REPAIR} "
            f"Received: bounds that do not ascend from 0 to {last:,}"
        )


class Tokens:
    """Token ids in consecutive files, indexed by slices and arrays of positions.

    Args:
        arrays: One array per file.
        vocabulary_size: Ids must be below it.
        folder: Folder of the files, for errors.

    Raises:
        ValueError: If an id read is not in the vocabulary.
    """

    def __init__(self, arrays, vocabulary_size, folder):
        self.arrays, self.dtype = arrays, arrays[0].dtype
        self.vocabulary_size, self.folder = vocabulary_size, folder
        self.ends = np.cumsum([len(array) for array in arrays])
        self.shape = (int(self.ends[-1]),)

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, places):
        if len(self.arrays) == 1:
            return self._known(np.asarray(self.arrays[0][places]))
        if isinstance(places, slice):
            places = np.arange(*places.indices(len(self)))
        places = np.asarray(places)
        places = np.where(places < 0, places + len(self), places)
        which = np.searchsorted(self.ends, places, side="right")
        found = np.empty(places.shape, self.dtype)
        for number in np.unique(which):
            array = self.arrays[number]  # raises IndexError after the end
            here = which == number
            found[here] = array[places[here] - (self.ends[number] - len(array))]
        return self._known(found)

    def __array__(self, dtype=None, copy=None):
        found = self._known(np.concatenate(self.arrays))
        return found.astype(dtype or self.dtype, copy=False)

    def check(self, size=1 << 24):
        """Raises unless all ids are in the vocabulary."""
        for array in self.arrays:
            for begin in range(0, len(array), size):
                self._known(array[begin : begin + size])

    def _known(self, ids):
        # As unsigned numbers, negative ids are large.
        largest = int(ids.view(f"u{ids.itemsize}").max(initial=0))
        if largest >= self.vocabulary_size:
            raise ValueError(
                f"{self.folder}: ids of tokens must be 0 or more, and below "
                f"{self.vocabulary_size}, the size of the vocabulary. {REPAIR} Received: "
                f"{int(ids.max())} as the largest, and {int(ids.min())} as the smallest"
            )
        return ids if ids.ndim else ids[()]


def check_is_stream(stream, *more):
    """Raises a TypeError unless `stream` has `tokens`, `sentences` and the attributes `more`."""
    if not all(hasattr(stream, name) for name in ("tokens", "sentences", *more)):
        raise TypeError(
            "`stream` must be a `TokenStream`: TokenStream.build(files, tokenizer, folder) builds "
            f"one from text files. Received: stream={stream!r:.60} of type {type(stream).__name__}"
        )


def check_stream(stream, tokenizer):
    """Raises unless `stream` holds ids of this tokenizer."""
    check_is_stream(stream)
    made_with = getattr(stream, "description", {}).get("tokenizer")
    if made_with is not None and made_with != _text_fingerprint(tokenizer):
        raise ValueError(
            "A stream needs the tokenizer that built it: use that one, or build another stream "
            "with `TokenStream.build(files, tokenizer, folder)`. "
            f"Received: another tokenizer, of {len(tokenizer)} tokens"
        )


def _text_fingerprint(tokenizer):
    """Returns a tokenizer's fingerprint, without the special tokens around a text."""
    return fingerprint(tokenizer.unframed() if hasattr(tokenizer, "unframed") else tokenizer)


def read_ids(
    files: str | os.PathLike | Sequence[str | os.PathLike],
    tokenizer: SubwordTokenizer,
    blank_lines: bool = False,
) -> np.ndarray:
    """Reads text files as one array of token ids, with `tokenizer.end_id` after each line.

    N-gram models, `NNLM` and word vectors train on it. It takes 4 bytes of memory per token.

    Args:
        files: One path or a list of paths, plain or `.gz`.
        tokenizer: A tokenizer without special tokens around a text, such as `Words`.
        blank_lines: If True, a blank line also gives an `end_id`.

    Returns:
        (number of tokens,) int32.

    Raises:
        ValueError: If a file is missing, there is no text, or the tokenizer has no `end_id`.

    >>> import tempfile
    >>> from keras_plm.tokenizers import Words
    >>> tokenizer = Words(["[PAD]", "[UNK]", "[EOS]", "a", "b"])
    >>> with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
    ...     print("a b", "b c", sep="\\n", file=file, flush=True)
    ...     read_ids(file.name, tokenizer).tolist()
    [3, 4, 2, 4, 1, 2]
    """
    check_special(tokenizer, ["end_id"], "Lines need a tokenizer with an end token: use `Words`.")
    parts = []
    found = (part for path in paths(files) for part in line_parts(path))
    for batch in batches_of(found, length=lambda part: len(part[0])):
        # A part that does not end its line has a word.
        kept = [(part, ends) for part, ends in batch if blank_lines or not ends or part.strip()]
        rows = tokenizer.encode([part for part, _ in kept])
        ended = np.array([ends for _, ends in kept], bool)
        line_ends = np.cumsum(rows.lengths + ended)
        ids = np.full(int(rows.lengths.sum()) + int(ended.sum()), tokenizer.end_id, np.int32)
        inside = np.ones(len(ids), bool)
        inside[line_ends[ended] - 1] = False
        ids[inside] = rows.token_ids
        parts.append(ids)
    ids = np.concatenate(parts) if parts else np.zeros(0, np.int32)
    if not (ids != tokenizer.end_id).any():
        raise ValueError(f"There is no text in these files. Received: {files}")
    return ids
