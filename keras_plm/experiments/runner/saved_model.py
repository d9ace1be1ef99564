"""Saved model of a run: one Keras file, with the hash of its result."""

import zipfile

from keras_plm.files.writing import replacing
from keras_plm.transfer.feature_store import fitting
from keras_plm.transfer.probing.probes import Probe


def save_model(runner, run, model, record, labels, path):
    """Saves the trained model of a run; a reader of features gets its frozen encoder.

    An older model of another result gets the first digits of that result's hash in its name.

    Args:
        runner: A `Runner`.
        run: The `Run`.
        model: The trained head, reader or `Probe`.
        record: The `Record` of the run.
        labels: Labels of the task.
        path: The file.

    Returns:
        The path of the older model; `None` if there was none.
    """
    older = None
    with replacing(path, ".keras") as temporary:
        _whole(runner, run, model, record, labels).save(temporary)
        with zipfile.ZipFile(temporary, "a") as archive:
            archive.comment = record.hash.encode()
        if path.is_file() and (found := hash_in(path)) != record.hash:
            mark = found[:8] if found else "older"
            older = path.replace(path.with_name(f"{path.stem}.{mark}{path.suffix}"))
    return older


def hash_in(path):
    """Returns the hash of the result in a saved model, or `None`."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.comment.decode(errors="replace")
    except (OSError, zipfile.BadZipFile):
        return None


def _whole(runner, run, model, record, labels):
    """Returns the trained head; a task network on features gets its frozen encoder."""
    if not run.reads_features:
        return model
    encoder, head = runner.features.encoder(run, record.seed), run.head(runner.task)
    if isinstance(model, Probe):
        layers = len(encoder.output["layers"])
        model = model.task_network(head, labels, layers, run.dropout)
    return run.build(record.learning_rate, record.seed).model(
        encoder,
        head,
        labels,
        fitting(runner.tokenizer, encoder),
        model,
        runner.train_examples(run),
        runner.features.word_vectors(run)[0] if run.words else None,
    )
