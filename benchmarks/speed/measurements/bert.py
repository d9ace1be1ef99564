"""BERT next to its peers: training, inference, fine-tuning, encoding, pre-training, tokenizing.

The peers are `transformers` with its defaults (float32, sdpa, dynamic padding), tuned
`transformers` (bfloat16, fused AdamW, sentences sorted by length), and KerasHub with its default
length of 512 and with 128. All implementations read the same batches or the same sentences.
"""

import contextlib
import functools
import importlib.util
from pathlib import Path

import keras
import numpy as np

from benchmarks.speed.clock import Comparison, matrix_rates
from benchmarks.speed.registry import Suite, measurement
from keras_plm.data.batching import Batches
from keras_plm.data.task import Example
from keras_plm.experiments.flags import policy
from keras_plm.heads import Classifier
from keras_plm.models import BERT, BERT_SIZES
from keras_plm.pretraining import MaskedLM
from keras_plm.tokenizers import WordPiece
from keras_plm.training.fit import run_on
from keras_plm.training.optimizers import BertAdamW

VOCABULARY, LABELS = 30_522, ["0", "1"]
OURS, OURS_HALF = "keras_plm", "keras_plm, bfloat16"
PLAIN, TUNED = "transformers", "transformers, tuned"
HUB, HUB_128 = "KerasHub", "KerasHub at 128"


def check_peers():
    """Raises ImportError, with the fix, if the peers are not installed."""
    absent = [name for name in ("torch", "transformers") if not importlib.util.find_spec(name)]
    if absent:
        raise ImportError(
            "The peers of BERT need torch and transformers: install them as `make test` does. "
            f"Received: no {absent[0]}"
        )


SUITE = Suite("bert", "Speed: BERT next to its peers", results="speed")
# All measurements of BERT share a result file with one digest of the sentences.
bert_measurement = functools.partial(
    measurement, suite=SUITE, uses_sentences=True, check=check_peers, matrix_rates=matrix_rates
)


def cases_of(name, settings):
    return {f"{name} {size}": {"size": size} for size in settings.sizes.split(",")}


@bert_measurement(unit="tokens", cases=functools.partial(cases_of, "train"))
def train(settings, inputs, size):
    """Training steps at one fixed shape."""
    return fixed_shape(settings, size, train=True)


@bert_measurement(unit="tokens", cases=functools.partial(cases_of, "infer"))
def infer(settings, inputs, size):
    """Forward passes at one fixed shape."""
    return fixed_shape(settings, size, train=False)


@bert_measurement(unit="sentences", cases=functools.partial(cases_of, "finetune"))
def finetune(settings, inputs, size):
    """Fine-tuning on sentences at their own lengths, including tokenization."""
    return own_lengths(settings, size, inputs.sentences, train=True)


@bert_measurement(unit="sentences", cases=functools.partial(cases_of, "encode"))
def encode(settings, inputs, size):
    """Encoding of sentences at their own lengths, including tokenization."""
    return own_lengths(settings, size, inputs.sentences, train=False)


def rows_of(size):
    """Returns the rows per step at fixed shapes: 32 for mini, 8 for base."""
    return 32 if BERT_SIZES[size]["hidden_dim"] <= 512 else 8


# ---- implementations: each returns a function that does the work once ----


def ours(size, precision):
    return BERT(VOCABULARY, **BERT_SIZES[size], dtype=policy(precision))


def fit_steps(model, x, y, steps):
    """Returns a function that runs steps of `fit`, all on one batch."""
    rows, length = x["token_ids"].shape
    weights = keras.tree.map_structure(lambda leaf: np.ones(leaf.shape), y)

    def collate(indices, length, rng, epoch):
        return x, y, weights

    source = Batches(np.full(rows * steps, length), collate, batch_size=rows, buckets=[length])
    return lambda: model.fit(source, epochs=1, verbose=0)


def our_classifier(size, precision, tokenizer=None):
    model = Classifier(ours(size, precision), LABELS, tokenizer=tokenizer)
    model.compile(BertAdamW(1e-4), weighted_metrics=[])
    return model


def peer_classifier(size):
    import transformers

    return transformers.BertForSequenceClassification(peer_config(size))


def peer_config(size):
    import transformers

    s = BERT_SIZES[size]
    return transformers.BertConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=s["num_layers"],
        num_attention_heads=s["num_heads"],
        hidden_size=s["hidden_dim"],
        intermediate_size=s["intermediate_dim"],
    )


def peer_step(model, tuned, train=True):
    """Returns a function that does a training step or a forward pass on a torch batch."""
    import torch

    def precision():
        return torch.autocast("cpu", torch.bfloat16) if tuned else contextlib.nullcontext()

    if not train:
        model.eval()

        def forward(batch):
            with torch.inference_mode(), precision():
                model(**batch)

        return forward
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=tuned or None)

    def step(batch):
        with precision():
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def hub_classifier(size):
    import keras_hub

    s = BERT_SIZES[size]
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=VOCABULARY,
        num_layers=s["num_layers"],
        num_heads=s["num_heads"],
        hidden_dim=s["hidden_dim"],
        intermediate_dim=s["intermediate_dim"],
    )
    model = keras_hub.models.BertTextClassifier(backbone, num_classes=2)
    model.compile(
        keras.optimizers.AdamW(1e-4, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[],
    )
    return model


def pairs(ours, peer):
    """Returns four implementations: the peer plain and tuned, and ours in both precisions."""
    return {
        PLAIN: lambda: peer(False),
        TUNED: lambda: peer(True),
        OURS: lambda: ours("float32"),
        OURS_HALF: lambda: ours("bfloat16"),
    }


# ---- comparisons ----


def _comparison(implementations, amount, **more):
    peers = dict.fromkeys(implementations, (PLAIN, TUNED))
    half = frozenset({OURS_HALF, TUNED})
    return Comparison(implementations, amount, peers, half_precision=half, **more)


def fixed_shape(settings, size, train):
    """Returns the `Comparison` of training steps or forward passes at one fixed shape."""
    import torch

    rows, length = rows_of(size), settings.length
    steps = settings.steps if rows == 32 else max(settings.steps // 4, 1)
    rng = np.random.default_rng(settings.seed)
    ids = rng.integers(1000, VOCABULARY, (rows, length)).astype("int32")
    x = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": ids > 0}
    y = rng.integers(0, 2, rows).astype("int32")
    batch = {"input_ids": torch.tensor(ids).long(), "attention_mask": torch.tensor(ids > 0).long()}
    if train:
        batch["labels"] = torch.tensor(y).long()

    def ours_in(precision):
        model = our_classifier(size, precision)
        if train:
            return fit_steps(model, x, y, steps)
        return lambda: [model.predict_on_batch(x) for _ in range(steps)]

    def peer(tuned):
        step = peer_step(peer_classifier(size), tuned, train)
        return lambda: [step(batch) for _ in range(steps)]

    def hub():
        model = hub_classifier(size)
        if train:
            many = {k: np.concatenate([v] * steps) for k, v in x.items()}
            targets = np.concatenate([y] * steps)
            return lambda: model.fit(many, targets, batch_size=rows, shuffle=False, verbose=0)
        return lambda: [model.predict_on_batch(x) for _ in range(steps)]

    implementations = pairs(ours_in, peer)
    if settings.hub:
        implementations[HUB_128] = hub
    kind = "train" if train else "infer"
    flops = matrix_work(size, length, kind)
    return _comparison(implementations, rows * length * steps, flops=flops)


def own_lengths(settings, size, sentences, train):
    """Returns the `Comparison` of fine-tuning or encoding sentences at their own lengths.

    Tokenization is part of the work. Every training step has 32 sentences in all implementations.
    """
    import torch

    part = 1 if rows_of(size) == 32 else 16 if train else 4
    count = max(settings.sentences // part, 32)
    texts = sentences[:count]
    count = len(texts)
    rng = np.random.default_rng(settings.seed)
    targets = rng.integers(0, 2, count)
    vocabulary = toy_vocabulary(sentences)
    tokenizer = WordPiece(vocabulary)
    their_tokenizer = peer_tokenizer(vocabulary)

    def ours_in(precision):
        model = our_classifier(size, precision, tokenizer)
        examples = [Example(t, LABELS[y]) for t, y in zip(texts, targets, strict=True)]
        if train:
            return lambda: model.fit(model.batches(examples, batch_size=32), verbose=0)
        encoder = model.encoder
        sequence = keras.Model(encoder.input, encoder.output["sequence"])

        def run():
            source = model.batches(texts, training=False, tokens_per_batch=4096)
            for _ in run_on(sequence, source):
                pass

        return run

    def peer(tuned):
        model = peer_classifier(size)
        step = peer_step(model if train else model.bert, tuned, train)

        def run():
            order = np.arange(count)
            if tuned:
                order = np.argsort([len(t) for t in texts], kind="stable")
            for first in range(0, count, 32):
                part = order[first : first + 32]
                batch = dict(
                    their_tokenizer([texts[i] for i in part], padding=True, return_tensors="pt")
                )
                if train:
                    batch["labels"] = torch.tensor(targets[part]).long()
                step(batch)

        return run

    # KerasHub is too slow for all sentences.
    hub_counts = {512: max(count // 16, 8), 128: max(count // 4, 8)}

    def hub(length):
        model, few = hub_classifier(size), hub_counts[length]

        def run():
            packed = tokenizer.pack(texts[:few], max_length=length)
            wide = {k: np.zeros((few, length), v.dtype) for k, v in packed.items()}
            for name, array in packed.items():
                wide[name][:, : array.shape[1]] = array
            if train:
                model.fit(wide, targets[:few], batch_size=32, verbose=0)
            else:
                model.backbone.predict(wide, batch_size=32, verbose=0)

        return run

    implementations = pairs(ours_in, peer)
    if settings.hub:
        implementations |= {HUB: lambda: hub(512), HUB_128: lambda: hub(128)}
    fractions = {HUB: hub_counts[512] / count, HUB_128: hub_counts[128] / count}
    return _comparison(implementations, count, fractions=fractions)


def masked_rows(rows, length, rng):
    """Draws rows with 15 % masked tokens; returns our inputs, the words, and the peer's labels."""
    ids = rng.integers(1000, VOCABULARY, (rows, length)).astype("int32")
    count = round(0.15 * length)
    positions = np.sort(np.argsort(rng.random((rows, length)), axis=1)[:, :count], axis=1)
    words = np.take_along_axis(ids, positions, axis=1)
    labels = np.full_like(ids, -100)
    np.put_along_axis(labels, positions, words, axis=1)
    x = {
        "token_ids": ids,
        "segment_ids": 0 * ids,
        "padding_mask": ids > 0,
        "masked_positions": positions.astype("int32"),
    }
    return x, words, labels


@bert_measurement(unit="tokens", cases=functools.partial(cases_of, "pretrain"))
def pretrain(settings, inputs, size):
    """Masked-LM training steps at one fixed shape."""
    import torch
    import transformers

    rows, length = rows_of(size), settings.length
    steps = max(settings.steps // (2 if rows == 32 else 4), 1)
    rng = np.random.default_rng(settings.seed)
    x, words, hidden = masked_rows(rows, length, rng)
    ids = x["token_ids"]
    y = {"masked_lm": words, "next_sentence": rng.integers(0, 2, rows).astype("int32")}
    batch = {
        "input_ids": torch.tensor(ids).long(),
        "attention_mask": torch.ones(rows, length).long(),
        "labels": torch.tensor(hidden).long(),
        "next_sentence_label": torch.tensor(y["next_sentence"]).long(),
    }

    def ours_in(precision):
        model = MaskedLM(ours(size, precision))
        model.compile(BertAdamW(1e-4), weighted_metrics=[])
        return fit_steps(model, x, y, steps)

    def peer(tuned):
        step = peer_step(transformers.BertForPreTraining(peer_config(size)), tuned)
        return lambda: [step(batch) for _ in range(steps)]

    implementations = pairs(ours_in, peer)
    flops = matrix_work(size, length, "pretrain")
    return _comparison(implementations, rows * length * steps, flops=flops)


@bert_measurement(unit="sentences")
def tokenize(settings, inputs):
    """Tokenization of sentences into padded arrays."""
    sentences = inputs.sentences
    texts = sentences[: settings.sentences * 4]
    few = texts[: len(texts) // 8]  # for KerasHub
    vocabulary = toy_vocabulary(sentences)
    tokenizer = WordPiece(vocabulary)
    their_tokenizer = peer_tokenizer(vocabulary)

    def hub():
        import keras_hub

        hub_tokenizer = keras_hub.models.BertTokenizer(vocabulary=vocabulary, lowercase=True)
        packer = keras_hub.models.BertTextClassifierPreprocessor(hub_tokenizer, sequence_length=128)
        return lambda: packer(few)

    implementations = {
        PLAIN: lambda: lambda: their_tokenizer(texts, padding=True, return_tensors="np"),
        OURS: lambda: lambda: tokenizer.pack(texts),
    }
    if settings.hub:
        implementations[HUB_128] = hub
    fractions = {HUB_128: len(few) / len(texts)}
    return _comparison(implementations, len(texts), fractions=fractions)


def toy_vocabulary(sentences, size=VOCABULARY):
    """Returns a vocabulary of the released size: trained on the sentences, then filled up."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sentences.txt"
        path.write_text("\n".join(sentences), encoding="utf-8")
        learned = WordPiece.train(path, size).vocabulary
    return learned + [f"[unused{i}]" for i in range(size - len(learned))]


def peer_tokenizer(vocabulary, lowercase=True):
    import tempfile

    import transformers

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.txt"
        path.write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
        return transformers.BertTokenizerFast(str(path), do_lower_case=lowercase)


def matrix_work(size, length, kind):
    """Returns the FLOP of the matrix products per token: twice the weights, and attention."""
    s = BERT_SIZES[size]
    width, inner, layers = s["hidden_dim"], s["intermediate_dim"], s["num_layers"]
    forward = layers * (2 * (4 * width * width + 2 * width * inner) + 4 * length * width)
    if kind == "pretrain":
        forward += 0.15 * 2 * (width * width + width * VOCABULARY)
    return forward if kind == "infer" else 3 * forward
