"""The published schedules of the learning rate, compared with their formulas."""

import numpy as np
import pytest

from keras_plm.training.schedules import (
    InverseSquareRoot,
    SlantedTriangular,
    WarmupLinearDecay,
)
from tests.helpers.checks import assert_close

pytestmark = pytest.mark.each_backend


def test_linear_schedule_equals_the_originals():
    """Compares with polynomial_decay, and with init * step / warmup while step < warmup."""
    schedule = WarmupLinearDecay(peak=2.0, total_steps=50, warmup_steps=10)
    for step in range(60):
        expected = 2.0 * step / 10 if step < 10 else 2.0 * (1 - min(step, 50) / 50)
        assert_close(schedule(step), expected)
    assert float(WarmupLinearDecay(1.0, 10)(0)) == 1.0
    again = WarmupLinearDecay.from_config(schedule.get_config())
    assert float(again(7)) == float(schedule(7))
    with pytest.raises(ValueError, match="between 0 and `total_steps`"):
        WarmupLinearDecay(1.0, 10, 11)


def test_inverse_square_root_has_the_papers_values():
    # REFERENCE: Vaswani et al. 2017, equation 3, steps counted from 1.
    base, big = InverseSquareRoot(512), InverseSquareRoot(1024)
    for schedule, step, rate in (
        (base, 1, 1.746928e-07),
        (base, 100, 1.746928e-05),
        (base, 4000, 6.987712e-04),
        (base, 100_000, 1.397542e-04),
        (big, 4000, 4.941059e-04),
    ):
        np.testing.assert_allclose(float(schedule(step - 1)), rate, rtol=1e-5)
    again = InverseSquareRoot.from_config(InverseSquareRoot(8, 10, scale=2.0).get_config())
    np.testing.assert_allclose(float(again(9)), 2 * (8 * 10) ** -0.5, rtol=1e-5)
    with pytest.raises(ValueError, match="above 0. Received: hidden_dim=0"):
        InverseSquareRoot(0)


@pytest.mark.parametrize("total, fraction, ratio", [(100, 0.1, 32), (70, 0.3, 5), (30, 0.5, 1)])
def test_slanted_triangular_equals_the_papers_formula(total, fraction, ratio):
    """Compares with Howard and Ruder 2018, equation 3."""
    schedule = SlantedTriangular(0.7, total, fraction, ratio)
    for t in range(total + 1):
        cut = int(np.floor(round(total * fraction, 9)))
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / fraction - 1))
        assert_close(schedule(t), 0.7 * (1 + p * (ratio - 1)) / ratio, atol=1e-6)
    again = SlantedTriangular.from_config(schedule.get_config())
    assert float(again(7)) == float(schedule(7))


def test_slanted_triangular_stays_in_bounds_for_any_length():
    for total in (1, 3, 19, 29):
        for fraction in (0.0, 0.1, 0.9):
            rates = [float(SlantedTriangular(3.2, total, fraction)(t)) for t in range(total + 5)]
            assert max(rates) == pytest.approx(3.2) and min(rates) >= 0.1 - 1e-6
            assert rates[total] == rates[-1] == pytest.approx(0.1, abs=1e-6)
    for wrong in ({"total_steps": 0}, {"ratio": 0.5}, {"cut_fraction": 1.0}):
        with pytest.raises(ValueError, match=r"`cut_fraction` lie in \[0, 1\). Received: "):
            SlantedTriangular(**{"peak": 1.0, "total_steps": 9, **wrong})
