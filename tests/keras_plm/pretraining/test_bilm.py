"""ELMo's pre-training: packed sentences, the shared softmax, carried states."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_plm.data.corpus import TokenStream
from keras_plm.layers import SampledSoftmax, expected_counts, log_uniform_words
from keras_plm.layers.sampled_softmax import logsumexp_of_products
from keras_plm.models import BERT, ELMo
from keras_plm.pretraining import BiLM, bilm_batches
from keras_plm.pretraining.bilm import pack_sentences
from keras_plm.tokenizers import Characters, Words
from tests.helpers.checks import assert_close, check_layer, to_numpy, under_torch

TINY = {"units": 7, "projection_dim": 5, "filters": [[1, 3], [2, 2]], "character_dim": 2}
SENTENCES = ["a b c", "d", "b a", "e a b c d", "c c", "a"]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(SENTENCES) + "\n")
    lexicon = Words(["[PAD]", "[UNK]", "[EOS]", *"abcde"])
    return TokenStream.build([path], lexicon, tmp_path / "stream", sentences="lines"), lexicon


def read_batch(x):
    """Returns the words (B, 2, T) of a batch as strings, with begin and end as in the original."""
    marks = {257: "<S>", 258: "</S>"}

    def read(row):
        inside = [i for i in row if 0 < i <= 256]
        return marks.get(row[1], "".join(chr(i - 1) for i in inside))

    words = [read(row) for row in x["words"]]
    return [[[words[i] for i in line] for line in row] for row in x["word_rows"]]


def original(sentences, rows, steps):
    """Packs batches step by step like the original; yields (inputs, targets) by row."""
    stream, current = iter(sentences), [[] for _ in range(rows)]
    batches = []
    while True:
        batch = []
        for row in range(rows):
            inputs, targets = [], []
            while len(inputs) < steps:
                if len(current[row]) <= 1:
                    try:
                        current[row] = next(stream)
                    except StopIteration:
                        return batches
                take = min(len(current[row]) - 1, steps - len(inputs))
                inputs += current[row][:take]
                targets += current[row][1 : take + 1]
                current[row] = current[row][take:]
            batch.append((inputs, targets))
        batches.append(batch)


@pytest.mark.backend_neutral
@pytest.mark.parametrize("rows, steps", [(1, 4), (2, 3), (2, 5), (3, 2)])
def test_sentences_are_packed_as_in_the_original(text, rows, steps):
    stream, lexicon = text
    batches = bilm_batches(
        stream, lexicon, 8, num_sampled=0, batch_size=rows, unroll_steps=steps, widest=2
    )
    ends = {"<S>": 2, "</S>": 2}
    for direction in (0, 1):
        framed = [["<S>", *s.split(), "</S>"][:: 1 - 2 * direction] for s in SENTENCES]
        wanted = original(framed, rows, steps)
        assert len(batches) == len(wanted) > 0
        for number, batch in enumerate(wanted):
            x, y, _ = batches[number]
            for row, (inputs, targets) in enumerate(batch):
                assert read_batch(x)[row][direction] == inputs
                ids = [ends.get(w, "[PAD] [UNK] [EOS] a b c d e".split().index(w) if w not in ends
                                else 2) for w in targets]  # fmt: skip
                assert x["target_ids"][row, direction].tolist() == ids
                assert y[row, direction].tolist() == ids


@pytest.mark.backend_neutral
def test_rare_words_are_inputs_but_unknown_as_targets(text):
    stream, lexicon = text
    x, _, _ = bilm_batches(
        stream, lexicon, 6, num_sampled=0, batch_size=1, unroll_steps=17, widest=2
    )[0]
    words = read_batch(x)[0][0]
    assert words.count("d") == 2 and words.count("e") == 1
    assert (x["target_ids"][0, 0] == 1).sum() == 3 and x["target_ids"].max() == 5


@pytest.mark.backend_neutral
def test_epochs_repeat_the_text_with_new_negative_samples(text):
    stream, lexicon = text
    batches = bilm_batches(
        stream, lexicon, 8, num_sampled=3, batch_size=2, unroll_steps=3, seed=1, widest=2
    )
    first = [batches[i][0] for i in range(len(batches))]
    batches.step = len(batches)
    second = [batches[i][0] for i in range(len(batches))]
    for a, b in zip(first, second, strict=True):
        assert (a["word_rows"] == b["word_rows"]).all() and (a["words"] == b["words"]).all()
    assert any(
        (a["sample_ids"] != b["sample_ids"]).any() for a, b in zip(first, second, strict=True)
    )


@pytest.mark.backend_neutral
def test_packing_drops_an_incomplete_last_batch():
    assert pack_sentences([3, 4, 2, 2], batch_size=2, unroll_steps=3) == ([[0, 2, 3], [1]], 1)
    taken, batches = pack_sentences([5, 1, 1], batch_size=1, unroll_steps=2)
    assert batches == 3 and taken == [[0, 1, 2]]


def test_log_uniform_draws_match_expected_counts():
    rng = np.random.default_rng(0)
    seen, expected = np.zeros(50), np.zeros(50)
    for _ in range(2000):
        ids, counts, tries = log_uniform_words(rng, 50, 20)
        assert len(set(ids.tolist())) == 20 and ids.min() >= 0 and ids.max() < 50
        assert_close(counts, expected_counts(ids, 50, tries))
        seen[ids] += 1
        expected += expected_counts(np.arange(50), 50, tries)
    assert np.abs(seen / expected - 1).max() < 0.1


def test_softmax_equals_the_formula_for_any_chunk_size(tmp_path):
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(2, 3, 5)).astype("float32")
    targets = rng.integers(0, 11, (2, 3)).astype("int32")
    layer = SampledSoftmax(11)
    check_layer(layer, {"inputs": hidden, "target_ids": targets}, tmp_path)
    layer = SampledSoftmax(11)
    layer(hidden, target_ids=targets)
    layer.set_weights([rng.normal(size=w.shape) for w in layer.get_weights()])
    kernel, bias = (w.astype("float64") for w in layer.get_weights())
    logits = hidden @ kernel.T + bias
    shares = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    wanted = -np.log(np.take_along_axis(shares, targets[..., None], axis=-1)[..., 0])
    assert_close(layer(hidden, target_ids=targets), wanted)
    flat = hidden.reshape(6, 5)
    whole = np.log(np.exp(logits).sum(axis=-1)).reshape(-1)
    weights = [ops.convert_to_tensor(w) for w in layer.get_weights()]
    for rows in (1, 2, 4, 100):
        found = logsumexp_of_products(ops.convert_to_tensor(flat), *weights, rows=rows)
        assert_close(found, whole)
    assert logsumexp_of_products(ops.convert_to_tensor(flat[:0]), *weights).shape == (0,)


@pytest.mark.parametrize("low", [-1e4, -1e30])
def test_logsumexp_stays_precise_with_very_low_logits(low):
    x = np.array([[1.0, 0.5], [1.0, -0.25]], "float32")
    kernel = np.array([[low, 0.0], [0.5, 1.0], [-1.0, 2.0]], "float32")
    logits = x[:, :1] * kernel[1:, 0] + x[:, 1:] * kernel[1:, 1]
    found = logsumexp_of_products(*map(ops.convert_to_tensor, (x, kernel)))
    assert_close(found, np.log(np.exp(logits).sum(axis=-1)), atol=1e-6)


def sampled_shares(logits, target, ids, counts, target_count):
    """Returns the probabilities of target and samples, 0 elsewhere, and -log p of the target."""
    corrected = {**dict(zip(ids, np.log(counts), strict=True)), target: np.log(target_count)}
    shares = np.zeros(len(logits))
    for word, log_count in corrected.items():
        shares[word] = np.exp(logits[word] - log_count)
    shares /= shares.sum()
    return shares, -np.log(shares[target])


@pytest.mark.full
def test_sampled_softmax_has_the_optimum_of_full_softmax():
    """If word frequencies equal the softmax, the expected gradient is zero for both losses."""
    rng = np.random.default_rng(0)
    count, layer = 12, SampledSoftmax(12)
    layer(np.zeros((1, 3)), target_ids=np.zeros(1, "int32"))
    bias = rng.normal(size=count) * 0.7
    layer.set_weights([np.zeros((count, 3)), bias])
    shares = np.exp(bias) / np.exp(bias).sum()
    targets = np.arange(count, dtype="int32")
    whole, sampled, careless = np.zeros((3, count))
    turns = 3000
    for turn in range(turns):
        ids, counts, tries = log_uniform_words(rng, count, 5)
        of_targets = expected_counts(targets, count, tries)
        losses = np.zeros(count)
        for t in targets:
            found, losses[t] = sampled_shares(bias, t, ids, counts, of_targets[t])
            sampled += shares[t] * (found - np.eye(count)[t]) / turns
            found, _ = sampled_shares(bias, t, ids, np.ones(5), 1.0)
            careless += shares[t] * (found - np.eye(count)[t]) / turns
            whole += shares[t] * (shares - np.eye(count)[t]) / turns
        if turn < 5:
            found = layer(
                np.zeros((count, 3)),
                target_ids=targets,
                sample_ids=ids,
                sample_counts=counts,
                target_counts=of_targets,
                target_sampled=np.isin(targets, ids),
            )
            assert_close(found, losses)
    assert np.abs(whole).max() < 1e-9
    # The gradient is not exactly zero, because expected counts of distinct words are approximate.
    assert np.abs(sampled / shares).max() < 0.15 < 0.5 < np.abs(careless / shares).max()


@pytest.mark.compiles
def test_sampling_all_words_equals_full_softmax():
    """If all other words are sampled, sampled and whole softmax agree up to the correction."""
    rng = np.random.default_rng(0)
    layer = SampledSoftmax(9)
    hidden = rng.normal(size=(4, 3)).astype("float32")
    targets = np.array([0, 3, 5, 8], "int32")
    whole = to_numpy(layer(hidden, target_ids=targets))
    every, ones = np.arange(9, dtype="int32"), np.ones(9, "float32")
    found = layer(
        hidden,
        target_ids=targets,
        sample_ids=every,
        sample_counts=ones,
        target_counts=np.ones(4, "float32"),
        target_sampled=np.ones(4, bool),
    )
    assert_close(found, whole)
    rest = [to_numpy(layer(
        hidden[i : i + 1],
        target_ids=targets[i : i + 1],
        sample_ids=np.delete(every, targets[i]),
        sample_counts=ones[1:],
        target_counts=ones[:1],
        target_sampled=np.zeros(1, bool),
    ))[0] for i in range(4)]  # fmt: skip
    assert_close(np.array(rest), whole)


def make(num_sampled=0, batch_size=2, dropout=0.0, vocabulary_size=8, dtype=None):
    return BiLM(
        ELMo(**TINY, dropout=dropout, dtype=dtype), vocabulary_size, num_sampled, batch_size
    )


@pytest.mark.compiles
def test_losses_equal_a_softmax_over_the_top_layer(text):
    """On whole sentences with zero states, compares with the top layer and a softmax by hand."""
    stream, lexicon = text
    model = make(batch_size=1)
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) * 0.5 for w in model.get_weights()])
    x, _, _ = model.batches(stream, lexicon, unroll_steps=4, training=False)[0]
    losses = to_numpy(model(x))
    assert losses.shape == (1, 2, 4)
    top = to_numpy(model.encoder(Characters().pack([SENTENCES[0].split()]))["sequence"])[0]
    softmax = next(layer for layer in model.layers if layer.name == "words_loss").softmax
    kernel, bias = (to_numpy(w) for w in softmax.weights)
    ids = [2, *lexicon.encode([SENTENCES[0].split()]).token_ids, 2]
    for direction, hidden in enumerate((top[:, :5], top[::-1, 5:])):
        order = ids[:: 1 - 2 * direction]
        for step in range(4):
            logits = hidden[step] @ kernel.T + bias
            wanted = np.log(np.exp(logits).sum()) - logits[order[step + 1]]
            assert abs(losses[0, direction, step] - wanted) < 1e-5


@pytest.mark.split_to("jax")
@pytest.mark.full
def test_losses_are_float32_under_bfloat16(text):
    stream, lexicon = text
    whole, half = make(num_sampled=3), make(num_sampled=3, dtype="mixed_bfloat16")
    half.set_weights(whole.get_weights())
    x, _, _ = whole.batches(stream, lexicon, unroll_steps=4)[0]
    for training in (True, False):
        losses = half(x, training=training)
        assert keras.backend.standardize_dtype(losses.dtype) == "float32"
        for model in (whole, half):
            model.reset_states()
        assert_close(half(x, training=training), whole(x, training=training), atol=0.02)
    half.compile()
    half.fit(half.batches(stream, lexicon, unroll_steps=4), verbose=0)


@pytest.mark.split_to("jax")
@pytest.mark.full
def test_reloaded_bilm_has_equal_perplexity(text, tmp_path):
    stream, lexicon = text
    model = make(num_sampled=3)
    model.compile()
    batches = model.batches(stream, lexicon, unroll_steps=3)
    model.fit(batches, verbose=0)
    states = to_numpy(model._carried()[0].states[0][0])
    assert np.abs(states).max() > 0
    model.save(tmp_path / "bilm.keras")
    again = keras.saving.load_model(tmp_path / "bilm.keras")
    held_out = model.batches(stream, lexicon, unroll_steps=3, training=False)
    mine, theirs = (m.evaluate(held_out, verbose=0, return_dict=True) for m in (model, again))
    assert mine == pytest.approx(theirs, rel=1e-5)
    assert_close(model._carried()[0].states[0][0], states, atol=0)  # `evaluate` restored them
    assert mine["perplexity"] == pytest.approx(
        (mine["forward_perplexity"] * mine["backward_perplexity"]) ** 0.5, rel=1e-4
    )
    assert mine["loss"] == pytest.approx(3 * np.log(mine["perplexity"]), rel=1e-4)


@pytest.mark.split_to("jax")
@pytest.mark.full
@pytest.mark.parametrize("samples, bound", [under_torch(0, 1.1), (12, 1.3)])
def test_memorised_text_has_perplexity_near_1(tmp_path, samples, bound):
    """The perplexity is near 1. The bound is wider with samples, because few steps are noisy."""
    path = tmp_path / "text.txt"
    words = [f"w{i}" for i in range(30)]
    path.write_text("\n".join(" ".join(words[i : i + 5]) for i in range(0, 30, 5)) + "\n")
    lexicon = Words.train(path)
    stream = TokenStream.build([path], lexicon, tmp_path / "stream", sentences="lines")
    encoder = ELMo(units=32, projection_dim=16, filters=[[1, 8], [2, 16]], dropout=0.0)
    model = BiLM(encoder, len(lexicon), samples, batch_size=2)
    batches = model.batches(stream, lexicon, unroll_steps=9)
    falling = keras.optimizers.schedules.CosineDecay(0.02, 80 * len(batches))
    model.compile(keras.optimizers.Adam(falling))
    # Each pass begins at the position of `evaluate`; otherwise the first words are unpredictable.
    anew = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: model.reset_states())
    model.fit(batches, epochs=80, verbose=0, callbacks=[anew])
    held_out = model.batches(stream, lexicon, unroll_steps=9, training=False)
    found = model.evaluate(held_out, verbose=0, return_dict=True)
    assert max(found["forward_perplexity"], found["backward_perplexity"]) < bound, found


@pytest.mark.compiles
def test_batches_may_differ_in_the_length_of_their_words(tmp_path):
    long, path = "x" * 40, tmp_path / "text.txt"
    lexicon = Words(["[PAD]", "[UNK]", "[EOS]", "a", "b", "c", long])
    path.write_text("a b a c\nb b a\n" * 20 + f"{long} a b\n" + "a b a c\nb b a\n" * 20)
    stream = TokenStream.build(path, lexicon, tmp_path / "stream", "lines")
    elmo = ELMo(units=6, projection_dim=4, filters=[[1, 2], [2, 3]], character_dim=2)
    model = BiLM(elmo, len(lexicon), num_sampled=0, batch_size=2)
    model.compile()
    batches = model.batches(stream, lexicon, unroll_steps=8)
    assert len({batch[0]["words"].shape[1] for batch in batches}) == 2
    losses = model.fit(batches, epochs=1, verbose=0).history["loss"]
    assert np.isfinite(losses).all()


@pytest.mark.split_to("jax")
@pytest.mark.compiles
def test_adagrad_changes_every_weight(text):
    stream, lexicon = text
    model = make(num_sampled=3)
    model.compile()
    assert float(model.optimizer.learning_rate) == pytest.approx(0.2)
    before = [w.copy() for w in model.get_weights()]
    model.fit(model.batches(stream, lexicon, unroll_steps=5), epochs=2, verbose=0)
    for weight, old, new in zip(model.weights, before, model.get_weights(), strict=True):
        assert not np.array_equal(old, new), weight.path


@pytest.mark.backend_neutral
def test_unsuitable_encoders_streams_and_sizes_are_refused(text):
    stream, lexicon = text
    with pytest.raises(ValueError, match="without states of its own"):
        BiLM(ELMo(**TINY, carried_rows=2), 8)
    with pytest.raises(ValueError, match="without states of its own"):
        BiLM(BERT(9, 1, 1, 4, 4), 8)
    with pytest.raises(ValueError, match="`num_sampled` must be below `vocabulary_size`"):
        make(num_sampled=8)
    with pytest.raises(ValueError, match="first of the lexicon"):
        bilm_batches(stream, lexicon, 9, num_sampled=0)
    with pytest.raises(ValueError, match="must fill a batch"):
        bilm_batches(stream, lexicon, 8, num_sampled=0, batch_size=30)
    with pytest.raises(ValueError, match="1 or more. Received: batch_size=2, unroll_steps=0"):
        bilm_batches(stream, lexicon, 8, num_sampled=0, batch_size=2, unroll_steps=0)
    other = Words([*lexicon.vocabulary[:-1], "elsewhere"])
    with pytest.raises(ValueError, match="the tokenizer that built it"):
        bilm_batches(stream, other, 8, num_sampled=0, batch_size=2)
