"""The harness for GPT: pre-training, `generate`, GLUE's pairs, the suites at their test scale."""

import json
import re

import numpy as np
import pytest

import keras_plm
from benchmarks.__main__ import main as benchmarks
from benchmarks.suites import SUITES, folder
from benchmarks.suites.compare_encoders import forward_work
from benchmarks.suites.gpt import ablations, zero_shot
from benchmarks.suites.gpt.ablations import ABLATION, DEPTHS, cells, row_of
from benchmarks.suites.gpt.zero_shot import acceptability, book_questions, continuation
from glue_tasks import GLUE
from keras_plm.checkpoints import save_gpt
from keras_plm.cli.main import main
from keras_plm.data.task import Example
from keras_plm.datasets.tasks import TASKS, read_snli, untokenized
from keras_plm.experiments.config import Run
from keras_plm.experiments.pretraining.settings import Pretraining
from keras_plm.heads import Classifier, Regressor
from keras_plm.models import BERT, GPT, GPT_SIZES, RECURRENT_LM_SIZES, ELMo, RecurrentLM
from keras_plm.tokenizers import BytePair, WordPiece

pytestmark = pytest.mark.backend_neutral

TEXT = "The cat sat on the mat.\nA dog ran to the cat, and it sat.\n\nWe saw it run to a mat.\n"
GPT_TINY = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 32}


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setitem(GPT_SIZES, "tiny", GPT_TINY)
    size = {"num_layers": 1, "units": 8, "hidden_dim": 8}
    monkeypatch.setitem(RECURRENT_LM_SIZES, "tiny", size)
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 30)
    return path


def pretraining(corpus, out, model="gpt", *more):
    return ["pretrain", "--model", model, "--size", "tiny", "--corpus", str(corpus), "--out",
            str(out), "--tokens", "512", "--tokens-per-batch", "64", "--max-length", "16",
            "--vocabulary-size", "80", *more]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("model", ["gpt", "lstm"])
def test_pretraining_writes_snapshots_and_continues_from_init(model, corpus, tmp_path, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    command = pretraining(corpus, first, model, "--valid", str(corpus), "--snapshots", "2")
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "perplexity" in shown and "word perplexity" in shown
    encoder, tokenizer = keras_plm.load(first)
    assert type(encoder) is (GPT if model == "gpt" else RecurrentLM)
    assert tokenizer.scheme == "gpt" and not tokenizer.lowercase
    assert encoder.vocabulary_size == tokenizer.text_size == len(tokenizer) - 4
    note = json.loads((first / "pretraining.json").read_text())
    words = len(re.findall(r"\w+|[.,]", TEXT)) * 30
    assert note["valid"]["words"] == words
    nats = note["valid"]["loss"] * note["valid"]["tokens"] / words
    assert note["valid"]["word_perplexity"] == pytest.approx(np.exp(nats))
    names = [path.name for path in sorted((first / "snapshots").iterdir())]
    assert names == ["step_000002", "step_000004"]
    weights = [
        keras_plm.load(p)[0].get_weights() for p in ((first / "snapshots" / names[0]), first)
    ]
    assert any(not np.array_equal(a, b) for a, b in zip(*weights, strict=True))
    assert main([*command, "--resume"]) == 0
    onward = ["pretrain", "--model", model, "--corpus", str(corpus), "--init", str(first), "--out",
              str(second), "--tokens", "128", "--tokens-per-batch", "64", "--max-length",
              "16"]  # fmt: skip
    assert main(onward) == 0
    assert "random weights" not in capsys.readouterr().out


def test_gpt_pretraining_settings_are_validated():
    assert Pretraining(model="gpt").learning_rate == 5e-4
    for settings, match in (
        ({"model": "gpt", "whole_word": True}, "`whole_word` applies only to bert"),
        ({"model": "lstm", "pre_norm": True}, "`pre_norm` applies only to bert, gpt"),
        ({"model": "gpt", "max_length": 1000}, "8 or more and at most 512"),
        ({"model": "gpt", "snapshots": -1}, "`snapshots` must be a whole number, 0 or more"),
    ):
        with pytest.raises(ValueError, match=match):
            Pretraining(**settings)
    assert Pretraining(tokens=4096 * 100, snapshots=3).snapshot_steps == {50, 25, 12}


class TestGenerate:
    @pytest.fixture
    def encoder(self, corpus, tmp_path):
        tokenizer = BytePair.train(corpus, 60, scheme="gpt")
        model = GPT(tokenizer.text_size, **GPT_TINY, max_sequence_length=24)
        keras_plm.save(tmp_path / "gpt", model, tokenizer)
        return tmp_path / "gpt"

    @pytest.mark.full
    def test_generate_continues_prompts_reproducibly(self, encoder, capsys):
        command = ["generate", "--encoder", str(encoder), "--max-new-tokens", "5"]
        command += ["the cat", "a dog"]
        assert main(command) == 0
        first = capsys.readouterr().out
        assert first.startswith("the cat") and "\n\na dog" in first
        assert main(command) == 0 and capsys.readouterr().out == first
        assert main([*command, "--seed", "4"]) == 0 and capsys.readouterr().out != first
        assert main([*command, "--greedy"]) == 0

    @pytest.mark.full
    def test_released_and_native_folders_generate_the_same_text(self, encoder, tmp_path, capsys):
        model, tokenizer = keras_plm.load(encoder)
        save_gpt(tmp_path / "released", model, tokenizer)
        with pytest.raises(ValueError, match="`BytePair` of scheme 'gpt'.*scheme='gpt2'"):
            other = BytePair.train(tmp_path / "text.txt", 300, scheme="gpt2")
            save_gpt(tmp_path / "other", model, other)
        texts = []
        for folder_ in (encoder, tmp_path / "released"):
            assert main(["generate", "--encoder", str(folder_), "--greedy", "the cat"]) == 2
            assert "at most the model's 24 positions" in capsys.readouterr().err
            command = [
                "generate",
                "--encoder",
                str(folder_),
                "--greedy",
                "--max-new-tokens",
                "9",
                "the cat",
            ]
            assert main(command) == 0
            texts.append(capsys.readouterr().out)
        assert texts[0] == texts[1]

    def test_generate_refuses_bad_input(self, encoder, tmp_path, capsys):
        for flags, match in (
            (["--encoder", str(tmp_path / "none"), "a"], "No such folder"),
            (["--encoder", str(encoder), " "], "A prompt must have text"),
            (
                ["--encoder", str(encoder), "--max-new-tokens", "5", "--top-p", "2", "a"],
                "`top_p` must be above 0",
            ),
        ):
            assert main(["generate", *flags]) == 2
            assert re.search(match, capsys.readouterr().err)


class TestGlue:
    COUNTS = {"cola": (8551, 1043), "mrpc": (3668, 408), "stsb": (5749, 1500), "rte": (2490, 277)}

    @pytest.mark.parametrize("name", COUNTS)
    def test_splits_have_published_counts_and_no_common_text(self, name, data):
        data("glue/CoLA/train.tsv")
        root = data("glue").parent
        parts = {split: GLUE[name].read(root, split) for split in ("train", "dev", "test")}
        counts = len(parts["train"]) + len(parts["dev"]), len(parts["test"])
        assert counts == self.COUNTS[name]
        if name == "cola":
            assert parts["train"][0].pair is None
            assert {e.label for e in parts["test"]} == {"0", "1"}
            return
        assert not {e.text for e in parts["train"]} & {e.text for e in parts["dev"]}
        assert all(e.pair for e in parts["test"])
        if name == "stsb":
            assert all(isinstance(e.label, float) and 0 <= e.label <= 5 for e in parts["test"])

    def test_tasks_have_correct_heads_metrics_and_symmetry(self):
        symmetric = {name for name, task in TASKS.items() if task.symmetric}
        assert symmetric == {"mrpc", "qqp", "stsb", "sick_r"}
        assert GLUE["stsb"].head is Regressor and GLUE["rte"].head is Classifier
        assert list(GLUE["mrpc"].metrics) == ["accuracy", "f1"]

    def test_non_numeric_score_is_refused_with_its_line(self, tmp_path):
        (tmp_path / "glue" / "STS-B").mkdir(parents=True)
        rows = "sentence1\tsentence2\tscore\na\tb\thigh\n"
        (tmp_path / "glue" / "STS-B" / "dev.tsv").write_text(rows)
        with pytest.raises(
            ValueError, match="dev.tsv:2: A score must be a number. Received: 'high'"
        ):
            GLUE["stsb"].read(tmp_path, "test")

    @pytest.mark.full
    def test_snli(self, data):
        data("snli_1.0/snli_1.0_train.jsonl.gz")
        root = data("snli_1.0").parent
        parts = {split: TASKS["snli"].read(root, split) for split in ("train", "dev", "test")}
        assert [len(part) for part in parts.values()] == [21_605, 9_842, 9_824]
        assert not any(" ." in e.text or "``" in e.text for e in parts["test"])

    def test_pairs_without_a_gold_label_are_left_out(self, tmp_path):
        rows = [("neutral", "A man is n't here .", "`` No '' , he said ."), ("-", "a", "b")]
        (tmp_path / "snli.jsonl").write_text("".join(
            json.dumps({"gold_label": y, "sentence1": a, "sentence2": b}) + "\n" for y, a, b in rows
        ))  # fmt: skip
        (example,) = read_snli(tmp_path / "snli.jsonl")
        assert (example.text, example.pair) == ("A man isn't here.", '"No", he said.')

    def test_untokenized_restores_plain_text(self):
        for text in ("It's 5 o'clock, isn't it?", 'He (once) said "so" -- and left; that cost $5.'):
            assert untokenized(text) == text
        assert untokenized("`` So '' -LRB- they 've said -RRB- .") == '"So" (they\'ve said).'


def test_gpt_settings_appear_in_run_name_and_json():
    run = Run(language_model_weight=0.5, pretrained_layers="2", bias_correction=True)
    assert run.name == "fine_tune-lm0.5-layers2-corrected"
    assert {"language_model_weight", "pretrained_layers", "bias_correction"} <= run.to_json().keys()
    assert (
        not {"language_model_weight", "pretrained_layers", "bias_correction"}
        & Run().to_json().keys()
    )
    built = run.build(1e-3, 0)
    assert (
        built.pretrained_layers == 2
        and built.language_model_weight == 0.5
        and built.bias_correction
    )
    low_rank = Run(lora_rank=4)
    assert low_rank.name == "fine_tune-lora4" and low_rank.to_json()["lora_rank"] == 4
    assert low_rank.build(1e-3, 0).lora_rank == 4 and Run().build(1e-3, 0).lora_rank is None
    for fields, match in (
        ({"method": "features", "language_model_weight": 0.5}, "a method that trains the encoder"),
        ({"method": "scratch", "pretrained_layers": "2"}, "needs method 'fine_tune'"),
        ({"method": "scratch", "lora_rank": 4}, "needs method 'fine_tune'"),
        ({"lora_rank": -1}, "`lora_rank` must be a whole number, 0"),
        ({"pretrained_layers": "some"}, "'all' or a whole number. Received: 'some'"),
    ):
        with pytest.raises(ValueError, match=match):
            Run(**fields)


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    """A minimal data folder for the suites."""
    root, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    words = "a cat sat on the mat and ran to two dogs".split()

    def text():
        return " ".join(rng.choice(words, rng.integers(3, 7)))

    for name, header, row in (
        ("RTE", "index\tsentence1\tsentence2\tlabel",
         lambda: f"0\t{text()}\t{text()}\t{rng.choice(['entailment', 'not_entailment'])}"),
        ("STS-B", "sentence1\tsentence2\tscore",
         lambda: f"{text()}\t{text()}\t{rng.integers(0, 6)}"),
        ("CoLA", "", lambda: f"x\t{rng.integers(2)}\t\t{text()}"),
        ("SST-2", "sentence\tlabel", lambda: f"{text()}\t{rng.integers(2)}"),
    ):  # fmt: skip
        (root / "glue" / name).mkdir(parents=True)
        for split, count in (("train", 60), ("dev", 20)):
            lines = ([header] if header else []) + [row() for _ in range(count)]
            (root / "glue" / name / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    (root / "books").mkdir()
    sentences = " ".join(f"{text().capitalize()} now and then." for _ in range(40))
    (root / "books" / "valid.txt").write_text(f"{sentences}\n")
    return root


@pytest.mark.full
def test_gpt_suites_reuse_results_of_one_folder(run, tmp_path):
    code, shown = run("gpt_ablation")
    assert code == 0 and "gain of the auxiliary LM" in shown and "The paper's (table 5" in shown
    kept = folder(tmp_path / "results", "gpt_ablation", "test")
    first = {p: p.stat().st_mtime_ns for p in kept.glob("**/*.json")}
    assert len(first) == 8
    code, shown = run("gpt_layers_transferred")
    assert code == 0 and "| + 1 layer |" in shown and "(figure 2, left" in shown
    after = {p: p.stat().st_mtime_ns for p in kept.glob("**/*.json")}
    assert first.items() <= after.items() and len(after) == 16
    found = cells(kept, DEPTHS)
    assert set(found) == {("stsb", 32), ("rte", 32)}
    assert all(set(of_task) == set(DEPTHS) for of_task in found.values())
    for path in after:
        result = json.loads(path.read_text())
        assert row_of(result, ABLATION) or row_of(result, DEPTHS)
        assert len(result["curve"]["dev_scores"]) == len(result["curve"]["updates"]) == 1
    for suite, picture in (("gpt_ablation", "gpt_ablation_rte_32"),
                           ("gpt_layers_transferred", "gpt_layers_transferred")):  # fmt: skip
        assert run(suite, "--plots", str(tmp_path / "p"), command="report")[0] == 0
        assert (tmp_path / "p" / f"{picture}.png").stat().st_size > 1000


@pytest.mark.full
def test_zero_shot_reads_every_snapshot(run, corpus, tmp_path):
    command = pretraining(corpus, tmp_path / "lm", "gpt", "--snapshots", "1")
    assert main(command) == 0
    code, shown = run("gpt_zero_shot", "--encoder", str(tmp_path / "lm"))
    assert code == 0 and "| lm | 0.0 M |" in shown
    kept = folder(tmp_path / "results", "gpt_zero_shot", "test") / "zero_shot"
    assert sorted(p.name for p in kept.iterdir()) == [
        f"lm.step_{step:06d}.json" for step in (0, 4, 8)
    ]
    before = [p.stat().st_mtime_ns for p in sorted(kept.iterdir())]
    assert run("gpt_zero_shot", "--encoder", str(tmp_path / "lm"))[0] == 0
    assert [p.stat().st_mtime_ns for p in sorted(kept.iterdir())] == before
    code, _ = run("gpt_zero_shot", "--plots", str(tmp_path / "p"), command="report")
    assert code == 0 and len(list((tmp_path / "p").iterdir())) == 3


class TestHeuristics:
    """Tests with a model that has only learned to repeat a word."""

    @pytest.fixture
    def lm(self):
        names = ["good", "bad", "a", "b", "very", "positive", "negative"]
        pieces = ["<unk>", *sorted(set("".join(names))), *(f"{n[-1]}</w>" for n in names)]
        tokenizer = BytePair(list(dict.fromkeys(pieces)), [], scheme="gpt")
        model = GPT(tokenizer.text_size, 1, 1, 32, 32, max_sequence_length=64)
        weights = {w.path: w for w in model.weights}
        for path, weight in weights.items():
            weight.assign(np.ones(weight.shape) if "gamma" in path else np.zeros(weight.shape))
        rng = np.random.default_rng(0)
        table = rng.normal(size=(tokenizer.text_size, 32))
        weights["token_embedding/embeddings"].assign(table * 3)
        return model, tokenizer

    def test_continuation_picks_the_most_probable_choice(self, lm):
        questions = [("a", ["bad", "a a a", "good"], 1)]
        assert continuation(*lm, questions) == 1.0
        assert continuation(*lm, [("a", ["bad", "a a a", "good"], 0)]) == 0.0

    def test_probable_sentences_are_acceptable(self, lm):
        some = [Example("a a a", "1"), Example("b b b b", "1"), Example("a b", "0"),
                Example("bad b a", "0")]  # fmt: skip
        assert acceptability(*lm, some, some) == 1.0

    def test_sentiment_is_the_more_probable_word(self, monkeypatch):
        asked = []

        def losses(encoder, tokenizer, texts, contexts):
            asked.append((texts[0], contexts))
            good = [context == "fine very" for context in contexts]
            return [np.array([1.0 if g == (texts[0] == "positive") else 2.0]) for g in good]

        monkeypatch.setattr(zero_shot, "token_losses", losses)
        test = [Example("fine ", "1"), Example("dull", "0"), Example("dull", "1")]
        assert zero_shot.sentiment(None, None, test) == pytest.approx(2 / 3)
        contexts = ["fine very", "dull very", "dull very"]
        assert asked == [("negative", contexts), ("positive", contexts)]

    def test_book_questions_are_reproducible_and_quote_the_book(self, data_folder):
        path = data_folder / "books" / "valid.txt"
        questions = book_questions(path, 9)
        assert questions == book_questions(path, 9) and len(questions) == 9
        text = path.read_text()
        for context, choices, answer in questions:
            assert f"{context} {choices[answer]}" in text and len(choices) == 4


@pytest.mark.full
def test_samples_are_written_once(run, tmp_path):
    code, shown = run("gpt_samples")
    assert code == 0 and "**a cat**" in shown and "generated text" in shown
    kept = folder(tmp_path / "results", "gpt_samples", "test") / "samples"
    (file,) = kept.iterdir()
    texts = json.loads(file.read_text())["texts"]
    assert all(t[0].startswith("a") and t[1].startswith("a cat") for t in texts.values())
    before = file.stat().st_mtime_ns
    assert run("gpt_samples")[0] == 0 and file.stat().st_mtime_ns == before
    code, shown = run("gpt_samples", command="report")
    assert code == 0 and "**a cat**" in shown


@pytest.mark.full
def test_encoders_table_compares_gpt_and_lstm(corpus, data_folder, tmp_path, monkeypatch, capsys):
    weights = tmp_path / "weights"
    monkeypatch.setattr("benchmarks.suites.compare_encoders.WEIGHTS", weights)
    for model in ("gpt", "lstm"):
        assert main(pretraining(corpus, weights / model, model, "--valid", str(corpus))) == 0
    flags = ["--data", str(data_folder), "--results", str(tmp_path / "r")]
    assert benchmarks(["encoders", *flags]) == 0
    shown = capsys.readouterr().out
    assert "| gpt |" in shown and "| lstm |" in shown and "per word" in shown
    first, second = json.loads((tmp_path / "r" / "encoders.json").read_text())["rows"]
    assert first["tokens"] == second["tokens"] == 512
    lines = (data_folder / "books" / "valid.txt").read_text().splitlines(keepends=True)
    words = sum(len(re.findall(r"\w+|[^\w\s]", line)) for line in lines)
    encoder, tokenizer = keras_plm.load(weights / "gpt")
    pieces = sum(len(tokenizer.tokenize(line)) for line in lines)
    assert first["tokens_per_word"] == pytest.approx(pieces / words)
    # Three products for each weight, and for the positions in the row.
    d, v = 8, encoder.vocabulary_size
    forward = 2 * (4 * d * d + 2 * d * 32) + 4 * 16 * d + 2 * v * d
    assert first["flop"] == 3 * forward * 512
    assert second["flop"] == 3 * (2 * (4 * 8 * 16 + 8 * 8) + 2 * v * d) * 512
    assert benchmarks(["report", "--results", str(tmp_path / "none")]) == 2


def test_forward_work_of_bert_and_elmo_equals_formula():
    bert = BERT(11, 2, 1, 4, 6)
    note = {"max_length": 8, "first_length": 4, "first_fraction": 0.5}
    block = 2 * (4 * 16 + 2 * 24) + 4 * 6 * 4  # rows of 6 on average
    assert forward_work(bert, note) == 2 * block + 0.15 * (2 * 11 * 4 + 2 * 16)
    elmo = ELMo(units=3, projection_dim=2, filters=[[1, 2]], num_highway=0)
    layer = 4 * 3 * 4 + 3 * 2
    assert forward_work(elmo, {"num_sampled": 5}) == 4 * (2 * layer + 5 * 2)


def test_gpt_suites_refuse_missing_and_other_encoders(run, tmp_path, monkeypatch):
    code, shown = run("gpt_ablation", "--encoder", str(tmp_path / "none"))
    assert code == 2 and "make one with `keras-plm pretrain --model gpt`" in shown
    pieces = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    keras_plm.save(tmp_path / "bert", BERT(6, 1, 1, 4, 4), pieces)
    code, shown = run("gpt_ablation", "--encoder", str(tmp_path / "bert"))
    assert code == 2 and "fine-tune a GPT. Received: BERT" in shown
    for name in ("gpt_ablation", "gpt_layers_transferred", "gpt_zero_shot"):
        assert folder(tmp_path, name) == tmp_path / "gpt"
        with pytest.raises(ValueError, match="keras-plm run|benchmarks suite"):
            SUITES[name].markdown(tmp_path)
    code, shown = run("gpt_zero_shot", "--encoder", str(tmp_path / "none"))
    assert code == 2 and "no encoder in" in shown
    assert ablations.PUBLISHED["cola"] == (45.4, 18.9, 47.9, 30.3)
