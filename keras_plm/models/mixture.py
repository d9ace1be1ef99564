"""Mixtures of language models."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from keras_plm.models.ngram import NGram


class Mixture:
    """A weighted mean of the probabilities of several language models.

    Models with different errors improve each other: Bengio et al. 2003, JMLR 3, section 4.1, take
    the mean of the neural model and the trigram.

    Args:
        models: Language models over one vocabulary: objects with a method `log_prob(token_ids)`
            that returns (N,) natural logarithms.
        weights: Weights of the models; the sum is 1.

    Raises:
        ValueError: If a weight is negative, or the sum or the number of weights is wrong. If a
            model does not return one number for each token.

    >>> import numpy as np
    >>> from keras_plm.models import NGram
    >>> texts = [0, 1, 2, 0, 0, 2], [1, 1, 2]
    >>> models = [NGram(3, order=1, smoothing="mle").fit(text) for text in texts]
    >>> mixture = Mixture(models, [0.5, 0.5])
    >>> np.exp(mixture.log_prob([0, 1, 2])).round(3).tolist()
    [0.25, 0.417, 0.333]
    """

    def __init__(self, models: Sequence[Any], weights: Sequence[float] | np.ndarray):
        weights = [float(weight) for weight in weights]
        if len(weights) != len(models) or not models:
            raise ValueError(
                "A mixture needs one weight for each model, and at least one model. "
                f"Received: {len(models)} models, weights={weights}"
            )
        if not min(weights) >= 0 or not abs(sum(weights) - 1) <= 1e-6:
            raise ValueError(
                f"Weights must not be negative and must sum to 1. Received: weights={weights}"
            )
        self.models = list(models)
        self.weights = weights

    @classmethod
    def fit_weights(
        cls, models: Sequence[Any], token_ids: Sequence[int] | np.ndarray, iterations: int = 20
    ) -> Self:
        """Fits the weights to a text by EM, from equal weights, and returns the mixture.

        The text must not be training data of a model. Each iteration increases its probability.

        Args:
            models: As in the class.
            token_ids: (N,) ids of the text.
            iterations: Number of EM iterations.
        """
        mixture = cls(models, [1 / max(len(models), 1)] * len(models))
        scores = mixture._scores(token_ids)  # (models, N)
        # Tokens impossible under every model do not distinguish the models.
        scores = scores[:, np.isfinite(scores.max(axis=0))]
        parts = np.exp(scores - scores.max(axis=0))
        weights = np.array(mixture.weights)
        for _ in range(iterations if parts.size else 0):
            joint = weights[:, None] * parts
            weights = (joint / joint.sum(axis=0)).mean(axis=1)
        return cls(models, weights)

    def _scores(self, token_ids):
        scores = [np.asarray(model.log_prob(token_ids), np.float64) for model in self.models]
        shapes = [score.shape for score in scores]
        if set(shapes) != {(len(token_ids),)}:
            raise ValueError(
                "`log_prob` of every model must give one number for each token. Received: "
                f"shapes {shapes} for {len(token_ids)} tokens"
            )
        return np.stack(scores)

    def log_prob(self, token_ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Computes log-probabilities of each token given earlier ones: (N,) natural logarithms."""
        with np.errstate(divide="ignore"):  # a weight of 0
            weights = np.log(self.weights)
        return np.logaddexp.reduce(self._scores(token_ids) + weights[:, None])

    perplexity = NGram.perplexity
