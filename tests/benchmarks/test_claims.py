"""Published orderings: the rows, and their verdicts on planted results."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import pages
from benchmarks.__main__ import main
from benchmarks.claims import CLAIMS, verdicts
from benchmarks.claims.judge import (
    VERDICTS,
    counts,
    counts_line,
    judge,
    left_out,
    markdown,
    text,
)
from benchmarks.claims.match import ANY, FOLDERS, Arm, Claim, Results, paired, row
from benchmarks.suites import SUITES
from keras_plm import metrics
from keras_plm.datasets.tasks import TASKS
from keras_plm.experiments.config import Run
from keras_plm.experiments.results import ResultFolder
from keras_plm.experiments.statistics import summands
from keras_plm.files.writing import write_json
from keras_plm.transfer import LAYER_CHOICES
from tests import ROOT

pytestmark = pytest.mark.backend_neutral
# Tasks of suites that use no task of `TASKS`. Senses come from the user's tagged text.
OWN = {"seq2seq": "multi30k_en_de", "word_vectors": "word_vectors", "language_models": "wikitext2",
       "elmo_intrinsic": "semcor", "edge_probing": "edges"}  # fmt: skip
READERS = (
    "linear",
    "bilstm",
    "bcn",
)  # that a `Run` knows already; the others come with their wires


def arm(name, task="sst5", **more):
    fields = {"method": "features", "layers": "last"}
    return Arm(name, "first", task, name, fields, **more)


def claim(better="a", worse="b", source="a paper, table 1", name="", task="sst5"):
    arms = [arm(better, task), arm(worse, task)]
    return row(name or f"{better}-{worse}", *arms, source, (2.0, 1.0))


def plant(root, name, right, examples=True, hash="h", task="sst5", **fields):
    """Writes results of an encoder of this name; `right` (S, N) marks the correct answers."""
    run = Run(**{"method": "features", "layers": "last", **fields})
    for seed, of_seed in enumerate(np.asarray(right, float)):
        path = Path(root) / "first" / task / f"{name}.{run.name}.seed{seed}.json"
        score = float(of_seed.mean())
        result = {
            "task": task, "encoder": name, "method": run.method, "run": run.name,
            "settings": run.to_json(), "seed": seed, "score": score, "metrics": {"accuracy": score},
            "counts": {"train": 100, "test": len(of_seed)}, "trials": [], "inputs": name,
            "hash": f"{hash}{seed}",
        }  # fmt: skip
        write_json(path, result)
        if examples:
            parts = np.stack([of_seed, np.ones_like(of_seed)], axis=1)
            kept = ResultFolder(path.parent)
            kept.write_examples(path.name, result["hash"], {"accuracy": ("mean", parts)})
    return path


def answers(share, seeds=3, count=300, seed=0, deviation=0.0):
    """Draws which answers are correct. Some questions are hard, and seeds may differ."""
    rng = np.random.default_rng(seed)
    hard = np.random.default_rng(12345).normal(0, 0.2, count)
    shares = share + deviation * rng.normal(size=seeds)
    return rng.random((seeds, count)) < (shares[:, None] + hard)


def judged(root, *claims, **options):
    claims = claims or (claim(),)
    return judge(claims, root, **{"resamples": 2000, **options})


def refused(root):
    """Returns the reason why the results of the only claim were not read."""
    (row,) = judged(root)
    assert row["verdict"] == "not run" and row["left_out"] in row["note"]
    return row["left_out"]


def scored(root, name, scores, **fields):
    """Writes results with these scores, in points, and without examples."""
    path = plant(root, name, np.zeros((len(scores), 300)), examples=False, **fields)
    for seed, score in enumerate(scores):
        path = path.with_name(f"{path.name.partition('.seed')[0]}.seed{seed}.json")
        result = json.loads(path.read_text())
        write_json(path, result | {"score": score / 100, "metrics": {"accuracy": score / 100}})


def test_arms_of_other_examples_are_judged_by_their_draws(tmp_path):
    """Each side has own examples; an undefined score in one resample leaves no verdict."""
    rng = np.random.default_rng(0)

    def verdict(better, worse):
        arms = [
            Arm(
                label,
                "first",
                "sst5",
                read=lambda _, d=d: dict(enumerate(d[0])),
                draws=lambda _, d=d: d,
            )
            for label, d in (("high", better), ("low", worse))
        ]
        (found,) = judge([row("a", *arms, "A paper, table 1")], tmp_path)
        return found

    low, high = (rng.normal(mean, 0.01, (2001, 3)) for mean in (0.5, 0.6))
    found = verdict(high, low)
    assert found["verdict"] == "reproduced" and found["effect"] == pytest.approx(10, abs=1)
    assert found["low"] < found["effect"] < found["high"]
    assert verdict(low, high)["verdict"] == "contradicted"
    assert verdict(low, low[:, ::-1])["verdict"] == "not separable"
    high[7, 1] = np.nan
    found = verdict(high, low)
    assert found["verdict"] == "not separable" and "undefined in some resamples" in found["note"]
    assert found["p"] is None and found["effect"] == pytest.approx(10, abs=1)


class TestRows:
    def test_claims_have_unique_names_and_statements(self):
        assert len(CLAIMS) >= 40
        assert all(name == claim.name for name, claim in CLAIMS.items())
        said = [(c.source, c.statement, c.task) for c in CLAIMS.values()]
        assert len(set(said)) == len(said)

    def test_claims_refer_to_existing_suites_tasks_and_settings(self):
        for claim in CLAIMS.values():
            assert claim.source, claim.name
            for arm in (claim.better, claim.worse):
                assert arm.suite in SUITES or arm.suite in FOLDERS, claim.name
                if arm.suite in SUITES:
                    assert (arm.scale or "small") in SUITES[arm.suite].scales, claim.name
                assert arm.task in TASKS or OWN[arm.suite] == arm.task, claim.name
                assert arm.task == claim.task and "micro" not in arm.task, claim.name
                if arm.where is None and arm.read is None:
                    assert arm.encoder and "method" in arm.fields, claim.name
                    fields = {n: v for n, v in arm.fields.items() if v is not ANY}
                    if fields.get("reader", "linear") in READERS:
                        Run(**fields)  # raises for settings that do not go together
                else:
                    assert not arm.encoder and not arm.fields, claim.name

    def test_statement_direction_matches_arms_and_published_figures(self):
        for claim in CLAIMS.values():
            assert claim.statement == f"{claim.better.label} > {claim.worse.label}"
            assert claim.statement.count(" > ") == 1 and claim.better != claim.worse
            if claim.published is not None:
                better, worse = claim.published
                assert (better < worse) if claim.lower else (better > worse), claim.name
            for arm in (claim.better, claim.worse):
                words = arm.label.replace(" ", "_")
                if "layers" in arm.fields and words.removesuffix("_layer") in LAYER_CHOICES:
                    assert words.removesuffix("_layer") == arm.fields["layers"], claim.name
                for word, method in (("fine-tuned", "fine_tune"), ("pre-training", "scratch"),
                                     ("random weights, all trained", "scratch"),
                                     ("random weights", "scratch"),
                                     (" read", "features")):  # fmt: skip
                    if arm.label.endswith(word) and arm.read is None:
                        assert arm.fields.get("method") == method, arm.label

    def test_published_figures_equal_a_second_copy(self):
        """Compares the figures with a second copy of some rows of the papers."""
        figures = {name: claim.published for name, claim in CLAIMS.items()}
        assert figures["elmo-t2-last-baseline-snli"] == (89.1, 88.1)
        assert figures["elmo-t3-both-mix-squad"] == (85.6, 85.1)
        assert figures["gpt-t5-lstm-mrpc"] == (83.2, 82.3)
        assert figures["gpt-t5-no-auxiliary-qqp"] == (70.3, 69.8)
        assert figures["bert-t5-masked-left-snli"] == (83.9, 82.1)
        assert figures["bert-t8-frozen-100-0-0"] == (94.9, 94.0)
        assert figures["tune-bert-stsb"] == (87.1, 82.9)
        assert CLAIMS["elmo-t2-mix-last-wikigold"].on == "SQuAD F1"

    @pytest.mark.full
    def test_unverified_claims_are_marked_unverified(self):
        tune = [c for c in CLAIMS.values() if c.name.startswith("tune-")]
        assert tune and not any(c.verified for c in tune)
        assert not CLAIMS["liu-t1-ewt"].verified and CLAIMS["liu-lstm-higher"].verified
        shown = markdown([r for r in verdicts(ROOT / "benchmarks" / "results", 1000)
                          if r["name"].startswith("tune-")])  # fmt: skip
        assert "92.4 and 92.2 (CoNLL-2003 F1), unverified" in shown

    def test_both_papers_have_five_or_more_conclusions(self):
        concluded = [c for c in CLAIMS.values() if c.conclusion]
        for paper in ("Peters et al. 2018", "Devlin et al. 2018"):
            assert sum(c.source.startswith(paper) for c in concluded) >= 5


class TestPlanted:
    def test_true_difference_is_reproduced_and_reverse_contradicted(self, tmp_path):
        plant(tmp_path, "a", answers(0.7, seed=1))
        plant(tmp_path, "b", answers(0.5, seed=2))
        there, back = judged(tmp_path, claim(), claim("b", "a", "another paper, table 1"))
        assert there["verdict"] == "reproduced" and there["basis"] == "examples and seeds"
        assert there["low"] < there["effect"] < there["high"] and there["low"] > 0
        assert there["effect"] == pytest.approx(20, abs=4) and there["p"] < 0.01
        assert there["detectable"] == pytest.approx(2.8 * (there["high"] - there["low"]) / 3.92)
        assert there["metric"] == "accuracy" and there["means"] == pytest.approx((70, 50), abs=4)
        assert there["effect"] == pytest.approx(there["means"][0] - there["means"][1])
        assert there["seeds"] == (3, 3) and there["published"] == (2.0, 1.0)
        assert back["verdict"] == "contradicted"
        assert back["effect"] == pytest.approx(-there["effect"])

    @pytest.mark.full
    def test_detectable_difference_is_found_in_80_percent_of_cases(self, tmp_path):
        """Plants the smallest detectable difference many times."""
        n = 160
        claims = [claim(f"a{i}", f"b{i}", f"paper {i}, table 1") for i in range(n)]
        size = 0.0  # the first pass finds the detectable size, the second one plants it
        for _ in range(2):
            for i in range(n):
                plant(tmp_path, f"a{i}", answers(0.4 + size, 3, 200, 2 * i, 0.03))
                plant(tmp_path, f"b{i}", answers(0.4, 3, 200, 2 * i + 1, 0.03))
            found = judged(tmp_path, *claims, resamples=1000)
            size = np.median([r["detectable"] for r in found]) / 100
        detected = sum(r["verdict"] == "reproduced" for r in found)
        assert detected > 0.75 * n  # 0.8 minus 1.6 standard errors

    @pytest.mark.full
    def test_equal_methods_are_rarely_judged_different(self, tmp_path):
        """Equal methods differ significantly in at most about 5 % of 80 repetitions."""
        for deviation, most in ((0.0, 5), (0.06, 9)):
            root, claims = tmp_path / str(deviation), []
            for i in range(80):
                claims.append(claim(f"a{i}", f"b{i}", f"paper {i}, table 1"))
                for j, name in enumerate((f"a{i}", f"b{i}")):
                    plant(root, name, answers(0.6, 3, 150, 2 * i + j, deviation))
            found = counts(judged(root, *claims, resamples=1000))
            assert found["not separable"] >= 80 - most
            assert found["reproduced"] + found["contradicted"] == 80 - found["not separable"]

    def test_claim_without_results_is_not_run(self, tmp_path):
        plant(tmp_path, "a", answers(0.7))
        (found,) = judged(tmp_path)
        assert found["verdict"] == "not run" and found["effect"] is None and found["p"] is None
        assert found["note"] == "no result of b"
        assert {r["verdict"] for r in verdicts(tmp_path)} == {"not run"}

    def test_holm_correction_covers_one_published_table(self, tmp_path):
        for share in np.arange(0.02, 0.2, 0.005):
            plant(tmp_path, "a", answers(0.5 + share, seed=1))
            plant(tmp_path, "b", answers(0.5, seed=2))
            (alone,) = judged(tmp_path)
            if alone["p"] < 0.045:
                break
        assert 0.0125 < alone["p"] < 0.05 and alone["verdict"] == "reproduced"
        others = []
        for i in range(3):
            plant(tmp_path, f"c{i}", answers(0.6, seed=2 * i))
            plant(tmp_path, f"d{i}", answers(0.6, seed=2 * i))
            others.append(claim(f"c{i}", f"d{i}"))
        first, *_ = judged(tmp_path, claim(), *others)
        assert first["p"] == alone["p"] and first["adjusted"] == pytest.approx(4 * alone["p"])
        assert first["verdict"] == "not separable"
        elsewhere = [dataclasses.replace(c, source="a paper, table 2") for c in others]
        assert judged(tmp_path, claim(), *elsewhere)[0]["verdict"] == "reproduced"

    def test_equal_seeds_produce_equal_verdicts(self, tmp_path):
        plant(tmp_path, "a", answers(0.62, seed=1))
        plant(tmp_path, "b", answers(0.6, seed=2))
        assert judged(tmp_path) == judged(tmp_path)
        assert judged(tmp_path)[0]["low"] != judged(tmp_path, seed=1)[0]["low"]
        # Other claims change only Holm's correction.
        with_other = judged(tmp_path, claim(), claim("b", "a"))[0]
        assert {**with_other, "adjusted": 0} == {**judged(tmp_path)[0], "adjusted": 0}

    def test_claim_compares_two_gains(self, tmp_path):
        for i, (name, share) in enumerate({"a": 0.8, "b": 0.5, "c": 0.6, "d": 0.55}.items()):
            plant(tmp_path, name, answers(share, count=600, seed=i))
        one, two = arm("a", minus=arm("b")), arm("c", minus=arm("d"))
        (found,) = judged(tmp_path, row("gain", one, two, "a paper, table 1"))
        assert found["verdict"] == "reproduced" and found["effect"] == pytest.approx(25, abs=6)


class TestSeedsWithoutExamples:
    def verdict(self, tmp_path, one, two):
        scored(tmp_path, "a", one)
        scored(tmp_path, "b", two)
        return judged(tmp_path)[0]

    def test_three_seeds_yield_a_descriptive_verdict(self, tmp_path):
        found = self.verdict(tmp_path, [60, 61, 62], [50, 51, 52])
        assert found["verdict"] == "reproduced (descriptive)" and found["p"] is None
        assert found["basis"] == "seeds, descriptive" and "not kept" in found["note"]
        # Welch's interval of 10, by hand: two deviations of 1, t of 4 degrees of freedom 2.776.
        half = 2.776 * (2 / 3) ** 0.5
        assert [found["low"], found["high"]] == pytest.approx([10 - half, 10 + half], abs=1e-2)
        assert found["detectable"] is None  # there is no test
        found = self.verdict(tmp_path, [50, 51, 52], [60, 61, 62])
        assert found["verdict"] == "contradicted (descriptive)"

    @pytest.mark.parametrize("one,two", [
        ([60, 61, 62], [50, 51, 60.5]),  # they overlap
        ([60, 61, 90], [50, 51, 59]),  # they do not, but the interval holds 0
        ([60, 61], [50, 51, 52]),  # two seeds
        ([60, 60, 60], [60, 60, 60]),
    ])  # fmt: skip
    def test_few_seeds_without_clear_gap_are_not_separable(self, tmp_path, one, two):
        found = self.verdict(tmp_path, one, two)
        assert found["verdict"] == "not separable" and found["low"] <= found["high"]

    def test_one_seed_has_no_interval(self, tmp_path):
        found = self.verdict(tmp_path, [60], [50, 51, 52])
        assert found["verdict"] == "not separable" and found["effect"] == pytest.approx(9)
        assert found["low"] is None and found["detectable"] is None and "one run" in found["basis"]

    def test_eight_seeds_allow_a_significance_test(self, tmp_path):
        found = self.verdict(tmp_path, np.linspace(60, 64, 8), np.linspace(57, 61, 8))
        assert found["verdict"] == "reproduced" and found["basis"] == "seeds"
        assert found["p"] < 0.01 and "of these test examples" in found["note"]
        width = found["high"] - found["low"]
        assert found["detectable"] == pytest.approx(2.8 * width / 3.92)
        found = self.verdict(tmp_path, np.linspace(60, 64, 8), np.linspace(59.9, 63.9, 8))
        assert found["verdict"] == "not separable" and found["p"] > 0.5

    def test_descriptive_rule_has_below_5_percent_false_positives(self):
        """At most one pair in twenty, as the rules state."""
        rng, separated = np.random.default_rng(0), 0
        from scipy.stats import ttest_ind

        one, two = rng.normal(size=(2, 20_000, 3))
        apart = (one.min(1) > two.max(1)) | (two.min(1) > one.max(1))
        separated = np.mean(apart & (ttest_ind(one, two, axis=1, equal_var=False).pvalue < 0.05))
        assert 0.02 < separated < 0.05

    def test_missing_examples_or_two_seeds_weaken_the_verdict(self, tmp_path):
        plant(tmp_path, "a", answers(0.8, 3))
        path = plant(tmp_path, "b", answers(0.5, 3, seed=1))
        path.with_suffix(".npz").unlink()
        (found,) = judged(tmp_path)
        assert found["verdict"] == "reproduced (descriptive)"
        assert found["note"] == "examples of 1 of 3 seeds of b not kept"
        path.unlink()  # two seeds, with their examples
        (found,) = judged(tmp_path)
        assert found["verdict"] == "not separable" and found["p"] is None
        assert found["low"] > 0 and "fewer than 3 seeds" in found["note"]


class TestFiles:
    def both(self, root):
        plant(root, "a", answers(0.8))
        return plant(root, "b", answers(0.5, seed=1))

    def test_note_lists_differing_settings(self, tmp_path):
        plant(tmp_path, "a", answers(0.8), epochs=5, batch_size=8)
        plant(tmp_path, "b", answers(0.5, seed=1))
        note = judged(tmp_path)[0]["note"]
        assert "unlike terms, epochs: 5 and 10; unlike terms, batch size: 8 and 32" in note

    def test_runs_with_other_settings_are_ignored(self, tmp_path):
        self.both(tmp_path)
        alone = judged(tmp_path)
        plant(tmp_path, "a", answers(0.1), reader="bilstm")
        plant(tmp_path, "a", answers(0.1), feature_dropout=0.5)
        plant(tmp_path, "a", answers(0.1), train_limit=10)
        assert judged(tmp_path) == alone
        loose = arm("a")
        loose.fields["train_limit"] = ANY
        with pytest.raises(ValueError, match="of one run and seed disagree.*'a' on sst5"):
            Results(tmp_path).runs(loose)

    @pytest.mark.parametrize("text,message", [
        ("{", "b.features-linear-last.seed2.json is not a complete result file"),
        ("[1]", "seed2.json: This is not the result of a run.*must hold an object"),
        ('{"task": "sst5"}', "seed2.json: This is not the result of a run.*`encoder` must be text"),
    ])  # fmt: skip
    def test_damaged_and_foreign_files_are_left_out(self, tmp_path, text, message):
        self.both(tmp_path).write_text(text)
        assert re.search(message, refused(tmp_path))

    def test_damaged_file_affects_only_its_own_task(self, tmp_path, capsys):
        self.both(tmp_path)
        for name in ("a", "b"):
            plant(tmp_path, name, answers(0.5), task="snli")
        other = claim(task="snli")
        alone = judged(tmp_path)[0]
        next((tmp_path / "first" / "snli").glob("*.json")).write_text("{")
        one, two = judged(tmp_path, claim(), other)
        assert one == alone and not one["left_out"]
        assert two["verdict"] == "not run" and "is not a complete result file" in two["left_out"]
        (tmp_path / "first" / "hello.json").write_text('{"hello": 1}')
        assert main(["claims", "--results", str(tmp_path), "--resamples", "1000"]) == 0
        assert "hello.json: skipped: files of the harness" in capsys.readouterr().err
        write_json(tmp_path / "gpt" / "zero_shot" / "gpt_mini.step_000000.json", {"step": 0})
        assert main(["claims", "--results", str(tmp_path), "--resamples", "1000"]) == 0
        assert "move others elsewhere" in capsys.readouterr().err
        flags = ["--docs", "--results", str(tmp_path), "--resamples", "1000"]
        assert main(["claims", *flags]) == 2  # the page does not change
        assert "Pages show only verdicts of complete results" in capsys.readouterr().err

    def test_missing_and_nan_scores_are_refused(self, tmp_path):
        path = self.both(tmp_path)
        result = json.loads(path.read_text())
        for wrong in ({"accuracy": None}, {"accuracy": float("nan")}, {}):
            write_json(path, result | {"metrics": wrong})
            assert re.search("seed2.json must hold a finite score of 'b'", refused(tmp_path))
        write_json(path, result | {"seed": "2"})
        assert re.search(
            "seed2.json: This is not the result of a run.*`seed` must be a whole number",
            refused(tmp_path),
        )

    def test_conflicting_results_of_one_seed_are_refused(self, tmp_path):
        path = self.both(tmp_path)
        copied = path.with_name("copy.seed2.json")
        copied.write_text(path.read_text())
        assert judged(tmp_path)[0]["seeds"] == (3, 3)  # two equal results count once
        result = json.loads(path.read_text())
        write_json(copied, result | {"metrics": {"accuracy": 0.1}})
        assert re.search("seed disagree: remove one.*'b' on sst5.*copy.seed2", refused(tmp_path))
        write_json(copied, result | {"seed": 3, "inputs": "other weights"})
        assert re.search("Seeds of one run share settings", refused(tmp_path))

    def test_examples_must_belong_to_their_result(self, tmp_path):
        path = self.both(tmp_path)
        parts, kept = np.ones((300, 2)), ResultFolder(path.parent)
        kept.write_examples(path.name, "another run", {"accuracy": ("mean", parts)})
        (found,) = judged(tmp_path)
        assert found["basis"] == "seeds, descriptive" and "are another run's" in found["note"]
        kept.write_examples(path.name, "h2", {"accuracy": ("mean", parts)})
        assert re.search("gives another accuracy than the result next to it", refused(tmp_path))
        path.with_suffix(".npz").write_bytes(b"PK nothing")
        assert re.search("must be a whole .npz file", refused(tmp_path))

    def test_arms_with_different_examples_are_refused(self, tmp_path):
        plant(tmp_path, "a", answers(0.8))
        plant(tmp_path, "b", answers(0.5, count=200))
        assert re.search("must have the same examples.*a-b", refused(tmp_path))

    def test_pairing_requires_equal_true_labels(self):
        rng = np.random.default_rng(0)
        true, other = rng.random((2, 50)) < 0.5
        for kind, metric in (("f1", metrics.f1), ("matthews", metrics.matthews_correlation),
                             ("correlation", metrics.spearman_correlation)):  # fmt: skip
            guessed = [rng.random(50) < 0.5 for _ in range(3)]
            parts = [summands(metric, t, g)[1] for t, g in zip((true, true, other), guessed,
                                                               strict=True)]  # fmt: skip
            assert paired(kind, [(1, np.stack(parts[:1])), (-1, np.stack(parts[1:2]))])
            assert not paired(kind, [(1, np.stack(parts[:1])), (-1, np.stack(parts[2:]))])
            assert not paired(kind, [(1, np.stack(parts[::2])), (-1, np.stack(parts[:1]))])

    def test_json_files_other_than_results_are_left_out(self, tmp_path):
        write_json(tmp_path / "gpt" / "zero_shot" / "gpt_mini.step_000000.json", {"step": 0})
        found = verdicts(tmp_path)
        assert {separated["verdict"] for separated in found} == {"not run"}
        assert left_out(found)
        for why in left_out(found):
            assert re.search("below .*gpt must be results of the harness.*'scores'", why)

    def test_missing_folder_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match="`--results` must be a folder of suites"):
            verdicts(tmp_path / "nothing")


class TestCommand:
    def test_command_prints_all_claims_and_writes_counts(self, tmp_path, capsys):
        out = tmp_path / "new" / "verdicts.json"
        plant(tmp_path, "bert_mini", answers(0.7), task="sst2", method="fine_tune", layers="",
              train_limit=10_000)  # fmt: skip
        plant(tmp_path, "bert_mini", answers(0.5, seed=1), task="sst2", method="scratch", layers="",
              train_limit=10_000)  # fmt: skip
        flags = ["--results", str(tmp_path), "--out", str(out), "--resamples", "1000"]
        assert main(["claims", *flags]) == 0
        shown = capsys.readouterr().out
        assert all(claim.statement in shown for claim in CLAIMS.values())
        line = f"{len(CLAIMS)} published orderings: reproduced 1 and descriptively 0 more"
        assert line in shown and "One pre-trained checkpoint of each encoder" in shown
        report = json.loads(out.read_text())
        assert report["counts"]["reproduced"] == 1 and report["resamples"] == 1000
        assert list(report["counts"]) == list(VERDICTS) and not list(out.parent.glob("*.tmp"))
        assert len(report["claims"]) == len(CLAIMS)
        wanted = "name statement task source verdict effect low high p detectable seeds published"
        wanted += " verified note"
        assert set(wanted.split()) <= set(report["claims"][0])

    def test_suite_flag_limits_the_claims(self, tmp_path, capsys):
        assert main(["claims", "--results", str(tmp_path), "--suite", "gpt_ablation"]) == 0
        shown = capsys.readouterr().out
        assert "Radford et al. 2018, table 5" in shown and "Bahdanau" not in shown
        for suite, near in (("gpt_ablatoin", "gpt_ablation"), ("frist", "first")):
            assert main(["claims", "--results", str(tmp_path), "--suite", suite]) == 2
            assert f"Did you mean '{near}'?" in capsys.readouterr().err

    @pytest.mark.parametrize("flags,message", [
        (["--resamples", "10"], "`--resamples` must be 1000 or more"),
        (["--seed", "-1"], "`--seed` must be 0 or more"),
        (["--suite", "first", "--docs"], "`--docs` takes the claims of all suites"),
        (["--results", "nowhere"], "`--results` must be a folder of suites. Received: 'nowhere'"),
    ])  # fmt: skip
    def test_bad_flags(self, flags, message, capsys):
        assert main(["claims", *flags]) == 2
        assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def today():
    return verdicts(ROOT / "benchmarks" / "results")


@pytest.mark.full
def test_current_results_cover_25_or_more_claims(today):
    assert sum(r["verdict"] != "not run" for r in today) >= 25
    assert {r["verdict"] for r in today} <= set(VERDICTS)
    for r in today:
        assert (r["effect"] is None) == (r["verdict"] == "not run")
        assert r["low"] is None or r["low"] <= r["effect"] <= r["high"]
        if r["lower"] and r["means"]:  # perplexities, the effect in hundredths of a nat
            assert r["effect"] == pytest.approx(100 * np.log(r["means"][1] / r["means"][0]))
    assert "180.0 and 220.1: +20.1 hundredths of a nat" in text(today)
    shown = text(today)
    assert counts_line(today) in shown and "unverified" in shown


@pytest.mark.full
def test_pages_show_current_verdicts(today):
    fix = "run `python -m benchmarks claims --docs`"
    assert markdown(today, brief=True) == pages.shown("claims"), fix
    assert markdown(today) == (ROOT / "benchmarks" / "results" / "claims.md").read_text(), fix
    assert "| not separable |" in markdown(today)
    assert "| not separable |" not in markdown(today, brief=True)


def test_claim_derives_statement_and_task_from_its_arms():
    assert isinstance(claim(), Claim) and claim().statement == "a > b" and claim().task == "sst5"
