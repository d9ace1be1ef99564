"""Commands that train on a task: `run` one method, and `layers` to compare choices of layers."""

import functools
from collections import Counter
from pathlib import Path

FEW = 5  # training examples of a label: fewer get a warning
MOST_LABELS = 20  # labels in a message


def add_run_flags(parser):
    """Adds the flags of the commands `run` and `layers`."""
    add_import_flag(parser)
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--task", metavar="NAME", help="a known task, see `keras-plm data`")
    task.add_argument("--task-file", metavar="FILE", help="a CSV, TSV, JSONL or CoNLL file")
    for column in ("text", "label", "pair", "group"):
        text = f"name of the {column} column of --task-file"
        text += "; for CoNLL, its number" if column in ("text", "label") else ""
        parser.add_argument(f"--{column}", metavar="COLUMN", help=text)
    parser.add_argument(
        "--label-names",
        metavar="A,B,...",
        help="name the labels that a JSONL file holds as numbers",
    )
    parser.add_argument(
        "--encoder", required=True, metavar="DIR", help="read the encoder of this folder or name"
    )
    add_data_flags(parser)
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="run N seeds (default 3)")
    parser.add_argument(
        "--results", default="results", metavar="DIR", help="folder of results (default results)"
    )


def add_import_flag(parser):
    """Adds `--import`, which `main.run_command` obeys before the command runs."""
    parser.add_argument(
        "--import", dest="modules", action="append", default=[], metavar="MODULE",
        help="import this module first; it defines the class of your own encoder",
    )  # fmt: skip


def add_data_flags(parser):
    """Adds the flags of the folders of data and of features."""
    from keras_plm.files.cache import cache_folder

    parser.add_argument("--data", default="data", metavar="DIR", help="data folder (default data)")
    parser.add_argument(
        "--feature-cache", default=str(cache_folder("features")), metavar="DIR",
        help="folder of extracted features (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-cache-gb", type=float, default=8.0, metavar="GB",
        help="keep at most this size of features on disk (default 8)",
    )  # fmt: skip


def open_runner(flags):
    """Returns the `Runner` of the task and encoder that the flags name."""
    from keras_plm.datasets.tasks import TASKS, task_from_file
    from keras_plm.experiments.flags import devices, named
    from keras_plm.experiments.runner import Runner

    if flags.seeds < 1:
        raise ValueError(f"`--seeds` must be 1 or more. Received: {flags.seeds}")
    if flags.task_file:
        columns = flags.text, flags.label, flags.pair, flags.group
        names = flags.label_names and [name.strip() for name in flags.label_names.split(",")]
        task = task_from_file(flags.task_file, *columns, names)
    else:
        task = named(TASKS, flags.task, "task")
        names = ("text", "label", "pair", "group", "label_names")
        given = [name.replace("_", "-") for name in names if getattr(flags, name) is not None]
        if given:
            raise ValueError(
                f"`--{given[0]}` needs a --task-file. Received: --task {flags.task} --{given[0]}"
            )
    return Runner(
        task,
        flags.data,
        flags.encoder,
        flags.results,
        flags.feature_cache,
        flags.max_cache_gb,
        models=getattr(flags, "save_model", None),
        devices=devices(getattr(flags, "devices", "1")),
    )


def add_run(commands):
    from keras_plm.experiments.config import Run
    from keras_plm.experiments.flags import add_devices, add_flags

    text = "train and evaluate one method on one task"
    parser = commands.add_parser("run", help=text, description=text)
    add_run_flags(parser)
    parser.add_argument(
        "--save-model", metavar="DIR", help="save the trained model of seed 0, for `predict`"
    )
    add_devices(parser)
    add_flags(parser, Run)
    parser.set_defaults(run=run_run)


def run_run(flags):
    from keras_plm.experiments.config import Run
    from keras_plm.experiments.flags import from_flags

    run = from_flags(Run, flags, **of_documents(flags))
    runner, results, failed = run_all(flags, [run])
    show_table(flags, results)
    if flags.save_model:
        print(f"Model: {runner.model_file(run)}")
    check_diverged(failed, len(results) + len(failed))


def of_documents(flags):
    """Returns the settings of a run that differ for a task of documents: one per step."""
    from keras_plm.datasets.tasks import TASKS

    task = TASKS.get(flags.task or "")
    documents = task is not None and task.head.reads_documents and "batch_size" not in flags
    return {"batch_size": 1} if documents else {}


def run_all(flags, runs, between=None):
    """Runs each of `runs` with all seeds.

    A run that diverges is recorded in a `.failed` file, and the others continue.

    Args:
        flags: Parsed flags of `add_run_flags`.
        runs: `Run` objects.
        between: `between(runner, results)` is called before the first training of the encoder.

    Returns:
        `(runner, results, failed)`: the `Runner`, the results, and `{(run, seed): error}`.

    Raises:
        FloatingPointError: If every run diverges.
    """
    from keras_plm.experiments.progress import console, now_and_then, progress_bar
    from keras_plm.experiments.results import failure_of, write_failure
    from keras_plm.heads import Classifier, Tagger
    from keras_plm.training.half_precision import advice

    runner = open_runner(flags)
    counts = {split: len(part) for split, part in runner.examples.items()}
    for split in ("train", "dev"):
        limits = [getattr(run, f"{split}_limit") or counts[split] for run in runs]
        counts[split] = min([counts[split], *limits])
    console.print(
        f"{runner.task.name}: {counts['train']:,} training examples, {counts['dev']:,} in the dev "
        f"set, {counts['test']:,} in the evaluation split"
    )
    if issubclass(runner.task.head, Tagger):
        marks = "tags that mark no spans" if runner.scheme is None else f"tags in {runner.scheme}"
        console.print(f"{runner.task.name}: {next(iter(runner.task.metrics))} of {marks}")
    if issubclass(runner.task.head, Classifier):
        for line in describe_labels(runner, runs[0]):
            console.print(f"{runner.task.name}: {line}")
    if runner.task.head.reads_documents:
        console.print(f"{runner.task.name}: {describe_documents(runner)}")
    unseen = runner.unseen_labels(runs[0])
    if unseen:
        console.print(
            f"{runner.task.name}: labels without training examples count as errors: "
            f"{', '.join(map(str, unseen[:20]))}" + (" and more" if unseen[20:] else "")
        )
    lines = {advice(run.precision) for run in runs if not run.reads_features}
    for line in sorted(lines - {None}):
        console.print(line)
    seeds = range(flags.seeds)
    todo = [(run, seed) for seed in seeds for run in runs if run.reads_features]
    todo += [(run, seed) for run in runs for seed in seeds if not run.reads_features]
    runner.plan(todo)
    fits = sum(run.lines(seed) for run, seed in todo)
    results, failed = [], {}
    with progress_bar(runner.task.name, fits, unit=True) as advance:
        runner.progress, runner.epoch = advance, now_and_then(console.print)
        for run, seed in todo:
            is_left = not run.reads_features and runner.result(run, seed) is None
            if between is not None and is_left:
                between(runner, results)
                between = None
            if (run, 0) in failed:  # seed 0 chooses the learning rate
                failed[run, seed] = failed[run, 0]
                continue
            path = runner.path(run, seed)
            try:
                results.append(runner.run(run, seed))
            except FloatingPointError as error:
                write_failure(path, runner.task.name, runner.name, run, seed, error)
                failed[run, seed] = error
            else:
                failure_of(path).unlink(missing_ok=True)
    if not results:
        raise next(iter(failed.values()))
    return runner, results, failed


def describe_labels(runner, run):
    """Describes the labels of the examples of a run in sentences, with a warning on odd ones."""
    labels = [[example.label for example in part] for part in runner.all_examples(run)]
    if runner.task.head.scores:
        train = [float(label) for label in labels[0]]
        mean = sum(train) / len(train)
        return [f"training scores from {min(train):g} to {max(train):g}, mean {mean:.3g}"]
    counts = [Counter(of_part) for of_part in labels]
    every = Counter(example.label for example in runner.examples["train"])  # a part may lack some
    found = sorted(((label, counts[0][label]) for label in every), key=lambda pair: -pair[1])
    shown = [f"{label} {', '.join(f'{count[label]:,}' for count in counts)}" for label, _ in found]
    lines = [
        f"{len(found)} labels (training examples, dev set, evaluation split): "
        + _first(shown, "; ")
    ]
    (most, _), (name, metric) = found[0], next(iter(runner.task.metrics.items()))
    score = 100 * metric(labels[2], [most] * len(labels[2]))
    lines.append(
        f"the most frequent label, {most!r}, for every text of the evaluation split gives "
        f"{score:.1f} {name.replace('_', ' ')}"
    )
    few = [str(label) for label, count in found if count < FEW]
    if few:
        lines.append(
            f"Warning: fewer than {FEW} training examples of {_first(few)}. The score tells little "
            "about these labels: add examples, or merge them with others"
        )
    same = {}
    for label, _ in found:
        same.setdefault(" ".join(str(label).casefold().split()), []).append(repr(label))
    same = [" and ".join(labels) for labels in same.values() if len(labels) > 1]
    if same:
        lines.append(
            "Warning: labels that differ only in case or spaces count as different: "
            f"{_first(same)}. Write them alike if they mean the same"
        )
    return lines


def describe_documents(runner):
    """Describes all documents of a coreference task: their words, mentions and clusters."""
    from keras_plm.heads.coreference import MAX_SPAN_WIDTH

    parts = runner.examples.values()
    words = [sum(len(e.text) for e in part) for part in parts]
    clusters = [[len(cluster) for e in part for cluster in e.label] for part in parts]
    mentions, count = [sum(sizes) for sizes in clusters], [len(sizes) for sizes in clusters]
    alone = [sizes.count(1) for sizes in clusters]
    wide = [
        sum(b - a > MAX_SPAN_WIDTH for e in part for cluster in e.label for a, b in cluster)
        for part in parts
    ]
    shown = {"words": words, "mentions": mentions, "clusters": count, "of one mention": alone}
    shown[f"mentions of more than {MAX_SPAN_WIDTH} words, which are never found"] = wide
    listed = (f"{', '.join(f'{n:,}' for n in of_part)} {name}" for name, of_part in shown.items())
    return f"{'; '.join(listed)} (whole training set, dev set, evaluation split)"


def _first(names, comma=", "):
    return comma.join(names[:MOST_LABELS]) + (" and more" if names[MOST_LABELS:] else "")


def show_table(flags, results):
    """Prints results as a table, and where their files are."""
    from keras_plm.experiments.progress import console
    from keras_plm.experiments.report.result_tables import markdown

    console.print("\n" + markdown(results))
    show_folder(flags, results)


def show_folder(flags, results):
    """Prints the folder of the result files."""
    from keras_plm.experiments.progress import console

    console.print(f"Result files: {Path(flags.results) / results[0]['task']}")


def check_diverged(failed, total):
    """Raises an error if runs of `run_all` diverged: their number and the first error."""
    if failed:
        (run, seed), error = next(iter(failed.items()))
        raise FloatingPointError(
            f"{len(failed)} of {total} runs diverged; the others are done. Lower the learning "
            "rates. The .failed files next to the results state the causes. "
            f"Received: {run.name} seed {seed}: {error}"
        )


def add_layers(commands):
    from keras_plm.experiments.config import Run
    from keras_plm.experiments.flags import add_flags

    text = "compare choices of layers of a frozen encoder, and fine-tuning, on one task"
    parser = commands.add_parser(
        "layers", help=text, description=f"{text}. `run --layers NAME` trains one choice."
    )
    add_run_flags(parser)
    add_flags(parser, Run, [
        "reader", "pool", "learning_rates", "epochs", "batch_size", "dropout", "train_limit",
        "dev_limit",
    ])  # fmt: skip
    parser.add_argument(
        "--fine-tuning-rates", metavar="LIST",
        help="search these learning rates for fine-tuning (default those of --learning-rates if "
        "given, else 3e-5,1e-4,3e-4)",
    )  # fmt: skip
    parser.add_argument(
        "--precision", metavar="NAME",
        help="fine-tune in this precision: float32, bfloat16 or float16 (default float32)",
    )  # fmt: skip
    parser.add_argument(
        "--method", default="features", choices=("features", "randomly_initialised"),
        help="read the pre-trained encoder, or a randomly initialised one (default features)",
    )  # fmt: skip
    parser.add_argument(
        "--no-fine-tune", action="store_true", help="skip fine-tuning, which takes the longest"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the scores as a PNG or SVG file")
    parser.set_defaults(run=run_layers)


def run_layers(flags):
    from keras_plm import load
    from keras_plm.experiments import recommend
    from keras_plm.experiments.config import Run
    from keras_plm.experiments.flags import from_flags
    from keras_plm.experiments.progress import console
    from keras_plm.experiments.recommend import Choice
    from keras_plm.transfer import distinct_choices

    fine_tunes = not flags.no_fine_tune and flags.method == "features"
    check_layers_flags(flags, fine_tunes)
    encoder = load(flags.encoder)[0]
    names = distinct_choices(encoder)
    precision = flags.precision
    del flags.precision  # frozen layers are read in float32
    more = of_documents(flags)
    runs = [from_flags(Run, flags, layers=name, **more) for name in names]
    tuning = fine_tuning_of(flags, runs[0], precision, encoder) if fine_tunes else None

    def read(runner, results, run, name):
        """Returns the `Choice` of a run; `None` if it diverged or did not run."""
        found = [result for result in results if run is not None and result["run"] == run.name]
        return Choice.of(name, found, runner.kept) if found else None

    def choices_of(runner, results):
        pairs = zip(runs, names, strict=True)
        choices = [read(runner, results, run, name) for run, name in pairs]
        return [choice for choice in choices if choice is not None]

    def show(choices, tuned=None):
        console.print()
        console.print(recommend.markdown(choices, tuned))
        console.print(recommend.recommendation(choices, tuned))

    def so_far(runner, results):  # fine-tuning may take hours
        if choices := choices_of(runner, results):
            show(choices)
        console.print("Fine-tuning, for comparison (--no-fine-tune skips it) ...")

    runner, results, failed = run_all(flags, runs + ([tuning] if fine_tunes else []), so_far)
    choices = choices_of(runner, results)
    if flags.method != "features" or not choices:
        show_table(flags, results)
    else:
        tuned = read(runner, results, tuning, recommend.TUNED)
        show(choices, tuned)
        if tuned is None:
            console.print("Fine-tuning was not run.")
        if found := recommend.edges([*choices, *([] if tuned is None else [tuned])]):
            console.print(found)
        show_folder(flags, results)
    if flags.plot:
        draw_layers(flags, results)
    check_diverged(failed, len(results) + len(failed))


def check_layers_flags(flags, fine_tunes):
    """Checks flags of `layers` before hours of work.

    Raises:
        ValueError: If flags cannot be combined, or the plot cannot be written.
    """
    if flags.plot and flags.method != "features":
        raise ValueError(
            "`--plot` needs --method features; it draws other methods of the task as lines. "
            f"Received: method={flags.method!r}"
        )
    if flags.plot:
        path = Path(flags.plot)
        drawable = path.suffix in (".png", ".svg") and path.parent.is_dir()
        if path.is_dir() or not drawable:
            raise ValueError(
                "`--plot` must be a PNG or SVG file in an existing folder. "
                f"Received: {flags.plot!r}"
            )
    for name in ("fine_tuning_rates", "precision"):
        if not fine_tunes and getattr(flags, name) is not None:
            raise ValueError(
                f"`--{name.replace('_', '-')}` is for fine-tuning, which --no-fine-tune and "
                "--method randomly_initialised skip: omit it. "
                f"Received: {getattr(flags, name)!r}"
            )


def fine_tuning_of(flags, frozen, precision, encoder):
    """Returns the `Run` of fine-tuning with the settings of a `Run` of frozen layers."""
    from keras_plm.datasets.tasks import TASKS
    from keras_plm.experiments.config import Run

    shared = ["epochs", "batch_size", "dropout", "train_limit", "dev_limit"]
    task = TASKS.get(flags.task or "")
    if task is not None and task.head.marks_predicates and "segment_ids" not in encoder.input:
        shared += ["reader", "reader_layers", "units"]  # a linear output cannot know the predicate
    fields = {name: getattr(frozen, name) for name in shared}
    rates = flags.fine_tuning_rates or getattr(flags, "learning_rates", "")
    return Run(learning_rates=rates, precision=precision or "float32", **fields)


def draw_layers(flags, results):
    """Draws the plot of `layers`; other methods of the task and encoder become lines."""
    from keras_plm.experiments.progress import console
    from keras_plm.experiments.recommend import Choice
    from keras_plm.experiments.report.result_tables import layer_figure
    from keras_plm.experiments.results import ResultFolder, read_results
    from keras_plm.files.writing import replacing

    task, encoder = results[0]["task"], results[0]["encoder"]
    drawn = [r for r in results if r["method"] == "features"]
    # The files also hold the results of this call.
    others = read_results(flags.results, task)
    data = {r.get("inputs") for r in results}  # of these examples and weights only
    others = [r for r in others if r["encoder"] == encoder and r.get("inputs") in data]
    drawn += [r for r in others if r["method"] != "features"]
    choice_of = functools.partial(Choice.of, folder=ResultFolder(flags.results))
    with replacing(flags.plot, Path(flags.plot).suffix) as temporary:
        layer_figure(drawn, task, choice_of).savefig(temporary, dpi=150)
    console.print(f"Plot: {flags.plot}")
