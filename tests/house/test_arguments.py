"""User-facing functions refuse objects of the wrong kind with an error of one sentence."""

import keras
import numpy as np
import pytest

import keras_plm
from keras_plm import decoding, metrics
from keras_plm.data import batches
from keras_plm.data.task import Example
from keras_plm.heads import Classifier, MultipleChoice, Regressor, SpanFinder, Tagger, readers
from keras_plm.metrics import accuracy
from keras_plm.models import BERT, GPT
from keras_plm.pretraining import MaskedLM, causal_lm_batches, masked_lm_batches
from keras_plm.pretraining.causal_lm import token_losses
from keras_plm.tokenizers import WordPiece
from keras_plm.transfer import (
    FeatureBased,
    FeatureExtractor,
    FineTune,
    compare_layers,
    extract_features,
)
from keras_plm.transfer.feature_store import FeatureStore
from tests.helpers.small_encoders import LABELS, TAGS, TOKENIZER, classifier, encoder, texts

pytestmark = pytest.mark.backend_neutral
TEXTS = ["a b", "c d"]


@pytest.fixture(scope="module")
def model():
    return encoder()


def dense():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


def takers():
    """Returns functions of an encoder and a tokenizer that read both."""
    rows = texts(4)
    yield lambda e, t: Classifier(e, LABELS, t)
    yield lambda e, t: Regressor(e, (0, 5), t)
    yield lambda e, t: Tagger(e, TAGS, t)
    yield lambda e, t: MultipleChoice(e, range(2), t)
    yield lambda e, t: SpanFinder(e, tokenizer=t)
    yield lambda e, t: FineTune(epochs=1).fit(e, Classifier, t, rows)
    yield lambda e, t: FeatureBased(epochs=1).fit(e, Classifier, t, rows)
    yield lambda e, t: compare_layers(e, t, rows, Classifier)
    yield lambda e, t: extract_features(e, t, TEXTS)
    yield lambda e, t: FeatureExtractor(e, t).transform(TEXTS)


@pytest.mark.parametrize("take", takers())
def test_wrong_encoders_and_tokenizers_are_refused(take, model):
    for wrong in (None, "bert_tiny_uncased", (model, TOKENIZER), TOKENIZER, BERT, dense()):
        with pytest.raises(
            TypeError, match="`encoder` must be.*keras_plm.load.*Received: encoder="
        ):
            take(wrong, TOKENIZER)
    for wrong in ("tokenizer", model, WordPiece, ["a", "b"]):
        with pytest.raises(TypeError, match="`tokenizer` must be.*keras_plm.load.*Received: token"):
            take(model, wrong)


def test_wrong_tokenizers_encoders_and_streams_are_refused(model, tmp_path):
    gpt = GPT(len(TOKENIZER), 1, 2, 8, 12)
    for call in (
        lambda wrong: batches(texts(2), wrong, LABELS),
        lambda wrong: FeatureStore.build(tmp_path, model, wrong, TEXTS),
        lambda wrong: decoding.generate(gpt, wrong, TEXTS),
        lambda wrong: token_losses(gpt, wrong, TEXTS),
    ):
        for wrong in ("tokenizer", model):
            with pytest.raises(TypeError, match="`tokenizer` must be"):
                call(wrong)
    with pytest.raises(TypeError, match="`tokenizer` must be.*NoneType"):
        decoding.generate(gpt, None, TEXTS)
    for wrong in (None, TOKENIZER, BERT):
        with pytest.raises(ValueError, match="`MaskedLM` needs an encoder"):
            MaskedLM(wrong)
    for wrong in (TEXTS, "corpus.txt", None, TOKENIZER):
        for make in (masked_lm_batches, causal_lm_batches):
            with pytest.raises(TypeError, match="`stream` must be a `TokenStream`.*build"):
                make(wrong, TOKENIZER)


@pytest.mark.parametrize(
    "name, wrong, fix",
    [
        ("layers", "last", "LayerChoice, for example `transfer.layer_choice"),
        ("layers", 3, "LayerChoice"),
        ("layers", [0, 1], "LayerChoice"),
        ("reader", "bilstm", "Layer, for example `readers.BiLSTM"),
        ("reader", readers.BiLSTM, "Layer"),
        ("task_network", "linear", "build_task_network"),
        ("placement", "input", "Placement"),
        ("dropout", "0.1", "Real"),
    ],
)
def test_head_arguments_of_wrong_type_are_refused(name, wrong, fix, model):
    with pytest.raises(TypeError, match=f"`{name}` must be a .*{fix}.*Received: {name}="):
        Classifier(model, LABELS, TOKENIZER, **{name: wrong})


def test_integer_arguments_refuse_other_types(model, tmp_path):
    gpt, rows = GPT(len(TOKENIZER), 1, 2, 8, 12), texts(2)
    head = Classifier(model, LABELS, TOKENIZER)
    file = tmp_path / "text.txt"
    file.write_text("a b\n")
    for wrong in ("3", 6.5, True):
        for name, call in (
            ("max_length", lambda x: TOKENIZER.pack(TEXTS, max_length=x)),
            ("max_length", lambda x: batches(rows, TOKENIZER, LABELS, max_length=x)),
            ("max_length", lambda x: head.batches(rows, max_length=x)),
            ("max_length", lambda x: SpanFinder(model, tokenizer=TOKENIZER, max_length=x)),
            (
                "max_new_tokens",
                lambda x: decoding.generate(gpt, TOKENIZER, TEXTS, max_new_tokens=x),
            ),
            ("batch_size", lambda x: batches(rows, TOKENIZER, LABELS, batch_size=x)),
            ("tokens_per_batch", lambda x: batches(rows, TOKENIZER, LABELS, tokens_per_batch=x)),
            ("batch_size", lambda x: decoding.generate(gpt, TOKENIZER, TEXTS, batch_size=x)),
            ("top_k", lambda x: decoding.generate(gpt, TOKENIZER, TEXTS, decoding.sample, top_k=x)),
            ("units", lambda x: FineTune(reader="bilstm", units=x)),
            ("units", lambda x: FeatureBased(units=x)),
            ("seeds", lambda x: compare_layers(model, TOKENIZER, rows, Classifier, seeds=x)),
            ("vocabulary_size", lambda x: WordPiece.train(file, x)),
        ):
            with pytest.raises(
                TypeError, match=f"`{name}` must be a whole number(, 1 or more)?. Received: {name}"
            ):
                call(wrong)
    assert TOKENIZER.pack(TEXTS, max_length=np.int64(4))["token_ids"].shape == (2, 4)
    for wrong, error in ((None, TypeError), ("a", TypeError), (-1, ValueError)):
        with pytest.raises(error, match="`seed` must be a whole number, 0 or more"):
            FineTune(seed=wrong)
    with pytest.raises(ValueError, match="`temperature` must be above 0"):
        decoding.sample(gpt, TOKENIZER.pack(TEXTS), 0, 1, temperature="cold")
    with pytest.raises(TypeError, match="`feature_gb` must be a number"):
        FeatureBased(feature_gb="8")


def test_method_arguments_of_wrong_type_are_refused(model):
    rows = texts(6)
    fit = FineTune(epochs=1).fit
    with pytest.raises(TypeError, match="`metric` must be a function.*metrics.accuracy"):
        fit(model, Classifier, TOKENIZER, rows, rows, metric="accuracy")
    with pytest.raises(TypeError, match="`distribution` must be from.*distribute"):
        fit(model, Classifier, TOKENIZER, rows, distribution="mirrored")
    stops = keras.callbacks.EarlyStopping("loss")
    assert fit(model, Classifier, TOKENIZER, rows, callbacks=stops).training_log["loss"]
    with pytest.raises(TypeError, match="`method` must be a `FeatureBased`"):
        compare_layers(model, TOKENIZER, rows, Classifier, method=FineTune())
    with pytest.raises(ValueError, match="'train', 'dev' and 'test'. Received: 'train', 'test'"):
        compare_layers(model, TOKENIZER, {"train": rows, "test": rows}, Classifier)


def test_save_refuses_wrong_argument_order_and_dtype(model, tmp_path):
    for order in ((model, tmp_path, TOKENIZER), (model, TOKENIZER, tmp_path), (None, model, None)):
        with pytest.raises(TypeError, match=r"comes first: keras_plm.save\(folder, encoder"):
            keras_plm.save(*order)
    for wrong in ("int7", "mixed_bfloat16", None):
        with pytest.raises(ValueError, match="`dtype` must be 'float32' or 'float16'"):
            keras_plm.save(tmp_path / "model", model, TOKENIZER, dtype=wrong)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="No such folder"):
        keras_plm.load(tmp_path / "missing")


def test_decoding_and_tokenizers_refuse_wrong_inputs():
    gpt, packed = GPT(len(TOKENIZER), 1, 2, 8, 12), TOKENIZER.pack(TEXTS)
    for wrong in (TEXTS, packed["token_ids"], {"token_ids": packed["token_ids"]}):
        with pytest.raises(TypeError, match="`inputs` must be a dict.*pack.*generate"):
            decoding.greedy(gpt, wrong, 0, 1)
    with pytest.raises(TypeError, match="A tokenizer needs texts.*in row 1 of `texts`"):
        TOKENIZER.pack(["a", Example("a", "no")])
    for wrong in (packed["token_ids"], ["a", "b"], [1.5]):
        with pytest.raises(TypeError, match="one row of whole numbers.* at 0"):
            TOKENIZER.detokenize(wrong)
    assert TOKENIZER.detokenize(packed["token_ids"][0]) == "a b"


def test_class_metrics_refuse_probabilities():
    probabilities = np.array([[0.1, 0.9], [0.8, 0.2]])
    assert metrics.accuracy([1, 0], probabilities.argmax(-1)) == 1.0
    for score in (metrics.accuracy, metrics.f1, metrics.matthews_correlation):
        with pytest.raises(ValueError, match="argmax.*in row 0 of `y_pred`"):
            score([1, 0], probabilities)


def test_fit_evaluates_all_steps_of_a_validation_generator():
    model = classifier()
    model.compile("sgd")
    bias = next(w for w in model.task_network.weights if w.path.endswith("logits/bias"))
    bias.assign([1.0, -1.0])
    rows = texts(64)
    of_label = [[row for row in rows if row.label == label][:8] for label in LABELS]
    parts = [model.batches(of_label[i], training=False, batch_size=8)[0] for i in (0, 0, 1, 0)]

    def again():
        while True:
            yield from parts

    options = {"validation_data": again(), "validation_steps": 3, "verbose": 0}
    model.optimizer.learning_rate = 0.0
    found = model.fit(model.batches(texts(8), batch_size=8), epochs=1, **options).history
    wanted = model.evaluate(iter(parts[:3]), steps=3, verbose=0)
    assert wanted[1] == pytest.approx(2 / 3)  # without the third batch it is 1
    assert [found["val_loss"][0], found["val_accuracy"][0]] == pytest.approx(wanted, abs=1e-6)


def test_custom_compute_loss_works_without_targets():
    class Own(Classifier):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.mean(y_pred**2)

    model = Own(encoder(), LABELS, TOKENIZER)
    model.compile("sgd", weighted_metrics=[])
    x = {k: v for k, v in model.batches(texts(8), batch_size=8)[0][0].items()}
    assert np.isfinite(model.fit(x, verbose=0).history["loss"][0])


def test_custom_tokenizer_without_pack_is_accepted():
    class Own:
        def __init__(self, inner):
            self._inner = inner

        def __len__(self):
            return len(self._inner)

        def __getattr__(self, name):
            if name in ("pack", "_inner"):
                raise AttributeError(name)
            return getattr(self._inner, name)

    model = Classifier(encoder(), LABELS, Own(TOKENIZER))
    assert len(model.predict(["a b", "c"])) == 2


def test_ids_may_be_a_tensor():
    ids = keras.ops.convert_to_tensor(TOKENIZER.encode(["a b"]).token_ids)
    assert TOKENIZER.detokenize(ids) == TOKENIZER.detokenize(np.asarray(ids).tolist())
    assert TOKENIZER.detokenize(list(ids)) == TOKENIZER.detokenize(ids)


def test_columns_of_one_number_are_scored():
    assert accuracy(np.array([[1], [0]]), np.array([[1], [1]])) == 0.5
    with pytest.raises(ValueError, match="for lists of tags use `word_accuracy`"):
        accuracy([["O", "B-A"]], [["O", "O"]])


@pytest.mark.full
def test_tags_unseen_in_training_count_as_errors():
    tagger = Tagger(encoder(), ["O", "B-X", "I-X"], TOKENIZER)
    rows = [Example(["a"], ["B-X"]), Example(["b"], ["MISC"])]
    tagger.compile("sgd")
    assert np.isfinite(tagger.evaluate(tagger.batches(rows, training=False), verbose=0)[0])
    with pytest.raises(
        ValueError, match="example 1, word 0 .*This label does not occur in the training"
    ):
        tagger.batches(rows)
