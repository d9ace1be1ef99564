"""One writer at a time: among processes, among threads, and after a kill."""

import os
import subprocess
import sys
import threading

import pytest

from benchmarks.checks.processes import run_together
from keras_plm.files import locks
from keras_plm.files.locks import one_writer

pytestmark = pytest.mark.backend_neutral

HOLD = f"""
import runpy, sys
one_writer = runpy.run_path({locks.__file__!r})["one_writer"]
with one_writer(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of `tmp_path / "out"`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "out")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_second_process_is_refused_with_id_of_the_writer(holder, tmp_path):
    with pytest.raises(ValueError, match=f"one writer at a time.*by process {holder.pid} on"):
        with one_writer(tmp_path / "out"):
            pass
    with one_writer(tmp_path / "other"):
        pass


def test_a_link_has_the_lock_of_its_target(holder, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "out")
    with pytest.raises(ValueError, match="one writer at a time"):
        with one_writer(tmp_path / "link"):
            pass


def test_lock_is_released_when_its_process_dies(holder, tmp_path):
    holder.kill()
    holder.wait()
    with one_writer(tmp_path / "out"):
        pass


def test_waiting_writer_gets_lock_after_release(holder, tmp_path):
    threading.Timer(0.2, lambda: holder.communicate("\n")).start()
    with one_writer(tmp_path / "out", wait=True):
        assert holder.wait(10) == 0


def test_lock_is_reentrant_in_one_thread_only(tmp_path):
    refused = []

    def other():
        try:
            with one_writer(tmp_path / "out"):
                pass
        except ValueError as error:
            refused.append(str(error))

    with one_writer(tmp_path / "out"):
        with one_writer(tmp_path / "out"):
            pass
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(refused) == 1 and "one writer at a time" in refused[0]
    assert list(tmp_path.iterdir()) == []
    other()
    assert len(refused) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
def test_many_short_locks_lose_no_update(tmp_path):
    """Each release removes the lock file. Holders of two different files would lose a count."""
    code = """
from pathlib import Path
for _ in range(200):
    with one_writer("count", wait=True):
        value = int(Path("count").read_text())
        Path("count").write_text(str(value + 1))
"""
    (tmp_path / "count").write_text("0")
    setup = "from keras_plm.files.locks import one_writer"
    (found,) = run_together(code, [tmp_path], 4, setup)
    assert [outcome for outcome in found if outcome.status] == []
    assert (tmp_path / "count").read_text() == "800"
    assert [path.name for path in tmp_path.iterdir()] == ["count"]
