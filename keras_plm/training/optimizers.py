"""Optimizers of the published models: BERT's AdamW, and AdaGrad."""

import re
from collections.abc import Mapping

import keras
from keras import ops

from keras_plm.files.private_apis import adagrad_step, adamw_step, norms
from keras_plm.layers._fused.softmax import wide_dtype
from keras_plm.training.kept_numbers import kept_numbers


class _ByWholeSteps:
    """Updates schedules and weight averages once per step, not once per micro-batch.

    On torch its steps do not wait for a GPU.

    Keras 3.15 evaluates schedules at the number of micro-batches: a learning rate decays too
    fast. It also updates averages after each micro-batch: unchanged weights enter them again.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.gradient_accumulation_steps and self.ema_overwrite_frequency:
            raise ValueError(
                "With accumulated gradients, Keras would overwrite the weights by their average "
                "after every micro-batch, before the step is complete: leave "
                "`ema_overwrite_frequency` out. The average then replaces the weights at the end "
                "of training. "
                f"Received: ema_overwrite_frequency={self.ema_overwrite_frequency}, "
                f"gradient_accumulation_steps={self.gradient_accumulation_steps}"
            )

    def apply(self, grads, trainable_variables=None):
        with kept_numbers():
            super().apply(grads, trainable_variables)

    def _clip_gradients(self, gradients):
        kinds = [keras.backend.standardize_dtype(gradient.dtype) for gradient in gradients]
        if len(set(kinds)) == 1:
            return super()._clip_gradients(gradients)
        # For example a float32 output layer over a float64 encoder: one norm covers both.
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
        if parts:  # not `cond`: under JAX no variable can leave it
            last = ops.equal((self._iterations + 1) % parts, 0)
            for average, value in zip(averages, before, strict=True):
                average.assign(ops.where(last, ops.convert_to_tensor(average), value))


# Paths of weights that do not decay: biases, norms, scales, and terms added to scores.
NOT_DECAYED = re.compile(
    r"(^|/)[^/]*(bias|beta|gamma)[^/]*$|norm(alization)?(_\d+)?/[^/]*$"
    r"|(^|/|_)(scale|scalars|temperature|starts|ends|transitions)$"
)


@keras.saving.register_keras_serializable("keras_plm")
class BertAdamW(_ByWholeSteps, keras.optimizers.Optimizer):
    """BERT's AdamW: Adam with decoupled weight decay and without bias correction.

    Without the correction the first steps are larger than Adam's: use a warm-up. Only kernels and
    embeddings decay, not biases, weights of norms, scalars such as those of `ScalarMix`, or the
    transitions of a `CRF`; see `NOT_DECAYED`. On torch one fused kernel updates all weights.

    Reference: Devlin et al. 2018, appendix A.2; google-research/bert, optimization.py;
    decoupled decay: Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2.

    Args:
        learning_rate: A float or a schedule.
        weight_decay: Weight decay per step, as a fraction of the learning rate.
        beta_1, beta_2: Decay of the means of gradients and of their squares.
        epsilon: Constant added to the root of the mean square.
        bias_correction: If True, divide both means by `1 - beta^t`, as in the published AdamW.
        global_clipnorm: Largest norm of all gradients together, or `None`.
        groups: Weights with another learning rate or a later start, from `transfer.layer_groups`: a
            dict from the `path` of a weight to `(factor, start)`. `factor` multiplies the learning
            rate and the decay. Before step `start` the weight is frozen, with a gradient of zero
            also in the norm; the bias correction counts steps from `start`. A resumed run behaves
            the same.
        name: Name of the optimizer.
        **kwargs: Other arguments of `keras.optimizers.Optimizer`.

    Raises:
        ValueError: If a factor or start is negative. On the first step: if a path of
            `groups` does not belong to exactly one weight.

    >>> import keras
    >>> weight = keras.Variable([1.0])
    >>> optimizer = BertAdamW(learning_rate=0.1, weight_decay=0.0)
    >>> optimizer.apply([keras.ops.ones(1)], [weight])
    >>> round(float(weight[0]), 3)  # 1 - 0.1 * 0.1 / 0.001 ** 0.5
    0.684
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 1e-4,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        bias_correction: bool = False,
        global_clipnorm: float | None = 1.0,
        groups: Mapping[str, tuple[float, int]] | None = None,
        name: str = "bert_adamw",
        **kwargs,
    ):
        wrong = [path for path, group in (groups or {}).items() if min(group) < 0]
        if wrong:
            raise ValueError(
                "A group must be `(factor, start)`, both 0 or more. "
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
                    "Each path of `groups` must belong to one trainable weight. "
                    f"Received: {path!r}, the path of {paths.count(path)}"
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
            # Makes TensorFlow's embedding rows dense. Not a product, because 0 * NaN is NaN.
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
        # Without groups `Optimizer` has already applied the decay; the two terms do not interact.
        # In float32 for half-precision weights too: bfloat16 rounds beta_2 to 1.
        dtype, index = wide_dtype(variable), self._get_variable_index(variable)
        learning_rate = ops.cast(learning_rate, dtype) * self._factors[index]
        # Makes TensorFlow's embedding rows dense.
        gradient = ops.cast(ops.reshape(gradient, variable.shape), dtype)
        begin = self._begins[index]
        mean, square = (ops.cast(kept[index], dtype) for kept in (self._means, self._squares))
        mean = self.beta_1 * mean + (1.0 - self.beta_1) * gradient
        square = self.beta_2 * square + (1.0 - self.beta_2) * ops.square(gradient)
        self.assign(self._means[index], ops.cast(mean, variable.dtype))
        self.assign(self._squares[index], ops.cast(square, variable.dtype))
        correction_1, correction_2 = self._corrections(dtype, begin)
        ratio = (mean / correction_1) / (ops.sqrt(square / correction_2) + self.epsilon)
        if self.groups and self.weight_decay and self._use_weight_decay(variable):
            decay = ops.where(self.iterations >= begin, self.weight_decay, 0.0)
            ratio = ratio + ops.cast(decay, dtype) * ops.cast(variable, dtype)
        self.assign_sub(variable, ops.cast(learning_rate * ratio, variable.dtype))

    def _use_weight_decay(self, variable):
        # By index: TensorFlow's own variables have no path.
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

        # The kernel divides by the norm, which saves a pass over the gradients.
        norm = torch.linalg.vector_norm(torch.stack(norms(gradients)))
        self._gradient_scale = (norm / self.global_clipnorm).clamp(min=1.0).float()
        return gradients

    def _backend_update_step(self, gradients, variables, learning_rate):
        if keras.backend.backend() != "torch":
            super()._backend_update_step(gradients, variables, learning_rate)
            return
        import torch

        scale, self._gradient_scale = self._gradient_scale, None
        # Reading the number makes a GPU wait; only weights that start later need it.
        done = int(self.iterations) if any(self._begins) else 0
        kinds = {}  # one call of the kernel has one learning rate, one decay and one step count
        for v, g in zip(variables, gradients, strict=True):
            i = self._get_variable_index(v)
            if done >= self._begins[i]:
                row = (v.value, g, self._means[i].value, self._squares[i].value)
                kind = self._use_weight_decay(v), self._factors[i], self._begins[i]
                kinds.setdefault(kind, []).append(row)
        rate = ops.convert_to_tensor(learning_rate, "float32")
        for (decays, factor, begin), rows in kinds.items():
            weights, grads, means, squares = (list(x) for x in zip(*rows, strict=True))
            # At so many steps both bias corrections are exactly 1.
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


def loss_scaled(optimizer, encoder):
    """Returns the optimizer, with loss scaling if the encoder computes in float16.

    Keras reads only the policy of the outer model, which may differ from the encoder's.
    """
    if encoder.compute_dtype != "float16":
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer)


@keras.saving.register_keras_serializable("keras_plm")
class AdaGrad(_ByWholeSteps, keras.optimizers.Adagrad):
    """`keras.optimizers.Adagrad` with one pass over the weights on torch's CPU path.

    Each step reads all weights, which takes most of the time for tables of word vectors. The
    initial accumulator is 1, as in GloVe: the first steps of rare words equal plain gradient
    descent.

    Reference: Duchi et al. 2011, JMLR 12.

    Args:
        learning_rate: A float or a schedule.
        initial_accumulator_value: Initial sums of squares.
        epsilon: Constant added to the sums, on torch to their roots.
        name: Name of the optimizer.
        **kwargs: Other arguments of `keras.optimizers.Adagrad`.

    >>> import keras
    >>> weight = keras.Variable([1.0])
    >>> AdaGrad(learning_rate=0.3).apply([keras.ops.ones(1)], [weight])
    >>> round(float(weight[0]), 3)  # 1 - 0.3 / 2 ** 0.5
    0.788
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.3,
        initial_accumulator_value: float = 1.0,
        epsilon: float = 1e-7,
        name: str = "adagrad",
        **kwargs,
    ):
        super().__init__(learning_rate, initial_accumulator_value, epsilon, name=name, **kwargs)

    def update_step(self, gradient, variable, learning_rate):
        if hasattr(gradient, "dense_shape"):
            # TensorFlow lists the rows of an embedding. Keras squares each repeat of a row alone.
            rows = gradient.values, gradient.indices
            gradient = ops.segment_sum(*rows, num_segments=variable.shape[0])
        super().update_step(gradient, variable, learning_rate)

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
