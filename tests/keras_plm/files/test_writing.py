"""Files and folders are written completely or not at all."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import keras_plm
from keras_plm.checkpoints import save_bert, save_elmo, save_gpt
from keras_plm.data.formats.fasttext import SubwordVectors
from keras_plm.data.formats.squad import write_predictions
from keras_plm.data.formats.word_vectors import write_vectors
from keras_plm.data.task import Example
from keras_plm.files import writing
from keras_plm.files.writing import (
    NoRoom,
    read_whole,
    remove_leftovers,
    replacing,
    replacing_files,
    replacing_folder,
    write_json,
    write_text,
)
from keras_plm.models import BERT, GPT, ELMo
from keras_plm.models.ngram import NGram
from keras_plm.tokenizers import WordPiece

pytestmark = pytest.mark.backend_neutral

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
ERRORS = pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), FULL], ids=repr)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def ended_process():
    """Returns the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def run(*code, options=(), stdout=None, **environment):
    """Starts Python code with the functions of `writing`, without the rest of keras_plm."""
    top = str(Path(keras_plm.__file__).parent)
    start = "import sys, types; sys.modules['keras_plm'] = types.ModuleType('keras_plm');"
    start += f"sys.modules['keras_plm'].__path__ = [{top!r}]; from keras_plm.files.writing import *"
    return subprocess.Popen(
        [sys.executable, *options, "-c", "\n".join([start, *code])],
        env={**os.environ, **environment},
        stdout=stdout,
    )


def test_a_file_is_replaced_at_the_end_of_the_block(tmp_path):
    path = tmp_path / "new" / "a.txt"
    for text in ("old", "new"):
        with replacing(str(path)) as temporary:
            temporary.write_text(text)
            assert re.fullmatch(rf"a\.txt\.{os.getpid()}\.[0-9a-f]{{8}}\.tmp", temporary.name)
            assert temporary.parent == path.parent
            assert not path.exists() if text == "old" else path.read_text() == "old"
        assert path.read_text() == text
        assert names(path.parent) == ["a.txt"]


def test_writing_preserves_links_modes_and_pipes(tmp_path):
    (tmp_path / "a").write_text("old")
    (tmp_path / "a").chmod(0o600)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "a").read_text() == "new"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE, text=True)
    write_text(tmp_path / "pipe", "new")
    assert reader.communicate()[0] == "new" and (tmp_path / "pipe").is_fifo()


def test_writers_of_one_process_use_separate_temporary_folders(tmp_path):
    with replacing_folder(tmp_path / "a", keep_existing=True) as first:
        (first / "x").write_text("whole")
        with replacing_folder(tmp_path / "a", keep_existing=True) as second:
            (second / "x").write_text("whole")
        assert (first / "x").read_text() == "whole"
    assert (tmp_path / "a" / "x").read_text() == "whole" and names(tmp_path) == ["a"]


def test_temporary_file_has_the_given_suffix(tmp_path):
    with replacing(tmp_path / "a.npz", ".npz") as temporary:
        np.savez(temporary, a=[1, 2])
    assert np.load(tmp_path / "a.npz")["a"].tolist() == [1, 2]
    assert names(tmp_path) == ["a.npz"]


@ERRORS
@pytest.mark.parametrize("written", [False, True])
def test_an_error_leaves_the_old_file(tmp_path, error, written):
    (tmp_path / "a").write_text("old")
    with pytest.raises(type(error)), replacing(tmp_path / "a") as temporary:
        if written:
            temporary.write_text("half")
        raise error
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


@pytest.mark.parametrize("write", [write_text, write_json])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, write):
    path, write_half = tmp_path / "a", Path.write_bytes
    write(path, "old")
    old = path.read_bytes()

    def full(path, content):
        write_half(path, content[: len(content) // 2])
        raise FULL

    monkeypatch.setattr(Path, "write_bytes", full)
    match = (
        r"/a could not be written: the disk is full.*Received: .*, \d+ bytes to write, [\d,]+ bytes"
    )
    with pytest.raises(NoRoom, match=match) as found:
        write(path, "a new text")
    assert found.value.errno == errno.ENOSPC
    assert path.read_bytes() == old and names(tmp_path) == ["a"]


def test_a_path_that_cannot_be_replaced_leaves_no_temporary_file(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(OSError):
        write_text(tmp_path / "a", "x")
    assert names(tmp_path) == ["a"]


def test_json_is_indented_ascii_with_a_final_newline(tmp_path):
    write_json(tmp_path / "a.json", {"é": [1, None]})
    text = (tmp_path / "a.json").read_bytes().decode("ascii")
    assert text == '{\n "\\u00e9": [\n  1,\n  null\n ]\n}\n'


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path):
    write_json(tmp_path / "a.json", 1)
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {1, 2})
    assert (tmp_path / "a.json").read_text() == "1\n" and names(tmp_path) == ["a.json"]


def test_text_is_utf8_with_unchanged_line_ends_in_any_locale(tmp_path):
    path = tmp_path / "a.txt"
    process = run(
        "import locale",
        "assert locale.getpreferredencoding(False).lower() not in ('utf-8', 'utf8')",
        f"write_text({str(path)!r}, 'caf\\u00e9 \\u4e2d\\r\\n\\n\\r')",
        options=("-X", "utf8=0"),
        LC_ALL="C",
    )
    assert process.wait() == 0
    assert path.read_bytes() == "café 中\r\n\n\r".encode()


def test_two_processes_leave_one_whole_file(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, ["0"] * 20_000)
    writers = [
        run(f"for _ in range(50): write_json({str(path)!r}, [{letter!r}] * 20_000)")
        for letter in "12"
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        (letter,) = set(json.loads(path.read_text()))
        seen.add(letter)
    assert [writer.returncode for writer in writers] == [0, 0]
    values = json.loads(path.read_text())
    assert len(values) == 20_000 and len(set(values)) == 1 and values[0] in "12"
    assert names(tmp_path) == ["a.json"]


def test_files_move_in_their_order(tmp_path, monkeypatch):
    moved, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (moved.append(b.name[:7]), replace(a, b)))
    for text in ("old", "new"):
        with replacing_files(tmp_path / "folder", ("weights", "config")) as temporary:
            for name in ("config", "weights", "scratch"):
                (temporary / name).write_text(text)
        assert names(tmp_path / "folder") == ["config", "weights"]
        assert (tmp_path / "folder" / "weights").read_text() == text
    assert [name for name in moved if name[:5] != "save."] == ["weights", "config"] * 2


@ERRORS
def test_an_error_leaves_the_old_files(tmp_path, error):
    for name in ("weights", "config", "other"):
        (tmp_path / name).write_text("old")
    with (
        pytest.raises(type(error)),
        replacing_files(tmp_path, ("weights", "config")) as temporary,
    ):
        (temporary / "weights").write_text("new")
        raise error
    assert names(tmp_path) == ["config", "other", "weights"]
    assert {path.read_text() for path in tmp_path.iterdir()} == {"old"}


def test_replacing_folder_removes_the_old_files(tmp_path):
    folder = tmp_path / "new" / "folder"
    for name in ("a", "b"):
        with replacing_folder(folder) as temporary:
            (temporary / name).write_text(name)
        assert names(folder) == [name] and names(folder.parent) == ["folder"]


@ERRORS
def test_an_error_leaves_the_old_folder(tmp_path, error):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("old")
    with pytest.raises(type(error)), replacing_folder(tmp_path / "folder") as temporary:
        (temporary / "a").write_text("new")
        raise error
    assert names(tmp_path) == ["folder"]
    assert (tmp_path / "folder" / "a").read_text() == "old"


def test_failed_folder_replacement_restores_the_old_folder(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("old")
    replace = os.replace

    def fail(source, target):
        if source.name == "new":
            raise FULL
        replace(source, target)

    monkeypatch.setattr(writing, "_exchange", lambda *paths: False)  # as on other systems
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"), replacing_folder(tmp_path / "folder"):
        pass
    assert names(tmp_path) == ["folder"]
    assert (tmp_path / "folder" / "a").read_text() == "old"


def test_keep_existing_preserves_a_folder_of_another_process(tmp_path):
    for existing, found in ((False, "a"), (True, "b")):
        folder = tmp_path / str(existing)
        with replacing_folder(folder, keep_existing=True) as temporary:
            (temporary / "a").write_text("a")
            if existing:
                folder.mkdir()
                (folder / "b").write_text("b")
        assert names(folder) == [found]
    assert names(tmp_path) == ["False", "True"]


def test_only_leftovers_of_ended_processes_are_removed(tmp_path):
    ended, running = ended_process(), os.getppid()
    for name in (
        f"a-1.bin.{ended}.0123abcd.tmp",
        f"a-2.bin.{ended}.0123abcd.tmp.npz",
        f"a-1.bin.{running}.0123abcd.tmp",
        f"b.bin.{ended}.0123abcd.tmp",
        "a-1.bin.tmp",
        "a-1.bin",
    ):
        (tmp_path / name).write_text("x")
    (tmp_path / f"a-3.bin.{ended}.0123abcd.tmp" / "x").mkdir(parents=True)
    remove_leftovers(tmp_path, "a-*.bin")
    assert names(tmp_path) == sorted(
        [f"a-1.bin.{running}.0123abcd.tmp", f"b.bin.{ended}.0123abcd.tmp", "a-1.bin.tmp", "a-1.bin"]
    )
    remove_leftovers(tmp_path / "none", "*")


def test_a_later_save_removes_folders_of_killed_processes(tmp_path):
    ended, running = ended_process(), os.getppid()
    save, folder = tmp_path / "save", tmp_path / "folder"
    for path in (save / "save", folder):
        for process in (ended, running, os.getpid()):
            (path.with_name(f"{path.name}.{process}.0123abcd.tmp") / "new").mkdir(parents=True)
    with replacing_files(save, ("a",)) as temporary:
        assert names(temporary) == []
        (temporary / "a").write_text("a")
    with replacing_folder(folder) as temporary:
        assert names(temporary) == []
    assert names(save) == ["a", f"save.{running}.0123abcd.tmp"]
    assert names(tmp_path) == ["folder", f"folder.{running}.0123abcd.tmp", "save"]


def bert():
    return BERT(6, num_layers=1, num_heads=1, hidden_dim=2, intermediate_dim=2)


def save_native(folder):
    tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    keras_plm.save(folder, bert(), tokenizer)


SAVERS = {
    "save": save_native,
    "save_bert": lambda folder: save_bert(folder, bert()),
    "save_gpt": lambda folder: save_gpt(
        folder, GPT(6, num_layers=1, num_heads=1, hidden_dim=2, intermediate_dim=8)
    ),
    "save_elmo": lambda folder: save_elmo(
        folder / "options.json",
        folder / "weights.hdf5",
        ELMo(units=2, projection_dim=2, filters=[[1, 2]]),
    ),
    "n-grams": lambda folder: NGram(6, 2).fit([3, 4, 5, 2] * 9).save(folder / "a"),
    "fasttext": lambda folder: SubwordVectors(["a"], [[1.0]], [[3.0]], max_n=3).save(folder / "a"),
    "vectors": lambda folder: write_vectors(folder / "a.vec.gz", ["a"], [[1.0]]),
    "squad": lambda folder: write_predictions(folder / "a", [Example("a", id="1")], ["b"]),
}


@pytest.mark.parametrize("saver", SAVERS)
def test_an_interrupted_save_leaves_the_old_files(saver, tmp_path, monkeypatch):
    folder = tmp_path / "new"
    SAVERS[saver](folder)
    old = {path.name: path.read_bytes() for path in folder.iterdir()}

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        SAVERS[saver](folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == old


def test_modes_follow_the_umask(tmp_path):
    """By itself, safetensors makes files that only their owner can read."""
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "a.safetensors") as temporary:
            save_file({"a": np.ones(2)}, temporary)
        with replacing_files(tmp_path / "folder", ("config", "weights")) as temporary:
            (temporary / "config").write_text("x")
            save_file({"a": np.ones(2)}, temporary / "weights")
    finally:
        os.umask(before)
    for name in ("a.safetensors", "folder/config", "folder/weights"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o640, name


def test_a_link_at_a_temporary_name_is_not_followed(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for write in (
        lambda: write_text(tmp_path / "a", "new"),
        lambda: replacing_folder(tmp_path / "a").__enter__(),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(writing, "_temporary", lambda *_: tmp_path / "known")
            (tmp_path / "known").symlink_to(victim)
            with pytest.raises(FileExistsError):
                write()
        (tmp_path / "known").unlink()
    assert victim.read_text() == "mine" and names(tmp_path) == ["victim"]


def test_user_folders_with_similar_names_are_not_removed(tmp_path):
    own = ("a.tmp", "a.new", "a.old", "save.tmp", "in/save.tmp", "in/save.whole", "in/new")
    for name in own:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "x").write_text("mine")
    with replacing_folder(tmp_path / "a") as temporary:
        (temporary / "x").write_text("new")
    with replacing_files(tmp_path / "in", ("x",)) as temporary:
        (temporary / "x").write_text("new")
    assert all((tmp_path / name / "x").read_text() == "mine" for name in own)


def test_an_older_folder_is_exchanged_in_one_step(tmp_path, monkeypatch):
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux exchanges folders")
    write_text(tmp_path / "a" / "x", "old")
    replaced = []
    monkeypatch.setattr(os, "replace", lambda *paths: replaced.append(paths))
    with replacing_folder(tmp_path / "a") as temporary:
        (temporary / "x").write_bytes(b"new")
    assert (tmp_path / "a" / "x").read_text() == "new" and not replaced
    assert names(tmp_path) == ["a"]


LIMITED = """
import pathlib, resource
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    {write}
except OSError as error:
    print(error.errno, error)
"""
NUMBERS = "__import__('numpy').ones(9999)"
LIMITED_WRITES = {
    "text": "write_text(path, 'x' * 9999)",
    "safetensors": "import safetensors.numpy\n    with replacing(path) as t:"
    f"\n        safetensors.numpy.save_file({{'a': {NUMBERS}}}, t)",
    "hdf5": "import h5py\n    with replacing(path) as t, h5py.File(t, 'w') as f:"
    f"\n        f['a'] = {NUMBERS}",
    "npz": "import numpy\n    with replacing(path, '.npz') as t:"
    f"\n        numpy.savez(t, a={NUMBERS})",
    "files": "with replacing_files(path.parent, [path.name]) as t:"
    "\n        write_text(t / path.name, 'x' * 9999)",
    "folder": "with replacing_folder(path.parent / 'b') as t:"
    "\n        write_text(t / 'x', 'x' * 9999)",
}


@pytest.mark.parametrize("kind", LIMITED_WRITES)
def test_file_size_limit_error_names_the_path(kind, tmp_path):
    """The system reports the same kind of error as for a full disk."""
    path = tmp_path / "folder" / "a"
    write_text(path, "old")
    code = LIMITED.format(write=LIMITED_WRITES[kind])
    process = run(f"path = __import__('pathlib').Path({str(path)!r})", code, stdout=subprocess.PIPE)
    said = process.communicate()[0].decode()
    assert process.returncode == 0, said
    number = errno.EFBIG
    assert said.startswith(f"{number} [Errno {number}] {tmp_path / 'folder'}"), said
    assert "could not be written: the file exceeds the size limit. Existing files" in said
    assert said.count("Received: ") == 1
    assert path.read_text() == "old" and names(path.parent) == ["a"]


def test_only_disk_full_errors_are_explained(tmp_path):
    for error in (OSError(errno.ENOSPC, "x"), RuntimeError("... errno = 28, ..."), FULL):
        with pytest.raises(OSError, match=r"a could not be written.*Free some space.*No space"):
            with writing.explaining_no_room(tmp_path / "a"):
                raise error
    for error in (FileNotFoundError(2, "x"), RuntimeError("x"), ValueError("28")):
        with pytest.raises(type(error)), writing.explaining_no_room(tmp_path / "a"):
            raise error


PARTS = ("weights", "tokenizer", "config")
SAVE = """
def save(folder, mark):
    with replacing_files(folder, ("weights", "tokenizer", "config")) as temporary:
        for name in ("weights", "tokenizer", "config"):
            (temporary / name).write_text(mark)
"""
KILLED = """
import os, signal
left = [{count}]
def killing(function):
    def call(*args, **kwargs):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call
for name in ("rename", "replace", "rmdir", "chmod", "mkdir", "unlink"):
    setattr(os, name, killing(getattr(os, name)))
save({folder!r}, "new")
"""


def marks(folder):
    return read_whole(folder, PARTS, lambda: {(folder / name).read_text() for name in PARTS})


def test_kill_at_any_step_leaves_old_or_new_files(tmp_path):
    """After a kill at any step, all files are old or all are new."""
    seen = []
    for count in range(99):
        folder = tmp_path / str(count)
        with replacing_files(folder, PARTS) as temporary:
            for name in PARTS:
                (temporary / name).write_text("old")
        process = run(SAVE, KILLED.format(count=count, folder=str(folder)))
        killed = process.wait() != 0
        (found,) = marks(folder)
        seen.append(found)
        with replacing_files(folder, PARTS) as temporary:
            for name in PARTS:
                (temporary / name).write_text("third")
        assert marks(folder) == {"third"} and names(folder) == sorted(PARTS)
        if not killed:
            break
    assert seen == sorted(seen, reverse=True) and set(seen) == {"old", "new"}
    assert seen.count("new") >= 4, "a kill between the moves is among them"


def test_interrupted_save_in_read_only_folder_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "a"
    (folder / f"save.{'0' * 32}.whole").mkdir(parents=True)

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(writing, "one_writer", refuse)
    with pytest.raises(ValueError, match="a save that was interrupted.*Permission denied"):
        marks(folder)


@pytest.mark.full
@pytest.mark.parametrize("writers", [2, 4])
def test_readers_never_see_two_saves(writers, tmp_path):
    folder = tmp_path / "a"
    with replacing_files(folder, PARTS) as temporary:
        for name in PARTS:
            (temporary / name).write_text("first")
    processes = [
        run(SAVE, f"for i in range(25): save({str(folder)!r}, f'{mark}{{i}}')")
        for mark in "abcd"[:writers]
    ]
    read = 0
    while any(process.poll() is None for process in processes):
        assert len(marks(folder)) == 1
        read += 1
    assert [process.returncode for process in processes] == [0] * writers and read
    assert marks(folder) <= {f"{mark}24" for mark in "abcd"} and names(folder) == sorted(PARTS)


def test_read_whole_rereads_files_that_change(tmp_path):
    """A file that changes during reading is reread, with or without an error."""
    write_text(tmp_path / "a", "old")
    for fails in (True, False):
        found = []

        def read(fails=fails, found=found):
            found.append((tmp_path / "a").read_text())
            if len(found) == 1:
                write_text(tmp_path / "a", f"new {fails}")
                if fails:
                    raise ValueError("half of it")
            return found[-1]

        assert read_whole(tmp_path, ["a"], read) == f"new {fails}"
    with pytest.raises(ValueError, match="really"):
        read_whole(tmp_path, ["a"], lambda: (_ for _ in ()).throw(ValueError("really")))


def test_a_pipe_without_a_reader_is_refused(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="must be a file, or a pipe that a process reads"):
        write_text(pipe, "text")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
