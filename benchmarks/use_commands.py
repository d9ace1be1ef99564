"""The commands that use what was trained: `generate`, `predict`, `export`."""


def add_generate(commands):
    text = "go on with a text as a language model would"
    parser = commands.add_parser("generate", help=text, description=text)
    parser.add_argument("prompts", nargs="+", metavar="TEXT", help="how the text begins")
    parser.add_argument("--encoder", required=True, metavar="DIR", help="of a GPT, say")
    parser.add_argument(
        "--tokens", type=int, default=40, metavar="N", help="most tokens to write (default 40)"
    )
    parser.add_argument(
        "--greedy", action="store_true", help="always the likeliest token, not a random one"
    )
    parser.add_argument("--temperature", type=float, default=1.0, metavar="X", help="(default 1)")
    parser.add_argument("--top-k", type=int, metavar="N", help="draw from the N likeliest")
    parser.add_argument(
        "--top-p", type=float, default=0.9, metavar="X",
        help="draw from the fewest that hold this share (default 0.9)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(default 0)")
    parser.set_defaults(run=run_generate)


def run_generate(flags):
    import keras_plm
    from keras_plm.decoding import generate, greedy, sample

    options = {"strategy": greedy}
    if not flags.greedy:
        names = ("temperature", "top_k", "top_p", "seed")
        options = {"strategy": sample, **{name: getattr(flags, name) for name in names}}
    encoder, tokenizer = keras_plm.load(flags.encoder)
    texts = generate(encoder, tokenizer, flags.prompts, max_new_tokens=flags.tokens, **options)
    print("\n\n".join(texts))


def add_predict(commands):
    text = "labels, tags, scores or answers for a file of texts"
    parser = commands.add_parser("predict", help=text, description=text)
    parser.add_argument(
        "file", metavar="FILE",
        help="a text a line (pairs parted by a tab); CSV, TSV, JSONL; CoNLL; SQuAD's JSON",
    )  # fmt: skip
    parser.add_argument("--model", required=True, metavar="FILE", help="of `run --keep`")
    parser.add_argument("--text", default="text", metavar="COLUMN", help="(default text)")
    parser.add_argument("--pair", metavar="COLUMN", help="of second texts, if there are some")
    parser.add_argument("--out", metavar="FILE", help="where to (default: shown)")
    parser.add_argument("--probabilities", action="store_true", help="of each label too")
    parser.set_defaults(run=run_predict)


def run_predict(flags):
    from keras_plm.experiments.predict import open_model, predict, read_inputs

    model = open_model(flags.model)
    examples = read_inputs(flags.file, model, flags.text, flags.pair)
    lines = predict(model, examples, flags.out, flags.probabilities)
    print(f"{flags.out}: {len(examples):,} predictions" if flags.out else lines.rstrip("\n"))


def add_export(commands):
    text = (
        "a fine-tuned model, its tokenizer with it, as a TensorFlow SavedModel that reads strings"
    )
    parser = commands.add_parser("export", help=text, description=text)
    parser.add_argument("--model", required=True, metavar="FILE", help="of `run --keep`")
    parser.add_argument("--out", required=True, metavar="DIR", help="the SavedModel")
    parser.add_argument("--pairs", action="store_true", help="it reads two texts")
    parser.set_defaults(run=run_export)


def run_export(flags):
    from keras_plm.checkpoints.saved_model import export
    from keras_plm.experiments.predict import open_model
    from keras_plm.experiments.progress import console

    export(open_model(flags.model), flags.out, flags.pairs)
    console.print(f"{flags.out}: `serve` reads strings, see keras_plm.checkpoints.saved_model")
