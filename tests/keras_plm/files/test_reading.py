"""Paths that are not files, JSON with other structures, folders with other files."""

import gzip
import os
import zipfile

import numpy as np
import pytest

from keras_plm.files import manifest, opening
from keras_plm.files.json_files import OneOf, Whole, Within, check_shape, parse_json, read_json
from keras_plm.files.numpy_files import read_npy, read_npz
from keras_plm.files.opening import check_file, open_bytes, read_text

pytestmark = pytest.mark.backend_neutral


class TestOpening:
    def test_irregular_files_are_refused(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "loop").symlink_to("loop")
        (tmp_path / "gone").symlink_to("nowhere")
        (tmp_path / "file").touch()
        (tmp_path / "texts.csv").touch()
        for path, reason in (
            (tmp_path, "must be a regular file. Received: a folder"),
            (tmp_path / "pipe", "pipe must be a regular file. Received: a named pipe"),
            ("/dev/zero", "must be a regular file. Received: a device"),
            (tmp_path / "loop", "loop could not be opened. Received: a loop of links"),
            (tmp_path / "gone", "No file .*gone. Received"),
            (tmp_path / "texts.cvs", r"No file .*Did you mean '\S*texts.csv'\?"),
            (tmp_path / "file" / "below", "No file .*below"),
            ("a\0b", "No file .*an impossible path"),
        ):
            for read in (check_file, open_bytes, read_text, read_json):
                with pytest.raises(ValueError, match=reason):
                    read(path)

    def test_excessive_expansion_of_gzip_is_refused(self, tmp_path, monkeypatch):
        path = tmp_path / "a.gz"
        path.write_bytes(gzip.compress(b"a line of text\n" * 100_000))
        with open_bytes(path) as file:
            assert file.read() == b"a line of text\n" * 100_000
        monkeypatch.setattr(opening, "EXPANSION_FROM", 1000)
        with open_bytes(path) as file, pytest.raises(ValueError, match="a.gz must not expand"):
            file.read()

    def test_read_text_requires_utf8_and_limits_size(self, tmp_path):
        path = tmp_path / "a.txt"
        path.write_bytes("\ufeffGrün\n".encode())
        assert read_text(path) == "Grün\n"
        path.write_bytes(b"a\nb\xff\n")
        with pytest.raises(ValueError, match="a.txt:2: the file must be UTF-8 text"):
            read_text(path)
        with pytest.raises(ValueError, match="must have at most 3 bytes. Received: .* 5 bytes"):
            read_text(path, most=3)


class TestJSON:
    @pytest.mark.parametrize(
        "text, reason",
        [
            ("{", "line 1, column 2"),
            ('{"a": 1, "a": 2}', 'the key "a" twice'),
            ('"\\ud800"', "half of a surrogate pair"),
            ("[" * 100_000, "hundreds of nested values"),
            ("9" * 5000, "a number of thousands of digits"),
            ("NaN", "NaN, which is not a number"),
            ("-Infinity", "not a number"),
            ("1e999", "1e999, which is too large"),
        ],
    )
    def test_invalid_json_is_refused(self, text, reason, tmp_path):
        path = tmp_path / "a.json"
        path.write_text(text)
        with pytest.raises(ValueError, match=f"a.json must be JSON. Received: .*{reason}"):
            read_json(path)

    def test_parse_json_accepts_surrogate_pairs_and_optional_nan(self):
        assert parse_json('"\\ud83d\\ude00"', "here") == "😀"
        assert parse_json("[NaN]", "here", nan=True) != [0]

    @pytest.mark.parametrize(
        "value, shape, reason",
        [
            (True, int, "it must hold a whole number. Received: true"),
            (1.0, int, "a whole number. Received: 1.0"),
            (float("nan"), float, "it must hold a number. Received: NaN"),
            ([1, "a"], [int], r"`\[1\]` must be a whole number. Received: \"a\""),
            ({"a": {"b": None}}, {"a": {"b": str}}, "`a.b` must be text. Received: null"),
            ({"a": 1}, {"a": int, "c": str}, "`c` must be text. Received: no such key"),
            ({"a": 1, "c": 2}, {"a": int, "c?": str}, "`c` must be text. Received: 2"),
            ({"a": [1]}, {str: [str]}, r"`a\[0\]` must be text"),
            ("d", OneOf(("a", "b")), 'one of "a", "b". Received: "d"'),
            (-1, Whole(), "a whole number, 0 or more. Received: -1"),
            (9, Whole(1, 8), "1 or more and at most 8. Received: 9"),
            (-0.1, Within(0, 1), "a number, 0 or more and at most 1. Received: -0.1"),
            ("a", (int, None), "a whole number or null"),
            ({"a": 1}, ({"a": str}, None), "`a` must be text. Received: 1"),
            ([], {"a": str}, "it must hold an object. Received: a list of 0"),
        ],
    )
    def test_wrong_json_shape_error_names_the_key(self, value, shape, reason):
        with pytest.raises(ValueError, match=f"^here: .*{reason}"):
            check_shape(value, shape, "here")

    def test_json_of_the_expected_shape_is_accepted(self):
        shape = {"a": [float], "b?": (str, None), "c": {str: Whole(1)}, "d": object}
        check_shape({"a": [1, 2.5], "c": {"x": 1}, "d": [], "more": 1}, shape, "here")
        check_shape({"a": [], "b": None, "c": {}, "d": None}, shape, "here")


class TestManifest:
    def test_changed_and_missing_files_are_refused(self, tmp_path):
        (tmp_path / "a.bin").write_bytes(b"abc")
        described = manifest.describe_files(tmp_path, ["a.bin"])
        check_shape(described, manifest.SHAPE, "here")
        manifest.check_files(tmp_path, described, checksums=True)
        (tmp_path / "a.bin").write_bytes(b"abd")
        manifest.check_files(tmp_path, described)
        with pytest.raises(ValueError, match="a.bin is not the file that was written.*SHA-256"):
            manifest.check_files(tmp_path, described, checksums=True)
        (tmp_path / "a.bin").write_bytes(b"ab")
        with pytest.raises(ValueError, match="Build it. Received: 2 bytes instead of 3"):
            manifest.check_files(tmp_path, described, repair="Build it.")
        (tmp_path / "a.bin").unlink()
        with pytest.raises(ValueError, match="No file .*a.bin"):
            manifest.check_files(tmp_path, described)

    @pytest.mark.parametrize("name", ["../a.bin", "a/b", "/etc/passwd", "..", "", "a\\b"])
    def test_file_names_with_other_folders_are_refused(self, name, tmp_path):
        with pytest.raises(ValueError, match="files must be in the folder itself"):
            manifest.check_files(tmp_path, {name: {"bytes": 3, "sha256": ""}})


class TestNumPy:
    ARRAY = np.arange(12, dtype="float32").reshape(3, 4)

    def test_read_arrays_equal_saved_arrays(self, tmp_path):
        for array in (self.ARRAY, np.float16(2.5), np.zeros((0, 3), np.int64), self.ARRAY > 5):
            np.save(tmp_path / "a.npy", array)
            for memory_map in (False, True):
                found = read_npy(tmp_path / "a.npy", memory_map=memory_map)
                assert found.dtype == array.dtype and found.shape == np.shape(array)
                assert np.array_equal(found, array)
        for save in (np.savez, np.savez_compressed):
            save(tmp_path / "a.npz", a=self.ARRAY, b=[True])
            path = tmp_path / "a.npz"
            for file in (path, path.read_bytes()):
                found = read_npz(file, path)
                assert list(found) == ["a", "b"] and np.array_equal(found["a"], self.ARRAY)

    def test_damaged_files_are_named(self, tmp_path):
        path = tmp_path / "a.npy"
        np.save(path, self.ARRAY)
        whole = path.read_bytes()
        for content, reason in (
            (whole[:-1], "whole .npy file. Received: 175 bytes instead of 176"),
            (whole + b" ", "177 bytes instead of 176"),
            (whole[:20], "a damaged header"),
            (b"", "a damaged header"),
            (whole.replace(b"(3, 4)", b"(3,-4)"), "numbers.*shape"),
            (whole.replace(b"(3, 4), }  ", b"(3, 4000)}"), ".npy file. Received"),
            (whole.replace(b"False", b"True "), "C order"),
            (whole.replace(b"<f4", b"|O8"), "hold numbers"),
        ):
            path.write_bytes(content)
            with pytest.raises(ValueError, match=f"a.npy must .*{reason}"):
                read_npy(path)
        np.save(path, self.ARRAY > 5)
        with pytest.raises(ValueError, match="must hold numbers. Received: an array of type bool"):
            read_npy(path, kinds="f")

    def test_damaged_archives_are_named(self, tmp_path):
        path = tmp_path / "a.npz"
        np.savez(path, a=self.ARRAY)
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        with pytest.raises(ValueError, match="a.npz must be a whole .npz file"):
            read_npz(path, path)
        path.write_bytes(whole.replace(self.ARRAY.tobytes(), self.ARRAY[::-1].tobytes()))
        with pytest.raises(ValueError, match="a.npz must be a whole .npz file. .*CRC"):
            read_npz(path, path)
        np.savez(path, a=np.array([{}], object))
        with pytest.raises(ValueError, match="a.npz, a.npy must hold numbers"):
            read_npz(path, path)
        np.savez(path, a=np.array([0x110000], "<u4").view("<U1"))
        with pytest.raises(ValueError, match="a.npz, a.npy must hold text. .*number 1114112"):
            read_npz(path, path, "U")
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.npy", b"\0" * (opening.EXPANSION_FROM + 1))
        with pytest.raises(ValueError, match="a.npz must not expand"):
            read_npz(path, path)
