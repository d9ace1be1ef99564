"""Files of token streams: damage, several writers, killed processes and full disks."""

import json
import os
import random
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.checks.processes import kill_at_each_call, run_together
from keras_plm.data.corpus import TokenStream, read_ids
from keras_plm.data.corpus_writer import BlockEncoder
from keras_plm.files.manifest import describe_files
from keras_plm.tokenizers import BytePair, WordPiece, Words, text

pytestmark = pytest.mark.backend_neutral

# Also runs in separate processes.
SETUP = """
import resource, time
from keras_plm.data import corpus_writer
from keras_plm.data.corpus import TokenStream
from keras_plm.tokenizers import WordPiece

TOKENIZER = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"])
corpus_writer.BLOCK = 200

def build(shard_tokens=100):
    return TokenStream.build("text.txt", TOKENIZER, "stream", "lines", shard_tokens=shard_tokens)
"""
TOKENIZER = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"])
LINES = [" ".join(random.Random(i).choices("abc", k=9)) for i in range(40)]
IDS = [5 + "abc".index(letter) for line in LINES for letter in line.split()]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "text.txt").write_text("\n\n".join(LINES))
    return tmp_path / "work"


@pytest.fixture
def stream(folder):
    return TokenStream.build(folder / "text.txt", TOKENIZER, folder / "stream", "lines")


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def patch(path, at, content):
    with open(path, "rb+") as file:
        file.seek(at)
        file.write(content)


def bind(folder):
    """Rewrites the manifest for the current files."""
    names = ["tokens.00000.bin", "sentences.bin", "documents.bin"]
    change(folder / "stream.json", manifest=describe_files(folder, names))


class TestDamage:
    @pytest.mark.parametrize("name", ["tokens.00000.bin", "sentences.bin", "documents.bin"])
    def test_files_of_another_size_are_refused(self, name, stream):
        path = stream.folder / name
        content = path.read_bytes()
        for wrong in (content[:-8], content + bytes(8), b""):
            path.write_bytes(wrong)
            with pytest.raises(ValueError, match=rf"{name} is not the file .*Received: [\d,]+ by"):
                TokenStream(stream.folder)
        path.unlink()
        with pytest.raises(ValueError, match=f"No file .*{name}"):
            TokenStream(stream.folder)

    @pytest.mark.parametrize("name", ["tokens.00000.bin", "sentences.bin", "documents.bin"])
    def test_verify_and_build_detect_flipped_bits(self, name, stream, folder):
        content = bytearray((stream.folder / name).read_bytes())
        content[len(content) // 16 * 8] ^= 1
        (stream.folder / name).write_bytes(content)
        match = f"{name} is not the file that was written.*remove it to build it again"
        with pytest.raises(ValueError, match=match):
            TokenStream(stream.folder, verify=True)
        with pytest.raises(ValueError, match=match):
            TokenStream.build(folder / "text.txt", TOKENIZER, stream.folder, "lines")

    def test_bounds_must_ascend(self, stream):
        for name, at in (("sentences.bin", 80), ("documents.bin", 0), ("documents.bin", 320)):
            path = stream.folder / name
            content = path.read_bytes()
            patch(path, at, (10**6).to_bytes(8, "little"))
            with pytest.raises(ValueError, match=f"{name} .*bounds that do not ascend from 0"):
                TokenStream(stream.folder)
            path.write_bytes(content)

    def test_reading_ids_beyond_the_vocabulary_raises(self, stream):
        patch(stream.folder / "tokens.00000.bin", 20, b"\x08\x00")
        bind(stream.folder)
        match = "stream: ids of tokens must be 0 or more, and below 8, .*Received: 8"
        with pytest.raises(ValueError, match=match):
            TokenStream(stream.folder, verify=True)
        damaged = TokenStream(stream.folder)
        assert damaged.tokens[:10].tolist() == IDS[:10]
        for places in (slice(None), slice(8, 12), np.array([[0, 10]]), 10):
            with pytest.raises(ValueError, match=match):
                damaged.tokens[places]
        with pytest.raises(ValueError, match=match):
            np.asarray(damaged.tokens)

    def test_negative_ids_are_found(self, folder):
        tokenizer = Words([f"w{i}" for i in range(2**16)] + ["[PAD]", "[UNK]", "[EOS]"])
        stream = TokenStream.build(folder / "text.txt", tokenizer, folder / "s", "lines")
        assert stream.tokens.dtype == "int32"
        patch(folder / "s" / "tokens.00000.bin", 0, b"\xff\xff\xff\xff")
        with pytest.raises(
            ValueError, match="Received: 65537 as the largest, and -1 as the smallest"
        ):
            TokenStream(folder / "s").tokens[:3]

    @pytest.mark.parametrize(
        "values, match",
        [
            ({"shards": ["../secret.bin"]}, "agree with each other.*Received: shards"),
            ({"shards": []}, "Received: files"),
            ({"tokens": 12}, "Received: bytes of tokens 720 instead of 24"),
            ({"sentences": 12}, "bytes of sentences"),
            ({"documents": 12}, "bytes of documents"),
            ({"dtype": "int32"}, "dtype 'int32' instead of 'uint16'"),
            ({"dtype": "object"}, '`dtype` must be one of "uint16", "int32"'),
            ({"vocabulary_size": 10**6}, "dtype"),
            ({"vocabulary_size": -1}, "`vocabulary_size` must be a whole number, 1 or more"),
            ({"manifest": {}}, "Received: files"),
            ({"layout": 2}, "`layout` must be one of 3. Received: 2"),
            ({"tokens": "many"}, '`tokens` must be a whole number.*Received: "many"'),
        ],
        ids=str,
    )
    def test_inconsistent_stream_json_is_refused(self, values, match, stream):
        change(stream.folder / "stream.json", **values)
        with pytest.raises(ValueError, match=f"stream.json.*{match}"):
            TokenStream(stream.folder)

    def test_shards_outside_the_folder_are_refused(self, stream):
        about = json.loads((stream.folder / "stream.json").read_text())
        about["manifest"]["../secret.bin"] = about["manifest"].pop("tokens.00000.bin")
        change(stream.folder / "stream.json", **about | {"shards": ["../secret.bin"]})
        with pytest.raises(ValueError, match="must agree with each other"):
            TokenStream(stream.folder)

    def test_stream_json_of_invalid_json_is_refused(self, stream, folder):
        for content in (b"{", b"\xff", b"[" * 10_000, b"[]"):
            (stream.folder / "stream.json").write_bytes(content)
            with pytest.raises(ValueError, match=r"stream\.json"):
                TokenStream(stream.folder)
            with pytest.raises(ValueError, match=r"stream\.json"):
                TokenStream.build(folder / "text.txt", TOKENIZER, stream.folder, "lines")


class TestUserFolders:
    def test_build_does_not_delete_files_of_the_user(self, stream, folder):
        for name in ("stream.tmp", ".stream.tmp"):
            (folder / name).mkdir()
            (folder / name / "mine.txt").write_text("mine")
        (folder / "text.txt").write_text("a b")
        TokenStream.build(folder / "text.txt", TOKENIZER, stream.folder, "lines")
        (stream.folder / "mine.txt").write_text("mine")
        (folder / "text.txt").write_text("a b c")
        with pytest.raises(ValueError, match="its own folder.*Received: .*'mine.txt'"):
            TokenStream.build(folder / "text.txt", TOKENIZER, stream.folder, "lines")
        assert len(list(folder.rglob("mine.txt"))) == 3

    def test_build_does_not_follow_symlink_of_temporary_folder(self, folder, monkeypatch):
        mine = folder / "mine"
        mine.mkdir()
        (mine / "progress.json").write_text("{}")
        monkeypatch.setattr(BlockEncoder, "__call__", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            TokenStream.build(folder / "text.txt", TOKENIZER, folder / "stream", "lines")
        (unfinished,) = folder.glob(".stream.*.tmp")
        shutil.rmtree(unfinished)
        unfinished.symlink_to(mine)  # the name that the next call uses
        monkeypatch.undo()
        TokenStream.build(folder / "text.txt", TOKENIZER, folder / "stream", "lines")
        assert [path.name for path in mine.iterdir()] == ["progress.json"]

    def test_build_preserves_symlink_to_stream_folder(self, folder):
        (folder / "there").mkdir()
        (folder / "stream").symlink_to("there")
        TokenStream.build(folder / "text.txt", TOKENIZER, folder / "stream", "lines")
        assert (folder / "stream").is_symlink() and (folder / "there" / "stream.json").is_file()


@pytest.mark.full
class TestProcesses:
    def test_second_writer_is_refused_with_process_of_first(self, folder):
        code = """
import glob, os
encode = corpus_writer.BlockEncoder.__call__

def waiting(*block):
    while not os.path.exists("refused"):
        time.sleep(0.01)
    return encode(*block)

if number == 0:
    corpus_writer.BlockEncoder.__call__ = waiting
    build()
else:
    while not glob.glob(".stream.*.tmp"):
        time.sleep(0.01)
    try:
        build(shard_tokens=101)
    finally:
        open("refused", "w").close()
"""
        (outcomes,) = run_together(code, [folder], 2, SETUP)
        assert outcomes[0].status == 0, outcomes
        assert re.search(r"one writer at a time.*written by process \d+", outcomes[1].error)
        assert TokenStream(folder / "stream", verify=True).tokens[:].tolist() == IDS

    def test_build_resumes_after_kill_at_any_file_call(self, folder, tmp_path):
        calls = ("replace", "rename", "mkdir", "rmdir", "unlink")
        code = f"assert build().tokens[:].tolist() == {IDS}"
        copies = kill_at_each_call("build()", folder, tmp_path / "new", SETUP, code, calls)
        assert len(copies) > 5
        # The new stream replaces an older one.
        (folder / "text.txt").write_text("c c c")
        TokenStream.build(folder / "text.txt", TOKENIZER, folder / "stream", "lines")
        (folder / "text.txt").write_text("\n\n".join(LINES))
        copies += kill_at_each_call("build()", folder, tmp_path / "old", SETUP, code, calls)
        for copy in copies:
            assert TokenStream(copy / "stream", verify=True).tokens[:].tolist() == IDS
            assert not list(copy.rglob("*.tmp")), copy

    def test_full_disk_raises_no_room_and_next_call_resumes(self, folder):
        limited = "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500)); build(10**6)"
        long = "\n\n".join(LINES * 10)
        (folder / "text.txt").write_text(long)
        ((outcome,),) = run_together(limited, [folder], 1, SETUP)
        written = "tokens.00000.bin could not be written: the file exceeds the size limit"
        for part in ("NoRoom", written):
            assert part in outcome.error
        assert re.search(
            r"Repeat the call to resume.*Received: .*, \d+ bytes to write", outcome.error
        )
        assert not (folder / "stream").exists()
        progress = json.loads(next(folder.glob(".stream.*.tmp/progress.json")).read_text())
        assert 0 < progress["blocks"] < 40  # the recorded blocks are complete
        ((outcome,),) = run_together("build(10**6)", [folder], 1, SETUP)
        assert outcome.status == 0, outcome
        assert TokenStream(folder / "stream", verify=True).tokens[:].tolist() == IDS * 10


class TestLongLines:
    @pytest.fixture
    def line(self):
        rng, letters = random.Random(0), "aabbbc\u00e9\u4e2d'.1,"
        parts = ["".join(rng.choices(letters, k=rng.randint(1, 8))) for _ in range(600)]
        spaces = rng.choices([" ", "  ", "\t", " \t ", "\u00a0", "\x1c", "\u3000 "], k=len(parts))
        return " \t" + "".join(p + s for p, s in zip(parts, spaces, strict=True))

    @pytest.fixture
    def files(self, line, tmp_path):
        (tmp_path / "a.txt").write_text(f"{line}\n\n a b \n{line}b\n   \n")
        (tmp_path / "b.txt").write_text(f"{line}  ", newline="")
        return [tmp_path / "a.txt", tmp_path / "b.txt"]

    def tokenizers(self, files):
        yield Words.train(files)
        yield Words.train(files, split="spaces")
        yield WordPiece.train(files, 60)
        yield BytePair.train(files, 300)
        yield BytePair.train(files, 100, scheme="gpt")

    def test_stream_of_line_parts_equals_stream_of_whole_lines(self, files, tmp_path, monkeypatch):
        for number, tokenizer in enumerate(self.tokenizers(files)):
            whole, cut = tmp_path / f"whole{number}", tmp_path / f"cut{number}"
            options = {"end_id": tokenizer.end_id} if hasattr(tokenizer, "end_id") else {}
            one = TokenStream.build(files, tokenizer, whole, "lines", **options)
            with monkeypatch.context() as patched:
                patched.setattr("keras_plm.data.corpus_writer.BLOCK", 50)
                other = TokenStream.build(files, tokenizer, cut, "lines", **options)
            assert len(one.sentences) == 5 and len(one.documents) == 4, tokenizer
            for name in ("tokens", "sentences", "documents"):
                found, wanted = (np.asarray(getattr(s, name)[:]) for s in (other, one))
                np.testing.assert_array_equal(found, wanted, str(type(tokenizer)))

    def test_words_and_ids_of_line_parts_equal_whole_lines(self, files, monkeypatch):
        words = Words.train(files)
        wanted = {blank: read_ids(files, words, blank) for blank in (False, True)}
        monkeypatch.setattr(text, "PART", 50)
        monkeypatch.setattr(text.line_parts, "__defaults__", (50,))
        assert Words.train(files).vocabulary == words.vocabulary
        for blank, ids in wanted.items():
            np.testing.assert_array_equal(read_ids(files, words, blank), ids)
        assert len(wanted[True]) == len(wanted[False]) + 2

    def test_line_parts_are_short_and_join_to_the_line(self, line, tmp_path):
        path = tmp_path / "a.txt"
        path.write_text(f"{line}\nb", newline="")
        parts = list(text.line_parts(path, 40))
        assert "".join(part for part, _ in parts) == path.read_text()
        assert [ends for _, ends in parts].count(True) == 2 and parts[-1] == ("b", True)
        assert max(len(part) for part, _ in parts) < 100
        assert all(part.strip() for part, ends in parts if not ends)

    def test_word_longer_than_the_limit_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr(text, "LONGEST_WORD", 1000)
        monkeypatch.setattr(text.line_parts, "__defaults__", (100,))
        path = tmp_path / "a.txt"
        for content in ("a b\n" + "a" * 5000, "a b\n" + " " * 5000, "a b\nc" + " \t" * 5000):
            path.write_text(content)
            with pytest.raises(ValueError, match=r"a\.txt:2: a word must have at most 1,000 ch"):
                Words.train(path)
            with pytest.raises(ValueError, match=r"a\.txt:2: a word must have at most 1,000 ch"):
                read_ids(path, Words(["[PAD]", "[UNK]", "[EOS]", "a"]))

    @pytest.mark.full
    def test_line_of_8_megabytes_is_read_in_bounded_memory(self, tmp_path):
        path = tmp_path / "a.txt"
        path.write_text("abc bcd cde def " * (8_000_000 // 16))
        code = """
import resource, sys
from keras_plm.data.corpus import read_ids
from keras_plm.tokenizers import Words
Words.train(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
words = Words.train(sys.argv[1])
assert len(read_ids(sys.argv[1], words)) == 2_000_001
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
        (tmp_path / "b.txt").write_text("a b c\n" * 1000)
        command = [sys.executable, "-c", code, str(path), str(tmp_path / "b.txt")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) < 200  # more than 500 if read in one part
