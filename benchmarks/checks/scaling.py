"""Estimates by formulas the efficiency of BERT's pre-training on many devices.

`python -m benchmarks check scaling` computes the estimate; it runs nothing on such devices. One
input is measured: the fraction of this machine's matrix rate that a step of BERT-base reaches
(`python -m benchmarks speed`). The sizes of the messages follow from the model. Peak rates and
link speeds are those of the manufacturers.

A mesh of d x m devices has d parts of each batch and m parts of each weight. A step of F FLOP takes

    compute  = F / (d m rate fraction)
    messages = ring(d, 4 N / m) + 4 L ring(m, 2 tokens / d D)
    ring(n, bytes) = 2 (n - 1) / n bytes / link

seconds with N weights and L blocks of width D. Its efficiency is compute / (compute + messages).
This is a lower bound, because no message overlaps with computation. Gradients are float32 and are
sent once per step. The four sums in a block, two in each direction, are bfloat16 (Shoeybi et al.
2019, arXiv 1909.08053, section 3).
"""

import dataclasses
from pathlib import Path

from benchmarks.speed.measurements.bert import VOCABULARY, matrix_work
from keras_plm.experiments.environment import environment
from keras_plm.experiments.results import read_json
from keras_plm.files.writing import write_json
from keras_plm.models import BERT_SIZES

FILE = "check_scaling.json"
CASE, OURS = "pretrain base", "keras_plm, bfloat16"
# Devlin et al. 2018, appendix A.2: a million steps of 256 rows, nine tenths of them at 128 tokens.
ROWS, STEPS, PARTS = 256, 1_000_000, {128: 0.9, 512: 0.1}
DAYS = 4


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Devices that train together.

    Attributes:
        devices: Number of devices.
        rate: Peak FLOP/s of one device, in bfloat16, dense.
        link: Bytes/s from one device to its neighbours in a ring, each way.
        source: Source of rate and link.
    """

    devices: int
    rate: float
    link: float
    source: str


_V2_V3 = "Jouppi et al. 2020, CACM 63(7); a ring each way of the torus, remembered"
CLUSTERS = {
    "8 A100, NVLink": Cluster(8, 312e12, 300e9, "NVIDIA's data sheet, remembered"),
    "8 H100, NVLink": Cluster(8, 989e12, 450e9, "NVIDIA's data sheet, remembered"),
    "16 chips of TPU v2": Cluster(16, 46e12, 2 * 62e9, _V2_V3),
    "32 chips of TPU v3": Cluster(32, 123e12, 2 * 82e9, _V2_V3),
}
# Chips of the original: BERT-base used 4 Cloud TPUs, BERT-large 16, with four chips each.
ORIGINAL = {"base": 16, "large": 64}


def weights(size):
    """Returns the weights of a BERT with its heads for masked words and next sentences."""
    s = BERT_SIZES[size]
    width, inner = s["hidden_dim"], s["intermediate_dim"]
    block = 4 * (width + 1) * width + 2 * width * inner + inner + width + 4 * width
    embeddings = (VOCABULARY + 512 + 2) * width + 2 * width
    heads = 2 * (width + 1) * width + 2 * width + VOCABULARY + 2 * (width + 1)
    return embeddings + s["num_layers"] * block + heads


def ring(devices, size, link):
    """Returns the seconds to sum `size` bytes over devices in a ring."""
    return 2 * (devices - 1) / devices * size / link


def step(size, length, mesh, cluster, fraction):
    """Returns `(compute, messages)`, the seconds of a step by the formulas above."""
    data, model = mesh
    s, tokens = BERT_SIZES[size], ROWS * length
    work = matrix_work(size, length, "pretrain") * tokens
    compute = work / (data * model * cluster.rate * fraction)
    messages = ring(data, 4 * weights(size) / model, cluster.link)
    sums = ring(model, 2 * tokens / data * s["hidden_dim"], cluster.link)
    return compute, messages + 4 * s["num_layers"] * sums


def days(size, mesh, cluster, fraction):
    """Returns the days that the whole pre-training of the original takes."""
    seconds = sum(
        part * STEPS * sum(step(size, length, mesh, cluster, fraction))
        for length, part in PARTS.items()
    )
    return seconds / 86400


def original(size):
    """Returns the FLOP/s per chip of the original, which took four days."""
    work = sum(
        part * STEPS * ROWS * length * matrix_work(size, length, "pretrain")
        for length, part in PARTS.items()
    )
    return work / (DAYS * 86400 * ORIGINAL[size])


def meshes(size, devices):
    """Returns the meshes that divide the heads of a model evenly."""
    heads = BERT_SIZES[size]["num_heads"]
    return [(devices // m, m) for m in (1, 4, 8) if heads % m == 0 and devices % m == 0]


def check_scaling(results, progress=print):
    """Computes the table from `speed.json` in a folder of results, and writes `FILE` there.

    Args:
        results: Folder of results.
        progress: Called once, with the table and the path of the file.

    Returns:
        The content of the file.

    Raises:
        ValueError: If the fraction of the matrix rate was not measured.
    """
    path = Path(results) / "speed.json"
    found = read_json(path) if path.is_file() else {"results": {}}
    row = found["results"].get(CASE, {}).get("implementations", {}).get(OURS, {})
    fraction = row.get("fraction_of_matrix_rate")
    if fraction is None:
        raise ValueError(
            f"{path} must hold the fraction of the matrix rate of {CASE!r}: measure it with "
            f"`python -m benchmarks speed --work pretrain --sizes base --out {path}`. "
            "Received: a file without it, or no file"
        )
    rows = []
    for size in ("base", "large"):
        for name, cluster in CLUSTERS.items():
            for mesh in meshes(size, cluster.devices):
                steps = {n: step(size, n, mesh, cluster, fraction) for n in PARTS}
                rows.append({
                    "size": size, "cluster": name, "mesh": mesh, **dataclasses.asdict(cluster),
                    "seconds": {str(n): found for n, found in steps.items()},
                    "efficiency": {str(n): c / (c + m) for n, (c, m) in steps.items()},
                    "days": days(size, mesh, cluster, fraction),
                })  # fmt: skip
    report = {
        "fraction_of_matrix_rate": fraction,
        "fraction_from": {name: found[name] for name in ("device", "backend")} | {"work": CASE},
        "weights": {size: weights(size) for size in ORIGINAL},
        "original": {size: original(size) for size in ORIGINAL},
        "rows": rows,
        **environment(),
    }
    path = Path(results) / FILE
    write_json(path, report)
    progress(f"{markdown(path)}\nResult file: {path}")
    return report


def markdown(path):
    """Returns the table of a result file of `check_scaling`."""
    report = read_json(path)
    text = [
        "| | devices | mesh: data x model | a step at 128, at 512 (ms) | messages (ms) | "
        "efficiency at 128, at 512 | days |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for size, chips in ORIGINAL.items():
        rate = report["original"][size]
        peak = CLUSTERS["16 chips of TPU v2"].rate
        text.append(
            f"| BERT-{size} ({report['weights'][size] / 1e6:.0f} M) | the original's {chips} TPU "
            f"chips: {rate / 1e12:.1f} TFLOP/s each, {rate / peak:.0%} of a v2's | | | | | {DAYS} |"
        )
        for row in report["rows"]:
            if row["size"] != size:
                continue
            both = list(row["seconds"].values())
            cells = [
                f"BERT-{size}", row["cluster"], f"{row['mesh'][0]} x {row['mesh'][1]}",
                ", ".join(f"{1e3 * sum(seconds):.0f}" for seconds in both),
                ", ".join(f"{1e3 * seconds[1]:.1f}" for seconds in both),
                ", ".join(f"{e:.0%}" for e in row["efficiency"].values()), f"{row['days']:.1f}",
            ]  # fmt: skip
            text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text) + "\n"
