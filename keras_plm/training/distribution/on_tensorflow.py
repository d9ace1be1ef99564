"""Training on several TensorFlow devices: a strategy mirrors the model."""

import contextlib
import functools
import os
import warnings

import keras

from keras_plm.files.private_apis import build_for_training
from keras_plm.training.distribution.one_device import Distribution, too_few
from keras_plm.training.distribution.whole_batch import check_optimizer, inner, is_of, reducing


class OnTensorFlow(Distribution):
    def __init__(self, devices, coordinator):
        import tensorflow as tf

        if coordinator not in (None, "auto"):
            raise ValueError(
                "TensorFlow trains on one machine or one TPU: for several machines set "
                f"KERAS_BACKEND=jax or torch. Received: coordinator={coordinator!r}"
            )
        if coordinator == "auto" or "TPU_NAME" in os.environ:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
            self.strategy = tf.distribute.TPUStrategy(resolver)
        else:
            kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
            found = [device.name for device in tf.config.list_logical_devices(kind)]
            if devices is not None and devices > len(found):
                fix = "request fewer; tf.config.set_logical_device_configuration splits one"
                raise too_few(devices, len(found), kind, fix)
            found = tuple(found[:devices])
            one = len(found) == 1
            self.strategy = tf.distribute.get_strategy() if one else _mirrored(found)
        super().__init__(self.strategy.num_replicas_in_sync)

    def scope(self):
        return self.strategy.scope()

    def optimizer(self, optimizer):
        import tensorflow as tf

        if self.num_replicas == 1 or is_of(optimizer, self):
            return optimizer
        if optimizer.gradient_accumulation_steps or optimizer.use_ema:
            raise ValueError(
                "Several TensorFlow devices need an optimizer without gradient accumulation and "
                "weight averages: leave them out, or set KERAS_BACKEND=jax or torch. Received: "
                f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}, "
                f"use_ema={optimizer.use_ema}"
            )

        def reduce(gradients):
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)

        def _all_reduce_sum_gradients(self, grads_and_vars):
            return grads_and_vars  # done already

        made = reducing(optimizer, reduce, _all_reduce_sum_gradients=_all_reduce_sum_gradients)
        inner(made).distribution = self
        return made

    @contextlib.contextmanager
    def _around(self, model, batches, training):
        if self.num_replicas > 1:
            if model.distribute_strategy is not self.strategy:
                raise ValueError(
                    "The model must lie on all devices: build it `with distribution.scope():`. "
                    f"Received: {type(model).__name__}, {self.num_replicas} devices"
                )
            if training:
                check_optimizer(self, model)
                if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
                    raise ValueError(
                        "Several TensorFlow devices need a policy without loss scaling: choose "
                        "'mixed_bfloat16', or KERAS_BACKEND=jax. Received: mixed_float16"
                    )
            with self.strategy.scope():
                build_for_training(model, batches[0])
        # Keras would build with the mean of the devices' parts of a batch, even of masks.
        name = "_maybe_symbolic_build"
        ours = self.num_replicas > 1 and name not in model.__dict__
        if ours:
            model.__dict__[name] = lambda *_, **__: None
        try:
            yield
        finally:  # `fit` continues after a validation
            if ours:
                del model.__dict__[name]


@functools.cache
def _mirrored(devices):
    """Creates the strategy of some devices, once: sums of a second one would have equal keys."""
    import tensorflow as tf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tf.distribute.MirroredStrategy(devices)
