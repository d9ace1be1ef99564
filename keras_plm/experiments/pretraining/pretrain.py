"""Pre-training of an encoder from raw text."""

import contextlib
import dataclasses

import keras

from keras_plm.experiments.pretraining.callbacks import Meter, Snapshots
from keras_plm.experiments.pretraining.objectives import OBJECTIVES
from keras_plm.experiments.pretraining.prepare import read_prepared
from keras_plm.experiments.pretraining.run_folder import RunFolder, describe
from keras_plm.experiments.pretraining.settings import Pretraining
from keras_plm.files.locks import one_writer
from keras_plm.tokenizers import open_text
from keras_plm.training.callbacks import check_loss
from keras_plm.training.distribution import Distribution, begun_processes, distribute
from keras_plm.training.resume import TrainingState


def pretrain(
    settings,
    corpus,
    out,
    valid=None,
    resume=False,
    progress=None,
    every_seconds=300,
    init=None,
    prepared=None,
    devices=1,
):
    """Pre-trains an encoder on text files, after training its tokenizer.

    `out` becomes an encoder folder for `keras_plm.load`. It also holds the settings of the run,
    `pretraining.json`, and the objective's own weights, for `init`. The state of the run, for
    `resume`, is in `out/training`.

    Args:
        settings: A `Pretraining`.
        corpus: Text files, plain or .gz: one paragraph per line, a blank line between documents.
        out: Folder of the encoder.
        valid: Held-out text file. Its loss is computed at the end and, with `init`, at the start.
        resume: If True, resume an earlier call with the same settings and files.
        progress: Called every few seconds with a dict of step, tokens, losses and speed.
        every_seconds: Seconds between two saved states.
        init: Folder of an encoder to train further, for example on text of another domain.
        prepared: Folder of `prepare`, instead of a corpus.
        devices: Number of devices, from the first; `None` for all. With torch, every process has
            one device and calls this function with the same `out`.

    Returns:
        The encoder and its tokenizer.

    Raises:
        ValueError: If `out` holds another run or an encoder or has another writer, a file is
            missing, empty or damaged, or devices are missing.
        FloatingPointError: If the loss or the weights are not finite. The last saved state remains.
    """
    distribution = _distribution(settings, devices)
    for path in [*corpus, *([] if valid is None else [valid])]:
        open_text(path).close()  # raises for a missing file
    note = None
    if prepared is not None:
        note, *prepared = read_prepared(prepared, settings.model, verify=distribution.is_chief)
        settings = dataclasses.replace(settings, sentences=note["sentences"])
    folder = RunFolder(out, describe(settings, corpus, note, init), distribution)
    # Several processes write to one folder; the chief holds its lock for all.
    with one_writer(out) if distribution.is_chief else contextlib.nullcontext():
        folder.claim(resume, dataclasses.asdict(Pretraining(settings.model, settings.size)))
        objective = OBJECTIVES[settings.model](
            settings, corpus, folder.training, init, prepared, distribution
        )
        _fill(settings, objective, folder, valid, init is not None, progress, every_seconds)
        distribution.wait()  # until the chief has written all files
    distribution.close()
    return objective.encoder, objective.tokenizer


def _fill(settings, objective, folder, valid, further, progress, every_seconds):
    """Trains, and writes all files of the folder.

    Args:
        settings, objective, folder: Those of the run.
        valid, progress, every_seconds: As in `pretrain`.
        further: Whether an encoder is trained further.
    """
    distribution = objective.distribution
    held_out = None if valid is None else objective.held_out(valid)
    meter = Meter(settings, folder.training / "log.jsonl", progress, chief=distribution.is_chief)
    if held_out is not None and further and not folder.knows_valid_before():
        folder.write_valid_before(_evaluate(objective, held_out))

    def on_save(state):
        objective.save(folder.out)
        folder.write_note(state.steps // settings.accumulation_steps, meter.seconds())

    state = _train(settings, objective, folder, meter, every_seconds, on_save)
    steps = state.steps // settings.accumulation_steps
    if distribution.is_chief and folder.read_note().get("steps_done") != steps:
        on_save(state)  # an earlier call saved the state, but not the encoder
    if held_out is not None:
        losses = _evaluate(objective, held_out)
        if distribution.is_chief:
            folder.add_to_note(valid=losses)
            meter.write({"step": steps, **{f"valid_{k}": v for k, v in losses.items()}})


def _train(settings, objective, folder, meter, every_seconds, on_save):
    """Trains in phases from the state in the folder; returns the `TrainingState`."""
    state, micro_batches = None, settings.accumulation_steps
    for length, first, end in settings.phases:
        first, end = first * micro_batches, end * micro_batches
        batches = objective.batches(length)
        if state is None:
            state = meter.state = TrainingState(folder.training, batches, every_seconds, on_save)
            state.restore(objective.model)
            meter.resume(state.steps)
        state.follow(batches, first)
        batches.step = state.steps - first
        if state.steps < end:
            meter.end = end  # the meter stops `fit` there
            snapshots = Snapshots(settings, state, objective, folder.out / "snapshots")
            with meter.stopping():
                callbacks = [state, meter, snapshots]
                objective.model.fit(batches, epochs=10**6, verbose=0, callbacks=callbacks)
    return state


def _distribution(settings, devices):
    """Returns the `Distribution` over the devices."""
    begun = begun_processes()
    if keras.backend.backend() == "torch" and devices not in (None, begun):
        raise ValueError(
            "torch must have one process per device: start the processes with torchrun, and set "
            f"--devices all. Received: devices={devices}, of {begun} processes"
        )
    if devices == begun == 1:
        return Distribution()
    if settings.model == "elmo":
        raise ValueError(
            "A biLM must train on one device, because it carries states from batch to batch. "
            f"Received: model='elmo', devices={'all' if devices is None else devices}"
        )
    return distribute("data", devices=None if begun > 1 else devices)


def _evaluate(objective, held_out):
    losses = objective.model.evaluate(held_out, verbose=0, return_dict=True)
    check_loss(objective.model, losses, "on the held-out text")
    losses = {name: float(value) for name, value in losses.items()}
    return losses | objective.about_held_out(losses)
