"""What the terminal shows while work goes on."""

import contextlib

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

console = Console(highlight=False)


@contextlib.contextmanager
def pretraining_progress(settings):
    """A bar for pre-training; yields the function that moves it. In a log file, plain lines."""
    if not console.is_terminal:
        yield lambda entry: print(_line(entry, settings), flush=True)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[line]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("pre-training", total=settings.steps, line="compiling")
        yield lambda entry: bar.update(
            task, completed=entry["step"], line=_line(entry, settings)
        )


def _line(entry, settings):
    words = [f"step {entry['step']}/{settings.steps}", f"loss {entry['loss']:.3f}"]
    if "masked_lm_accuracy" in entry:
        words.append(f"masked words right {entry['masked_lm_accuracy']:.1%}")
    words.append(f"{entry['tokens_per_second']:,} tokens/s")
    return "  ".join(words)
