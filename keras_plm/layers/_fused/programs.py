"""Compiled functions and blocks, and functions that are recomputed for the gradient."""

import functools
import inspect
import warnings

import keras

_FAILED = set()  # functions and settings that could not be compiled, see `run_compiled`


def recomputed(function, arrays):
    """Computes `function(arrays)`; its gradient keeps only the arrays and recomputes the rest.

    Args:
        function: A pure function.
        arrays: Any structure of arrays. `None` and functions in it are passed unchanged.
    """
    flat = keras.tree.flatten(arrays)
    fixed = [x is None or callable(x) for x in flat]

    def run(*kept):
        kept = iter(kept)
        values = [x if is_fixed else next(kept) for x, is_fixed in zip(flat, fixed, strict=True)]
        return function(keras.tree.pack_sequence_as(arrays, values))

    return keras.remat(run)(*(x for x, is_fixed in zip(flat, fixed, strict=True) if not is_fixed))


def check_compiles_blocks():
    """Raises a ValueError unless the backend starts each operation from Python, as torch does."""
    if keras.backend.backend() != "torch":
        raise ValueError(
            "Blocks are compiled under torch; JAX and TensorFlow compile the whole step, see "
            "`jit_compile` of `model.compile`. "
            f"Received: KERAS_BACKEND={keras.backend.backend()}"
        )


def run_compiled(function, arrays, seeds, options, remat=False):
    """Calls the program of a pure function, or the function if it could not be compiled.

    Eager torch starts each operation from Python; a program of `torch.compile` has a few kernels.
    All blocks of a stack share it, so that a deep stack compiles as fast as a shallow one.

    Args:
        function: `function(*arrays, seeds=seeds, **options)`.
        arrays: A tuple of structures of arrays or `None`.
        seeds: A dict of seeds, or `None`.
        options: A dict of settings. Each has its own programs: one for the first shape and one for
            all others, for inputs with and without a gradient.
        remat: If True, recompute the function for the gradient.

    Raises:
        ValueError: See `check_compiles_blocks`.
    """
    check_compiles_blocks()

    def call(arrays):
        return _call_program(function, *arrays, seeds=seeds, options=options)

    return recomputed(call, arrays) if remat else call(arrays)


def _call_program(function, *arrays, seeds, options):
    import torch

    kind = function, tuple(sorted(options.items()))
    if kind in _FAILED:
        return function(*arrays, seeds=seeds, **options)
    try:
        return _program(*kind)(*arrays, seeds=seeds, **options)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        outputs = function(*arrays, seeds=seeds, **options)  # raises the function's own errors
        _FAILED.add(kind)
        reason = str(error).strip().splitlines()
        warnings.warn(
            "Blocks run uncompiled from now on: torch could not compile them. Received: "
            f"{reason[0] if reason else type(error).__name__:.300}",
            stacklevel=2,
        )
        return outputs


@functools.cache
def _program(function, settings):
    """Compiles a function; `settings` keep the programs apart, up to torch's limit for each."""
    import torch

    alone = {"isolate_recompiles": True}
    known = alone.keys() <= inspect.signature(torch.compile).parameters.keys()
    return torch.compile(function, fullgraph=True, **(alone if known else {}))


def compiled(function, variables, creates_none=False):
    """Compiles a function of tensors that reads `variables`, if the backend compiles.

    Args:
        function: A function of tensors that returns a structure of tensors and changes no variable.
        variables: All Keras variables that it reads.
        creates_none: Whether the function creates no variables. torch then uses its inference mode,
            whose tensors cannot be trained.

    Returns:
        A function of NumPy arrays or tensors. Its results have no gradient.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        @jax.jit
        def pure(values, *arguments):
            with keras.StatelessScope(state_mapping=zip(variables, values, strict=True)):
                return function(*arguments)

        return lambda *arguments: pure([v.value for v in variables], *arguments)
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function)
    import torch

    return (torch.inference_mode if creates_none else torch.no_grad)()(function)
