"""What the GLUE tasks are: files, columns, labels, metrics. No training here."""

from glue_tasks.tasks import GLUE

__all__ = ["GLUE"]
