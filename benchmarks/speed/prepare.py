"""Text to tokens on disk beside `transformers`, and that memory does not grow with the text.

The peer is its fast tokenizer on batches of 1,000 lines, as the scripts of `transformers` map it,
with all ids kept in one list until they are saved.
"""

import dataclasses
import functools
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.speed.clock import Work, alone
from benchmarks.suites.compare_encoders import WEIGHTS
from benchmarks.suites.word_vectors import BOOKS
from keras_plm.data.corpus import TokenStream
from keras_plm.data.task import find_file
from keras_plm.experiments.environment import peak_so_far
from keras_plm.tokenizers import WordPiece, open_text

KINDS = ("prepare",)
TOKENIZER = WEIGHTS / "bert_mini" / "tokenizer.json"
CHARACTERS = 6  # of a word of English and the space behind it
LINES = 1000  # that `datasets` gives at a time
PEER = "transformers tokenizer"


def works(kind, settings, data=None):
    """`{name: function that gives its `Work`}`: some text, and ten times as much."""
    size = settings.words * CHARACTERS / 1e6
    return {
        f"prepare {size:g} MB": functools.partial(preparing, settings, data, 1),
        f"prepare {10 * size:g} MB": functools.partial(preparing, settings, data, 10),
    }


def write_text(path, characters, data):
    """A text of so many characters: the books, over and over; without them made-up sentences."""
    if data is not None:
        files = [find_file(data, name) for name in BOOKS]
    else:
        from keras_plm.datasets.microworld import World

        made = path.with_name("world.txt")
        made.write_text("\n".join(" ".join(d) for d in World().corpus(400)))
        files = [made]
    left = characters
    with open(path, "w", encoding="utf-8") as out:
        while left > 0:
            for name in files:
                with open_text(name) as file:
                    for line in file:
                        if left <= 0:
                            return
                        out.write(line)
                        left -= len(line)


def preparing(settings, data, times):
    """Every line of a text as ids on disk; in megabytes per second."""
    folder = tempfile.TemporaryDirectory()
    root = Path(folder.name)
    path = root / "text.txt"
    write_text(path, times * settings.words * CHARACTERS, data)
    amount = path.stat().st_size / 1e6

    def ours():
        def turn():
            tokenizer = WordPiece.load(TOKENIZER)  # one that knows no word yet
            TokenStream.build(path, tokenizer, root / "stream", "lines")
            shutil.rmtree(root / "stream")

        turn.folder = folder  # which goes with the last turn
        return turn

    def theirs():
        import transformers

        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER))

        def turn():
            ids, batch = [], []

            def flush():
                for row in tokenizer(batch, add_special_tokens=False)["input_ids"]:
                    ids.extend(row)
                batch.clear()

            with open_text(path) as file:
                for line in file:
                    batch.append(line.strip())
                    if len(batch) == LINES:
                        flush()
            flush()
            np.save(root / "ids.npy", np.array(ids, "uint16"))

        turn.folder = folder
        return turn

    return Work({PEER: theirs, "keras_plm": ours}, amount, "MB", {"keras_plm": (PEER,)})


def peak(name, contestant, settings, data=None):
    """Megabytes at the most of a process that does one turn, with what it takes to start."""
    asked = json.dumps(dataclasses.asdict(settings))
    return alone("benchmarks.speed.prepare", name, contestant, asked, data or "")


def main(name, contestant, settings, data):
    from benchmarks.speed.run import Speed

    work = works("prepare", Speed(**json.loads(settings)), data or None)[name]()
    work.makers[contestant]()()
    print(peak_so_far())


if __name__ == "__main__":
    main(*sys.argv[1:])
