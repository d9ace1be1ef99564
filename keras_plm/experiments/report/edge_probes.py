"""Results of `keras-plm edge-probing`: their files, the table, and intervals."""

from pathlib import Path

import numpy as np

from keras_plm.experiments.statistics import contrast_of, resampled
from keras_plm.files.json_files import read_json
from keras_plm.files.numpy_files import read_npz
from keras_plm.files.writing import replacing, write_json
from keras_plm.transfer.probing.edge_probing import expected_layers

RECORD = {
    "key": str, "task": str, "random": bool, "layers": [float], "cumulative": [float],
    "expected_layer": (float, None), "centre_of_gravity": float,
}  # fmt: skip
PROBES = ("layers", "cumulative")  # the lists of scores of a record
LEVEL = 0.05
LEGEND = (
    "Bold: not separable from the best layer; a row without counts of test sentences has none. "
    "In brackets: 95 % interval of the expected layer. "
    "none: the mix of all layers is no better than the embeddings; [none]: in some resamples."
)


def read_records(path):
    """Reads a file of results of `edge-probing`.

    Raises:
        ValueError: If the file is no such file, or a record has no layers.
    """
    records = read_json(path, [RECORD], description="results of edge-probing")
    for record in records:
        if not record["layers"] or len(record["layers"]) != len(record["cumulative"]):
            raise ValueError(
                f"{path}: A record must have equal numbers of `layers` and `cumulative`. "
                f"Received: {len(record['layers'])} and {len(record['cumulative'])}"
            )
    return records


def read_counts(path, records):
    """Reads the counts of test examples, from the file NAME.npz next to the results NAME.json.

    Args:
        path: Path of the results.
        records: Result of `read_records`.

    Returns:
        `{key of a record: counts}`, see `LayerReport.counts`. It has no entry for records without
        counts.

    Raises:
        ValueError: If the file is damaged, or gives other scores than a record.
    """
    path, found = Path(path).with_suffix(".npz"), {}
    if not path.exists():
        return found
    arrays = read_npz(path, str(path))
    for record in records:
        names = {name: f"{record['key']}.{name}" for name in PROBES}
        if not any(name in arrays for name in names.values()):
            continue
        counts = {name: arrays.get(key, np.zeros(0)) for name, key in names.items()}
        for name, of_name in counts.items():
            if not _agree(of_name, record[name]):
                raise ValueError(
                    f"{path} gives other scores than the results next to it: remove both files "
                    f"and run the command again. Received: {names[name]} of shape {of_name.shape}"
                )
        found[record["key"]] = counts
    return found


def _agree(counts, scores):
    if counts.ndim != 3 or counts.shape[::2] != (len(scores), 3) or counts.dtype.kind not in "iuf":
        return False
    right, true, predicted = counts.sum(axis=1, dtype="float64").T
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.where(true + predicted > 0, 2 * right / (true + predicted), 0.0)
    return bool(np.allclose(found, scores, rtol=0, atol=1e-6))


def by_place(counts, examples):
    """Adds up the counts of examples of one place, such as the pieces of a document.

    Args:
        counts: `LayerReport.counts`.
        examples: The N `EdgeExample`s.

    Returns:
        Counts of the places, in the order of their first examples.
    """
    places = [example.where or i for i, example in enumerate(examples)]
    place_of = {place: i for i, place in enumerate(dict.fromkeys(places))}
    rows = np.array([place_of[place] for place in places])
    found = {}
    for name, of_name in counts.items():
        found[name] = np.zeros((len(of_name), len(place_of), 3))
        np.add.at(found[name], (slice(None), rows), of_name)
    return found


def write(path, records, counts):
    """Writes results and the counts of their test examples.

    The counts are written first. An interrupted call leaves at most counts without a record.
    """
    arrays = {
        f"{key}.{name}": of_name.astype("uint16" if of_name.max(initial=0) < 2**16 else "uint32")
        for key, of_record in counts.items()
        for name, of_name in of_record.items()
    }
    if arrays:
        with replacing(Path(path).with_suffix(".npz"), ".npz") as temporary:
            np.savez_compressed(temporary, **arrays)
    write_json(path, records)


def table_of(records, counts=None):
    """Returns a Markdown table: a row for each task and encoder, means over seeds.

    With counts, bold layers are those that are not separable from the best one, and the expected
    layer has an interval over seeds and test sentences (documents for coreference).

    Args:
        records: Results of `edge-probing` for one encoder.
        counts: Result of `read_counts`.
    """
    n = len(records[0]["layers"])
    heads = ["task (F1 on the test set)", *(f"layer_{i}" for i in range(n)), "mix of all"]
    heads += ["expected layer", "centre of gravity"]
    lines = [f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for name, random in dict.fromkeys((r["task"], r["random"]) for r in records):
        own = [r for r in records if (r["task"], r["random"]) == (name, random)]
        of_own = [(counts or {}).get(r["key"]) for r in own]
        kept = None if None in of_own else of_own
        layers = 100 * np.mean([r["layers"] for r in own], axis=0)
        best = _not_below_best(layers, kept)
        cells = [
            f"**{x:.1f}**" if is_best else f"{x:.1f}"
            for x, is_best in zip(layers, best, strict=True)
        ]
        cells.append(f"{100 * np.mean([r['cumulative'][-1] for r in own]):.1f}")
        cells.append(_expected(own, kept))
        cells.append(f"{np.mean([r['centre_of_gravity'] for r in own]):.2f}")
        title = name.replace("_", " ") + ", random encoder" * random
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def resampled_layers(kept, seed=0):
    """Computes the expected layers of all examples, then of resampled ones.

    Args:
        kept: Counts of each seed, see `read_counts`.
        seed: Seed of the resampling. Give tasks of other examples other seeds.

    Returns:
        (1 + R, S), for `statistics.contrast_of`, with NaN as in `expected_layers`.
    """
    return expected_layers(_resampled(kept, "cumulative", seed))


def _resampled(kept, name, seed=0):
    """Returns F1 of all examples, then of resampled ones, (1 + R, S, n)."""
    parts = np.concatenate([of_seed[name] for of_seed in kept]).astype("float64")
    return resampled("f1", parts, seed=seed).reshape(-1, len(kept), len(kept[0][name]))


def _not_below_best(layers, kept):
    """Returns for each layer whether it is not separable from the best; without counts, none."""
    best = layers.argmax()
    if kept is None:
        return [False] * len(layers)
    scores = _resampled(kept, "layers")
    found = [contrast_of([(1, scores[..., best]), (-1, of_layer)])
             for of_layer in np.moveaxis(scores, -1, 0)]  # fmt: skip
    return [i == best or difference.p >= LEVEL for i, difference in enumerate(found)]


def _expected(own, kept):
    values = [r["expected_layer"] for r in own]
    if None in values:
        return "none"
    text = f"{np.mean(values):.2f}"
    if kept is None:
        return text
    found = resampled_layers(kept)
    if np.isnan(found).any():
        return f"{text} [none]"
    interval = contrast_of([(1, found)])
    return f"{text} [{interval.low:.2f}, {interval.high:.2f}]"
