"""Writer of token ids on disk: many processes, little memory, resumable."""

import collections
import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import shutil
import time

import numpy as np

from keras_plm.files.writing import remove_leftovers, write_json
from keras_plm.tokenizers import open_text

BLOCK = 2**21  # characters that are tokenised at a time
SHARD_TOKENS = 2**28  # half a gigabyte of 2-byte ids
STATE = "progress.json"
STATE_SECONDS = 5


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


def blocks(files):
    """Lists of lines, some `BLOCK` characters each; a blank line behind every file."""
    block, size = [], 0
    for path in files:
        with open_text(path) as file:
            for line in file:
                block.append(line)
                size += len(line)
                if size >= BLOCK:
                    yield block
                    block, size = [], 0
        block.append("")
    yield block


class BlockEncoder:
    """Lines to ids, apart from what stands before and behind them."""

    def __init__(self, tokenizer, sentences, end_id):
        self.tokenizer, self.sentences, self.end_id = tokenizer, sentences, end_id
        self.dtype = "uint16" if len(tokenizer) <= 2**16 else "int32"

    def __call__(self, lines):
        """The ids of a block, the tokens of each sentence, and its sentences before each end.

        Ends are those of documents.
        """
        texts, ends = [], []
        for line in lines:
            line = line.strip()
            if not line:
                ends.append(len(texts))
            elif self.sentences == "lines":
                texts.append(line)
            else:
                texts.extend(split_sentences(line))
        if not texts:
            return np.zeros(0, self.dtype), np.zeros(0, np.int64), ends
        rows = self.tokenizer.encode(texts)
        # Without [CLS] and [SEP], which the objective puts where it needs them.
        before, behind = self.tokenizer.framed
        keep = np.ones(len(rows.token_ids), bool)
        keep[rows.starts[before * rows.lengths > 0]] = False
        keep[(rows.starts + rows.lengths - 1)[behind * rows.lengths > 0]] = False
        ids, lengths = rows.token_ids[keep], rows.lengths - before - behind
        if self.end_id is not None:
            ids = np.insert(ids, np.cumsum(lengths), self.end_id)
            lengths = lengths + 1
        return ids.astype(self.dtype), lengths, ends


def write_stream(
    files, tokenizer, folder, description, sentences, end_id, workers, shard_tokens, progress
):
    """Writes the files of a `TokenStream` into `folder`, or resumes a call that stopped."""
    temporary = folder.with_name(folder.name + ".tmp")
    encoder = BlockEncoder(tokenizer, sentences, end_id)
    description = description | {"dtype": encoder.dtype}
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
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(temporary, folder)


class _Writer:
    """Appends to the files of a stream, and notes now and then how far they are whole."""

    def __init__(self, folder, description, shard_tokens):
        self.folder, self.description, self.shard_tokens = folder, description, shard_tokens
        # What is whole: blocks, ids of each shard, numbers in the files of sentences and documents.
        self.done = {"key": description["key"], "blocks": 0, "shards": [0], "bounds": [1, 1]}
        if (folder / STATE).is_file():
            known = json.loads((folder / STATE).read_text())
            if known["key"] == description["key"] and self._all_there(known):
                self.done = known
        if not self.done["blocks"]:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for name in ("sentences.bin", "documents.bin"):
                np.zeros(1, np.int64).tofile(folder / name)
        remove_leftovers(folder, STATE)
        self.tokens = sum(self.done["shards"])

    def _shard(self, number):
        return self.folder / f"tokens.{number:05d}.bin"

    def _sizes(self, done):
        """Path -> bytes of each file."""
        size = np.dtype(self.description["dtype"]).itemsize
        sizes = {self._shard(i): count * size for i, count in enumerate(done["shards"])}
        names = ("sentences.bin", "documents.bin")
        bounds = zip(names, done["bounds"], strict=True)
        return sizes | {self.folder / name: 8 * count for name, count in bounds}

    def _all_there(self, done):
        sizes = self._sizes(done).items()
        return all(path.is_file() and path.stat().st_size >= size for path, size in sizes)

    def __enter__(self):
        """Opens the files, cut to what is known to be whole."""
        self.stack = contextlib.ExitStack()
        *_, self.shard, self.sentence_file, self.document_file = [
            self._open(path, size) for path, size in self._sizes(self.done).items()
        ]
        last = np.memmap(self.folder / "documents.bin", np.int64, mode="r")[-1]
        self.last_end, self.noted = int(last), time.monotonic()
        return self

    def _open(self, path, size):
        file = self.stack.enter_context(open(path, "ab"))
        file.truncate(size)
        return file

    def __exit__(self, *error):
        self.note()
        self.stack.close()

    def add(self, ids, lengths, ends):
        """A block."""
        shards, (sentences, documents) = self.done["shards"], self.done["bounds"]
        if shards[-1] >= self.shard_tokens:
            self.shard.close()
            self.shard = self._open(self._shard(len(shards)), 0)
            shards = [*shards, 0]
        ids.tofile(self.shard)
        (self.tokens + np.cumsum(lengths, dtype=np.int64)).tofile(self.sentence_file)
        ends = np.unique([self.last_end, *(sentences - 1 + end for end in ends)])
        ends[1:].tofile(self.document_file)
        self.last_end = int(ends[-1])
        self.tokens += len(ids)
        self.done = {
            "key": self.description["key"],
            "blocks": self.done["blocks"] + 1,
            "shards": [*shards[:-1], shards[-1] + len(ids)],
            "bounds": [sentences + len(lengths), documents + len(ends) - 1],
        }
        if time.monotonic() - self.noted > STATE_SECONDS:
            self.note()

    def note(self):
        """Everything that is counted is on disk."""
        for file in (self.shard, self.sentence_file, self.document_file):
            file.flush()
        write_json(self.folder / STATE, self.done)
        self.noted = time.monotonic()

    def finish(self):
        sentences, documents = self.done["bounds"]
        description = self.description | {
            "tokens": self.tokens,
            "sentences": sentences - 1,
            "documents": documents - 1,
            "shards": [self._shard(number).name for number in range(len(self.done["shards"]))],
        }
        (self.folder / STATE).unlink()
        write_json(self.folder / "stream.json", description)


_encoder = None  # of a worker


def _set_encoder(encoder):
    global _encoder
    _encoder = encoder


def _encode(lines):
    return _encoder(lines)


def _in_order(encoder, rest, workers):
    """What `encoder` makes of each block, in their order, two for each worker under way."""
    if workers == 1:
        yield from map(encoder, rest)
        return
    # Not forked: a fork of a process whose backend has threads may hang.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, context, _set_encoder, (encoder,)) as pool:
        under_way = collections.deque()
        try:
            for lines in rest:
                under_way.append(pool.submit(_encode, lines))
                if len(under_way) > 2 * workers:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
