"""Writer of token ids to disk, with several processes, bounded memory and resume."""

import collections
import concurrent.futures
import contextlib
import multiprocessing
import os
import re
import shutil
import time
import typing
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_plm.files.json_files import Whole, read_json
from keras_plm.files.manifest import check_files, describe_files
from keras_plm.files.writing import explaining_no_room, write_json
from keras_plm.tokenizers.subwords import SubwordTokenizer
from keras_plm.tokenizers.text import line_parts

BLOCK = 2**21  # characters tokenised at a time
SHARD_TOKENS = 2**28  # half a gigabyte of 2-byte ids
DESCRIPTION = "stream.json"
BOUNDS = ("sentences.bin", "documents.bin")
STATE = "progress.json"
STATE_SECONDS = 5
# Progress of an unfinished stream: number of blocks of `block` characters, ids per shard, and
# entries of the files of sentences and documents.
_STATE_SHAPE = {
    "key": str,
    "block": Whole(1),
    "blocks": Whole(),
    "shards": [Whole()],
    "bounds": [Whole(1)],
}


def shard_name(number):
    return f"tokens.{number:05d}.bin"


def ids_dtype(vocabulary_size):
    """Returns the type that stores the ids of a vocabulary."""
    return "uint16" if vocabulary_size <= 2**16 else "int32"


def split_sentences(paragraph):
    """Splits a paragraph into sentences by the rules of the package `sentencex`.

    Raises:
        ImportError: If the package is missing; the message says how to install it.
    """
    try:
        from sentencex import segment
    except ImportError as error:
        raise ImportError(
            "Splitting raw text into sentences needs the package sentencex: "
            "pip install sentencex. Text with one sentence per line needs no splitting: "
            "pass sentences='lines'."
        ) from error
    return [sentence for part in segment("en", paragraph) if (sentence := part.strip())]


class Block(typing.NamedTuple):
    """Lines that are tokenised together.

    Attributes:
        lines: The lines. A long line is split over several blocks.
        continued: Whether the first line began in an earlier block.
        unfinished: Whether the last line continues in the next block.
    """

    lines: list
    continued: bool = False
    unfinished: bool = False


def blocks(files):
    """Yields the lines of files as `Block`s of about `BLOCK` characters.

    A blank line follows each file. Every part of a line except the last contains a word.
    """
    lines, size, continued = [], 0, False
    for path in files:
        for part, ends in line_parts(path, BLOCK):
            lines.append(part)
            size += len(part)
            if size >= BLOCK or not ends:
                yield Block(lines, continued, not ends)
                lines, size, continued = [], 0, not ends
        lines.append("")
    yield Block(lines, continued)


class BlockEncoder:
    """Converts lines to ids, independently of the lines around them."""

    def __init__(self, tokenizer, sentences, end_id):
        self.tokenizer, self.sentences, self.end_id = tokenizer, sentences, end_id
        self.dtype = ids_dtype(len(tokenizer))

    def __call__(self, block):
        """Converts a block.

        Returns:
            The ids, the end of each sentence in them, and the number of sentences before each end
            of a document.
        """
        texts, whole, ends = self._texts(block)
        if not texts:
            return np.zeros(0, self.dtype), np.zeros(0, np.int64), ends
        rows = self.tokenizer.encode(texts)
        # Remove [CLS] and [SEP]; the objective adds its own.
        prefix, suffix = self.tokenizer.framed
        keep = np.ones(len(rows.token_ids), bool)
        keep[rows.starts[prefix * rows.lengths > 0]] = False
        keep[(rows.starts + rows.lengths - 1)[suffix * rows.lengths > 0]] = False
        ids, lengths = rows.token_ids[keep], rows.lengths - prefix - suffix
        whole = np.array(whole)
        if self.end_id is not None:
            ids = np.insert(ids, np.cumsum(lengths)[whole], self.end_id)
            lengths = lengths + whole
        if len(ids) and not 0 <= ids.min() <= ids.max() < len(self.tokenizer):
            raise ValueError(
                f"A tokenizer's ids must be below its length, {len(self.tokenizer)}. "
                f"Received: {ids.min()} to {ids.max()} of {type(self.tokenizer).__name__}"
            )
        return ids.astype(self.dtype), np.cumsum(lengths)[whole], ends

    def _texts(self, block):
        """Returns the texts of a block, whether each ends its sentence, and the document ends."""
        texts, whole, ends, count = [], [], [], 0
        for number, line in enumerate(block.lines):
            continues = block.continued and number == 0
            ended = not block.unfinished or number < len(block.lines) - 1
            # Within a line, a space may be part of the next token.
            line = line if continues else line.lstrip()
            line = line.rstrip() if ended else line
            if not line and not continues:
                ends.append(count)
            elif self.sentences == "lines":
                texts.append(line)
                whole.append(ended)
                count += ended
            else:  # a cut in a line ends a sentence
                found = split_sentences(line)
                texts.extend(found)
                whole.extend([True] * len(found))
                count += len(found)
        return texts, whole, ends


def write_stream(
    files: str | os.PathLike | Sequence[str | os.PathLike],
    tokenizer: SubwordTokenizer,
    folder: str | os.PathLike,
    description: dict[str, Any],
    sentences: str,
    end_id: int | None,
    workers: int,
    shard_tokens: int,
    progress: Callable[[int], Any] | None,
) -> None:
    """Writes the files of a `TokenStream` into a folder, or resumes a stopped call.

    The name of the temporary folder holds a key of the content. A second call finds finished parts
    by it, and removes others. Call `TokenStream.build` instead: it adds the lock and description.

    Args:
        files: A list of paths, plain or `.gz`.
        tokenizer: The tokenizer of the ids.
        folder: An empty folder, or one with an older stream; it may have one writer at a time.
        description: Content of `stream.json` so far, a dict with the `key` of the content.
        sentences: `"split"` to split paragraphs into sentences, `"lines"` for one per line.
        end_id: Id after each sentence, or `None`.
        workers: Number of processes.
        shard_tokens: Largest number of tokens per file.
        progress: Function to call with the number of tokens written so far, or `None`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from keras_plm.tokenizers import Words
    >>> tokenizer = Words(["[PAD]", "[UNK]", "[EOS]", "a", "b"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file, stream = Path(folder, "text.txt"), Path(folder, "stream")
    ...     size = file.write_text("a b a")
    ...     stream.mkdir()
    ...     about = {"key": "0" * 64}
    ...     write_stream([file], tokenizer, stream, about, "lines", None, 1, 9, None)
    ...     "stream.json" in {path.name for path in stream.iterdir()}
    True
    """
    mark = description["key"][:16]
    temporary = _temporary(folder, mark)
    for path in unfinished(folder):
        if path != temporary:
            shutil.rmtree(path, ignore_errors=True)
    if temporary.is_symlink():
        temporary.unlink()
    encoder = BlockEncoder(tokenizer, sentences, end_id)
    description |= {"vocabulary_size": len(tokenizer), "dtype": encoder.dtype}
    if not _is_complete(temporary):
        kept = "The finished part is kept: repeat the call to resume."
        with explaining_no_room(temporary, kept=kept):
            _write(files, temporary, encoder, description, workers, shard_tokens, progress)
    (temporary / STATE).unlink(missing_ok=True)
    old = _temporary(folder, uuid.uuid4().hex[:16])
    if folder.exists():
        os.replace(folder, old)
    try:
        os.replace(temporary, folder)
    except OSError:
        if old.exists():
            os.replace(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _write(files, temporary, encoder, description, workers, shard_tokens, progress):
    with _Writer(temporary, description, shard_tokens) as writer:
        rest = blocks(files)
        for _ in range(writer.done["blocks"]):
            next(rest)
        for result in _in_order(encoder, rest, workers):
            writer.add(*result)
            if progress is not None:
                progress(writer.tokens)
    if not writer.tokens:
        shutil.rmtree(temporary)
        raise ValueError(f"There is no text in these files. Received: {files}")
    writer.finish()


def _temporary(folder, mark):
    return folder.with_name(f".{folder.name}.{mark}.tmp")


def unfinished(folder):
    """Returns the temporary folders that stopped calls left next to `folder`, without links."""
    name = re.compile(rf"\.{re.escape(folder.name)}\.[0-9a-f]{{16}}\.tmp")
    found = [path for path in folder.parent.glob(".*.tmp") if name.fullmatch(path.name)]
    return [path for path in found if path.is_dir() and not path.is_symlink()]


def _is_complete(temporary):
    """Whether a temporary folder holds a complete stream that was never renamed."""
    if not (temporary / DESCRIPTION).is_file():
        return False
    try:
        check_files(temporary, read_json(temporary / DESCRIPTION, dict)["manifest"])
    except ValueError:
        return False
    return True


class _Writer:
    """Appends to the files of a stream, and saves its progress every few seconds."""

    def __init__(self, folder, description, shard_tokens):
        self.folder, self.description, self.shard_tokens = folder, description, shard_tokens
        self.done = {
            "key": description["key"], "block": BLOCK, "blocks": 0, "shards": [0], "bounds": [1, 1]
        }  # fmt: skip
        known = self._known()
        if known is not None:
            self.done = known
        if not self.done["blocks"]:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for name in BOUNDS:
                (folder / name).write_bytes(bytes(8))
        for path in folder.glob("*.tmp"):  # left by a killed process
            path.unlink()
        self.tokens = sum(self.done["shards"])

    def _known(self):
        """Returns the saved progress if the files have at least its sizes, otherwise `None`."""
        try:
            known = read_json(self.folder / STATE, _STATE_SHAPE)
        except ValueError:  # missing or damaged
            return None
        same = all(known[name] == self.done[name] for name in ("key", "block"))
        whole = same and known["shards"] and len(known["bounds"]) == 2
        return known if whole and self._all_there(known) else None

    def _sizes(self, done):
        """Returns a dict from the path of each file to its size in bytes."""
        size = np.dtype(self.description["dtype"]).itemsize
        sizes = {
            self.folder / shard_name(i): count * size for i, count in enumerate(done["shards"])
        }
        bounds = zip(BOUNDS, done["bounds"], strict=True)
        return sizes | {self.folder / name: 8 * count for name, count in bounds}

    def _all_there(self, done):
        return all(
            path.is_file() and not path.is_symlink() and path.stat().st_size >= size
            for path, size in self._sizes(done).items()
        )

    def __enter__(self):
        """Opens the files, truncated to the saved progress."""
        self.stack = contextlib.ExitStack()
        *_, self.shard, self.sentence_file, self.document_file = [
            self._open(path, size) for path, size in self._sizes(self.done).items()
        ]
        before = 8 * (self.done["bounds"][1] - 1)
        (self.last_end,) = np.fromfile(self.folder / BOUNDS[1], np.int64, offset=before).tolist()
        self.noted = time.monotonic()
        return self

    def _open(self, path, size):
        # Unbuffered: a full disk raises at once.
        file = self.stack.enter_context(open(path, "ab", buffering=0))
        file.truncate(size)
        return file

    def __exit__(self, kind, error, _):
        self.stack.close()
        # A full disk may have no room for it; the progress saved before then stays valid.
        with contextlib.suppress(OSError) if error is not None else contextlib.nullcontext():
            self.note()

    def add(self, ids, sentence_ends, ends):
        """Appends the arrays of a block."""
        shards, (sentences, documents) = self.done["shards"], self.done["bounds"]
        if len(ids) and shards[-1] >= self.shard_tokens:  # no empty shard
            self.shard.close()
            self.shard = self._open(self.folder / shard_name(len(shards)), 0)
            shards = [*shards, 0]
        _append(self.shard, ids)
        _append(self.sentence_file, self.tokens + sentence_ends.astype(np.int64))
        ends = np.unique([self.last_end, *(sentences - 1 + end for end in ends)])
        _append(self.document_file, ends[1:].astype(np.int64))
        self.last_end = int(ends[-1])
        self.tokens += len(ids)
        self.done = self.done | {
            "blocks": self.done["blocks"] + 1,
            "shards": [*shards[:-1], shards[-1] + len(ids)],
            "bounds": [sentences + len(sentence_ends), documents + len(ends) - 1],
        }
        if time.monotonic() - self.noted > STATE_SECONDS:
            self.note()

    def note(self):
        """Saves the progress."""
        write_json(self.folder / STATE, self.done)
        self.noted = time.monotonic()

    def finish(self):
        sentences, documents = self.done["bounds"]
        shards = [shard_name(number) for number in range(len(self.done["shards"]))]
        description = self.description | {
            "tokens": self.tokens,
            "sentences": sentences - 1,
            "documents": documents - 1,
            "shards": shards,
            "manifest": describe_files(self.folder, [*shards, *BOUNDS]),
        }
        write_json(self.folder / DESCRIPTION, description)


def _append(file, array):
    """Appends an array to a file."""
    rest = memoryview(array.tobytes())
    with explaining_no_room(file.name, len(rest), "Repeat the call to resume."):
        while rest:
            rest = rest[file.write(rest) :]


_encoder = None  # of a worker process


def _set_encoder(encoder):
    global _encoder
    _encoder = encoder


def _encode(block):
    return _encoder(block)


def _in_order(encoder, rest, workers):
    """Yields the results of `encoder` in the order of blocks; queues two blocks per worker."""
    if workers == 1:
        yield from map(encoder, rest)
        return
    # Spawn: a fork of a process whose backend has threads may hang.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, context, _set_encoder, (encoder,)) as pool:
        under_way = collections.deque()
        try:
            for block in rest:
                under_way.append(pool.submit(_encode, block))
                if len(under_way) > 2 * workers:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
