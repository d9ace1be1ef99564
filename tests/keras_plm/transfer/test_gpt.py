"""Tasks with GPT: the auxiliary objective, transferred layers, and its heads."""

import keras
import numpy as np
import pytest

from keras_plm import metrics
from keras_plm.data.examples import batches
from keras_plm.data.labels import score_range
from keras_plm.data.task import Example
from keras_plm.heads import Classifier, MultipleChoice, Regressor, Tagger
from keras_plm.models import BERT, WordVectors
from keras_plm.pretraining import WithLanguageModel
from keras_plm.tokenizers import Characters, WordPiece
from keras_plm.training.optimizers import BertAdamW
from keras_plm.training.schedules import WarmupCosineDecay, WarmupLinearDecay
from keras_plm.transfer import (
    GPT_SETTINGS,
    FeatureBased,
    FineTune,
    default_metric,
    extract_features,
    keep_pretrained_layers,
    resize_token_embeddings,
)
from tests.helpers.checks import assert_close, to_numpy, under_torch
from tests.helpers.small_gpt import LETTERS, SIZE, TOKENIZER, gpt, pairs, texts, words

PIECES = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS])
FAST = {"learning_rate": 1e-2, "epochs": 2, "batch_size": 16, "dropout": 0.0}


def scored(count=48, seed=0):
    rng = np.random.default_rng(seed)
    rows = [(words(rng), words(rng)) for _ in range(count)]
    return [Example(a, 5.0 * ("a" in a) * ("a" in b) + ("b" in a), b) for a, b in rows]


def chosen(count=48, seed=0):
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        right, choices = int(rng.integers(3)), [words(rng).replace("a", "b") for _ in range(3)]
        choices[right] = "a " + choices[right]
        made.append(Example(words(rng), right, choices=choices))
    return made


def log_probabilities(encoder, token_ids):
    """Computes them for each next token in float64, from the encoder's last layer and table."""
    inputs = {"token_ids": token_ids, "padding_mask": np.ones_like(token_ids, bool)}
    hidden = to_numpy(encoder(inputs)["sequence"]).astype("float64")
    table = to_numpy(encoder.token_embedding.embeddings).astype("float64")
    logits = hidden @ table.T
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


class TestAuxiliaryObjective:
    def both(self, weight=0.5):
        head = Classifier(gpt(len(TOKENIZER)), ["no", "yes"], tokenizer=TOKENIZER, dropout=0.0)
        return head, WithLanguageModel(head, weight)

    @pytest.mark.compiles
    def test_loss_is_the_weighted_sum_of_both_losses(self):
        """Compares with equation 5, L3 = L2 + 0.5 L1, in loops over texts and tokens."""
        head, model = self.both()
        model.compile("sgd")
        examples = texts(5)
        source = model.batches(head.batches(examples, training=False, batch_size=5))
        found = model.evaluate(source, verbose=0, return_dict=True)
        task = of_text = 0.0
        for example in examples:
            ids = TOKENIZER.encode([example.text]).token_ids[None]
            logs = log_probabilities(head.encoder, ids)[0]
            targets = ids[0, 1:]
            of_text += -np.mean([logs[t, token] for t, token in enumerate(targets)]) / 5
            logits = to_numpy(head({"token_ids": ids, "padding_mask": ids >= 0}))[0]
            shares = np.exp(logits) / np.exp(logits).sum()
            task += -np.log(shares[["no", "yes"].index(example.label)]) / 5
        assert found["loss"] == pytest.approx(task + 0.5 * of_text, rel=1e-4)

    @pytest.mark.compiles
    def test_language_model_loss_is_the_mean_over_choices(self):
        head = MultipleChoice(gpt(len(TOKENIZER)), range(3), tokenizer=TOKENIZER, dropout=0.0)
        model = WithLanguageModel(head, 1.0)
        example = chosen(1)[0]
        (x, *_) = model.batches(head.batches([example], training=False, batch_size=1))[0]
        found = to_numpy(model(x)["language_model"])
        means = []
        for choice in example.choices:
            ids = TOKENIZER.encode([example.text], [choice]).token_ids[None]
            logs = log_probabilities(head.encoder, ids)[0]
            means.append(-np.mean([logs[t, token] for t, token in enumerate(ids[0, 1:])]))
        assert_close(found, [np.mean(means)], atol=1e-4)

    def test_batches_of_the_head_are_not_modified(self):
        head, model = self.both()
        source = head.batches(texts(5), batch_size=4)
        before = source[0]
        twice = [model.batches(source) for _ in range(2)]
        for (_, y, weights), wanted in zip(source, head.batches(texts(5), batch_size=4),
                                           strict=True):  # fmt: skip
            assert_close(y, wanted[1])
            assert_close(weights, wanted[2])
        for made in twice:
            _, y, weights = made[0]
            assert set(y) == set(weights) == {"task", "language_model"}
            assert_close(y["task"], before[1])
            assert_close(weights["task"], before[2])

    @pytest.mark.compiles
    def test_padding_rows_do_not_change_the_loss(self):
        head, model = self.both()
        model.compile("sgd")
        examples = texts(5)
        losses = []
        for size in (5, 8):
            source = model.batches(head.batches(examples, training=False, batch_size=size))
            losses.append(model.evaluate(source, verbose=0))
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)

    @pytest.mark.backend_neutral
    def test_bidirectional_encoders_are_refused(self):
        head = Classifier(BERT(len(PIECES), **SIZE), ["no", "yes"], tokenizer=PIECES)
        with pytest.raises(ValueError, match="causal encoder .*, such as `GPT`. Received: BERT"):
            WithLanguageModel(head)
        with pytest.raises(ValueError, match="needs a causal encoder"):
            FineTune(**FAST, language_model_weight=0.5).fit(
                BERT(len(PIECES), **SIZE), Classifier, PIECES, texts(8)
            )


@pytest.mark.quick_cases("0.5")
@pytest.mark.compiles
@pytest.mark.parametrize("weight", [under_torch(0.0), 0.5])
def test_fine_tunes_predicts_and_reloads(weight, tmp_path):
    model, dev = gpt(), texts(16, seed=1)
    before = model.get_weights()
    method = FineTune(**{**GPT_SETTINGS, **FAST, "language_model_weight": weight})
    fitted = method.fit(model, Classifier, TOKENIZER, texts(), dev)
    assert_close(model.get_weights(), before, atol=0)
    assert fitted.pool == "last" and fitted.encoder.vocabulary_size == len(TOKENIZER)
    assert len(fitted.training_log["loss"]) == 2 and fitted.training_log["dev_score"] > 0
    fitted.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").predict(dev) == fitted.predict(dev)


@pytest.mark.full
@pytest.mark.backend_neutral
def test_fine_tunes_in_bfloat16():
    """As in the suites, weights stay float32 and both losses are finite."""
    model = gpt(dtype="mixed_bfloat16")
    method = FineTune(**{**GPT_SETTINGS, **FAST, "language_model_weight": 0.5})
    fitted = method.fit(model, Classifier, TOKENIZER, texts(), texts(16, seed=1))
    assert fitted.encoder.dtype_policy.name == "mixed_bfloat16"
    assert np.isfinite(fitted.training_log["loss"]).all()
    assert {str(w.dtype) for w in fitted.trainable_weights} == {"float32"}
    shares = fitted.predict(texts(3), probabilities=True)
    assert_close(shares.sum(1), np.ones(3), atol=1e-5)


@pytest.mark.compiles
def test_classifier_reads_the_classify_token():
    head = Classifier(gpt(len(TOKENIZER)), ["no", "yes"], tokenizer=TOKENIZER)
    x, *_ = head.batches([Example("a b"), Example("c d e f")], batch_size=2, training=False)[0]
    hidden = to_numpy(head.encoder({k: x[k] for k in head.encoder.input})["sequence"])
    last = x["padding_mask"].sum(1) - 1
    assert [x["token_ids"][i, last[i]] for i in (0, 1)] == [TOKENIZER.classify_id] * 2
    kernel, bias = (to_numpy(w) for w in head.task_network.get_layer("logits").weights)
    assert_close(head(x), hidden[[0, 1], last] @ kernel + bias, atol=1e-5)


class TestSimilarity:
    @pytest.mark.full
    @pytest.mark.split_to("torch")  # compiles two models on the others
    def test_the_order_of_texts_does_not_matter(self, tmp_path):
        fitted = FineTune(**FAST).fit(gpt(), Classifier, TOKENIZER, pairs(), symmetric=True)
        assert fitted.pairs == "both_orders"
        some = pairs(9, seed=2)
        turned = [Example(e.pair, None, e.text) for e in some]
        there, back = (fitted.predict(rows, probabilities=True) for rows in (some, turned))
        assert_close(there, back, atol=1e-6)
        fitted.save(tmp_path / "model.keras")
        assert keras.saving.load_model(tmp_path / "model.keras").predict(some)

    @pytest.mark.compiles
    def test_the_vectors_of_both_orders_are_added(self):
        encoder = gpt(len(TOKENIZER))
        head = Classifier(encoder, ["no", "yes"], tokenizer=TOKENIZER, pairs="both_orders")
        logits = np.log(head.predict([Example("a b", None, "c")], probabilities=True))
        total = 0
        for first, second in (("a b", "c"), ("c", "a b")):
            ids = TOKENIZER.encode([first], [second]).token_ids[None]
            inputs = {"token_ids": ids, "padding_mask": ids >= 0}
            total = total + to_numpy(encoder(inputs)["sequence"])[:, -1]
        kernel, bias = (to_numpy(w) for w in head.task_network.get_layer("logits").weights)
        wanted = total @ kernel + bias
        assert_close(logits[:, 0] - logits[:, 1], wanted[:, 0] - wanted[:, 1], atol=1e-4)

    @pytest.mark.backend_neutral
    def test_bert_reads_one_order(self):
        bert = BERT(len(PIECES), **SIZE)
        fitted = FineTune(**FAST).fit(bert, Classifier, PIECES, pairs(16), symmetric=True)
        assert fitted.pairs is False


class TestRegressor:
    @pytest.mark.full
    def test_learns_predicts_and_reloads(self, tmp_path):
        train = scored(96)
        settings = {**FAST, "epochs": 20, "learning_rate": 3e-3, "bias_correction": True}
        fitted = FineTune(**settings).fit(
            gpt(), Regressor, TOKENIZER, train, scored(24, 1), labels=(0, 6), symmetric=True
        )
        found = fitted.predict(train)
        assert all(isinstance(x, float) and 0 <= x <= 6 for x in found)
        assert metrics.pearson_correlation([e.label for e in train], found) > 0.3
        fitted.save(tmp_path / "model.keras")
        assert_close(keras.saving.load_model(tmp_path / "model.keras").predict(train), found)

    @pytest.mark.compiles
    def test_targets_are_fractions_of_the_score_range(self):
        head = Regressor(gpt(len(TOKENIZER)), (1, 5), tokenizer=TOKENIZER, dropout=0.0)
        head.compile("sgd")
        examples = [Example("a b", 2.0), Example("c", 5)]
        source = head.batches(examples, training=False, batch_size=2)
        x, y, _ = source[0]
        assert sorted(y.tolist()) == [0.25, 1.0]
        wanted = np.mean((to_numpy(head(x))[:, 0] - y) ** 2)
        assert head.evaluate(source, verbose=0, return_dict=True)["loss"] == pytest.approx(wanted)

    @pytest.mark.full
    def test_regressor_trains_on_features(self):
        fitted = FeatureBased(**FAST).fit(gpt(), Regressor, TOKENIZER, scored(), scored(16, 1))
        assert len(fitted.predict(scored(3))) == 3
        assert default_metric(Regressor, (0, 5)) is metrics.pearson_correlation

    @pytest.mark.full
    @pytest.mark.parametrize("method", [FineTune(**FAST), FeatureBased(**FAST)])
    def test_regressor_scores_pairs_encoded_separately(self, method):
        words = WordVectors.from_vectors(list(LETTERS), np.eye(8, dtype="float32"))
        fitted = method.fit(words, Regressor, words.tokenizer(), scored(), scored(16, 1))
        found = fitted.predict(scored(3))
        assert len(found) == 3 and all(isinstance(x, float) for x in found)

    @pytest.mark.compiles
    def test_evaluation_accepts_scores_outside_the_range(self):
        """Evaluation accepts such scores, training does not."""
        head = Regressor(gpt(len(TOKENIZER)), (1, 5), tokenizer=TOKENIZER, dropout=0.0)
        head.compile("sgd")
        examples = [Example("a b", 0.0), Example("c", 7)]
        source = head.batches(examples, training=False, batch_size=2)
        x, y, _ = source[0]
        assert sorted(y.tolist()) == [-0.25, 1.5]
        wanted = np.mean((to_numpy(head(x))[:, 0] - y) ** 2)
        assert head.evaluate(source, verbose=0, return_dict=True)["loss"] == pytest.approx(wanted)
        missing, other = "Either all examples have a label", "A score must be from 1 to 5"
        for wrong, match in ((float("nan"), missing), (None, missing), ("yes", other)):
            with pytest.raises(ValueError, match=match):
                head.batches([Example("a", wrong), Example("b", 2.0)], training=False)

    @pytest.mark.backend_neutral
    @pytest.mark.parametrize("method", [FineTune(**FAST), FeatureBased(**FAST)])
    def test_dev_scores_may_lie_outside_the_training_range(self, method):
        dev = [*scored(16, 1), Example("a b", -1.0, "c"), Example("c", 9.0, "d")]
        fitted = method.fit(gpt(), Regressor, TOKENIZER, scored(), dev)
        expected = metrics.pearson_correlation([e.label for e in dev], fitted.predict(dev))
        # Features are stored in float16.
        assert fitted.training_log["dev_score"] == pytest.approx(expected, abs=2e-2)

    @pytest.mark.backend_neutral
    def test_invalid_scores_are_refused(self):
        for labels in ((5, 0), ("no", "yes"), (1, 2, 3), (0, np.inf)):
            with pytest.raises(ValueError, match="lowest and the highest score, as labels="):
                Regressor(gpt(), labels)
        head = Regressor(gpt(len(TOKENIZER)), (0, 5), tokenizer=TOKENIZER)
        for label in (7.0, "yes"):
            with pytest.raises(ValueError, match="f.tsv:3: A score must be from 0 to 5"):
                head.batches([Example("a", label, where="f.tsv:3")])
        with pytest.raises(ValueError, match="A score must be a number. Received: 'yes'"):
            score_range([Example("a", "yes")])
        with pytest.raises(ValueError, match="Scores must differ. Received: all 2 are 1.0"):
            score_range([Example("a", 1.0), Example("b", 1.0)])
        with pytest.raises(ValueError, match="Scores have no `probabilities`"):
            head.predict(["a"], probabilities=True)


class TestMultipleChoice:
    @pytest.mark.quick_cases("bert")
    @pytest.mark.compiles
    @pytest.mark.parametrize("kind", ["gpt", under_torch("bert")])
    def test_learns_predicts_and_reloads(self, kind, tmp_path):
        model, tokenizer = (gpt(), TOKENIZER) if kind == "gpt" else (
            BERT(len(PIECES), **SIZE), PIECES
        )  # fmt: skip
        train = chosen(96)
        method = FineTune(**{**FAST, "epochs": 30})
        fitted = method.fit(model, MultipleChoice, tokenizer, train, chosen(24, 1))
        found = fitted.predict(train)
        assert metrics.accuracy([e.label for e in train], found) > 0.6
        bare = fitted.predict([e.text for e in train], choices=[e.choices for e in train])
        assert bare == found
        shares = fitted.predict(train, probabilities=True)
        assert shares.shape == (96, 3)
        assert_close(shares.sum(1), np.ones(96), atol=1e-5)
        fitted.save(tmp_path / "model.keras")
        assert keras.saving.load_model(tmp_path / "model.keras").predict(train) == found

    @pytest.mark.compiles
    def test_scores_of_choices_are_independent_of_their_order(self):
        head = MultipleChoice(gpt(len(TOKENIZER)), range(2), tokenizer=TOKENIZER)
        there = head.predict([Example("a b", choices=["c", "d e"])], probabilities=True)
        back = head.predict([Example("a b", choices=["d e", "c"])], probabilities=True)
        assert_close(there, back[:, ::-1], atol=1e-5)

    @pytest.mark.backend_neutral
    def test_invalid_choices_are_refused(self):
        head = MultipleChoice(gpt(len(TOKENIZER)), range(3), tokenizer=TOKENIZER)
        with pytest.raises(ValueError, match="Each example needs 3 choices.*example 1 with None"):
            head.predict([chosen(1)[0], Example("a")])
        with pytest.raises(ValueError, match=r"Received: example 0 with \['a', 'b'\]"):
            head.batches([Example("a", 0, choices=["a", "b"])])
        with pytest.raises(ValueError, match="Every text needs its choices"):
            head.predict(["a", "b"], choices=[["a", "b", "c"]])
        with pytest.raises(ValueError, match="numbered from 0"):
            MultipleChoice(gpt(), ["a", "b"])
        with pytest.raises(ValueError, match="Choices need fine-tuning"):
            FeatureBased(**FAST).fit(gpt(), MultipleChoice, TOKENIZER, chosen(4))
        with pytest.raises(ValueError, match="in one row: use a tokenizer.*Characters"):
            batches(chosen(4), Characters(), [0, 1, 2])
        with pytest.raises(ValueError, match="Either all examples must have choices, or none"):
            batches([*chosen(2), Example("a", 0)], TOKENIZER, [0, 1, 2])


class TestTransferOfLayers:
    @pytest.mark.full
    def test_lowest_layers_are_copied_and_others_initialized(self):
        model = gpt(pre_norm=True)
        old = {w.path: to_numpy(w) for w in model.weights}
        for count in (-1, 0, 2, 3):
            copy = keep_pretrained_layers(model, count)
            for w in copy.weights:
                block = w.path.split("block_")
                depth = int(block[1][0]) + 1 if block[1:] else 3 if "final" in w.path else 0
                same = np.array_equal(to_numpy(w), old[w.path])
                assert same is (depth <= count), (count, w.path)
        fitted = FineTune(**FAST, pretrained_layers=0).fit(model, Classifier, TOKENIZER, texts(16))
        assert len(fitted.predict(texts(3))) == 3

    @pytest.mark.compiles
    def test_top_layers_and_pooler_of_bert_are_reinitialized(self):
        model = BERT(9, 3, 2, 8, 16, max_sequence_length=8)
        for weight in model.weights:
            weight.assign(np.full(weight.shape, 7.0))
        copy = keep_pretrained_layers(model, 2)
        for w in copy.weights:
            anew = "block_2/" in w.path or "pooler/" in w.path
            assert (to_numpy(w) == 7).all() == (not anew), w.path

    @pytest.mark.full
    def test_training_the_copy_does_not_change_the_original(self):
        model = gpt(len(TOKENIZER))
        before = model.get_weights()
        head = Classifier(keep_pretrained_layers(model, 2), ["no", "yes"], tokenizer=TOKENIZER)
        head.compile(BertAdamW(1e-2))
        head.fit(head.batches(texts(16)), verbose=0)  # JAX donates arrays here
        assert_close(model.get_weights(), before, atol=0)

    @pytest.mark.backend_neutral
    def test_invalid_layer_counts_are_refused(self):
        for count in (4, -2, 1.5, True + 0.5):
            with pytest.raises(ValueError, match="from -1 to this encoder's 3 layers"):
                keep_pretrained_layers(gpt(), count)


@pytest.mark.compiles
def test_new_tokens_have_small_random_vectors():
    model = gpt()
    copy = resize_token_embeddings(model, model.vocabulary_size + 400, seed=1)
    table = to_numpy(copy.token_embedding.embeddings)
    old = to_numpy(model.token_embedding.embeddings)
    assert_close(table[: len(old)], old, atol=0)
    new = table[len(old) :]
    assert new.std() == pytest.approx(0.02, rel=0.1) and abs(new.mean()) < 2e-3
    with pytest.raises(ValueError, match="`vocabulary_size` must be a whole number, "):
        resize_token_embeddings(model, model.vocabulary_size - 1)
    again = resize_token_embeddings(model, model.vocabulary_size + 400, seed=1)
    assert_close(again.token_embedding.embeddings, table, atol=0)
    ids = np.array([[1, 2, 3]])
    inputs = {"token_ids": ids, "padding_mask": ids > 0}
    assert_close(copy(inputs)["sequence"], model(inputs)["sequence"])


@pytest.mark.full
def test_frozen_gpt_reads_text_without_special_tokens():
    """A GPT that was not fine-tuned has no vectors for the special tokens."""
    model = gpt()
    found = extract_features(model, TOKENIZER, ["a b", "c"], pool="last")
    for text, vector in zip(["a b", "c"], found, strict=True):
        ids = TOKENIZER.unframed().encode([text]).token_ids[None]
        hidden = to_numpy(model({"token_ids": ids, "padding_mask": ids >= 0})["sequence"])
        assert_close(vector, hidden[0, -1], atol=2e-3)  # stored in float16
    fitted = FeatureBased(**FAST).fit(model, Classifier, TOKENIZER, texts(), texts(16, 1))
    assert fitted.tokenizer.framed == (False, False)
    assert len(fitted.predict(texts(3))) == 3
    paired = FeatureBased(**FAST).fit(model, Classifier, TOKENIZER, pairs(), pairs(16, 1))
    assert paired.pairs == "pooled" and len(paired.predict(pairs(3))) == 3
    with pytest.raises(ValueError, match="every id of its tokenizer.*`resize_token_embeddings`"):
        Classifier(model, ["no", "yes"], tokenizer=TOKENIZER)


@pytest.mark.full
def test_tagger_predicts_one_tag_per_word():
    rows = [Example(e.text.split(), ["A" if w == "a" else "O" for w in e.text.split()])
            for e in texts(32)]  # fmt: skip
    fitted = FineTune(**FAST, language_model_weight=0.5).fit(gpt(), Tagger, TOKENIZER, rows)
    assert [len(tags) for tags in fitted.predict(rows)] == [len(e.text) for e in rows]


class TestSchedules:
    def test_linear_as_published(self):
        """REFERENCE 4.8: warmup_linear with a warm-up of 0.002."""
        schedule = WarmupLinearDecay(1.0, 1000, 2, decay_in_warmup=True)
        for x, wanted in ((0.001, 0.4995), (0.002, 0.998), (0.25, 0.75)):
            assert float(schedule(1000 * x)) == pytest.approx(wanted, abs=1e-6)

    def test_cosine_as_published(self):
        schedule = WarmupCosineDecay(1.0, 1000, 2)
        for x, wanted in ((0.001, 0.5), (0.25, 0.853553), (0.5, 0.5)):
            assert float(schedule(1000 * x)) == pytest.approx(wanted, abs=1e-6)
        assert WarmupCosineDecay.from_config(schedule.get_config())(250) == schedule(250)
        with pytest.raises(ValueError, match="between 0 and `total_steps`"):
            WarmupCosineDecay(1.0, 10, 11)

    @pytest.mark.full
    @pytest.mark.parametrize("name", ["gpt_linear", under_torch("cosine")])
    def test_fine_tuning_accepts_schedule_names(self, name):
        fitted = FineTune(**FAST, schedule=name, bias_correction=True, warmup=0.5).fit(
            gpt(), Classifier, TOKENIZER, texts(16)
        )
        schedule = fitted.optimizer._learning_rate
        assert schedule.warmup_steps == 1 and schedule.total_steps == 2
        assert isinstance(fitted.optimizer, BertAdamW) and fitted.optimizer.bias_correction
