"""Saving and loading models, and the formats of released files."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_plm
from keras_plm.checkpoints import average_weights, load_tokenizer, save_bert
from keras_plm.models import BERT, Seq2Seq, Transformer
from keras_plm.tokenizers import BytePair, WordPiece
from tests.helpers.checks import assert_close, to_numpy

pytestmark = pytest.mark.each_backend

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENIZER = WordPiece([*SPECIAL, *"abcdefgh"])
SIZE = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}


def inputs(rows=3, length=5, vocabulary_size=13):
    ids = np.random.default_rng(0).integers(5, vocabulary_size, (rows, length)).astype("int32")
    segments = np.repeat(np.arange(length)[None] > 2, rows, 0).astype("int32")
    mask = np.ones((rows, length), bool)
    mask[1, 3:] = False
    return {"token_ids": ids, "segment_ids": segments, "padding_mask": mask}


@pytest.fixture
def encoder():
    return BERT(13, **SIZE, max_sequence_length=9, activation="gelu_tanh", pre_norm=True)


class TestNativeFolder:
    def test_round_trip(self, encoder, tmp_path):
        keras_plm.save(tmp_path / "e", encoder, TOKENIZER)
        assert sorted(p.name for p in (tmp_path / "e").iterdir()) == [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
        ]
        again, tokenizer = keras_plm.load(tmp_path / "e")
        assert_close(again(inputs()), encoder(inputs()), atol=0)
        assert tokenizer.vocabulary == TOKENIZER.vocabulary
        assert again.get_config() | {"name": ""} == encoder.get_config() | {"name": ""}

    @pytest.mark.full
    def test_half_size_on_request(self, encoder, tmp_path):
        keras_plm.save(tmp_path / "full", encoder, TOKENIZER)
        keras_plm.save(tmp_path / "half", encoder, TOKENIZER, dtype="float16")
        sizes = [os.path.getsize(tmp_path / n / "model.safetensors") for n in ("full", "half")]
        assert sizes[1] < 0.7 * sizes[0]
        assert_close(keras_plm.load(tmp_path / "half")[0](inputs()), encoder(inputs()), atol=5e-3)

    def test_load_dtype_sets_the_precision(self, tmp_path):
        encoder = BERT(13, **SIZE, dtype="mixed_bfloat16")
        keras_plm.save(tmp_path, encoder, TOKENIZER)
        for asked, computed in ((None, "float32"), ("mixed_bfloat16", "bfloat16")):
            again, _ = keras_plm.load(tmp_path, dtype=asked)
            assert again.compute_dtype == again.output["sequence"].dtype == computed

    def test_freezing_is_not_saved(self, tmp_path):
        encoder = BERT(13, **SIZE)
        encoder.trainable = False
        keras_plm.save(tmp_path, encoder, TOKENIZER)
        assert keras_plm.load(tmp_path)[0].trainable_weights

    @pytest.mark.backend_neutral
    def test_save_replaces_only_an_earlier_save(self, encoder, tmp_path):
        keras_plm.save(tmp_path, encoder, TOKENIZER)
        (tmp_path / "notes.txt").write_text("mine")
        other = BERT(13, **SIZE)
        keras_plm.save(tmp_path, other, TOKENIZER)
        assert (tmp_path / "notes.txt").read_text() == "mine"
        assert_close(keras_plm.load(tmp_path)[0](inputs()), other(inputs()), atol=0)
        for name in ("params_shapes.json", "encoder_bpe_40000.json"):  # OpenAI's, read first
            (tmp_path / name).write_text("{}")
            with pytest.raises(ValueError, match=f"which `load` reads first.*{name}"):
                keras_plm.save(tmp_path, encoder, TOKENIZER)
            (tmp_path / name).unlink()
        (tmp_path / "hf").mkdir()
        (tmp_path / "hf" / "config.json").write_text('{"model_type": "bert"}')
        with pytest.raises(ValueError, match="name another folder"):
            keras_plm.save(tmp_path / "hf", encoder, TOKENIZER)

    @pytest.mark.backend_neutral
    def test_bad_folders_are_explained(self, encoder, tmp_path):
        def damage(name, text):
            folder = tmp_path / f"damaged{len(list(tmp_path.iterdir()))}"
            keras_plm.save(folder, encoder, TOKENIZER)
            (folder / name).write_bytes(text)
            return folder

        with pytest.raises(ValueError, match="No such folder"):
            keras_plm.load(tmp_path / "nothing")
        with pytest.raises(ValueError, match="No file .*config.json written by keras_plm.save"):
            keras_plm.load(tmp_path)
        with pytest.raises(ValueError, match="must be JSON"):
            keras_plm.load(damage("config.json", b"{"))
        with pytest.raises(ValueError, match="`model_type` must be bert, gpt2, openai-gpt.*t5"):
            keras_plm.load(damage("config.json", b'{"model_type": "t5"}'))
        for kind in (b'{"a>b": 1}', b'["BERT"]', b'["a>b"]'):
            text = b'{"model": ' + kind + b', "tokenizer": "WordPiece", "config": {}}'
            with pytest.raises(ValueError, match="was not written by keras_plm.save"):
                keras_plm.load(damage("config.json", text))
        with pytest.raises(ValueError, match="model.safetensors is not the file that was written"):
            keras_plm.load(damage("model.safetensors", b"\x10\x00"))
        with pytest.raises(ValueError, match="tokenizer.json is not the file that was written"):
            keras_plm.load(damage("tokenizer.json", b"{}"))
        folder = tmp_path / "other"
        keras_plm.save(folder, encoder, TOKENIZER)
        config = json.loads((folder / "config.json").read_text())
        del config["files"]  # like folders of early versions
        config["config"]["num_layers"] = 3
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match="does not hold the weights.*missing"):
            keras_plm.load(folder)
        config["config"] |= {"num_layers": 2, "vocabulary_size": 14}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=r"shape \(13, 8\) instead of \(14, 8\)"):
            keras_plm.load(folder)
        with pytest.raises(ValueError, match="know every id of its tokenizer"):
            keras_plm.save(tmp_path / "x", BERT(12, **SIZE), TOKENIZER)
        config["config"]["vocabulary_size"] = 13
        (folder / "config.json").write_text(json.dumps(config))
        WordPiece([*TOKENIZER.vocabulary, "more"]).save(folder / "tokenizer.json")
        with pytest.raises(ValueError, match="know every id of its tokenizer"):
            keras_plm.load(folder)


def changed(folder, **settings):
    """Changes the settings of the encoder in a folder without checksums, as in early versions."""
    config = json.loads((folder / "config.json").read_text())
    config.pop("files", None)
    config["config"] = {k: v for k, v in (config["config"] | settings).items() if v is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.backend_neutral
class TestValidation:
    @pytest.mark.parametrize(
        "settings, message",
        [
            ({"hidden_dim": 10**9}, "more weights than its file holds"),
            ({"num_layers": 10**6}, "more weights than its file holds"),
            ({"vocabulary_size": 10**9}, "more weights than its file holds"),
            ({"hidden_dim": -8}, "`hidden_dim` must be a whole number, 1 or more. Received: -8"),
            ({"hidden_dim": 8.0}, "`hidden_dim` must be a whole number, 1 or more. Received: 8.0"),
            ({"num_heads": ...}, "`num_heads` must be a whole number.*no such key"),
            ({"num_heads": 3}, "does not describe a BERT. `num_heads` must divide.*Received"),
            ({"pre_norm": "yes"}, "`pre_norm` must be true or false"),
            ({"activation": "sigmoid"}, '`activation` must be one of "gelu_erf"'),
            ({"sizes": 3}, "must be arguments of BERT. Received: .sizes"),
            ({"name": "a/b"}, "does not describe a BERT"),
        ],
    )
    def test_settings_are_checked_before_anything_is_built(
        self, encoder, settings, message, tmp_path
    ):
        keras_plm.save(tmp_path, encoder, TOKENIZER)
        with pytest.raises(ValueError, match=f"config.json.*{message}"):
            keras_plm.load(changed(tmp_path, **settings))

    @pytest.mark.parametrize("damage", ["nan", "int32", "bool"])
    def test_weights_are_finite_floats(self, encoder, damage, tmp_path):
        from safetensors.numpy import load_file, save_file

        keras_plm.save(tmp_path, encoder, TOKENIZER)
        weights = load_file(tmp_path / "model.safetensors")
        bias = weights["pooler/bias"]
        weights["pooler/bias"] = bias * np.nan if damage == "nan" else bias.astype(damage)
        save_file(weights, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match="model.safetensors: .*'pooler/bias'"):
            keras_plm.load(changed(tmp_path))

    def test_changed_files_fail_the_checksum(self, encoder, tmp_path):
        keras_plm.save(tmp_path, encoder, TOKENIZER)
        path = tmp_path / "model.safetensors"
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(ValueError, match="model.safetensors is not the file.*another SHA-256"):
            keras_plm.load(tmp_path)
        keras_plm.load(tmp_path, verify=False)
        path.write_bytes(whole)
        keras_plm.load(tmp_path)
        path = tmp_path / "tokenizer.json"
        path.write_text(path.read_text().replace('"h"', '"i"'))
        with pytest.raises(ValueError, match="tokenizer.json is not the file.*another SHA-256"):
            keras_plm.load(tmp_path)

    def test_folders_without_checksums_are_read(self, encoder, tmp_path):
        keras_plm.save(tmp_path, encoder, TOKENIZER)
        again, _ = keras_plm.load(changed(tmp_path))
        assert_close(again.get_weights(), encoder.get_weights(), atol=0)

    def test_interrupted_save_leaves_old_or_new_folder(self, tmp_path, monkeypatch):
        """A process may end before each of its renames."""
        small, large = BERT(13, **SIZE), BERT(14, **SIZE)
        tokenizers = {13: TOKENIZER, 14: WordPiece([*TOKENIZER.vocabulary, "i"])}
        replace, seen = os.replace, []
        for count in range(20):
            folder, left = tmp_path / str(count), [count]
            keras_plm.save(folder, small, tokenizers[13])

            def ending(*paths, left=left):
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                return replace(*paths)

            with monkeypatch.context() as patch:
                patch.setattr(os, "replace", ending)
                try:
                    keras_plm.save(folder, large, tokenizers[14])
                except KeyboardInterrupt:
                    pass
                else:
                    break
            again, tokenizer = keras_plm.load(folder)
            wanted = {13: small, 14: large}[len(tokenizer)]
            assert_close(again.get_weights(), wanted.get_weights(), atol=0)
            seen.append(len(tokenizer))
        assert seen == sorted(seen) and set(seen) == {13, 14} and seen.count(14) >= 2

    def test_modes_follow_the_umask(self, encoder, tmp_path):
        before = os.umask(0o022)
        try:
            keras_plm.save(tmp_path / "a", encoder, TOKENIZER)
        finally:
            os.umask(before)
        assert {p.stat().st_mode & 0o777 for p in (tmp_path / "a").iterdir()} == {0o644}


SCRIPT = """
import sys
import numpy as np
import keras, keras_plm
encoder, tokenizer = keras_plm.load(sys.argv[1])
packed = tokenizer.pack(["a b c", "d"], ["e f", "g h a"])
outputs = {k: packed[k] for k in encoder.input}
np.savez(sys.argv[2], *map(keras.ops.convert_to_numpy, keras.tree.flatten(encoder(outputs))))
"""


@pytest.mark.full
@pytest.mark.backend_neutral
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_folder_has_equal_outputs_on_every_backend(backend, tmp_path):
    """A folder saved here gives the same outputs in a process of each backend."""
    pytest.importorskip(backend)
    encoder = BERT(13, **SIZE, max_sequence_length=9)
    keras_plm.save(tmp_path / "e", encoder, TOKENIZER)
    script = tmp_path / "read.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = os.getcwd()
    command = [sys.executable, str(script), str(tmp_path / "e"), str(tmp_path / "out.npz")]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    packed = TOKENIZER.pack(["a b c", "d"], ["e f", "g h a"])
    wanted = keras.tree.flatten(encoder({k: packed[k] for k in encoder.input}))
    with np.load(tmp_path / "out.npz") as found:
        for name, array in zip(found.files, wanted, strict=True):
            np.testing.assert_allclose(found[name], to_numpy(array), atol=1e-5)


class TestOtherFormats:
    @pytest.mark.backend_neutral
    def test_tokenizer_is_read_from_vocabulary_files(self, tmp_path):
        (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "Paris", "paris"]))
        (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
        assert load_tokenizer(tmp_path).tokenize("Paris") == ["paris"]
        (tmp_path / "vocab.txt").unlink()
        with pytest.raises(ValueError, match="No tokenizer.json, vocab.txt"):
            load_tokenizer(tmp_path)

    @pytest.mark.full
    def test_released_models_load_with_their_tokenizers(self, tmp_path):
        encoder = BERT(13, **SIZE)
        save_bert(tmp_path / "bert", encoder, TOKENIZER)
        again, tokenizer = keras_plm.load(tmp_path / "bert", dtype="mixed_bfloat16")
        assert again.compute_dtype == "bfloat16"
        assert_close(again.get_weights(), encoder.get_weights(), atol=0)
        assert tokenizer.get_config() == TOKENIZER.get_config()
        WordPiece([*TOKENIZER.vocabulary, "more"]).save(tmp_path / "bert" / "tokenizer.json")
        (tmp_path / "bert" / "vocab.txt").unlink()
        with pytest.raises(ValueError, match="know every id of its tokenizer"):
            keras_plm.load(tmp_path / "bert")


@pytest.mark.full
class TestTranslators:
    @pytest.fixture
    def tokenizer(self, tmp_path):
        path = tmp_path / "text.txt"
        path.write_text("ein Hund\nder Mann\n" * 3, encoding="utf-8")
        return BytePair.train(path, 40)

    @pytest.mark.parametrize(
        "make",
        [
            lambda v: Transformer(v, 1, 2, 8),
            lambda v: Seq2Seq(v, 4, 6, attention="additive"),
            lambda v: Seq2Seq(v, 4, 6, attention=None),
        ],
    )
    def test_save_and_load(self, make, tokenizer, tmp_path):
        model = make(len(tokenizer))
        keras_plm.save(tmp_path / "model", model, tokenizer)
        again, its_tokenizer = keras_plm.load(tmp_path / "model")
        packed = its_tokenizer.pack(["ein Mann", "der Hund"])
        assert (packed["token_ids"] == tokenizer.pack(["ein Mann", "der Hund"])["token_ids"]).all()
        inputs = {**packed, "target_ids": packed["token_ids"]}
        assert_close(again(inputs), model(inputs), atol=1e-6)
        assert type(load_tokenizer(tmp_path / "model")) is BytePair

    @pytest.mark.backend_neutral
    def test_weights_of_several_files_are_averaged(self, tmp_path):
        model = Transformer(13, 1, 2, 8)
        kept, paths = [], []
        for i in range(3):
            model.set_weights(
                [np.random.default_rng(i).normal(size=w.shape) for w in model.get_weights()]
            )
            kept.append(model.get_weights())
            paths.append(tmp_path / f"{i}.weights.h5")
            model.save_weights(paths[-1])
        average_weights(model, paths)
        for actual, *parts in zip(model.get_weights(), *kept, strict=True):
            np.testing.assert_allclose(actual, np.mean(parts, axis=0), atol=1e-6)

    @pytest.mark.backend_neutral
    def test_failed_average_leaves_weights_unchanged(self, tmp_path):
        model, other = Transformer(13, 1, 2, 8), Transformer(13, 1, 2, 16)
        path, wrong = tmp_path / "a.weights.h5", tmp_path / "b.weights.h5"
        model.save_weights(path)
        other.save_weights(wrong)
        before = [w + 1 for w in model.get_weights()]
        model.set_weights(before)
        with pytest.raises(ValueError, match="b.weights.h5 does not hold the weights"):
            average_weights(model, [path, wrong])
        assert_close(model.get_weights(), before, atol=0)
        whole = path.read_bytes()
        for damaged in (whole[: len(whole) // 2], b"", whole[:2000] + bytes(400) + whole[2400:]):
            wrong.write_bytes(damaged)
            with pytest.raises(ValueError, match="b.weights.h5"):
                average_weights(model, [path, wrong])
            assert_close(model.get_weights(), before, atol=0)
        model.set_weights([w * np.nan for w in before])
        model.save_weights(wrong)
        model.set_weights(before)
        with pytest.raises(ValueError, match="b.weights.h5: weights must be finite"):
            average_weights(model, [path, wrong])
        assert_close(model.get_weights(), before, atol=0)
        with pytest.raises(ValueError, match="Received: no file .*c.weights.h5"):
            average_weights(model, [path, tmp_path / "c.weights.h5"])
        with pytest.raises(ValueError, match="Received: no paths"):
            average_weights(model, [])
