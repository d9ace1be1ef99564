"""One case: the input of a reader, damaged, read, and the result judged."""

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
        name: Its name on the command line.
        write: `write(folder)` makes the input. A dict is a file's text or bytes by name.
        read: `read(folder)` reads it as a user would and gives what was read.
        files: Kind of each file that is damaged, a key of `damage.MUTATIONS`, by its name.
        check: `check(folder, result)` compares a result with the files by means of its own. It
            gives `None`, or what is wrong.
        weight: Cases relative to other readers. One that takes longer has fewer.
        gz: If True, the damaged file is a .gz file now and then; "always" each time.
        leaves: Patterns of files below the folder that reading may add, change or remove.
        package: A package that is not always installed.
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
        keras.utils.clear_session(free_memory=False)  # which numbers the names of models
        set_seed(0)
        folder.mkdir(parents=True)
        if callable(self.write):
            self.write(folder)
        else:
            write_files(folder, self.write)

    def judge(self, folder):
        """Reads a folder; gives `None`, or what is wrong with the result."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = self.read(folder)
            try:
                return None if self.check is None else self.check(folder, found)
            except Exception as error:  # what the product read is nothing for a plain reader
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
        work: Folder for the case; it is the working folder meanwhile.
        begun: Called with the damage before anything is read.
        show: If True, a traceback is printed and the files stay.

    Returns:
        A dict, an object of JSON.
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
    """Kind, size and time of all that is below a folder, by name."""
    found = {}
    for path in folder.rglob("*"):
        about = path.lstat()
        is_folder = path.is_dir() and not path.is_symlink()
        size = None if is_folder else (about.st_size, about.st_mtime_ns)
        found[path.relative_to(folder).as_posix()] = (about.st_mode, size)
    return found


def differences(before, after, allowed):
    """`(name, "new" | "gone" | "changed")` of what differs and is not allowed to."""
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
    """Raises `Hang` after so many seconds of computing."""

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
    """The rise of this process's resident memory since now."""

    def __init__(self):
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        self.before = self._resident("VmRSS")

    def rise(self):
        """Bytes."""
        return self._resident("VmHWM") - self.before

    @staticmethod
    def _resident(name):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024
