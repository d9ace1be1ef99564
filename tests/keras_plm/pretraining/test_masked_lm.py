"""Masked language modelling: masks, sentence pairs, the loss."""

import itertools
import types

import keras
import numpy as np
import pytest

from keras_plm.data.corpus import TokenStream
from keras_plm.heads import Classifier
from keras_plm.layers import TokenEmbedding
from keras_plm.models import BERT, TransformerEncoder
from keras_plm.pretraining import CausalLM, MaskedLM, MaskedTokenScores, masked_lm_batches
from keras_plm.pretraining.masked_inputs import choose_positions
from keras_plm.tokenizers import BytePair, Characters, WordPiece, Words
from keras_plm.training.optimizers import BertAdamW
from tests.helpers.checks import assert_close, to_numpy
from tests.keras_plm.tokenizers.released_texts import TEXTS

LETTERS = "abcdefghij"
PIECES = [*LETTERS, *("##" + letter for letter in LETTERS)]
TOKENIZER = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES])
SIZE = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}


@pytest.fixture
def stream(tmp_path):
    """Returns documents with ascending numbers as sentences, so that their order is visible."""
    rng = np.random.default_rng(0)
    documents = []
    for _ in range(150):
        sentences = []
        for _ in range(rng.integers(3, 12)):
            words = ["".join(rng.choice(list(LETTERS), rng.integers(1, 4))) for _ in range(5)]
            sentences.append(" ".join(words))
        documents.append("\n".join(sentences))
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    return TokenStream.build([tmp_path / "text.txt"], TOKENIZER, tmp_path / "s", "lines")


def every(source):
    for i in range(len(source)):
        yield source[i]


@pytest.mark.backend_neutral
def test_fractions_of_masked_random_and_unchanged_tokens(stream):
    source = masked_lm_batches(stream, TOKENIZER, max_length=64, batch_size=16)
    hidden = shown = random = kept = tokens = 0
    for x, y, weights in every(source):
        real = weights["masked_lm"] > 0
        rows = np.nonzero(real)[0]
        inputs = x["token_ids"][rows, x["masked_positions"][real]]
        targets = y["masked_lm"][real]
        assert not np.isin(targets, [0, 2, 3, 4]).any()  # never [CLS], [SEP] or padding
        hidden += len(targets)
        shown += (inputs == TOKENIZER.mask_id).sum()
        kept += (inputs == targets).sum()
        random += ((inputs != targets) & (inputs != TOKENIZER.mask_id)).sum()
        tokens += x["padding_mask"].sum()
    assert hidden > 2000
    assert abs(hidden / tokens - 0.15) < 0.01
    # A random token equals the right one once in 25.
    assert abs(shown / hidden - 0.8) < 0.03
    assert abs(random / hidden - 0.1) < 0.03 and abs(kept / hidden - 0.1) < 0.03


@pytest.mark.backend_neutral
def test_number_of_masks_follows_the_original(stream):
    """The number is min(most, max(1, round(15 % of the row's tokens, including special ones)))."""
    source = masked_lm_batches(stream, TOKENIZER, max_length=40, batch_size=4)
    for x, _, weights in every(source):
        used = x["padding_mask"].sum(axis=1)
        most = max(1, round(x["token_ids"].shape[1] * 0.15))
        assert weights["masked_lm"].any()
        for tokens, of_row in zip(used, weights["masked_lm"], strict=True):
            if of_row.any():
                assert (of_row > 0).sum() == min(most, max(1, round(tokens * 0.15)))


@pytest.mark.backend_neutral
def test_the_unmasked_row_is_text_of_the_stream(stream):
    source = masked_lm_batches(
        stream, TOKENIZER, max_length=32, mask_token_rate=0.0, random_token_rate=0.0, batch_size=8
    )
    text = " ".join(map(str, stream.tokens))
    follows = {0: 0, 1: 0}
    for i, (x, y, _) in enumerate(every(source)):
        for row, ids in enumerate(x["token_ids"]):
            if source.rows(i)[row] < 0:
                continue
            ids = ids[x["padding_mask"][row]].tolist()
            middle = ids.index(3)
            assert ids[0] == 2 and ids[-1] == 3 and ids.count(3) == 2
            segments = x["segment_ids"][row][: len(ids)].tolist()
            assert segments == [0] * (middle + 1) + [1] * (len(ids) - middle - 1)
            first, second = ids[1:middle], ids[middle + 1 : -1]
            assert " ".join(map(str, first)) in text and " ".join(map(str, second)) in text
            if y["next_sentence"][row] == 0 and len(ids) < 32:  # untruncated
                assert " ".join(map(str, first + second)) in text
            follows[int(y["next_sentence"][row])] += 1
    assert 0.35 < follows[1] / sum(follows.values()) < 0.65


@pytest.mark.backend_neutral
def test_whole_word_masking_masks_all_pieces_of_a_word(stream):
    source = masked_lm_batches(
        stream,
        TOKENIZER,
        max_length=48,
        next_sentence=False,
        mask_token_rate=1.0,
        random_token_rate=0.0,
        whole_word=True,
        batch_size=8,
    )
    for x, y, weights in every(source):
        for row in range(len(x["token_ids"])):
            if not weights["masked_lm"][row].any():
                continue
            ids = x["token_ids"][row].copy()
            count = int((weights["masked_lm"][row] > 0).sum())
            positions = x["masked_positions"][row][:count]
            ids[positions] = y["masked_lm"][row][:count]
            hidden = np.isin(np.arange(len(ids)), positions)
            inner = np.array([TOKENIZER.vocabulary[i].startswith("##") for i in ids])
            # A truncated row may begin inside a word. Other pieces belong to the one before.
            for t in range(2, len(ids)):
                if inner[t] and hidden[t] != hidden[t - 1]:
                    assert count == round(len(ids) * 0.15)  # unless a word is longer


def words_of(tokenizer, text):
    """Returns whether each token begins a word, by ids and by the tokenizer's word ids."""
    row = tokenizer.encode([text], return_offsets=True)
    real = row.word_ids >= 0
    words = row.word_ids[real]
    return tokenizer.starts_word[row.token_ids[real]].tolist(), (
        np.diff(words, prepend=-1) != 0
    ).tolist()


@pytest.mark.backend_neutral
def test_starts_word_agrees_with_word_ids(tmp_path):
    added = ["##x", {"content": "ab cd", "normalized": False}]
    tokenizer = WordPiece([*TOKENIZER.vocabulary, "##1", "low"], added_tokens=added)
    for text in ["low lowa low1 lowqq, ##x a##x ab cd.", *TEXTS]:
        by_ids, by_words = words_of(tokenizer, text)
        assert by_ids == by_words, text


@pytest.mark.backend_neutral
def test_starts_word_of_kerashub_agrees_with_word_ids(tmp_path):
    pytest.importorskip("keras_hub")
    from keras_plm.checkpoints.keras_hub_tokenizer import HubTokenizer
    from tests.keras_plm.checkpoints.hub_models import hub_tokenizer, sentence_piece

    unigrams = [sentence_piece(kind, tmp_path) for kind in ("Albert", "DebertaV3")]
    for theirs in (hub_tokenizer("Bert"), *unigrams):
        tokenizer = HubTokenizer.of(theirs)
        for text in ("low lower mest  lost x", "lo猫w 猫 a", "nawer lowest"):
            by_ids, by_words = words_of(tokenizer, text)
            assert by_ids == by_words, (tokenizer.tokenize(text), text)
    assert HubTokenizer.of(hub_tokenizer("Roberta")).starts_word is None


@pytest.mark.backend_neutral
def test_tokenizers_without_special_tokens_are_refused(stream):
    pieces = BytePair(["<unk>", "a</w>"], [], scheme="gpt")
    for tokenizer in (pieces, Characters(), Words(["[PAD]", "[UNK]", "[EOS]", "a"])):
        with pytest.raises(ValueError, match="Rows of masked text need .*without cls_id"):
            masked_lm_batches(stream, tokenizer)

    class OfBytes:
        cls_id, sep_id, pad_id, starts_word = 2, 3, 0, None

    with pytest.raises(ValueError, match="OfBytes without mask_id"):
        masked_lm_batches(stream, OfBytes())
    OfBytes.mask_id = 4
    with pytest.raises(ValueError, match="`whole_word` needs .*byte-level.*Received: OfBytes"):
        masked_lm_batches(stream, OfBytes(), whole_word=True)


@pytest.mark.backend_neutral
def test_other_special_tokens_change_only_their_ids(stream):
    """Rows are the same except for the ids of the special tokens."""
    names = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    pieces = TOKENIZER.vocabulary[5:]
    other = WordPiece([*pieces, *names], TOKENIZER.lowercase, special_tokens=names)
    moved = types.SimpleNamespace(
        tokens=np.asarray(stream.tokens) - 5, sentences=stream.sentences, documents=stream.documents
    )
    assert np.asarray(stream.tokens).min() >= 5
    options = {"max_length": 32, "random_token_rate": 0.0, "whole_word": True, "batch_size": 8}
    ours, theirs = (
        masked_lm_batches(moved, other, **options),
        masked_lm_batches(stream, TOKENIZER, **options),
    )
    ids = np.array([*range(len(pieces), len(pieces) + 5), *range(len(pieces))])
    for (x, y, _), (x2, y2, w2) in zip(every(ours), every(theirs), strict=True):
        np.testing.assert_array_equal(x["token_ids"], ids[x2["token_ids"]])
        np.testing.assert_array_equal(x["masked_positions"], x2["masked_positions"])
        real = w2["masked_lm"] > 0
        np.testing.assert_array_equal(y["masked_lm"][real], ids[y2["masked_lm"]][real])


@pytest.mark.backend_neutral
def test_masks_differ_by_epoch_and_repeat_for_equal_seeds(stream):
    first, second = (masked_lm_batches(stream, TOKENIZER, 32, batch_size=8) for _ in range(2))
    for a, b in zip(keras.tree.flatten(first[0]), keras.tree.flatten(second[0]), strict=True):
        np.testing.assert_array_equal(a, b)
    first.step = len(first)
    assert not np.array_equal(first[0][0]["token_ids"], second[0][0]["token_ids"])


def test_head_scores_of_masked_positions_equal_the_formula():
    from scipy.special import erf

    encoder = BERT(25, **SIZE, max_sequence_length=8)
    model = MaskedLM(encoder)
    head = model.get_layer("masked_lm")
    head.bias.assign(np.random.default_rng(0).normal(size=25))
    ids = np.random.default_rng(1).integers(5, 25, (2, 6)).astype("int32")
    inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": ids > 0}
    positions = np.array([[1, 4], [2, 0]], "int32")
    outputs = model({**inputs, "masked_positions": positions})
    hidden = to_numpy(encoder(inputs)["sequence"])
    masked = np.stack([hidden[b, positions[b]] for b in range(2)])
    kernel, bias = (to_numpy(w) for w in head.dense.weights)
    masked = masked @ kernel + bias
    masked = 0.5 * masked * (1 + erf(masked / np.sqrt(2)))
    masked = (masked - masked.mean(-1, keepdims=True)) / np.sqrt(
        masked.var(-1, keepdims=True) + 1e-12
    )
    table = to_numpy(encoder.token_embedding.embeddings)
    assert_close(outputs["masked_lm"], masked @ table.T + to_numpy(head.bias))
    assert tuple(outputs["next_sentence"].shape) == (2, 2)


@pytest.mark.compiles
def test_a_functional_model_with_the_head_reloads_with_a_tied_table(tmp_path):
    ids = keras.Input((None,), dtype="int32")
    table = TokenEmbedding(9, 4)
    head = MaskedTokenScores(table, activation="gelu_tanh")
    model = keras.Model(ids, head(table(ids), positions=ids))
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    x = np.array([[1, 2, 0]])
    assert_close(again(x), model(x))
    assert len(again.weights) == len(model.weights)
    assert again.get_layer(head.name).get_config()["activation"] == "gelu_tanh"


def test_loss_is_the_sum_of_the_two_means(stream):
    source = masked_lm_batches(stream, TOKENIZER, 32, batch_size=64, training=False)
    model = MaskedLM(BERT(25, **SIZE, dropout=0.0))
    model.compile("sgd")
    totals = {"masked_lm": [], "next_sentence": []}
    for x, y, weights in every(source):
        for name, logits in model.predict_on_batch(x).items():
            logits = logits - logits.max(-1, keepdims=True)
            scores = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            nll = -np.take_along_axis(scores, y[name][..., None], -1)[..., 0]
            totals[name] += nll[weights[name] > 0].tolist()
    reported = model.evaluate(source, verbose=0, return_dict=True)
    assert_close(reported["next_sentence_loss"], np.mean(totals["next_sentence"]), atol=1e-4)
    assert_close(reported["masked_lm_loss"], np.mean(totals["masked_lm"]), atol=1e-4)
    losses = reported["masked_lm_loss"] + reported["next_sentence_loss"]
    assert_close(reported["loss"], losses, atol=1e-4)


@pytest.mark.compiles
def test_learns_and_reloads(stream, tmp_path):
    source = masked_lm_batches(stream, TOKENIZER, 32, batch_size=16, buckets=2)
    model = MaskedLM(BERT(25, **SIZE, dropout=0.1))
    model.compile(BertAdamW(3e-3))
    history = model.fit(source, epochs=10, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] - 0.1
    assert {"masked_lm_accuracy", "next_sentence_accuracy"} <= set(history)
    model.save(tmp_path / "lm.keras")
    again = keras.saving.load_model(tmp_path / "lm.keras")
    x = source[0][0]
    assert_close(again.predict_on_batch(x), model.predict_on_batch(x))
    again.fit(source, verbose=0)


def test_without_next_sentence(stream):
    source = masked_lm_batches(stream, TOKENIZER, 32, batch_size=16, next_sentence=False)
    x, y, _ = source[0]
    assert set(y) == {"masked_lm"} and not x["segment_ids"].any()
    model = MaskedLM(BERT(25, **SIZE), next_sentence=False)
    assert set(model.output) == {"masked_lm"}


@pytest.mark.backend_neutral
@pytest.mark.parametrize("seed", range(5))
def test_words_longer_than_the_room_are_not_cut(seed):
    """Two positions of sixteen are masked: of words of 4, 5 and 2 tokens only the last fits."""
    candidates, starts = np.zeros((2, 1, 16), bool)
    candidates[0, 1:12] = True
    starts[0, [0, 1, 5, 10, 12]] = True
    rng = np.random.default_rng(seed)
    chosen = choose_positions(candidates, np.array([13]), rng, word_starts=starts)
    assert chosen[0].nonzero()[0].tolist() == [10, 11]
    candidates[0, 10:12] = False  # now one of them must be cut
    chosen = choose_positions(candidates, np.array([11]), rng, word_starts=starts)
    assert chosen[0].nonzero()[0].tolist() in ([1, 2], [5, 6])


@pytest.mark.backend_neutral
def test_bad_input_is_explained(stream, tmp_path):
    with pytest.raises(ValueError, match="Rates must lie between 0 and 1"):
        masked_lm_batches(stream, TOKENIZER, mask_token_rate=0.9, random_token_rate=0.2)
    names = ("mask_selection_rate", "mask_token_rate", "random_token_rate", "short_sequence_rate")
    for name, rate in itertools.product(names, (-0.1, 1.5, float("nan"))):
        with pytest.raises(ValueError, match=f"Rates must lie between 0 and 1.*{name}': {rate}"):
            masked_lm_batches(stream, TOKENIZER, **{name: rate})
    with pytest.raises(ValueError, match="at least 8 tokens"):
        masked_lm_batches(stream, TOKENIZER, max_length=4)
    (tmp_path / "one.txt").write_text("a b\nc d\n")
    one = TokenStream.build([tmp_path / "one.txt"], TOKENIZER, tmp_path / "one", "lines")
    with pytest.raises(ValueError, match="separate documents by blank lines"):
        masked_lm_batches(one, TOKENIZER)
    inputs = keras.Input((None,), name="token_ids")
    with pytest.raises(ValueError, match="`token_embedding` that scores tokens"):
        MaskedLM(keras.Model({"token_ids": inputs}, {"sequence": inputs}))


@pytest.mark.backend_neutral
def test_long_stream_is_read_in_one_part_per_epoch(stream):
    """A part is an epoch. A pass reads all sentences of all parts, in a new order."""
    options = {
        "max_length": 32,
        "batch_size": 8,
        "next_sentence": False,
        "short_sequence_rate": 0.0,
    }
    source = masked_lm_batches(stream, TOKENIZER, part_tokens=900, **options)
    total = len(stream.tokens)
    rows = source.collate.__self__
    parts = rows.parts
    assert len(parts) == round(total / 900) and parts[0][0] == 0 and parts[-1][1] == 150
    assert all(one[1] == other[0] for one, other in itertools.pairwise(parts))
    sizes = [int(np.diff(stream.sentences[stream.documents[list(part)]])[0]) for part in parts]
    assert max(sizes) - min(sizes) < 250  # about two documents
    ends, orders = stream.sentences[stream.documents][1:], []
    for epochs in (range(len(parts)), range(len(parts), 2 * len(parts))):
        begins = [rows.pairs(epoch)[:, 0] for epoch in epochs]
        orders.append([int(np.searchsorted(ends, x.min(), "right")) for x in begins])
        taken = np.concatenate(begins)
        whole = masked_lm_batches(stream, TOKENIZER, **options).collate.__self__.pairs(0)[:, 0]
        # As many rows of each document as without parts.
        counts = [np.bincount(np.searchsorted(ends, x, "right")) for x in (taken, whole)]
        np.testing.assert_array_equal(*counts)
    assert sorted(orders[0]) == sorted(orders[1]) and orders[0] != orders[1]
    # Held-out text has one part.
    held_out = masked_lm_batches(stream, TOKENIZER, part_tokens=900, training=False, **options)
    assert len(held_out.collate.__self__.parts) == 1
    with pytest.raises(ValueError, match="`part_tokens` must be 1 or more. Received: 0"):
        masked_lm_batches(stream, TOKENIZER, part_tokens=0)


@pytest.mark.backend_neutral
def test_every_part_has_documents_for_random_pairs(stream):
    source = masked_lm_batches(stream, TOKENIZER, 32, part_tokens=1, batch_size=8)
    parts = source.collate.__self__.parts
    assert len(parts) > 10 and all(end - first >= 2 for first, end in parts)
    sizes = [np.diff(stream.sentences[stream.documents[list(part)]])[0] for part in parts]
    assert max(sizes) <= 2 * min(sizes)
    random = np.concatenate([source.collate.__self__.pairs(epoch)[:, 4] for epoch in range(40)])
    assert 0.3 < random.mean() < 0.7


@pytest.mark.backend_neutral
def test_large_documents_make_the_parts_fewer(tmp_path):
    """Otherwise an epoch of constant length repeats a short part, or drops most of a long one."""
    (tmp_path / "t").write_text("a b a b\n\n" * 50 + "a b\n" * 1000 + "\n" + "b a\n" * 1000)
    stream = TokenStream.build([tmp_path / "t"], TOKENIZER, tmp_path / "stream", "lines")
    source = masked_lm_batches(stream, TOKENIZER, 32, part_tokens=200, batch_size=4)
    assert source.collate.__self__.parts == [(0, 52)]


def test_evaluation_of_training_batches_reads_the_whole_text_unshifted(stream):
    options = {"max_length": 32, "batch_size": 8, "next_sentence": False}
    model = MaskedLM(BERT(25, **SIZE, dropout=0.0), next_sentence=False)
    model.compile("sgd")
    training = masked_lm_batches(stream, TOKENIZER, part_tokens=900, **options)
    whole = masked_lm_batches(stream, TOKENIZER, training=False, **options)
    assert len(training) < len(whole) == len(training.for_evaluation())
    assert len(training.collated_by(training.collate).for_evaluation()) == len(training)
    assert_close(model.evaluate(training, verbose=0), model.evaluate(whole, verbose=0))


def test_an_encoder_without_segments_reads_its_own_inputs(stream):
    model = MaskedLM(TransformerEncoder(25, **SIZE, dropout=0.0), next_sentence=False)
    model.compile("sgd")
    options = {"max_length": 32, "batch_size": 8, "next_sentence": False, "training": False}
    batches = masked_lm_batches(stream, TOKENIZER, **options)
    x, y, weights = batches[0]
    assert "segment_ids" in x and "segment_ids" not in model.input
    own = {name: x[name] for name in model.input}
    assert_close(model(x)["masked_lm"], model(own)["masked_lm"], atol=0)
    assert_close(model.predict_on_batch(x)["masked_lm"], model(own)["masked_lm"])
    assert_close(model.test_on_batch(x, y, weights), model.test_on_batch(own, y, weights))


@pytest.mark.backend_neutral
def test_a_stream_or_model_of_another_vocabulary_is_refused(stream):
    swapped = WordPiece([*TOKENIZER.vocabulary[:5], *TOKENIZER.vocabulary[:4:-1]])
    with pytest.raises(ValueError, match="tokenizer"):
        masked_lm_batches(stream, swapped)
    model = MaskedLM(BERT(20, **SIZE))
    model.compile("sgd")
    with pytest.raises(ValueError, match="Received: 25 tokens, vocabulary_size=20"):
        model.fit(masked_lm_batches(stream, TOKENIZER), verbose=0)


@pytest.mark.backend_neutral
def test_left_to_right_targets_are_the_next_tokens(stream):
    """Each token after the first is a target once; [CLS] and [SEP] enclose the row."""
    options = {"max_length": 32, "batch_size": 8, "next_sentence": False}
    source = masked_lm_batches(stream, TOKENIZER, left_to_right=True, **options)
    plain = masked_lm_batches(
        stream, TOKENIZER, mask_token_rate=0.0, random_token_rate=0.0, **options
    )
    for (x, y, weights), (masked, *_) in zip(every(source), every(plain), strict=True):
        np.testing.assert_array_equal(x["token_ids"], masked["token_ids"])
        np.testing.assert_array_equal(x["target_ids"], y)
        for ids, targets, of_row in zip(x["token_ids"], y, weights, strict=True):
            if of_row.any():
                used = int((of_row > 0).sum()) + 1
                assert targets[: used - 1].tolist() == ids[1:used].tolist()
                assert ids[0] == TOKENIZER.cls_id and ids[used - 1] == TOKENIZER.sep_id
    with pytest.raises(ValueError, match="rows without a next sentence"):
        masked_lm_batches(stream, TOKENIZER, left_to_right=True)


@pytest.mark.full
@pytest.mark.backend_neutral
def test_a_causal_bert_learns_the_next_token(stream, tmp_path):
    bert = BERT(len(TOKENIZER), **SIZE, max_sequence_length=32, causal=True, dropout=0.0)
    model = CausalLM(bert)
    model.compile(BertAdamW(1e-2))
    source = masked_lm_batches(
        stream, TOKENIZER, 32, left_to_right=True, next_sentence=False, batch_size=16
    )
    losses = model.fit(source, epochs=2, verbose=0).history["loss"]
    assert losses[1] < losses[0]
    head = Classifier(bert, ["no", "yes"], tokenizer=TOKENIZER)
    assert head.pool == "last" and len(head.predict(["a b", "c"])) == 2
    head.save(tmp_path / "head.keras")
    again = keras.saving.load_model(tmp_path / "head.keras")
    assert again.encoder.causal and "pooled" not in again.encoder.output
    with pytest.raises(ValueError, match="needs a causal encoder"):
        CausalLM(BERT(len(TOKENIZER), **SIZE))
