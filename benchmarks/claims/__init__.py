"""Published orderings as rows, and what results say of them."""

from benchmarks.claims.before_elmo import EARLY_ROWS
from benchmarks.claims.elmo_gpt_bert import BERT_ROWS, CHOICE_ROWS, ELMO_ROWS, GPT_ROWS
from benchmarks.claims.judge import RESAMPLES
from benchmarks.claims.judge import judge as _judge

CLAIMS = {}
for _claim in (*EARLY_ROWS, *ELMO_ROWS, *GPT_ROWS, *BERT_ROWS, *CHOICE_ROWS):
    if _claim.name in CLAIMS:
        raise ValueError(f"A claim's name must be unique. Received: {_claim.name!r} twice")
    CLAIMS[_claim.name] = _claim


def verdicts(results_root, resamples=RESAMPLES, seed=0):
    """What results say of each of `CLAIMS`: dicts, see `benchmarks.claims.judge`."""
    return _judge(CLAIMS.values(), results_root, resamples, seed)
