"""Two commands: `suite` runs a suite, `encoders` compares the encoders of this repository."""

from pathlib import Path

from benchmarks import RESULTS


def add_suite(commands):
    from benchmarks.suites import SUITES
    from keras_plm.cli.run import add_data_flags, add_import_flag
    from keras_plm.experiments.flags import add_devices

    text = "run all jobs of a published comparison and print its tables"
    scales = "; ".join(f"{name}: {', '.join(suite.scales)}" for name, suite in SUITES.items())
    parser = commands.add_parser("suite", help=text, description=f"{text}. Scales: {scales}.")
    parser.add_argument("name", metavar="NAME", help=f"one of {', '.join(SUITES)}")
    parser.add_argument("--scale", metavar="NAME", help="run at this scale (default small)")
    parser.add_argument("--task", metavar="NAME", help="run only this task")
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="run so many seeds (default 3; some runs have more)"
    )
    parser.add_argument(
        "--results", default=RESULTS, metavar="DIR",
        help="keep the results of all suites below this folder (default benchmarks/results)",
    )  # fmt: skip
    add_data_flags(parser)
    parser.add_argument("--encoder", metavar="DIR", help="compare the encoder in this folder")
    add_import_flag(parser)
    parser.add_argument(
        "--words", metavar="DIR", help="use the word vectors in this folder in ELMo's suites"
    )
    parser.add_argument("--task-file", metavar="FILE", help="read words in context from this file")
    parser.add_argument("--text", metavar="COLUMN", help="use this text column of --task-file")
    parser.add_argument("--label", metavar="COLUMN", help="use this label column of --task-file")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print finished runs, missing runs and the estimated time, without running",
    )
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="run on a Ray cluster: its address, 'auto' or 'local'"
    )
    for name, default in (("cpus", 1.0), ("gpus", 0.0)):
        parser.add_argument(
            f"--ray-{name}", type=float, default=default, metavar="N",
            help=f"give each run on Ray so many {name.upper()[:-1]}s (default {default:g})",
        )  # fmt: skip
    add_devices(parser)
    parser.set_defaults(run=run_suite)


def run_suite(flags):
    """Runs all jobs of a suite with all seeds, seed 0 first, then prints its tables."""
    from benchmarks.suites import SUITES, folder
    from keras_plm.experiments.flags import named
    from keras_plm.experiments.jobs import check
    from keras_plm.experiments.progress import console

    suite = named(SUITES, flags.name, "suite")
    own = ("encoder", "words", "task_file", "text", "label")
    for name in (*own, *(("task",) if suite.jobs is None else ())):
        if getattr(flags, name) is not None and name not in suite.flags:
            raise ValueError(
                f"The suite {flags.name} sets its own tasks and settings: omit the flag. "
                f"Received: --{name.replace('_', '-')} {getattr(flags, name)}"
            )
    ours = Path(flags.results).resolve() == Path(RESULTS).resolve()
    if suite.one_encoder and flags.encoder is not None and ours:
        raise ValueError(
            f"The tables of {flags.name} have no column for a second encoder: give `--results` a "
            f"folder for the results of this one. Received: --encoder {flags.encoder}"
        )
    if flags.seeds is not None and flags.seeds < 1:
        raise ValueError(f"`--seeds` must be 1 or more. Received: {flags.seeds}")
    runs = named(suite.scales, flags.scale or "small", "scale")
    console.print(f"{flags.name}, after {suite.source}")
    results = folder(flags.results, flags.name, flags.scale)
    given = vars(flags) | {"features": flags.feature_cache, "feature_gb": flags.max_cache_gb}
    taken = {name: given[name] for name in suite.flags}
    if suite.jobs is not None:
        failed, total = _run_jobs(flags, suite, runs, results, taken)
    elif flags.dry_run or flags.ray:
        able = [name for name, other in SUITES.items() if other.jobs is not None]
        raise ValueError(
            f"`--dry-run` and `--ray` need a suite of separate runs: {', '.join(able)}. "
            f"Received: {flags.name}"
        )
    elif flags.devices != "1":
        raise ValueError(
            "`--devices` needs a suite of separate runs. "
            f"Received: {flags.name} --devices {flags.devices}"
        )
    else:
        failed, total = {}, 1
        suite.run(runs, flags.data, results, flags.seeds or 3, console.print, **taken)
    if flags.dry_run:
        return
    if len(failed) < total:
        console.print("\n" + suite.markdown(results))
        console.print(f"Result files: {results}")
    check(failed, total)


def _run_jobs(flags, suite, runs, results, taken):
    """Plans or runs the jobs of a suite; returns the failed jobs and the number of all jobs."""
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
        silence_ahead("Reading each task and encoder to find finished runs")
        table, words = plan(jobs, workspace, flags.seeds, measured(RESULTS, flags.results))
        console.print(table, words, sep="\n")
        return {}, total
    with jobs_view(flags.name, total) as (progress, epoch, finished):
        if flags.ray:
            ray = {"address": flags.ray, "cpus": flags.ray_cpus, "gpus": flags.ray_gpus}
            failed = run_on_ray(jobs, workspace, flags.seeds, progress, finished, **ray)
        else:
            failed = run_jobs(jobs, workspace, flags.seeds, progress, epoch, finished)
    return failed, total


def add_encoders(commands):
    text = "compare the training text, cost and perplexity of the encoders in benchmarks/weights"
    parser = commands.add_parser("encoders", help=text, description=text)
    parser.add_argument(
        "--data", default="data", metavar="DIR", help="read data from this folder (default data)"
    )
    parser.add_argument(
        "--results", default=RESULTS, metavar="DIR",
        help="write the result file into this folder (default benchmarks/results)",
    )  # fmt: skip
    parser.set_defaults(run=run_encoders)


def run_encoders(flags):
    from benchmarks.suites.compare_encoders import FILE, compare, markdown

    compare(flags.data, flags.results)
    print(f"\n{markdown(flags.results)}\nResult file: {Path(flags.results) / FILE}")
