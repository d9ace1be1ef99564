"""Our throughput beside the peers', same work, in turns, in one process.

Six kinds of work ask BERT, see `speed_bert`: their peers need torch and transformers. Three ask the
parts of a translator and run on every backend: `attention`, see `speed_attention`, and `decode` and
`translate`, see `speed_translator`. Three ask words, see `speed_words`, beside gensim and NLTK, and
four ask LSTMs and ELMo, see `speed_elmo`, beside torch. Beside transformers three ask GPT, see
`speed_gpt`, one the making of streams, see `speed_prepare`, and two answers from passages, see
`speed_squad`. Three ask what reading features costs, see `speed_transfer`, three pre-training on a
GPU, see `speed_gpu`, and one what saves memory, see `speed_memory`. The clock is in `speed_clock`.
"""

import dataclasses
import hashlib
from pathlib import Path

from benchmarks.speed.clock import matrix_rates, measure
from benchmarks.speed.measurements import (
    attention,
    bert,
    elmo,
    gpt,
    gpu,
    prepare,
    squad,
    transfer,
    translator,
)
from benchmarks.speed.measurements import memory as speed_memory
from benchmarks.speed.measurements import words as speed_words
from keras_plm.experiments.flags import setting
from keras_plm.experiments.results import environment, read_json
from keras_plm.files.writing import write_json
from keras_plm.models import BERT_SIZES
from keras_plm.models.elmo import ELMO_SIZES
from keras_plm.models.transformer import TRANSFORMER_SIZES

WORK = (
    *bert.KINDS,
    "attention",
    *translator.KINDS,
    *speed_words.KINDS,
    *elmo.KINDS,
    *gpt.KINDS,
    *prepare.KINDS,
    *squad.KINDS,
    *transfer.KINDS,
    *gpu.KINDS,
    *speed_memory.KINDS,
)
# Settings that go together, by the name of a `--suite`.
SUITES = {
    "gpu": {"work": ",".join(gpu.KINDS), "sizes": "base", "elmos": "original", "steps": 20},
}


@dataclasses.dataclass(frozen=True)
class Speed:
    """What is timed, and how often."""

    sizes: str = setting("mini,base", "which BERTs and GPTs, parted by commas")
    work: str = setting(",".join(bert.KINDS), f"which kinds of work, of {', '.join(WORK)}")
    turns: int = setting(7, "how often each contestant is timed")
    steps: int = setting(4, "steps per turn at fixed shapes (a quarter for base and larger)")
    sentences: int = setting(
        1024,
        "real sentences, or questions, per turn (for base and larger a sixteenth, to encode a "
        "quarter)",
    )
    length: int = setting(128, "row length at fixed shapes")
    hub: bool = setting(True, "also time KerasHub, which takes long to load")
    half: bool = setting(True, "also time bfloat16, which processors without it take minutes for")
    seed: int = setting(0, "of sentences and ids")
    shapes: str = setting(
        "8x12x512x64,32x8x128x64", "of attention: batch x heads x length x head width"
    )
    translators: str = setting("small,medium", "which Transformers, to decode and translate")
    elmos: str = setting("small,original", "which sizes of ELMo, for lstm and bilm")
    written: int = setting(64, "tokens that decoding writes for each source")
    words: int = setting(
        1_000_000, "of the text that n-grams, word vectors, prepare read in a turn"
    )
    rows: int = setting(50_000, "of the file of vectors that is read")

    def __post_init__(self):
        known = {"sizes": BERT_SIZES, "work": WORK, "translators": TRANSFORMER_SIZES,
                 "elmos": ELMO_SIZES}  # fmt: skip
        for name, names in known.items():
            wrong = [part for part in getattr(self, name).split(",") if part not in names]
            if wrong:
                raise ValueError(
                    f"`{name}` are of {', '.join(names)}, parted by commas. Received: {wrong[0]!r}"
                )
        for name in ("turns", "steps", "sentences", "length", "written", "words", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be 1 or more. Received: {getattr(self, name)}")
        if self.words < 2000:
            raise ValueError(f"`words` must be 2,000 or more. Received: {self.words}")
        if self.length > 512:
            raise ValueError(f"`length` is at most BERT's 512. Received: {self.length}")
        attention.parse_shapes(self.shapes)


def works(settings, sentences, data=None):
    """`{name: function that gives its `Work`}`, in the order in which they are timed."""
    planned = {}
    for kind in settings.work.split(","):
        if kind == "attention":
            planned |= attention.works(settings)
        elif kind in translator.KINDS:
            planned |= translator.works(kind, settings)
        elif kind in speed_words.KINDS:
            planned |= speed_words.works(kind, settings, data)
        elif kind in elmo.KINDS:
            planned |= elmo.works(kind, settings, sentences)
        elif kind in gpt.KINDS:
            planned |= gpt.works(kind, settings)
        elif kind in prepare.KINDS:
            planned |= prepare.works(kind, settings, data)
        elif kind in squad.KINDS:
            planned |= squad.works(kind, settings, data)
        elif kind in transfer.KINDS:
            planned |= transfer.works(kind, settings, sentences)
        elif kind in gpu.KINDS:
            planned |= gpu.works(kind, settings)
        elif kind in speed_memory.KINDS:
            planned |= speed_memory.works(kind, settings)
        else:
            planned |= bert.works(kind, settings, sentences)
    return planned


def speed(settings, sentences=None, out=None, say=print, data=None):
    """Times all work and prints a table after each.

    Args:
        settings: A `Speed`.
        sentences: Real sentences for BERT and ELMo; made-up ones when omitted.
        out: A JSON file, rewritten after each kind of work; what it holds already, timed with the
            same settings and sentences on the same machine and versions, is not timed again.
        say: Prints a line.
        data: The data folder, for the books that `speed_words` reads.

    Returns:
        What the file holds: per work and contestant the median of work per second, the median ratio
        to each peer over the turns, and where they are known the share of the matrix rate and the
        peak memory in megabytes.
    """
    rates, digest = {}, None
    kinds = settings.work.split(",")
    if set(kinds) & set(gpu.KINDS):
        gpu.check()
        rates = gpu.matrix_rates()
    of_bert = [kind for kind in kinds if kind in bert.KINDS]
    if of_bert or {"encode_words", *transfer.KINDS} & set(kinds):
        sentences = sentences or made_up_sentences()
        digest = hashlib.sha256("\n".join(sentences).encode()).hexdigest()[:16]
    if of_bert:
        bert.check_peers(of_bert[0])
        rates = matrix_rates()
    if rates:
        shown = ", ".join(f"{k} {v / 1e9:,.0f} GFLOP/s" for k, v in rates.items())
        say(f"matrix products: {shown}")
    report = {
        "settings": dataclasses.asdict(settings),
        "sentences": digest,
        **environment(),
        "matrix_rates": rates,
        "results": {},
    }
    report["versions"] |= peer_versions()
    report["results"] = _timed_before(report, out)
    peaks = {
        name: speed_words.peak
        for kind in speed_words.KINDS
        for name in speed_words.works(kind, settings)
    }
    peaks |= dict.fromkeys(gpt.works("gpt_loss", settings), gpt.peak)
    peaks |= dict.fromkeys(prepare.works("prepare", settings), prepare.peak)
    peaks |= dict.fromkeys(speed_memory.works("memory", settings), speed_memory.peak)
    for name, make in works(settings, sentences, data).items():
        if name in report["results"]:
            say(f"{name}: in {out} already")
            continue
        work = make()
        if not settings.half:
            makers = {n: maker for n, maker in work.makers.items() if n not in work.half}
            work = dataclasses.replace(work, makers=makers)
        say(f"{name}, in {work.unit} per second")
        rows = measure(work, settings.turns, rates, say)
        if name in peaks:
            for contestant in rows:
                memory = peaks[name](name, contestant, settings, data)
                rows[contestant]["peak_mb"] = memory
                say(f"  {contestant:22} {memory:>10,.0f} MB at the most")
        report["results"][name] = {
            "unit": work.unit,
            "commit": report["commit"],
            "contestants": rows,
        }
        if out is not None:
            write_json(out, report)
    return report


def _timed_before(report, out):
    """The results in a file that an earlier call wrote under the same conditions."""
    if out is None or not Path(out).is_file():
        return {}
    old = read_json(out)

    def conditions(of):
        # A file from before a setting was there was timed with its default.
        settings = dataclasses.asdict(Speed()) | of["settings"]
        # Results with more contestants than are asked for do as well.
        settings["half"] = settings["half"] or not report["settings"]["half"]
        chosen = ("sizes", "work", "shapes", "translators", "elmos")  # part of each result's name
        settings = {k: v for k, v in settings.items() if k not in chosen}
        return settings, of.get("sentences"), of["device"], of["backend"], of["versions"]

    return old["results"] if conditions(old) == conditions(report) else {}


def made_up_sentences(count=8192):
    """Sentences of the microworld, where no real ones are given."""
    from keras_plm.datasets.microworld import World

    return [s for document in World().corpus(count // 5) for s in document][:count]


def peer_versions():
    import importlib.metadata as metadata

    found = {}
    for name in ("transformers", "torch", "keras-hub", "tokenizers", "gensim", "nltk"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
