"""One case: damages the input of a reader, reads it and judges the result."""

import contextlib
import dataclasses
import fnmatch
import os
import random
import shutil
import signal
import time
import traceback
import typing
import warnings
from pathlib import Path

import keras

from keras_plm.training.resume import set_seed
from tests.fuzz.binary_mutations import CANARY
from tests.fuzz.damage import damage
from tests.fuzz.outcomes import ALLOWED, Hang, of_error, pattern

COMPUTING, MEMORY = 10, 1 << 30  # seconds and bytes that a case may take


@dataclasses.dataclass(frozen=True)
class Reader:
    """A reader of the product, with a small valid input.

    Attributes:
        name: Name on the command line.
        write: `write(folder)` makes the input. A dict gives the text or bytes of each file by name.
        read: `read(folder)` reads the input as a user would and returns the result.
        files: `{name of a file to damage: its kind}`, with keys of `damage.MUTATIONS`.
        check: `check(folder, result)` compares a result with the files independently. It returns
            `None`, or a description of the error.
        weight: Number of cases relative to other readers. Slow readers have fewer.
        gz: If True, some cases use a damaged .gz file; if "always", all of them do.
        leaves: Patterns of files below the folder that reading may add, change or remove.
        package: Optional package that the reader needs.
    """

    name: str
    write: typing.Callable | dict
    read: typing.Callable
    files: dict
    check: typing.Callable | None = None
    weight: float = 1.0
    gz: bool | str = False
    leaves: tuple = ()
    package: str | None = None

    def make(self, folder):
        """Writes the valid input to a new folder, the same each time."""
        keras.utils.clear_session(free_memory=False)  # resets the numbers in names of models
        set_seed(0)
        folder.mkdir(parents=True)
        if callable(self.write):
            self.write(folder)
        else:
            write_files(folder, self.write)

    def judge(self, folder):
        """Reads a folder; returns `None`, or a description of the error in the result."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = self.read(folder)
            try:
                return None if self.check is None else self.check(folder, found)
            except Exception as error:  # the product read a file that the plain reader refuses
                return f"a result that cannot be checked: {type(error).__name__}: {error}"


def write_files(folder, files):
    """Writes files, texts or bytes, by their names."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def run_case(reader, seed, number, template, work, begun=None, show=False):
    """Runs one case in this process.

    Args:
        reader: A `Reader`.
        seed, number: With the reader's name they decide the damage.
        template: Folder of the valid input.
        work: Folder for the case, and its working folder.
        begun: Called with the damage before reading.
        show: Whether to print a traceback and keep the files.

    Returns:
        A dict for JSON.
    """
    rng = random.Random(f"{seed}/{reader.name}/{number}")
    outside = Path(work) / f"{reader.name}.{number}"
    folder = outside / "a" / "b"
    shutil.copytree(template, folder, symlinks=True)
    how = damage(reader, rng, folder)
    if begun is not None:
        begun(how)
    before, peak, start = state(outside), Peak(), time.process_time()
    os.chdir(outside)
    message = ""
    try:
        with at_most(COMPUTING):
            wrong = reader.judge(folder)
        outcome, signature = ("ok", "") if wrong is None else ("wrong", pattern(wrong, str(folder)))
        message = wrong or ""
    except (Exception, Hang) as error:
        names = [str(folder), *(Path(name).name for name in reader.files)]
        outcome, signature = of_error(error, names)
        message = f"{type(error).__name__}: {error}"
        if show:
            traceback.print_exc()
    found = {"seed": seed, "reader": reader.name, "case": number, "damage": how}
    if (outside / CANARY).exists():
        outcome, signature = "exec", "code of the input was run"
    elif changed := differences(before, state(outside), reader.leaves):
        if not all(name.startswith("a/b/") for name, _ in changed):
            outcome, signature = "escape", str(changed[:3])
        elif outcome in ALLOWED:
            outcome, signature = "litter", str([(n, w) for n, w in changed[:3]])
    if outcome in ALLOWED and peak.rise() > MEMORY:
        outcome, signature = "memory", f"{peak.rise() >> 20} MB"
    os.chdir(work)
    if not show:
        shutil.rmtree(outside, ignore_errors=True)
    seconds = round(time.process_time() - start, 2)
    message = message[:400].replace(str(outside), "")
    found |= {"outcome": outcome, "signature": signature, "message": message, "seconds": seconds}
    return found


def state(folder):
    """Returns kind, size and time of each file below a folder, by name."""
    found = {}
    for path in folder.rglob("*"):
        about = path.lstat()
        is_folder = path.is_dir() and not path.is_symlink()
        size = None if is_folder else (about.st_size, about.st_mtime_ns)
        found[path.relative_to(folder).as_posix()] = (about.st_mode, size)
    return found


def differences(before, after, allowed):
    """Returns `(name, "new" | "gone" | "changed")` of forbidden differences."""
    changed = []
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) == after.get(name):
            continue
        if any(fnmatch.fnmatch(name.removeprefix("a/b/"), rule) for rule in allowed):
            continue
        word = "new" if name not in before else "gone" if name not in after else "changed"
        changed.append((name, word))
    return changed


@contextlib.contextmanager
def at_most(seconds):
    """Raises `Hang` after this number of seconds of CPU time."""

    def stop(*_):
        raise Hang

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class Peak:
    """Measures how much this process's resident memory rises from now on."""

    def __init__(self):
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        self.before = self._resident("VmRSS")

    def rise(self):
        """Returns the rise in bytes."""
        return self._resident("VmHWM") - self.before

    @staticmethod
    def _resident(name):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024
