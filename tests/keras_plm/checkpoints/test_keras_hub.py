"""KerasHub's backbones as encoders, its tokenizers with offsets and `pack`."""

import importlib.util
import json
import re
import sys

import h5py
import keras
import numpy as np
import pytest

import keras_plm
from keras_plm.checkpoints import load_tokenizer
from keras_plm.checkpoints.keras_hub import HubEncoder, from_hub, load_hub
from keras_plm.checkpoints.keras_hub_tokenizer import HubTokenizer
from keras_plm.data.task import Example
from keras_plm.heads import Classifier, Tagger
from keras_plm.models import BERT
from keras_plm.transfer import FeatureBased, FineTune
from keras_plm.transfer.layer_groups import layer_groups
from keras_plm.transfer.surgery import clone, keep_pretrained_layers
from tests.helpers.checks import assert_close, check_encoder, to_numpy
from tests.keras_plm.checkpoints.hub_models import (
    SIZE,
    SPECIAL,
    backbone,
    hub_tokenizer,
    sentence_piece,
)

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("keras_hub"), reason="keras_hub is not installed"
)


KINDS = ["Bert", "Roberta", "DistilBert", "DebertaV3", "Albert", "Electra", "GPT2", "OPT"]


def inputs(encoder, rows=2, length=5):
    ids = np.random.default_rng(0).integers(5, 13, (rows, length)).astype("int32")
    mask = np.ones((rows, length), bool)
    mask[1, 3:] = False
    arrays = {"token_ids": ids, "segment_ids": ids % 2, "padding_mask": mask}
    return {name: arrays[name] for name in encoder.input}


@pytest.mark.compiles
@pytest.mark.quick_cases("Bert")
@pytest.mark.parametrize("kind", KINDS)
def test_hub_encoder_meets_the_encoder_contract(kind, tmp_path, monkeypatch):
    if kind == "DebertaV3":
        # It repeats relative positions by the batch size, which `meta` does not support.
        monkeypatch.setattr("tests.helpers.checks.check_elsewhere", lambda make, inputs: None)
    own = backbone(kind)
    encoder = HubEncoder(own)
    outputs = check_encoder(encoder, tmp_path, vocabulary_size=13)
    assert len(outputs["layers"]) == 4 and encoder.num_layers == 3
    assert encoder.causal == (kind in ("GPT2", "OPT"))
    assert ("pooled" in outputs) == (kind in ("Bert", "Albert", "Electra"))
    assert encoder.vocabulary_size == 13 and encoder.max_sequence_length == 9

    # The last layer is KerasHub's output, the first one is the input of its first block.
    asked = inputs(encoder)
    wanted = own({n: x.astype("int32") for n, x in asked.items()})
    wanted = wanted if isinstance(wanted, dict) else {"sequence_output": wanted}
    found = encoder(asked)
    assert_close(found["sequence"], wanted["sequence_output"], atol=1e-6)
    if "pooled" in found:
        assert_close(found["pooled"], wanted["pooled_output"], atol=1e-6)
    assert len({round(float(to_numpy(layer).std()), 6) for layer in found["layers"]}) == 4


@pytest.mark.compiles
def test_hub_encoder_layers_equal_those_of_bert(tmp_path):
    """A preset gives the same layers as a `BERT` and as a backbone."""
    import keras_hub

    own = backbone("Bert")
    own.save_to_preset(tmp_path)
    pieces = [*SPECIAL, *"abcdefgh"]
    keras_hub.models.BertTokenizer(pieces, lowercase=True).save_to_preset(tmp_path)
    bert, _ = keras_plm.load(tmp_path)
    assert isinstance(bert, BERT)
    asked = inputs(bert)
    ours, theirs = bert(asked), load_hub(tmp_path)[0](asked)
    real = asked["padding_mask"]
    for a, b in zip(ours["layers"], theirs["layers"], strict=True):
        assert_close(to_numpy(a)[real], to_numpy(b)[real], atol=2e-5)
    assert_close(ours["pooled"], theirs["pooled"], atol=2e-5)


@pytest.mark.full
def test_clone_changes_dropout_dtype_and_pretrained_layers():
    encoder = HubEncoder(backbone("Roberta", dropout=0.2))
    assert encoder.dropout == 0.2
    copy = clone(encoder, dropout=0.0)
    assert copy.dropout == copy.backbone.dropout == 0.0
    assert_close(copy(inputs(copy)), encoder(inputs(encoder)), atol=0)
    half = clone(encoder, dtype="mixed_bfloat16")
    assert half.compute_dtype == half.output["sequence"].dtype == "bfloat16"
    one = keep_pretrained_layers(encoder, 1)
    same = {w.path: np.array_equal(*map(to_numpy, (w, v)))
            for w, v in zip(one.weights, encoder.weights, strict=True)}  # fmt: skip
    assert all(ok for path, ok in same.items() if "layer_0" in path or "embedding" in path)
    assert not any(ok for path, ok in same.items() if "layer_2" in path and "kernel" in path)


@pytest.mark.full
def test_layer_decay_reduces_rates_of_lower_layers():
    for kind, top in (("GPT2", "layer_norm/gamma"), ("Bert", "pooled_dense/kernel")):
        groups = layer_groups(HubEncoder(backbone(kind)), layer_decay=0.5)
        assert top not in groups
        assert groups["token_embedding/embeddings"][0] == 0.5**3
        name = next(n for n in groups if "layer_1/" in n and n.endswith("output_dense/kernel"))
        assert groups[name][0] == 0.5


@pytest.mark.full
def test_shared_albert_blocks_count_as_one_depth():
    """All layers of ALBERT share their weights."""
    encoder = HubEncoder(backbone("Albert"))
    assert encoder.num_blocks == 1 < encoder.num_layers
    groups = layer_groups(encoder, layer_decay=0.5)
    assert groups["token_embedding/embeddings"] == (0.5, 0)
    assert not any("inner_layer" in path for path in groups)
    assert keep_pretrained_layers(encoder, 0).num_layers == encoder.num_layers
    with pytest.raises(
        ValueError, match="share their weights: `pretrained_layers` must be None, 0 or -1"
    ):
        keep_pretrained_layers(encoder, 1)


@pytest.mark.backend_neutral
def test_other_objects_than_encoders_are_refused():
    import keras_hub

    with pytest.raises(ValueError, match="Backbone`; a task has one.*Received: BERT"):
        HubEncoder(BERT(13, **SIZE))
    sizes = {n: v for n, v in SIZE.items() if n != "num_heads"}
    net = keras_hub.models.FNetBackbone(vocabulary_size=13, **sizes)
    with pytest.raises(ValueError, match="FNetBackbone, which reads segment_ids, token_ids"):
        HubEncoder(net)
    with pytest.raises(ValueError, match="BartBackbone, which reads decoder_padding_mask"):
        HubEncoder(keras_hub.models.BartBackbone(vocabulary_size=13, **SIZE))


@pytest.mark.backend_neutral
def test_missing_keras_hub_raises_import_error(monkeypatch):
    encoder = HubEncoder(backbone("Roberta"))
    config = encoder.get_config()
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    for call in (
        lambda: HubEncoder(encoder.backbone),
        lambda: HubEncoder.from_config(config),
        lambda: load_hub("roberta_base_en"),
        lambda: HubTokenizer.of(None),
    ):
        with pytest.raises(ImportError, match="pip install keras-hub"):
            call()


TEXT = "low lower.  new é"


@pytest.mark.full
class TestTokenizers:
    @pytest.mark.parametrize("kind", ["Bert", "DistilBert", "Electra"])
    def test_word_piece(self, kind):
        theirs = hub_tokenizer(kind)
        segments = kind != "DistilBert"
        ours = HubTokenizer.of(theirs, has_segments=segments)
        packed = ours.pack(["Ab  c.", "x"], ["a", "b"], return_offsets=True)
        wanted = [2, *to_numpy(theirs("Ab  c.")).tolist(), 3, 5, 3]
        assert packed["token_ids"][0].tolist() == wanted
        assert packed["offsets"][0].tolist()[1:5] == [[0, 1], [1, 2], [4, 5], [5, 6]]
        assert ("segment_ids" in packed) == segments
        assert ours.has_cls and ours.detokenize(packed["token_ids"][0]) == "ab c. a"

    def test_settings_of_word_piece(self):
        import keras_hub

        pieces = [*SPECIAL, *"aeé中文", "##中", "##a"]
        for options, wanted in (
            ({"strip_accents": True}, ["e", "中", "a"]),
            ({}, ["é", "中", "a"]),
            ({"split_on_cjk": False}, ["é", "中", "##a"]),
        ):
            theirs = keras_hub.models.BertTokenizer(pieces, lowercase=False, **options)
            ids = to_numpy(theirs("é 中a")).tolist()
            assert [pieces[i] for i in ids] == wanted == HubTokenizer.of(theirs).tokenize("é 中a")

    def test_roberta(self):
        theirs = hub_tokenizer("Roberta")
        ours = HubTokenizer.of(theirs)
        assert ours.tokenize(TEXT) == ["low", "Ġlow", "er", ".", "Ġ", "Ġnew", "Ġ", "Ã", "©"]
        for text in (TEXT, "new", " low", "lower'lower"):
            ids = to_numpy(theirs(text)).tolist()
            assert ours.pack([text])["token_ids"].tolist() == [[0, *ids, 2]]
        assert 2 not in ours.pack(["</s>low"])["token_ids"][0][:-1]  # only text
        packed = ours.pack(["low", "new"], ["low low", "er"], max_length=9, return_offsets=True)
        low, more = ours._vocabulary["low"], ours._vocabulary["Ġlow"]
        assert packed["token_ids"][0].tolist() == [0, low, 2, 2, low, more, 2, 1]
        assert packed["word_ids"][0].tolist() == [-1, 0, -1, -1, 0, 1, -1, -1]
        assert packed["offsets"][0].tolist()[4:6] == [[0, 3], [4, 7]]
        assert set(packed) == {"token_ids", "padding_mask", "offsets", "word_ids"}
        assert ours.pad_id == 1 and ours.mask_id == 4 and ours.unk_id == 3 and ours.has_cls
        assert ours.detokenize(ours.pack([TEXT])["token_ids"][0]) == TEXT
        with pytest.raises(ValueError, match="room for text and 4 special tokens"):
            ours.pack(["low"], ["low"], max_length=4)

    def test_words_are_tokenized_as_inside_a_text(self):
        ours = HubTokenizer.of(hub_tokenizer("Roberta"))
        assert ours.tokenize(["low", "lower", ""])[:3] == ["Ġlow", "Ġlow", "er"]
        packed = ours.pack([["low", "lower", "", "new"]], return_offsets=True)
        assert packed["word_ids"][0].tolist()[:4] == [-1, 0, 1, 1]
        assert {0, 1, 2, 3} <= set(packed["word_ids"][0].tolist())
        assert packed["offsets"][0].tolist()[1:4] == [[0, 3], [0, 3], [3, 5]]

    def test_gpt2(self):
        theirs = hub_tokenizer("GPT2")
        ours = HubTokenizer.of(theirs)
        ids = to_numpy(theirs("low new")).tolist()
        assert ours.pack(["low new"])["token_ids"].tolist() == [[*ids, 0]]
        assert ours.pack(["low new"], ["low"])["token_ids"].tolist() == [[*ids, 0, ids[0], 0]]
        assert not ours.has_cls and ours.joint_pairs

    def test_opt_begins_texts(self):
        import keras_hub

        theirs = hub_tokenizer("OPT")
        preprocessor = keras_hub.models.OPTCausalLMPreprocessor(theirs, sequence_length=6)
        wanted = to_numpy(preprocessor.generate_preprocess(["low new"])["token_ids"])[0].tolist()
        ids = HubTokenizer.of(theirs).pack(["low new"])["token_ids"][0].tolist()
        assert ids[:-1] == wanted[: len(ids) - 1] and ids[0] == ids[-1] == theirs.end_token_id

    @pytest.mark.parametrize("strip", [True, False])
    def test_special_names_and_spaces_of_sentence_piece_are_text(self, tmp_path, strip):
        options = {"remove_extra_whitespaces": strip, "vocab_size": 48}
        theirs = sentence_piece("DebertaV3", tmp_path, extra="[CLSEP]<s>", **options)
        ours = HubTokenizer.of(theirs)
        for text in ("low [SEP] x", "[CLS]", "[PAD]", "<s> low", "  low", " ", "", "low   mest "):
            ids = to_numpy(theirs(text)).tolist()
            assert ours.pack([text])["token_ids"].tolist() == [[2, *ids, 3]], text
        assert ours.starts_word is not None and ours.vocabulary == theirs.get_vocabulary()
        plain = sentence_piece("DebertaV3", tmp_path)  # without the letters of the names
        for text in ("low [SEP] x", "[CLS]low", "low[PAD]mest"):
            ids = to_numpy(plain(text)).tolist()
            assert HubTokenizer.of(plain).pack([text])["token_ids"].tolist() == [[2, *ids, 3]], text
        assert ours.detokenize(ours.pack(["low mest"])["token_ids"][0]) == "low mest"

    @pytest.mark.parametrize("kind", ["DebertaV3", "Albert"])
    def test_sentence_piece(self, kind, tmp_path):
        theirs = sentence_piece(kind, tmp_path)
        ours = HubTokenizer.of(theirs, has_segments=kind == "Albert")
        assert len(ours) == theirs.vocabulary_size()
        assert ours.vocabulary == theirs.get_vocabulary()
        for text in ("low mest.", "  nawer   lost", "loǆ ﬁ x", "ｌｏｗ"):
            packed = ours.pack([text], return_offsets=True)
            ids = to_numpy(theirs(text)).tolist()
            assert packed["token_ids"].tolist() == [[2, *ids, 3]]
        packed = ours.pack(["low  mest."], return_offsets=True)
        starts = [s for s, w in zip(packed["offsets"][0][:, 0], packed["word_ids"][0], strict=True)]
        assert "low  mest."[starts[1]] == "l" and 5 in starts
        words = ours.pack([["low", "mest", "."]], return_offsets=True)
        assert {0, 1, 2} <= set(words["word_ids"][0].tolist())
        assert ours.detokenize(packed["token_ids"][0]) == "low mest."
        assert ours.mask_id == theirs.mask_token_id and ours.pad_id == 0 and ours.unk_id == 1

    def test_saved_and_loaded(self, tmp_path):
        ours = HubTokenizer.of(hub_tokenizer("Roberta"))
        ours.save(tmp_path / "tokenizer.json")
        again = load_tokenizer(tmp_path)
        assert type(again) is HubTokenizer and again.get_config() == ours.get_config()
        wanted = ours.pack(["low"], ["new er"])["token_ids"]
        assert np.array_equal(again.pack(["low"], ["new er"])["token_ids"], wanted)
        (tmp_path / "tokenizer.json").write_text('{"model": {"type": "HubTokenizer"}}')
        with pytest.raises(ValueError, match="`model.settings` must be an object"):
            HubTokenizer.load(tmp_path / "tokenizer.json")

    def test_refuses_other_kinds(self, tmp_path):
        import keras_hub

        with pytest.raises(ValueError, match="of WordPiece, byte pairs or Sent.*: ByteTokenizer"):
            HubTokenizer.of(keras_hub.tokenizers.ByteTokenizer())
        plain = keras_hub.tokenizers.WordPieceTokenizer([*SPECIAL, "a"])
        with pytest.raises(ValueError, match="for a text's end and for padding.*neither"):
            HubTokenizer.of(plain)
        other = keras_hub.models.BertTokenizer([*SPECIAL, "a"], suffix_indicator="@@")
        with pytest.raises(ValueError, match="Tokens inside words must begin with '##'.*'@@'"):
            HubTokenizer.of(other)
        other = keras_hub.models.BertTokenizer([*SPECIAL, "a"], split=False)
        with pytest.raises(ValueError, match="texts must be split.*split=False"):
            HubTokenizer.of(other)
        with pytest.raises(ValueError, match="must have unigrams.*model_type=2"):
            HubTokenizer.of(sentence_piece("DebertaV3", tmp_path, "bpe"))
        suffix = sentence_piece("Albert", tmp_path, treat_whitespace_as_suffix=True)
        with pytest.raises(ValueError, match="mark the space before.*as_suffix=True"):
            HubTokenizer.of(suffix)
        other = hub_tokenizer("Roberta")
        spaced = type(other).from_config({**other.get_config(), "add_prefix_space": True})
        spaced.set_vocabulary_and_merges(other.vocabulary, other.merges)
        with pytest.raises(ValueError, match="must not put a space before a text"):
            HubTokenizer.of(spaced)
        with pytest.raises(ValueError, match="with other ids"):
            proto = sentence_piece("DebertaV3", tmp_path).proto
            HubTokenizer.of(keras_hub.models.XLMRobertaTokenizer(proto))


@pytest.fixture
def pair():
    """A RoBERTa and its tokenizer."""
    tokenizer = hub_tokenizer("Roberta")
    return from_hub(backbone("Roberta", tokenizer.vocabulary_size()), tokenizer)


@pytest.mark.full
class TestEncoderWithTokenizer:
    def test_a_head_is_saved_and_loaded(self, pair, tmp_path):
        encoder, tokenizer = pair
        head = Classifier(encoder, ["a", "b"], tokenizer=tokenizer)
        assert head.pool == "mean"
        texts = ["low", "new lower", "er"]
        wanted = head.predict(texts, probabilities=True)
        head.save(tmp_path / "head.keras")
        again = keras.saving.load_model(tmp_path / "head.keras")
        assert_close(again.predict(texts, probabilities=True), wanted)
        tags = Tagger(clone(encoder), ["O", "B-X"], tokenizer=tokenizer)
        assert [len(row) for row in tags.predict([["low", "lower"], ["new"]])] == [2, 1]

    def test_gpt2_classifier_pools_the_last_token(self):
        tokenizer = hub_tokenizer("GPT2")
        encoder, tokenizer = from_hub(backbone("GPT2", tokenizer.vocabulary_size()), tokenizer)
        head = Classifier(encoder, ["a", "b"], tokenizer=tokenizer)
        assert head.pool == "last"
        assert len(head.predict(["low", "new"], pairs=["er", "low"])) == 2

    def test_fine_tuning_and_features_leave_encoder_unchanged(self, pair):
        encoder, tokenizer = pair
        before = [w.copy() for w in encoder.get_weights()]
        train = [Example("low low", "low"), Example("new", "new")] * 4
        for method in (FineTune(epochs=1, batch_size=4), FeatureBased(epochs=1, batch_size=4)):
            head = method.fit(encoder, Classifier, tokenizer, train)
            assert set(head.predict(["low"])) <= {"low", "new"}
        assert_close(encoder.get_weights(), before, atol=0)

    def test_native_folder_saves_and_loads_hub_models(self, pair, tmp_path):
        encoder, tokenizer = pair
        keras_plm.save(tmp_path, encoder, tokenizer)
        again, its = keras_plm.load(tmp_path)
        assert_close(again(inputs(again)), encoder(inputs(encoder)), atol=0)
        assert its.get_config() == tokenizer.get_config()
        assert keras_plm.load(tmp_path, dtype="mixed_bfloat16")[0].compute_dtype == "bfloat16"

    def test_presets_are_read(self, pair, tmp_path):
        encoder, tokenizer = pair
        encoder.backbone.save_to_preset(tmp_path)
        hub_tokenizer("Roberta").save_to_preset(tmp_path)
        again, its = keras_plm.load(tmp_path)
        assert_close(again(inputs(again)), encoder(inputs(encoder)), atol=0)
        assert its.get_config() == tokenizer.get_config()
        with pytest.raises(ValueError, match="must be that of a BertTokenizer.*RobertaTokenizer"):
            load_tokenizer(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        for change, message in (
            ({"hidden_dim": 10**9}, "config.json describes an encoder with more weights"),
            ({"num_layers": -1}, "config.json: `config.num_layers` must be"),
            ({"num_layers": 2.5}, "config.json: `config.num_layers` must be"),
            ({"num_heads": 5, "odd": [1]}, "is not a readable preset.*Received"),
        ):
            inner = {**config["config"], **change}
            (tmp_path / "config.json").write_text(json.dumps({**config, "config": inner}))
            with pytest.raises(ValueError, match=f"{re.escape(str(tmp_path))}.*{message}"):
                keras_plm.load(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps(config))
        weights = tmp_path / "model.weights.h5"
        whole = weights.read_bytes()
        with h5py.File(weights, "r+") as file:
            names = []
            file.visititems(
                lambda name, item: names.append(name) if hasattr(item, "dtype") else None
            )
            values = file[names[0]][...]
            del file[names[0]]
            file[names[0]] = values.astype("int32")
        with pytest.raises(ValueError, match="model.weights.h5: weights must be floats.*of int32"):
            keras_plm.load(tmp_path)
        weights.write_bytes(whole)
        weights.write_bytes(weights.read_bytes()[:-100])
        with pytest.raises(ValueError, match="model.weights.h5 is not a whole HDF5 file"):
            keras_plm.load(tmp_path)

    def test_preset_handles_are_passed_to_keras_hub(self, pair, monkeypatch):
        import keras_hub

        encoder, tokenizer = pair
        own = hub_tokenizer("Roberta")
        asked = []
        for kind, answer in (
            (keras_hub.models.Backbone, encoder.backbone),
            (keras_hub.tokenizers.Tokenizer, own),
        ):
            monkeypatch.setattr(kind, "from_preset", lambda p, a=answer, **o: asked.append(p) or a)
        again, its = keras_plm.load("kaggle://keras/roberta/keras/x")
        assert asked == ["kaggle://keras/roberta/keras/x"] * 2
        assert again.backbone is encoder.backbone and its.get_config() == tokenizer.get_config()
