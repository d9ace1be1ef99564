"""Whether several devices learn what one does: `python -m benchmarks devices`.

`python -m benchmarks.checks.devices FILE SETTINGS` is the run: a small BERT learns masked words and
next sentences, and the loss of every step goes to a file. Devices are parts of this machine's
processor: JAX and TensorFlow make several of one, torch has a process each.
"""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.checks.resume import small_text
from keras_plm.experiments.results import read_json

COUNTS = {"jax": 4, "tensorflow": 2, "torch": 2}
NOISE = 1e-7  # of weights, about their last bit: what no sum in another order can be asked to beat
LIMIT = 600  # seconds after which a run is given up
BATCH = 12  # rows; of 4 devices 3, and the last batch of a pass is not full


@dataclasses.dataclass(frozen=True)
class Case:
    """A way to train.

    Attributes:
        how: `"data"` or `"model"`.
        mesh: Of `"model"`.
        clipnorm: Largest norm of all gradients together, so small that every step is clipped.
        accumulate: Parts of a batch, read one after another, whose gradients make a step.
        ema: Whether averages of the weights are kept, and every third step takes their place.
        dropout: Of the BERT.
        precision: A Keras policy.
        noise: Share by which initial weights are disturbed.
        processes: Under JAX, of which each has as many devices. torch has one for each device.
    """

    how: str = "data"
    mesh: tuple | None = None
    clipnorm: float | None = 0.1
    accumulate: int = 1
    ema: bool = False
    dropout: float = 0.0
    precision: str = "float32"
    noise: float = 0.0
    processes: int = 1


DATA = Case()
CASES = {
    "jax": {
        "data": DATA,
        "data, dropout": Case(dropout=0.1),
        "data, batches in two parts": Case(accumulate=2),
        "data, averaged weights": Case(ema=True),
        "data, mixed_float16": Case(precision="mixed_float16"),
        "data, two processes": Case(processes=2),
        "model, mesh (2, 2)": Case("model", (2, 2)),
        "model, mesh (1, 4)": Case("model", (1, 4)),
    },
    "tensorflow": {"data": DATA},
    "torch": {
        "data": DATA,
        "data, batches in two parts": Case(accumulate=2),
        "data, averaged weights": Case(ema=True),
        "data, mixed_float16": Case(precision="mixed_float16"),
    },
}


def train(path, case, count, steps, folder, kept=None, named=None):
    """Trains on so many devices, and writes `{"losses": [...], "metrics": {...}}`.

    With `kept`, a folder, training goes on from the state there, and leaves its own. `named` is
    what `distribute` has to know of JAX's processes.
    """
    import keras

    if keras.backend.backend() == "tensorflow" and count > 1:
        import tensorflow as tf

        parts = [tf.config.LogicalDeviceConfiguration()] * count
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)

    from keras_plm.models import BERT
    from keras_plm.pretraining import MaskedLM, masked_lm_batches
    from keras_plm.training.distribution import distribute
    from keras_plm.training.optimizers import BertAdamW
    from keras_plm.training.resume import TrainingState, set_seed
    from keras_plm.training.schedules import WarmupLinearDecay

    distribution = distribute(
        case.how, mesh=case.mesh if count > 1 else None, **named or {}, timeout=LIMIT / 2
    )
    stream, tokenizer = small_text(Path(folder) / str(distribution.process_id), 30)
    keras.config.set_dtype_policy(case.precision)
    set_seed(1)
    with distribution.scope():
        # BERT-tiny, but for its heads, which four devices part.
        size = {"num_layers": 2, "num_heads": 4, "hidden_dim": 128, "intermediate_dim": 512}
        bert = BERT(len(tokenizer), **size, dropout=case.dropout, max_sequence_length=64)
        model = MaskedLM(bert)
        more = {"use_ema": True, "ema_overwrite_frequency": 3} if case.ema else {}
        if case.accumulate > 1:
            more["gradient_accumulation_steps"] = case.accumulate
        if case.noise:
            rng = np.random.default_rng(0)
            for weight in model.trainable_weights:
                value = keras.ops.convert_to_numpy(weight)
                weight.assign(value * (1 + case.noise * rng.normal(size=value.shape)))
        # BERT's own rate. At 1e-3 the last bit of a weight changes the loss by 0.04 in 50 steps.
        schedule = WarmupLinearDecay(1e-4, 200, 10)
        optimizer = BertAdamW(schedule, global_clipnorm=case.clipnorm, **more)
        if case.precision == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model.compile(distribution.optimizer(optimizer))
    options = {"max_length": 64, "batch_size": BATCH, "buckets": 2}
    batches, held_out = (
        distribution.shard(
            masked_lm_batches(stream, tokenizer, training=training, seed=int(training), **options)
        )
        for training in (True, False)
    )
    batches = batches.accumulated(case.accumulate)
    losses, metrics, callbacks = [], {}, []
    if kept:
        total = steps * case.accumulate
        state = TrainingState(kept, batches, every_seconds=None, total_steps=total)
        state.restore(model)
        callbacks.append(state)

    def told(batch, logs):
        if (batch + 1) % case.accumulate:
            return
        if hasattr(model, "jax_state_sync"):
            model.jax_state_sync()
        # Not of `logs`, which under TensorFlow are means over the devices within a pass.
        metrics.update(model.get_metrics_result())
        losses.append(float(metrics["loss"]))
        if len(losses) >= steps:
            model.stop_training = True
        model.reset_metrics()  # else each would be the mean since the pass began

    callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_end=told))
    history = model.fit(
        batches, epochs=steps, verbose=0, callbacks=callbacks, validation_data=held_out
    ).history
    metrics |= {name: values[0] for name, values in history.items() if name.startswith("val_")}
    if distribution.is_chief:
        report = {"losses": losses, "metrics": {k: float(v) for k, v in metrics.items()}}
        Path(path).write_text(json.dumps(report))
    distribution.close()


def run(case, count, steps, threads=1, kept=None):
    """Runs `train` on so many devices, in processes of its own; gives what it wrote.

    Raises:
        RuntimeError: If one fails or they come to no end.
    """
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    root = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "losses.json"
        asked = [dataclasses.asdict(case), count, steps, folder, kept and str(kept)]
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.checks.devices", path]
        processes = []
        address = f"localhost:{_free_port()}"
        begun = count if backend == "torch" else case.processes
        for rank in range(begun):
            named, more = None, {"OMP_NUM_THREADS": str(threads), "TF_CPP_MIN_LOG_LEVEL": "3"}
            if backend == "jax":
                more["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count // begun}"
            if backend == "jax" and begun > 1:
                named = {"coordinator": address, "num_processes": begun, "process_id": rank}
            if backend == "torch" and count > 1:  # as `torchrun` does it
                host, _, port = address.partition(":")
                more |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
                more |= {"MASTER_ADDR": host, "MASTER_PORT": port}
            errors = open(Path(folder) / f"{rank}.err", "w+")
            made = subprocess.Popen(
                [*command, json.dumps([*asked, named])],
                stdout=errors,
                stderr=errors,
                cwd=root,
                env=os.environ | more,
            )
            processes.append((made, errors))
        try:
            for process, errors in processes:
                if process.wait(LIMIT):
                    errors.seek(0)
                    raise RuntimeError(f"On {count} devices: {errors.read()[-2000:]}")
        finally:
            for process, errors in processes:
                process.kill()
                process.wait()
                errors.close()
        return json.loads(path.read_text())


def _free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def compare(steps=50, progress=print, cases=None, save=lambda result: None):
    """Trains every case on one device and on several.

    Args:
        steps: How many.
        progress: Called with a line of text for each case.
        cases: Names in `CASES`, by default all of the backend's.
        save: Called behind each case with what there is.

    Returns:
        A dict for a result file: the losses, how far they are apart at the most, and how far those
        of one device are from its own, the weights that it begins with disturbed by `NOISE`.
    """
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    count, done = COUNTS[backend], {}
    result = {"task": "devices", "backend": backend, "devices": count, "steps": steps}
    result["cases"] = done
    for name in cases or CASES[backend]:
        case = CASES[backend][name]
        one = dataclasses.replace(case, how="data", mesh=None, accumulate=1, processes=1)
        alone, together = run(one, 1, steps), run(case, count, steps)
        other = run(dataclasses.replace(one, noise=NOISE), 1, steps)
        apart, noise = (
            np.abs(np.subtract(alone["losses"], run["losses"])) for run in (together, other)
        )
        done[name] = {
            **dataclasses.asdict(case),
            "one": alone,
            "several": together,
            "largest_difference": float(apart.max()),
            "of_disturbed": float(noise.max()),
        }
        progress(
            f"{name}: {steps} steps, loss {alone['losses'][0]:.4f} to {alone['losses'][-1]:.4f}, "
            f"{count} devices differ by {apart.max():.1e} at the most, one of disturbed weights by "
            f"{noise.max():.1e}"
        )
        save(result)
    return result


def markdown(paths):
    """The table of files that the command `devices` wrote, one of each backend."""
    reports = [read_json(path) for path in paths]
    heads = [f"{r['backend']}, {r['devices']} devices, {r['steps']} steps" for r in reports]
    text = [f"| largest difference (of one, its weights disturbed) | {' | '.join(heads)} |"]
    text.append("|---|" + "---:|" * len(reports))
    for name in dict.fromkeys(name for report in reports for name in report["cases"]):
        found = [report["cases"].get(name) for report in reports]
        cells = [
            f"{case['largest_difference']:.0e} ({case['of_disturbed']:.0e})" if case else ""
            for case in found
        ]
        text.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    fields, *more = json.loads(sys.argv[2])
    mesh = fields["mesh"] and tuple(fields["mesh"])
    train(sys.argv[1], Case(**{**fields, "mesh": mesh}), *more)
