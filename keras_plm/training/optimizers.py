"""How the published models were trained: their optimizer and learning-rate schedules."""

import math
import re

import keras
from keras import ops

from keras_plm._private_apis import adagrad_step, adamw_step, norms


@keras.saving.register_keras_serializable("keras_plm")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises to its peak, then falls to zero, both linearly.

    As in BERT's released code, the fall is that of the whole run and the warm-up replaces its
    beginning, so that the rate steps down from `peak` to `peak * (1 - warmup / total)`.

    Reference: Devlin et al. 2018, appendix A.2; google-research/bert, optimization.py; with
    `decay_in_warmup` openai/finetune-transformer-lm, opt.py, `warmup_linear`.

    Args:
        peak: Highest learning rate.
        total_steps: Number of steps after which the rate is zero.
        warmup_steps: Number of steps of the rise.
        decay_in_warmup: If True, the fall lowers the rise, too, as GPT was fine-tuned: nothing
            steps down then.

    Raises:
        ValueError: If `warmup_steps` is negative or larger than `total_steps`.

    >>> schedule = WarmupLinearDecay(peak=1.0, total_steps=100, warmup_steps=10)
    >>> [round(float(schedule(step)), 3) for step in (0, 5, 10, 55, 100)]
    [0.0, 0.5, 0.9, 0.45, 0.0]
    """

    def __init__(self, peak, total_steps, warmup_steps=0, decay_in_warmup=False):
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

    As in GPT's released code, the fall is that of the whole run and the warm-up replaces its
    beginning.

    Reference: Radford et al. 2018, section 4.1; openai/finetune-transformer-lm, opt.py,
    `warmup_cosine`.

    Args:
        peak: Highest learning rate.
        total_steps: Number of steps after which the rate is zero.
        warmup_steps: Number of steps of the rise; GPT's pre-training has 2,000.

    Raises:
        ValueError: If `warmup_steps` is negative or larger than `total_steps`.

    >>> schedule = WarmupCosineDecay(peak=1.0, total_steps=100, warmup_steps=10)
    >>> [round(float(schedule(step)), 3) for step in (0, 5, 25, 50, 100)]
    [0.0, 0.5, 0.854, 0.5, 0.0]
    """

    def __init__(self, peak, total_steps, warmup_steps=0):
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
    It is meant for Adam with beta_2 = 0.98 and epsilon = 1e-9.

    Reference: Vaswani et al. 2017, arXiv 1706.03762, section 5.3, equation 3.

    Args:
        hidden_dim: Width D of the model.
        warmup_steps: Number of steps of the rise.
        scale: Factor over the paper's rate.

    Raises:
        ValueError: If an argument is not positive.

    >>> schedule = InverseSquareRoot(hidden_dim=512)
    >>> [f"{float(schedule(step - 1)):.4e}" for step in (1, 4000, 100000)]
    ['1.7469e-07', '6.9877e-04', '1.3975e-04']
    """

    def __init__(self, hidden_dim, warmup_steps=4000, scale=1.0):
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

    Differs from the paper: the fall always ends at `total_steps`. The paper's does where
    `cut_fraction * total_steps` is whole; else its rate ends early, and goes below zero.

    Args:
        peak: Highest learning rate.
        total_steps: Number of steps T.
        cut_fraction: Share of the steps in which the rate rises.
        ratio: How much smaller the lowest rate is than the peak.

    Raises:
        ValueError: If `total_steps` or `ratio` is below 1, or `cut_fraction` not in [0, 1).

    >>> schedule = SlantedTriangular(peak=3.2, total_steps=100)
    >>> [round(float(schedule(step)), 3) for step in (0, 5, 10, 55, 100)]
    [0.1, 1.65, 3.2, 1.65, 0.1]
    """

    def __init__(self, peak, total_steps, cut_fraction=0.1, ratio=32):
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
        share = ops.where(step < cut, step / max(cut, 1), fall)
        return self.peak * (1.0 + share * (self.ratio - 1.0)) / self.ratio

    def get_config(self):
        return {
            "peak": self.peak,
            "total_steps": self.total_steps,
            "cut_fraction": self.cut_fraction,
            "ratio": self.ratio,
        }


class _ByWholeSteps:
    """What Keras does with every part of a step whose gradients are accumulated, once a step.

    Keras 3.15 gives schedules the number of parts, so that a rate falls as many times too fast, and
    averages the weights behind each part, those of the step before again.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.gradient_accumulation_steps and self.ema_overwrite_frequency:
            raise ValueError(
                "Keras puts averaged weights in place behind every part of a step, before it is "
                "made: leave `ema_overwrite_frequency` out, and they take their place at the end. "
                f"Received: ema_overwrite_frequency={self.ema_overwrite_frequency}, "
                f"gradient_accumulation_steps={self.gradient_accumulation_steps}"
            )

    def _clip_gradients(self, gradients):
        kinds = [keras.backend.standardize_dtype(gradient.dtype) for gradient in gradients]
        if len(set(kinds)) == 1:
            return super()._clip_gradients(gradients)
        # As of a float32 output layer over an encoder of float64: one norm of both.
        clipped = super()._clip_gradients([ops.cast(gradient, "float64") for gradient in gradients])
        return [ops.cast(gradient, kind) for gradient, kind in zip(clipped, kinds, strict=True)]

    def _get_current_learning_rate(self):
        if isinstance(self._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            return self._learning_rate(self.iterations)
        return super()._get_current_learning_rate()

    def _update_model_variables_moving_average(self, variables):
        parts = self.gradient_accumulation_steps
        averages = [a for a in self._model_variables_moving_average if a is not None]
        before = [ops.copy(average) for average in averages] if parts else ()
        super()._update_model_variables_moving_average(variables)
        if parts:  # no `cond`, out of which JAX lets no variable
            last = ops.equal((self._iterations + 1) % parts, 0)
            for average, value in zip(averages, before, strict=True):
                average.assign(ops.where(last, ops.convert_to_tensor(average), value))


# Weights that do not decay, by their paths: biases, norms, and what scales or is added to scores.
NOT_DECAYED = re.compile(
    r"(^|/)[^/]*(bias|beta|gamma)[^/]*$|norm(alization)?(_\d+)?/[^/]*$"
    r"|(^|/|_)(scale|scalars|temperature|starts|ends|transitions)$"
)


@keras.saving.register_keras_serializable("keras_plm")
class AdamW(_ByWholeSteps, keras.optimizers.Optimizer):
    """Adam with decoupled weight decay, as BERT was trained: without bias correction.

    The first steps are therefore larger than Adam's, which the warm-up is there to tame. Only
    weights that multiply an input decay, as kernels and embeddings: not biases, the weights of
    norms, scalars as those of `ScalarMix`, and the transitions of a `CRF`, which are added to
    scores as biases are; see `NOT_DECAYED`. On torch all weights are updated by one fused kernel.

    Reference: Devlin et al. 2018, appendix A.2; google-research/bert, optimization.py;
    decoupled decay: Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2.

    Args:
        learning_rate: A float or a schedule.
        weight_decay: Share of the learning rate by which weights shrink at each step.
        beta_1, beta_2: Decay of the means of gradients and of their squares.
        epsilon: Added to the root of the mean square.
        bias_correction: If True, divide both means by `1 - beta^t`, which is AdamW as published.
        global_clipnorm: Largest norm of all gradients together, or `None`.
        groups: Weights that learn at another rate or start later, as `layer_groups` gives them: a
            dict from a weight's `path` to `(factor, start)`. Its learning rate, and with it its
            decay, is `factor` times the optimizer's, 1 for all others. Before step `start` it is
            frozen: its gradient counts as zero, in the norm too, and its means stay zero; the bias
            correction counts steps from there. It is all a function of the number of finished
            steps, so nothing is recompiled and a resumed run goes on as it would have.
        **kwargs: Other arguments of `keras.optimizers.Optimizer`.

    Raises:
        ValueError: If a factor or start is negative, or, when the weights are known, if `groups`
            has a path that none or several of them have.
    """

    def __init__(
        self,
        learning_rate=1e-4,
        weight_decay=0.01,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        bias_correction=False,
        global_clipnorm=1.0,
        groups=None,
        name="adamw",
        **kwargs,
    ):
        wrong = [path for path, group in (groups or {}).items() if min(group) < 0]
        if wrong:
            raise ValueError(
                "A group is `(factor, start)`, both 0 or more. "
                f"Received: {tuple(groups[wrong[0]])} for {wrong[0]!r}"
            )
        super().__init__(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            global_clipnorm=global_clipnorm,
            name=name,
            **kwargs,
        )
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.bias_correction = bias_correction
        self.groups = {path: tuple(group) for path, group in (groups or {}).items()}
        self._gradient_scale = None

    def build(self, variables):
        if self.built:
            return
        paths = [getattr(variable, "path", None) for variable in variables]
        for path in self.groups:
            if paths.count(path) != 1:
                raise ValueError(
                    "Each path of `groups` must be that of one weight that learns. "
                    f"Received: {path!r}, which {paths.count(path)} have"
                )
        self._decays = [NOT_DECAYED.search(path or v.name) is None
                        for path, v in zip(paths, variables, strict=True)]  # fmt: skip
        groups = [self.groups.get(path, (1.0, 0)) for path in paths]
        self._factors = [float(factor) for factor, _ in groups]
        self._begins = [int(start) for _, start in groups]
        super().build(variables)
        self._means, self._squares = self.add_optimizer_variables(variables, ["mean", "square"])

    def _backend_apply_gradients(self, gradients, variables):
        begins = [self._begins[self._get_variable_index(v)] for v in variables]
        gradients = [
            # Dense where TensorFlow has rows of an embedding; not a product, as 0 * NaN is NaN.
            ops.where(self.iterations >= begin, ops.convert_to_tensor(gradient, sparse=False), 0.0)
            if begin
            else gradient
            for gradient, begin in zip(gradients, begins, strict=True)
        ]
        super()._backend_apply_gradients(gradients, variables)

    def _corrections(self, dtype, begin):
        if not self.bias_correction:
            return 1.0, 1.0
        step = ops.cast(ops.maximum(self.iterations + 1 - begin, 1), dtype)
        beta_1, beta_2 = ops.cast(self.beta_1, dtype), ops.cast(self.beta_2, dtype)
        return 1.0 - ops.power(beta_1, step), 1.0 - ops.power(beta_2, step)

    def update_step(self, gradient, variable, learning_rate):
        # Without groups the decay has been taken off already, by `Optimizer`: the two terms do
        # not interact.
        dtype, index = variable.dtype, self._get_variable_index(variable)
        learning_rate = ops.cast(learning_rate, dtype) * self._factors[index]
        # TensorFlow has rows of an embedding, which this makes dense.
        gradient = ops.cast(ops.reshape(gradient, variable.shape), dtype)
        mean, square, begin = self._means[index], self._squares[index], self._begins[index]
        self.assign(mean, self.beta_1 * mean + (1.0 - self.beta_1) * gradient)
        self.assign(square, self.beta_2 * square + (1.0 - self.beta_2) * ops.square(gradient))
        correction_1, correction_2 = self._corrections(dtype, begin)
        ratio = (mean / correction_1) / (ops.sqrt(square / correction_2) + self.epsilon)
        if self.groups and self.weight_decay and self._use_weight_decay(variable):
            decay = ops.where(self.iterations >= begin, self.weight_decay, 0.0)
            ratio = ratio + ops.cast(decay, dtype) * variable
        self.assign_sub(variable, learning_rate * ratio)

    def _use_weight_decay(self, variable):
        # By number: TensorFlow's own variables have no path.
        decays = self._decays[self._get_variable_index(variable)]
        return decays and super()._use_weight_decay(variable)

    # On torch Keras makes a dozen passes over the weights; torch's fused kernel makes one.

    def _apply_weight_decay(self, variables):
        if keras.backend.backend() != "torch" and not self.groups:
            super()._apply_weight_decay(variables)

    def _clip_gradients(self, gradients):
        if keras.backend.backend() != "torch" or not self.global_clipnorm:
            return super()._clip_gradients(gradients)
        import torch

        # The kernel divides by it, which saves a pass over the gradients.
        norm = torch.linalg.vector_norm(torch.stack(norms(gradients)))
        self._gradient_scale = (norm / self.global_clipnorm).clamp(min=1.0).float()
        return gradients

    def _backend_update_step(self, gradients, variables, learning_rate):
        if keras.backend.backend() != "torch":
            super()._backend_update_step(gradients, variables, learning_rate)
            return
        import torch

        scale, self._gradient_scale = self._gradient_scale, None
        # A number read here would make a GPU wait; only weights that start later need one.
        done = int(self.iterations) if any(self._begins) else 0
        kinds = {}  # a call of the kernel has one rate, one decay and, here, one count of steps
        for v, g in zip(variables, gradients, strict=True):
            i = self._get_variable_index(v)
            if done >= self._begins[i]:
                row = (v.value, g, self._means[i].value, self._squares[i].value)
                kind = self._use_weight_decay(v), self._factors[i], self._begins[i]
                kinds.setdefault(kind, []).append(row)
        rate = ops.convert_to_tensor(learning_rate, "float32")
        for (decays, factor, begin), rows in kinds.items():
            weights, grads, means, squares = (list(x) for x in zip(*rows, strict=True))
            # Far from zero steps, both bias corrections are exactly 1.
            step = torch.full((), 1e9, device=rate.device)
            if self.bias_correction:
                step = (ops.convert_to_tensor(self.iterations) + (1 - begin)).float()
            with torch.no_grad():
                adamw_step(
                    weights,
                    grads,
                    means,
                    squares,
                    step=step,
                    lr=rate * factor,
                    beta1=self.beta_1,
                    beta2=self.beta_2,
                    decay=(self.weight_decay or 0.0) if decays else 0.0,
                    eps=self.epsilon,
                    scale=scale,
                )

    def get_config(self):
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "bias_correction": self.bias_correction,
            "groups": {path: list(group) for path, group in self.groups.items()},
        }


# Weights above the last layer: ours, and KerasHub's.
AT_TOP = re.compile(r"(?:pooler|final_norm|pooled_dense)/|^layer_norm/")
# Weights of the i-th block: ours, and KerasHub's `transformer_layer_<i>` and the like.
BLOCK = re.compile(r"(?:block|layer)_(\d+)/")


def weight_depths(encoder):
    """The depth of each of an encoder's weights, by path.

    It is i + 1 in `block_<i>` or `layer_<i>`, `None` in a pooler and a final norm, and 0 elsewhere
    (embeddings).

    Raises:
        ValueError: If the encoder does not number its blocks in their names.
    """
    depths = {}
    for weight in encoder.weights:
        block = BLOCK.search(weight.path)
        at_top = AT_TOP.search(weight.path)
        depths[weight.path] = None if at_top else int(block[1]) + 1 if block else 0
    found = sorted({depth - 1 for depth in depths.values() if depth})
    output = getattr(encoder, "output", None)
    if isinstance(output, dict) and "layers" in output:
        count = getattr(encoder, "num_blocks", len(output["layers"]) - 1)
    else:
        count = max(len(found), 1)
    if found != list(range(count)):
        names = list(dict.fromkeys(path.rpartition("/")[0] for path in depths))
        names = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise ValueError(
            f"The {count} blocks of an encoder must be layers called `block_0`, `block_1`, ... or "
            f"`layer_0`, `layer_1`, ...: name them so. Received: blocks {found} among {names}"
        )
    return depths


def loss_scaled(optimizer, encoder):
    """An optimizer for an encoder: of one that computes in float16 it scales the loss.

    Keras asks the model around the encoder, whose own policy may be another.
    """
    if encoder.compute_dtype != "float16":
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer)


def layer_groups(model, layer_decay=1.0, unfreeze_steps=0):
    """`AdamW`'s groups for smaller rates and later starts the lower a layer of an encoder lies.

    The depth of a weight is i + 1 in the encoder's `block_<i>` or `layer_<i>`, that of the last
    layer in a pooler and a final norm, and 0 elsewhere in the encoder (embeddings). What lies
    around the encoder, a head, learns at the full rate from the beginning.

    Reference: Howard and Ruder 2018 (ULMFiT), arXiv 1801.06146, section 3.2, "discriminative
    fine-tuning", whose rates fall by 2.6 a layer, and section 3.3, "gradual unfreezing": "first
    unfreeze the last layer", each next lower one an epoch later.

    Args:
        model: A head, or an encoder alone.
        layer_decay: Rate of a layer over that of the next higher one; the last layer learns at
            the full rate.
        unfreeze_steps: Steps after which the next lower layer starts to learn; 0 for all at once.

    Returns:
        A dict from paths to `(factor, start)`, of those that are not at the full rate from the
        beginning.

    Raises:
        ValueError: If `layer_decay` is not in (0, 1], `unfreeze_steps` is negative, or the encoder
            does not number its blocks in their names.
    """
    if not 0 < layer_decay <= 1 or unfreeze_steps < 0:
        raise ValueError(
            "`layer_decay` must lie in (0, 1] and `unfreeze_steps` be 0 or more. "
            f"Received: layer_decay={layer_decay}, unfreeze_steps={unfreeze_steps}"
        )
    encoder = getattr(model, "encoder", model)
    if layer_decay == 1 and not unfreeze_steps:
        return {}  # of an encoder without blocks, too
    depths = weight_depths(encoder)
    top = max((depth for depth in depths.values() if depth is not None), default=0)
    learned = [(weight.path, depths[weight.path]) for weight in encoder.trainable_weights]
    groups = {
        path: (layer_decay ** (top - depth), (top - depth) * unfreeze_steps)
        for path, depth in learned
        if depth is not None
    }
    return {path: group for path, group in groups.items() if group != (1, 0)}


@keras.saving.register_keras_serializable("keras_plm")
class AdaGrad(_ByWholeSteps, keras.optimizers.Adagrad):
    """`keras.optimizers.Adagrad` that takes one pass over the weights on torch's CPU path, not ten.

    A step costs a few passes over all weights whatever the batch, which is most of the work where
    the weights are tables of word vectors. Sums begin at 1, as GloVe's: the first steps of rare
    words then are those of plain gradient descent.

    Reference: Duchi et al. 2011, JMLR 12.

    Args:
        learning_rate: A float or a schedule.
        initial_accumulator_value: What the sums of squares begin at.
        epsilon: Added to the sums or, on torch, to their roots, so that nothing is divided by 0.
        **kwargs: Other arguments of `keras.optimizers.Adagrad`.
    """

    def __init__(
        self,
        learning_rate=0.3,
        initial_accumulator_value=1.0,
        epsilon=1e-7,
        name="adagrad",
        **kwargs,
    ):
        super().__init__(learning_rate, initial_accumulator_value, epsilon, name=name, **kwargs)

    def _backend_update_step(self, gradients, variables, learning_rate):
        if keras.backend.backend() != "torch" or variables[0].value.device.type != "cpu":
            super()._backend_update_step(gradients, variables, learning_rate)
            return
        import torch

        sums = [self._accumulators[self._get_variable_index(v)].value for v in variables]
        with torch.no_grad():
            adagrad_step(
                [variable.value for variable in variables],
                list(gradients),
                sums,
                lr=float(learning_rate),
                eps=self.epsilon,
            )
