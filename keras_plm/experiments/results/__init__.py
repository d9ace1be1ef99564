"""Results of runs: a record for each run, in a folder for each suite."""

from keras_plm.experiments.results.folder import (
    LOCKS,
    SEEDS,
    NoResult,
    ResultFolder,
    archive,
    failure_of,
    folders_below,
    marked,
    read_json,
    read_results,
    suite_folder,
    write_failure,
)
from keras_plm.experiments.results.record import MEASURED, Record, result_hash, result_name

__all__ = [
    "LOCKS",
    "MEASURED",
    "SEEDS",
    "NoResult",
    "Record",
    "ResultFolder",
    "archive",
    "failure_of",
    "folders_below",
    "marked",
    "read_json",
    "read_results",
    "result_hash",
    "result_name",
    "suite_folder",
    "write_failure",
]
