"""The `Runner` on tasks of Python code: order of seeds, hashes, saved models, word vectors."""

import dataclasses
import functools
import json

import numpy as np
import pytest

import keras_plm
from keras_plm import metrics
from keras_plm.data import Example, Task
from keras_plm.experiments.config import Run
from keras_plm.experiments.predict import open_model
from keras_plm.experiments.results import read_results
from keras_plm.experiments.runner import Runner
from keras_plm.heads import Classifier
from keras_plm.models import GPT, WordVectors
from keras_plm.tokenizers import BytePair

pytestmark = pytest.mark.backend_neutral

WORDS = [f"w{i}" for i in range(30)]
FEATURES = Run(method="features", layers="embeddings", epochs=2, learning_rates="1e-2")
TUNED = Run(epochs=1, learning_rates="1e-3", batch_size=16)


@functools.cache
def examples(split):
    """Returns texts of five words, labelled by the sum of their numbers."""
    rng = np.random.default_rng(["train", "dev", "test"].index(split))
    rows = rng.integers(0, 30, (40, 5))
    return [Example(" ".join(WORDS[i] for i in row), "ab"[int(row.sum() > 72)]) for row in rows]


def a_task(**options):
    """Returns a task of two labels."""
    settings = {"metrics": {"accuracy": metrics.accuracy}} | options
    return Task("sums", lambda folder, split: examples(split), Classifier, **settings)


def runner(folder, task=None, encoder="words", **options):
    """Returns a `Runner` on word vectors."""
    if not (folder / "words").exists():
        vectors = np.random.default_rng(0).normal(size=(30, 8))
        words = WordVectors.from_vectors(WORDS, vectors)
        keras_plm.save(folder / "words", words, words.tokenizer())
    paths = (str(folder / name) for name in (encoder, "results", "features"))
    return Runner(task or a_task(), None, *paths, **options)


@pytest.mark.parametrize("run", [FEATURES, TUNED], ids=lambda run: run.method)
def test_a_later_seed_first_runs_seed_0(run, tmp_path):
    (tmp_path / "in_order").mkdir()
    kept = runner(tmp_path / "in_order")
    expected = [kept.run(run, seed) for seed in (0, 1)]
    kept = runner(tmp_path)
    found = [kept.run(run, seed) for seed in (1, 0)][::-1]
    assert [r.dev_score for r in found] == [r.dev_score for r in expected]
    assert [r.seed for r in found] == [0, 1] and found[0].dev_score != found[1].dev_score


def fits_of(kept):
    """Returns a list that gets the learning rate and the seed of each fit of a `Runner`."""
    fits, fit = [], kept.fit

    def counted(run, rate, seed, labels):
        fits.append((rate, seed))
        return fit(run, rate, seed, labels)

    kept.fit = counted
    return fits


@pytest.mark.parametrize(
    "first, rates, fits",
    [
        ("1e-2,3e-2", "1e-2,3e-1,3e-2", [(3e-1, 0)]),  # the best one stays
        ("1e-2,3e-2", "3e-2", []),
        ("3e-1,1e-2", "1e-2,3e-2", [(3e-2, 0), (3e-2, 1)]),  # a new one is the best
        ("1e-2,3e-2", "3e-1,1e-2", [(3e-1, 0), (1e-2, 0), (1e-2, 1)]),  # the best one is missing
    ],
)
def test_a_search_takes_over_the_trials_of_an_earlier_one(first, rates, fits, tmp_path):
    settings = dataclasses.replace(TUNED, epochs=3)
    old, new = (dataclasses.replace(settings, learning_rates=r) for r in (first, rates))
    (tmp_path / "fresh").mkdir()
    fresh, kept = runner(tmp_path / "fresh"), runner(tmp_path)
    wanted = [fresh.run(new, seed) for seed in (0, 1)]
    for seed in (0, 1):
        kept.run(old, seed)
    counted = fits_of(kept)
    found = [kept.run(new, seed) for seed in (0, 1)]
    assert counted == fits
    for a, b in zip(found, wanted, strict=True):
        assert (a.hash, a.score, a.settings, a.seed) == (b.hash, b.score, b.settings, b.seed)
        assert [(t["learning_rate"], t["dev_score"]) for t in a.trials] == [
            (t["learning_rate"], t["dev_score"]) for t in b.trials
        ]
        name = kept.result_name(new, a.seed)
        of_found, of_wanted = (x.kept.examples(name, a.hash) for x in (kept, fresh))
        assert (of_found["accuracy"][1] == of_wanted["accuracy"][1]).all()
    assert found[0].seconds >= round(sum(t["seconds"] for t in found[0].trials), 1) - 0.1
    assert len(read_results(kept.results)) == 2


def test_a_search_with_other_settings_or_a_saved_model_trains(tmp_path):
    kept = runner(tmp_path)
    kept.run(dataclasses.replace(TUNED, learning_rates="1e-3"), 0)
    fits = fits_of(kept)
    kept.run(dataclasses.replace(TUNED, epochs=2, learning_rates="1e-3,1e-5"), 0)
    assert fits == [(1e-3, 0), (1e-5, 0)]


SHORT, LONG = (dataclasses.replace(TUNED, learning_rates=rates) for rates in ("1e-3", "1e-3,1e-9"))


def test_a_taken_over_search_saves_a_model(tmp_path):
    kept = runner(tmp_path)
    for seed in (0, 1):
        kept.run(SHORT, seed)
    saving = runner(tmp_path, models=str(tmp_path / "models"))
    fits = fits_of(saving)
    for seed in (0, 1):
        saving.run(LONG, seed)
    assert fits == [(1e-9, 0), (1e-3, 0)] and saving.model_file(LONG).is_file()


def test_a_stopped_takeover_continues(tmp_path):
    kept = runner(tmp_path)
    for seed in (0, 1, 3):
        kept.run(SHORT, seed)
    write, written = kept.kept.write, []

    def stopped(name, record, examples):
        if written:
            raise OSError
        written.append(write(name, record, examples))

    kept.kept.write = stopped
    with pytest.raises(OSError):
        kept.run(LONG, 0)
    kept.kept.write, fits = write, fits_of(kept)
    kept.run(LONG, 0)
    assert fits == [(1e-9, 0)]
    assert all(kept.result(LONG, seed) is not None for seed in (0, 1, 3))


def test_a_damaged_older_record_is_archived(tmp_path):
    kept = runner(tmp_path)
    kept.run(SHORT, 0)
    path = kept.path(SHORT, 0)
    record = json.loads(path.read_text())
    del record["settings"]["train_limit"]
    path.write_text(json.dumps(record | {"hash": "other"}))
    fits = fits_of(kept)
    kept.run(LONG, 0)
    assert fits == [(1e-3, 0), (1e-9, 0)]


def test_settings_of_an_own_task_are_part_of_the_hash(tmp_path):
    both = {"accuracy": metrics.accuracy, "f1": metrics.f1}
    first = runner(tmp_path).run(FEATURES, 0)
    found = runner(tmp_path, a_task(metrics=both)).run(FEATURES, 0)
    assert list(found.metrics) == ["accuracy", "f1"] and found.score == first.score
    others = (a_task(), a_task(symmetric=True), a_task(labels=("a", "b")))
    assert len({runner(tmp_path, task).key(FEATURES, 0) for task in others}) == 3


def test_documents_of_joined_sentences_are_part_of_the_hash(tmp_path):
    joined, keys = dataclasses.replace(FEATURES, document_tokens=32), []
    for of_group in (2, 3):
        rows = [
            dataclasses.replace(e, group=str(i // of_group))
            for i, e in enumerate(examples("train"))
        ]
        kept = runner(tmp_path, dataclasses.replace(a_task(), read=lambda f, s, r=rows: r))
        keys.append([kept.key(run, 0) for run in (FEATURES, joined)])
    (plain, first), (same, second) = keys
    assert plain == same and first != second


def test_labels_unseen_by_a_run_depend_on_its_limit(tmp_path):
    kept = runner(tmp_path)
    assert kept.unseen_labels(FEATURES) == []
    one = dataclasses.replace(FEATURES, train_limit=1)
    (seen,) = (example.label for example in kept.train_examples(one))
    assert kept.unseen_labels(one) == [{"a": "b", "b": "a"}[seen]]


def test_all_metrics_of_a_run_are_shown(tmp_path):
    both = {"accuracy": metrics.accuracy, "f1": metrics.f1}
    kept = runner(tmp_path, a_task(metrics=both))
    kept.say = (said := []).append
    found = kept.run(FEATURES, 0)
    f1 = found.metrics["f1"]
    assert any(f"{found.score:.4f} on the evaluation split (f1 {f1:.4f})" in line for line in said)


def test_reading_features_and_training_show_their_progress(tmp_path):
    kept = runner(tmp_path)
    kept.epoch = (shown := []).append
    kept.run(FEATURES, 0)
    assert "features: 40 of 40 rows read" in shown
    assert "1 linear heads on features: epoch 2 of 2" in shown


def test_a_saved_model_of_other_data_is_replaced(tmp_path):
    def run(labels, models):
        rows = [Example(WORDS[0], labels[0]), Example(WORDS[1], labels[1])] * 20
        task = dataclasses.replace(a_task(), read=lambda folder, split: rows)
        kept = runner(tmp_path, task, models=models)
        settings = dataclasses.replace(FEATURES, epochs=20, learning_rates="1e-1")
        assert kept.run(settings, 0).score == 1.0
        return open_model(kept.model_file(settings)).predict(WORDS[:2]) if models else None

    models = str(tmp_path / "models")
    assert list(run("ab", models)) == ["a", "b"]
    run("ba", None)
    assert list(run("ba", models)) == ["b", "a"]


def test_metrics_with_arguments_keep_their_examples(tmp_path):
    positive = functools.partial(metrics.f1, positive="a")
    kept = runner(tmp_path, a_task(metrics={"f1": positive}))
    found = kept.run(FEATURES, 0)
    kind, parts = kept.kept.examples(kept.result_name(FEATURES, 0), found.hash)["f1"]
    hits, true, predicted = parts.sum(axis=0)
    assert kind == "f1" and found.score == pytest.approx(2 * hits / (true + predicted))


def test_word_vectors_next_to_a_gpt_read_long_texts(tmp_path):
    (tmp_path / "text.txt").write_text(f"{' '.join(WORDS)}\n" * 20)
    tokenizer = BytePair.train(tmp_path / "text.txt", 300, lowercase=False, scheme="gpt")
    encoder = GPT(tokenizer.text_size, 1, 2, 8, 16, max_sequence_length=16)
    keras_plm.save(tmp_path / "gpt", encoder, tokenizer)
    rows = [Example(" ".join(WORDS), "a"), Example(WORDS[0], "b")] * 10
    task = dataclasses.replace(a_task(), read=lambda folder, split: rows)
    kept = runner(tmp_path, task, encoder="gpt")
    run = dataclasses.replace(
        FEATURES, layers="last", reader="bilstm", units=4, words=str(tmp_path / "words")
    )
    assert kept.run(run, 0).counts["train"] == 20
