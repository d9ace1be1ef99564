"""The commands that make encoders: `prepare`, `pretrain`, `vectors`; and those that ask about it.

`kills` and `devices` try whether training goes on behind a kill, and whether several devices learn
what one does; `scaling` reckons what many would take.
"""

import os
from pathlib import Path


def add_pretrain(commands):
    from keras_plm.experiments.flags import add_devices, add_flags
    from keras_plm.experiments.pretraining.pretrain import Pretraining

    text = "learn an encoder from raw text"
    parser = commands.add_parser("pretrain", help=text, description=text)
    parser.add_argument("--corpus", nargs="+", default=[], metavar="FILE", help="text files; or:")
    parser.add_argument("--prepared", metavar="DIR", help="a folder that `prepare` made")
    parser.add_argument("--valid", metavar="FILE", help="held-out text, measured at the end")
    parser.add_argument("--out", required=True, metavar="DIR", help="the encoder's folder")
    parser.add_argument("--resume", action="store_true", help="go on where --out stopped")
    parser.add_argument("--init", metavar="DIR", help="go on with this encoder, on other text, say")
    add_devices(parser)
    add_flags(parser, Pretraining)
    parser.set_defaults(run=run_pretrain)


def run_pretrain(flags):
    from keras_plm.experiments.flags import devices, from_flags
    from keras_plm.experiments.pretraining.objectives import about_init
    from keras_plm.experiments.pretraining.pretrain import Pretraining, pretrain
    from keras_plm.experiments.progress import (
        console,
        held_out_line,
        pretraining_line,
        progress_bar,
    )
    from keras_plm.experiments.results import read_json

    settings = from_flags(Pretraining, flags)
    if bool(flags.corpus) == bool(flags.prepared):
        raise ValueError(
            "Text comes from a --corpus or from --prepared. "
            f"Received: {'both' if flags.corpus else 'neither'}"
        )
    if flags.prepared:
        for name in ("vocabulary_size", "lowercase", "sentences"):
            if name in flags:
                raise ValueError(
                    f"Prepared text has its tokens already: leave --{name.replace('_', '-')} out. "
                    f"Received: {getattr(flags, name)!r} beside --prepared {flags.prepared}"
                )
    if flags.init is not None:
        for name in ("size", "vocabulary_size"):
            if name in flags:
                raise ValueError(
                    "An encoder that goes on keeps its size and its vocabulary: leave "
                    f"--{name.replace('_', '-')} out. Received: {getattr(flags, name)!r} beside "
                    f"--init {flags.init}"
                )
        for line in about_init(settings, Path(flags.init)):
            console.print(line)
    with progress_bar("pre-training", settings.steps) as advance:

        def progress(entry):
            advance(pretraining_line(entry, settings.steps), entry["step"])

        pretrain(
            settings, flags.corpus, flags.out, flags.valid, flags.resume, progress,
            init=flags.init, prepared=flags.prepared, devices=devices(flags.devices),
        )  # fmt: skip
    if int(os.environ.get("RANK", 0)):
        return  # the first process speaks
    note = read_json(Path(flags.out) / "pretraining.json")
    for when, key in (("before", "valid_before"), ("after", "valid")):
        if key in note:
            console.print(held_out_line(when, note[key]))
    console.print(f"{flags.out}: {note['steps_done']:,} steps, {note['seconds']:,.0f} seconds")


def add_prepare(commands):
    from keras_plm.experiments.pretraining.prepare import MODELS

    text = "raw text of any size to tokens on disk, for `pretrain --prepared`"
    parser = commands.add_parser("prepare", help=text, description=text)
    parser.add_argument("--corpus", nargs="+", required=True, metavar="FILE", help="text files")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder, or one to go on")
    parser.add_argument("--model", default="bert", choices=MODELS, help="whose text it is to be")
    parser.add_argument(
        "--tokenizer", metavar="PATH", help="a file or folder; by default one is learned"
    )
    parser.add_argument(
        "--vocabulary-size", type=int, default=10_000, metavar="N",
        help="of a tokenizer that is learned (default 10,000)",
    )  # fmt: skip
    parser.add_argument(
        "--lowercase", action="store_true", help="one that is learned forgets the case"
    )
    parser.add_argument(
        "--sentences", default="split", metavar="HOW",
        help="of BERT: split paragraphs (default), or lines, if every line is one",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes that tokenise (default 1)"
    )
    parser.set_defaults(run=run_prepare)


def run_prepare(flags):
    import time

    from keras_plm.experiments.pretraining.prepare import prepare
    from keras_plm.experiments.progress import console

    begun = shown = time.monotonic()

    def progress(tokens):
        nonlocal shown
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            console.print(f"{tokens:,} tokens")

    stream = prepare(
        flags.corpus, flags.out, flags.model, flags.tokenizer, flags.vocabulary_size,
        flags.lowercase, flags.sentences, flags.workers, progress,
    )  # fmt: skip
    about = stream.description
    console.print(
        f"{flags.out}: {about['tokens']:,} tokens, {about['sentences']:,} sentences, "
        f"{about['documents']:,} documents, {time.monotonic() - begun:,.0f} seconds"
    )


def add_vectors(commands):
    from benchmarks.suites.word_vectors import Vectors
    from keras_plm.experiments.flags import add_flags

    text = "learn word vectors from raw text, or read a file of them, as an encoder"
    parser = commands.add_parser("vectors", help=text, description=text)
    parser.add_argument(
        "--corpus",
        nargs="+",
        default=[],
        metavar="FILE",
        help="text; with --file, to keep its words",
    )
    parser.add_argument("--file", metavar="FILE", help="of word2vec, GloVe or fastText")
    parser.add_argument("--keep", type=int, metavar="N", help="only the file's first N rows")
    parser.add_argument("--out", required=True, metavar="DIR", help="the encoder's folder")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of training (default 0)")
    parser.add_argument(
        "--characters", type=int, default=0, metavar="N",
        help="also N filters over a word's characters, which learn with a task",
    )  # fmt: skip
    parser.add_argument("--like", nargs="+", default=[], metavar="WORD", help="show its neighbours")
    add_flags(parser, Vectors)
    parser.set_defaults(run=run_vectors)


def run_vectors(flags):
    import dataclasses

    from benchmarks.suites.word_vectors import Vectors, make
    from keras_plm.experiments.flags import from_flags
    from keras_plm.experiments.progress import console

    given = [field.name for field in dataclasses.fields(Vectors) if field.name in flags]
    if not flags.file and not flags.corpus:
        raise ValueError("Vectors come from a --corpus or a --file. Received: neither")
    if flags.file and given:
        raise ValueError(
            "The vectors of a file are trained already. "
            f"Received: --file {flags.file} --{given[0].replace('_', '-')}"
        )
    if flags.keep is not None and (not flags.file or flags.keep < 1):
        raise ValueError(f"`--keep` is of a --file, 1 or more rows. Received: {flags.keep}")
    if flags.characters < 0:
        raise ValueError(f"`--characters` must be 0 or more. Received: {flags.characters}")
    if Path(flags.out).is_file():
        raise ValueError(f"`--out` is a folder. Received: the file {flags.out}")
    encoder = make(
        from_flags(Vectors, flags),
        flags.corpus,
        flags.out,
        console.print,
        flags.file,
        flags.keep,
        flags.seed,
        flags.characters,
    )
    for word in flags.like:
        try:
            nearest = encoder.most_similar(word, count=8)
        except ValueError as error:  # the folder is whole without it
            console.print(f"{word}: {error}")
            continue
        console.print(f"{word}: " + ", ".join(f"{near} {cosine:.2f}" for near, cosine in nearest))


def add_kills(commands):
    text = "kill small training runs at random steps, and compare what they come to, bit for bit"
    parser = commands.add_parser("kills", help=text, description=text)
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="(default 20)")
    parser.add_argument("--out", required=True, metavar="FILE", help="the result, JSON")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the steps (default 0)")
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="of the backend (default 1)"
    )
    parser.set_defaults(run=run_kills)


def run_kills(flags):
    from benchmarks.checks.resume import check_resume
    from keras_plm.experiments.progress import console

    check_resume(flags.out, flags.runs, flags.seed, flags.threads, console.print)


def add_devices(commands):
    text = "train small BERTs on one device and on several, and compare the losses of every step"
    parser = commands.add_parser("devices", help=text, description=text)
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="(default 50)")
    parser.add_argument("--out", required=True, metavar="FILE", help="the result, JSON")
    parser.set_defaults(run=run_devices)


def run_devices(flags):
    from benchmarks.checks.devices import check_devices
    from keras_plm.experiments.progress import console

    check_devices(flags.out, flags.steps, progress=console.print)


def add_scaling(commands):
    text = "on paper: which share of many GPUs or TPU chips BERT's pre-training would use"
    parser = commands.add_parser("scaling", help=text, description=text)
    parser.add_argument(
        "--results", default=str(Path(__file__).parent / "results"), metavar="DIR",
        help="where speed.json is, and the table's file is put",
    )  # fmt: skip
    parser.set_defaults(run=run_scaling)


def run_scaling(flags):
    from benchmarks.checks.scaling import check_scaling

    check_scaling(flags.results)
