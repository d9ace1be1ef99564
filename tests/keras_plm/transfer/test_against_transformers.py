"""Fine-tuning next to a plain loop over `transformers`: same batches and settings, same losses."""

import keras
import numpy as np
import pytest

import keras_plm
from keras_plm.checkpoints import save_bert
from keras_plm.checkpoints.packages import find_packaged
from keras_plm.data import Example
from keras_plm.datasets.tasks import TASKS
from keras_plm.heads import Classifier
from keras_plm.layers import Pooling
from keras_plm.models import BERT
from keras_plm.tokenizers import WordPiece
from keras_plm.transfer import FineTune

# The peer is torch, and JAX has no float64 without a flag.
pytestmark = [pytest.mark.full, pytest.mark.backend_neutral]
MINILM = "all-MiniLM-L6-v2"


def packaged():
    """Returns the name of MiniLM, or skips the test if its package is not installed."""
    try:
        find_packaged(MINILM)
    except ValueError as error:
        pytest.skip(str(error))
    return MINILM


class Recorder(keras.callbacks.Callback):
    """Records the initial weights of the output layer and the loss of each batch."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_begin(self, logs=None):
        self.initial = [w.copy() for w in self.model.task_network.get_layer("logits").get_weights()]

    def on_train_batch_begin(self, batch, logs=None):
        self.model.reset_metrics()  # the loss is then that of the batch

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])


def ours(method, encoder, tokenizer, train):
    """Fine-tunes; returns the losses, the initial output layer, and the batches in their order."""
    recorder = Recorder()
    model = method.fit(encoder, Classifier, tokenizer, train, callbacks=recorder)
    source = model.batches(train, batch_size=method.batch_size, seed=method.seed)
    batches = [source[i][:2] for i in range(len(source))]
    return np.array(recorder.losses), recorder.initial, batches


def theirs(method, folder, initial, batches, dtype):
    """Trains a `BertForSequenceClassification` on the same batches; returns the losses."""
    import torch
    import transformers

    model = transformers.BertForSequenceClassification.from_pretrained(
        folder, num_labels=initial[1].shape[0], hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, dtype=dtype,
    )  # fmt: skip
    kernel, bias = (torch.as_tensor(weight, dtype=dtype) for weight in initial)
    with torch.no_grad():
        model.classifier.weight.copy_(kernel.T)
        model.classifier.bias.copy_(bias)
    plain = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    decayed = [p for p in model.parameters() if not any(p is other for other in plain)]
    groups = [{"params": decayed, "weight_decay": method.weight_decay},
              {"params": plain, "weight_decay": 0.0}]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, eps=1e-6)
    total = len(batches)
    warmup = int(method.warmup * total)
    losses = []
    model.train()
    for step, (x, y) in enumerate(batches):
        # Learning rates and the divisor of gradients are float32 numbers, as in `BertAdamW`.
        done = np.float32(step)
        factor = done / np.float32(warmup) if step < warmup else 1 - done / np.float32(total)
        for group in optimizer.param_groups:
            group["lr"] = float(np.float32(method.learning_rate) * factor)
        fed = {
            "input_ids": x["token_ids"],
            "attention_mask": x["padding_mask"],
            "token_type_ids": x["segment_ids"],
        }
        fed = {name: torch.as_tensor(np.asarray(value)).long() for name, value in fed.items()}
        logits = model(**fed).logits
        loss = torch.nn.functional.cross_entropy(logits, torch.as_tensor(np.asarray(y)).long())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        for parameter in model.parameters():
            parameter.grad /= norm.clamp(min=1.0).float()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def test_losses_of_minilm_over_20_steps(data):
    pytest.importorskip("transformers")
    folder = find_packaged(packaged())
    root = data("sst/trees/train.txt").parents[2]
    train = TASKS["sst5"].read(root, "train")[:160]
    encoder, tokenizer = keras_plm.load(MINILM)
    method = FineTune(
        learning_rate=1e-4, epochs=1, batch_size=8, dropout=0.0, pool="pooled", bias_correction=True
    )
    losses, initial, batches = ours(method, encoder, tokenizer, train)
    import torch

    expected = theirs(method, folder, initial, batches, torch.float32)
    assert len(losses) == 20 and losses[-5:].mean() < losses[:5].mean()
    np.testing.assert_allclose(losses, expected, atol=3e-5)


@pytest.fixture
def float64():
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


def test_losses_of_two_layers_over_200_steps_in_float64(tmp_path, float64):
    pytest.importorskip("transformers")
    import torch

    rng = np.random.default_rng(0)
    letters = list("abcdefgh")
    tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters])
    texts = [" ".join(rng.choice(letters, rng.integers(3, 9))) for _ in range(800)]
    train = [Example(text, "yes" if text.count("a") > text.count("b") else "no") for text in texts]
    encoder = BERT(13, num_layers=2, num_heads=2, hidden_dim=12, intermediate_dim=20)
    encoder.set_weights([w.astype("float32") for w in encoder.get_weights()])  # as in the file
    save_bert(tmp_path / "bert", encoder, tokenizer)
    method = FineTune(
        learning_rate=2e-3, epochs=1, batch_size=4, dropout=0.0, pool="pooled", bias_correction=True
    )
    losses, initial, batches = ours(method, encoder, tokenizer, train)
    expected = theirs(method, tmp_path / "bert", initial, batches, torch.float64)
    assert len(losses) == 200 and losses[-50:].mean() < 0.9 * losses[:50].mean()
    np.testing.assert_allclose(losses, expected, atol=1e-6)


def test_similarities_of_minilm_on_stsb(data):
    transformers = pytest.importorskip("transformers")
    import torch
    from scipy.stats import spearmanr

    root = data("glue/STS-B/dev.tsv").parents[2]
    pairs = TASKS["stsb"].read(root, "test")[::3]  # of the official dev set
    texts = [text for pair in pairs for text in (pair.text, pair.pair)]
    encoder, tokenizer = keras_plm.load(packaged())
    order = np.argsort([len(text) for text in texts])
    model = transformers.AutoModel.from_pretrained(find_packaged(MINILM)).eval()
    found, expected = np.zeros((len(texts), 384)), np.zeros((len(texts), 384))
    for rows in np.array_split(order, 16):
        x = tokenizer.pack([texts[row] for row in rows])
        mask = np.asarray(x["padding_mask"])
        found[rows] = keras.ops.convert_to_numpy(Pooling("mean")(encoder(x)["sequence"], mask))
        fed = {"input_ids": x["token_ids"], "attention_mask": mask}
        with torch.no_grad():
            states = model(**{n: torch.as_tensor(np.asarray(v)).long() for n, v in fed.items()})
        weights = mask[..., None] / mask.sum(axis=1)[:, None, None]
        expected[rows] = (states.last_hidden_state.numpy() * weights).sum(axis=1)
    scores = []
    for vectors in (found, expected):
        left, right = vectors[::2], vectors[1::2]
        norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        cosines = (left * right).sum(axis=1) / norms
        scores.append(spearmanr(cosines, [pair.label for pair in pairs]).statistic)
    assert scores[0] == pytest.approx(scores[1], abs=5e-5)
    assert scores[0] > 0.8  # sentence-transformers publishes 0.820 for the test set
