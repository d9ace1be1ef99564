"""Reintroduces past faults, one at a time, and reports which test notices each.

    python -m tests.faults [quick|all] [backend] [--near] [NAME ...]

Each fault is a copy of the repository in which one text of the library is replaced. The tests
closest to the fault run first. The rest of the tier runs only if none of them fails; `--near`
skips the rest. The quick tier must notice at least 18 of the 20 faults, and both tiers must notice
all.

The faults come from commits drawn at random; `docs/contributing/testing.md` describes how.
"""

import argparse
import dataclasses
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import ROOT
from tests.__main__ import BACKENDS, TIERS, environment_of

NEEDED = {"quick": 18, "all": 20}


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of the past.

    Attributes:
        name: Short description.
        commit: The commit that corrected the fault.
        right: Correct text, which occurs once in the library.
        wrong: Faulty text that replaces it.
        near: The tests that run first.
    """

    name: str
    commit: str
    right: str
    wrong: str
    near: tuple

    def file(self, root=ROOT):
        """The only file of the library that contains `right`."""
        found = [
            p for p in sorted((root / "keras_plm").rglob("*.py")) if self.right in p.read_text()
        ]
        if len(found) != 1 or found[0].read_text().count(self.right) != 1:
            raise ValueError(
                f"The text of the fault {self.name!r} must occur once in the library: update it in "
                f"tests/faults.py. Received: {self.right!r} in {len(found)} files"
            )
        return found[0]

    def put_back(self, root):
        path = self.file(root)
        path.write_text(path.read_text().replace(self.right, self.wrong))


FAULTS = [
    Fault(
        "beams_of_a_fraction",
        "311d954",
        'check_whole(num_beams, "num_beams", least=1)',
        "pass",
        ("tests/keras_plm/decoding/test_decoding.py::test_numbers_of_a_wrong_type_are_refused",),
    ),
    Fault(
        "stored_features_of_another_precision",
        "edc128f",
        "rows.texts, pool, precision, VERSION, *rows.settings",
        "rows.texts, pool, VERSION, *rows.settings",
        ("tests/keras_plm/transfer/test_methods.py::test_a_store_is_keyed_by_precision",),
    ),
    Fault(
        "copies_without_lora",
        "8faa103",
        'thin = [weight.path for weight in encoder.weights if "lora_kernel" in weight.path]',
        "thin = []",
        ("tests/keras_plm/transfer/test_lora.py::test_features_include_the_low_rank_matrices",),
    ),
    Fault(
        "tables_as_lists",
        "209b56f",
        'if single or hasattr(values, "columns"):',
        "if single:",
        ("tests/keras_plm/files/test_sequences.py::test_as_list_refuses_a_table",),
    ),
    Fault(
        "fit_without_targets",
        "cee9afe",
        "labelled = not targets or x.has_targets",
        "labelled = True",
        (
            "tests/keras_plm/files/test_sequences.py::test_fit_and_evaluate_refuse_texts_and_missing_targets",
        ),
    ),
    Fault(
        "validation_generators_read_twice",
        "bbddf03",
        'if not kwargs.get("_use_cached_eval_dataset"):',
        "if True:",
        ("tests/house/test_arguments.py::test_fit_evaluates_all_steps_of_a_validation_generator",),
    ),
    Fault(
        "logged_metrics_of_padding",
        "f8afb00",
        "return weights / ops.maximum(ops.max(rows), 1e-9)",
        "return weights",
        ("tests/keras_plm/data/test_batching.py::test_metrics_in_logs_count_real_rows",),
    ),
    Fault(
        "empty_texts",
        "0bc88f7",
        "and (not words or any(map(is_empty, words)))",
        "and False",
        ("tests/keras_plm/data/test_text_files.py::TestTables",),
    ),
    Fault(
        "rows_of_more_columns",
        "7ac6fd8",
        "if len(columns) != width[0]:",
        "if False:",
        ("tests/keras_plm/data/test_text_files.py::TestCoNLL",),
    ),
    Fault(
        "labels_of_long_word_lists",
        "eef6416",
        "if lists and words:\n            texts, self.examples_of",
        "if lists:\n            texts, self.examples_of",
        ("tests/keras_plm/heads/test_heads.py::test_long_word_lists_are_classified_once",),
    ),
    Fault(
        "logsumexp_of_an_impossible_word",
        "f8d2808",
        "return largest - logits.log_softmax(-1).gather(1, place[:, None])[:, 0]",
        "return logits[:, 0] - logits.log_softmax(-1)[:, 0]",
        (
            "tests/keras_plm/pretraining/test_bilm.py::test_logsumexp_stays_precise_with_very_low_logits",
        ),
    ),
    Fault(
        "pairs_for_a_head_of_single_texts",
        "a988d54",
        "if (example.pair is not None) != head.trained_on_pairs:",
        "if False:",
        (
            "tests/keras_plm/transfer/test_methods.py::test_predict_refuses_another_input_kind_than_in_training",
        ),
    ),
    Fault(
        "batches_changed_by_an_objective",
        "eed0078",
        "return self._changed(collate=collate, evaluation=None)",
        "self.collate = collate\n        return self",
        ("tests/keras_plm/transfer/test_gpt.py::TestAuxiliaryObjective",),
    ),
    Fault(
        "unknown_arguments_of_bert",
        "3703fbb",
        "norm_epsilon: float = 1e-12,\n        trainable: bool = True,\n        dtype: str | keras."
        "DTypePolicy | None = None,\n        name: str | None = None,",
        "norm_epsilon: float = 1e-12,\n        trainable: bool = True,\n        dtype: str | keras."
        "DTypePolicy | None = None,\n        name: str | None = None, **kwargs,",
        ("tests/keras_plm/models/test_bert.py::test_refuses_unknown_arguments",),
    ),
    Fault(
        "class_weights_without_effect",
        "e8583bb",
        "known = (y >= 0) & (y < len(class_weight))",
        "known = np.zeros(np.shape(y), bool)",
        ("tests/keras_plm/training/test_class_weight.py",),
    ),
    Fault(
        "batches_of_no_rows",
        "98fabf6",
        "check_whole(tokens_per_batch if batch_size is None else batch_size, size, least=1)",
        "check_whole(tokens_per_batch if batch_size is None else batch_size, size)",
        ("tests/keras_plm/data/test_batching.py::test_bad_input_is_explained",),
    ),
    Fault(
        "evaluation_by_weights_of_training",
        "05cec92",
        "found = self._changed(**changed)",
        "found = self",
        ("tests/keras_plm/training/test_evaluation.py",),
    ),
    Fault(
        "decoding_of_nan",
        "6148425",
        "check_outputs(scores[np.isnan(scores)])",
        "pass",
        (
            "tests/keras_plm/training/test_diverged.py::test_generate_refuses_weights_that_are_not_finite",
        ),
    ),
    Fault(
        "blocks_without_numbers",
        "a737f36",
        "if found != list(range(count)):",
        "if False:",
        (
            "tests/keras_plm/training/optimizers/test_layer_groups.py::test_blocks_of_other_names_are_refused",
            "tests/keras_plm/transfer/test_gpt.py::TestTransferOfLayers",
        ),
    ),
    Fault(
        "tokenizer_settings_not_obeyed",
        "d19eacc",
        "if said[CONFIG].get(key) not in (None, value):",
        "if False:",
        (
            "tests/keras_plm/checkpoints/test_tokenizer.py"
            "::test_unsupported_and_conflicting_settings_are_refused",
        ),
    ),
]


def copy_to(folder):
    """Copies the repository, with links to results and weights, which tests only read."""
    linked = [ROOT / "benchmarks" / name for name in ("results", "weights")]

    def left_out(path, names):
        own = {p.name for p in linked if p.parent == Path(path)}
        hidden = {name for name in names if name.startswith(".") or name == "__pycache__"}
        return own | hidden

    shutil.copytree(ROOT, folder, ignore=left_out)
    for path in linked:
        (folder / path.relative_to(ROOT)).symlink_to(path)


def first_failure(folder, backend, tier, paths):
    """Returns the name of the first test that fails, or `None`."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--tb=no", "-W", "ignore"]
    command += ["-p", "no:cacheprovider", *TIERS[tier], *paths]
    done = subprocess.run(
        command, cwd=folder, env=environment_of(backend), capture_output=True, text=True
    )
    if done.returncode not in (0, 1, 5):  # 5: none of these tests is in this tier
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return found and found[1]


def noticed_by(fault, backend, tier, near_only=False):
    """Returns the name of a test that notices a fault, or `None`."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "copy"
        copy_to(folder)
        fault.put_back(folder)
        found = first_failure(folder, backend, tier, fault.near)
        if found is None and not near_only:
            found = first_failure(folder, backend, tier, ["tests"])
        return found


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="TIER, BACKEND or NAME")
    parser.add_argument("--near", action="store_true", help="run only the tests of each fault")
    flags = parser.parse_args()
    tier = next((word for word in flags.words if word in NEEDED), "quick")
    backend = next((word for word in flags.words if word in BACKENDS), "torch")
    names = [word for word in flags.words if word not in (tier, backend)]
    chosen = [fault for fault in FAULTS if not names or fault.name in names]
    count = 0
    for fault in chosen:
        test = noticed_by(fault, backend, tier, flags.near)
        count += test is not None
        print(f"{fault.commit} {fault.name}: {test or 'NOT NOTICED'}", flush=True)
    print(f"TOTAL: {tier}, {backend}: {count} of {len(chosen)} faults noticed")
    return int(count < min(len(chosen), NEEDED[tier]))


if __name__ == "__main__":
    sys.exit(main())
