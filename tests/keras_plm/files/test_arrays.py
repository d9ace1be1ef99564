"""Weights are read correctly, or an error names the file, the weight and the rule."""

import json
import struct

import h5py
import keras
import numpy as np
import pytest
from safetensors.numpy import save_file

from keras_plm.files.arrays import NUMBERS, read_safetensors, read_weights
from keras_plm.files.saveable import check_model_file

pytestmark = pytest.mark.backend_neutral

ARRAYS = {"a": np.arange(6, dtype="float32").reshape(2, 3), "b/c": np.ones(5, "float32")}


def write(path, arrays):
    """Writes a file in the format of its suffix."""
    if path.suffix == ".safetensors":
        save_file(arrays, path)
    elif path.suffix == ".bin":
        import torch

        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    return path


@pytest.fixture(params=["w.safetensors", "w.bin", "w.h5"])
def path(request, tmp_path):
    if request.param == "w.bin":
        pytest.importorskip("torch")
    return tmp_path / request.param


def test_all_formats_and_float_types_read_as_float32(path):
    for kind in ("float16", "float32", "float64"):
        found = read_weights(write(path, {n: a.astype(kind) for n, a in ARRAYS.items()}))
        assert found.keys() == ARRAYS.keys()
        for name, array in ARRAYS.items():
            assert found[name].dtype == np.float32
            np.testing.assert_array_equal(found[name], array)


def test_bfloat16_is_read(tmp_path):
    import ml_dtypes

    save_file({"a": np.array([[1.5, -2]], ml_dtypes.bfloat16)}, tmp_path / "w.safetensors")
    assert read_weights(tmp_path / "w.safetensors")["a"].tolist() == [[1.5, -2]]


@pytest.mark.parametrize("kind", ["int32", "int64", "uint8", "bool"])
def test_error_names_weight_of_non_float_type(path, kind):
    write(path, {**ARRAYS, "odd": np.ones(3, kind)})
    with pytest.raises(ValueError, match=rf"{path.name}: 'odd' must be of .*type.*Received"):
        read_weights(path)
    found = read_weights(path, skip=lambda name: name == "odd")
    assert found.keys() == ARRAYS.keys()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_error_names_weight_that_is_not_finite(path, value):
    write(path, {**ARRAYS, "odd": np.array([1, value, 2])})
    with pytest.raises(ValueError, match=rf"{path.name}: weights must be finite.*'odd'"):
        read_weights(path)


def test_finite_weights_with_overflowing_sum_are_accepted(path):
    found = read_weights(write(path, {"a": np.full(9, 3e38, "float32")}))
    assert np.isfinite(found["a"]).all()


def test_a_cut_file_is_refused(path):
    whole = write(path, ARRAYS).read_bytes()
    for count in (0, 1, 7, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:count])
        with pytest.raises(ValueError, match=path.name):
            read_weights(path)


def test_missing_files_and_devices_are_refused(path):
    with pytest.raises(ValueError, match="No file"):
        read_weights(path)
    path.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="must be a regular file. Received: a device"):
        read_weights(path)


def test_unknown_file_suffix_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in .safetensors.*Received: '.npz'"):
        read_weights(tmp_path / "w.npz")


ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "header, message",
    [
        ('{"a": %s, "a": %s}' % ((json.dumps(ONE),) * 2), 'the key "a" twice'),
        ({"a": {**ONE, "shape": [3]}}, "is not a whole safetensors file"),
        ({"a": {**ONE, "shape": [-2]}}, "must be a whole number, 0 or more"),
        ({"a": {**ONE, "shape": [1 << 40, 1 << 40]}}, "is not a whole safetensors file"),
        ({"a": {**ONE, "data_offsets": [0, 4]}}, "is not a whole safetensors file"),
        ({"a": {**ONE, "data_offsets": [0]}}, "is not a whole safetensors file"),
        ({"a": ONE, "b": ONE}, "is not a whole safetensors file"),
        ({"a": {**ONE, "dtype": "F31"}}, "'a' must be of type F16.*Received: F31"),
        ({"a": {**ONE, "dtype": 3}}, "`a.dtype` must be text"),
        ({"a": [ONE]}, "`a` must be an object"),
        ({"a": ONE, "__metadata__": {"x": 1}}, "`__metadata__`.*must be text"),
        ("[1]", "must hold an object"),
        ("[" * 5000, "must be JSON"),
        ("{", "must be JSON"),
    ],
)
def test_headers_that_do_not_fit_are_refused(tmp_path, header, message):
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(ValueError, match=rf"w\.safetensors.*{message}"):
        read_weights(path)


def test_safetensors_numbers_preserve_their_dtype(tmp_path):
    arrays = {
        kind: np.arange(3).astype(kind)
        for kind in ("bool", "uint8", "int8", "uint32", "int64", "float64")
    }
    save_file(arrays, tmp_path / "w.safetensors", metadata={"note": "x"})
    found, metadata = read_safetensors(tmp_path / "w.safetensors", NUMBERS)
    assert metadata == {"note": "x"}
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_torch_files_must_contain_only_named_dense_tensors(tmp_path):
    torch = pytest.importorskip("torch")
    path, one = tmp_path / "w.bin", torch.ones(2)
    for value in ([one], {"a": {"b": one}}, {1: one}, {"a": 3}, one):
        torch.save(value, path)
        with pytest.raises(ValueError, match=r"w\.bin must hold tensors by name and nothing else"):
            read_weights(path)
    torch.save({"a": one, "b": torch.ones(1).expand(1 << 40)}, path)
    with pytest.raises(ValueError, match="'b' of shape .1099511627776,., more than the file holds"):
        read_weights(path)
    torch.save({"a": torch.empty(2, device="meta")}, path)
    with pytest.raises(ValueError, match="'a' must be of floating type.*on meta"):
        read_weights(path)
    torch.save({"a": one.to_sparse()}, path)
    with pytest.raises(ValueError, match="'a' must be of floating type.*sparse"):
        read_weights(path)


def link(file):
    file["soft"] = h5py.SoftLink("/a")


def link_outside(file):
    file["outside"] = h5py.ExternalLink("other.h5", "/a")


def store_outside(file):
    file.create_dataset("outside", (4,), "float32", external=[("/etc/passwd", 0, 16)])


def virtual(file):
    layout = h5py.VirtualLayout((2, 3), "float32")
    layout[:] = h5py.VirtualSource("other.h5", "a", (2, 3))
    file.create_virtual_dataset("virtual", layout)


def name_twice(file):
    file["again"] = file["a"]


def cycle(file):
    file["group/inside"] = np.ones(2, "float32")
    file["group/group"] = file["group"]


@pytest.mark.parametrize(
    "damage, message",
    [
        (link, "must not be a link to another. Received: 'soft'"),
        (link_outside, "must not be a link to another. Received: 'outside'"),
        (store_outside, "must be stored in the file itself. Received: 'outside'"),
        (virtual, "must be stored in the file itself. Received: 'virtual'"),
        (name_twice, "every array must have one name"),
        (cycle, "every array must have one name"),
        (lambda file: file.create_dataset("x", data=["text"]), "'x' must hold numbers"),
        (lambda file: file.create_dataset("x", data=h5py.Empty("f4")), "'x', which is none"),
        (lambda file: file.create_dataset("x", (1 << 20, 1 << 20), "f4"), "'x' is not whole"),
        (
            lambda file: file.create_dataset("x", (1 << 20, 1 << 20), "f4", chunks=(9, 9)),
            "'x' is not whole",
        ),
        (
            lambda file: file.create_dataset(
                "x", (1 << 20, 1 << 20), "f4", chunks=(9, 9), compression="gzip"
            ),
            "must not expand to more than 50 times",
        ),
    ],
)
def test_hdf5_links_and_invalid_arrays_are_refused(tmp_path, damage, message):
    path = write(tmp_path / "w.h5", ARRAYS)
    with h5py.File(path, "a") as file:
        damage(file)
    with pytest.raises(ValueError, match=rf"w\.h5: .*{message}"):
        read_weights(path)


def test_compressed_hdf5_is_read(tmp_path):
    with h5py.File(tmp_path / "w.h5", "w") as file:
        for name, array in ARRAYS.items():
            file.create_dataset(name, data=array, compression="gzip", shuffle=True)
        file.create_dataset("empty", data=np.zeros((0, 3), "float32"))
        file.create_dataset("scalar", data=np.float32(2))
    found = read_weights(tmp_path / "w.h5")
    np.testing.assert_array_equal(found["a"], ARRAYS["a"])
    assert found["empty"].shape == (0, 3) and found["scalar"] == 2


def keras_weights(path, kind="float32"):
    """Writes the weights of a compiled Keras model, with its dropout seed and optimizer."""
    inputs = keras.Input((4,))
    x = keras.layers.Dropout(0.1, seed=1)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(3, dtype=kind)(x))
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    model.save_weights(path)
    return path


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_weights_that_keras_wrote_are_checked_and_read(tmp_path, kind):
    path = keras_weights(tmp_path / "w.weights.h5", kind)
    _, shapes = check_model_file(path)
    assert (4, 3) in shapes.values() and () in shapes.values()
    arrays = read_weights(path, skip=lambda name: not name.startswith("layers/dense/"))
    assert {array.dtype.name for array in arrays.values()} == {"float32"}


@pytest.mark.parametrize("kind", ["int32", "int64", "bool"])
def test_integer_and_bool_weights_are_refused(tmp_path, kind):
    path = keras_weights(tmp_path / "w.weights.h5")
    with h5py.File(path, "r+") as file:
        kernel = file["layers/dense/vars/0"][...]
        del file["layers/dense/vars/0"]
        file["layers/dense/vars/0"] = kernel.astype(kind)
    with pytest.raises(ValueError, match=rf"weights.h5: weights must be floats.*of {kind}"):
        check_model_file(path)


def test_an_archive_of_several_disks_is_refused(tmp_path):
    torch, path = pytest.importorskip("torch"), tmp_path / "w.bin"
    torch.save({"w": torch.ones(2)}, path)
    content = path.read_bytes()
    end = content.rindex(b"PK\x05\x06")
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 1, 0, 2)  # of two disks
    path.write_bytes(content[:end] + locator + content[end:])
    with pytest.raises(ValueError, match=r"w\.bin must hold tensors .* a damaged archive"):
        read_weights(path)
