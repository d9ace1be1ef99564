"""The check `scan`: Transformer blocks in a loop, and in `jax.lax.scan` over stacked weights.

JAX compiles a stack of L blocks as one program. In a Python loop the program holds L copies of the
block; in a scan it holds one, whose weights of all blocks are stacked inside the program. The check
times the compilation and a training step of both.
"""

import time
from pathlib import Path

import keras
import numpy as np

from keras_plm.experiments.environment import environment
from keras_plm.experiments.results import read_json
from keras_plm.files.writing import write_json
from keras_plm.layers import TransformerStack
from keras_plm.layers.transformer_block import transformer_block

FILE = "check_scan.json"
DEPTHS = (2, 12, 24)
ROWS, LENGTH, WIDTH, HEADS, DROPOUT = 4, 128, 256, 4, 0.1
WAYS = ("loop", "scan")


def losses(stack):
    """Returns `{way: function}`; each function computes the mean product of input and last layer.

    Args:
        stack: A built `TransformerStack`.

    Returns:
        Functions of `(values, inputs, seeds)`: the values of `stack.trainable_variables`, (B, T, D)
        inputs, and seeds (L, 3, 2) of dropout, which only the scan reads.
    """
    import jax
    import jax.numpy as jnp

    variables = stack.trainable_variables + stack.non_trainable_variables
    fixed = [variable.value for variable in stack.non_trainable_variables]
    block = stack.block_options

    def with_values(values, function):
        with keras.StatelessScope(state_mapping=zip(variables, [*values, *fixed], strict=True)):
            return function()

    def loop(values, inputs, seeds):
        return with_values(values, lambda: (stack(inputs, training=True)[-1] * inputs).mean())

    def scan(values, inputs, seeds):
        weights = with_values(values, stack.arrays)
        stacked = jax.tree.map(lambda *of_blocks: jnp.stack(of_blocks), *weights)

        def step(x, of_block):
            arrays, (attention, attention_weights, feed_forward) = of_block
            output = transformer_block(
                arrays,
                x,
                num_heads=block["num_heads"],
                dropout_rate=block["dropout"],
                attention_dropout=block["dropout"],
                seeds={
                    "attention": attention,
                    "attention_weights": attention_weights,
                    "feed_forward": feed_forward,
                },
                training=True,
            ).sequence
            return output, output  # every layer is an output of the library's models

        return (jax.lax.scan(step, inputs, (stacked, seeds))[0] * inputs).mean()

    return {"loop": loop, "scan": scan}


def measure(depth, repeats, rows=ROWS, length=LENGTH, width=WIDTH):
    """Times compilation and training steps of a stack.

    Returns:
        `{way: {"compile_seconds", "step_seconds", "temporary_mb"}}`: tracing and compiling, and a
        step, each the median of repeats in turn; the memory of temporary arrays, if known.
    """
    import jax

    stack = TransformerStack(depth, HEADS, width, 4 * width, dropout=DROPOUT)
    stack.build((rows, length, width))
    rng = np.random.default_rng(0)
    arguments = (
        [variable.value for variable in stack.trainable_variables],
        rng.normal(size=(rows, length, width)).astype("float32"),
        rng.integers(1 << 31, size=(depth, 3, 2)).astype("uint32"),
    )
    functions = losses(stack)

    def compiled(way):
        return jax.jit(jax.value_and_grad(functions[way])).lower(*arguments).compile()

    def timed(work):
        """Returns the median seconds of each way, and its last result."""
        seconds, results = {way: [] for way in WAYS}, {}
        for _ in range(repeats):
            for way in WAYS:
                begun = time.monotonic()
                results[way] = work(way)
                seconds[way].append(time.monotonic() - begun)
        return {way: round(float(np.median(of_way)), 4) for way, of_way in seconds.items()}, results

    compiling, programs = timed(compiled)
    steps, _ = timed(lambda way: jax.block_until_ready(programs[way](*arguments)))
    found = {way: {"compile_seconds": compiling[way], "step_seconds": steps[way]} for way in WAYS}
    for way, program in programs.items():
        memory = program.memory_analysis()
        if memory is not None:
            found[way]["temporary_mb"] = round(memory.temp_size_in_bytes / 1e6)
    return found


def check_scan(out, depths=DEPTHS, repeats=5, progress=print):
    """Times stacks of several depths, and writes a result file.

    Args:
        out: JSON file to write.
        depths: Numbers of blocks.
        repeats: Number of compilations and of steps of each way.
        progress: Called with a line for each depth.

    Returns:
        The content of the file.

    Raises:
        ValueError: If the backend is not JAX.
    """
    if keras.backend.backend() != "jax":
        raise ValueError(
            "`jax.lax.scan` needs JAX: set KERAS_BACKEND=jax. "
            f"Received: KERAS_BACKEND={keras.backend.backend()}"
        )
    import jax

    jax.config.update("jax_enable_compilation_cache", False)  # compile again in each process
    found = {}
    for depth in depths:
        found[str(depth)] = measure(depth, repeats)
        times = (f"{way} {row['compile_seconds']:.1f} s" for way, row in found[str(depth)].items())
        progress(f"{depth} blocks: compiled in {', '.join(times)}")
    settings = {"rows": ROWS, "length": LENGTH, "width": WIDTH, "dropout": DROPOUT}
    report = {"results": found, **settings, "repeats": repeats, **environment()}
    write_json(Path(out), report)
    progress(f"{markdown(out)}\nResult file: {out}")
    return report


def markdown(path):
    """Returns the table of a result file of `check_scan`."""
    heads = ["blocks", "compilation (s): loop", "scan", "step (ms): loop", "scan"]
    heads += ["temporary arrays (MB): loop", "scan"]
    lines = [f"| {' | '.join(heads)} |", "|---:|" + "---:|" * (len(heads) - 1)]
    for depth, row in read_json(path)["results"].items():
        cells = [f"{row[way]['compile_seconds']:.1f}" for way in WAYS]
        cells += [f"{1e3 * row[way]['step_seconds']:,.0f}" for way in WAYS]
        sizes = [row[way].get("temporary_mb") for way in WAYS]
        cells += ["" if size is None else f"{size:,}" for size in sizes]
        lines.append(f"| {' | '.join([depth, *cells])} |")
    return "\n".join(lines) + "\n"
