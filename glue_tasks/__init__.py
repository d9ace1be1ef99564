"""Definitions of the GLUE tasks: files, columns, labels, metrics and submissions."""

from glue_tasks.score import glue_score
from glue_tasks.submission import write_predictions, write_submission
from glue_tasks.tasks import GLUE, read_unlabelled

__all__ = ["GLUE", "glue_score", "read_unlabelled", "write_predictions", "write_submission"]
