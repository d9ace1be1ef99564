"""Progress of running work: bars in a terminal, plain lines in a log."""

import contextlib
import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

# Without markup: `[x]` in a file name is plain text.
console = Console(highlight=False, soft_wrap=True, markup=False)


def silence_ahead(what):
    """Announces slow work without other output, on the error stream."""
    Console(stderr=True, highlight=False, soft_wrap=True, markup=False).print(f"{what} ...")


def _text(form):
    return TextColumn(form, markup=False)


def now_and_then(say, seconds=30):
    """Limits `say` to one line per `seconds`; the first interval prints nothing."""
    last = [time.monotonic()]

    def limited(line):
        if time.monotonic() - last[0] >= seconds:
            last[0] = time.monotonic()
            say(line)

    return limited


@contextlib.contextmanager
def progress_bar(description, total, unit=None):
    """Yields `advance(line, done=None)`, which shows a line and moves the bar.

    Args:
        description: Name of the work.
        total: Amount of work.
        unit: If True, each call advances the bar by 1, and the bar shows the count. Otherwise
            `done` sets the bar.
    """
    if not console.is_terminal:

        def advance(line, done=None):
            console.print(line)

        yield advance
        return
    columns = [_text("{task.description}"), BarColumn()]
    columns += [MofNCompleteColumn()] if unit else []
    columns += [_text("{task.fields[line]}"), TimeElapsedColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(description, total=total, line="")

        def advance(line, done=None):
            if unit:
                console.print(line)
                bar.advance(task)
            else:
                bar.update(task, completed=done, line=line)

        yield advance


@contextlib.contextmanager
def jobs_view(description, total):
    """Yields `(progress, epoch, finished)` for `jobs.run_jobs`: lines, and one bar below them.

    A log has only lines, with at most one line of `epoch` in 30 seconds.
    """
    if not console.is_terminal:
        yield console.print, now_and_then(console.print), None
        return
    columns = [_text("{task.description}"), BarColumn(), MofNCompleteColumn()]
    columns += [TimeElapsedColumn(), TimeRemainingColumn(), _text("{task.fields[line]}")]
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(description, total=total, line="")
        yield (
            console.print,
            lambda line: bar.update(task, line=line),
            lambda count: bar.update(task, completed=count, line=""),
        )


def held_out_line(when, losses):
    """Formats the losses of held-out text as one line."""
    words = []
    for name, value in losses.items():
        number = f"{value:.1%}" if name == "unknown" else f"{value:.3f}"
        number = f"{value:,}" if isinstance(value, int) else number
        words.append(f"{name.replace('_', ' ')} {number}")
    return f"held-out text {when}: {', '.join(words)}"


def pretraining_line(entry, steps):
    """Formats a log entry of pre-training as one line."""
    words = [f"step {entry['step']}/{steps}", f"loss {entry['loss']:.3f}"]
    if "masked_lm_accuracy" in entry:
        words.append(f"masked-LM accuracy {entry['masked_lm_accuracy']:.1%}")
    if "perplexity" in entry and "forward_perplexity" not in entry:
        words.append(f"perplexity {entry['perplexity']:.1f}")
    if "forward_perplexity" in entry:
        ahead, back = entry["forward_perplexity"], entry["backward_perplexity"]
        words.append(f"perplexity {ahead:.0f} forwards, {back:.0f} backwards")
    words.append(f"{entry['tokens_per_second']:,} tokens/s")
    return "  ".join(words)
