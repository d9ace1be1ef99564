"""Learning-rate schedules of the published models."""

import math

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_plm")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises to its peak, then falls to zero, both linearly.

    As in BERT's released code, the decay covers the whole run and the warm-up replaces its
    start. After the warm-up the learning rate drops from `peak` to `peak * (1 - warmup / total)`.

    Reference: Devlin et al. 2018, appendix A.2; google-research/bert, optimization.py; with
    `decay_in_warmup` openai/finetune-transformer-lm, opt.py, `warmup_linear`.

    Args:
        peak: Highest learning rate.
        total_steps: Number of steps after which the learning rate is zero.
        warmup_steps: Number of warm-up steps.
        decay_in_warmup: If True, the decay also applies to the warm-up, as in GPT's fine-tuning;
            there is then no drop.

    Raises:
        ValueError: If `warmup_steps` is negative or larger than `total_steps`.

    >>> schedule = WarmupLinearDecay(peak=1.0, total_steps=100, warmup_steps=10)
    >>> [round(float(schedule(step)), 3) for step in (0, 5, 10, 55, 100)]
    [0.0, 0.5, 0.9, 0.45, 0.0]
    """

    def __init__(
        self, peak: float, total_steps: int, warmup_steps: int = 0, decay_in_warmup: bool = False
    ):
        _check_warmup(warmup_steps, total_steps)
        self.peak = peak
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.decay_in_warmup = decay_in_warmup

    def __call__(self, step):
        step = ops.cast(step, "float32")
        fall = 1.0 - ops.minimum(step / max(self.total_steps, 1), 1.0)
        rise = step / max(self.warmup_steps, 1)
        if self.decay_in_warmup:
            return self.peak * ops.minimum(rise, 1.0) * fall
        return self.peak * ops.where(step < self.warmup_steps, rise, fall)

    def get_config(self):
        return {
            "peak": self.peak,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
            "decay_in_warmup": self.decay_in_warmup,
        }


@keras.saving.register_keras_serializable("keras_plm")
class WarmupCosineDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises linearly to its peak, then falls to zero along a cosine.

    As in GPT's released code, the decay covers the whole run and the warm-up replaces its
    start.

    Reference: Radford et al. 2018, section 4.1; openai/finetune-transformer-lm, opt.py,
    `warmup_cosine`.

    Args:
        peak: Highest learning rate.
        total_steps: Number of steps after which the learning rate is zero.
        warmup_steps: Number of warm-up steps; GPT's pre-training has 2,000.

    Raises:
        ValueError: If `warmup_steps` is negative or larger than `total_steps`.

    >>> schedule = WarmupCosineDecay(peak=1.0, total_steps=100, warmup_steps=10)
    >>> [round(float(schedule(step)), 3) for step in (0, 5, 25, 50, 100)]
    [0.0, 0.5, 0.854, 0.5, 0.0]
    """

    def __init__(self, peak: float, total_steps: int, warmup_steps: int = 0):
        _check_warmup(warmup_steps, total_steps)
        self.peak = peak
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        done = ops.minimum(step / max(self.total_steps, 1), 1.0)
        rise = step / max(self.warmup_steps, 1)
        fall = 0.5 * (1.0 + ops.cos(math.pi * done))
        return self.peak * ops.where(step < self.warmup_steps, rise, fall)

    def get_config(self):
        return {
            "peak": self.peak,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
        }


def _check_warmup(warmup_steps, total_steps):
    if not 0 <= warmup_steps <= total_steps:
        raise ValueError(
            "`warmup_steps` must lie between 0 and `total_steps`. "
            f"Received: warmup_steps={warmup_steps}, total_steps={total_steps}"
        )


@keras.saving.register_keras_serializable("keras_plm")
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """The Transformer's learning rate: rises linearly, then falls as 1 / sqrt(step).

    `scale * hidden_dim^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)`, where the first step is 1.
    Use it for Adam with beta_2 = 0.98 and epsilon = 1e-9.

    Reference: Vaswani et al. 2017, arXiv 1706.03762, section 5.3, equation 3.

    Args:
        hidden_dim: Width D of the model.
        warmup_steps: Number of warm-up steps.
        scale: Factor of the paper's learning rate.

    Raises:
        ValueError: If an argument is not positive.

    >>> schedule = InverseSquareRoot(hidden_dim=512)
    >>> [f"{float(schedule(step - 1)):.4e}" for step in (1, 4000, 100000)]
    ['1.7469e-07', '6.9877e-04', '1.3975e-04']
    """

    def __init__(self, hidden_dim: int, warmup_steps: int = 4000, scale: float = 1.0):
        if min(hidden_dim, warmup_steps, scale) <= 0:
            raise ValueError(
                "`hidden_dim`, `warmup_steps` and `scale` must be above 0. Received: "
                f"hidden_dim={hidden_dim}, warmup_steps={warmup_steps}, scale={scale}"
            )
        self.hidden_dim = hidden_dim
        self.warmup_steps = warmup_steps
        self.scale = scale

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1.0  # Keras counts from 0
        peak = self.scale * self.hidden_dim**-0.5
        return peak * ops.minimum(step**-0.5, step * self.warmup_steps**-1.5)

    def get_config(self):
        return {
            "hidden_dim": self.hidden_dim,
            "warmup_steps": self.warmup_steps,
            "scale": self.scale,
        }


@keras.saving.register_keras_serializable("keras_plm")
class SlantedTriangular(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises quickly to its peak, then falls slowly, both linearly.

    Unlike `WarmupLinearDecay` it begins and ends at `peak / ratio`, not at zero.

    Reference: Howard and Ruder 2018 (ULMFiT), arXiv 1801.06146, section 3.2, equation 3.

    Differs from the paper: the decay always ends at `total_steps`. The paper's ends earlier, and
    below zero, if `cut_fraction * total_steps` is not whole.

    Args:
        peak: Highest learning rate.
        total_steps: Number of steps T.
        cut_fraction: Fraction of the steps with a rising learning rate.
        ratio: Ratio of the peak to the lowest learning rate.

    Raises:
        ValueError: If `total_steps` or `ratio` is below 1, or `cut_fraction` not in [0, 1).

    >>> schedule = SlantedTriangular(peak=3.2, total_steps=100)
    >>> [round(float(schedule(step)), 3) for step in (0, 5, 10, 55, 100)]
    [0.1, 1.65, 3.2, 1.65, 0.1]
    """

    def __init__(self, peak: float, total_steps: int, cut_fraction: float = 0.1, ratio: float = 32):
        if total_steps < 1 or ratio < 1 or not 0 <= cut_fraction < 1:
            raise ValueError(
                "`total_steps` and `ratio` must be 1 or more and `cut_fraction` lie in [0, 1). "
                f"Received: total_steps={total_steps}, ratio={ratio}, cut_fraction={cut_fraction}"
            )
        self.peak = peak
        self.total_steps = total_steps
        self.cut_fraction = cut_fraction
        self.ratio = ratio

    def __call__(self, step):
        step = ops.minimum(ops.cast(step, "float32"), self.total_steps)
        cut = int(self.total_steps * self.cut_fraction + 1e-9)  # 100 * 0.29 is below 29
        fall = 1.0 - (step - cut) / (self.total_steps - cut)
        height = ops.where(step < cut, step / max(cut, 1), fall)
        return self.peak * (1.0 + height * (self.ratio - 1.0)) / self.ratio

    def get_config(self):
        return {
            "peak": self.peak,
            "total_steps": self.total_steps,
            "cut_fraction": self.cut_fraction,
            "ratio": self.ratio,
        }
