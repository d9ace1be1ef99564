"""BERTs in the format of Hugging Face: writing, and files that a save must not replace."""

import json

import pytest

import keras_plm
from keras_plm.checkpoints import load_bert, load_tokenizer, save_bert
from keras_plm.heads import Classifier, Regressor, SpanFinder, Tagger
from keras_plm.models import BERT, GPT
from keras_plm.pretraining import MaskedLM
from keras_plm.tokenizers import Words
from keras_plm.transfer.layer_choices import LAYER_CHOICES
from tests.helpers.checks import assert_close, to_numpy
from tests.keras_plm.checkpoints.small_bert import (
    LABELS,
    POSITIONS,
    SIZE,
    TOKENIZER,
    agree,
    inputs,
    masked_scores,
    random_weights,
    theirs,
    words,
)


class TestSaves:
    def agrees(self, model, kind, tmp_path, load=load_bert):
        """Checks that `transformers` and we read our files completely, with the same outputs."""
        transformers = pytest.importorskip("transformers")
        save_bert(tmp_path / "ours", random_weights(model))
        again, report = getattr(transformers, kind).from_pretrained(
            tmp_path / "ours", output_loading_info=True
        )
        # Our file includes a pooler even if no head of `transformers` reads it.
        unexpected = [n for n in report["unexpected_keys"] if "pooler" not in n]
        assert not report["missing_keys"] and not unexpected
        assert type(again).__name__ == again.config.architectures[0] == kind
        ours = load(tmp_path / "ours")
        assert_close(ours.get_weights(), model.get_weights(), atol=0)
        return again

    @pytest.mark.parametrize("activation", ["gelu_erf", "gelu_tanh", "relu"])
    def test_encoder(self, activation, tmp_path):
        model = BERT(
            13, **SIZE, max_sequence_length=9, activation=activation, norm_epsilon=1e-3, dropout=0.2
        )
        again = self.agrees(model, "BertModel", tmp_path)
        wanted = theirs(again, output_hidden_states=True)
        ours = model(inputs())
        real = inputs()["padding_mask"]
        for a, b in zip(ours["layers"], wanted.hidden_states, strict=True):
            agree(to_numpy(a)[real], b[real])
        agree(ours["pooled"], wanted.pooler_output)
        config = load_bert(tmp_path / "ours").get_config()
        assert config | {"name": ""} == model.get_config() | {"name": ""}

    @pytest.mark.full
    def test_pretraining(self, tmp_path):
        model = MaskedLM(BERT(13, **SIZE, max_sequence_length=9))

        def load(path):
            return load_bert(path, head="pretraining")

        wanted = theirs(self.agrees(model, "BertForPreTraining", tmp_path, load))
        ours = model({**inputs(), "masked_positions": POSITIONS})
        agree(ours["masked_lm"], masked_scores(wanted.prediction_logits), atol=2e-5)
        agree(ours["next_sentence"], wanted.seq_relationship_logits, atol=2e-5)

    @pytest.mark.full
    def test_masked_lm(self, tmp_path):
        model = MaskedLM(BERT(13, **SIZE, max_sequence_length=9), next_sentence=False)
        save_bert(tmp_path, random_weights(model))
        transformers = pytest.importorskip("transformers")
        wanted = theirs(transformers.BertForMaskedLM.from_pretrained(tmp_path)).logits
        ours = model({**inputs(), "masked_positions": POSITIONS})
        agree(ours["masked_lm"], masked_scores(wanted), atol=2e-5)
        again = load_bert(tmp_path, head="masked_lm")({**inputs(), "masked_positions": POSITIONS})
        assert_close(again, ours, atol=0)

    @pytest.mark.full
    def test_heads(self, tmp_path):
        head = Classifier(BERT(13, **SIZE, max_sequence_length=9), LABELS, dropout=0.4)

        def load(path):
            return load_bert(path, head="classifier")

        again = self.agrees(head, "BertForSequenceClassification", tmp_path, load)
        agree(head(inputs()), theirs(again).logits)
        assert list(again.config.id2label.values()) == load(tmp_path / "ours").labels == LABELS
        assert load(tmp_path / "ours").dropout == 0.4
        tagger = Tagger(BERT(13, **SIZE, max_sequence_length=9), LABELS)

        def load(path):
            return load_bert(path, head="tagger")

        again = self.agrees(tagger, "BertForTokenClassification", tmp_path, load)
        real = inputs()["padding_mask"]
        agree(to_numpy(tagger(words()))[real], theirs(again).logits[real])
        finder = SpanFinder(BERT(13, **SIZE, max_sequence_length=9), tokenizer=TOKENIZER)

        def load(path):
            return load_bert(path, head="span", tokenizer=TOKENIZER)

        wanted = theirs(self.agrees(finder, "BertForQuestionAnswering", tmp_path, load))
        ours = to_numpy(finder({**inputs(), "answer_mask": real}))
        agree(ours[:, 0][real], wanted.start_logits[real])

    @pytest.mark.backend_neutral
    def test_tokenizer_is_saved_with_the_model(self, tmp_path):
        head = Classifier(BERT(13, **SIZE, max_sequence_length=9), LABELS, tokenizer=TOKENIZER)
        save_bert(tmp_path, head)
        assert sorted(p.name for p in tmp_path.iterdir()) == [
            "config.json",
            "model.safetensors",
            "tokenizer_config.json",
            "vocab.txt",
        ]
        assert load_tokenizer(tmp_path).get_config() == TOKENIZER.get_config()
        transformers = pytest.importorskip("transformers")
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
        packed = TOKENIZER.pack(["A b", "c"], ["d E", "f x"])
        other = tokenizer(["A b", "c"], ["d E", "f x"], padding=True)
        assert other["input_ids"] == packed["token_ids"].tolist()
        assert other["token_type_ids"] == packed["segment_ids"].tolist()
        assert tokenizer.model_max_length == 9

    @pytest.mark.backend_neutral
    def test_save_replaces_only_files_it_wrote(self, tmp_path):
        first, second = (random_weights(BERT(13, **SIZE)) for _ in range(2))
        save_bert(tmp_path / "a", first, TOKENIZER)
        (tmp_path / "a" / "notes.txt").write_text("mine")
        save_bert(tmp_path / "a", second)
        assert_close(load_bert(tmp_path / "a").get_weights(), second.get_weights(), atol=0)
        assert len(load_tokenizer(tmp_path / "a")) == 13
        assert (tmp_path / "a" / "notes.txt").read_text() == "mine"
        for name in ("config.json", "model.safetensors", "vocab.txt"):
            other = tmp_path / name.replace(".", "_")
            other.mkdir()
            (other / name).write_text("theirs")
            with pytest.raises(ValueError, match=f"without the mark of.*Received: {name}"):
                save_bert(other, first, TOKENIZER)
            assert [p.name for p in other.iterdir()] == [name]
            assert (other / name).read_text() == "theirs"

    @pytest.mark.backend_neutral
    def test_save_refuses_folders_that_transformers_wrote(self, tmp_path):
        """`transformers` keeps our mark in the configuration of a model that it saves again."""
        encoder = random_weights(BERT(13, **SIZE))
        save_bert(tmp_path / "ours", encoder, TOKENIZER)
        config = json.loads((tmp_path / "ours" / "config.json").read_text())
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        (theirs / "config.json").write_text(json.dumps({**config, "transformers_version": "5.0"}))
        (theirs / "model.safetensors").write_bytes(b"theirs")
        with pytest.raises(ValueError, match="without the mark of.*Received: config.json"):
            save_bert(theirs, encoder)
        assert (theirs / "model.safetensors").read_bytes() == b"theirs"
        # `transformers` would read its tokenizer before ours.
        (tmp_path / "ours" / "tokenizer.json").write_text("{}")
        with pytest.raises(ValueError, match="without the mark of.*Received: tokenizer.json"):
            save_bert(tmp_path / "ours", encoder, TOKENIZER)
        save_bert(tmp_path / "ours", encoder)

    @pytest.mark.backend_neutral
    def test_save_refuses_folders_of_the_other_format(self, tmp_path):
        encoder = BERT(13, **SIZE)
        keras_plm.save(tmp_path / "ours", encoder, TOKENIZER)
        with pytest.raises(ValueError, match="without the mark of"):
            save_bert(tmp_path / "ours", encoder)
        save_bert(tmp_path / "theirs", encoder)
        with pytest.raises(ValueError, match="name another folder"):
            keras_plm.save(tmp_path / "theirs", encoder, TOKENIZER)

    @pytest.mark.backend_neutral
    def test_models_unknown_to_transformers_are_refused(self, tmp_path):
        encoder = BERT(13, **SIZE)
        frozen = BERT(13, **SIZE)
        for model, match in (
            (GPT(13, **SIZE), "Received: GPT"),
            (Classifier(GPT(13, **SIZE), LABELS), "Received: Classifier over GPT"),
            (Regressor(encoder, (0, 5)), "Received: Regressor over BERT"),
            (BERT(13, **SIZE, pre_norm=True), "pre_norm=True"),
            (Classifier(encoder, LABELS, pool="mean"), "pool='mean'"),
            (Tagger(frozen, LABELS, layers=LAYER_CHOICES["last"], frozen=True), "layer_choice="),
        ):
            with pytest.raises(ValueError, match=match):
                save_bert(tmp_path / "x", model)
        with pytest.raises(ValueError, match="tokenizer of a BERT must be a `WordPiece`.*Words"):
            save_bert(tmp_path / "x", encoder, Words(["[PAD]", "[UNK]", "[EOS]", "a"]))
        with pytest.raises(ValueError, match="know every id of its tokenizer"):
            save_bert(tmp_path / "x", BERT(12, **SIZE), TOKENIZER)
        assert not (tmp_path / "x").exists()
