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
from keras_plm.training.distribution import Distribution, begun_processes, distribute
from keras_plm.training.fit import check_loss
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
    """Learns an encoder from text files, and first its vocabulary.

    `out` becomes an encoder folder for `keras_plm.load`, with `pretraining.json`, the settings of
    the run, and with the objective's own weights, for `init`; the state of the run, for `resume`,
    is in `out/training`.

    Args:
        settings: A `Pretraining`.
        corpus: Text files, plain or .gz: a paragraph a line, a blank line between documents.
        out: The folder.
        valid: A text file whose loss is measured at the end and, with `init`, at the beginning.
        resume: If True, resume an earlier call with the same settings and files.
        progress: Called with a dict of step, tokens, losses and speed, now and then.
        every_seconds: How often the state is saved.
        init: Folder of an encoder to train further, on text of another kind, say.
        prepared: A folder of `prepare`, in place of a corpus.
        devices: Number of devices, the first ones; `None` for all. Under torch every process has
            one device and calls this, with the same `out`.

    Returns:
        The encoder and its tokenizer.

    Raises:
        ValueError: If `out` holds another run or an encoder or has another writer, a file is
            missing, empty or damaged, or the devices are not there.
        FloatingPointError: If the loss or the weights are not finite. The last saved state stays.
    """
    distribution = _distribution(settings, devices)
    for path in [*corpus, *([] if valid is None else [valid])]:
        open_text(path).close()  # raises for a missing file
    note = None
    if prepared is not None:
        note, *prepared = read_prepared(prepared, settings.model, verify=distribution.is_chief)
        settings = dataclasses.replace(settings, sentences=note["sentences"])
    folder = RunFolder(out, describe(settings, corpus, note, init), distribution)
    # Several processes write one folder, and the chief holds it for all.
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
        settings, objective, folder: Of the run.
        valid, progress, every_seconds: As of `pretrain`.
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
        on_save(state)  # an earlier call stopped between the state and the encoder
    if held_out is not None:
        losses = _evaluate(objective, held_out)
        if distribution.is_chief:
            folder.add_to_note(valid=losses)
            meter.write({"step": steps, **{f"valid_{k}": v for k, v in losses.items()}})


def _train(settings, objective, folder, meter, every_seconds, on_save):
    """Trains in phases from where the folder's state is; gives the `TrainingState`."""
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
            meter.end = end  # where it stops `fit`
            snapshots = Snapshots(settings, state, objective, folder.out / "snapshots")
            with meter.stopping():
                callbacks = [state, meter, snapshots]
                objective.model.fit(batches, epochs=10**6, verbose=0, callbacks=callbacks)
    return state


def _distribution(settings, devices):
    """The `Distribution` over so many devices."""
    begun = begun_processes()
    if keras.backend.backend() == "torch" and devices not in (None, begun):
        raise ValueError(
            "torch trains on one device a process: begin as many with torchrun, and say "
            f"--devices all. Received: devices={devices}, of {begun} processes"
        )
    if devices == begun == 1:
        return Distribution()
    if settings.model == "elmo":
        raise ValueError(
            "A biLM carries its states from batch to batch, on one device. "
            f"Received: model='elmo', devices={'all' if devices is None else devices}"
        )
    return distribute("data", devices=None if begun > 1 else devices)


def _evaluate(objective, held_out):
    losses = objective.model.evaluate(held_out, verbose=0, return_dict=True)
    check_loss(objective.model, losses, "on the held-out text")
    losses = {name: float(value) for name, value in losses.items()}
    return losses | objective.about_held_out(losses)
