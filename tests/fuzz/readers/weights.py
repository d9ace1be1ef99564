"""Readers of weights: our folders, released formats, training states, stored features."""

import ast
import contextlib
import functools
import json
import math
import struct
import tempfile
from pathlib import Path

import h5py
import keras
import numpy as np

import keras_plm
from keras_plm import checkpoints
from keras_plm.checkpoints import load_bert, load_elmo, load_gpt, save_bert, save_elmo, save_gpt
from keras_plm.checkpoints.gpt import PARTS
from keras_plm.data.task import Example
from keras_plm.experiments.pretraining.objectives import SIZES, about_init
from keras_plm.experiments.pretraining.pretrain import pretrain
from keras_plm.experiments.pretraining.settings import Pretraining
from keras_plm.heads import Classifier
from keras_plm.models import (
    BERT,
    GPT,
    NNLM,
    ELMo,
    NGram,
    RecurrentLM,
    Seq2Seq,
    Transformer,
    WordVectors,
)
from keras_plm.tokenizers import Characters
from keras_plm.training.optimizers import BertAdamW
from keras_plm.training.resume import TrainingState, set_seed
from keras_plm.transfer.feature_store import FeatureStore
from tests.fuzz.cases import Reader, write_files
from tests.fuzz.readers.tokens import (
    BYTE_PAIRS,
    VOCABULARY,
    WORD_LIST,
    WORDPIECE,
    WORDS,
    encodes,
    released,
    with_text,
)
from tests.fuzz.text_mutations import json_file

SMALL = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}
ELMO = {
    "units": 8, "projection_dim": 4, "num_layers": 2, "cell_clip": 3, "projection_clip": 3,
    "use_skip_connections": True, "filters": [[1, 4], [2, 4]], "character_dim": 4,
    "num_highway": 1, "activation": "relu",
}  # fmt: skip


def bert(length=16):
    return BERT(len(VOCABULARY), **SMALL, max_sequence_length=length, dropout=0.1)


def gpt():
    size = SMALL | {"intermediate_dim": 32}
    return GPT(BYTE_PAIRS["gpt"].text_size, **size, max_sequence_length=16, dropout=0.1)


def elmo():
    return ELMo(**ELMO)


def word_vectors():
    rows = np.random.default_rng(0).normal(size=(len(WORDS), 4)).astype("float32")
    return WordVectors.from_vectors(WORDS, rows)


# ---- checks

FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


def finite(model):
    """Checks that all weights of a model are finite."""
    for weight in model.weights:
        values = keras.ops.convert_to_numpy(weight)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            return f"weights that are not finite: {weight.path}"
    return None


def tensors(path):
    """Reads a safetensors file independently of the library; other types raise."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, payload = json.loads(data[8 : 8 + size]), data[8 + size :]
    header.pop("__metadata__", None)
    found = {}
    for name, about in header.items():
        part = payload[slice(*about["data_offsets"])]
        if about["dtype"] == "BF16":
            bits = np.frombuffer(part, "<u2").astype("u4") << 16
            found[name] = bits.view("f4").reshape(about["shape"])
        elif about["dtype"] in FLOATS:
            found[name] = np.frombuffer(part, FLOATS[about["dtype"]]).reshape(about["shape"])
        else:
            found[name] = None
    return found


def hdf5_arrays(path):
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda n, d: found.update({n: d[...]}) if hasattr(d, "dtype") else None)
    return found


def npy_array(path):
    """Reads a .npy file of numbers independently of the library."""
    data = path.read_bytes()
    size = struct.unpack("<H", data[8:10])[0]
    header = data[10 : 10 + size].decode("latin-1")
    kind = next(kind for kind in ("<f4", "<f8", "<f2", ">f4") if repr(kind) in header)
    count = math.prod(ast.literal_eval(header.strip())["shape"])
    return np.frombuffer(data[10 + size :], kind, count)


def same_values(model, arrays):
    """Checks that the weights are the numbers of the arrays, in any order and layout."""
    if wrong := finite(model):
        return wrong
    for name, array in arrays.items():
        if array is None or array.dtype.kind != "f":
            return f"weights that are not floats: {name}"
    found = np.concatenate([np.ravel(w) for w in model.get_weights()]).astype("f4")
    right = np.concatenate([np.ravel(array) for array in arrays.values()]).astype("f4")
    if len(found) == len(right) and not np.allclose(np.sort(found), np.sort(right), rtol=1e-6):
        return "weights that are not the file's"
    return None


def same_weights(folder, loaded):
    """Checks that every weight of our folder equals the array of its name in the file."""
    model, tokenizer = loaded
    arrays = tensors(folder / "m" / "model.safetensors")
    for weight in model.weights:
        right = arrays[weight.path]
        if right is None:
            return f"weights that are not floats: {weight.path}"
        values = keras.ops.convert_to_numpy(weight)
        if values.shape != right.shape or not np.array_equal(values, right.astype("f4")):
            return f"weights of {weight.path} that are not the file's"
    return finite(model) or encodes(folder, tokenizer)


def of_file(read, name):
    """Returns a check of `(encoder, tokenizer)`, or of a model, against a file of arrays."""

    def check(folder, loaded):
        model, *more = loaded if isinstance(loaded, tuple) else (loaded,)
        return same_values(model, read(folder / name)) or next(
            filter(None, (encodes(folder, tokenizer) for tokenizer in more)), None
        )

    return check


def are_finite(folder, loaded):
    return finite(loaded[0] if isinstance(loaded, tuple) else loaded)


# ---- our own folders

OWN = {
    "BERT": lambda: (bert(), WORDPIECE),
    "GPT": lambda: (gpt(), BYTE_PAIRS["gpt"]),
    "ELMo": lambda: (elmo(), Characters()),
    "WordVectors": lambda: (word_vectors(), word_vectors().tokenizer()),
    "Seq2Seq": lambda: (
        Seq2Seq(len(BYTE_PAIRS["space"]), embedding_dim=4, hidden_dim=4, attention="additive"),
        BYTE_PAIRS["space"],
    ),
    "Transformer": lambda: (
        Transformer(len(BYTE_PAIRS["space"]), num_layers=1, num_heads=2, hidden_dim=8),
        BYTE_PAIRS["space"],
    ),
    "NNLM": lambda: (NNLM(len(WORD_LIST), order=3, embedding_dim=4, hidden_dim=4), WORD_LIST),
    "RecurrentLM": lambda: (
        RecurrentLM(BYTE_PAIRS["gpt"].text_size, num_layers=1, hidden_dim=8, units=8),
        BYTE_PAIRS["gpt"],
    ),
}


def load(folder):
    return keras_plm.load(folder / "m")


OWN_FILES = {"m/config.json": "json", "m/model.safetensors": "safetensors",
             "m/tokenizer.json": "json"}  # fmt: skip
FOLDERS = [
    Reader(f"own_{name}", lambda f, make=make: keras_plm.save(f / "m", *make()), load, OWN_FILES,
           same_weights, 0.25)
    for name, make in OWN.items()
]  # fmt: skip

# ---- released formats


def write_bert(folder):
    save_bert(folder / "m", bert(), WORDPIECE)


def write_classifier(folder):
    model = Classifier(bert(), labels=["bad", "good"], tokenizer=WORDPIECE, pool="pooled")
    save_bert(folder / "m", model)


def read_classifier(folder):
    model = load_bert(folder / "m", "classifier", tokenizer=WORDPIECE)
    with contextlib.suppress(FloatingPointError):  # large weights are valid
        model.predict(["a good film"])
    return model


def write_torch(folder):
    import torch

    write_bert(folder)
    arrays = tensors(folder / "m" / "model.safetensors")
    state = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    torch.save(state, folder / "m" / "pytorch_model.bin")
    (folder / "m" / "model.safetensors").unlink()


SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
ODD_SHARDS = ("../../x", "/etc/passwd", "..", ".", "", "a/b", "\x00", "x" * 5000, None, 3, ["a"],
              "config.json", *SHARDS)  # fmt: skip


def write_shards(folder):
    from safetensors.numpy import save_file

    write_bert(folder)
    path = folder / "m" / "model.safetensors"
    arrays, places = tensors(path), {}
    for i, name in enumerate(SHARDS):
        part = {key: arrays[key].copy() for key in sorted(arrays)[i::2]}
        save_file(part, folder / "m" / name)
        places |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    write_files(folder, {"m/model.safetensors.index.json": json.dumps(index)})
    path.unlink()


def shard_names(rng, data):
    """Damages the index of shards: false names, or damage as to other JSON files."""
    if rng.random() < 0.4:
        return json_file(rng, data)
    index = json.loads(data)
    index["weight_map"][rng.choice(sorted(index["weight_map"]))] = rng.choice(ODD_SHARDS)
    return json.dumps(index).encode(), "shard_name"


def same_shards(folder, loaded):
    arrays = {}
    for name in SHARDS:
        arrays |= tensors(folder / "m" / name)
    return same_values(loaded[0], arrays)


def write_preset(kind):
    """Writes a preset of KerasHub."""

    def write(folder):
        import keras_hub

        backbone = getattr(keras_hub.models, f"{kind}Backbone")
        tokenizer = getattr(keras_hub.tokenizers, f"{kind}Tokenizer")
        (folder / "m").mkdir()
        size = {"vocabulary_size": len(VOCABULARY), "max_sequence_length": 16, **SMALL}
        backbone(**size).save_to_preset(str(folder / "m"))
        tokenizer(vocabulary=VOCABULARY, lowercase=True).save_to_preset(str(folder / "m"))

    return write


def write_gpt(folder):
    save_gpt(folder / "m", gpt())
    write_files(folder / "m", released("gpt"))


def write_slices(folder):
    """Writes a GPT in OpenAI's format."""
    model = gpt()
    by_path = {weight.path: keras.ops.convert_to_numpy(weight) for weight in model.weights}
    ours = {theirs: name for name, theirs in PARTS.items()}
    arrays = [by_path[f"{name}_embedding/embeddings"] for name in ("position", "token")]
    order = ("attn.c_attn", "attn.c_proj", "ln_1", "mlp.c_fc", "mlp.c_proj", "ln_2")
    for part in order:
        for kind in ("gamma", "beta") if "ln" in part else ("kernel", "bias"):
            array = by_path[f"transformer/block_0/{ours[part]}/{kind}"]
            arrays.append(array[None] if kind == "kernel" else array)
    shapes = json.dumps([list(array.shape) for array in arrays])
    write_files(folder, {"m/params_shapes.json": shapes})
    flat = np.concatenate([array.ravel() for array in arrays])
    for i, part in enumerate(np.array_split(flat, 3)):
        np.save(folder / "m" / f"params_{i}.npy", part)


def same_slices(folder, model):
    arrays = {i: npy_array(folder / "m" / f"params_{i}.npy") for i in range(3)}
    return same_values(model, arrays)


PRESET = {"m/config.json": "json", "m/model.weights.h5": "hdf5", "m/tokenizer.json": "json",
          "m/assets/tokenizer/vocabulary.txt": "text"}  # fmt: skip
HUGGING_FACE = {"m/config.json": "json", "m/model.safetensors": "safetensors"}
of_safetensors = of_file(tensors, "m/model.safetensors")
of_hdf5 = of_file(hdf5_arrays, "m/model.weights.h5")

RELEASED = [
    Reader("bert_hugging_face", write_bert, load, {**HUGGING_FACE, "m/vocab.txt": "text"},
           of_safetensors, 0.4),
    Reader("bert_classifier", write_classifier, read_classifier, HUGGING_FACE, of_safetensors, 0.3),
    Reader("bert_torch", write_torch, load, {"m/pytorch_model.bin": "torch"}, are_finite, 0.4),
    Reader("bert_shards", write_shards, load,
           {"m/model.safetensors.index.json": shard_names, f"m/{SHARDS[0]}": "safetensors"},
           same_shards, 0.4),
    Reader("bert_keras_hub", write_preset("Bert"), load, PRESET, of_hdf5, 0.4,
           package="keras_hub"),
    Reader("hub_preset", write_preset("DistilBert"), load, {**PRESET, "m/metadata.json": "json"},
           of_hdf5, 0.3, package="keras_hub"),
    Reader("gpt_hugging_face", write_gpt, load,
           {**HUGGING_FACE, "m/vocab.json": "json", "m/merges.txt": "text"}, of_safetensors, 0.4),
    Reader("gpt_openai", write_slices, lambda f: load_gpt(f / "m", num_heads=2),
           {"m/params_shapes.json": "json", "m/params_0.npy": "npy", "m/params_1.npy": "npy"},
           same_slices, 0.5),
    Reader("elmo_hdf5", lambda f: save_elmo(f / "options.json", f / "weights.hdf5", elmo()),
           lambda f: load_elmo(f / "options.json", f / "weights.hdf5"),
           {"options.json": "json", "weights.hdf5": "hdf5"}, are_finite, 0.5),
]  # fmt: skip

# ---- other weights


def write_both(folder):
    keras_plm.save(folder / "m", bert(), WORDPIECE)
    save_bert(folder / "n", bert(), WORDPIECE)


def save_over(folder):
    """Saves into folders that contain another model of ours, or something else."""
    keras_plm.save(folder / "m", bert(), WORDPIECE)
    save_bert(folder / "n", bert(), WORDPIECE)
    return keras_plm.load(folder / "m"), keras_plm.load(folder / "n")


def both_finite(folder, loaded):
    return finite(loaded[0][0]) or finite(loaded[1][0])


def write_averaged(folder):
    for name in ("a", "b"):
        bert().save_weights(folder / f"{name}.weights.h5")


def average(folder):
    """Averages two files; a model keeps its weights if one of them cannot be read."""
    model = bert()
    before = model.get_weights()
    try:
        checkpoints.average_weights(model, [folder / f"{n}.weights.h5" for n in ("a", "b")])
    except Exception:
        if not all(map(np.array_equal, before, model.get_weights())):
            return None
        raise
    return model


def is_mean(folder, model):
    return "an error that changed the model" if model is None else finite(model)


def write_ngram(folder):
    ids = np.random.default_rng(0).integers(2, 20, 400).astype("int32")
    NGram(20, order=3).fit(ids).save(folder / "n.safetensors")


def read_ngram(folder):
    model = NGram.load(folder / "n.safetensors")
    return model.perplexity(np.arange(2, 20, dtype="int32")), model.distribution([3, 4])


def is_distribution(folder, found):
    perplexity, distribution = found
    if not (math.isfinite(perplexity) and perplexity >= 1):
        return f"the perplexity {perplexity}"
    whole = np.isclose(np.sum(distribution), 1, atol=1e-3) and np.min(distribution) >= 0
    return None if whole else "probabilities that do not sum to one"


def training():
    """Returns a model and its batches."""
    set_seed(0)
    model = Classifier(bert(), labels=["bad", "good"], tokenizer=WORDPIECE)
    model.compile(BertAdamW(1e-3))
    examples = [Example("a good film", "good"), Example("a bad film", "bad")] * 4
    return model, model.batches(examples, batch_size=4)


def writing_states(count):
    def write(folder):
        model, batches = training()
        state = TrainingState(folder / "s", batches, total_steps=4, every_steps=1, keep=count)
        model.fit(batches, epochs=2, verbose=0, callbacks=[state])

    return write


@functools.cache
def trained_once():
    return training()


def restore(folder):
    model, batches = trained_once()
    state = TrainingState(folder / "s", batches, total_steps=4)
    return state.restore(model), state.steps, model, any((folder / "s").glob("state-*"))


def is_restored(folder, found):
    restored, steps, model, present = found
    if not restored:
        return "nothing restored, and no error" if present else None
    return f"{steps} steps" if steps not in (3, 4) else finite(model)


STATES = {f"s/state-00000{i}.safetensors": "safetensors" for i in (3, 4)}
NEWEST = {"s/state-000004.safetensors": "safetensors"}

OTHERS = [
    Reader("save_over", write_both, save_over, {"m/config.json": "json", "n/config.json": "json"},
           both_finite, 0.15, leaves=("m/*", "n/*")),
    Reader("average_weights", write_averaged, average, {"a.weights.h5": "hdf5"}, is_mean, 0.25),
    Reader("ngram", write_ngram, read_ngram, {"n.safetensors": "safetensors"}, is_distribution,
           0.8),
    Reader("training_state", writing_states(2), restore, STATES, is_restored, 0.5),
    Reader("training_state_one", writing_states(1), restore, NEWEST, is_restored, 0.5),
]  # fmt: skip

# ---- features

EXAMPLES = [Example(text, "good") for text in ("a good film", "we saw it", "a bad film")]


@functools.cache
def frozen():
    set_seed(0)
    return bert()


def build_features(folder):
    """Returns the features of three texts, from an existing or a new store."""
    store = FeatureStore.build(folder / "f", frozen(), WORDPIECE, EXAMPLES, pool="mean")
    return np.array(store.array), np.array(store.counts), np.array(store.starts)


@functools.cache
def right_features():
    with tempfile.TemporaryDirectory() as folder:
        found = build_features(Path(folder))
        return found, next(path.name for path in (Path(folder) / "f").iterdir() if path.is_dir())


def same_features(folder, found):
    for name, array, right in zip(("features", "counts", "starts"), found, right_features()[0],
                                  strict=True):  # fmt: skip
        if not np.array_equal(array, right):
            return f"{name} that are not the encoder's"
    return None


def feature_files():
    store = f"f/{right_features()[1]}"
    kinds = {"features.npy": "npy", "counts.npy": "npy", "manifest.json": "json"}
    return {f"{store}/{name}": kind for name, kind in kinds.items()}


FEATURES = [
    Reader("feature_store", build_features, build_features, feature_files(), same_features, 0.8,
           leaves=("f/*",)),
]  # fmt: skip

# ---- pre-training

SIZES["bert"]["fuzz"] = SMALL | {"max_sequence_length": 128}
RUN = Pretraining(
    "bert", "fuzz", tokens=256 * 3, vocabulary_size=120, sentences="lines", tokens_per_batch=256,
    max_length=32, buckets=1, lowercase=True,
)  # fmt: skip


def write_pretraining(folder):
    with_text(lambda path: pretrain(RUN, [path], folder / "o", every_seconds=0))


def resume_pretraining(folder):
    return with_text(lambda path: pretrain(RUN, [path], folder / "o", resume=True))[0]


PRETRAINING = {"o/training/settings.json": "json", "o/training/log.jsonl": "jsonl",
               "o/pretraining.json": "json", "o/training/tokenizer.json": "json",
               "o/training/stream/stream.json": "json", "o/config.json": "json"}  # fmt: skip


def write_objective(folder):
    write_pretraining(folder)
    (folder / "o" / "training").rename(folder / "before")


def initialize(folder):
    """Starts another run from the weights of the first run and its objective."""

    def use(path):
        with tempfile.TemporaryDirectory() as out:
            list(about_init(RUN, folder / "o"))
            try:
                return pretrain(RUN, [path], Path(out) / "o", init=folder / "o")[0]
            except FloatingPointError:  # large weights are valid
                return None

    return with_text(use)


RUNS = [
    Reader("pretrain_resume", write_pretraining, resume_pretraining, PRETRAINING, are_finite, 0.15,
           leaves=("o/*",)),
    Reader("pretrain_init", write_objective, initialize,
           {"o/objective.safetensors": "safetensors", "o/config.json": "json"},
           lambda folder, found: None if found is None else are_finite(folder, found), 0.1),
]  # fmt: skip

READERS = [*FOLDERS, *RELEASED, *OTHERS, *FEATURES, *RUNS]
