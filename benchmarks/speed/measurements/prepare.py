"""Time and memory to write text as tokens to disk, next to `transformers`, for two sizes of text.

The peer is the fast tokenizer of `transformers` on batches of 1,000 lines, as in its scripts. It
keeps all ids in one list until they are saved.
"""

import shutil

import numpy as np

from benchmarks.speed.clock import Comparison
from benchmarks.speed.registry import Suite, measurement
from benchmarks.suites.compare_encoders import WEIGHTS
from keras_plm.data.corpus import TokenStream
from keras_plm.data.task import find_file
from keras_plm.datasets.corpora import BOOKS
from keras_plm.datasets.microworld import World
from keras_plm.tokenizers import WordPiece, open_text

TOKENIZER = WEIGHTS / "bert_mini" / "tokenizer.json"
CHARACTERS = 6  # mean length of an English word and the space after it
LINES = 1000  # per batch, as in `datasets`
PEER = "transformers tokenizer"


def write_text(path, characters, data):
    """Writes text of this length: the repeated books or, without data, generated sentences."""
    if data is not None:
        files = [find_file(data, name) for name in BOOKS.files.values()]
    else:
        generated = path.with_name("world.txt")
        generated.write_text("\n".join(" ".join(d) for d in World().corpus(400)))
        files = [generated]
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


def prepare_cases(settings):
    """Returns two cases: a text, and one ten times as long."""
    size = settings.words * CHARACTERS / 1e6
    return {f"prepare {n * size:g} MB": {"times": n} for n in (1, 10)}


@measurement(
    suite=Suite("prepare", "Speed: Preparing text"),
    unit="MB",
    cases=prepare_cases,
    peak_memory=True,
)
def prepare(settings, inputs, times):
    """Writing every line of a text to disk as ids."""
    folder = inputs.folder / f"prepare_{times}"
    path = folder / "text.txt"
    if not path.is_file():
        folder.mkdir()
        write_text(path, times * settings.words * CHARACTERS, inputs.data)

    def ours():
        def run():
            tokenizer = WordPiece.load(TOKENIZER)  # its cache of words is empty
            TokenStream.build(path, tokenizer, folder / "stream", "lines")
            shutil.rmtree(folder / "stream")

        return run

    def theirs():
        import transformers

        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER))

        def run():
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
            np.save(folder / "ids.npy", np.array(ids, "uint16"))

        return run

    amount = path.stat().st_size / 1e6
    return Comparison({PEER: theirs, "keras_plm": ours}, amount, {"keras_plm": (PEER,)})
