"""Task networks under their heads: with stored and live features, saving, and training."""

import keras
import numpy as np
import pytest

import keras_plm
from keras_plm.cli.main import main
from keras_plm.data.passages import Windows
from keras_plm.data.task import Example
from keras_plm.heads import Classifier, CRFTagger, Regressor, SpanFinder, Tagger
from keras_plm.heads.readers import ESIM
from keras_plm.layers import LayerChoice
from keras_plm.models import ELMo
from keras_plm.models.word_vectors import WordVectors
from keras_plm.tokenizers import Characters
from keras_plm.transfer import FeatureBased, FeatureStore, FineTune
from keras_plm.transfer._feature_rows import TOKENS
from keras_plm.transfer.feature_store import fitting
from tests.helpers.checks import assert_close, under_torch
from tests.helpers.small_encoders import (
    LABELS,
    LETTERS,
    TAGS,
    TOKENIZER,
    WORDS,
    encoder,
    sentences,
    text_pairs,
    texts,
    word_encoder,
)
from tests.helpers.small_gpt import gpt
from tests.helpers.small_passages import PAIRS, PIECES, made_up
from tests.helpers.small_passages import encoder as piece_encoder

FAST = {"epochs": 2, "learning_rate": 1e-2, "batch_size": 16, "units": 3}


def elmo():
    return ELMo(units=5, projection_dim=3, filters=[[1, 2], [2, 3]], character_dim=2)


def word_vectors(width=5):
    vectors = np.random.default_rng(4).normal(size=(6, width))
    return WordVectors.from_vectors(LETTERS[:6], vectors)


def scores_of(method, head, store, task_network, words=None):
    """Returns the logits of every row of a store, by number."""
    asks = {**method._asks, "words": words, "training": False, "batch_size": len(store)}
    source = store.batches(method.layers, buckets=1, **asks)
    logits = np.asarray(task_network.predict_on_batch(source[0][0]))
    found = [None] * len(store)
    for b, row in enumerate(source.rows(0)):
        if row >= 0:
            found[row] = logits[b]
    return found


READ = {
    "bert": (encoder, TOKENIZER),
    "elmo": (elmo, Characters()),
    "vectors": (word_encoder, WORDS),
}


@pytest.mark.full
@pytest.mark.parametrize(
    "kind, head, options",
    [
        ("bert", Classifier, {"layers": "mix", "penalty": 0.01, "character_filters": 3}),
        under_torch(
            "elmo",
            Classifier,
            {"layers": "mix", "feature_dropout": 0.2, "character_filters": 3, "placement": "both"},
        ),
        under_torch("vectors", Regressor, {}),
    ],
    ids=["bert", "elmo", "vectors"],
)
def test_esim_predictions_equal_store_and_reload(kind, head, options, tmp_path):
    make, tokenizer = READ[kind]
    model, words = make(), word_vectors() if options else None
    train, dev = text_pairs(32), text_pairs(9, seed=1)
    dev += train[:1]
    if kind == "bert":  # truncated in a row of twelve; for others it would compile one more shape
        dev.append(Example("a b c d e f g h a b c", "no", pair="h g f e d c b"))
    labels = LABELS
    if head is Regressor:
        train, dev = ([Example(e.text, float(e.label == "yes"), e.pair) for e in part]
                      for part in (train, dev))  # fmt: skip
        labels = (0.0, 1.0)
    # At this rate none of the few units dies.
    method = FeatureBased(reader="esim", **{**FAST, "learning_rate": 1e-3, "units": 7}, **options)
    fitted = method.fit(model, head, tokenizer, train, labels=labels, store=tmp_path, words=words)
    assert isinstance(fitted.reader, ESIM) and fitted.pairs == (
        "words" if kind != "bert" else False
    )
    store = FeatureStore.build(tmp_path, model, tokenizer, dev)
    word_store = words and FeatureStore.build_words(tmp_path, words, model, tokenizer, dev)
    if kind != "bert":  # each text once, even if several examples have it
        alone = {text for example in dev for text in (example.text, example.pair)}
        assert len(store.array) == sum(len(text.split()) for text in alone)

    logits = np.stack(scores_of(method, head, store, fitted.task_network, word_store))
    if head is Regressor:
        wanted = np.clip(logits[:, 0], 0, 1)
        found = np.array(fitted.predict(dev))
    else:
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        wanted, found = (
            shares / shares.sum(axis=1, keepdims=True),
            fitted.predict(dev, probabilities=True),
        )
    assert_close(found, wanted, atol=5e-3)  # features are stored in float16
    assert np.ptp(found) > 1e-3
    firsts, seconds = [e.text for e in dev], [e.pair for e in dev]
    assert fitted.predict(firsts, pairs=seconds) == fitted.predict(dev)
    if kind == "bert":  # padding of both texts does not change a single example
        alone = fitted.predict(dev[2:3], probabilities=True)
        assert_close(alone, found[2:3], atol=1e-4)
        return
    fitted.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.predict(dev) == fitted.predict(dev)


def answers(count, length=11, seed=0, unanswered=False):
    """Returns passages with a question that names the first letter of the answer."""
    rng = np.random.default_rng(seed)
    made = []
    for i, example in enumerate(made_up(count, seed, unanswered, length)):
        made.append(Example(rng.choice(["c d a", "d a c"]), example.label, example.pair,
                            starts=example.starts, id=str(i)))  # fmt: skip
    return made


FOUND = {
    "bert": (piece_encoder, PIECES, "bidaf"),
    "gpt": (gpt, PAIRS, "bidaf"),  # reads question and passage separately, in windows of 24 tokens
    "elmo": (elmo, Characters(), "bidaf"),
    "elmo and words": (elmo, Characters(), "bidaf"),
    "vectors": (word_vectors, word_vectors().tokenizer(), "bilstm"),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", [k if k == "elmo" else under_torch(k) for k in FOUND])
def test_span_finder_scores_equal_store_and_reload(kind, tmp_path):
    make, tokenizer, reader = FOUND[kind]
    model, length = make(), 29 if kind in ("bert", "gpt") else 11
    train = answers(32, length, unanswered=kind != "bert")
    dev = answers(8, length, 1, unanswered=kind != "bert")
    words = word_vectors() if kind == "elmo and words" else None
    options = {"layers": "mix" if kind.startswith("elmo") else "last"}
    options |= {"placement": "output"} if words else {}
    method = FeatureBased(reader=reader, **options, **FAST)
    fitted = method.fit(model, SpanFinder, tokenizer, train, store=tmp_path, words=words)
    assert fitted.pairs == (False if kind == "bert" else "words")
    word_store = words and FeatureStore.build_words(
        tmp_path, words, model, tokenizer, dev, pool=TOKENS
    )
    store = FeatureStore.build(tmp_path, model, fitting(tokenizer, model), dev, TOKENS)
    assert len(list(tmp_path.iterdir())) == (4 if words else 2)
    windows = store.windows
    assert (len(windows) > len(dev)) == (length == 29)
    if fitted.pairs:  # each question and each window is stored once
        total = sum(len(set(e.text for e in dev)) * [3]) + windows.counts.sum()
        assert len(store.array) == total and (store.counts == windows.lengths).all()

    stored = scores_of(method, SpanFinder, store, fitted.task_network, word_store)
    source = fitted.batches(dev, training=False, batch_size=len(windows), buckets=1)
    live = np.asarray(fitted.predict_on_batch(source[0][0]))
    for b, row in enumerate(source.rows(0)):
        if row < 0:
            continue
        mask = windows.answer_mask(np.array([row]), live.shape[-1])[0]
        assert mask.sum() == windows.counts[row] + 1
        assert_close(live[b][:, mask], stored[row][:, mask], atol=1e-2)
        assert (live[b][:, ~mask] == -1e9).all()
    predicted = fitted.predict(dev)
    assert all(text in e.pair for text, e in zip(predicted, dev, strict=True))
    fitted.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.predict(dev) == predicted and again.pairs == fitted.pairs
    if kind == "gpt":  # a single question, without padding from others
        (alone,), (among, *_) = (fitted.predict(e, probabilities=True) for e in (dev[:1], dev))
        assert {span.text: round(span.score, 3) for span in alone} == {
            span.text: round(span.score, 3) for span in among
        }


@pytest.mark.compiles
def test_word_vectors_align_with_words_of_long_passages(tmp_path):
    passage = " ".join(np.random.default_rng(0).choice(list(LETTERS), 900))
    asked = [Example("a b", ["c"], pair=passage, starts=[passage.index("c")])]
    store = FeatureStore.build(tmp_path, elmo(), Characters(), asked, TOKENS)
    words = word_vectors()
    word_store = FeatureStore.build_words(tmp_path, words, elmo(), Characters(), asked, pool=TOKENS)
    assert len(store) > 1 and (word_store.counts == store.counts).all()
    windows = Windows(asked, Characters(), apart=True, word_tokenizer=words.tokenizer())
    x, _, _ = windows.collate(np.arange(len(windows)), 384, None, 0)
    table = np.asarray(words.get_weights()[0])
    for row, ids in enumerate(x["vector_ids"]):
        held = word_store.vectors(row, LayerChoice(-1, -1))[:, 0]
        assert_close(table[ids][: len(held)], held, atol=1e-3)
        assert not ids[len(held) :].any()


@pytest.mark.full
def test_crf_tagger_learns_from_characters(tmp_path):
    """Tests the tagger of Peters et al.; only the letters of the words determine the tags."""
    rng, rows = np.random.default_rng(0), []
    for _ in range(72):
        words = ["".join(rng.choice(list("uvwz"), 3)) for _ in range(rng.integers(3, 8))]
        rows.append(Example(words, ["B-A" if "z" in word else "O" for word in words]))
    train, dev = rows[:56], rows[56:]  # all words are [UNK] to the encoder
    more = {"epochs": 16, "learning_rate": 5e-3, "batch_size": 8, "units": 6, "seed": 1}
    method = FeatureBased(reader="bilstm", character_filters=16, **{**FAST, **more})
    fitted = method.fit(encoder(), CRFTagger, TOKENIZER, train, dev, store=tmp_path)
    assert fitted.training_log["dev_score"] > 0.8
    assert "word_character_ids" in fitted.input
    store = FeatureStore.build(tmp_path, fitted.encoder, TOKENIZER, dev)
    assert len(list(tmp_path.iterdir())) == 2  # the stores of `fit`
    found = method.predict(CRFTagger, fitted.task_network, store, fitted.labels)
    assert found == fitted.predict(dev)
    # An unseen word beyond the limit of characters, and sentences in windows.
    long = [Example(["u" * 20 + "z" * 30, "v"] * 9)]
    assert [len(tags) for tags in fitted.predict(long)] == [18]
    fitted.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.predict(dev) == found and again.placement.character_filters == 16
    (alone,) = fitted.predict(dev[:1], probabilities=True)
    assert_close(alone, fitted.predict(dev, probabilities=True)[0], atol=1e-4)


@pytest.mark.full
@pytest.mark.backend_neutral
def test_esim_and_bidaf_learn_tasks_on_two_texts():
    """One text by itself does not determine the label; both texts must interact."""
    rng, rows = np.random.default_rng(0), []
    for _ in range(160):
        first, second = rng.choice(LETTERS, 2)
        second = first if rng.random() < 0.5 else second
        rows.append(Example(str(first), LABELS[int(first == second)], pair=str(second)))
    method = FeatureBased(reader="esim", **{**FAST, "epochs": 12, "units": 8, "dropout": 0.0})
    fitted = method.fit(word_encoder(), Classifier, WORDS, rows[:128], rows[128:])
    assert fitted.training_log["dev_score"] > 0.9
    method = FeatureBased(reader="bidaf", **{**FAST, "epochs": 14, "units": 8, "dropout": 0.0})
    model = WordVectors.from_vectors(LETTERS, np.eye(8))
    fitted = method.fit(
        model, SpanFinder, model.tokenizer(), *(made_up(n, n, length=5) for n in (96, 24))
    )
    assert fitted.training_log["dev_score"] > 0.7


@pytest.mark.full
def test_fine_tuning_with_esim_updates_the_encoder():
    method = FineTune(**{**FAST, "epochs": 1}, reader="esim")
    for model, tokenizer in ((encoder(), TOKENIZER), (word_encoder(), WORDS)):
        fitted = method.fit(model, Classifier, tokenizer, text_pairs(16), symmetric=True)
        assert isinstance(fitted.reader, ESIM) and len(fitted.predict(text_pairs(3))) == 3
        moved = zip(fitted.encoder.get_weights(), model.get_weights(), strict=True)
        assert any(not np.array_equal(a, b) for a, b in moved)


@pytest.mark.backend_neutral
class TestBadInput:
    @pytest.mark.parametrize(
        "reader, head, examples, match",
        [
            ("esim", Classifier, texts, "reads two texts: give every example a `pair`.*'esim'"),
            ("esim", Tagger, sentences, "ESIM reads pairs of texts; words.*'bilstm'.*head=Tagger"),
            ("bidaf", Classifier, text_pairs, "BiDAF reads questions.*'esim'.*head=Classifier"),
            ("esim", SpanFinder, made_up, "ESIM reads pairs of texts; answers.*'bidaf' or"),
            ("bcn", SpanFinder, made_up, "BCN reads whole texts; answers are found by"),
        ],
    )
    @pytest.mark.parametrize("method", [FeatureBased, FineTune])
    def test_readers_refuse_unsuitable_heads(self, method, reader, head, examples, match):
        with pytest.raises(ValueError, match=match):
            method(**FAST, reader=reader).fit(encoder(), head, TOKENIZER, examples(8))

    def test_heads_refuse_unsuitable_readers_and_pairs(self):
        with pytest.raises(ValueError, match="ESIM reads pairs of texts.*head=Tagger"):
            Tagger(encoder(), TAGS, reader=ESIM(3))
        with pytest.raises(ValueError, match="with a reader of two texts.*example 0 without"):
            Classifier(encoder(), LABELS, TOKENIZER, reader=ESIM(3)).predict(["a"])
        with pytest.raises(ValueError, match="needs a reader of two texts.*reader=None"):
            Classifier(word_encoder(), LABELS, WORDS, pairs="words")
        with pytest.raises(ValueError, match="or 'words' with a reader. Received: pairs='words'"):
            SpanFinder(elmo(), tokenizer=Characters(), pairs="words")
        with pytest.raises(ValueError, match="'bidaf' or 'bilstm'. Received: Characters"):
            FeatureBased(**FAST).fit(elmo(), SpanFinder, Characters(), made_up(4))

    def test_unsuitable_words_and_characters_are_refused(self, tmp_path):
        for options, match in [
            ({"character_filters": 3}, "characters of words need a reader.*character_filters=3"),
            ({"reader": "bilstm", "character_filters": -1}, "whole number, 0 or more. .*-1"),
        ]:
            with pytest.raises(ValueError, match=match):
                FeatureBased(**options)
        method = FeatureBased(**FAST, reader="bidaf", character_filters=3)
        with pytest.raises(ValueError, match="reads no characters of words.*character_filters=3"):
            method.fit(piece_encoder(), SpanFinder, PIECES, made_up(4))
        with pytest.raises(ValueError, match="whose tokens are words, such as ELMo's.*WordPiece"):
            FeatureBased(**FAST, reader="bidaf").fit(
                piece_encoder(), SpanFinder, PIECES, made_up(4), words=word_vectors()
            )
        store = FeatureStore.build(tmp_path, encoder(), TOKENIZER, texts(4), "mean")
        for asked, match in (
            ("word_character_ids", "with pool=None"),
            ("pair_positions", "words of both"),
        ):
            with pytest.raises(ValueError, match=match):
                store.batches("last", batch_size=2, **{asked: True})


@pytest.mark.full
@pytest.mark.backend_neutral
def test_command_runs_readers_of_tags_and_pairs(tmp_path, capsys):
    def write(name, header, rows):
        path = tmp_path / name
        path.write_text("\n".join([header, *rows]) if header else "\n\n".join(rows))
        return ["--task-file", str(path)]

    keras_plm.save(tmp_path / "bert", encoder(), TOKENIZER)
    keras_plm.save(tmp_path / "elmo", elmo(), Characters())
    pairs = write("pairs.csv", "text,label,pair",
                  [f"{e.text},{e.label},{e.pair}" for e in text_pairs(40)])  # fmt: skip
    pairs += ["--pair", "pair"]
    tags = write("tags.conll", "", ["\n".join(map(" ".join, zip(e.text, e.label, strict=True)))
                                    for e in sentences(120)])  # fmt: skip
    common = ["--data", str(tmp_path), "--feature-cache", str(tmp_path / "f"), "--seeds", "1"]
    common += ["--results", str(tmp_path / "r"), "--learning-rates", "1e-2", "--epochs", "1"]

    def run(task, name, reader, *more):
        flags = ["run", *task, "--encoder", str(tmp_path / name), *common, "--reader", reader]
        code = main([*flags, "--method", "features", "--units", "3", *more])
        return code, " ".join(capsys.readouterr().err.split())

    for name in ("bert", "elmo"):
        assert run(pairs, name, "esim")[0] == 0
    code, error = run(tags, "bert", "bilstm_crf", "--character-filters", "5")
    assert code == 0, error
    found = sorted(path.name for path in (tmp_path / "r").glob("**/*.json"))
    assert found == [
        "bert.features-bilstm_crf-last-characters5-units3.seed0.json",
        "bert.features-esim-last-units3.seed0.json",
        "elmo.features-esim-last-units3.seed0.json",
    ]
    for task, reader, match in (
        (pairs, "bilstm_crf", "The reader 'bilstm_crf' needs a task of tagged words"),
        (tags, "esim", "ESIM reads pairs of texts; words are tagged by reader='bilstm'"),
        (pairs, "bidaf", "BiDAF reads questions with their passages"),
        (pairs[:2], "esim", "reads two texts: give every example a `pair`"),
        (tags, "lstm", "`reader` must be one of 'linear', 'bilstm', 'bcn', 'esim', 'bidaf'"),
    ):
        code, error = run(task, "bert", reader)
        assert code == 2 and match in error, error
