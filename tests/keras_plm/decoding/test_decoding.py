"""Decoding, compared with its definitions on models small enough for a full search."""

import itertools

import keras
import numpy as np
import pytest

from keras_plm.data.translation import translation_batches
from keras_plm.decoding import (
    alignment,
    beam_search,
    generate,
    greedy,
    sample,
    until_stop,
)
from keras_plm.models import BERT, GPT, Seq2Seq, Transformer
from keras_plm.tokenizers import BytePair, WordPiece
from keras_plm.training.optimizers import BertAdamW
from tests.helpers.checks import assert_close, to_numpy, under_torch

V, B, S = 7, 3, 5
PAD, UNK, START, END = range(4)
MODELS = {
    "recurrent": lambda: Seq2Seq(V, 4, 6, attention="additive"),
    "one_vector": lambda: Seq2Seq(V, 4, 6, attention=None),
    "transformer": lambda: Transformer(V, 2, 2, 8),
}
INPUTS = {
    "token_ids": np.array([[4, 5, 6, 4, 3], [5, 6, 3, 0, 0], [4, 3, 0, 0, 0]], "int32"),
    "padding_mask": np.arange(S) < np.array([[5], [3], [2]]),
}


@pytest.fixture(params=["recurrent", "transformer"])
def model(request):
    made = MODELS[request.param]()
    for weight in made.trainable_variables:
        weight.assign(3 * weight)  # makes outputs differ between tokens
    return made


def log_probabilities(model, target_ids, rows=slice(None)):
    inputs = {name: array[rows] for name, array in INPUTS.items()}
    logits = to_numpy(model({**inputs, "target_ids": np.asarray(target_ids, "int32")}))
    logits = logits.astype("float64")
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.split_to("jax")
@pytest.mark.compiles
def test_greedy_selects_most_probable_token_at_each_step(model):
    token_ids, scores = greedy(model, INPUTS, START, END, max_new_tokens=6)
    for b in range(B):
        written, score = [START], 0.0
        while len(written) < 7 and written[-1] != END:
            padded = written + [PAD] * (7 - len(written))  # one shape to compile
            logs = log_probabilities(model, [padded], slice(b, b + 1))[0, len(written) - 1]
            written.append(int(logs.argmax()))
            score += logs.max()
        assert token_ids[b].tolist() == written[1:] + [PAD] * (7 - len(written))
        assert_close(scores[b], score, atol=1e-4)


@pytest.mark.compiles("recurrent-greedy", "transformer-beam_search")
@pytest.mark.quick_cases("recurrent-greedy", "transformer-greedy", "transformer-beam_search")
@pytest.mark.parametrize("decode", [greedy, beam_search, sample])
def test_decoding_with_cache_equals_decoding_without(model, decode):
    first = decode(model, INPUTS, START, END, max_new_tokens=6)
    second = decode(model, INPUTS, START, END, max_new_tokens=6, cache=False)
    assert (first[0] == second[0]).all()
    assert_close(first[1], second[1], atol=1e-3)


@pytest.mark.compiles
@pytest.mark.quick_cases("transformer")
def test_one_beam_is_greedy(model):
    token_ids, _ = greedy(model, INPUTS, START, END, max_new_tokens=9)
    beams, _ = beam_search(model, INPUTS, START, END, num_beams=1, max_new_tokens=9)
    assert (beams[:, 0] == token_ids).all()


def every_text(model, row, length):
    """Returns all finished texts of up to `length` tokens of a row and their log probabilities."""
    found = []
    for size in range(1, length + 1):
        bodies = list(itertools.product([i for i in range(V) if i != END], repeat=size - 1))
        logs = log_probabilities(model, [[START, *b] for b in bodies], [row] * len(bodies))
        for body, of_text in zip(bodies, logs, strict=True):
            text = [*body, END]
            found.append((text, sum(of_text[t, token] for t, token in enumerate(text))))
    return found


@pytest.mark.compiles
@pytest.mark.quick_cases("0.6")
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0])
def test_wide_beam_search_equals_exhaustive_search(length_penalty):
    model = MODELS["recurrent"]()
    length = 3
    # With a beam for every text, none is pruned, and search does not end early.
    beams = 2 * V**length
    token_ids, scores = beam_search(
        model,
        INPUTS,
        START,
        END,
        num_beams=beams,
        length_penalty=length_penalty,
        max_new_tokens=length,
    )
    texts = every_text(model, 0, length)
    ranked = sorted(texts, key=lambda t: -t[1] / ((5 + len(t[0])) / 6) ** length_penalty)
    for place in range(5):
        text, log = ranked[place]
        assert token_ids[0, place].tolist() == text + [PAD] * (length - len(text))
        assert_close(scores[0, place], log / ((5 + len(text)) / 6) ** length_penalty, atol=1e-4)


@pytest.mark.full
def test_more_beams_do_not_lower_the_best_score(model):
    best = [
        beam_search(model, INPUTS, START, END, num_beams=k, length_penalty=0.0, max_new_tokens=4)
        for k in (1, 30)
    ]
    finished = (best[0][0][:, 0] == END).any(-1)  # unfinished beams come after all finished ones
    assert (best[1][1][:, 0] >= best[0][1][:, 0] - 1e-4)[finished].all()
    scores = best[1][1]
    ended = (best[1][0] == END).any(-1)
    for of_row, finished in zip(scores, ended, strict=True):
        # Beams are sorted, with finished ones first.
        assert (np.diff(finished.astype(int)) <= 0).all()
        assert (np.diff(of_row[finished]) <= 1e-6).all()


@pytest.mark.compiles
def test_sample_scores_equal_log_probabilities_of_model(model):
    token_ids, scores = sample(model, INPUTS, START, END, max_new_tokens=5, temperature=0.7, seed=3)
    before = np.concatenate([np.full((B, 1), START), token_ids[:, :-1]], axis=1)
    logs = log_probabilities(model, before)
    for b in range(B):
        length = len(until_stop(token_ids[b], END))
        taken = range(min(length + 1, 5))
        assert_close(scores[b], sum(logs[b, t, token_ids[b, t]] for t in taken), atol=1e-4)
        assert (token_ids[b, length + 1 :] == PAD).all()


class Fixed:
    """A model of one step with fixed logits, so that draws can be counted."""

    def __init__(self, logits):
        self.logits, self.variables = np.asarray(logits, "float32"), []

    def prefill(self, inputs, max_new_tokens):
        return inputs, keras.ops.zeros((inputs["token_ids"].shape[0], 1))

    def decode_step(self, token_ids, state, memory, index):
        rows = keras.ops.zeros((token_ids.shape[0], 1))
        return rows + keras.ops.convert_to_tensor(self.logits), state


@pytest.mark.compiles
@pytest.mark.quick_cases("options0-shares0", "options1-shares1")
@pytest.mark.parametrize(
    "options, shares",
    [
        ({}, [0.1, 0.2, 0.3, 0.4]),
        ({"top_k": 2}, [0, 0, 3 / 7, 4 / 7]),
        ({"top_k": 1}, [0, 0, 0, 1]),
        ({"top_p": 0.65}, [0, 0, 3 / 7, 4 / 7]),
        ({"top_p": 0.75}, [0, 2 / 9, 3 / 9, 4 / 9]),
        ({"top_p": 1e-6}, [0, 0, 0, 1]),
        ({"temperature": 0.5}, [1 / 30, 4 / 30, 9 / 30, 16 / 30]),
        ({"top_k": 3, "top_p": 0.6}, [0, 0, 3 / 7, 4 / 7]),
    ],
)
def test_samples_follow_temperature_top_k_and_top_p(options, shares):
    model = Fixed(np.log([0.1, 0.2, 0.3, 0.4]))
    inputs = {"token_ids": np.zeros((4000, 1), "int32")}
    token_ids, _ = sample(model, inputs, 0, 9, max_new_tokens=1, seed=5, **options)
    counts = np.bincount(token_ids[:, 0], minlength=4) / 4000
    np.testing.assert_allclose(counts, shares, atol=0.03)
    assert (counts[np.array(shares) == 0] == 0).all()


@pytest.mark.compiles
def test_samples_repeat_with_their_seed(model):
    options = {"temperature": 4.0}
    draws = [sample(model, INPUTS, START, END, 6, seed=s, **options)[0] for s in (1, 1, 2)]
    assert (draws[0] == draws[1]).all()
    assert (draws[0] != draws[2]).any()
    longer = sample(model, INPUTS, START, END, 8, seed=1, **options)[0]
    assert (longer[:, :6] == draws[0]).all()


def test_decoding_ends_without_a_stop_token():
    never = Fixed([5.0, 0.0, 0.0, -1e9])  # never ends
    inputs = {"token_ids": np.zeros((2, 3), "int32")}
    assert greedy(never, inputs, 1, 3)[0].shape == (2, 3 + 50)
    token_ids, scores = beam_search(never, inputs, 1, 3, num_beams=2)
    assert token_ids.shape == (2, 2, 53) and (token_ids != 3).all()
    assert np.isfinite(scores).all()


@pytest.mark.full
def test_decoding_loop_ends_after_all_texts_ended():
    steps = []

    class Counting(Fixed):
        def decode_step(self, token_ids, state, memory, index):
            steps.append(1)
            return super().decode_step(token_ids, state, memory, index)

    model = Counting([0.0, 0.0, 0.0, 50.0])  # ends at once
    token_ids, _ = greedy(model, {"token_ids": np.zeros((2, 3), "int32")}, 1, 3, max_new_tokens=40)
    assert (token_ids[:, 0] == 3).all() and (token_ids[:, 1:] == PAD).all()
    assert len(steps) <= 2  # a compiled loop is traced, not run, by Python


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "decode, options, message",
    [
        (
            beam_search,
            {"num_beams": 0},
            "`num_beams` must be a whole number, 1 or more. Received: num_beams=0",
        ),
        (beam_search, {"length_penalty": -1}, "`length_penalty` must be 0 or more"),
        (sample, {"temperature": 0}, "`temperature` must be above 0"),
        (sample, {"top_k": 0}, "`top_k` must be a whole number, 1 or more"),
        (sample, {"seed": -1}, "`seed` must be a whole number, 0 or more. Received: seed=-1"),
        (sample, {"top_p": 1.5}, "`top_p` must be above 0 and at most 1"),
        (greedy, {"max_new_tokens": 0}, "must be at least 1. Received: max_new_tokens=0"),
    ],
)
def test_bad_settings_are_named(decode, options, message):
    with pytest.raises(ValueError, match=message):
        decode(MODELS["one_vector"](), INPUTS, START, END, **options)


@pytest.mark.parametrize(
    "decode, wrong, right",
    [
        (greedy, {"max_new_tokens": 2.0}, {"max_new_tokens": 2}),
        (sample, {"top_k": 3.0, "max_new_tokens": 2}, {"top_k": 3, "max_new_tokens": 2}),
        (beam_search, {"num_beams": True, "max_new_tokens": 2}, {"max_new_tokens": 2}),
        (beam_search, {"num_beams": 1.5, "max_new_tokens": 2}, {"max_new_tokens": 2}),
    ],
)
def test_numbers_of_a_wrong_type_are_refused(decode, wrong, right):
    model = MODELS["one_vector"]()
    with pytest.raises(TypeError, match="must be a whole number"):
        decode(model, INPUTS, START, END, **wrong)
    assert decode(model, INPUTS, START, END, **right).token_ids.shape[-1] == 2


@pytest.mark.parametrize("decode", [greedy, sample, beam_search])
def test_padding_before_a_prompt_is_refused(decode):
    model = GPT(13, 1, 2, hidden_dim=8, intermediate_dim=16, max_sequence_length=20)
    rows = np.array([[5, 6, 7], [0, 5, 6]])
    inputs = {"token_ids": rows, "padding_mask": rows > 0}
    with pytest.raises(ValueError, match="Padding must follow.*Received: padding.*in row 1"):
        decode(model, inputs, 0, 1, max_new_tokens=3)


def test_learned_positions_limit_the_output_length():
    model = Transformer(V, 1, 2, 8, positions="learned", max_sequence_length=8)
    assert greedy(model, INPUTS, START, END)[0].shape == (B, 8)
    with pytest.raises(ValueError, match="at most the model's 8 positions"):
        greedy(model, INPUTS, START, END, max_new_tokens=9)


@pytest.mark.compiles
def test_decoding_without_cache_accepts_any_keras_model():
    model = MODELS["transformer"]()
    plain = keras.Model(model.input, model.output)
    wanted = greedy(model, INPUTS, START, END, max_new_tokens=4)
    found = greedy(plain, INPUTS, START, END, max_new_tokens=4, cache=False)
    assert (found.token_ids == wanted.token_ids).all()


class Unbuilt(keras.Model):
    """A model that creates its weights at its first call."""

    def __init__(self):
        super().__init__()
        self.score = keras.layers.Dense(V)

    def call(self, inputs):
        return self.score(keras.ops.one_hot(inputs["target_ids"], V))


class PartlyBuilt(Unbuilt):
    """A model that creates some of its weights at its first call."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(V)
        self.first.build((None, V))

    def call(self, inputs):
        return self.first(super().call(inputs))


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="only torch has inference tensors")
@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "make, cache", [(Unbuilt, False), (PartlyBuilt, False), (MODELS["transformer"], True)]
)
def test_a_model_trains_after_decoding(make, cache):
    model, targets = make(), np.full((B, 3), 4)
    greedy(model, INPUTS, START, END, max_new_tokens=2, cache=cache)
    before = model.get_weights()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.train_on_batch({**INPUTS, "target_ids": targets}, targets)
    changed = [(a != b).any() for a, b in zip(before, model.get_weights(), strict=True)]
    assert len(changed) and all(changed)


@pytest.mark.compiles
def test_several_tokens_may_end_a_text(model):
    stops = (END, 5)
    endless, _ = greedy(model, INPUTS, START, (), max_new_tokens=6)
    found, _ = greedy(model, INPUTS, START, stops, max_new_tokens=6)
    for row, of_endless in zip(found, endless, strict=True):
        kept = of_endless[: len(until_stop(of_endless, stops)) + 1].tolist()
        assert row.tolist() == kept + [PAD] * (6 - len(kept))


def test_ended_beams_do_not_displace_active_beams():
    """Each beam needs one continuation more than there are stop tokens."""
    model = Fixed(np.log([0.05, 0.1, 0.4, 0.45]))
    inputs = {"token_ids": np.zeros((1, 1), "int32")}
    options = {"num_beams": 3, "length_penalty": 0.0, "max_new_tokens": 2}
    token_ids, scores = beam_search(model, inputs, 0, [2, 3], **options)
    assert token_ids[0].tolist() == [[3, 0], [2, 0], [1, 3]]
    assert_close(np.exp(scores[0]), np.array([0.45, 0.4, 0.045]))
    with pytest.raises(TypeError, match="an id or a list of ids. Received: 'end'"):
        beam_search(model, inputs, 0, "end")


class TestTexts:
    lines = ["ein kleiner Hund", "zwei Hunde laufen im Schnee", "der Mann liest"]

    @pytest.fixture
    def tokenizer(self, tmp_path):
        path = tmp_path / "text.txt"
        path.write_text("\n".join(self.lines * 3), encoding="utf-8")
        return BytePair.train(path, 60)

    @pytest.mark.compiles
    def test_generate_keeps_the_order_of_its_prompts(self, tokenizer):
        model = Transformer(len(tokenizer), 1, 2, 8)
        texts = generate(model, tokenizer, self.lines, greedy, batch_size=2, max_new_tokens=5)
        alone = [generate(model, tokenizer, [t], greedy, max_new_tokens=5)[0] for t in self.lines]
        assert texts == alone
        assert generate(model, tokenizer, []) == []
        beams = generate(model, tokenizer, self.lines, num_beams=2, max_new_tokens=5)
        assert len(beams) == 3

    @pytest.mark.full
    def test_batches_draw_different_random_numbers(self, tokenizer):
        model = Transformer(len(tokenizer), 1, 2, 8)
        options = {"strategy": sample, "max_new_tokens": 12, "batch_size": 2, "temperature": 2.0}
        texts = generate(model, tokenizer, ["ein Hund"] * 8, seed=1, **options)
        assert len(set(texts)) == 8
        assert generate(model, tokenizer, ["ein Hund"] * 8, seed=1, **options) == texts
        for seed in (2, [1, 2]):
            assert generate(model, tokenizer, ["ein Hund"] * 8, seed=seed, **options) != texts

    @pytest.mark.compiles
    @pytest.mark.quick_cases("additive")
    @pytest.mark.parametrize("kind", ["additive", "transformer"])
    def test_alignment_weights_sum_to_1_over_source_tokens(self, tokenizer, kind):
        if kind == "transformer":
            model = Transformer(len(tokenizer), 2, 2, 8)
        else:
            model = Seq2Seq(len(tokenizer), 4, 6, attention=kind)
        source, target = self.lines[:2]
        weights, written, read = alignment(model, tokenizer, source, target)
        names, end = tokenizer.vocabulary, tokenizer.vocabulary[tokenizer.end_id]
        assert written == [names[i] for i in tokenizer.encode([target]).token_ids]
        assert read == [names[i] for i in tokenizer.encode([source]).token_ids]
        assert written[-1] == read[-1] == end
        heads = (2, 2) if kind == "transformer" else ()
        assert weights.shape == (*heads, len(written), len(read))
        assert_close(weights.sum(-1), np.ones((*heads, len(written))))
        # The default is the output of beam search.
        weights, written, _ = alignment(model, tokenizer, source, max_new_tokens=4)
        rows = tokenizer.pack([source])
        ids = beam_search(model, rows, tokenizer.start_id, tokenizer.end_id, max_new_tokens=4)[0]
        best = [names[i] for i in ids[0, 0]]
        assert written == (best[: best.index(end) + 1] if end in best else best)
        assert weights.shape[-2] == len(written)

    @pytest.mark.backend_neutral
    def test_unknown_ids_and_too_long_texts_are_refused(self, tokenizer):
        model = Transformer(len(tokenizer) - 1, 1, 2, 8)
        pairs = translation_batches(self.lines, self.lines, tokenizer)
        model.compile(BertAdamW(1e-2))
        for use in (
            lambda: generate(model, tokenizer, self.lines),
            lambda: alignment(model, tokenizer, self.lines[0]),
            lambda: model.fit(pairs),
            lambda: model.evaluate(pairs),
            lambda: model.predict(pairs),
        ):
            with pytest.raises(ValueError, match="must know every id of its tokenizer"):
                use()
        model = Transformer(len(tokenizer), 1, 2, 8, positions="learned", max_sequence_length=4)
        long = " ".join(self.lines)
        for texts in ((long,), ("ein", long)):
            with pytest.raises(ValueError, match="at most 4 tokens: shorten or split"):
                alignment(model, tokenizer, *texts)
        model.compile(BertAdamW(1e-2))
        with pytest.raises(ValueError, match="`max_length=4`.*Received: batches of length 8"):
            model.fit(translation_batches(self.lines[:1], self.lines[:1], tokenizer))

    def test_samples_depend_on_seed_and_position_only(self):
        tokenizer = BytePair(["<unk>", "a</w>", "b</w>", *"ab"], [], scheme="gpt")
        model = GPT(len(tokenizer), 1, 2, hidden_dim=8, intermediate_dim=16)
        first = [
            generate(
                model, tokenizer, ["a b", *others], strategy=sample, max_new_tokens=8, **options
            )[0]
            for others in (["b"], ["b a b a"], ["b", "a"])
            for options in ({}, {"batch_size": 1})
        ]
        assert len(set(first)) == 1

    def test_default_length_depends_on_the_own_source_only(self, tokenizer):
        model = Seq2Seq(len(tokenizer), embedding_dim=4, hidden_dim=6)
        options = {"strategy": sample, "seed": 1, "stop_token_ids": ()}
        short, long = self.lines[0], " ".join(self.lines * 9)
        (alone,) = generate(model, tokenizer, [short], **options)
        assert generate(model, tokenizer, [short, long], **options)[0] == alone
        length = tokenizer.encode([short]).lengths[0]
        written = generate(model, tokenizer, [short], max_new_tokens=length + 50, **options)
        assert written == [alone]

    def test_without_cache_other_arrays_are_left_out(self):
        tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
        model, inputs = Transformer(7, 1, 2, 8), tokenizer.pack(["a b", "b"])
        assert "segment_ids" in inputs
        with_cache = greedy(model, inputs, 2, 3, max_new_tokens=4)
        without = greedy(model, inputs, 2, 3, max_new_tokens=4, cache=False)
        assert (with_cache.token_ids == without.token_ids).all()

    @pytest.mark.backend_neutral
    def test_generate_refuses_wrong_models_and_options(self, tokenizer):
        model = Seq2Seq(len(tokenizer), 4, 6)
        with pytest.raises(ValueError, match="without quotes. Received: 'sample'"):
            generate(model, tokenizer, self.lines, strategy="sample")
        with pytest.raises(ValueError, match="token by token.*Received: BERT"):
            generate(BERT(9, 1, 1, 4, 4), tokenizer, self.lines)
        for strategy, option, hint in (
            (greedy, "num_beams", "which needs `strategy=beam_search`"),
            (None, "temperature", "which needs `strategy=sample`"),
            (sample, "temprature", "nor has any other strategy"),
        ):
            with pytest.raises(ValueError, match=f"no option '{option}', {hint}. .*{option}=2"):
                generate(model, tokenizer, self.lines, strategy=strategy, **{option: 2})
        for use in (
            lambda pieces: generate(model, pieces, self.lines),
            lambda pieces: translation_batches(self.lines, self.lines, pieces),
        ):
            with pytest.raises(
                ValueError, match="use `BytePair`. Received: WordPiece without start_id"
            ):
                use(WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]))

    @pytest.mark.backend_neutral
    def test_no_alignment_without_words_or_attention(self, tokenizer):
        model = Seq2Seq(len(tokenizer), 4, 6, attention=None)
        with pytest.raises(ValueError, match="must have words. Received: ' ' and None"):
            alignment(model, tokenizer, " ")
        with pytest.raises(ValueError, match="must have words. Received: 'ein' and ''"):
            alignment(model, tokenizer, "ein", "")
        with pytest.raises(ValueError, match="one text each. Received: \\['ein'\\] and None"):
            alignment(model, tokenizer, ["ein"])
        with pytest.raises(ValueError, match="one text each. Received: 'ein' and 3"):
            alignment(model, tokenizer, "ein", 3)
        with pytest.raises(ValueError, match="need a model with attention"):
            alignment(model, tokenizer, "ein", "der")

    @pytest.mark.full
    @pytest.mark.parametrize("attention", [under_torch(None), "additive"])
    def test_a_fitted_model_saves_and_decodes_the_same(self, tokenizer, tmp_path, attention):
        model = Seq2Seq(len(tokenizer), 4, 6, attention=attention)
        model.compile(BertAdamW(1e-2), label_smoothing=0.1)
        model.fit(translation_batches(self.lines, self.lines, tokenizer), epochs=2, verbose=0)
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        texts = generate(model, tokenizer, self.lines, max_new_tokens=5)
        assert generate(loaded, tokenizer, self.lines, max_new_tokens=5) == texts
        batches = translation_batches(self.lines, self.lines, tokenizer, training=False)
        assert_close(loaded.evaluate(batches, verbose=0), model.evaluate(batches, verbose=0))

    @pytest.mark.backend_neutral
    def test_bad_prompts_are_named(self, tokenizer):
        model = Transformer(len(tokenizer), 1, 2, 8, positions="learned", max_sequence_length=4)
        with pytest.raises(ValueError, match="list of texts"):
            generate(model, tokenizer, "ein Hund")
        with pytest.raises(ValueError, match="must have text. Received: ' ' at 1"):
            generate(model, tokenizer, ["ein", " "])
        with pytest.raises(ValueError, match="at most 4 tokens.*in text 1, 'zwei Hunde"):
            generate(model, tokenizer, self.lines)

    @pytest.mark.backend_neutral
    def test_translation_batches_shift_target_by_one(self, tokenizer):
        batches = translation_batches(
            self.lines, self.lines[::-1], tokenizer, batch_size=3, training=False, buckets=1
        )
        x, y, weights = batches[0]
        rows = batches.rows(0)
        for i, row in enumerate(rows):
            target = [*tokenizer.encode([self.lines[::-1][row]]).token_ids]
            size = len(target)
            assert y[i, :size].tolist() == target and target[-1] == tokenizer.end_id
            assert x["target_ids"][i, :size].tolist() == [tokenizer.start_id, *target[:-1]]
            assert (x["target_ids"][i, size:] == tokenizer.pad_id).all()
            source = tokenizer.encode([self.lines[row]])
            assert x["padding_mask"][i].sum() == source.lengths[0]
            assert ((weights[i] > 0) == (np.arange(y.shape[1]) < size)).all()

    @pytest.mark.backend_neutral
    @pytest.mark.parametrize(
        "sources, targets, options, message",
        [
            (["a"], ["b", "c"], {}, "1 sources and 2 targets"),
            ("a b", ["c"], {}, "list of texts as `sources`.*Received: sources='a b'"),
            (["a"], None, {}, "list of texts as `targets`.*Received: targets=None"),
            (["ein", ""], ["der", "der"], {}, "source 1 is ''"),
            (["ein", "ein"], ["der", " "], {}, "target 1 is ' '"),
            (["ein Hund"], ["der Mann"], {"max_length": 2}, "at most 2 tokens.*source 0 with 3"),
            ([], [], {}, "no rows"),
        ],
    )
    def test_bad_pairs_are_named(self, tokenizer, sources, targets, options, message):
        with pytest.raises(ValueError, match=message):
            translation_batches(sources, targets, tokenizer, **options)
