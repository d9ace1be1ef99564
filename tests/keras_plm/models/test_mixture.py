"""Mixtures of language models, compared with sums of probabilities and steps of EM."""

import math

import numpy as np
import pytest

from keras_plm.models import Mixture
from tests.keras_plm.models.small_ngrams import HELD_OUT, OTHER, TINY, before, fitted

pytestmark = pytest.mark.backend_neutral


def test_mixture_is_the_weighted_mean():
    models = [fitted("mle", 3), fitted("kneser_ney", 2), fitted("add_k", 1)]
    weights = [0.5, 0.3, 0.2]
    mixture = Mixture(models, weights)
    wanted = [
        math.log(
            sum(
                weight * model.distribution(before(i))[OTHER[i]]
                for weight, model in zip(weights, models, strict=True)
            )
        )
        for i in range(len(OTHER))
    ]
    np.testing.assert_allclose(mixture.log_prob(OTHER), wanted, rtol=1e-10)
    assert mixture.perplexity(OTHER) == pytest.approx(math.exp(-sum(wanted) / len(wanted)))


class Constant:
    """A language model with the same log probability for every token."""

    def __init__(self, value):
        self.value = value

    def log_prob(self, token_ids):
        return np.full(len(token_ids), self.value)


def test_mixture_is_exact_where_probabilities_underflow():
    found = Mixture([Constant(-2000.0), Constant(-2001.0)], [0.5, 0.5]).log_prob([0])
    np.testing.assert_allclose(found, -2000 + math.log(0.5 + 0.5 * math.exp(-1)))
    assert Mixture([Constant(-math.inf), Constant(-1.0)], [1, 0]).log_prob([0]) == -math.inf
    models = [Constant(-2000.0), Constant(-2001.0), Constant(-math.inf)]
    weights = Mixture.fit_weights(models, [0, 0], iterations=1).weights
    np.testing.assert_allclose(weights, [math.e / (1 + math.e), 1 / (1 + math.e), 0])
    assert Mixture.fit_weights(models[2:] * 2, [0]).weights == [0.5, 0.5]


def test_mixture_weights_equal_em_steps_and_raise_likelihood():
    models = [fitted("kneser_ney", 3), fitted("add_k", 2), fitted("mle", 4)]
    probabilities = np.exp([model.log_prob(HELD_OUT) for model in models]).T.tolist()
    weights = [1 / 3] * 3
    for _ in range(7):
        sums = [0.0] * 3
        for row in probabilities:
            whole = sum(w * p for w, p in zip(weights, row, strict=True))
            for j in range(3):
                sums[j] += weights[j] * row[j] / whole
        weights = [s / len(probabilities) for s in sums]
    mixture = Mixture.fit_weights(models, HELD_OUT, iterations=7)
    np.testing.assert_allclose(mixture.weights, weights, rtol=1e-10)
    steps = [Mixture.fit_weights(models, HELD_OUT, n).perplexity(HELD_OUT) for n in range(8)]
    assert steps == sorted(steps, reverse=True) and steps[0] > steps[-1]


@pytest.mark.parametrize(
    "weights, message",
    [
        ([0.5], r"one weight for each model.* Received: 2 models, weights=\[0.5\]"),
        ([0.5, 0.4], r"must sum to 1. Received: weights=\[0.5, 0.4\]"),
        ([1.5, -0.5], "must not be negative"),
        ([math.nan, 1.0], "must sum to 1"),
    ],
)
def test_bad_mixtures(weights, message):
    with pytest.raises(ValueError, match=message):
        Mixture([Constant(-1.0), Constant(-2.0)], weights)


def test_bad_models_of_a_mixture():
    for make in (lambda: Mixture([], []), lambda: Mixture.fit_weights([], TINY)):
        with pytest.raises(ValueError, match="Received: 0 models"):
            make()

    class Rows(Constant):
        def log_prob(self, token_ids):
            return super().log_prob(token_ids)[None]

    message = r"one number for each token. Received: shapes \[\(1, 6\)\] for 6 tokens"
    with pytest.raises(ValueError, match=message):
        Mixture([Rows(-1.0)], [1]).log_prob(TINY)
