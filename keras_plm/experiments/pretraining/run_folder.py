"""Folder of a pre-training run: its settings, its state and the note next to its encoder."""

import dataclasses
from pathlib import Path

from keras_plm.datasets.tasks import checksum
from keras_plm.experiments.environment import environment
from keras_plm.experiments.pretraining.objectives import OBJECTIVE
from keras_plm.files.json_files import Whole, read_json
from keras_plm.files.writing import remove_leftovers, write_json
from keras_plm.training.state_files import has_state


def describe(settings, corpus, prepared=None, init=None):
    """Describes a run by its settings and texts, as a dict for JSON.

    Args:
        settings: A `Pretraining`.
        corpus: Text files.
        prepared: Note of prepared text, instead of a corpus.
        init: Folder of an encoder to train further.
    """
    described = {
        **dataclasses.asdict(settings),
        "corpus": [Path(path).name for path in corpus],
        "corpus_sha256": [checksum(path) for path in corpus],
    }
    if prepared is not None:
        taken = ("corpus", "corpus_sha256", "sentences", "vocabulary_size", "lowercase")
        described |= {name: prepared[name] for name in taken}
    if init is not None:
        described |= {
            "init": Path(init).resolve().name,
            "init_sha256": checksum(Path(init) / "model.safetensors"),
            "init_objective": (Path(init) / OBJECTIVE).is_file(),
            "size": None,  # `init` determines both
            "vocabulary_size": None,
        }
    return described


_LOSSES = {str: float}
_NOTE = {"steps_done": Whole(), "seconds": float, "valid?": _LOSSES, "valid_before?": _LOSSES}


def read_note(out):
    """Reads the note next to the encoder of a run."""
    return read_json(Path(out) / "pretraining.json", _NOTE)


class RunFolder:
    """Files of one run; they must have one writer at a time.

    Args:
        out: Folder of the encoder.
        described: Result of `describe`.
        distribution: `Distribution` of the run; only its chief writes.

    Attributes:
        training: Folder of the run's state.
    """

    def __init__(self, out, described, distribution):
        self.out, self.training = Path(out), Path(out) / "training"
        self.described, self.distribution = described, distribution
        self._settings = self.training / "settings.json"
        self._valid_before = self.training / "valid_before.json"
        self._note = self.out / "pretraining.json"

    def claim(self, resume, defaults):
        """Checks that the run may start or resume here, and writes its settings.

        Args:
            resume: Whether a state may be resumed.
            defaults: Values of settings that an older state does not hold.

        Raises:
            ValueError: If the folder holds another run or another encoder.
        """
        before = read_json(self._settings, dict) if self._settings.is_file() else {}
        if has_state(self.training):
            self._check_resume(resume, defaults | before)
        elif (self.out / "config.json").exists():
            raise ValueError(
                f"{self.out} holds an encoder without the state of a run: choose another folder. "
                f"Received: out={str(self.out)!r}"
            )
        elif before and before != self.described:  # nothing was trained with them
            (self.training / "tokenizer.json").unlink(missing_ok=True)
        self.distribution.wait()  # until all processes have read the folder
        if self.distribution.is_chief:
            for folder in (self.out, self.training):
                remove_leftovers(folder, "*")
            write_json(self._settings, self.described)

    def _check_resume(self, resume, before):
        if not resume:
            raise ValueError(
                f"{self.out} holds a pre-training run: resume it with --resume, or choose another "
                f"folder. Received: out={str(self.out)!r}"
            )
        now = self.described
        changed = [k for k in {**before, **now} if before.get(k) != now.get(k)]
        if changed:
            differences = (f"{k}={now.get(k)!r} instead of {before.get(k)!r}" for k in changed)
            raise ValueError(
                f"The run in {self.out} must resume with its own settings and text; choose another "
                f"folder for others. Received: {', '.join(differences)}"
            )

    def knows_valid_before(self):
        """Returns whether held-out losses of the initial encoder exist; all processes agree."""
        found = self._valid_before.is_file()
        self.distribution.wait()
        return found

    def write_valid_before(self, losses):
        """Writes the held-out losses of the initial encoder."""
        if self.distribution.is_chief:
            write_json(self._valid_before, losses)

    def read_note(self):
        """Reads the note next to the encoder; returns an empty dict without one."""
        return read_note(self.out) if self._note.is_file() else {}

    def write_note(self, steps, seconds):
        """Writes the note, with the steps and seconds of training."""
        note = self.described | {"steps_done": steps, "seconds": seconds}
        if self.distribution.num_devices > 1:
            note["devices"] = self.distribution.num_devices
        if self._valid_before.is_file():
            note["valid_before"] = read_json(self._valid_before, _LOSSES)
        write_json(self._note, note | environment())

    def add_to_note(self, **values):
        write_json(self._note, self.read_note() | values)
