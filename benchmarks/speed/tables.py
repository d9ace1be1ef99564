"""Tables of the result files of `speed` and of `check`."""

from pathlib import Path

from benchmarks.checks import devices, fine_tuning, padding, scaling, scan
from benchmarks.speed import measurements  # noqa: F401 (registers all of them)
from benchmarks.speed.registry import suites
from keras_plm.experiments.results import read_json

BACKENDS = ("tensorflow", "jax", "torch")
PEERS = ("transformers", "transformers, tuned", "KerasHub", "KerasHub at 128")
OURS = ("keras_plm", "keras_plm, bfloat16")


def speed_markdown(path, *others):
    """Returns the tables of result files of the command `speed`.

    The first table has the first file's cases with the peer `transformers`, with a column for each
    implementation. The second table has the other cases, with a row for each of our implementations
    and each of its peers. Its columns are the files, named by their backends. A cell has our speed,
    the peer's speed, and the median ratio.
    """
    reports = [read_json(p) for p in (path, *others)]
    tables = [_by_implementation(reports[0]["results"]), _by_backend(reports)]
    return "\n".join(table for table in tables if table)


def speed_tables(folder):
    """Returns `{mark: table}` of the result files in a folder."""
    folder = Path(folder)
    tables = {
        suite.results: speed_markdown(*paths)
        for suite in suites().values()
        if (paths := _files(folder, suite.results))
    }
    if paths := _files(folder, devices.RESULTS):
        tables[devices.RESULTS] = devices.markdown(paths)
    for check in (scaling, padding, scan, fine_tuning):
        if (folder / check.FILE).is_file():
            tables[Path(check.FILE).stem] = check.markdown(folder / check.FILE)
    return tables


def _files(folder, stem):
    """Returns the existing files of a stem: one file, or one for each backend."""
    names = [f"{stem}.json", *(f"{stem}.{backend}.json" for backend in BACKENDS)]
    return [folder / name for name in names if (folder / name).is_file()]


def _has_columns(case):
    return PEERS[0] in case["implementations"]


def _by_implementation(results):
    cases = {name: case for name, case in results.items() if _has_columns(case)}
    if not cases:
        return ""
    found = {name for case in cases.values() for name in case["implementations"]}
    shown = [name for name in (*PEERS, *OURS) if name in found]
    head = [*shown, *(f"ours : {peer}" for peer in PEERS[:2]), "fraction of the matrix rate"]
    lines = [f"| per second | {' | '.join(head)} |", "|---|" + "---:|" * len(head)]
    for name, case in cases.items():
        rows = case["implementations"]
        fastest = rows.get(OURS[1], rows[OURS[0]])
        cells = [_speed(rows[n]["per_second"]) if n in rows else "" for n in shown]
        cells += [f"{fastest['ratios'][peer]:.2f}" if peer in rows else "" for peer in PEERS[:2]]
        fraction = fastest.get("fraction_of_matrix_rate")
        cells.append(f"{fraction:.0%}" if fraction is not None else "")
        lines.append(f"| {name}: {case['unit']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _by_backend(reports):
    cells = {}  # {(case, peer): {backend: cell}}
    for report in reports:
        for name, case in report["results"].items():
            rows = {} if _has_columns(case) else case["implementations"]
            for implementation, row in rows.items():
                variant = implementation.removeprefix(OURS[0]).removeprefix(", ")
                title = f"{', '.join(filter(None, (name, variant)))}: {case['unit']}"
                for peer, ratio in row["ratios"].items():
                    speeds = f"{_speed(row['per_second'])} : {_speed(rows[peer]['per_second'])}"
                    memory = ""
                    if "peak_mb" in row:
                        memory = f"; {row['peak_mb']:,.0f} : {rows[peer]['peak_mb']:,.0f} MB"
                    by_backend = cells.setdefault((title, peer), {})
                    by_backend[report["backend"]] = f"{speeds} ({ratio:.2f}){memory}"
    if not cells:
        return ""
    backends = list(dict.fromkeys(report["backend"] for report in reports))
    lines = [f"| per second, ours : peer | peer | {' | '.join(backends)} |"]
    lines.append("|---|---|" + "---:|" * len(backends))
    for (title, peer), by_backend in cells.items():
        shown = " | ".join(by_backend.get(backend, "") for backend in backends)
        lines.append(f"| {title} | {peer} | {shown} |")
    return "\n".join(lines) + "\n"


def _speed(speed):
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.1f}"
