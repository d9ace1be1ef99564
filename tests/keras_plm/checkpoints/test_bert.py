"""Released BERTs: reading the formats of Hugging Face."""

import json
import os
import sys

import numpy as np
import pytest

import keras_plm
from keras_plm.checkpoints import load_bert, save_bert
from keras_plm.pretraining import MaskedLM
from tests.helpers.checks import assert_close, to_numpy
from tests.keras_plm.checkpoints.small_bert import (
    LABELS,
    POSITIONS,
    TOKENIZER,
    agree,
    inputs,
    masked_scores,
    theirs,
    words,
)


def peer(kind, **settings):
    """A random BERT of `transformers`."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=13,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=9,
        type_vocab_size=3,
        initializer_range=0.5,
        **settings,
    )
    model = getattr(transformers, kind)(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 0.5, 0.5)
    return model


@pytest.fixture
def saved(tmp_path):
    """`saved(kind, **settings)`: a random BERT of `transformers`, and the folder that it saved."""

    def save(kind="BertForPreTraining", **settings):
        model = peer(kind, **settings)
        model.save_pretrained(tmp_path / kind)
        return model, tmp_path / kind

    return save


class TestReadsTransformers:
    @pytest.mark.compiles
    @pytest.mark.parametrize(
        "settings",
        [{}, {"layer_norm_eps": 1e-2, "hidden_act": "relu"}, {"hidden_act": "gelu_new"}],
        ids=str,
    )
    def test_encoder_and_both_heads_equal_transformers(self, settings, saved):
        model, folder = saved(**settings)
        wanted = theirs(model.bert, output_hidden_states=True)
        pretraining = load_bert(folder, head="pretraining")
        encoder = load_bert(folder)
        assert isinstance(pretraining, MaskedLM) and encoder.num_segments == 3
        assert encoder.max_sequence_length == 9
        real = inputs()["padding_mask"]
        for whole in (encoder, pretraining.encoder):
            ours = whole(inputs())
            for a, b in zip(ours["layers"], wanted.hidden_states, strict=True):
                agree(to_numpy(a)[real], b[real])
            agree(ours["pooled"], wanted.pooler_output)
        ours, wanted = pretraining({**inputs(), "masked_positions": POSITIONS}), theirs(model)
        agree(ours["masked_lm"], masked_scores(wanted.prediction_logits), atol=2e-5)
        agree(ours["next_sentence"], wanted.seq_relationship_logits, atol=2e-5)

    @pytest.mark.full
    def test_each_head_equals_transformers(self, saved):
        model, folder = saved("BertForMaskedLM")
        ours = load_bert(folder, head="masked_lm")({**inputs(), "masked_positions": POSITIONS})
        agree(ours["masked_lm"], masked_scores(theirs(model).logits), atol=2e-5)
        assert set(ours) == {"masked_lm"}
        model, folder = saved("BertForNextSentencePrediction")
        ours = load_bert(folder, head="next_sentence")
        agree(ours(inputs()), theirs(model).logits)
        assert ours.labels == ["next", "random"]
        labels = {"id2label": dict(enumerate(LABELS)), "label2id": {}}
        model, folder = saved("BertForSequenceClassification", **labels, classifier_dropout=0.3)
        ours = load_bert(folder, head="classifier", tokenizer=TOKENIZER)
        agree(ours(inputs()), theirs(model).logits)
        assert ours.labels == LABELS and ours.dropout == 0.3
        assert ours.predict(["a b", "c"])[0] in LABELS
        model, folder = saved("BertForTokenClassification", **labels)
        ours = load_bert(folder, head="tagger")
        real = inputs()["padding_mask"]
        agree(to_numpy(ours(words()))[real], theirs(model).logits[real])
        assert ours.labels == LABELS and ours.dropout == 0.1
        model, folder = saved("BertForQuestionAnswering")
        wanted = theirs(model)
        for head, labels in (("span", ["start", "end"]),
                             ("span_or_none", ["start", "end", "no answer"])):  # fmt: skip
            ours = load_bert(folder, head=head, tokenizer=TOKENIZER)
            assert ours.labels == labels
            logits = to_numpy(ours({**inputs(), "answer_mask": real}))
            for i, ends in enumerate((wanted.start_logits, wanted.end_logits)):
                agree(logits[:, i][real], ends[real])

    @pytest.mark.backend_neutral
    def test_labels_without_names_are_numbered(self, saved):
        _, folder = saved("BertForSequenceClassification")
        assert load_bert(folder, head="classifier").labels == ["LABEL_0", "LABEL_1"]

    @pytest.mark.backend_neutral
    def test_unrequested_head_causes_no_warning(self, saved, recwarn):
        for kind in ("BertForSequenceClassification", "BertForQuestionAnswering"):
            model, folder = saved(kind)
            agree(load_bert(folder)(inputs())["sequence"][0], theirs(model.bert)[0][0])
        assert not [w for w in recwarn if "not read" in str(w.message)]

    @pytest.mark.compiles
    def test_encoder_without_pooler_loads(self, saved, tmp_path):
        transformers = pytest.importorskip("transformers")
        model, whole = saved()
        bare = transformers.BertModel(model.config, add_pooling_layer=False)
        bare.load_state_dict(model.bert.state_dict(), strict=False)
        bare.save_pretrained(tmp_path / "bare")
        ours, wanted = load_bert(tmp_path / "bare"), load_bert(whole)
        named = {w.path: w for w in wanted.weights if "pooler" not in w.path}
        for w in ours.weights:
            if w.path in named:
                assert_close(w, named[w.path], atol=0)
        assert len(named) == len(ours.weights) - 2

    @pytest.mark.backend_neutral
    def test_incomplete_pooler_is_refused(self, saved):
        safetensors = pytest.importorskip("safetensors.numpy")
        _, folder = saved("BertModel")
        file = folder / "model.safetensors"
        weights = safetensors.load_file(file)
        weights["POOLER.DENSE.WEIGHT"] = weights.pop("pooler.dense.weight")
        safetensors.save_file(weights, file)
        with pytest.raises(ValueError, match="whole pooler .* Received: only pooler.dense.bias"):
            load_bert(folder)

    def test_dtype_argument_sets_the_precision(self, saved):
        _, folder = saved()
        assert load_bert(folder, dtype="mixed_bfloat16").compute_dtype == "bfloat16"

    def test_activation_argument_overrides_the_configuration(self, saved):
        _, folder = saved()
        assert load_bert(folder).activation == "gelu_erf"
        assert load_bert(folder, activation="gelu_tanh").activation == "gelu_tanh"


@pytest.mark.backend_neutral
class TestFormats:
    """Other files with the content of `model.safetensors`."""

    @pytest.fixture
    def tensors(self, saved):
        safetensors = pytest.importorskip("safetensors.torch")
        _, folder = saved()
        wanted = load_bert(folder)(inputs())
        tensors = safetensors.load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        return folder, tensors, wanted

    def test_torch(self, tensors):
        import torch

        folder, arrays, wanted = tensors
        torch.save(arrays, folder / "pytorch_model.bin")
        assert_close(load_bert(folder)(inputs()), wanted, atol=0)

    @pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
    def test_names_of_wrapped_models(self, prefix, tensors):
        import torch

        folder, arrays, wanted = tensors
        arrays = {f"{prefix}{name}": array for name, array in arrays.items()}
        torch.save(arrays, folder / "pytorch_model.bin")
        assert_close(load_bert(folder)(inputs()), wanted, atol=0)

    def test_old_configurations_without_a_type(self, tensors):
        import torch

        folder, arrays, wanted = tensors
        torch.save(arrays, folder / "pytorch_model.bin")
        config = json.loads((folder / "config.json").read_text())
        del config["model_type"]
        (folder / "config.json").write_text(json.dumps(config))
        save_bert(folder / "other", load_bert(folder), TOKENIZER)
        for name in ("vocab.txt", "tokenizer_config.json"):
            (folder / "other" / name).rename(folder / name)
        encoder, tokenizer = keras_plm.load(folder)
        assert_close(encoder(inputs()), wanted, atol=0)
        assert tokenizer.vocabulary == TOKENIZER.vocabulary
        (folder / "vocab.txt").unlink()
        (folder / "vocab.json").write_text('{"a": 0}')
        (folder / "merges.txt").write_text("#version: 0.2\n")
        (folder / "tokenizer_config.json").unlink()
        with pytest.raises(ValueError, match="of a BERT must be a WordPiece.*BERT with BytePair"):
            keras_plm.load(folder)

    @pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
    def test_shards(self, name, tensors):
        import torch
        from safetensors.torch import save_file

        folder, arrays, wanted = tensors
        stem, end = name.split(".")
        shards = [f"{stem}-0000{i}-of-00002.{end}" for i in (1, 2)]
        places = {n: shards[i % 2] for i, n in enumerate(sorted(arrays))}
        for shard in shards:
            part = {n: arrays[n] for n in arrays if places[n] == shard}
            (save_file if end == "safetensors" else torch.save)(part, folder / shard)
        index = folder / f"{name}.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
        assert_close(load_bert(folder)(inputs()), wanted, atol=0)
        index.write_text(json.dumps({"weight_map": {**places, "more": shards[0]}}))
        with pytest.raises(ValueError, match="every weight that it names.*no 'more'"):
            load_bert(folder)
        index.write_text(json.dumps({"weight_map": places}))
        part = dict(list(arrays.items())[:2])
        (save_file if end == "safetensors" else torch.save)(part, folder / shards[1])
        with pytest.raises(ValueError, match="must not hold weights of another shard|it names"):
            load_bert(folder)
        (folder / shards[1]).unlink()
        with pytest.raises(ValueError, match=f"No file .*{shards[1]}"):
            load_bert(folder)
        index.write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
        with pytest.raises(ValueError, match="must name files next to it.*'../other"):
            load_bert(folder)

    def test_half_precision(self, tensors):
        from safetensors.torch import save_file

        folder, arrays, wanted = tensors
        arrays = {name: tensor.bfloat16() for name, tensor in arrays.items()}
        save_file(arrays, folder / "model.safetensors")
        assert_close(load_bert(folder)(inputs())["pooled"], wanted["pooled"], atol=0.1)

    def test_old_names(self, tensors):
        """Gamma and beta are old names; position ids and a tied table are redundant."""
        import torch
        from safetensors.torch import save_file

        folder, arrays, wanted = tensors
        arrays = {
            n.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): a
            for n, a in arrays.items()
        }
        arrays["bert.embeddings.position_ids"] = torch.arange(9)[None]
        table = arrays["bert.embeddings.word_embeddings.weight"]
        save_file(arrays | {"cls.predictions.decoder.weight": table.clone()}, folder / "a.tmp")
        os.replace(folder / "a.tmp", folder / "model.safetensors")
        assert_close(load_bert(folder, head="pretraining").encoder(inputs()), wanted, atol=0)
        save_file(arrays | {"cls.predictions.decoder.weight": table + 1}, folder / "a.tmp")
        os.replace(folder / "a.tmp", folder / "model.safetensors")
        load_bert(folder)
        with pytest.raises(ValueError, match="ties its output to the embeddings.*two tables"):
            load_bert(folder, head="masked_lm")

    def test_code_in_a_file_is_not_run(self, tensors, tmp_path):
        import torch

        folder, arrays, _ = tensors
        torch.save({**arrays, "more": MakesAFolder(tmp_path / "ran")}, folder / "pytorch_model.bin")
        with pytest.raises(ValueError, match="pytorch_model.bin must hold tensors.*never run"):
            load_bert(folder)
        assert not (tmp_path / "ran").exists()
        (folder / "pytorch_model.bin").write_bytes(b"cut short")
        with pytest.raises(ValueError, match="pytorch_model.bin must hold tensors"):
            load_bert(folder)

    def test_missing_torch_raises_import_error(self, tensors, monkeypatch):
        folder, _, _ = tensors
        (folder / "pytorch_model.bin").write_bytes(b"")
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(ImportError, match="pytorch_model.bin.*pip install torch"):
            load_bert(folder)


class MakesAFolder:
    """Harmless pickled code: it makes a folder when it runs."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.backend_neutral
class TestRefuses:
    def test_configurations(self, saved, tmp_path):
        _, folder = saved()
        config = json.loads((folder / "config.json").read_text())

        def changed(**fields):
            fields = {k: v for k, v in (config | fields).items() if v is not ...}
            (folder / "config.json").write_text(json.dumps(fields))
            return folder

        with pytest.raises(ValueError, match="`head` must be one of None, 'pretraining'"):
            load_bert(folder, head="other")
        with pytest.raises(ValueError, match="`hidden_act` must be one of.*swish"):
            load_bert(changed(hidden_act="swish"))
        with pytest.raises(ValueError, match="attends in both directions.*is_decoder=True"):
            load_bert(changed(is_decoder=True))
        with pytest.raises(ValueError, match="not that of a BERT.*'roberta'"):
            load_bert(changed(model_type="roberta"))
        with pytest.raises(ValueError, match="position_embedding_type='relative_key'"):
            load_bert(changed(position_embedding_type="relative_key"))
        with pytest.raises(ValueError, match="config.json: `vocab_size` must be.*no such key"):
            load_bert(changed(vocab_size=...))
        with pytest.raises(
            ValueError, match='`hidden_size` must be a whole number, 1 or more. Received: "12"'
        ):
            load_bert(changed(hidden_size="12"))
        with pytest.raises(ValueError, match="ties its output.*tie_word_embeddings=False"):
            load_bert(changed(tie_word_embeddings=False), head="pretraining")
        load_bert(folder)
        with pytest.raises(ValueError, match="no 'encoder.layer.2.attention.self.query.weight'"):
            load_bert(changed(num_hidden_layers=3))
        with pytest.raises(ValueError, match="must hold only weights of the BERT of config.json"):
            load_bert(changed(num_hidden_layers=1))
        with pytest.raises(ValueError, match=r"'embeddings.word.*\(13, 8\) instead of \(14, 8\)"):
            load_bert(changed(vocab_size=14))
        with pytest.raises(ValueError, match=r"intermediate.*shape \(12, 8\) instead of \(11, 8\)"):
            load_bert(changed(intermediate_size=11))
        with pytest.raises(ValueError, match="does not hold the weights of the head 'classifier'"):
            load_bert(changed(), head="classifier")
        with pytest.raises(ValueError, match="config.json of a Hugging Face or KerasHub BERT"):
            load_bert(tmp_path)
        (folder / "model.safetensors").unlink()
        with pytest.raises(ValueError, match="No file .*model.safetensors, nor pytorch_model.bin"):
            load_bert(folder)

    @pytest.mark.parametrize(
        "key, value",
        [
            ("auto_map", {"AutoModel": "modeling_own.OwnBert"}),
            ("quantization_config", {"bits": 4}),
            ("pruned_heads", {"0": [1]}),
            ("is_encoder_decoder", True),
            ("directionality", "unidirectional"),
            ("pooler_type", "mean"),
            ("layer_norm_eps", "1e-12"),
            ("hidden_dropout_prob", None),
            ("hidden_act", ["gelu"]),
        ],
    )
    def test_unsupported_settings(self, key, value, saved):
        _, folder = saved()
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, key: value}))
        with pytest.raises(ValueError, match=f"config.json: .*`{key}` must be .*Received: "):
            load_bert(folder)

    def test_adapters(self, saved):
        _, folder = saved()
        (folder / "adapter_config.json").write_text("{}")
        with pytest.raises(ValueError, match="adapters must be merged into the weights first"):
            load_bert(folder)

    def test_unequal_dropout_warns(self, saved):
        _, folder = saved(attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.2)
        with pytest.warns(
            UserWarning, match="one dropout rate .*'attention_probs_dropout_prob': 0"
        ):
            assert load_bert(folder).dropout == 0.2

    def test_untied_heads_are_refused(self, saved):
        from safetensors.numpy import load_file, save_file

        _, folder = saved()
        arrays = load_file(folder / "model.safetensors")
        arrays["cls.predictions.decoder.bias"] = arrays["cls.predictions.bias"] + 1
        save_file(arrays, folder / "model.safetensors")
        with pytest.raises(ValueError, match="ties its output.*two tables or biases"):
            load_bert(folder, head="pretraining")
        load_bert(folder)

    def test_labels_that_do_not_match_outputs_are_refused(self, saved):
        _, folder = saved("BertForSequenceClassification")
        config = json.loads((folder / "config.json").read_text())
        for change, match in (
            ({"id2label": {"0": "a"}}, "must number the 2 outputs.*Received: .'0'"),
            (
                {"problem_type": "multi_label_classification"},
                "must choose one of two labels or more",
            ),
        ):
            (folder / "config.json").write_text(json.dumps(config | change))
            with pytest.raises(ValueError, match=match):
                load_bert(folder, head="classifier")
        _, folder = saved("BertForTokenClassification", num_labels=1)
        with pytest.raises(ValueError, match="two labels or more. Received: 1 outputs"):
            load_bert(folder, head="tagger")

    def test_unknown_weights_are_listed(self, saved):
        from safetensors.numpy import load_file, save_file

        _, folder = saved()
        arrays = load_file(folder / "model.safetensors")
        arrays["crf.transitions"] = np.zeros((2, 2), "float32")
        save_file(arrays, folder / "model.safetensors")
        with pytest.warns(UserWarning, match="are not read: crf.transitions"):
            load_bert(folder)
