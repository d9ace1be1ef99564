"""Task networks over an encoder: learned mixes of layers, word vectors, both placements."""

import keras
import numpy as np
import pytest

from keras_plm.data.examples import batches
from keras_plm.data.packing import PackedExamples, words_of
from keras_plm.data.task import Example
from keras_plm.heads import Classifier, Tagger
from keras_plm.heads.readers import BiLSTM
from keras_plm.heads.task_network import Placement, TaskNetwork
from keras_plm.layers import LayerChoice
from keras_plm.models import WordVectors
from keras_plm.tokenizers import Words
from keras_plm.transfer import (
    FeatureBased,
    FeatureStore,
    _feature_files,
    compare_layers,
    layer_choice,
)
from tests.helpers.checks import assert_close, to_numpy, under_torch
from tests.helpers.small_encoders import LABELS, TAGS, TOKENIZER, encoder, sentences, texts

MIX = LayerChoice(0, -1, "mix")
FAST = {"epochs": 2, "learning_rate": 1e-2, "batch_size": 16}


def word_vectors(words="abcdefgh", seed=0):
    """Returns vectors of width 5 for some of the words."""
    rng = np.random.default_rng(seed)
    return WordVectors.from_vectors(list(words), rng.normal(size=(len(words), 5)))


def stored(folder, features, counts):
    """Returns a `FeatureStore` with given features (sum of counts, L, D)."""
    with _feature_files.writing(folder, features.shape, counts) as array:
        array[:] = features
    return FeatureStore(folder)


def one_layer_knows(folder, count=256):
    """Returns texts with one vector per layer; only layer 2 depends on the label."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, count)
    features = rng.normal(size=(count, 4, 6))
    features[:, 2, 0] += 2 * (2 * labels - 1)
    examples = [Example("a", LABELS[label]) for label in labels]
    return stored(folder, features, np.ones(count, int)), examples


@pytest.mark.full
@pytest.mark.parametrize("penalty", [under_torch(1.0), 0.001, under_torch(0.0)])
def test_penalty_controls_distance_of_mix_from_mean(penalty, tmp_path):
    """Peters et al. 2018, section 5.1: λ = 1 gives nearly the mean, λ = 0.001 different weights."""
    store, examples = one_layer_knows(tmp_path / "store")
    method = FeatureBased(layers="mix", penalty=penalty, epochs=12, learning_rate=0.1)
    task_network, log = method.fit_reader(Classifier, [store], examples, labels=LABELS)
    weights = log["mixes"]["input"]["weights"]
    assert sum(weights) == pytest.approx(1, abs=1e-5) and len(weights) == 4
    if penalty == 1.0:
        assert max(abs(weight - 0.25) for weight in weights) < 0.1
    else:
        assert weights[2] > 0.6 and max(weights[:2] + weights[3:]) < 0.2
    assert task_network.mixing_weights() == log["mixes"]


def test_without_a_mix_there_are_no_mixing_weights(tmp_path):
    store, examples = one_layer_knows(tmp_path / "store", 32)
    task_network, log = FeatureBased(layers=2, **FAST).fit_reader(Classifier, [store], examples)
    assert "mixes" not in log and task_network.mixing_weights() == {}


@pytest.mark.backend_neutral
def test_layer_choice_accepts_names_and_numbers():
    assert layer_choice("mix") == layer_choice("elmo_mix") == MIX
    assert layer_choice("top") == layer_choice("last")
    assert layer_choice(3) == layer_choice(np.int64(3)) == layer_choice("layer_3")
    for wrong in (-1, True, "3", 1.0):
        with pytest.raises(ValueError, match="mix, top or layer_0"):
            layer_choice(wrong)


def width_read(task_network):
    """Returns the widths of the inputs of the reader's first layer and of the output layer."""
    ahead, _ = task_network.get_layer("reader").layers[0]
    return ahead.kernel.shape[0], task_network.get_layer("logits").kernel.shape[0]


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "place, words, widths",
    [
        ("input", None, (7, 6)),
        ("input", 5, (5 + 7, 6)),
        ("output", 5, (5, 6 + 7)),
        ("both", 5, (5 + 7, 6 + 7)),
        ("both", None, (7, 6 + 7)),
    ],
)
def test_placement_sets_reader_and_output_widths(place, words, widths):
    placement = Placement(place, penalty=0.1, feature_dropout=0.5)
    reader = BiLSTM(3, num_layers=1, name="reader")
    task_network = Tagger.build_task_network((4, 7), 2, MIX, reader, 0.0, placement, words)
    assert isinstance(task_network, TaskNetwork)
    shapes = {name: tuple(x.shape) for name, x in task_network.input.items()}
    wanted = {"features": (None, None, 4, 7), "padding_mask": (None, None)}
    assert shapes == wanted | ({"words": (None, None, 5)} if words else {})
    assert width_read(task_network) == widths
    places = {"both": ["input", "output"]}.get(place, [place])
    assert list(task_network.mixing_weights()) == places
    assert len(task_network.losses) == len(places)


@pytest.mark.compiles
def test_output_placement_appends_features_to_reader_outputs():
    """With a reader that ignores word vectors, the logits are a plain sum over the features."""
    reader = BiLSTM(3, num_layers=1, name="reader")
    task_network = Tagger.build_task_network((2, 7), 3, MIX, reader, 0.0, Placement("output"), 5)
    rng = np.random.default_rng(0)
    x = {
        "features": rng.normal(size=(2, 4, 2, 7)).astype("float32"),
        "padding_mask": np.array([[1, 1, 1, 1], [1, 1, 0, 0]], bool),
        "words": rng.normal(size=(2, 4, 5)).astype("float32"),
    }
    kernel, bias = (to_numpy(w) for w in task_network.get_layer("logits").weights)
    hidden = to_numpy(reader(x["words"], padding_mask=x["padding_mask"]))
    both = np.concatenate([hidden, x["features"].mean(axis=2)], axis=-1)  # (B, W, 6 + 7)
    assert_close(task_network(x), both @ kernel + bias)
    # The vector of a text is the maximum over its words of the concatenation.
    reader = BiLSTM(3, num_layers=1, name="reader")
    task_network = Classifier.build_task_network(
        (2, 7), 3, MIX, reader, 0.0, Placement("output"), 5
    )
    kernel, bias = (to_numpy(w) for w in task_network.get_layer("logits").weights)
    hidden = to_numpy(reader(x["words"], padding_mask=x["padding_mask"]))
    both = np.concatenate([hidden, x["features"].mean(axis=2)], axis=-1)
    highest = np.stack([both[0].max(axis=0), both[1, :2].max(axis=0)])
    assert_close(task_network(x), highest @ kernel + bias)


@pytest.mark.compiles
def test_both_placements_have_separate_mixes():
    reader = BiLSTM(3, num_layers=1)
    task_network = Tagger.build_task_network((2, 7), 3, MIX, reader, 0.0, Placement("both"))
    x = {
        "features": np.random.default_rng(0).normal(size=(1, 4, 2, 7)).astype("float32"),
        "padding_mask": np.ones((1, 4), bool),
    }
    before = to_numpy(task_network(x))
    for i, name in enumerate(("combine", "combine_output")):
        mix = task_network.get_layer(name).mix
        mix.scalars.assign([float(i + 1), 0.0])
        mix.gamma.assign(1.5)
    mixes = task_network.mixing_weights()
    assert mixes["input"]["weights"][0] == pytest.approx(1 / (1 + np.exp(-1)), abs=1e-5)
    assert mixes["output"]["weights"][0] == pytest.approx(1 / (1 + np.exp(-2)), abs=1e-5)
    assert mixes["output"]["gamma"] == 1.5
    assert np.abs(to_numpy(task_network(x)) - before).max() > 1e-3


def test_feature_dropout_leaves_reader_outputs_unchanged():
    placement = Placement("output", feature_dropout=0.5)
    reader = BiLSTM(3, num_layers=1)
    task_network = Tagger.build_task_network((1, 7), 2, None, reader, 0.0, placement, 5)
    x = {
        "features": np.ones((2, 9, 1, 7), "float32"),
        "padding_mask": np.ones((2, 9), bool),
        "words": np.ones((2, 9, 5), "float32"),
    }
    seen = keras.Model(task_network.input, task_network.get_layer("dropout").output)
    dropped = to_numpy(seen(x, training=True))
    assert_close(dropped[..., :6], to_numpy(seen(x, training=False))[..., :6])
    assert set(np.unique(dropped[..., 6:])) == {0.0, 2.0}


def test_mix_norm_and_penalty_reach_the_mix():
    task_network = Classifier.build_task_network(
        (3, 7), 2, MIX, placement=Placement("input", 0.5, True)
    )
    mix = task_network.get_layer("combine").mix
    assert mix.layer_norm and mix.penalty == 0.5
    again = type(mix).from_config(mix.get_config())
    assert again.get_config() == mix.get_config()


@pytest.mark.parametrize("pairs", [True, "pooled"])
def test_placement_reaches_the_network_of_pairs(pairs):
    placement = Placement("input", 0.5, True, 0.3)
    options = {"tokenizer": TOKENIZER, "layers": MIX, "pairs": pairs, "placement": placement}
    network = Classifier(encoder(), LABELS, **options).task_network
    mix = network.get_layer("combine").mix
    assert mix.layer_norm and mix.penalty == 0.5
    assert network.get_layer("feature_dropout_input").rate == 0.3


@pytest.mark.parametrize(
    "own", [{"placement": Placement(mix_norm=True)}, {"dropout": 0.7}, {"layers": None}], ids=str
)
def test_head_and_its_task_network_have_the_same_settings(own):
    model = encoder()
    shape = (len(model.output["layers"]), model.hidden_dim)
    network = Classifier.build_task_network(shape, 2, **{"layers": MIX, **own})
    with pytest.raises(ValueError, match="must have the same `layers`, `placement` and `dropout`"):
        Classifier(model, LABELS, tokenizer=TOKENIZER, layers=MIX, task_network=network)


class TestWordsOfAnEncoder:
    def test_words_of_strings_preserve_their_spelling(self):
        found = words_of(["A bxx, (c)", "", "d"], TOKENIZER)
        assert found == [["A", "bxx", ",", "(", "c", ")"], [], ["d"]]
        pairs = [Example("a b", "yes", pair="c d"), Example("e", "no", pair="f")]
        assert words_of(pairs, TOKENIZER) == [["a", "b", "c", "d"], ["e", "f"]]
        assert words_of([["a b", "(c)"], ["d"]], TOKENIZER) == [["a b", "(c)"], ["d"]]

    def test_truncated_rows_end_with_a_whole_word(self):
        # [CLS] a b ax [SEP] of "ax" + "xxx": five positions.
        assert words_of(["a b axxxx c"], TOKENIZER, max_length=6) == [["a", "b", "axxxx"]]
        pairs = [Example("a b axxxx", "yes", pair="c d e f")]
        packed = PackedExamples(pairs, TOKENIZER, ["yes"], 9, words=True)
        assert (
            len(packed.row_words.strings()) == packed.words[0]
            and "axxxx" in packed.row_words.strings()
        )

    def test_vector_ids_match_word_positions_in_windows(self):
        tokenizer = Words(["[PAD]", "[UNK]", "[EOS]", *"abcd"])
        words = [*"abcd" * 5, "zz"]
        rows = [Example(words, ["O"] * 21), Example(["d"], ["O"])]
        source = batches(rows, TOKENIZER, ["O"], word_tokenizer=tokenizer, max_length=9,
                         batch_size=2, training=False)  # fmt: skip
        found = {}
        for i in range(len(source)):
            x = source[i][0]
            assert ((x["vector_ids"] > 0) == (x["word_positions"] >= 0)).all()
            for row, ids in zip(source.rows(i), x["vector_ids"], strict=True):
                found[int(row)] = ids[ids > 0].tolist()
        assert found.pop(3) == [6]
        assert sum((found[row] for row in range(3)), []) == [3, 4, 5, 6] * 5 + [1]

    def test_words_after_a_one_word_text_are_complete(self):
        tokenizer = Words(["[PAD]", "[UNK]", "[EOS]", *"ab"])
        rows = [["a"], ["b"], ["a", "b"], [], ["b"], ["a"]]
        packed = PackedExamples(rows, tokenizer)
        assert packed.words.tolist() == [1, 1, 2, 0, 1, 1]
        assert packed.row_words.strings() == [word for row in rows for word in row]

    @pytest.mark.backend_neutral
    def test_word_stores_of_other_examples_are_refused(self, tmp_path):
        rows = texts(8)
        model = encoder()
        method = FeatureBased(reader="bilstm", units=3, **FAST)
        store = FeatureStore.build(tmp_path, model, TOKENIZER, rows)
        others = FeatureStore.build_words(tmp_path, word_vectors(), model, TOKENIZER, rows[:5])
        with pytest.raises(ValueError, match="build_words.*of 5 examples, .* of 8"):
            method.fit_reader(Classifier, [store], rows, labels=LABELS, words=[others])

    @pytest.mark.backend_neutral
    def test_word_tokenizer_requires_words(self):
        with pytest.raises(ValueError, match="`word_tokenizer` needs words"):
            batches([["a"]], TOKENIZER, words=False, word_tokenizer=word_vectors().tokenizer())


@pytest.mark.full
@pytest.mark.parametrize(
    "head, examples, place",
    [
        under_torch(Classifier, texts, "output"),
        (Tagger, sentences, "both"),
    ],
)
def test_placed_reader_predictions_equal_store_and_reload(head, examples, place, tmp_path):
    model, words = encoder(), word_vectors()
    train, dev = examples(48), examples(24, seed=1)
    long = ["a", *"bcdefgh" * 4]  # windows for a tagger, truncated for a classifier
    dev.append(Example(long, ["O"] * 29) if head is Tagger else Example(" ".join(long), "yes"))
    labels = TAGS if head is Tagger else LABELS
    method = FeatureBased(
        layers="mix", reader="bilstm", units=4, placement=place, penalty=0.01, feature_dropout=0.2,
        **FAST,
    )  # fmt: skip
    fitted = method.fit(
        model, head, TOKENIZER, train, dev, labels=labels, store=tmp_path, words=words
    )
    assert model.trainable and words.trainable and fitted.words is not words
    assert fitted.training_log["mixes"] == fitted.mixing_weights()
    assert {"vector_ids", "word_positions"} <= set(fitted.input)

    # float16 features may turn a near tie, so probabilities are compared.
    def logits_of(task_network, source):
        (x,) = source[0]
        return to_numpy(task_network(x))

    stores = [
        FeatureStore.build(tmp_path, model, TOKENIZER, dev),
        FeatureStore.build_words(tmp_path, words, model, TOKENIZER, dev),
    ]
    assert len(list(tmp_path.glob("[!.]*"))) == 4  # the stores of `fit`
    options = {"training": False, "batch_size": len(dev), "buckets": 1}
    source = stores[0].batches("mix", words=stores[1], **options)
    rows = source.rows(0)
    logits = np.zeros((len(dev), *logits_of(fitted.task_network, source).shape[1:]))
    logits[rows[rows >= 0]] = logits_of(fitted.task_network, source)[rows >= 0]
    predicted = fitted.predict(dev, probabilities=True)
    for row, of_row in enumerate(predicted[:-1] if head is Tagger else predicted):
        scores = np.exp(logits[row][: len(of_row)] if head is Tagger else logits[row])
        assert_close(scores / scores.sum(axis=-1, keepdims=True), of_row, atol=5e-3)
    assert len(predicted[-1]) == (29 if head is Tagger else 2)

    fitted.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for a, b in zip(again.predict(dev, probabilities=True), predicted, strict=True):
        assert_close(a, b, atol=1e-6)
    assert again.mixing_weights() == fitted.mixing_weights()
    assert again.placement == fitted.placement and not again.words.trainable_weights
    assert len(again.trainable_weights) == len(fitted.trainable_weights)


@pytest.mark.backend_neutral
def test_training_a_head_leaves_word_vectors_unchanged():
    words = word_vectors()
    before = words.vectors.copy()
    model = Tagger(encoder(), TAGS, TOKENIZER, reader=BiLSTM(2, num_layers=1), words=words)
    model.compile("adam")
    model.fit(model.batches(sentences(16)), verbose=0)
    assert_close(words.vectors, before, atol=0)
    # Word vectors matter: other words change the predictions.
    x = model.batches(sentences(4), training=False)[0][0]
    other = {**x, "vector_ids": np.where(x["vector_ids"] > 0, 1, 0).astype("int32")}
    assert np.abs(to_numpy(model(x)) - to_numpy(model(other))).max() > 1e-4


@pytest.mark.backend_neutral
def test_compare_layers_accepts_word_vectors():
    parts = {"train": sentences(40), "dev": sentences(9, 1), "test": sentences(9, 2)}
    rows = compare_layers(
        encoder(), TOKENIZER, parts, Tagger, words=word_vectors(), choices=["top", 1],
        method=FeatureBased(reader="bilstm", units=3, placement="output", **{**FAST, "epochs": 1}),
        seeds=1,
    )  # fmt: skip
    assert [row["layers"] for row in rows] == ["last", "layer_1"]


@pytest.mark.backend_neutral
def test_bad_input_is_explained():
    for options, match in [
        ({"placement": "top"}, "`placement` must be one of .*'top'"),
        ({"placement": "output"}, "output need a reader.*placement='output' without a reader"),
        ({"placement": "both"}, "output need a reader"),
        ({"penalty": -1.0}, "`penalty` must be a number, 0 or more. Received: penalty=-1.0"),
        ({"feature_dropout": 1.0}, r"`feature_dropout` must be a number, 0 or more and below 1"),
    ]:
        with pytest.raises(ValueError, match=match):
            FeatureBased(**options)
    model, rows = encoder(), texts(4)
    parts = {"train": rows, "dev": rows, "test": rows}
    for method, words, match in [
        (FeatureBased(), word_vectors(), "Word vectors need a reader"),
        (FeatureBased(reader="bilstm", placement="output"), None, "pass `words`"),
        (FeatureBased(reader="bilstm"), TOKENIZER, "a `WordVectors`.*WordPiece"),
    ]:
        with pytest.raises(ValueError, match=match):
            method.fit(model, Classifier, TOKENIZER, rows, words=words)
        if words is not TOKENIZER:
            with pytest.raises(ValueError, match=match):
                compare_layers(model, TOKENIZER, parts, Classifier, method=method, words=words)
    with pytest.raises(ValueError, match="Word vectors need a reader"):
        Classifier(model, LABELS, words=word_vectors())
    task_network = Tagger.build_task_network((1, 16), 3, reader=BiLSTM(2))
    with pytest.raises(ValueError, match="task network that was trained with word vectors"):
        Tagger(
            encoder(),
            TAGS,
            reader=BiLSTM(2),
            task_network=task_network,
            words=word_vectors(),
            frozen=True,
        )
