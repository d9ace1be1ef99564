"""What a suite would do, before it does it: its cells, what is done, how long the rest may take."""

import statistics
from pathlib import Path

from rich.table import Table

from keras_plm.experiments.jobs import Worker, work
from keras_plm.experiments.results import read_json


def measured(*folders):
    """Seconds that an example of one pass took in results below some folders.

    Returns:
        `{key: [seconds]}`; keys tell more or less of a run, see `_keys`.
    """
    found = {}
    for folder in folders:
        for path in Path(folder).glob("**/*.seed*.json"):
            try:
                result = read_json(path)
                fields, fits = result["fields"], len(result["trials"]) if not result["seed"] else 1
                work = fits * fields["epochs"] * result["counts"]["train"]
                keys = _keys(result["task"], result["encoder"], result["method"], fields["reader"])
                for key in keys:
                    found.setdefault(key, []).append(result["seconds"] / work)
            except (KeyError, TypeError, ValueError, ZeroDivisionError):
                continue  # of another kind of suite, or damaged: nothing to reckon with
    return found


def _keys(task, encoder, method, reader):
    """What tells how long a run takes, the most telling first."""
    return (task, encoder, method, reader), (task, method, reader), (method, reader)


def seconds_of(cell, seed, examples, known):
    """About how long a cell takes with a seed, `None` where nothing like it was measured."""
    run = cell.run
    fits = len(run.grid) if seed == 0 else 1
    for key in _keys(cell.task, cell.encoder_name, run.method, run.reader):
        if key in known:
            return statistics.median(known[key]) * fits * run.epochs * examples
    return None


def plan(cells, place, seeds, known):
    """What is to do, and a table of it.

    Args:
        cells: A list of `Cell`.
        place: A `Place`.
        seeds: How many; `None`: each cell's own.
        known: See `measured`.

    Returns:
        `(table, words)`: a row for each cell, and the sum in a sentence.
    """
    worker = Worker(place, lambda line: None)
    table = Table("task", "encoder")
    table.add_column("run", overflow="fold")
    table.add_column("seeds done")
    table.add_column("about")
    makings = dict.fromkeys(making.name for cell in cells for making in cell.needs)
    done, total, unknown, unread = 0, 0.0, 0, {}
    for cell in cells:
        there, note, wanted = 0, "", seeds or cell.seeds
        missing = cell.needs and not (Path(cell.encoder) / "config.json").is_file()
        try:
            if cell.task in unread:
                raise ValueError(unread[cell.task])
            bench = worker.bench(cell)
        except (ValueError, OSError) as error:
            to_do, examples = range(wanted), cell.run.train_limit or None
            note = "encoder to be made"
            if not missing:
                unread[cell.task], note = str(error), "cannot be read, see below"
        else:
            to_do = [seed for seed in range(wanted) if bench.result(cell.run, seed) is None]
            there, examples = wanted - len(to_do), len(bench.train_examples(cell.run))
        times = [seconds_of(cell, seed, examples, known) if examples else None for seed in to_do]
        failed = sum(place.failure(cell, seed).is_file() for seed in to_do)
        note = note or (f"{failed} failed before" if failed else "")
        needed = sum(t for t in times if t is not None)
        unknown += sum(t is None for t in times)
        done, total = done + there, total + needed
        shown = "not known" if times and None in times else duration(needed) if to_do else ""
        about = "; ".join(words for words in (shown, note) if words)
        if cell.task in unread:
            there = "?"
        table.add_row(cell.task, cell.encoder_name, cell.run.name, f"{there} of {wanted}", about)
    left = len(work(cells, seeds)) - done
    counts = sorted({seeds or cell.seeds for cell in cells})
    each = " or ".join(map(str, counts)) + (" seeds" if counts != [1] else " seed")
    words = f"{len(cells)} cells, {each} each: {done} results are there, {left} to do"
    words += ", fewer where results are there that cannot be read" if unread else ""
    if left > unknown:
        words += f", in about {duration(total)} of one process, reckoned from results that are "
        words += "there, which other machines may have made"
    if unknown:
        words += f"; nothing like {unknown} of them was measured"
    if makings and left:
        words += f". First to be made where missing, not counted: {', '.join(makings)}"
    for task, why in unread.items():
        words += f"\n{task}, of which it is not known what is done: {why}"
    return table, words


def duration(seconds):
    """As one would say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
