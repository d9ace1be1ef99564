"""Commands that train encoders from raw text: `prepare`, `pretrain` and `word-vectors`."""

import argparse
import os
from pathlib import Path


def add_pretrain(commands):
    from keras_plm.experiments.flags import add_devices, add_flags
    from keras_plm.experiments.pretraining.settings import Pretraining

    text = "pre-train an encoder on raw text"
    parser = commands.add_parser("pretrain", help=text, description=text)
    parser.add_argument(
        "--corpus", nargs="+", default=[], metavar="FILE", help="text files to train on"
    )
    parser.add_argument("--prepared", metavar="DIR", help="train on a folder of `prepare` instead")
    parser.add_argument(
        "--valid", metavar="FILE", help="compute the loss of this held-out text at the end"
    )
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="write the encoder to this folder"
    )
    parser.add_argument(
        "--resume", action="store_true", help="resume the stopped training of --out"
    )
    parser.add_argument("--init", metavar="DIR", help="start from the weights of this encoder")
    add_devices(parser)
    add_flags(parser, Pretraining)
    parser.set_defaults(run=run_pretrain)


def run_pretrain(flags):
    from keras_plm.experiments.flags import devices, from_flags
    from keras_plm.experiments.pretraining.objectives import about_init
    from keras_plm.experiments.pretraining.pretrain import pretrain
    from keras_plm.experiments.pretraining.run_folder import read_note
    from keras_plm.experiments.pretraining.settings import Pretraining
    from keras_plm.experiments.progress import (
        console,
        held_out_line,
        pretraining_line,
        progress_bar,
    )
    from keras_plm.training.half_precision import advice
    from keras_plm.training.stopping import handling_signals, raise_stopped

    settings = from_flags(Pretraining, flags)
    if bool(flags.corpus) == bool(flags.prepared):
        raise ValueError(
            "`pretrain` takes either --corpus or --prepared. "
            f"Received: {'both' if flags.corpus else 'neither'}"
        )
    if flags.prepared:
        for name in ("vocabulary_size", "lowercase", "sentences"):
            if name in flags:
                raise ValueError(
                    f"Prepared text is tokenised already: omit --{name.replace('_', '-')}. "
                    f"Received: {getattr(flags, name)!r} with --prepared {flags.prepared}"
                )
    if flags.init is not None:
        for name in ("size", "vocabulary_size"):
            if name in flags:
                raise ValueError(
                    "`--init` keeps the size and the vocabulary of its encoder: omit "
                    f"--{name.replace('_', '-')}. Received: {getattr(flags, name)!r} with "
                    f"--init {flags.init}"
                )
        for line in about_init(settings, Path(flags.init)):
            console.print(line)
    first = not int(os.environ.get("RANK", 0))  # asking would occupy the first GPU
    if first and (line := advice(settings.precision)):
        console.print(line)
    bar = progress_bar("pre-training", settings.steps)
    with handling_signals(raise_stopped), bar as advance:

        def progress(entry):
            advance(pretraining_line(entry, settings.steps), entry["step"])

        pretrain(
            settings, flags.corpus, flags.out, flags.valid, flags.resume, progress,
            init=flags.init, prepared=flags.prepared, devices=devices(flags.devices),
        )  # fmt: skip
    if not first:
        return  # only the first process prints
    note = read_note(flags.out)
    for when, key in (("before", "valid_before"), ("after", "valid")):
        if key in note:
            console.print(held_out_line(when, note[key]))
    console.print(f"{flags.out}: {note['steps_done']:,} steps, {note['seconds']:,.0f} seconds")


def add_prepare(commands):
    from keras_plm.experiments.pretraining.prepare import MODELS

    text = "tokenise raw text of any size to disk, for `pretrain --prepared`"
    parser = commands.add_parser("prepare", help=text, description=text)
    parser.add_argument("--corpus", nargs="+", default=[], metavar="FILE", help="text files")
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="write to this folder, or resume a call there"
    )
    parser.add_argument(
        "--model", default="bert", choices=MODELS, help="model to pre-train (default bert)"
    )
    parser.add_argument(
        "--tokenizer", metavar="PATH", help="use the tokenizer of this path (default: train one)"
    )
    parser.add_argument(
        "--vocabulary-size", type=int, default=argparse.SUPPRESS, metavar="N",
        help="size of the vocabulary to train (default 10,000)",
    )  # fmt: skip
    parser.add_argument(
        "--lowercase",
        action="store_true",
        default=argparse.SUPPRESS,
        help="train a lower-casing tokenizer",
    )
    parser.add_argument(
        "--sentences", default="split", metavar="HOW",
        help="for BERT: 'split' paragraphs into sentences (default), or one per line: 'lines'",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="number of processes (default 1)"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="only compare the files of a finished --out with their checksums",
    )
    parser.set_defaults(run=run_prepare)


def run_prepare(flags):
    import time

    from keras_plm.experiments.pretraining.prepare import prepare, read_prepared
    from keras_plm.experiments.progress import console
    from keras_plm.training.stopping import handling_signals, raise_stopped

    if bool(flags.corpus) == flags.verify:
        raise ValueError(
            "`prepare` takes either --corpus or --verify. "
            f"Received: {'both' if flags.corpus else 'neither'}"
        )
    trained = [name for name in ("vocabulary_size", "lowercase") if name in flags]
    if trained and (flags.tokenizer or flags.verify):
        raise ValueError(
            f"Only a tokenizer that `prepare` trains has `--{trained[0].replace('_', '-')}`: omit "
            f"it. Received: it with --{'verify' if flags.verify else 'tokenizer'}"
        )
    begun = shown = time.monotonic()

    def progress(tokens):
        nonlocal shown
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            console.print(f"{tokens:,} tokens")

    if flags.verify:
        _, _, stream = read_prepared(flags.out, verify=True)
    else:
        with handling_signals(raise_stopped):
            stream = prepare(
                flags.corpus, flags.out, flags.model, flags.tokenizer, sentences=flags.sentences,
                workers=flags.workers, progress=progress,
                **{name: getattr(flags, name) for name in trained},
            )  # fmt: skip
    about = stream.description
    console.print(
        f"{flags.out}: {about['tokens']:,} tokens, {about['sentences']:,} sentences, "
        f"{about['documents']:,} documents, {time.monotonic() - begun:,.0f} seconds"
    )


def add_word_vectors(commands):
    from keras_plm.experiments.flags import add_flags
    from keras_plm.experiments.pretraining.word_vectors import Vectors

    text = "train word vectors on raw text, or read them from a file, and save them as an encoder"
    parser = commands.add_parser("word-vectors", help=text, description=text)
    parser.add_argument(
        "--corpus",
        nargs="+",
        default=[],
        metavar="FILE",
        help="train on these text files; with --file: keep only their words",
    )
    parser.add_argument(
        "--file", metavar="FILE", help="read this file of word2vec, GloVe or fastText vectors"
    )
    parser.add_argument(
        "--max-words", type=int, metavar="N", help="read only the first N words of --file"
    )
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="write the encoder to this folder"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed (default 0)")
    parser.add_argument(
        "--characters", type=int, default=0, metavar="N",
        help="add N trainable filters over the characters of a word (default 0)",
    )  # fmt: skip
    parser.add_argument(
        "--like", nargs="+", default=[], metavar="WORD", help="print the nearest words of each WORD"
    )
    add_flags(parser, Vectors)
    parser.set_defaults(run=run_word_vectors)


def _check_folder_of_vectors(out):
    """Raises a ValueError if word vectors would replace a file or another model."""
    from keras_plm.files.json_files import read_json

    if out.is_file():
        raise ValueError(f"`--out` must be a folder. Received: the file {out}")
    config = out / "config.json"
    kind = read_json(config, dict).get("model") if config.is_file() else "WordVectors"
    if kind != "WordVectors" or (out / "pretraining.json").is_file():
        raise ValueError(
            f"{out} holds another model: choose another folder for the word vectors. "
            f"Received: --out {out}"
        )


def run_word_vectors(flags):
    import dataclasses

    from keras_plm.experiments.flags import from_flags
    from keras_plm.experiments.pretraining.word_vectors import Vectors, make_word_vectors
    from keras_plm.experiments.progress import console
    from keras_plm.files.arguments import check_whole
    from keras_plm.training.stopping import handling_signals, raise_stopped

    given = [field.name for field in dataclasses.fields(Vectors) if field.name in flags]
    if not flags.file and not flags.corpus:
        raise ValueError("`word-vectors` takes a --corpus or a --file. Received: neither")
    if flags.file and given:
        raise ValueError(
            "The vectors of a file are trained already: omit the settings of training. "
            f"Received: --file {flags.file} --{given[0].replace('_', '-')}"
        )
    if flags.max_words is not None and (not flags.file or flags.max_words < 1):
        raise ValueError(
            f"`--max-words` must be 1 or more and needs a --file. Received: {flags.max_words}"
        )
    if flags.characters < 0:
        raise ValueError(f"`--characters` must be 0 or more. Received: {flags.characters}")
    check_whole(flags.seed, "--seed", least=0)
    _check_folder_of_vectors(Path(flags.out))
    with handling_signals(raise_stopped):
        encoder = make_word_vectors(
            from_flags(Vectors, flags),
            flags.corpus,
            flags.out,
            console.print,
            flags.file,
            flags.max_words,
            flags.seed,
            flags.characters,
        )
    for word in flags.like:
        try:
            nearest = encoder.most_similar(word, count=8)
        except ValueError as error:  # the folder is complete without it
            console.print(f"{word}: {error}")
            continue
        console.print(f"{word}: " + ", ".join(f"{near} {cosine:.2f}" for near, cosine in nearest))
