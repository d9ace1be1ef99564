"""Costs of a run: floating-point operations, and scores by optimizer step."""

import numpy as np

TRAINING = 3  # operations of a training step, in forward passes: one forward, two backward


def flops(runner, run, learned_weights):
    """Returns the `flops` of a record, estimated from the numbers of weights and tokens.

    Args:
        runner: A `Runner`.
        run: The `Run`.
        learned_weights: Number of trained weights.
    """
    encoder = sum(
        int(np.prod(weight.shape))
        for weight in runner.pretrained.weights
        if len(weight.shape) > 1 and "embedding" not in weight.path
    )
    tokens = _count_tokens(runner.tokenizer, runner.train_examples(run))
    if run.reads_features:
        return 2 * tokens * (encoder + TRAINING * run.epochs * learned_weights)
    whole = sum(int(np.prod(weight.shape)) for weight in runner.pretrained.weights)
    of_step = TRAINING * (encoder + max(learned_weights - whole, 0))
    if run.lora_rank:  # frozen matrices have no gradient, the trained ones have
        of_step = (TRAINING - 1) * encoder + TRAINING * learned_weights
    return 2 * tokens * run.epochs * of_step


def _count_tokens(tokenizer, examples):
    """Returns the number of tokens in all texts of examples."""
    texts = [
        text if isinstance(text, str) else " ".join(text)
        for example in examples
        for text in (example.text, example.pair, *(example.choices or ()))
        if text is not None
    ]
    if hasattr(tokenizer, "encode"):
        return int(tokenizer.encode(texts).lengths.sum())
    return sum(len(text.split()) for text in texts)


def curve(log):
    """Returns the `curve` of a record, the scores on the dev set by optimizer step.

    Args:
        log: Log of training.
    """
    updates = [log["steps_per_epoch"] * (i + 1) for i in range(len(log["dev_scores"]))]
    return {"updates": updates, "dev_scores": log["dev_scores"]}
