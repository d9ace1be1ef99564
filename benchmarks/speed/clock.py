"""Times implementations in turn and compares the medians of their repeats.

Timing on shared machines is noisy. Only ratios within a run are meaningful.
"""

import dataclasses
import gc
import statistics
import time

# Errors of memory and of compilers; `fit` raises `MemoryError`, torch and JAX `RuntimeError`.
FAILURES = (RuntimeError, MemoryError)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Implementations of the same work.

    Args:
        implementations: `{name: prepare}`. `prepare()` does the preparation and returns a function
            without arguments that does the work once. It raises ImportError if a package is
            missing.
        amount: Units of work in one repeat.
        peers: `{name: (names of implementations to compare it to)}`.
        flops: FLOP of the matrix products per unit, or `None` if unknown.
        half_precision: Names of the implementations with products in bfloat16.
        fractions: `{name: fraction}` for implementations that do only a fraction of the work.
    """

    implementations: dict
    amount: float
    peers: dict
    flops: float | None = None
    half_precision: frozenset = frozenset()
    fractions: dict = dataclasses.field(default_factory=dict)

    def in_full_precision(self):
        """Returns the comparison without the implementations in bfloat16."""
        kept = {n: p for n, p in self.implementations.items() if n not in self.half_precision}
        return dataclasses.replace(self, implementations=kept)


def measure(comparison, repeats, rates, progress):
    """Measures the speeds and ratios of all implementations, in the format of a result file.

    Args:
        comparison: A `Comparison`.
        repeats: Number of repeats of each implementation.
        rates: FLOP/s by precision, see `matrix_rates`; used only if the FLOP are known.
        progress: Called with a line of text.

    Returns:
        `(rows, failed)`: `{name: {"per_second", "first_seconds", "seconds", "ratios",
        "fraction_of_matrix_rate"}}`, where a ratio is the median over the repeats, and `{name:
        error}` of the implementations that failed.
    """
    seconds, first, failed = time_in_turn(comparison, repeats, progress)
    rows = {}
    for name, times in seconds.items():
        speed = comparison.amount / statistics.median(times)
        ratios = {
            peer: [b / a for a, b in zip(times, seconds[peer], strict=True)]
            for peer in comparison.peers.get(name, ())
            if peer in seconds
        }
        rows[name] = {
            "per_second": round(speed, 1),
            "first_seconds": round(first[name], 1),
            "seconds": [round(t, 4) for t in times],
            "ratios": {peer: round(statistics.median(r), 3) for peer, r in ratios.items()},
        }
        if comparison.flops is not None:
            limit = rates["bfloat16" if name in comparison.half_precision else "float32"]
            rows[name]["fraction_of_matrix_rate"] = round(speed * comparison.flops / limit, 3)
    for name, row in rows.items():
        ratios = ", ".join(f"{v:.2f}x {k}" for k, v in row["ratios"].items())
        fraction = row.get("fraction_of_matrix_rate")
        tail = f", {fraction:.0%} of the matrix rate" if fraction is not None else ""
        progress(f"  {name:22} {row['per_second']:>10,.0f}  {ratios}{tail}")
    return rows, failed


def time_in_turn(comparison, repeats, progress):
    """Times the whole work of each implementation, after two warm-up runs.

    Each implementation runs once before the next repeat begins. An implementation whose package is
    missing, or that fails at the first run because of memory or a compiler, is left out.

    Returns:
        `({name: [seconds of each repeat]}, {name: seconds of the first run}, {name: error})`. The
        first run includes preparation and compilation. A missing package is no error.
    """
    ready, first, failed = {}, {}, {}
    for name, prepare in comparison.implementations.items():
        progress(f"  warming up {name}")
        start = time.perf_counter()
        try:
            run = prepare()
            run()
            first[name] = time.perf_counter() - start
            run()
        except (ImportError, *FAILURES) as error:
            progress(f"  {name} left out: {first_line(error)}")
            if not isinstance(error, ImportError):
                failed[name] = error.with_traceback(None)  # it would hold the memory
            gc.collect()
            continue
        ready[name] = run
    seconds = {name: [] for name in ready}
    for _ in range(repeats):
        for name, run in ready.items():
            gc.collect()
            start = time.perf_counter()
            run()
            elapsed = time.perf_counter() - start
            seconds[name].append(elapsed / comparison.fractions.get(name, 1))
    return seconds, first, failed


def first_line(error):
    return (str(error).strip() or repr(error)).splitlines()[0]


def matrix_rates():
    """Measures the processor's matrix products in torch; returns the best FLOP/s by precision."""
    import torch

    rates = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        best = 0.0
        for m, k, n in ((4096, 256, 1024), (4096, 1024, 256), (1024, 768, 3072)):
            a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
            until = time.perf_counter() + 2  # bfloat16 without its instructions takes seconds
            for _ in range(12):
                start = time.perf_counter()
                a @ b
                end = time.perf_counter()
                best = max(best, 2 * m * k * n / (end - start))
                if end > until:
                    break
        rates[name] = best
    return rates
