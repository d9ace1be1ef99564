"""Published orderings as rows, and verdicts on whether results reproduce them.

Each module of this package lists its claims in `ROWS`. New modules are found automatically, and
sorted by `PUBLISHED`, year and month of their earliest paper.
"""

import importlib
import pkgutil

from benchmarks.claims import judge


def load_all():
    """Returns `{name: Claim}` of all modules.

    Raises:
        ValueError: If two claims have the same name.
    """
    found = {}
    names = [f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)]
    modules = [module for module in map(importlib.import_module, names) if hasattr(module, "ROWS")]
    for module in sorted(modules, key=lambda module: module.PUBLISHED):
        for claim in module.ROWS:
            if claim.name in found:
                raise ValueError(f"Names of claims must be unique. Received: {claim.name!r} twice")
            found[claim.name] = claim
    return found


CLAIMS = load_all()


def verdicts(results_root, resamples=judge.RESAMPLES, seed=0):
    """Judges all of `CLAIMS` by results; returns dicts, see `benchmarks.claims.judge`."""
    return judge.judge(CLAIMS.values(), results_root, resamples, seed)
