"""Every model, quantized or with LoRA, is the same after saving and loading."""

import importlib.util

import keras
import numpy as np
import pytest

import keras_plm
from keras_plm.checkpoints import load_bert, load_gpt, save_bert, save_elmo, save_gpt
from keras_plm.data.task import Example
from keras_plm.files.saveable import leaves
from keras_plm.heads import (
    Classifier,
    CRFTagger,
    MultipleChoice,
    Regressor,
    SpanFinder,
    Tagger,
)
from keras_plm.heads.readers import BiLSTM
from keras_plm.layers import LayerChoice
from keras_plm.models import (
    GPT,
    NNLM,
    ELMo,
    FastText,
    GloVe,
    RecurrentLM,
    Seq2Seq,
    Transformer,
    Word2Vec,
    WordVectors,
)
from keras_plm.pretraining import BiLM, CausalLM, MaskedLM, WithLanguageModel
from keras_plm.training.optimizers import BertAdamW
from tests.helpers.checks import to_numpy, under_torch
from tests.helpers.small_encoders import LABELS, TAGS, TOKENIZER, classifier, encoder
from tests.helpers.small_gpt import TOKENIZER as PIECES
from tests.helpers.small_gpt import gpt
from tests.keras_plm.checkpoints.hub_models import backbone

ELMO = {"units": 5, "projection_dim": 4, "filters": [[1, 3]], "character_dim": 2, "num_layers": 1}
WORDS = ["[PAD]", "[UNK]", "[EOS]", "a", "b", "c"]


def span_finder():
    return SpanFinder(encoder(), tokenizer=TOKENIZER)


def hub_encoder():
    if not importlib.util.find_spec("keras_hub"):
        pytest.skip("keras_hub is not installed")
    from keras_plm.checkpoints.keras_hub import HubEncoder

    return HubEncoder(backbone("Bert", len(TOKENIZER)))


MODELS = {
    "BERT": encoder,
    "GPT": lambda: GPT(9, 2, 2, 8, 16, max_sequence_length=8),
    "ELMo": lambda: ELMo(**ELMO),
    "HubEncoder": hub_encoder,
    "NNLM": lambda: NNLM(9, 3, 4, 5),
    "RecurrentLM": lambda: RecurrentLM(9, 1, 4, 4),
    "Seq2Seq": lambda: Seq2Seq(9, 4, 4),
    "Transformer": lambda: Transformer(9, 1, 2, 8),
    "WordVectors": lambda: WordVectors(WORDS, 4, character_filters=2),
    "Word2Vec": lambda: Word2Vec(9, 4, row_length=6),
    "GloVe": lambda: GloVe(9, 4),
    "FastText": lambda: FastText(WORDS, 4, row_length=6, buckets=20),
    "Classifier": classifier,
    "Classifier with a reader": lambda: classifier(units=3, layers=LayerChoice(0, -1, "mix")),
    "Classifier of a frozen encoder": lambda: classifier(frozen=True),
    "Classifier of two texts": lambda: Classifier(encoder(), LABELS, TOKENIZER, pairs=True),
    "Regressor": lambda: Regressor(encoder(), (0, 5), TOKENIZER),
    "Tagger": lambda: Tagger(encoder(), TAGS, TOKENIZER, reader=BiLSTM(3)),
    "CRFTagger": lambda: CRFTagger(encoder(), TAGS, TOKENIZER, scheme="BIO"),
    "SpanFinder": span_finder,
    "MultipleChoice": lambda: MultipleChoice(encoder(), range(3), TOKENIZER),
    "MaskedLM": lambda: MaskedLM(encoder()),
    "CausalLM": lambda: CausalLM(gpt(9)),
    "BiLM": lambda: BiLM(ELMo(**ELMO), 9, 0),
    "WithLanguageModel": lambda: WithLanguageModel(
        Classifier(gpt(len(PIECES)), LABELS, tokenizer=PIECES)
    ),
}


EVERYWHERE = ("Classifier",)  # the others run under torch


def inputs_of(model):
    """Returns inputs for a model, with two rows of five steps."""
    rng = np.random.default_rng(0)
    arrays = {}
    for name, x in model.input.items():
        shape = [2 if i == 0 else 5 if size is None else size for i, size in enumerate(x.shape)]
        kind = keras.backend.standardize_dtype(x.dtype)
        arrays[name] = {
            "bool": np.ones(shape, bool),
            "int32": rng.integers(0, 2, shape).astype("int32"),
        }.get(kind, rng.normal(size=shape).astype("float32"))
    return arrays


def outputs(model, inputs):
    if hasattr(model, "reset_states"):
        model.reset_states()
    return [to_numpy(x) for x in keras.tree.flatten(model(inputs, training=False))]


def assert_same(found, wanted, atol=1e-5):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=atol)


def enable_lora(model, rank=2):
    """Enables LoRA in all of Keras' layers that support it, with values that change the outputs."""
    layers = [x for x in model._flatten_layers() if hasattr(x, "enable_lora") and x.built]
    layers = [x for x in layers if not isinstance(x, keras.Model)]
    for layer in layers:
        layer.enable_lora(rank)
    rng = np.random.default_rng(1)
    thin = [weight for weight in model.weights if "lora" in weight.path]
    for weight in thin:
        weight.assign(rng.normal(0, 0.3, weight.shape))
    return thin


@pytest.mark.split_to("jax")
@pytest.mark.compiles
@pytest.mark.quick_cases("lora-Classifier")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [name if name in EVERYWHERE else under_torch(name) for name in MODELS]
)
@pytest.mark.parametrize("how", ["int8", "lora"])
def test_saved_models_load(name, how, tmp_path):
    model = MODELS[name]()
    inputs = inputs_of(model)
    plain = outputs(model, inputs)
    if how == "lora":
        changed = bool(enable_lora(model))
    else:
        model.quantize("int8")
        changed = any(getattr(x, "quantization_mode", None) for x in model._flatten_layers())
    wanted = outputs(model, inputs)
    # Keras quantizes only its own layers: output layers of heads, but not blocks of our encoders.
    assert changed or name not in ("Classifier", "Tagger")
    if changed:
        moved = [np.abs(a - b).max() for a, b in zip(wanted, plain, strict=True)]
        assert max(moved) > 0
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert type(again) is type(model)
    assert_same(outputs(again, inputs), wanted)
    model.save_weights(tmp_path / "model.weights.h5")
    other = type(model).from_config(model.get_config())
    other.load_weights(tmp_path / "model.weights.h5")
    assert_same(outputs(other, inputs), wanted)


@pytest.mark.backend_neutral
@pytest.mark.parametrize("name", ["BERT", "Classifier", "MaskedLM", "Word2Vec", "Seq2Seq"])
def test_hdf5_model_files_are_refused(name, tmp_path):
    for ending in ("h5", "hdf5"):
        with pytest.raises(ValueError, match=r"saved as `.keras`.*Received"):
            MODELS[name]().save(tmp_path / f"model.{ending}")
    assert not list(tmp_path.iterdir())


@pytest.mark.full
@pytest.mark.backend_neutral
@pytest.mark.filterwarnings("ignore")
def test_a_trained_head_is_quantized_and_loads(tmp_path):
    model = classifier()
    model.compile("adam")
    before = model.predict(["a b", "c"], probabilities=True)
    model.quantize("int8")
    wanted = model.predict(["a b", "c"], probabilities=True)
    np.testing.assert_allclose(wanted, before, atol=0.05)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(["a b", "c"], probabilities=True), wanted, atol=1e-6)


@pytest.mark.full
@pytest.mark.backend_neutral
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["BERT", "GPT", "HubEncoder"])
def test_native_folders_merge_lora_into_the_weights(name, tmp_path):
    model, tokenizer = MODELS[name](), TOKENIZER
    if name == "GPT":
        model, tokenizer = gpt(len(PIECES)), PIECES
    inputs = inputs_of(model)
    assert enable_lora(model)
    wanted = outputs(model, inputs)
    keras_plm.save(tmp_path / "folder", model, tokenizer)
    again, _ = keras_plm.load(tmp_path / "folder")
    assert_same(outputs(again, inputs), wanted)
    assert "lora" in str([w.path for w in model.weights])  # the model itself is unchanged


@pytest.mark.full
@pytest.mark.backend_neutral
def test_released_formats_merge_lora_into_the_weights(tmp_path):
    for model, write, read in (
        (encoder(), save_bert, load_bert),
        (GPT(20, 2, 2, 8, 32, max_sequence_length=8), save_gpt, load_gpt),
    ):
        inputs = inputs_of(model)
        assert enable_lora(model)
        wanted = outputs(model, inputs)
        folder = tmp_path / write.__name__
        write(folder, model)
        assert_same(outputs(read(folder), inputs), wanted)


@pytest.mark.full
@pytest.mark.backend_neutral
def test_compiled_head_with_auxiliary_language_model_loads(tmp_path):
    model = MODELS["WithLanguageModel"]()
    model.encoder.token_embedding.trainable = False
    model.compile("adam")
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.weight == model.weight and again.head.labels == LABELS
    assert not again.encoder.token_embedding.trainable
    assert len(again.trainable_weights) == len(model.trainable_weights)
    rows = [Example("a", "no"), Example("b", "yes")]
    losses = []
    for each in (model, again):
        source = each.batches(each.head.batches(rows, training=False))
        losses.append(each.evaluate(source, verbose=0))
    np.testing.assert_allclose(*losses, atol=1e-5)


def test_frozen_layers_stay_frozen_after_a_reload(tmp_path):
    part = encoder()
    part.token_embedding.trainable = False
    model = Classifier(part, LABELS, tokenizer=TOKENIZER)
    model.compile(BertAdamW(1e-2))
    rows = [Example("a", "no"), Example("b", "yes")] * 4
    model.fit(model.batches(rows, batch_size=4), verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert len(again.trainable_weights) == len(model.trainable_weights) < len(model.weights)
    assert int(again.optimizer.iterations) == int(model.optimizer.iterations) == 2
    table = keras.ops.convert_to_numpy(again.encoder.token_embedding.embeddings).copy()
    again.fit(again.batches(rows, batch_size=4), verbose=0)
    np.testing.assert_array_equal(table, again.encoder.token_embedding.embeddings)


def frozen_head():
    """Returns a head whose encoder is frozen after its creation, its inputs and targets."""
    model = Classifier(encoder(), LABELS, tokenizer=TOKENIZER)
    model.encoder.trainable = False
    source = model.batches([Example("a", "no"), Example("b", "yes")], batch_size=2)
    return model, *source[0][:2]


def frozen_words():
    """Returns an ELMo whose layer 0, a layer with weights and sublayers of its own, is frozen."""
    model = ELMo(**ELMO)
    model.token_encoder.trainable = False
    x = {"character_ids": np.ones((2, 3, 50), "int32"), "padding_mask": np.ones((2, 3), bool)}
    return model, x, {"sequence": np.zeros((2, 3, model.hidden_dim), "float32")}


@pytest.mark.backend_neutral
@pytest.mark.parametrize("make", [frozen_head, frozen_words], ids=lambda make: make.__name__)
def test_parts_frozen_after_their_creation_stay_frozen(make, tmp_path):
    model, x, y = make()
    losses = {name: "mse" for name in y} if isinstance(y, dict) else None
    model.compile("adam", **({"loss": losses} if losses else {}))
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    shapes = [[tuple(w.shape) for w in each.trainable_weights] for each in (model, again)]
    assert shapes[0] == shapes[1] and len(shapes[0]) < len(model.weights)
    assert int(again.optimizer.iterations) == 1


@pytest.mark.backend_neutral
def test_frozen_leaves_of_older_files_are_frozen():
    model = frozen_head()[0]
    model.compile("adam")
    config = model.get_compile_config()
    assert config.pop("frozen_layers")
    again = Classifier(encoder(), LABELS, tokenizer=TOKENIZER)
    place = leaves(again).index(again.encoder.token_embedding)
    again.compile_from_config({**config, "frozen": [place]})
    assert not again.encoder.token_embedding.trainable and again.encoder.trainable


@pytest.mark.backend_neutral
def test_a_folder_that_would_not_load_is_not_written(tmp_path):
    words = [WordVectors.from_vectors(["fine", "film"], np.eye(2) * x) for x in (1, 70_000)]
    keras_plm.save(tmp_path / "w", words[0], words[0].tokenizer(), dtype="float16")
    with pytest.raises(ValueError, match="As float16: weights must be finite"):
        keras_plm.save(tmp_path / "w", words[1], words[1].tokenizer(), dtype="float16")
    assert keras_plm.load(tmp_path / "w")[0].vocabulary_size == words[0].vocabulary_size


@pytest.mark.full
@pytest.mark.backend_neutral
@pytest.mark.filterwarnings("ignore")
def test_folders_refuse_quantized_weights(tmp_path):
    model = hub_encoder()
    model.quantize("int8")
    with pytest.raises(ValueError, match=r"Quantized weights.*model.save\('name.keras'\)"):
        keras_plm.save(tmp_path / "folder", model, TOKENIZER)
    tagger = Tagger(encoder(), TAGS, TOKENIZER)
    tagger.quantize("int8")
    with pytest.raises(ValueError, match="Quantized weights"):
        save_bert(tmp_path / "bert", tagger)
    elmo = ELMo(**ELMO)
    for layer in elmo._flatten_layers():
        if isinstance(layer, keras.layers.Dense):
            layer.quantize("int8", type_check=False)
            with pytest.raises(ValueError, match="Quantized weights"):
                save_elmo(tmp_path / "options.json", tmp_path / "weights.hdf5", elmo)
            break
    assert not list(tmp_path.rglob("*.safetensors"))
