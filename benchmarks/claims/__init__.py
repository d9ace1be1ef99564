"""Published orderings as rows, and verdicts on whether results reproduce them.

Each module of this package lists its claims in `ROWS`. New modules are found automatically.
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
    for module in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module.name}")
        for claim in getattr(module, "ROWS", ()):
            if claim.name in found:
                raise ValueError(f"Names of claims must be unique. Received: {claim.name!r} twice")
            found[claim.name] = claim
    return found


CLAIMS = load_all()


def verdicts(results_root, resamples=judge.RESAMPLES, seed=0):
    """Judges all of `CLAIMS` by results; returns dicts, see `benchmarks.claims.judge`."""
    return judge.judge(CLAIMS.values(), results_root, resamples, seed)
