"""The suites of ELMo, on small texts in the formats of the real ones."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import keras_plm
from benchmarks.suites import SUITES, folder
from benchmarks.suites.elmo import features, neighbours, probes, sample_efficiency
from benchmarks.suites.elmo.features import ROWS, cells, row_of
from benchmarks.suites.elmo.neighbours import nearest_of_word
from benchmarks.suites.elmo.probes import nearest_average, tagged_accuracy
from benchmarks.suites.elmo.six_tasks import Cell, _differences
from keras_plm.datasets.corpora import BOOKS
from keras_plm.experiments.jobs import Workspace
from keras_plm.experiments.results import Record, ResultFolder, marked
from keras_plm.models import ELMo
from tests import ROOT
from tests.benchmarks.small_data import SmallData

pytestmark = pytest.mark.backend_neutral

NAMES = [f"{a}{b}" for a in ("Ka", "Lo", "Mi") for b in ("ra", "tin", "sel", "bo")]
PLAYS = ("the play was long", "they play the game", "a play of words", "we play today",
         "the old bank", "in spring they play")  # fmt: skip
TAGS = {"play": ("NOUN", "VERB"), "they": "PRON", "we": "PRON", "the": "DET", "a": "DET",
        "was": "AUX", "of": "ADP", "in": "ADP"}  # fmt: skip


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    """A minimal data folder for the suites."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name in ("wikigold", "sst/trees", "ud_english_ewt", "books", "snli_1.0"):
        (folder / name).mkdir(parents=True)
    small = SmallData(folder)
    small.squad()
    small.roles()
    small.coreference()
    for split in ("train", "dev", "test"):
        labels = ("entailment", "neutral", "contradiction")
        rows = [{"gold_label": labels[i % 3], "sentence1": str(rng.choice(PLAYS)),
                 "sentence2": f"play {i}", "pairID": f"{split}{i}"} for i in range(9)]  # fmt: skip
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "snli_1.0" / f"snli_1.0_{split}.jsonl").write_text(lines)
    lines = []
    for _ in range(40):
        name = rng.choice(NAMES)
        lines += ["-DOCSTART- O", "", "the O", f"town O\nof O\n{name} I-LOC", "", "Mr O"]
        lines += [f"{rng.choice(NAMES)} I-PER", "said O", ". O", ""]
    (folder / "wikigold" / "wikigold.conll.txt").write_text("\n".join(lines))
    for split, size in (("train", 40), ("dev", 10), ("test", 10)):
        labels = rng.permutation(np.arange(size) % 5)
        trees = [f"({y} (2 It) ({y} (2 is) ({y} {'bad poor so good fine'.split()[y]})))\n"
                 for y in labels]  # fmt: skip
        (folder / "sst" / "trees" / f"{split}.txt").write_text("".join(trees))
        tagged = []
        for sentence in rng.permutation(PLAYS * 4):
            words = str(sentence).split()
            for before, word in zip(["", *words], words, strict=False):
                tag = TAGS.get(word, "NOUN")
                if word == "play":
                    tag = tag[before in ("they", "we")]
                tagged.append(f"{word}\t{tag}\tX")
            tagged.append("")
        (folder / "ud_english_ewt" / f"{split}.conll").write_text("\n".join(tagged))
    text = "".join(f"{rng.choice(PLAYS)} by the {rng.choice(PLAYS)} .\n" for _ in range(200))
    for name in [*BOOKS.files.values(), neighbours.TEXT]:
        (folder / name).write_text(text)
    return folder


def files(tmp_path):
    found = (tmp_path / "results").glob("**/*.json")
    return {str(path): path.stat().st_mtime_ns for path in found}


@pytest.mark.full
def test_elmo_suites_reuse_results_of_one_folder(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("elmo_layers")[0] == 0
    first = files(tmp_path)
    assert len(first) == 20  # five tasks, four rows
    assert run("elmo_placement")[0] == 0
    assert run("sample_efficiency")[0] == 0
    assert {name: files(tmp_path)[name] for name in first} == first
    assert len(files(tmp_path)) == 20 + 2 + 2  # two more placements, two runs on a quarter
    results = [json.loads(p.read_text()) for p in (tmp_path / "results").glob("**/*.json")]
    keys = "task encoder method seed score metrics seconds backend device versions commit"
    assert all(set(keys.split()) <= set(result) for result in results)
    assert {row_of(result) for result in results} == set(ROWS)
    both = next(r for r in results if row_of(r) == "both")
    assert list(both["mixes"]) == ["input", "output"]
    assert {r["settings"].get("units") for r in results} == {4}
    assert {
        r["settings"].get("feature_dropout", 0) for r in results if row_of(r) != "baseline"
    } == {0.5}
    for suite, text, picture in (
        ("elmo_layers", "| task | baseline | last only | all, λ = 1 |", "elmo_layers_mixes"),
        ("elmo_placement", "| task | input | both | output |", "elmo_placement_mixes"),
        ("sample_efficiency", "| 25 % | ", "sample_efficiency_wikigold"),
    ):
        code, shown = run(suite, "--plots", str(tmp_path / "pictures"), command="report")
        assert code == 0 and text in shown and "The paper" in shown
        assert (tmp_path / "pictures" / f"{picture}.png").stat().st_size > 1000


def test_a_gpt_marks_predicates_with_a_reader(tmp_path):
    suite = SUITES["elmo_tasks"]
    place = Workspace(str(tmp_path), str(tmp_path / "r"), str(tmp_path / "f"))
    jobs = suite.jobs(suite.scales["small"], place)
    readers = {
        (Path(job.encoder).name, job.task): job.run.reader
        for job in jobs
        if job.run.method == "fine_tune"
    }
    assert len(readers) == 6 + 6 + 4  # MiniLM's other two results are those of another suite
    assert readers.pop(("gpt_mini", "ewt_srl")) == "alternating_lstm"
    assert set(readers.values()) == {"linear"}


@pytest.mark.full
def test_six_tasks_share_results_with_the_other_suites(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("elmo_layers")[0] == 0
    first, before = files(tmp_path), run("elmo_layers", command="report")[1]
    code, shown = run("elmo_tasks")
    assert code == 0 and "| task | bert_test, frozen | bert_test, fine-tuned |" in shown
    assert {name: files(tmp_path)[name] for name in first} == first
    # Coreference with and without ELMo, "both" for two tasks, and two rows of BERT for six tasks.
    assert len(files(tmp_path)) == 20 + 2 + 2 + 6 * 2
    table = [line.split(" | ") for line in shown.splitlines() if line.startswith("| ")]
    # Coreference has two lines, and the paper's score stands in the second one.
    assert [len(line) for line in table] == [6] * 8 + [3] * 8
    assert [i for i, line in enumerate(table) if not all(cell.strip(" |") for cell in line)] == [4]
    assert run("elmo_layers", command="report")[1] == before
    code, again = run("elmo_tasks", command="report")
    assert code == 0 and table[4][0] in again


@pytest.mark.full
def test_bilm_resumes_on_task_text(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, shown = run("elmo_domain_adaptation")
    assert code == 0 and "wikigold step" in shown
    (record,) = (
        json.loads(p.read_text()) for p in (tmp_path / "results").glob("**/*.adapted.json")
    )
    assert record["init"] == "elmo_test" and record["encoder"] == "elmo_test_on_wikigold"
    assert record["valid"]["perplexity"] < record["valid_before"]["perplexity"]
    written = (tmp_path / "f" / "wikigold.dev.txt").read_text()
    assert "said ." in written and "I-PER" not in written
    encoders = [json.loads(p.read_text())["encoder"]
                for p in (tmp_path / "results").glob("**/*.seed0.json")]  # fmt: skip
    assert sorted(encoders) == ["elmo_test", "elmo_test_on_wikigold"]
    first = files(tmp_path)
    assert run("elmo_domain_adaptation")[0] == 0
    done = {name: at for name, at in files(tmp_path).items() if "adapted" not in name}
    assert done.items() <= first.items()
    code, shown = run("elmo_domain_adaptation", command="report")
    assert code == 0 and "| wikigold (span f1) | " in shown and "The paper (table 7)" in shown
    # The tables of the other suites show the original biLM.
    run("elmo_layers")
    code, shown = run("elmo_layers", command="report")
    assert code == 0 and "_on_wikigold" not in shown

    (tmp_path / "f" / "elmo_test").rename(tmp_path / "mine")
    code, shown = run("elmo_domain_adaptation", "--encoder", str(tmp_path / "mine"))
    assert code == 2 and "Further training needs the softmax of the biLM" in shown


class Planted:
    """A `ResultFolder` in which the hash of a result is its number of right answers of 400."""

    def examples(self, name, right):
        rows = np.ones((400, 2))
        rows[right:, 0] = 0
        return {"accuracy": ("mean", rows)}


def planted(*right):
    common = {"task": "snli", "encoder": "bert_mini", "method": "features", "run": "r"}
    scores = [{"metrics": {"accuracy": n / 400}, "seed": i} for i, n in enumerate(right)]
    results = [{**common, **s, "hash": n} for s, n in zip(scores, right, strict=True)]
    return Cell(results, Planted())


def test_differences_of_encoders_need_several_seeds():
    found = {
        ("snli", "bert_mini", "fine_tune"): planted(300, 302, 298),
        ("snli", "bert_mini", "features"): planted(200, 202, 198),
        ("snli", "gpt_mini", "fine_tune"): planted(300),
        ("snli", "gpt_mini", "features"): planted(200, 200),
    }
    head, _, row = _differences(found, {"snli": planted(200, 204)}).splitlines()[1:4]
    names = [f"{name}: fine-tuned - frozen" for name in ("BERT-mini", "GPT-mini")]
    assert head.split(" | ")[1:4:2] == names
    cells = [cell.strip(" |") for cell in row.split(" | ")]
    assert cells[0] == "entailment: SNLI" and re.match(r"\+25\.0 \[\+2\d", cells[1])
    assert re.match(r"-0\.5 \[-\d", cells[2]) and cells[3] == "" and cells[4].startswith("-0.5")
    alone = {("snli", "gpt_mini", "features"): planted(200)}
    assert _differences(alone, {}) == _differences({}, {}) == ""


def test_other_encoders_are_refused(run, tmp_path):
    bert = ROOT / "benchmarks" / "weights" / "bert_mini"
    code, shown = run("elmo_layers", "--encoder", str(bert))
    assert code == 2 and "need a biLM" in shown and "Received: BERT" in shown
    code, shown = run("elmo_layers", "--words", str(bert))
    assert code == 2 and "`--words` must be a folder" in shown
    assert not files(tmp_path)


def test_order_marks_nearly_equal_scores_as_equal():
    names = {"a": "A", "b": "B", "c": "C"}
    order = features._order({"a": 0.5, "b": 0.50001, "c": 0.2}, names)
    assert order == "C < A = B"


@pytest.mark.full
def test_word_vectors_are_trained_once_or_read_from_a_folder(
    run, tmp_path, monkeypatch, data_folder
):
    monkeypatch.chdir(tmp_path)
    material = features.TEST_MATERIAL
    made = material.words_folder("", data_folder, tmp_path / "f", lambda line: None)
    assert keras_plm.load(made)[0].hidden_dim == 8
    again = material.words_folder("", "nowhere", tmp_path / "f", pytest.fail)
    assert again == made
    shutil.copytree(made, tmp_path / "mine")
    assert material.words_folder(str(tmp_path / "mine"), "nowhere", "f", pytest.fail).endswith(
        "mine"
    )
    encoder = material.encoder_folder(None, tmp_path / "f")
    assert isinstance(keras_plm.load(encoder)[0], ELMo)
    with pytest.raises(ValueError, match=r"--encoder\. Received: no encoder in 'nowhere'"):
        material.encoder_folder("nowhere", tmp_path / "f")
    kept = features.Material().words_folder("", "nowhere", "f", pytest.fail)
    assert keras_plm.load(kept)[0].hidden_dim == 100
    monkeypatch.setattr(features, "WEIGHTS", tmp_path)
    with pytest.raises(ValueError, match="No file .*train-0.txt"):
        features.Material().words_folder("", tmp_path, tmp_path / "f2", lambda line: None)


@pytest.mark.parametrize(
    "flags, match",
    [
        (["elmo_layers", "--encoder", "nowhere"], r"pre-trained biLM: .*'nowhere'"),
        (["elmo_layers", "--task", "sst2"], r"of this suite at scale test 'sst2'.*'sst5'\?"),
        (["elmo_layers", "--task-file", "x.conll"], r"elmo_layers sets its.*--task-file x"),
        (["elmo_intrinsic", "--text", "2"], r"`--label` need a --task-file"),
        (["seq2seq", "--encoder", "x"], r"seq2seq sets its own tasks.*--encoder x"),
    ],
)
def test_suites_refuse_flags_they_do_not_support(flags, match, run):
    code, shown = run(*flags)
    assert code == 2 and re.search(match, shown), shown


def test_tables_without_results_name_the_command_to_run(tmp_path):
    record = Record("t", "e", "fine_tune", score=0.5)
    ResultFolder(tmp_path).write("t/a.seed0.json", record)
    for name, suite in SUITES.items():
        if suite.home == "elmo":
            assert folder(tmp_path, name, "small") == tmp_path / "elmo"
            assert marked(name, "test") == f"{name}_test"
            with pytest.raises(ValueError, match="keras-plm run|benchmarks suite"):
                suite.markdown(tmp_path)


def write(folder, task, score, seed=0, limit=0, words="w", mixes=None, **fields):
    """Writes a result file like `Runner`; without `words` it is a result of the baseline."""
    fields = {"reader": "bilstm", "train_limit": limit, "layers": "last", **fields}
    fields |= {"words": words} if words else {}
    encoder = "e" if words else "w"
    result = {
        "task": task, "encoder": encoder, "method": "features", "run": "r", "settings": fields,
        "seed": seed, "score": score, "metrics": {"accuracy": score}, "trials": [],
        "counts": {"train": limit or 200}, "inputs": "abc", **({"mixes": mixes} if mixes else {}),
    }  # fmt: skip
    name = "-".join(f"{v}" for v in (encoder, limit, *fields.values()))
    (folder / f"{task}.{name}.seed{seed}.json").write_text(json.dumps(result))


def test_tables_show_means_deviations_and_orders(tmp_path):
    mix = {"layers": "elmo_mix", "penalty": 0.001}
    for seed, score in enumerate((0.50, 0.54)):
        write(tmp_path, "t", score, seed, words=None)
        write(tmp_path, "t", score + 0.1, seed, **mix, mixes={"input": {"weights": [0.2, 0.8]}})
    write(tmp_path, "t", 0.3)
    write(tmp_path, "t", 0.2, limit=2, words=None)  # a result of another suite
    text = features.layers_markdown(tmp_path)
    assert "| t (accuracy) | 52.0 ± 2.8 (2) | 30.0 (1) |  | **62.0 ± 2.8 (2)** | " in text
    assert "last only < baseline < all, λ = 0.001 |" in text
    assert set(features.layers_figures(tmp_path)) == {"elmo_layers_mixes"}
    write(tmp_path, "t", 0.3, 1, epochs=3)
    with pytest.raises(ValueError, match="Seeds of one run share settings"):
        cells(tmp_path, ("last",))


def test_sample_efficiency_names_fraction_that_matches_baseline(tmp_path):
    mix = {"layers": "elmo_mix", "penalty": 0.001}
    for limit, base, ours in ((2, 0.1, 0.2), (50, 0.2, 0.45), (0, 0.4, 0.5)):
        write(tmp_path, "t", base, limit=limit, words=None)
        write(tmp_path, "t", ours, limit=limit, **mix)
        write(tmp_path, "u", base, limit=limit, words=None)
        write(tmp_path, "u", base - 0.05, limit=limit, **mix)
        write(tmp_path, "v", base, limit=limit, words=None)
        write(tmp_path, "v", base + 0.05, limit=limit, **mix)
    text = sample_efficiency.markdown(tmp_path)
    assert "| 1 % | " in text and "| 25 % | " in text and "| 100 % | " in text
    assert (
        "t: ELMo with 25 % of the examples (50) reaches what the baseline has with all 200" in text
    )
    assert "u: with none of the shares does ELMo reach" in text
    assert "v: ELMo needs all 200 examples to reach" in text
    figures = sample_efficiency.figures(tmp_path)
    assert set(figures) == {f"sample_efficiency_{task}" for task in "tuv"}
    curve = figures["sample_efficiency_t"].axes[0].lines[1]
    np.testing.assert_allclose(curve.get_xydata(), [[2, 20], [50, 45], [200, 50]])


def test_nearest_of_word_equals_a_hand_computed_example():
    #        0     1     2     3     4    5  (others in the same sentence do not count)
    words = ["a", "a", "a", "a", "b", "b"]
    tags = ["N", "N", "V", "V", "N", "V"]
    sentences = [0, 1, 2, 2, 3, 4]
    angles = np.array([0, 10, 30, 29, 0, 0]) * np.pi / 180
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1) * 3
    found = nearest_of_word(vectors, words, tags, sentences)
    # Each tag of b occurs once, and the verbs of a share a sentence: only the nouns of a count.
    assert found["row"].tolist() == [0, 1]
    assert found["right"].tolist() == [1, 1]
    np.testing.assert_allclose(found["chance"], [1 / 3, 1 / 3])
    equal = nearest_of_word(np.ones((6, 2)), words, tags, sentences)
    np.testing.assert_allclose(equal["right"], equal["chance"])  # no context: chance
    far = vectors.copy()
    far[1] = -far[1]
    assert nearest_of_word(far, words, tags, sentences)["right"].tolist() == [0, 0]


@pytest.mark.full
def test_neighbours_suite_runs_at_test_scale(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, shown = run("elmo_neighbours", seeds="2")
    assert code == 0, shown
    assert "| chance | " in shown and "elmo_test, random weights, layer 2" in shown
    assert re.search(r"random weights, layer 2 \| \S+ ± \S+ \(2\) \|", shown)
    assert "word vectors, regardless of sense" in shown and "**play**" in shown
    before = files(tmp_path)
    assert len(before) == 4  # word vectors, the biLM, and two biLMs with random weights
    assert run("elmo_neighbours", seeds="2")[0] == 0 and files(tmp_path) == before
    result = json.loads(next((tmp_path / "results").glob("**/books*.json")).read_text())
    assert result["metrics"]["layer_0"] == pytest.approx(result["metrics"]["chance"])
    result["counts"]["words"] += 1
    path = next((tmp_path / "results").glob("**/books*.json"))
    path.write_text(json.dumps(result))
    code, shown = run("elmo_neighbours", command="report")
    assert code == 2 and "on the same words" in shown


def test_nearest_average_equals_a_hand_computed_example():
    train = [("a", "N"), ("a", "N"), ("a", "V"), ("b", "V"), ("x", "O"), ("b", "V"), ("b", "V")]
    test = [("a", "V"), ("a", "N"), ("b", "N"), ("c", "V"), ("x", "O")]
    train_vectors = np.array([[1, 0.2], [1, -0.2], [0, 1], [1, 1], [1, 1], [0, 1], [1, 0]])
    test_vectors = np.array([[0.1, 1], [2, 0], [1, 1], [1, 1], [1, 1]])
    found = nearest_average(train_vectors, train, test_vectors, test)
    # Both tags of a are found. b has one tag. c is unseen and takes V, the most frequent tag.
    assert found == {"accuracy": 0.75, "several": 1.0, "tested": 4, "tested_several": 2,
                     "unseen": 1}  # fmt: skip
    usual = nearest_average(None, train, None, test)
    assert usual["several"] == 0.5 and usual["accuracy"] == 0.5
    equal = nearest_average(np.ones((7, 2)), train, np.ones((5, 2)), test)
    assert equal == usual  # word vectors equal the most frequent tag
    with pytest.raises(ValueError, match='other than "O".*0 such words in training'):
        nearest_average(None, [("a", "O")], None, test)
    assert tagged_accuracy([["O", "N"], ["V"]], [["N", "N"], ["N"]]) == 0.5


@pytest.mark.full
def test_intrinsic_suite_runs_at_test_scale(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, shown = run("elmo_intrinsic")
    assert code == 0, shown
    for name in ("ud_english_ewt", "micro_sense"):
        assert f"| {name} | nearest average |" in shown
    assert "micro_elmo_test, layer 2 |" in shown and "most frequent tag of the word" in shown
    before = files(tmp_path)
    assert len(before) == 2 * (1 + 4 + 4)  # the baseline; averages and probes of 3 layers and 1
    assert run("elmo_intrinsic")[0] == 0 and files(tmp_path) == before
    result, usual = (
        json.loads(next((tmp_path / "results").glob(f"*/micro_sense/{name}")).read_text())
        for name in ("micro_elmo*.nearest-layer_0*", "no_encoder*")
    )
    assert result["metrics"] == usual["metrics"]  # a word without context has no sense


@pytest.mark.full
def test_intrinsic_suite_reads_a_custom_tagged_file(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"1 the O\n2 bank {'MONEY' if i % 2 else 'RIVER'}\n3 {'lent' if i % 2 else 'grew'} O\n"
             for i in range(40)]  # fmt: skip
    (tmp_path / "senses.conll").write_text("\n".join(lines))
    columns = ["--task-file", "senses.conll", "--text", "1", "--label", "2"]
    code, shown = run("elmo_intrinsic", *columns)
    assert code == 0, shown
    assert "| senses_conll | nearest average |" in shown and "micro_sense" not in shown
    assert "elmo_test, layer 1 |" in shown
    (tmp_path / "texts.csv").write_text(
        "text,label\n" + "".join(f"a{i},{i % 2}\n" for i in range(30))
    )
    code, shown = run("elmo_intrinsic", "--task-file", "texts.csv")
    assert code == 2 and "Senses need a label per word" in shown


@pytest.mark.full
def test_every_name_of_sense_task_occurs_with_three_tags():
    task = probes.sense_task()
    seen = {}
    for split in ("train", "test"):
        for example in task.read(None, split):
            for word, tag in zip(example.text, example.label, strict=True):
                if tag != "O":
                    seen.setdefault(split, {}).setdefault(word, set()).add(tag)
    assert len(seen["train"]) == probes.NAMES == len(seen["test"])
    assert {len(tags) for tags in seen["train"].values()} == {3}
