"""Released BERTs in the formats of Google and KerasHub."""

import json
import sys

import numpy as np
import pytest

from keras_plm.checkpoints import load_bert
from keras_plm.checkpoints.bert import _names
from keras_plm.checkpoints.bert_formats import _google_name
from keras_plm.models import BERT
from keras_plm.pretraining import MaskedLM
from tests.helpers.checks import assert_close, to_numpy
from tests.keras_plm.checkpoints.small_bert import (
    POSITIONS,
    SIZE,
    TOKENIZER,
    agree,
    inputs,
    random_weights,
)


def google_names(model):
    """Returns the variables of our `MaskedLM` under google-research/bert's names."""
    arrays = {w.path: to_numpy(w) for w in model.weights}
    tables = {"token": "word", "position": "position", "segment": "token_type"}
    found = {
        f"bert/embeddings/{theirs}_embeddings": arrays[f"{ours}_embedding/embeddings"]
        for ours, theirs in tables.items()
    }
    layers = {
        "embedding_norm": "bert/embeddings/LayerNorm",
        "pooler": "bert/pooler/dense",
        "masked_lm/dense": "cls/predictions/transform/dense",
        "masked_lm/norm": "cls/predictions/transform/LayerNorm",
    }
    for i in range(2):
        ours, theirs = f"transformer/block_{i}", f"bert/encoder/layer_{i}"
        layers |= {
            f"{ours}/attention/output": f"{theirs}/attention/output/dense",
            f"{ours}/attention_norm": f"{theirs}/attention/output/LayerNorm",
            f"{ours}/feed_forward/intermediate": f"{theirs}/intermediate/dense",
            f"{ours}/feed_forward/output": f"{theirs}/output/dense",
            f"{ours}/feed_forward_norm": f"{theirs}/output/LayerNorm",
        }
        for kind in ("kernel", "bias"):
            joined = arrays[f"{ours}/attention/query_key_value/{kind}"]
            for part, array in zip(("query", "key", "value"), np.split(joined, 3, -1), strict=True):
                found[f"{theirs}/attention/self/{part}/{kind}"] = array
    for ours, theirs in layers.items():
        for kind in ("kernel", "bias", "gamma", "beta"):
            if f"{ours}/{kind}" in arrays:
                found[f"{theirs}/{kind}"] = arrays[f"{ours}/{kind}"]
    found["cls/predictions/output_bias"] = arrays["masked_lm/bias"]
    found["cls/seq_relationship/output_weights"] = arrays["next_sentence/kernel"].T
    found["cls/seq_relationship/output_bias"] = arrays["next_sentence/bias"]
    return found


class TestGoogle:
    @pytest.fixture
    def write(self, tmp_path):
        """`write(variables)` writes a checkpoint in the format of the first release."""
        tf = pytest.importorskip("tensorflow")

        def save(variables, name="bert_model.ckpt"):
            slots = {f"{n}/adam_{k}": 0 * a for n, a in variables.items() for k in "mv"}
            names = [*variables, *slots, "global_step"]
            values = [*variables.values(), *slots.values(), np.int64(7)]
            tf.raw_ops.SaveV2(
                prefix=str(tmp_path / name),
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                tensors=[tf.constant(value) for value in values],
            )
            settings = {
                "attention_probs_dropout_prob": 0.1,
                "hidden_act": "gelu",
                "hidden_dropout_prob": 0.1,
                "hidden_size": 8,
                "initializer_range": 0.02,
                "intermediate_size": 12,
                "max_position_embeddings": 9,
                "num_attention_heads": 2,
                "num_hidden_layers": 2,
                "type_vocab_size": 2,
                "vocab_size": 13,
            }
            (tmp_path / "bert_config.json").write_text(json.dumps(settings))
            (tmp_path / "vocab.txt").write_text("\n".join(TOKENIZER.vocabulary) + "\n")
            return tmp_path

        return save

    @pytest.fixture
    def model(self):
        return random_weights(MaskedLM(BERT(13, **SIZE, max_sequence_length=9)))

    @pytest.mark.full
    def test_reads_a_checkpoint(self, write, model, recwarn):
        import keras_plm

        folder = write(google_names(model))
        again = load_bert(folder, head="pretraining")
        assert_close(again.get_weights(), model.get_weights(), atol=0)
        asked = {**inputs(), "masked_positions": POSITIONS}
        assert_close(again(asked), model(asked), atol=0)
        encoder, tokenizer = keras_plm.load(folder)
        assert_close(encoder(inputs()), model.encoder(inputs()), atol=0)
        assert tokenizer.vocabulary == TOKENIZER.vocabulary and tokenizer.lowercase
        assert not [w for w in recwarn if "not read" in str(w.message)]

    @pytest.mark.full
    def test_fine_tuned_checkpoint_loads_as_classifier(self, write, model):
        variables = {n: a for n, a in google_names(model).items() if n.startswith("bert/")}
        rng = np.random.default_rng(0)
        variables["output_weights"] = rng.normal(size=(3, 8)).astype("float32")
        variables["output_bias"] = rng.normal(size=3).astype("float32")
        head = load_bert(write(variables, "model.ckpt-343"), head="classifier")
        assert head.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
        pooled = to_numpy(model.encoder(inputs())["pooled"])
        wanted = pooled @ variables["output_weights"].T + variables["output_bias"]
        agree(head(inputs()), wanted)

    @pytest.mark.full
    @pytest.mark.backend_neutral
    def test_bad_folders_are_explained(self, write, model, monkeypatch):
        variables = google_names(model)
        folder = write(variables)
        write({n: a for n, a in variables.items() if "pooler" not in n})
        load_bert(folder)
        with pytest.raises(ValueError, match="no 'bert/pooler/dense"):
            load_bert(folder, head="pretraining")
        write({n: a for n, a in variables.items() if n != "bert/pooler/dense/bias"})
        with pytest.raises(
            ValueError, match="whole pooler .* Received: only bert/pooler/dense/ker"
        ):
            load_bert(folder)
        write({**variables, "bert/encoder/layer_1/output/dense/kernel": np.ones((8, 8))})
        with pytest.raises(ValueError, match=r"'bert/enc.*kernel' of.*\(8, 8\) instead of \(12, 8"):
            load_bert(folder)
        write({**variables, "bert/encoder/layer_2/output/dense/bias": np.ones(8)})
        with pytest.raises(ValueError, match="hold only weights.* Received: bert/encoder/layer_2"):
            load_bert(folder)
        write(variables, "other.ckpt")
        write(variables)
        load_bert(folder)  # the released name has priority
        (folder / "bert_model.ckpt.data-00000-of-00001").unlink()
        with pytest.raises(ValueError, match="bert_model.ckpt is no whole checkpoint"):
            load_bert(folder)
        (folder / "bert_model.ckpt.index").unlink()
        write(variables, "more.ckpt-7")
        with pytest.raises(ValueError, match="must hold one checkpoint.*more.ckpt-7.index, other"):
            load_bert(folder)
        (folder / "other.ckpt.index").unlink()
        monkeypatch.setitem(sys.modules, "tensorflow", None)
        with pytest.raises(ImportError, match="more.ckpt-7 is a .*pip install tensorflow"):
            load_bert(folder)


class TestKerasHub:
    @pytest.fixture
    def preset(self, tmp_path):
        keras_hub = pytest.importorskip("keras_hub")
        backbone = keras_hub.models.BertBackbone(
            vocabulary_size=13, **SIZE, max_sequence_length=9, num_segments=3, dropout=0.2
        )
        random_weights(backbone).save_to_preset(tmp_path)
        tokenizer = keras_hub.models.BertTokenizer(TOKENIZER.vocabulary, lowercase=True)
        tokenizer.save_to_preset(tmp_path)
        return tmp_path, backbone

    @pytest.mark.full
    def test_reads_a_preset(self, preset):
        import keras_plm

        folder, backbone = preset
        encoder, tokenizer = keras_plm.load(folder)
        asked = inputs()
        ours = encoder(asked)
        wanted = backbone({**asked, "padding_mask": asked["padding_mask"].astype("int32")})
        real = asked["padding_mask"]
        agree(to_numpy(ours["sequence"])[real], to_numpy(wanted["sequence_output"])[real], 2e-5)
        agree(ours["pooled"], wanted["pooled_output"], atol=2e-5)
        assert encoder.activation == "gelu_tanh" and encoder.dropout == 0.2
        assert tokenizer.tokenize("A b") == ["a", "b"]

    @pytest.mark.full
    @pytest.mark.backend_neutral
    def test_bad_folders_are_explained(self, preset):
        folder, _ = preset
        config = json.loads((folder / "config.json").read_text())

        def changed(name=None, **fields):
            text = {**config, "config": {**config["config"], **fields}}
            text["config"] = {k: v for k, v in text["config"].items() if v is not ...}
            text["registered_name"] = name or text["registered_name"]
            (folder / "config.json").write_text(json.dumps(text))
            return folder

        with pytest.raises(ValueError, match="no 'cls.predictions.transform.dense.weight'"):
            load_bert(changed(), head="pretraining")
        with pytest.raises(ValueError, match="BertBackbone; load other.*'keras_hub>OPTBackbone'"):
            load_bert(changed("keras_hub>OPTBackbone"))
        with pytest.raises(ValueError, match="`num_heads` must be a whole number.*no such key"):
            load_bert(changed(num_heads=...))
        with pytest.raises(ValueError, match="no 'layers/transformer_encoder_2/self_attention"):
            load_bert(changed(num_layers=3))
        with pytest.raises(ValueError, match="only weights.*: layers/transformer_encoder_1"):
            load_bert(changed(num_layers=1))
        with pytest.raises(ValueError, match=r"of shape \(9, 8\) instead of \(7, 8\)"):
            load_bert(changed(max_sequence_length=7))
        (folder / "model.weights.h5").write_bytes(b"cut")
        with pytest.raises(ValueError, match="is not a whole HDF5 file"):
            load_bert(changed())
        (folder / "model.weights.h5").unlink()
        with pytest.raises(ValueError, match="No file .*model.weights.h5"):
            load_bert(folder)


@pytest.mark.backend_neutral
def test_weight_names_include_published_examples():
    """REFERENCE: the variables of Google's and Hugging Face's files."""
    names = [n for theirs in _names(BERT(13, **SIZE)).values() for n in theirs]
    assert len(names) == 5 + 2 * 16 + 2
    assert {_google_name(name) for name in names} >= {
        "bert/embeddings/token_type_embeddings",
        "bert/embeddings/LayerNorm/gamma",
        "bert/encoder/layer_1/attention/output/LayerNorm/beta",
        "bert/encoder/layer_0/intermediate/dense/kernel",
        "bert/pooler/dense/bias",
    }
