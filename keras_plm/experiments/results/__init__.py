"""Results of runs: a record for each run, in a folder for each suite."""

from keras_plm.experiments.results.folder import (
    SEEDS,
    NoResult,
    ResultFolder,
    folders_below,
    marked,
    read_results,
    suite_folder,
)
from keras_plm.experiments.results.packed import LOCKS
from keras_plm.experiments.results.record import MEASURED, Record, result_hash, result_name
from keras_plm.experiments.results.single_files import (
    archive,
    failure_of,
    read_json,
    write_failure,
)

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
