"""The check `probes`: linear heads trained together, next to L-BFGS on the same features.

`fit_probes` trains linear heads with AdamW, with the dropout of the suites and without, and takes
the best epoch on the dev set. The reference minimises the cross-entropy of one head with scipy's
L-BFGS, for several strengths of an L2 penalty. All take the best score on the dev set.
"""

import dataclasses
import functools
import time
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from keras_plm.checkpoints.packages import model_name
from keras_plm.datasets.tasks import TASKS
from keras_plm.experiments.config import LINEAR_RATES, Run
from keras_plm.experiments.environment import environment
from keras_plm.experiments.runner import Runner
from keras_plm.files.json_files import read_json
from keras_plm.files.writing import write_json
from keras_plm.transfer.layer_choices import layer_choice
from keras_plm.transfer.probing.probes import Probe, fit_probes

TASKS_READ = {"wikigold": 0, "sst2": 20_000, "snli": 20_000}  # {task: most training examples}
LAYERS = ("embeddings", "layer_4", "last", "concat_last_four")
PENALTIES = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
ITERATIONS = 500
DROPOUTS = {"together": 0.1, "without_dropout": 0.0}  # fields of a row, and dropout of their fits


def reference(features, targets, labels, penalty):
    """Minimises the mean cross-entropy of a linear head plus `penalty / 2 |W|²`.

    Args:
        features: (N, F) float32.
        targets: (N,) ids of K labels.
        labels: K.
        penalty: Weight of the penalty.

    Returns:
        `(W, b)`: (F, K) and (K,).
    """
    count, width = features.shape
    rows = np.arange(count)

    def value_and_gradient(flat):
        kernel = flat[: width * labels].reshape(width, labels)
        logits = features @ kernel.astype("float32") + flat[width * labels :]
        logits -= logits.max(axis=1, keepdims=True)
        shares = np.exp(logits)
        sums = shares.sum(axis=1)
        value = np.mean(np.log(sums) - logits[rows, targets]) + penalty / 2 * np.sum(kernel**2)
        shares /= sums[:, None]
        shares[rows, targets] -= 1
        of_kernel = features.T @ shares.astype("float32") / count + penalty * kernel
        return value, np.concatenate([of_kernel.ravel(), shares.mean(axis=0)])

    found = minimize(
        value_and_gradient, np.zeros((width + 1) * labels), jac=True, method="L-BFGS-B",
        options={"maxiter": ITERATIONS},
    )  # fmt: skip
    return found.x[: width * labels].reshape(width, labels), found.x[width * labels :]


def check_probes(encoder, data, cache, out, progress, feature_gb=8.0):
    """Compares the two on the dev set of each task and layer choice, and writes a JSON file.

    A second call with the same file resumes after the last finished measurement.

    Args:
        encoder: Folder or name of an encoder.
        data, cache: Folders of data and of features.
        out: The JSON file.
        progress: Called with a line of text.
        feature_gb: Largest size of the features of a task, in gigabytes.
    """
    kept = read_json(out, dict) if Path(out).is_file() else {}
    rows = kept.get("rows", []) if kept.get("encoder") == model_name(encoder) else []
    rows = {(row["task"], row["layers"]): row for row in rows}
    for name, limit in TASKS_READ.items():
        of_task = [rows.get((name, choice), {}) for choice in LAYERS]
        if all({"lbfgs", *DROPOUTS} <= set(row) for row in of_task):
            progress(f"{name}: {out} has its rows")
            continue
        runner = Runner(TASKS[name], data, encoder, str(Path(out).parent), cache, feature_gb)
        run = Run("features", layers="last", train_limit=limit)
        parts = runner.train_examples(run), runner.dev_examples(run)
        stores = [runner.features.of(run, 0, part) for part in parts]
        sizes = {"train": len(parts[0]), "dev": len(parts[1])}
        fits = functools.partial(_fits, runner, run, parts, stores)
        minimum = functools.partial(_minimum, runner, run, parts, stores)

        def keep(choice, name=name, sizes=sizes, runner=runner, **found):
            row = rows.setdefault((name, choice), {"task": name, "layers": choice})
            row.update(sizes | found)
            write_json(out, {"encoder": runner.name, "rows": [*rows.values()], **environment()})

        for field, dropout in DROPOUTS.items():
            if any(field not in row for row in of_task):
                begun = time.monotonic()
                best = fits(dropout)
                seconds = time.monotonic() - begun
                for choice, score in best.items():
                    keep(choice, **{field: score, f"seconds_{field}": seconds})
                shown = ", ".join(f"{choice} {100 * score:.1f}" for choice, score in best.items())
                progress(f"{name}, one fit with dropout {dropout:g}: {shown}")
        for choice in LAYERS:
            if "lbfgs" not in rows[name, choice]:
                begun = time.monotonic()
                scores = minimum(choice)
                best, seconds = max(scores.values()), time.monotonic() - begun
                keep(choice, lbfgs=best, scores=scores, seconds_lbfgs=seconds)
                progress(f"{name} {choice}: {100 * best:.1f} L-BFGS")


def _fits(runner, run, parts, stores, dropout):
    """Returns the best dev score of each choice of layers in one fit of all learning rates."""
    run = dataclasses.replace(run, dropout=dropout)
    method, head = run.build(run.grid[0], 0), run.head(runner.task)
    labels, metric = head.labels_of(parts[0]), next(iter(runner.task.metrics.values()))
    rates = {choice: [float(r) for r in LINEAR_RATES.split(",")] for choice in LAYERS}
    best = dict.fromkeys(LAYERS, 0.0)
    for _, probes in fit_probes(method, head, stores, *parts, labels, metric, rates):
        for probe, trained in probes.items():
            best[probe.layers] = max(best[probe.layers], trained.log["dev_score"] or 0.0)
    return best


def _minimum(runner, run, parts, stores, choice):
    """Returns the dev score of L-BFGS on a choice of layers, by penalty."""
    method, head = run.build(run.grid[0], 0), run.head(runner.task)
    labels, metric = head.labels_of(parts[0]), next(iter(runner.task.metrics.values()))
    truth = [example.label for example in parts[1]]
    targets = head.targets(parts[0], labels)
    if head.per_word:  # a long sentence is cut
        targets = [of[:n] for of, n in zip(targets, stores[0].counts, strict=True)]
    targets = np.concatenate([np.ravel(of_example) for of_example in targets])
    layers = stores[0].array.shape[1]
    indices = layer_choice(choice).indices(layers)
    features = np.asarray(stores[0].array)[:, indices].astype("float32")
    flat, scores = features.reshape(len(features), -1), {}
    for penalty in PENALTIES:
        kernel, bias = reference(flat, targets, len(labels), penalty)
        kernel = kernel.reshape(len(indices), -1, len(labels))
        probe = Probe(layer_choice(choice), {"kernel": kernel, "bias": bias}, {})
        network = probe.task_network(head, labels, layers)
        reader = dataclasses.replace(method, layers=choice)
        scores[str(penalty)] = metric(truth, reader.predict(head, network, stores[1], labels))
    return scores
