"""Single files of results: a record, an archived file, the error of a run."""

import hashlib
import os
import traceback
from pathlib import Path
from typing import Any

from keras_plm.experiments.environment import environment
from keras_plm.files import json_files
from keras_plm.files.writing import write_json


def read_json(path: str | os.PathLike) -> Any:
    """Reads the value of a JSON file, which may have `NaN` for a number.

    Args:
        path: The file.

    Returns:
        The value.

    Raises:
        ValueError: If the file is damaged or missing.

    >>> from pathlib import Path
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     size = Path(folder, "result.json").write_text('{"score": NaN}')
    ...     read_json(f"{folder}/result.json")
    {'score': nan}
    """
    path = Path(path)
    try:
        return json_files.read_json(path, nan=True)
    except ValueError as error:
        if not path.is_file():
            raise
        reason = str(error).removeprefix(f"{path} ")
        raise ValueError(
            f"{path} is not a complete result file: remove it to run again. It {reason}"
        ) from error


def archive(path: Path) -> Path:
    """Renames a file by a hash of its content.

    Args:
        path: The file.

    Returns:
        The new path.

    >>> from pathlib import Path
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     size = Path(folder, "result.json").write_text("{}")
    ...     archive(Path(folder, "result.json")).name
    'result.json.44136fa3'
    """
    mark = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return path.replace(path.with_name(f"{path.name}.{mark}"))


def failure_of(path: str | os.PathLike) -> Path:
    """Path of the file with the error of a run without a result.

    Args:
        path: The result file of the run.

    Returns:
        The path, next to the result file.

    >>> failure_of("films/bert.fine_tune.seed0.json").name
    'bert.fine_tune.seed0.failed'
    """
    return Path(path).with_suffix(".failed")


def write_failure(
    path: str | os.PathLike, task: str, encoder: str, run: Any, seed: int, error: BaseException
) -> None:
    """Writes the error of a run without a result, with the current traceback.

    Args:
        path: The result file of the run.
        task, encoder: Names of the task and the encoder.
        run: A `Run`.
        seed: Seed of the run.
        error: The exception.

    >>> from pathlib import Path
    >>> import tempfile
    >>> from keras_plm.experiments.config import Run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "bert.fine_tune.seed0.json")
    ...     write_failure(path, "films", "bert", Run(), 0, ValueError("no data"))
    ...     read_json(failure_of(path))["error"]
    'ValueError: no data'
    """
    record = {
        "task": task,
        "encoder": encoder,
        "run": run.name,
        "settings": run.to_json(),
        "seed": seed,
        "error": f"{type(error).__name__}: {error}",
        "traceback": traceback.format_exc(),
        **environment(),
    }
    write_json(failure_of(path), record)
