"""Commands that use trained models: `predict`, `export` and `generate`."""

from pathlib import Path


def add_predict(commands):
    from keras_plm.cli.run import add_import_flag

    text = "predict labels, tags, scores, answers or clusters for a file of texts"
    parser = commands.add_parser("predict", help=text, description=text)
    add_import_flag(parser)
    parser.add_argument(
        "file", metavar="FILE",
        help="one text per line (pairs: a tab between them), CSV, TSV, JSONL, CoNLL or SQuAD JSON",
    )  # fmt: skip
    parser.add_argument(
        "--model", required=True, metavar="FILE", help="a model of `run --save-model`"
    )
    parser.add_argument(
        "--text",
        default="text",
        metavar="COLUMN",
        help="read texts from this column (default text)",
    )
    parser.add_argument(
        "--pair", metavar="COLUMN", help="read second texts from this column (default: none)"
    )
    parser.add_argument(
        "--tagger", metavar="FILE",
        help="label the roles of the verbs that this saved Tagger finds (default: the column "
        "'predicate')",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="write predictions here (default: print)")
    parser.add_argument(
        "--probabilities", action="store_true", help="also write the probability of each label"
    )
    parser.set_defaults(run=run_predict)


def run_predict(flags):
    from keras_plm.experiments.predict import (
        check_probabilities,
        open_model,
        predict,
        read_inputs,
    )
    from keras_plm.files.disk_space import try_to_write

    if flags.out:  # before hours of work
        if Path(flags.out).is_dir():
            raise ValueError(f"`--out` must be a file. Received: the folder {flags.out!r}")
        try_to_write(Path(flags.out).parent)
    model = open_model(flags.model)
    if flags.probabilities:
        check_probabilities(model)
    tagger = open_model(flags.tagger) if flags.tagger else None
    examples = read_inputs(flags.file, model, flags.text, flags.pair, tagger)
    lines = predict(model, examples, flags.out, flags.probabilities)
    print(f"{flags.out}: {len(examples):,} predictions" if flags.out else lines.rstrip("\n"))


def add_export(commands):
    from keras_plm.cli.run import add_import_flag

    text = "export a fine-tuned model and its tokenizer as a TensorFlow SavedModel of strings"
    parser = commands.add_parser("export", help=text, description=text)
    add_import_flag(parser)
    parser.add_argument(
        "--model", required=True, metavar="FILE", help="a model of `run --save-model`"
    )
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="write the SavedModel to this folder"
    )
    parser.add_argument("--pairs", action="store_true", help="export a model for pairs of texts")
    parser.set_defaults(run=run_export)


def run_export(flags):
    from keras_plm.checkpoints.saved_model import export
    from keras_plm.experiments.predict import open_model
    from keras_plm.experiments.progress import console

    export(open_model(flags.model), flags.out, flags.pairs)
    console.print(f"{flags.out}: `serve` takes strings, see keras_plm.checkpoints.saved_model")


def add_generate(commands):
    from keras_plm.cli.run import add_import_flag

    text = "continue texts with a language model"
    parser = commands.add_parser("generate", help=text, description=text)
    add_import_flag(parser)
    parser.add_argument("prompts", nargs="+", metavar="TEXT", help="beginnings of texts")
    parser.add_argument(
        "--encoder", required=True, metavar="DIR", help="folder of a GPT or another language model"
    )
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        default=40,
        metavar="N",
        help="generate at most N tokens (default 40)",
    )
    parser.add_argument(
        "--greedy", action="store_true", help="take the most probable token instead of sampling"
    )
    parser.add_argument(
        "--temperature", type=float, metavar="X", help="divide logits by X (default 1)"
    )
    parser.add_argument(
        "--top-k", type=int, metavar="N", help="sample from the N most probable tokens"
    )
    parser.add_argument(
        "--top-p", type=float, metavar="X",
        help="sample from the fewest tokens of total probability X (default 0.9)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, metavar="N", help="seed of sampling (default 0)")
    parser.set_defaults(run=run_generate)


def run_generate(flags):
    import keras_plm
    from keras_plm.decoding import generate, greedy, sample

    names = ("temperature", "top_k", "top_p", "seed")
    options = {name: getattr(flags, name) for name in names if getattr(flags, name) is not None}
    if flags.greedy and options:
        raise ValueError(
            "`--greedy` does not sample: omit --temperature, --top-k, --top-p and --seed. "
            f"Received: {options}"
        )
    options = {"strategy": greedy} if flags.greedy else {"strategy": sample, "top_p": 0.9} | options
    encoder, tokenizer = keras_plm.load(flags.encoder)
    options["max_new_tokens"] = flags.max_new_tokens
    texts = generate(encoder, tokenizer, flags.prompts, **options)
    print("\n\n".join(texts))
