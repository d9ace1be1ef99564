"""The clock: contestants take turns, and medians over the turns are compared.

Timing on shared machines is noisy, so only ratios within a run mean something.
"""

import dataclasses
import gc
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Work:
    """One kind of work at one size.

    Args:
        makers: `{contestant: make}`: `make()` gets everything ready and gives a function of one
            turn. It raises ImportError where the contestant is not installed. A turn that does only
            a part of the work has that part as its attribute `share`.
        amount: How much a turn does.
        unit: Of what.
        beside: `{contestant: (others it is compared to)}`.
        flops: FLOP of the matrix products per unit, where they are known.
        half: Contestants whose products are in bfloat16.
    """

    makers: dict
    amount: float
    unit: str
    beside: dict
    flops: float | None = None
    half: frozenset = frozenset()


def measure(work, turns, rates, say):
    """Rates and ratios of all contestants, as the result file holds them.

    Args:
        work: A `Work`.
        turns: How often each contestant is timed.
        rates: See `matrix_rates`; only needed where FLOP are known.
        say: Prints a line.

    Returns:
        `{contestant: {"per_second", "seconds", "ratios", "share_of_matrix_rate"}}`. A ratio is the
        median over the turns.
    """
    seconds = in_turns(work.makers, turns, say)
    rows = {}
    for contestant, times in seconds.items():
        rate = work.amount / statistics.median(times)
        ratios = {
            other: [b / a for a, b in zip(times, seconds[other], strict=True)]
            for other in work.beside.get(contestant, ())
            if other in seconds
        }
        rows[contestant] = {
            "per_second": round(rate, 1),
            "seconds": [round(t, 4) for t in times],
            "ratios": {other: round(statistics.median(r), 3) for other, r in ratios.items()},
        }
        if work.flops is not None:
            limit = rates["bfloat16" if contestant in work.half else "float32"]
            rows[contestant]["share_of_matrix_rate"] = round(rate * work.flops / limit, 3)
    for contestant, row in rows.items():
        ratios = ", ".join(f"{v:.2f}x {k}" for k, v in row["ratios"].items())
        share = row.get("share_of_matrix_rate")
        tail = f", {share:.0%} of the matrix rate" if share is not None else ""
        say(f"  {contestant:22} {row['per_second']:>10,.0f}  {ratios}{tail}")
    return rows


def in_turns(makers, turns, say):
    """Seconds of each contestant in each turn, the others between; two warm-up turns first."""
    contestants = {}
    for name, make in makers.items():
        say(f"  warming up {name}")
        try:
            turn = make()
            turn()
            turn()
        except ImportError as error:
            say(f"  {name} left out: {error}")
            continue
        contestants[name] = turn
    seconds = {name: [] for name in contestants}
    for _ in range(turns):
        for name, turn in contestants.items():
            gc.collect()
            begun = time.perf_counter()
            turn()
            seconds[name].append((time.perf_counter() - begun) / getattr(turn, "share", 1))
    return seconds


def matrix_rates():
    """The machine's matrix products per second, FLOP/s by precision, best of many."""
    import torch

    rates = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        best = 0.0
        for m, k, n in ((4096, 256, 1024), (4096, 1024, 256), (1024, 768, 3072)):
            a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
            until = time.perf_counter() + 2  # without instructions for it bfloat16 takes seconds
            for _ in range(12):
                begun = time.perf_counter()
                a @ b
                ended = time.perf_counter()
                best = max(best, 2 * m * k * n / (ended - begun))
                if ended > until:
                    break
        rates[name] = best
    return rates


def alone(module, *arguments):
    """Megabytes at the most of a process that runs a module, which prints them at its end."""
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments[:2])} alone failed: {done.stderr[-500:]}")
    return round(float(done.stdout.split()[-1]), 1)
