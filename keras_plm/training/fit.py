"""Training and evaluation of models on `Batches`, and outputs by row."""

import contextlib
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_plm.data.batching import Batches
from keras_plm.data.class_weight import class_weights, weights_of
from keras_plm.files.private_apis import build_for_training
from keras_plm.files.saveable import Saveable
from keras_plm.files.sequences import are_texts
from keras_plm.training._prefetch import sent_ahead
from keras_plm.training.callbacks import FiniteLoss, StepCounter, UnhurriedCallbacks
from keras_plm.training.distribution.one_device import Distribution
from keras_plm.training.half_precision import warn_of_slow_precision
from keras_plm.training.kept_numbers import kept_numbers
from keras_plm.training.memory import memory_errors


def check_outputs(outputs: np.ndarray) -> None:
    """Raises if an array of a model's outputs is not finite.

    Args:
        outputs: The array.

    Raises:
        FloatingPointError: If a number is not finite; it names the first one.

    >>> import numpy as np
    >>> check_outputs(np.ones(3))
    >>> check_outputs(np.array([1.0, np.inf]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FloatingPointError: ...
    """
    outputs = np.asarray(outputs)
    if not (finite := np.isfinite(outputs)).all():
        raise FloatingPointError(
            "A model's outputs must be finite: if training diverged, train again with a lower "
            "learning rate; if float16 overflowed, use float32 or bfloat16. "
            f"Received: {outputs[~finite].ravel()[0]} among the outputs"
        )


class FitsBatches(Saveable):
    """Mixin for Keras models whose `fit`, `evaluate` and `predict` take `Batches`.

    `fit` keeps the order of `Batches` and multiplies `class_weight` into their weights. A reloaded
    model is compiled as before, with its own defaults, and its frozen layers stay frozen. `fit`
    raises if the loss of an epoch is not finite, see `FiniteLoss`. Copy a model by
    `type(model).from_config(model.get_config())`: `keras.models.clone_model` returns a
    `keras.Model` without these methods, and its output layer has a table of its own.

    Call arguments:
        inputs: The inputs of the model. A functional model reads only its own ones of a dict.

    Returns:
        The outputs of the model.

    Attributes:
        learns_from: Fix that an error message names if an argument is texts.

    Raises:
        TypeError: If `fit` or `evaluate` gets texts, or nothing.
        ValueError: If the data has no targets.
        MemoryError: If a step of `fit` needs more memory than the device has.

    >>> import keras
    >>> import numpy as np
    >>> from keras_plm.data import batches
    >>> class Model(FitsBatches, keras.Model):
    ...     pass
    >>> x = keras.Input((2,), name="x")
    >>> model = Model({"x": x}, keras.layers.Dense(1)(x))
    >>> model.compile("sgd", "mse")
    >>> found = batches({"x": np.ones((4, 2))}, targets=np.ones((4, 1)), batch_size=2)
    >>> len(model.fit(found, epochs=2, verbose=0).history["loss"])
    2
    """

    learns_from = (
        "make `Batches` of the texts, as `pretraining.masked_lm_batches` and "
        "`data.translation_batches` do"
    )

    def compile_from_config(self, config):
        config = self.freeze_again(config)
        self._compile_again(keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    def _compile_again(self, config):
        """Compiles a loaded model with the arguments of its `compile`."""
        self.compile(**config)

    def fit(self, x=None, *args, class_weight=None, shuffle=True, callbacks=None, **kwargs):
        warn_of_slow_precision(self)
        # First, because the given callbacks may score or save the model.
        callbacks = [FiniteLoss(), *(keras.tree.flatten(callbacks) if callbacks else ())]
        y = args[0] if args else kwargs.get("y")
        x = self._checked(x, y)
        if kwargs.get("validation_data") is not None:
            kwargs["validation_data"] = self._validation_data(kwargs["validation_data"])
        if isinstance(x, Batches):
            kwargs |= {"class_weight": class_weight, "callbacks": callbacks}
            return self._fit_batches(x, *args, **kwargs)
        options = {"class_weight": class_weight, "shuffle": shuffle, "callbacks": callbacks}
        if class_weight is not None:
            options |= self._weighted(y, class_weight, kwargs.pop("sample_weight", None))
            if options.get("sample_weight") is not None and kwargs.get("validation_split"):
                raise ValueError(
                    "Class weights together with sample weights need separate validation data: "
                    "give `validation_data`. "
                    f"Received: validation_split={kwargs['validation_split']}"
                )
        self._read_scaled(None)
        with _without_pooler_warning(), self._distributed(x, training=True):
            return super().fit(x, *args, **options, **kwargs)

    def _fit_batches(self, source, *args, class_weight, callbacks, **kwargs):
        """Runs `fit` on `Batches`, in their own order and with class weights."""
        if kwargs.get("steps_per_epoch") is not None:
            raise ValueError(
                "An epoch must cover all `Batches`: for shorter epochs give fewer rows; to stop "
                "early give a callback. "
                f"Received: steps_per_epoch={kwargs['steps_per_epoch']}"
            )
        _check_accumulation(self, source)
        given = inspect.signature(keras.Model.fit).bind(self, source, *args, **kwargs)
        given.apply_defaults()
        verbose, epochs = given.arguments["verbose"], given.arguments["epochs"]
        counter = StepCounter(source)
        callbacks = UnhurriedCallbacks(
            [counter, *callbacks],
            add_history=True,
            add_progbar=verbose != 0,
            model=self,
            verbose=verbose,
            epochs=epochs,
            steps=len(source),
        )
        options = {"shuffle": False, "callbacks": callbacks}
        before, to_longest = source.class_weight, source.pad_to_longest
        weights = before if class_weight is None else self._class_weights(class_weight)
        try:
            source.class_weight = weights
            source.pad_to_longest = to_longest or keras.backend.backend() == "torch"
            self._read_scaled(source)
            if keras.backend.backend() == "tensorflow":
                x = source.tf_dataset()
                if source.distribution is None and self.compiled and not self.train_function:
                    # Otherwise TensorFlow traces the first step twice: it creates variables.
                    build_for_training(self, source[0])
            else:
                x = sent_ahead(source)
            running = self._distributed(source, training=True)
            with _without_pooler_warning(), memory_errors(counter), running:
                return super().fit(x, *args, **options, **kwargs)
        finally:
            counter.on_train_end()  # also after an interrupt
            source.class_weight, source.pad_to_longest = before, to_longest

    def _read_scaled(self, source):
        """Records the scaling of the weights of `source`; a change retraces the step."""
        scaled = isinstance(source, Batches) and source.scale_weights
        classes = source.class_weight if scaled else None
        same = np.array_equal(classes, self._scaled_classes) if scaled and self._scaled else True
        if scaled != self._scaled or not same:
            self._scaled, self._scaled_classes, self.train_function = scaled, classes, None

    def _checked(self, x, y=None, name="x", targets=True):
        """Returns `x` in readable form; raises unless it has numbers and, if needed, targets."""
        texts, x = are_texts(x)
        if texts or x is None:
            raise TypeError(
                f"A model needs arrays of numbers, not texts: {self.learns_from}. "
                f"Received: {name} of type {type(x).__name__}"
            )
        check_batches(self, x)
        if isinstance(x, Batches):
            labelled = not targets or x.has_targets
        else:
            if isinstance(y, (list, tuple, np.ndarray)) and are_texts(y)[0]:
                raise TypeError(
                    "Targets must be arrays of numbers, the ids of labels: "
                    f"{self.learns_from}. Received: {y!r:.60} with {name}"
                )
            array = isinstance(x, (dict, list, tuple, np.ndarray)) or keras.ops.is_tensor(x)
            labelled = y is not None or not array
        if targets and not labelled and self._needs_targets():
            raise ValueError(
                "`fit` and `evaluate` need targets: give every example its label, or pass `y` with "
                f"arrays. Received: {name} of type {type(x).__name__} without targets"
            )
        return x

    def _needs_targets(self):
        """Whether a step computes the loss passed to `compile`."""
        own = type(self).compute_loss is FitsBatches.compute_loss
        own = own and type(self).train_step is keras.Model.train_step
        return own and getattr(self, "loss", None) is not None

    def _validation_data(self, data):
        """Converts `validation_data` for Keras: `Batches`, `(x, y)`, or another data set."""
        if isinstance(data, (list, tuple)) and data:
            if isinstance(data[0], str) or hasattr(data[0], "text"):  # texts or examples
                self._checked(data, name="validation_data")
            return self._checked(data[0], *data[1:2], name="validation_data"), *data[1:]
        data = self._checked(data, name="validation_data")
        if not isinstance(data, Batches):
            return data
        # Keras makes the iterator itself, before it calls `evaluate`.
        held_out = data.for_evaluation()
        on_tensorflow = keras.backend.backend() == "tensorflow"
        return held_out.tf_dataset() if on_tensorflow else held_out

    def train_on_batch(self, x, y=None, sample_weight=None, class_weight=None, **kwargs):
        """Trains on a batch as `keras.Model.train_on_batch`, with `class_weight` by name or id."""
        self._read_scaled(None)
        options = {"sample_weight": sample_weight, "class_weight": None}
        if class_weight is not None:
            options |= self._weighted(y, class_weight, sample_weight)
        return super().train_on_batch(x, y, **options, **kwargs)

    takes_class_weight = True  # whether each output has one class as its target

    def _class_weights(self, class_weight):
        """Returns an array over the class ids; raises if the model has no classes."""
        if not self.takes_class_weight:
            raise ValueError(
                "`class_weight` is for models whose targets are classes. "
                f"Received: class_weight={class_weight} for a {type(self).__name__}"
            )
        return class_weights(class_weight, getattr(self, "labels", None))

    def _weighted(self, y, class_weight, sample_weight=None):
        """Returns Keras options with class weights for `y`, or for a data set if `y` is `None`."""
        array = self._class_weights(class_weight)
        per_word = getattr(self, "per_word", False)
        if per_word and y is None:
            raise ValueError(
                "`class_weight` of tags needs arrays or `Batches`: make them from the examples. "
                "Received: another data set"
            )
        if not per_word and sample_weight is None:
            return {"class_weight": dict(enumerate(array.tolist()))}
        weights = weights_of(array, keras.ops.convert_to_numpy(y))
        if sample_weight is not None:
            given = keras.ops.convert_to_numpy(sample_weight)
            weights = weights * given.reshape(*given.shape, *[1] * (weights.ndim - given.ndim))
        return {"class_weight": None, "sample_weight": weights}

    def _distributed(self, source, training):
        """Returns the context of the distribution of `source`; raises if it must have one."""
        distribution = getattr(source, "distribution", None)
        if distribution is not None:
            return distribution.running(self, source, training)
        several = getattr(getattr(self, "distribute_strategy", None), "num_replicas_in_sync", 1)
        optimizer = getattr(self, "optimizer", None)
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        alone = training and hasattr(optimizer, "distribution")
        if isinstance(source, Batches) and (several > 1 or alone):
            raise ValueError(
                "A model on several devices needs sharded batches: give it "
                "`distribution.shard(batches)`. Received: Batches of one device"
            )
        together = Distribution.of_processes
        if training and together is not None:
            raise ValueError(
                f"{together.num_processes} processes train together, so each needs its part of the "
                "data: make `Batches` of the data and give `distribution.shard(batches)`. "
                f"Received: {type(source).__name__}"
            )
        return contextlib.nullcontext()

    summed_over = None  # a context in which metrics cover all processes
    parts_of_sum = 1  # number of processes that average the gradients of a summed loss

    _scaled = False  # whether weights average 1 over each batch, without class weights
    _scaled_classes = None  # class weights of such batches
    _in_training = False  # whether the current step is a training step

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self._in_training = training
        with kept_numbers():
            loss = super().compute_loss(x, y, y_pred, sample_weight, training=training)
        return loss if self.parts_of_sum == 1 else loss * self.parts_of_sum

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        with kept_numbers():
            if self._in_training and self._scaled and sample_weight is not None:
                if self._scaled_classes is None:
                    sample_weight = keras.tree.map_structure(_unscaled, sample_weight)
                else:
                    sample_weight = _unscaled(sample_weight, y, self._scaled_classes)
            return super().compute_metrics(x, y, y_pred, sample_weight)

    def get_metrics_result(self):
        if self.summed_over is None:
            return super().get_metrics_result()
        with self.summed_over(self.metrics):
            return super().get_metrics_result()

    def evaluate(self, x=None, *args, **kwargs):
        """Evaluates as `keras.Model.evaluate`; `Batches` are read as with `training=False`."""
        # `fit` passes checked data; a second check would advance a generator.
        if not kwargs.get("_use_cached_eval_dataset"):
            x = self._checked(x, args[0] if args else kwargs.get("y"))
        source = x = x.for_evaluation() if isinstance(x, Batches) else x
        if isinstance(x, Batches):
            on_tensorflow = keras.backend.backend() == "tensorflow"
            # Keras would take the signature of a data set from the first two batches.
            x = x.tf_dataset() if on_tensorflow else sent_ahead(x)
        with self._distributed(source, training=False):
            return super().evaluate(x, *args, **kwargs)

    def predict(self, x, *args, **kwargs):
        """Predicts as `keras.Model.predict`; raises for shuffled or sorted `Batches`."""
        x = self._checked(x, targets=False)
        x = x.for_evaluation() if isinstance(x, Batches) else x
        return super().predict(x, *args, **kwargs)


@contextlib.contextmanager
def _without_pooler_warning():
    """Hides Keras' warning about an encoder's pooler, which tagging does not use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Gradients do not exist for variables .*pooler")
        yield


def _unscaled(weights, y=None, class_weight=None):
    """Restores weights of rows or words that were 0 or 1 before `Batches` scaled them.

    The scale on each device is the largest weight without class weights.

    Args:
        weights: Scaled weights, multiplied by class weights, if any.
        y: Class ids, in the shape of `weights`.
        class_weight: An array over class ids; others have weight 1.
    """
    rows = weights
    if class_weight is not None:
        ids = ops.cast(y, "int32")
        last = len(class_weight) - 1
        of_class = ops.take(ops.convert_to_tensor(class_weight), ops.clip(ids, 0, last))
        of_class = ops.where((ids < 0) | (ids > last), ops.ones_like(of_class), of_class)
        of_class = ops.cast(of_class, weights.dtype)
        rows = ops.where(of_class > 0, weights / ops.maximum(of_class, 1e-9), 0.0)
    return weights / ops.maximum(ops.max(rows), 1e-9)


def _check_accumulation(model, batches):
    """Raises unless an optimizer steps after the last micro-batch of each batch."""
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    every, count = getattr(inner, "gradient_accumulation_steps", None) or 1, batches.micro_batches
    if count > 1 and every != count:
        raise ValueError(
            "An optimizer must accumulate as many gradients as its batches have micro-batches: "
            f"give it `gradient_accumulation_steps={count}`. Received: {every}"
        )
    if count > 1 and inner is not optimizer:
        raise ValueError(
            "Micro-batches need an optimizer that never skips one; with float16 it skips those "
            "whose gradients overflow: choose 'mixed_bfloat16', or whole batches. "
            f"Received: {type(optimizer).__name__}, batches in {count} micro-batches"
        )


def check_batches(model, batches):
    """Raises unless a model can read these `Batches`; ignores other data."""
    if not isinstance(batches, Batches):
        return
    limit = getattr(getattr(model, "encoder", model), "max_sequence_length", None)
    if getattr(model, "reads_documents", False):
        limit = None  # a row is a document; `DocumentRows` limits its windows
    if limit is not None and batches.buckets[-1] > limit:
        raise ValueError(
            f"Batches for this model must have at most {limit} positions: make them with "
            f"`max_length={limit}`, which also limits their padding. "
            f"Received: batches of length {batches.buckets[-1]}"
        )
    if batches.vocabulary_size is not None:
        check_vocabulary(model, batches.vocabulary_size)


def check_vocabulary(model, count):
    """Raises unless a model knows `count` token ids; JAX does not report larger ids."""
    known = getattr(model, "vocabulary_size", None)
    if known is None:
        known = getattr(getattr(model, "encoder", None), "vocabulary_size", None)
    if known is not None and count > known:
        raise ValueError(
            "A model must know every id of its tokenizer: build it with "
            "`vocabulary_size=len(tokenizer)`, or add vectors to a pre-trained model with "
            "`resize_token_embeddings`. "
            f"Received: {count} tokens, vocabulary_size={known}"
        )


def lacks_special_tokens(model, tokenizer):
    """Whether a model lacks only a tokenizer's special tokens, as a pre-trained GPT."""
    known = getattr(model, "vocabulary_size", None)
    return known is not None and known == getattr(tokenizer, "text_size", None) < len(tokenizer)


def run_on(
    model: keras.Model, batches: Batches, verbose: int = 0
) -> Iterator[tuple[np.ndarray, Any]]:
    """Runs a model on every batch; outputs have the length of their batch.

    `model.predict` cannot concatenate outputs of unequal lengths. Training batches are read as with
    `training=False`.

    Args:
        model: The model.
        batches: The `Batches`.
        verbose: 1 shows a progress bar, 2 one line at the end, 0 nothing.

    Yields:
        `(rows, outputs)`: the numbers of the real rows of the batch, and their outputs as NumPy
        arrays in the model's output structure.

    Raises:
        FloatingPointError: If an output is not finite.

    >>> import keras
    >>> import numpy as np
    >>> from keras_plm.data import batches
    >>> x = keras.Input((2,), name="x")
    >>> model = keras.Model({"x": x}, keras.layers.Dense(1, kernel_initializer="ones")(x))
    >>> found = batches({"x": np.array([[1.0, 2.0], [3.0, 4.0]])}, training=False)
    >>> [(rows.tolist(), outputs.tolist()) for rows, outputs in run_on(model, found)]
    [([0, 1], [[3.0], [7.0]])]
    """
    batches = batches.for_evaluation()
    bar = keras.utils.Progbar(len(batches), verbose=verbose) if verbose else None
    for i in range(len(batches)):
        rows = batches.rows(i)
        outputs = model.predict_on_batch(batches[i][0])
        # By index, not by mask: each of TensorFlow's devices returns all rows, one after the other.
        (real,) = np.nonzero(rows >= 0)
        outputs = keras.tree.map_structure(lambda leaf: np.asarray(leaf)[real], outputs)  # noqa: B023
        keras.tree.map_structure(check_outputs, outputs)
        yield rows[real], outputs
        if bar is not None:
            bar.update(i + 1)
