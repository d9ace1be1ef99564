"""Submissions to GLUE's evaluation server: eleven files of predictions in one zip.

A folder of predictions holds one file per task with the task's name on the command line
(`cola.tsv`, `mnli.tsv`, `mnli_mm.tsv`, `ax.tsv` ...). A tab separates its columns `index` and
`prediction`. It has one row per row of the official test file, in the same order. Labels are those
of the official files; scores are numbers.
"""

import difflib
import math
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glue_tasks.tasks import GLUE, GlueTask
from keras_plm.data.formats.tables import table_rows
from keras_plm.files.sequences import as_list
from keras_plm.files.writing import replacing, write_text
from keras_plm.heads import Regressor

HEADER = "index\tprediction\n"


def write_predictions(
    folder: str | os.PathLike, task: GlueTask, predictions: Sequence[Any]
) -> Path:
    """Writes the predictions of a task, `<task>.tsv`, to a folder of predictions.

    Args:
        folder: The folder; it is created if missing.
        task: A task of `GLUE`.
        predictions: Predictions for the rows of the official test file in the same order, such as
            the result of a head's `predict`.

    Returns:
        The path of the file.

    Raises:
        ValueError: If the number of predictions is wrong, or one is neither a label of the task
            nor, for a regression task, a number.

    >>> import tempfile
    >>> from glue_tasks import GLUE
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_predictions(folder, GLUE["cola"], ["1"] * 1063)
    ...     path.name, path.read_text().splitlines()[1]
    ('cola.tsv', '0\\t1')
    """
    path = Path(folder) / f"{task.name}.tsv"
    predictions = as_list(predictions, "predictions")
    predictions = [_written(task, p, f"row {i}") for i, p in enumerate(predictions)]
    _check_count(task, predictions, task.name)
    write_text(path, _table(predictions))
    return path


def read_predictions(folder, task):
    """Reads the predictions of a task as strings of a submission, in the order of the test file.

    Scores are rounded to three places and clipped to the task's range.

    Raises:
        ValueError: If the file is missing or has the wrong number of rows. With file and line, if a
            line is malformed, out of order, or has an invalid prediction.
    """
    path = Path(folder) / f"{task.name}.tsv"
    predictions = []
    for i, (where, row) in enumerate(table_rows(path)):
        if set(row) != {"index", "prediction"}:
            raise ValueError(
                f"{path}: A file of predictions must have the columns index and prediction, "
                f"separated by a tab. Received: {', '.join(row)}"
            )
        if row["index"] != str(i):
            raise ValueError(
                f"{where}: The rows must be in the order of the test file, with indices from 0: "
                f"this one is {i}. Received: {row['index']!r}"
            )
        predictions.append(_written(task, row["prediction"], where))
    _check_count(task, predictions, path)
    return predictions


def write_submission(
    folder: str | os.PathLike, out: str | os.PathLike, fill: bool = False
) -> list[str]:
    """Writes the zip file of a submission for GLUE's evaluation server.

    It checks all predictions first, and writes the file atomically.

    Reference: Wang et al. 2018, arXiv 1804.07461; its server is gluebenchmark.com.

    Args:
        folder: Folder of predictions; see `write_predictions` and the top of this file.
        out: The zip file; an existing file is replaced.
        fill: If True, a task without predictions gets the most frequent training label, or the mean
            score, on every row. The server requires all tasks.

    Returns:
        The names of the filled tasks.

    Raises:
        ValueError: If no task has predictions, or one has none and `fill` is False. If a file
            belongs to no task, or predictions are invalid (see `read_predictions`). If `out` is not
            a zip file in an existing folder.

    >>> import tempfile
    >>> from glue_tasks import GLUE
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_predictions(f"{folder}/predictions", GLUE["wnli"], ["0"] * 146)
    ...     filled = write_submission(f"{folder}/predictions", f"{folder}/glue.zip", fill=True)
    >>> len(filled), "wnli" in filled
    (10, False)
    """
    folder, out = Path(folder), Path(out)
    if out.suffix != ".zip" or not out.parent.is_dir() or out.is_dir():
        raise ValueError(
            "A submission must be a file ending in .zip in an existing folder. "
            f"Received: {str(out)!r}"
        )
    filled = [task for task in GLUE.values() if task.name not in _found(folder)]
    if filled and not fill:
        raise ValueError(
            f"A submission needs all tasks; {folder} lacks {filled[0].name}.tsv. Write it with "
            "`write_predictions`, or fill missing tasks with the most frequent label: --fill. "
            f"Received: no predictions of {', '.join(task.name for task in filled)}"
        )
    tables = {}
    for task in GLUE.values():
        if task in filled:
            predictions = [_written(task, task.majority, task.name)] * task.rows
        else:
            predictions = read_predictions(folder, task)
        tables[task.submission] = _table(predictions)
    with replacing(out) as temporary:
        _write_zip(temporary, tables)
    return [task.name for task in filled]


def _found(folder):
    """Returns the names of the tasks with a file in a folder of predictions."""
    names = sorted(path.stem for path in folder.glob("*.tsv"))
    if not names:
        raise ValueError(
            f"A folder of predictions must hold a file for each task: {', '.join(GLUE)}, each with "
            f"the ending .tsv. Received: {str(folder)!r}, without any"
        )
    for name in names:
        if name not in GLUE:
            near = difflib.get_close_matches(name.lower().replace("-", "_"), GLUE, n=1)
            guess = f" Did you mean {near[0]}.tsv?" if near else ""
            raise ValueError(
                f"A file of predictions must have a task's name.{guess} Known: {', '.join(GLUE)}. "
                f"Received: {folder / name}.tsv"
            )
    return names


def _written(task, prediction, where):
    """Formats a prediction for a submission."""
    if task.head is not Regressor:
        if str(prediction) not in task.labels:
            raise ValueError(
                f"{where}: The labels of {task.name} are {', '.join(task.labels)}. "
                f"Received: {prediction!r}"
            )
        return str(prediction)
    try:
        score = float(prediction)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise ValueError(f"{where}: A score of {task.name} is a number. Received: {prediction!r}")
    low, high = task.labels
    return f"{min(max(low, score), high):.3f}"


def _check_count(task, predictions, where):
    if len(predictions) != task.rows:
        raise ValueError(
            f"{where}: Every row of the official test file needs a prediction, {task.rows:,} for "
            f"{task.name}. Received: {len(predictions):,}"
        )


def _table(predictions):
    return HEADER + "".join(f"{i}\t{p}\n" for i, p in enumerate(predictions))


def _write_zip(path, tables):
    with zipfile.ZipFile(path, "w") as file:
        for name, text in tables.items():
            entry = zipfile.ZipInfo(name)  # dated 1980: equal predictions give equal bytes
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            file.writestr(entry, text)
