"""Answers from passages: training, prediction and saving, with both methods."""

import keras
import numpy as np
import pytest

import keras_plm
from keras_plm.cli.main import main
from keras_plm.data.formats.squad import evaluate_squad, write_predictions
from keras_plm.data.spans import Span
from keras_plm.data.task import Example
from keras_plm.heads import SpanFinder, no_answer_odds, span_finder
from keras_plm.layers import LayerChoice
from keras_plm.metrics import squad_f1
from keras_plm.tokenizers import Characters
from keras_plm.training.optimizers import BertAdamW
from keras_plm.transfer import FeatureBased, FineTune, compare_layers, default_metric
from tests.helpers.checks import assert_close, check_elsewhere, to_numpy, under_torch
from tests.helpers.small_gpt import gpt
from tests.helpers.small_passages import PAIRS, PIECES, asked, encoder, made_up
from tests.keras_plm.data.squad_files import question, written

WITHOUT = ["start", "end", "no answer"]


def finder(labels=("start", "end"), **options):
    return SpanFinder(encoder(), labels, tokenizer=PIECES, dropout=0.0, **options)


def scores(model, examples, version=1):
    predicted = model.predict(examples)
    report = evaluate_squad(
        examples, {e.id: text for e, text in zip(examples, predicted, strict=True)}, version
    )
    return report["f1"]


@pytest.mark.compiles
@pytest.mark.parametrize(
    "options",
    [
        under_torch({"layers": LayerChoice(0, -1, "mix")}),
        {"max_length": 11, "stride": 3},
    ],
    ids=str,
)
def test_span_finder_learns_predicts_and_reloads(options, tmp_path):
    model, train = finder(**options), made_up(40 if "stride" in options else 96)
    model.compile(BertAdamW(5e-3))
    source = model.batches(train, batch_size=16, buckets=1)
    history = model.fit(source, epochs=12, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0] and "accuracy" in history
    assert scores(model, train) > 60
    predicted = model.predict(train)
    assert all(text in e.pair for text, e in zip(predicted, train, strict=True))
    texts = model.predict([e.text for e in train], pairs=[e.pair for e in train])
    assert texts == predicted

    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.predict(train) == predicted and again.get_config() == model.get_config()
    assert len(again.trainable_weights) == len(model.trainable_weights)
    path = tmp_path / "predictions.json"
    write_predictions(path, train, predicted)


@pytest.mark.full
def test_null_threshold_decides_unanswered_questions(tmp_path):
    train = made_up(unanswered=True)
    labels = SpanFinder.labels_of(train)
    assert labels == WITHOUT and SpanFinder.labels_of(made_up()) == WITHOUT[:2]
    model = finder(labels)
    model.compile(BertAdamW(5e-3))
    model.fit(model.batches(train, batch_size=16, buckets=1), epochs=12, verbose=0)
    assert scores(model, train, version=2) > 70
    found = model.predict(train, probabilities=True)
    texts, odds = no_answer_odds(found)
    model.null_threshold = np.inf
    assert model.predict(train) == texts and "" not in texts
    model.null_threshold = -np.inf
    assert set(model.predict(train)) == {""}
    best = model.choose_threshold(train)
    predictions = {e.id: text for e, text in zip(train, texts, strict=True)}
    of = {e.id: value for e, value in zip(train, odds, strict=True)}
    report = evaluate_squad(train, predictions, odds=of, threshold=model.null_threshold)
    assert report["f1"] == pytest.approx(100 * best) == pytest.approx(report["best_f1"])
    assert scores(model, train, version=2) == pytest.approx(report["f1"])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.null_threshold == model.null_threshold
    assert again.predict(train) == model.predict(train)


@pytest.mark.full
@pytest.mark.backend_neutral
@pytest.mark.parametrize("kind", [FineTune, FeatureBased])
def test_fit_chooses_the_threshold_on_the_dev_set(kind):
    method = kind(**FAST)
    train, dev = made_up(48, unanswered=True), made_up(24, seed=1, unanswered=True)
    model = method.fit(encoder(), SpanFinder, PIECES, train, dev)
    chosen, found = model.null_threshold, model.predict(dev)
    score = default_metric(SpanFinder, WITHOUT)([e.label for e in dev], found)
    assert model.training_log["dev_score"] <= score
    model.choose_threshold(dev)
    assert model.null_threshold == pytest.approx(chosen, abs=5e-3)  # features are stored in float16
    assert method.fit(encoder(), SpanFinder, PIECES, train).null_threshold == 0
    answered = made_up(8)
    assert method.fit(encoder(), SpanFinder, PIECES, answered, answered).null_threshold == 0


def test_threshold_is_zero_or_the_middle_of_the_gap():
    """The threshold is 0 if that scores as well, otherwise the middle of the gap."""

    def chosen(*rows):
        examples, found = [], []
        for answered, span, null in rows:
            examples.append(
                Example("q", ["b"] if answered else [], pair="b", starts=[0] * answered)
            )
            found.append([Span("b", 0, span, 0.5), Span("", -1, null, 0.5)])
        return span_finder._threshold(examples, found)

    assert chosen((True, 9.0, 0.0), (True, 5.0, 0.0), (False, 0.0, 3.0)) == (1.0, 0.0)
    assert chosen((True, 0.0, 1.0), (False, 0.0, 4.0)) == (1.0, 2.5)
    assert chosen((True, 0.0, -3.0), (False, 0.0, -1.0)) == (1.0, -2.0)
    assert chosen((True, 0.0, 3.0)) == (1.0, 4.0) and chosen((False, 0.0, -3.0)) == (1.0, -4.0)
    # A threshold does not separate equal odds.
    score, threshold = chosen((True, 0.0, 1.0), (False, 0.0, 1.0), (True, 0.0, 1.0))
    assert (score, threshold) == (pytest.approx(2 / 3), 2.0)


def test_threshold_counts_answers_as_the_script_does():
    """A question whose answers are only articles or punctuation has no answer."""
    rows = [([], "a", 1.0), (["the"], "b", 2.0), (["The", "."], "the", 3.0), (["c"], "c", 4.0)]
    examples = [
        Example("q", label, pair=f"{'. '.join(label)} a", starts=[0, 5][: len(label)])
        for label, _, _ in rows
    ]
    found = [[Span(text, 0, score, 0.5), Span("", -1, 0.0, 0.5)] for _, text, score in rows]
    truth, odds = [label for label, _, _ in rows], [-score for _, _, score in rows]

    def f1(threshold):
        texts = [
            text if odd < threshold else "" for (_, text, _), odd in zip(rows, odds, strict=True)
        ]
        return squad_f1(truth, texts, version=2)

    score, threshold = span_finder._threshold(examples, found)
    assert score == f1(threshold) == max(f1(t - 0.5) for t in range(-5, 2)) == 1.0


@pytest.mark.compiles
def test_n_best_spans_equal_loops():
    model = finder(WITHOUT, n_best=7, max_answer_length=4, max_length=15, stride=3)
    examples = asked(np.random.default_rng(1), 5)
    source = model.batches(examples, training=False, batch_size=1, buckets=1)
    windows = source.source
    spans, nulls = [{} for _ in examples], [[] for _ in examples]
    for i in range(len(source)):
        (row,) = source.rows(i)
        x, example = source[i][0], windows.examples_of[row]
        starts, ends = to_numpy(model(x))[0]
        own = windows.context_mask(np.array([row]), 15)[0]
        begins = windows.first[row], windows.first[row] + windows.counts[row]
        whole = PIECES.encode([examples[example].pair], return_offsets=True).offsets[1:-1]
        for s in range(*begins):
            for e in range(s, min(s + 4, begins[1])):
                if own[s]:
                    shift = windows.begins[row] - begins[0]
                    first, last = whole[s + shift, 0], whole[e + shift, 1]
                    spans[example][first, last] = starts[s] + ends[e]
        nulls[example].append(starts[0] + ends[0])
    for i, found in enumerate(model.predict(examples, probabilities=True)):
        wanted = sorted(spans[i].items(), key=lambda item: -item[1])[:7]
        best = {}
        for (first, last), score in wanted:
            best.setdefault(examples[i].pair[first:last], (first, score))
        best[""] = (-1, min(nulls[i]))
        assert {span.text for span in found} == set(best)
        for span in found:
            assert span.start == best[span.text][0]
            assert span.score == pytest.approx(best[span.text][1], abs=1e-4)
        values = np.array([span.score for span in found])
        assert (np.diff(values) <= 0).all()
        shares = np.exp(values) / np.exp(values).sum()
        assert_close(np.array([span.probability for span in found]), shares, atol=1e-5)


@pytest.mark.compiles
def test_only_the_passage_and_the_null_position_can_be_chosen():
    model = finder()
    x, y, weights = model.batches(made_up(7), training=False, batch_size=7)[0]
    logits = to_numpy(model(x))
    assert logits.shape == (7, 2, x["token_ids"].shape[1]) and y.shape == weights.shape == (7, 2)
    assert ((logits > -1e8) == x["answer_mask"][:, None]).all()
    hidden = to_numpy(model.encoder({k: x[k] for k in model.encoder.input})["sequence"])
    kernel, bias = (to_numpy(w) for w in model.task_network.get_layer("logits").weights)
    wanted = np.swapaxes(hidden @ kernel + bias, 1, 2)
    real = np.broadcast_to(x["answer_mask"][:, None], wanted.shape)
    assert_close(logits[real], wanted[real], atol=1e-4)
    check_elsewhere(finder, x)


@pytest.mark.compiles
def test_loss_is_the_mean_over_starts_and_ends():
    model, examples = finder(), made_up(5)
    model.compile("sgd")
    source = model.batches(examples, training=False, batch_size=5)
    total = 0.0
    x, y, _ = source[0]
    logits = to_numpy(model(x)).astype("float64")
    for row in range(5):
        for end in range(2):
            shares = np.exp(logits[row, end]) / np.exp(logits[row, end]).sum()
            total -= np.log(shares[y[row, end]]) / 10
    assert model.evaluate(source, verbose=0)[0] == pytest.approx(total, rel=1e-4)
    eight = model.batches(examples, training=False, batch_size=8)  # padded with empty rows
    assert model.evaluate(eight, verbose=0)[0] == pytest.approx(total, rel=1e-4)


FAST = {"learning_rate": 5e-3, "epochs": 10, "batch_size": 16, "dropout": 0.0}


@pytest.mark.full
def test_fine_tuned_span_finder_scores_and_reloads(tmp_path):
    train, dev = made_up(unanswered=True), made_up(32, seed=1, unanswered=True)
    model = FineTune(**FAST).fit(encoder(), SpanFinder, PIECES, train, dev)
    assert model.labels == WITHOUT and model.training_log["dev_score"] > 0.6
    assert scores(model, dev, 2) == pytest.approx(100 * model.training_log["dev_score"])
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").predict(dev) == model.predict(dev)


@pytest.mark.backend_neutral
def test_fine_tuning_in_bfloat16():
    method = FineTune(**{**FAST, "epochs": 2})
    model = method.fit(encoder(dtype="mixed_bfloat16"), SpanFinder, PIECES, made_up(32))
    assert np.isfinite(model.training_log["loss"]).all()
    assert {str(w.dtype) for w in model.trainable_weights} == {"float32"}
    assert all(
        text in e.pair for text, e in zip(model.predict(made_up(5)), made_up(5), strict=True)
    )


@pytest.mark.full
@pytest.mark.backend_neutral
@pytest.mark.parametrize("reader", ["linear", "bilstm"])
def test_feature_based_span_finder_scores_and_reloads(reader, tmp_path):
    train, dev = made_up(length=29), made_up(24, seed=1, length=29)  # two windows each
    method = FeatureBased(**FAST, reader=reader, layers="elmo_mix")
    model = method.fit(encoder(), SpanFinder, PIECES, train, dev, store=tmp_path / "store")
    assert model.training_log["loss"][-1] < 0.7 * model.training_log["loss"][0]
    # The float16 features are nearly equal to the encoder's outputs.
    assert scores(model, dev) == pytest.approx(100 * model.training_log["dev_score"], abs=5)
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").predict(dev) == model.predict(dev)
    stores = len(list((tmp_path / "store").iterdir()))
    method.fit(encoder(), SpanFinder, PIECES, made_up(2), store=tmp_path / "store")
    assert len(list((tmp_path / "store").iterdir())) == stores + 1


@pytest.mark.backend_neutral
def test_compare_layers_accepts_span_finder(tmp_path):
    table = compare_layers(
        encoder(),
        PIECES,
        made_up(60),
        SpanFinder,
        FeatureBased(**{**FAST, "epochs": 1}),
        choices=["last", "embeddings"],
        seeds=1,
    )
    assert [row["layers"] for row in table] == ["last", "embeddings"]
    assert all(0 <= row["mean"] <= 1 for row in table)


@pytest.mark.full
@pytest.mark.backend_neutral
def test_gpt_uses_classify_token_as_null_position(tmp_path):
    train = made_up(48, unanswered=True)
    method = FineTune(**{**FAST, "epochs": 4}, language_model_weight=0.5)
    model = method.fit(gpt(), SpanFinder, PAIRS, train)
    assert model.training_log["loss"][-1] < model.training_log["loss"][0]
    source = model.batches(train, training=False, batch_size=48, buckets=1)
    x, y, _ = source[0]
    row = int(np.flatnonzero(source.source.examples_of[source.rows(0)] == 0)[0])
    null = y[row, 0]  # the null position, for questions without an answer
    assert x["token_ids"][row, null] == PAIRS.classify_id and x["answer_mask"][row, null]
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").predict(train) == model.predict(train)
    with pytest.raises(ValueError, match="of a fine-tuned GPT with its special tokens"):
        FeatureBased(**FAST).fit(gpt(), SpanFinder, PAIRS, train)


@pytest.mark.full
@pytest.mark.backend_neutral
def test_command_runs_the_squad_task(tmp_path, capsys):
    passage = "c a d b e"
    (tmp_path / "squad").mkdir()
    for name in ("train-v1.1", "dev-v1.1"):
        questions = [question(f"{name}{i}", "c d", ((2, "a d b"),)) for i in range(2)]
        path = written(tmp_path / "squad", *questions, context=passage, name=f"{name}.json")
        path.write_text(_articles(path.read_text(), 60 if name[0] == "t" else 3))
    keras_plm.save(tmp_path / "tiny", encoder(), PIECES)
    flags = ["run", "--task", "squad", "--data", str(tmp_path), "--encoder", str(tmp_path / "tiny")]
    flags += ["--results", str(tmp_path / "results"), "--feature-cache", str(tmp_path / "features")]
    flags += ["--learning-rates", "1e-2", "--epochs", "2", "--seeds", "1", "--train-limit", "40"]
    for method in ("fine_tune", "features"):
        assert main([*flags, "--method", method]) == 0, capsys.readouterr().err
    assert len(list((tmp_path / "results").glob("**/*.seed0.json"))) == 2
    assert "squad (f1, 40 training examples at most)" in capsys.readouterr().out


def _articles(text, count):
    """Repeats the first article of a file, with new ids."""
    import json

    data = json.loads(text)
    article = json.dumps(data["data"][0])
    prefix = data["data"][0]["paragraphs"][0]["qas"][0]["id"][:-1]
    data["data"] = [json.loads(article.replace(prefix, f"{prefix}-{i}-")) for i in range(count)]
    return json.dumps(data)


def test_default_metric_follows_the_squad_version():
    metric = default_metric(SpanFinder, WITHOUT)
    assert metric([[], ["a"]], ["", "b"]) == 0.5
    assert default_metric(SpanFinder, WITHOUT[:2])([["the"]], ["a"]) == 0.0  # version 1's rule


@pytest.mark.backend_neutral
class TestBadInput:
    @pytest.mark.parametrize(
        "options, match",
        [
            ({"labels": ["end", "start"]}, r"labels of a `SpanFinder` must be \['start', 'end'\]"),
            ({"max_length": 0}, r"`max_length` must be a whole number, 1 or more"),
            ({"max_length": 25}, r"at most the encoder's 24 positions. Received: 25"),
            ({"stride": 0}, r"`stride` must be a whole number, 1 or more"),
            ({"max_answer_length": 0}, r"`max_answer_length` must be a whole number, 1 or more"),
            ({"n_best": 0}, r"`n_best` must be a whole number, 1 or more"),
            (
                {"words": "some"},
                "whose tokens are words, such as ELMo's; with others, leave `words` out",
            ),
        ],
    )
    def test_bad_head_options_are_refused(self, options, match):
        with pytest.raises(ValueError, match=match):
            finder(**options)

    def test_bad_examples_are_refused(self):
        model = finder()
        with pytest.raises(ValueError, match=r"need a head that knows them: labels=.*'no answer'"):
            model.batches(made_up(4, unanswered=True))
        with pytest.raises(ValueError, match="a single text, and a pair in `train`"):
            FineTune(**FAST).fit(encoder(), SpanFinder, PIECES, made_up(8), [Example("a", "b")])
        with pytest.warns(UserWarning, match="the questions of 1 of 1 examples were cut"):
            assert model.predict([" ".join("a" * 30)], pairs=["b"]) == ["b"]
        with pytest.raises(ValueError, match="texts.*None as passage"):
            model.predict(["a"])
        with pytest.raises(ValueError, match="at most the encoder's 24 positions. Received: 99"):
            model.batches(made_up(4), max_length=99)
        assert model.predict([]) == []

    def test_threshold_requires_the_no_answer_label(self):
        model = finder()
        with pytest.raises(ValueError, match="A threshold needs a head with 'no answer'"):
            model.choose_threshold(made_up(4))
        found = model.predict(made_up(4), probabilities=True)
        assert "" not in {span.text for spans in found for span in spans}
        with pytest.raises(ValueError, match="from a head with 'no answer' among its labels"):
            no_answer_odds(found)

    def test_pooling_and_unsuitable_words_are_refused(self):
        with pytest.raises(ValueError, match="are not pooled"):
            FineTune(**FAST, pool="mean").fit(encoder(), SpanFinder, PIECES, made_up(4))
        with pytest.raises(
            ValueError,
            match="whose tokens are words, such as ELMo's; with others, leave `words` out",
        ):
            FeatureBased(**FAST, reader="bilstm").fit(
                encoder(), SpanFinder, PIECES, made_up(4), words=encoder()
            )

    def test_tokenizers_without_pairs_are_refused(self):
        with pytest.raises(
            ValueError, match="must pack question and passage into one row.*Received: Characters"
        ):
            SpanFinder(gpt(), tokenizer=Characters())
