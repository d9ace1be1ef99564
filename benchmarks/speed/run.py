"""Runs speed measurements of our implementations and their peers, in turn, in one process.

The measurements are in `benchmarks/speed/measurements/`, the clock in `benchmarks/speed/clock.py`.
"""

import dataclasses
import importlib.metadata
import tempfile
from pathlib import Path

from benchmarks.speed.clock import FAILURES, first_line, measure
from benchmarks.speed.inputs import Inputs
from benchmarks.speed.peak import peak_of
from benchmarks.speed.registry import cases, chosen
from benchmarks.speed.settings import CHOOSING, SpeedSettings
from keras_plm.experiments.environment import environment
from keras_plm.experiments.results import read_json
from keras_plm.files.writing import write_json

PEERS = ("transformers", "torch", "keras-hub", "tokenizers", "gensim", "nltk")


def speed(settings, data=None, out=None, progress=print):
    """Runs the chosen measurements and reports the results of each case.

    Args:
        settings: A `SpeedSettings`.
        data: Data folder with real text; by default text is generated.
        out: JSON file to write after each case. Cases in the file are not timed again if settings,
            sentences, machine and versions are the same.
        progress: Called with a line of text.

    Returns:
        The content of the file: for each case and implementation, units per second, the median
        ratio to each peer and, if measured, the fraction of the matrix rate and the peak memory.

    Raises:
        ImportError, ValueError: If this machine cannot run a measurement.
        RuntimeError: If an implementation fails, for example because of memory; the others run
            first.
    """
    measurements = chosen(settings)
    for measurement in measurements:
        if measurement.check is not None:
            measurement.check()
    rates = {m.matrix_rates: {} for m in measurements}
    for matrix_rates in filter(None, rates):
        rates[matrix_rates] = matrix_rates()
        shown = ", ".join(f"{k} {v / 1e9:,.0f} GFLOP/s" for k, v in rates[matrix_rates].items())
        progress(f"matrix products: {shown}")
    failed = {}
    with tempfile.TemporaryDirectory() as folder:
        inputs = Inputs(folder, data)
        report = {
            "settings": dataclasses.asdict(settings),
            "sentences": inputs.digest if any(m.uses_sentences for m in measurements) else None,
            **environment(),
            "matrix_rates": {k: v for found in rates.values() for k, v in found.items()},
            "results": {},
        }
        report["versions"] |= peer_versions()
        report["results"] = earlier_results(report, out)
        for case, (measurement, arguments) in cases(settings).items():
            if case in report["results"]:
                progress(f"{case}: already in {out}")
                continue
            progress(f"{case}, in {measurement.unit} per second: {measurement.description}")
            try:
                comparison = measurement.compare(settings, inputs, **arguments)
                if not settings.half:
                    comparison = comparison.in_full_precision()
                of_machine = rates[measurement.matrix_rates]
                rows, errors = measure(comparison, settings.repeats, of_machine, progress)
            except FAILURES as error:
                failed[case] = error
                progress(f"  failed: {first_line(error)}")
                continue
            failed |= {f"{case} ({name})": error for name, error in errors.items()}
            if not rows:
                continue
            if measurement.peak_memory:
                for implementation, row in rows.items():
                    row["peak_mb"] = peak_of(case, implementation, settings, inputs)
                    progress(f"  {implementation:22} {row['peak_mb']:>10,.0f} MB peak memory")
            report["results"][case] = {
                "unit": measurement.unit,
                "commit": report["commit"],
                "implementations": rows,
            }
            if out is not None:
                write_json(out, report)
    if failed:
        raise RuntimeError(
            f"All implementations must run. Received: {len(failed)} that failed, "
            f"{', '.join(failed)}"
        ) from next(iter(failed.values()))
    return report


def earlier_results(report, out):
    """Returns the results in `out` of an earlier call under the same conditions."""
    if out is None or not Path(out).is_file():
        return {}
    old = read_json(out)

    def conditions(of):
        # A setting that the file lacks counts as its default.
        settings = dataclasses.asdict(SpeedSettings()) | of["settings"]
        # Results with additional implementations are valid too.
        settings["half"] = settings["half"] or not report["settings"]["half"]
        settings = {k: v for k, v in settings.items() if k not in CHOOSING}
        return settings, of.get("sentences"), of["device"], of["backend"], of["versions"]

    return old["results"] if conditions(old) == conditions(report) else {}


def peer_versions():
    """Returns `{package: version}` of the installed peers."""
    versions = {}
    for name in PEERS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
