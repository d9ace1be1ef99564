"""Files of the command `speed` to tables."""

from pathlib import Path

from benchmarks.checks import devices, scaling
from keras_plm.experiments.results import read_json

PEERS = ("transformers", "transformers, tuned", "KerasHub", "KerasHub at 128")
OURS = ("keras_plm", "keras_plm, bfloat16")


def speed_markdown(path, *others):
    """The tables of files that the command `speed` wrote.

    BERT's rates, and ours as ratios to the peers', have a column for each contestant. Other kinds
    of work have a row for each peer of each way of ours, and a column for each file, named by its
    backend, of our rate, the peer's, and the median ratio.
    """
    reports = [read_json(p) for p in (path, *others)]
    tables = [_bert_speed(reports[0]["results"]), _speed_by_backend(reports)]
    return "\n".join(table for table in tables if table)


def speed_tables(folder):
    """The tables of a folder's files of `speed`, a dict by README's mark."""
    folder = Path(folder)
    of_backends = [
        folder / f"speed_translator.{backend}.json" for backend in ("tensorflow", "jax", "torch")
    ]
    files = {"speed": [folder / "speed.json"], "speed_translator": of_backends}
    files["speed_words"] = [
        folder / f"speed_words.{backend}.json" for backend in ("tensorflow", "jax", "torch")
    ]
    files["speed_elmo"] = [
        folder / f"speed_elmo.{backend}.json" for backend in ("tensorflow", "jax", "torch")
    ]
    for mark in ("speed_gpt", "speed_transfer", "speed_memory", "speed_gpu"):
        files[mark] = [folder / f"{mark}.{name}.json" for name in ("tensorflow", "jax", "torch")]
    for mark in ("speed_prepare", "speed_squad"):
        files[mark] = [folder / f"{mark}.json"]
    there = {mark: [p for p in paths if p.is_file()] for mark, paths in files.items()}
    tables = {mark: speed_markdown(*paths) for mark, paths in there.items() if paths}
    files = [folder / f"devices.{name}.json" for name in ("tensorflow", "jax", "torch")]
    if any(path.is_file() for path in files):
        tables["devices"] = devices.markdown([p for p in files if p.is_file()])
    if (folder / scaling.FILE).is_file():
        tables["scaling"] = scaling.markdown(folder / scaling.FILE)
    return tables


def _of_bert(work):
    return PEERS[0] in work["contestants"]


def _bert_speed(results):
    works = {name: work for name, work in results.items() if _of_bert(work)}
    if not works:
        return ""
    shown = [c for c in (*PEERS, *OURS) if any(c in w["contestants"] for w in works.values())]
    head = [*shown, *(f"ours : {peer}" for peer in PEERS[:2]), "share of the matrix rate"]
    lines = [f"| per second | {' | '.join(head)} |", "|---|" + "---:|" * len(head)]
    for name, work in works.items():
        rows = work["contestants"]
        fastest = rows.get(OURS[1], rows[OURS[0]])
        rates = [rows[c]["per_second"] if c in rows else None for c in shown]
        cells = ["" if r is None else _rate(r) for r in rates]
        cells += [f"{fastest['ratios'][p]:.2f}" if p in rows else "" for p in PEERS[:2]]
        share = fastest.get("share_of_matrix_rate")
        cells.append(f"{share:.0%}" if share is not None else "")
        lines.append(f"| {name}: {work['unit']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _speed_by_backend(reports):
    cells = {}  # {(work, peer): {backend: cell}}
    for report in reports:
        for name, work in report["results"].items():
            rows = {} if _of_bert(work) else work["contestants"]
            for contestant, row in rows.items():
                way = contestant.removeprefix(OURS[0]).removeprefix(", ")
                way = f"{', '.join(filter(None, (name, way)))}: {work['unit']}"
                for peer, ratio in row["ratios"].items():
                    rates = f"{_rate(row['per_second'])} : {_rate(rows[peer]['per_second'])}"
                    memory = ""
                    if "peak_mb" in row:
                        memory = f"; {row['peak_mb']:,.0f} : {rows[peer]['peak_mb']:,.0f} MB"
                    of_peer = cells.setdefault((way, peer), {})
                    of_peer[report["backend"]] = f"{rates} ({ratio:.2f}){memory}"
    if not cells:
        return ""
    backends = list(dict.fromkeys(report["backend"] for report in reports))
    lines = [f"| per second, ours : | the peer's | {' | '.join(backends)} |"]
    lines.append("|---|---|" + "---:|" * len(backends))
    for (way, peer), found in cells.items():
        shown = " | ".join(found.get(backend, "") for backend in backends)
        lines.append(f"| {way} | {peer} | {shown} |")
    return "\n".join(lines) + "\n"


def _rate(rate):
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"
