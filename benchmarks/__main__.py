"""The harness from the command line: `python -m benchmarks --help`."""

import argparse
import logging
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Every length is a trace on purpose.
logging.getLogger("tensorflow").setLevel(logging.ERROR)
# Fits of a search compile the same steps: on JAX once, not once a fit.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(HERE.parent / ".compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def main(arguments=None):
    try:
        from benchmarks.make_commands import (
            add_devices,
            add_kills,
            add_prepare,
            add_pretrain,
            add_scaling,
            add_vectors,
        )
        from benchmarks.pack import add_pack
        from benchmarks.report_commands import add_claims, add_report
        from benchmarks.use_commands import add_export, add_generate, add_predict
        from glue_tasks.errors import add_debug, show_error
    except ImportError as error:  # the backend is missing
        print(f"error: {error}", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Pre-trains encoders, fine-tunes them, reads their features, keeps results.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    debug = False
    try:
        for add in (add_demo, add_prepare, add_pretrain, add_vectors, add_run, add_layers):
            add(commands)
        for add in (add_data, add_predict, add_export, add_generate, add_encoders):
            add(commands)
        for add in (add_report, add_claims, add_pack, add_speed):
            add(commands)
        for add in (add_kills, add_devices, add_scaling):
            add(commands)
        add_debug(parser, commands)
        flags = parser.parse_args(arguments)
        debug = flags.debug
        flags.run(flags)
    except BrokenPipeError:  # as of `| head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        return show_error(error, debug)
    except KeyboardInterrupt:
        print("\nstopped; what was finished is kept", file=sys.stderr)
        return 130
    return 0


def add_demo(commands):
    text = "train word vectors and a tiny BERT on a made-up language and put them to work"
    parser = commands.add_parser("demo", help=text, description=text)
    parser.add_argument("--out", metavar="DIR", help="(default .demo/BACKEND)")
    parser.add_argument("--small", action="store_true", help="the same in seconds, to no result")
    parser.add_argument(
        "--full",
        action="store_true",
        help="also a tiny ELMo and a tiny GPT, on four tasks, and translators with attention",
    )
    parser.set_defaults(run=run_demo)


def run_demo(flags):
    from benchmarks.demo import demo

    demo(flags.out, small=flags.small, full=flags.full)


def add_run_flags(parser, required=True):
    task = parser.add_mutually_exclusive_group(required=required)
    task.add_argument("--task", metavar="NAME", help="see the command data")
    task.add_argument("--task-file", metavar="FILE", help="your own CSV, TSV, JSONL or CoNLL file")
    for column in ("text", "label", "pair", "group"):
        text = f"its {column} column: a name"
        text += ", in a CoNLL file a number" if column in ("text", "label") else ""
        parser.add_argument(f"--{column}", metavar="COLUMN", help=text)
    parser.add_argument(
        "--label-names", metavar="A,B,...", help="names of labels that its JSONL gives as numbers"
    )
    parser.add_argument("--encoder", required=required, metavar="DIR", help="an encoder's folder")
    parser.add_argument("--data", default="data", metavar="DIR", help="(default data)")
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="(default 3, of some runs of suites more)"
    )
    parser.add_argument(
        "--suite", default="local", metavar="NAME", help="folder of results (default local)"
    )
    parser.add_argument(
        "--results", default=str(HERE / "results"), metavar="DIR", help="where suites are kept"
    )
    parser.add_argument(
        "--features", default=".features", metavar="DIR", help="where features are kept"
    )
    parser.add_argument(
        "--feature-gb", type=float, default=8.0, metavar="GB", help="largest store (default 8)"
    )


def seeds_of(flags):
    """How many seeds the flags ask for, by default three."""
    if flags.seeds is not None and flags.seeds < 1:
        raise ValueError(f"`--seeds` must be 1 or more. Received: {flags.seeds}")
    return flags.seeds or 3


def open_runner(flags, progress=None):
    """The task and encoder that the flags name, ready for runs."""
    from keras_plm.datasets.tasks import TASKS, task_from_file
    from keras_plm.experiments.flags import devices, named
    from keras_plm.experiments.runner import Runner

    seeds_of(flags)
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
                f"Columns belong to a --task-file. Received: --task {flags.task}, --{given[0]}"
            )
    return Runner(
        task,
        flags.data,
        flags.encoder,
        str(Path(flags.results) / flags.suite),
        flags.features,
        flags.feature_gb,
        progress,
        getattr(flags, "keep", None),
        devices=devices(getattr(flags, "devices", "1")),
    )


def add_run(commands):
    from benchmarks.suites import SUITES
    from keras_plm.experiments.config import Run
    from keras_plm.experiments.flags import add_devices, add_flags

    text = "train and score one method on one task, or a whole suite"
    parser = commands.add_parser(
        "run",
        help=text,
        description=f"{text}: --suite {', '.join(SUITES)} needs neither task nor encoder; those of "
        "ELMo take an --encoder, by default benchmarks/weights/elmo_mini, and --words, by default "
        "trained once on the books of --data.",
    )
    add_run_flags(parser, required=False)
    scales = "; ".join(f"{name}: {', '.join(suite.scales)}" for name, suite in SUITES.items())
    parser.add_argument("--scale", metavar="NAME", help=f"of a whole suite ({scales})")
    parser.add_argument(
        "--dry-run", action="store_true", help="of a suite: what is done, what is not, how long"
    )
    parser.add_argument(
        "--ray", metavar="ADDRESS",
        help="of a suite: do it on a Ray cluster: its address, 'auto' or 'local'",
    )  # fmt: skip
    for name, default in (("cpus", 1.0), ("gpus", 0.0)):
        parser.add_argument(
            f"--ray-{name}", type=float, default=default, metavar="N",
            help=f"{name.upper()[:-1]}s that a run takes on Ray (default {default:g})",
        )  # fmt: skip
    parser.add_argument(
        "--keep", metavar="DIR", help="keep the first seed's fine-tuned model, for `predict`"
    )
    add_devices(parser)
    add_flags(parser, Run)
    parser.set_defaults(run=run_run)


def run_run(flags):
    from benchmarks.suites import SUITES
    from keras_plm.experiments.config import Run
    from keras_plm.experiments.flags import from_flags, named

    if flags.suite in SUITES:
        return run_suite(flags)
    if flags.suite != "local" and not (flags.task or flags.task_file):
        named(SUITES, flags.suite, "suite")
    if flags.dry_run or flags.ray:
        raise ValueError(
            "A whole --suite is planned, or done on Ray. "
            f"Received: --suite {flags.suite}, --dry-run {flags.dry_run}, --ray {flags.ray}"
        )
    if flags.scale is not None or flags.encoder is None or not (flags.task or flags.task_file):
        raise ValueError(
            "A run has a --task or --task-file and an --encoder, or is a whole --suite, which "
            f"alone has a --scale: {', '.join(SUITES)}. Received: --suite {flags.suite}, "
            f"--scale {flags.scale}, --task {flags.task}, --encoder {flags.encoder}"
        )
    _, results, failed = run_all(flags, [from_flags(Run, flags)])
    check_diverged(failed, len(results) + len(failed))


def run_suite(flags):
    """All runs of a suite with all seeds, first all with the first seed, then its tables."""
    import dataclasses

    from benchmarks.suites import SUITES, folder
    from keras_plm.experiments.config import Run
    from keras_plm.experiments.flags import named
    from keras_plm.experiments.jobs import check
    from keras_plm.experiments.progress import console

    suite = SUITES[flags.suite]
    own = ["task_file", "text", "label", "pair", "group", "label_names", "encoder", "keep"]
    own += ["task"] if suite.jobs is None else []
    own += [field.name for field in dataclasses.fields(Run)]
    given = [n for n in own if getattr(flags, n, None) is not None and n not in suite.flags]
    if given:
        raise ValueError(
            f"A suite brings its own tasks and settings. Received: --{given[0].replace('_', '-')} "
            f"beside --suite {flags.suite}"
        )
    seeds = seeds_of(flags)
    runs = named(suite.scales, flags.scale or "small", "scale")
    console.print(f"{flags.suite}, after {suite.source}")
    results = folder(flags.results, flags.suite, flags.scale)
    taken = {name: getattr(flags, name, None) for name in suite.flags}
    if suite.jobs is not None:
        failed, total = run_suite_jobs(flags, suite, runs, results, taken)
    elif flags.dry_run or flags.ray:
        able = [name for name, other in SUITES.items() if other.jobs is not None]
        raise ValueError(
            f"Suites that are made of runs are planned, or done on Ray: {', '.join(able)}. "
            f"Received: --suite {flags.suite}"
        )
    elif flags.devices != "1":
        raise ValueError(
            "Suites that are not made of runs take one device. "
            f"Received: --suite {flags.suite} --devices {flags.devices}"
        )
    else:
        failed, total = {}, 1
        suite.run(runs, flags.data, results, seeds, console.print, **taken)
    if flags.dry_run:
        return
    if len(failed) < total:
        console.print("\n" + suite.markdown(results))
        console.print(f"Result files: {results}")
    check(failed, total)


def run_suite_jobs(flags, suite, runs, results, taken):
    """Plans or does a suite's jobs; gives those that failed, and how many there are."""
    from keras_plm.experiments.flags import devices, named
    from keras_plm.experiments.jobs import Workspace, run_jobs, work
    from keras_plm.experiments.plan import measured, plan
    from keras_plm.experiments.progress import console, jobs_view, silence_ahead
    from keras_plm.experiments.ray import run_on_ray

    workspace = [Path(path).resolve() for path in (flags.data, results, taken.pop("features"))]
    workspace = Workspace(*map(str, workspace), taken.pop("feature_gb"), devices(flags.devices))
    jobs = suite.jobs(runs, workspace, **taken)
    if flags.task:
        at = f" at scale {flags.scale}" if flags.scale else ""
        task = named({job.task: job.task for job in jobs}, flags.task, f"task of this suite{at}")
        jobs = [job for job in jobs if job.task == task]
    total = len(work(jobs, flags.seeds))
    if flags.dry_run:
        silence_ahead("Reading each task and encoder, to see what is done")
        table, words = plan(jobs, workspace, flags.seeds, measured(HERE / "results", flags.results))
        console.print(table, words, sep="\n")
        return {}, total
    with jobs_view(flags.suite, total) as (progress, epoch, finished):
        if flags.ray:
            ray = {"address": flags.ray, "cpus": flags.ray_cpus, "gpus": flags.ray_gpus}
            failed = run_on_ray(jobs, workspace, flags.seeds, progress, finished, **ray)
        else:
            failed = run_jobs(jobs, workspace, flags.seeds, progress, epoch, finished)
    return failed, total


def run_all(flags, runs, between=None):
    """Runs with all seeds, then prints their table.

    A run that diverges is recorded in a `.failed` file, and the others go on.

    Args:
        flags, runs: What is run.
        between: `between(runner, results)` is called before the first run that trains the encoder.

    Returns:
        `(runner, results, failed)`: the `Runner`, the results, and `{(run, seed): error}`.

    Raises:
        FloatingPointError: If every run diverges.
    """
    from keras_plm.experiments.progress import console, now_and_then, progress_bar
    from keras_plm.experiments.report.result_tables import markdown
    from keras_plm.experiments.results import failure_of, write_failure

    runner = open_runner(flags)
    counts = {split: len(part) for split, part in runner.examples.items()}
    for split in ("train", "dev"):
        limits = [getattr(run, f"{split}_limit") or counts[split] for run in runs]
        counts[split] = min([counts[split], *limits])
    console.print(
        f"{runner.task.name}: {counts['train']:,} training examples, {counts['dev']:,} in the "
        f"dev set, {counts['test']:,} in the evaluation split"
    )
    if runner.task.head.kind == "words":
        marks = "tags that mark no spans" if runner.scheme is None else f"tags in {runner.scheme}"
        console.print(f"{runner.task.name}: {next(iter(runner.task.metrics))} of {marks}")
    unseen = runner.unseen_labels()
    if unseen:
        console.print(
            f"{runner.task.name}: labels that no training example has count as errors: "
            f"{', '.join(map(str, unseen[:20]))}" + (" and more" if unseen[20:] else ""),
            markup=False,
        )
    todo = [(run, seed) for run in runs for seed in range(seeds_of(flags))]
    fits = sum(run.lines(seed) for run, seed in todo)
    results, failed = [], {}
    with progress_bar(runner.task.name, fits, unit=True) as advance:
        runner.progress, runner.epoch = advance, now_and_then(console.print)
        for run, seed in todo:
            if between is not None and not run.reads_features:
                between(runner, results)
                between = None
            if (run, 0) in failed:  # whose learning rate this one takes
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
    console.print("\n" + markdown(results))
    console.print(f"Result files: {Path(runner.results) / runner.task.name}")
    return runner, results, failed


def check_diverged(failed, total):
    """Raises if runs of `run_all` diverged, with how many and the first one's error."""
    if failed:
        (run, seed), error = next(iter(failed.items()))
        raise FloatingPointError(
            f"{len(failed)} of {total} runs diverged, and the others are done: give lower learning "
            "rates; the .failed files next to the results state the cause. "
            f"Received: {run.name} seed {seed}: {error}"
        )


def add_layers(commands):
    from keras_plm.experiments.config import Run
    from keras_plm.experiments.flags import add_flags

    text = (
        "which layers suit a task: every choice of a frozen encoder's, and fine-tuning beside them"
    )
    parser = commands.add_parser("layers", help=text, description=text)
    add_run_flags(parser)
    add_flags(parser, Run, [
        "reader", "pool", "learning_rates", "epochs", "batch_size", "dropout", "train_limit",
        "dev_limit",
    ])  # fmt: skip
    frozen = ("features", "randomly_initialised")
    parser.add_argument("--method", default="features", choices=frozen)
    parser.add_argument(
        "--no-fine-tune", action="store_true", help="leave out fine-tuning, which takes the longest"
    )
    parser.add_argument("--picture", metavar="FILE", help="also draw the scores: PNG or SVG")
    parser.set_defaults(run=run_layers)


def run_layers(flags):
    from keras_plm import load
    from keras_plm.experiments import recommend
    from keras_plm.experiments.config import Run
    from keras_plm.experiments.flags import from_flags
    from keras_plm.experiments.progress import console
    from keras_plm.experiments.recommend import Choice
    from keras_plm.experiments.report.result_tables import layer_figure
    from keras_plm.experiments.results import read_results
    from keras_plm.transfer import distinct_choices

    if flags.picture and flags.method != "features":
        raise ValueError(
            "`--picture` draws the method features, with the others of its suite as lines. "
            f"Received: method={flags.method!r}"
        )
    if flags.picture:  # before hours of work
        path = Path(flags.picture)
        if path.suffix not in (".png", ".svg") or not path.parent.is_dir():
            raise ValueError(
                "`--picture` is a PNG or SVG file in a folder that is there. "
                f"Received: {flags.picture!r}"
            )
    names = distinct_choices(load(flags.encoder)[0])
    runs = [from_flags(Run, flags, layers=name) for name in names]
    tuning = []
    if not flags.no_fine_tune and flags.method == "features":
        shared = ("learning_rates", "epochs", "batch_size", "dropout", "train_limit", "dev_limit")
        tuning = [Run(**{name: getattr(runs[0], name) for name in shared})]

    def read(runner, results, runs, names):
        for run, name in zip(runs, names, strict=True):
            found = [result for result in results if result["run"] == run.name]
            if found:  # else its runs diverged
                kept = [
                    runner.kept.examples(runner.result_name(run, r.seed), r.hash) for r in found
                ]
                yield Choice.read(name, found, kept)

    def so_far(runner, results):  # fine-tuning may take hours
        choices = list(read(runner, results, runs, names))
        if choices:
            console.print(recommend.markdown(choices), recommend.recommendation(choices), sep="\n")
        console.print("Now it is fine-tuned, to compare (--no-fine-tune leaves that out) ...")

    runner, results, failed = run_all(flags, runs + tuning, so_far)
    choices = list(read(runner, results, runs, names))
    if flags.method == "features" and choices:
        tuned = next(read(runner, results, tuning, ["fine-tuned"] * len(tuning)), None)
        console.print(
            recommend.markdown(choices), recommend.recommendation(choices, tuned), sep="\n"
        )
    if flags.picture:
        task, encoder = results[0]["task"], results[0]["encoder"]
        beside = read_results(Path(flags.results) / flags.suite, task)
        drawn = [r for r in results if r["method"] == "features"]
        # Those of this call, too, are among the files.
        drawn += [r for r in beside if r["encoder"] == encoder and r["method"] != "features"]
        figure = layer_figure(drawn, task)
        figure.savefig(flags.picture, dpi=150)
        console.print(f"Picture: {flags.picture}")
    check_diverged(failed, len(results) + len(failed))


def add_data(commands):
    text = "what each task needs: files, whether they are there, source and licence"
    parser = commands.add_parser("data", help=text, description=text)
    parser.add_argument("--data", default="data", metavar="DIR", help="(default data)")
    parser.add_argument("--task", metavar="NAME", help="with --text: of which task")
    parser.add_argument(
        "--text", metavar="FILE", help="write a task's training text, unlabelled, for `pretrain`"
    )
    parser.set_defaults(run=run_data)


def run_data(flags):
    from benchmarks.suites import language_models, translation, word_vectors
    from keras_plm.data.task import find_file
    from keras_plm.datasets import word_similarity
    from keras_plm.datasets.tasks import TASKS, checksum, write_text_of
    from keras_plm.experiments.flags import named
    from keras_plm.experiments.progress import console

    if (flags.task is None) != (flags.text is None):
        raise ValueError(
            "A task's text needs both, --task and --text. "
            f"Received: --task {flags.task}, --text {flags.text}"
        )
    if flags.task is not None:
        count = write_text_of(named(TASKS, flags.task, "task"), flags.data, flags.text)
        console.print(f"{flags.text}: {count:,} lines")
        return
    captions = {
        f"{split}, {language}": f"{file}.{language}"
        for split, file in translation.FILES.items()
        for language in ("en", "de")
    }
    rows = [(task.name, task.source, task.licence, task.files) for task in TASKS.values()]
    rows.append((translation.TASK, translation.SOURCE, translation.LICENCE, captions))
    books = {f"part {i}": name for i, name in enumerate(word_vectors.BOOKS)}
    questions = {**word_similarity.PAIRS, "analogies": word_similarity.QUESTIONS}
    for module, name, files in (
        (language_models, language_models.TASK, language_models.FILES),
        (word_vectors, "books", books),
        (word_similarity, "word similarity", questions),
    ):
        rows.append((name, module.SOURCE, module.LICENCE, files))
    for name, source, licence, files in rows:
        console.print(f"[bold]{name}[/bold]  {source}  ({licence})")
        for split_files in dict.fromkeys(files.values()):
            splits = ", ".join(s for s, file in files.items() if file == split_files)
            try:
                path = find_file(flags.data, split_files)
            except ValueError:
                folder = Path(flags.data) / split_files
                path, state = None, f"{'found  ' if folder.is_dir() else 'missing'}  {folder}"
            if path is not None:
                state = f"found    {path}  sha256 {checksum(path)[:16]}"
            console.print(f"  {splits:18} {state}")


def add_encoders(commands):
    text = "the encoders of benchmarks/weights side by side: what each read, cost and predicts"
    parser = commands.add_parser("encoders", help=text, description=text)
    parser.add_argument("--data", default="data", metavar="DIR", help="(default data)")
    parser.add_argument(
        "--results", default=str(HERE / "results"), metavar="DIR", help="where the file is put"
    )
    parser.set_defaults(run=run_encoders)


def run_encoders(flags):
    from benchmarks.suites.compare_encoders import FILE, compare, markdown

    compare(flags.data, flags.results)
    print(f"\n{markdown(flags.results)}\nResult file: {Path(flags.results) / FILE}")


def add_speed(commands):
    from benchmarks.speed.run import SUITES, Speed
    from keras_plm.experiments.flags import add_flags

    text = "our throughput beside the peers', in one run"
    parser = commands.add_parser("speed", help=text, description=text)
    parser.add_argument("--data", metavar="DIR", help="for real text: its sst/trees and books")
    parser.add_argument("--out", metavar="FILE", help="also write a JSON file")
    parser.add_argument(
        "--suite", metavar="NAME", help=f"settings that go together, which flags change: {SUITES}"
    )
    add_flags(parser, Speed)
    parser.set_defaults(run=run_speed)


def run_speed(flags):
    from benchmarks.speed.run import SUITES, Speed, speed
    from keras_plm.experiments.flags import from_flags, named

    of_suite = {} if flags.suite is None else named(SUITES, flags.suite, "suite")
    for name, value in of_suite.items():
        if name not in flags:
            setattr(flags, name, value)
    sentences = None
    if flags.data is not None:
        from keras_plm.datasets.tasks import TASKS

        sentences = [example.text for example in TASKS["sst5"].read(flags.data, "train")]
    speed(from_flags(Speed, flags), sentences, flags.out, data=flags.data)


if __name__ == "__main__":
    sys.exit(main())
