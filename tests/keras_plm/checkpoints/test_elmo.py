"""Released ELMo files: writing, reading, and refusing files that do not fit."""

import json

import h5py
import numpy as np
import pytest

from keras_plm.checkpoints import load_elmo, save_elmo
from keras_plm.models import BERT, ELMo
from keras_plm.tokenizers import Characters
from tests.helpers.checks import assert_close

SIZES = {"units": 7, "projection_dim": 5, "filters": [[1, 3], [2, 2]], "character_dim": 2}


@pytest.fixture
def files(tmp_path):
    encoder = ELMo(**SIZES, num_highway=1, cell_clip=2.0, projection_clip=0.5)
    rng = np.random.default_rng(0)
    encoder.set_weights([rng.normal(size=w.shape) for w in encoder.get_weights()])
    options, weights = tmp_path / "options.json", tmp_path / "weights.hdf5"
    save_elmo(options, weights, encoder)
    return encoder, options, weights


@pytest.mark.compiles
def test_saved_elmo_loads_with_equal_outputs(files, tmp_path):
    encoder, options, weights = files
    again = load_elmo(options, weights)
    packed = Characters().pack(["To be, or not to be"])
    assert_close(again(packed), encoder(packed), atol=0)
    mine, theirs = (m.get_config() | {"name": ""} for m in (encoder, again))
    assert mine == theirs
    assert sorted(path.name for path in tmp_path.iterdir()) == ["options.json", "weights.hdf5"]


@pytest.mark.backend_neutral
def test_saved_files_have_the_layout_of_the_original(files, oracles):
    """After reading and writing, a file has the same arrays under the same names."""
    _, options, weights = files
    source = oracles("bilm/lm_weights.hdf5")
    save_elmo(options, weights, load_elmo(oracles("bilm/options.json"), source))
    found = json.loads(options.read_text())
    assert found == json.loads(oracles("bilm/options.json").read_text())
    with h5py.File(source) as theirs, h5py.File(weights) as ours:
        names = {}
        for file in (theirs, ours):
            names[file] = []
            file.visit(names[file].append)
        assert sorted(names[theirs]) == sorted(names[ours])
        for name in names[theirs]:
            if isinstance(theirs[name], h5py.Dataset):
                assert ours[name].dtype == np.float32
                np.testing.assert_array_equal(ours[name][...], theirs[name][...])


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda f: f.__delitem__("CNN_proj/b_proj"), "no 'CNN_proj/b_proj'"),
        (lambda f: f.create_dataset("CNN/W_cnn_2", data=[1.0]), "an unknown 'CNN/W_cnn_2'"),
        (
            lambda f: (
                f.__delitem__("char_embed"),
                f.create_dataset("char_embed", data=np.ones((262, 2))),
            ),
            r"'char_embed' of shape \(262, 2\) instead of \(261, 2\)",
        ),
        (lambda f: f["CNN_high_0/b_carry"].write_direct(np.full(5, np.nan)), "must be finite"),
        (
            lambda f: (
                f.__delitem__("CNN_proj/b_proj"),
                f.create_dataset("CNN_proj/b_proj", data=np.full(5, 1e300)),
            ),
            "must be finite in float32",
        ),
        (
            lambda f: (
                f.__delitem__("CNN_proj/b_proj"),
                f.create_dataset("CNN_proj/b_proj", data=np.full(5, 1j)),
            ),
            "'CNN_proj/b_proj' must hold numbers. Received: complex128",
        ),
    ],
)
def test_error_names_the_wrong_weight(files, damage, message):
    _, options, weights = files
    with h5py.File(weights, "a") as file:
        damage(file)
    with pytest.raises(ValueError, match=message):
        load_elmo(options, weights)


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "change, message",
    [
        ({"lstm": None}, "`lstm` must be an object. Received: null"),
        ({"char_cnn.n_characters": 261}, "`n_characters` must be 262"),
        ({"char_cnn.max_characters_per_token": 40}, "must be 50"),
        ({"lstm.dim": 8}, "of shape"),
        ({"lstm.n_layers": 3}, "no 'RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/B'"),
        ({"lstm.n_layers": 1}, "Received: an unknown"),
        ({"char_cnn.filters": [[1, 3]]}, "Received: an unknown"),
        ({"char_cnn.activation": "gelu"}, 'one of "relu", "tanh"'),
        (
            {"char_cnn.filters": [[1.0, 3]]},
            r"`char_cnn.filters.0..0.` must be a whole number, 1 or more. Received: 1.0",
        ),
        ({"lstm.use_skip_connections": "false"}, 'true or false. Received: "false"'),
        ({"lstm.cell_clip": "3"}, "`lstm.cell_clip` must be a number or null"),
        (
            {"lstm.n_layers": True},
            "`lstm.n_layers` must be a whole number, 1 or more. Received: true",
        ),
    ],
)
def test_wrong_options_are_refused(files, change, message):
    _, options, weights = files
    described = json.loads(options.read_text())
    for key, value in change.items():
        *outer, last = key.split(".")
        part = described[outer[0]] if outer else described
        part[last] = value
    options.write_text(json.dumps(described))
    with pytest.raises(ValueError, match=message):
        load_elmo(options, weights)


@pytest.mark.backend_neutral
def test_options_with_byte_order_mark_load(files):
    _, options, weights = files
    options.write_text("\ufeff" + options.read_text(), encoding="utf-8")
    load_elmo(options, weights)


@pytest.mark.backend_neutral
def test_save_refuses_equal_paths_and_folders(files, tmp_path):
    encoder, options, weights = files
    before = weights.read_bytes()
    for paths in ((weights, weights), (tmp_path, weights)):
        with pytest.raises(ValueError, match="paths of two files"):
            save_elmo(*paths, encoder)
    assert weights.read_bytes() == before


@pytest.mark.backend_neutral
def test_missing_and_damaged_files_are_refused(files, tmp_path):
    _, options, weights = files
    with pytest.raises(ValueError, match="No file"):
        load_elmo(tmp_path / "none.json", weights)
    with pytest.raises(ValueError, match="an HDF5 file on this machine.*none.hdf5', no file"):
        load_elmo(options, tmp_path / "none.hdf5")
    with pytest.raises(ValueError, match="a folder"):
        load_elmo(options, tmp_path)
    for text in ("[]", '{"lstm": 3, "char_cnn": {}}'):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(ValueError, match="must be an object|must hold an object"):
            load_elmo(tmp_path / "other.json", weights)
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ValueError, match="not a whole HDF5 file"):
        load_elmo(options, weights)
    options.write_text("{")
    with pytest.raises(ValueError, match="must be JSON"):
        load_elmo(options, weights)
    with pytest.raises(ValueError, match="must be an ELMo"):
        save_elmo(options, weights, BERT(9, 1, 1, 4, 4))
