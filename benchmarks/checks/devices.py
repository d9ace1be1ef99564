"""Checks that several devices train like one: `python -m benchmarks check devices`.

`python -m benchmarks.checks.devices FILE SETTINGS` is one run. It trains a small BERT on masked
words and next sentences, and writes the loss of every step to a file. All devices share this
machine's processor: JAX and TensorFlow split it, torch starts a process for each device.
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

from benchmarks.checks.resume import small_text, with_xla_flag
from keras_plm.experiments.environment import environment
from keras_plm.experiments.results import read_json
from keras_plm.files.writing import write_json

RESULTS = "check_devices"  # stem of the result files and mark of the table in docs/results

COUNTS = {"jax": 4, "tensorflow": 2, "torch": 2}
NOISE = 1e-7  # relative; about the last bit of a weight, like a sum in another order
LIMIT = 600  # seconds until a run fails
BATCH = 12  # rows, 3 for each of 4 devices; the last batch of an epoch is smaller


@dataclasses.dataclass(frozen=True)
class Case:
    """Settings of a training run.

    Attributes:
        how: Parallelism, `"data"` or `"model"`.
        mesh: Mesh for `"model"`.
        clipnorm: Largest global norm of the gradients. The default clips every step.
        micro_batches: Micro-batches per batch, for gradient accumulation.
        ema: Whether to average weights and replace them with the average every third step.
        dropout: Dropout of the BERT.
        precision: A Keras policy.
        noise: Relative noise on the initial weights.
        buckets: Number of lengths of batches. JAX and TensorFlow compile each.
        processes: Number of processes under JAX; each has the same number of devices. torch has
            one process per device.
    """

    how: str = "data"
    mesh: tuple | None = None
    clipnorm: float | None = 0.1
    micro_batches: int = 1
    ema: bool = False
    dropout: float = 0.0
    precision: str = "float32"
    noise: float = 0.0
    buckets: int = 2
    processes: int = 1


DATA = Case()
CASES = {
    "jax": {
        "data": DATA,
        "data, dropout": Case(dropout=0.1),
        "data, two micro-batches": Case(micro_batches=2),
        "data, averaged weights": Case(ema=True),
        "data, mixed_float16": Case(precision="mixed_float16"),
        "data, two processes": Case(processes=2),
        "model, mesh (2, 2)": Case("model", (2, 2)),
        "model, mesh (1, 4)": Case("model", (1, 4)),
    },
    "tensorflow": {"data": DATA},
    "torch": {
        "data": DATA,
        "data, two micro-batches": Case(micro_batches=2),
        "data, averaged weights": Case(ema=True),
        "data, mixed_float16": Case(precision="mixed_float16"),
    },
}


def train(path, case, count, steps, folder, kept=None, named=None):
    """Trains on `count` devices and writes `{"losses": [...], "metrics": {...}}`.

    Args:
        path: The file to write.
        case: A `Case`.
        count: Number of devices.
        steps: Number of steps.
        folder: Folder for the text.
        kept: Folder to save the training state in; a state there is resumed.
        named: Arguments of `distribute` for several processes under JAX.
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
        # BERT-tiny with four heads, one per device.
        size = {"num_layers": 2, "num_heads": 4, "hidden_dim": 128, "intermediate_dim": 512}
        bert = BERT(len(tokenizer), **size, dropout=case.dropout, max_sequence_length=64)
        model = MaskedLM(bert)
        more = {"use_ema": True, "ema_overwrite_frequency": 3} if case.ema else {}
        if case.micro_batches > 1:
            more["gradient_accumulation_steps"] = case.micro_batches
        if case.noise:
            rng = np.random.default_rng(0)
            for weight in model.trainable_weights:
                value = keras.ops.convert_to_numpy(weight)
                weight.assign(value * (1 + case.noise * rng.normal(size=value.shape)))
        # BERT's rate. At 1e-3 the last bit of a weight changes the loss by 0.04 in 50 steps.
        schedule = WarmupLinearDecay(1e-4, 200, 10)
        optimizer = BertAdamW(schedule, global_clipnorm=case.clipnorm, **more)
        if case.precision == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model.compile(distribution.optimizer(optimizer))
    options = {"max_length": 64, "batch_size": BATCH, "buckets": case.buckets}
    batches, held_out = (
        distribution.shard(
            masked_lm_batches(stream, tokenizer, training=training, seed=int(training), **options)
        )
        for training in (True, False)
    )
    batches = batches.in_micro_batches(case.micro_batches)
    losses, metrics, callbacks = [], {}, []
    if kept:
        total = steps * case.micro_batches
        state = TrainingState(kept, batches, every_seconds=None, total_steps=total)
        state.restore(model)
        callbacks.append(state)

    def report_step(batch, logs):
        if (batch + 1) % case.micro_batches:
            return
        if hasattr(model, "jax_state_sync"):
            model.jax_state_sync()
        # Under TensorFlow, `logs` within an epoch hold means over the devices.
        metrics.update(model.get_metrics_result())
        losses.append(float(metrics["loss"]))
        if len(losses) >= steps:
            model.stop_training = True
        model.reset_metrics()  # otherwise each value is the mean since the start of the epoch

    callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_end=report_step))
    history = model.fit(
        batches, epochs=steps, verbose=0, callbacks=callbacks, validation_data=held_out
    ).history
    metrics |= {name: values[0] for name, values in history.items() if name.startswith("val_")}
    if distribution.is_chief:
        report = {"losses": losses, "metrics": {k: float(v) for k, v in metrics.items()}}
        Path(path).write_text(json.dumps(report))
    distribution.close()


def run(case, count, steps, threads=1, kept=None):
    """Runs `train` on `count` devices in new processes and returns the content of its file.

    Raises:
        RuntimeError: If a process fails or runs longer than `LIMIT` seconds.
    """
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    root = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "losses.json"
        asked = [dataclasses.asdict(case), count, steps, folder, kept and str(kept)]
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.checks.devices", path]
        started = []
        address = f"localhost:{_free_port()}"
        processes = count if backend == "torch" else case.processes
        for rank in range(processes):
            named, more = None, {"OMP_NUM_THREADS": str(threads), "TF_CPP_MIN_LOG_LEVEL": "3"}
            if backend == "jax":
                parts = f"--xla_force_host_platform_device_count={count // processes}"
                more |= with_xla_flag(parts)
            if backend == "jax" and processes > 1:
                named = {"coordinator": address, "num_processes": processes, "process_id": rank}
            if backend == "torch" and count > 1:  # like `torchrun`
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
            started.append((made, errors))
        try:
            for process, errors in started:
                if process.wait(LIMIT):
                    errors.seek(0)
                    raise RuntimeError(f"On {count} devices: {errors.read()[-2000:]}")
        finally:
            for process, errors in started:
                process.kill()
                process.wait()
                errors.close()
        return json.loads(path.read_text())


def _free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def check_devices(out, steps=50, cases=None, progress=print):
    """Trains every case on one device and on several, and compares the loss of every step.

    Args:
        out: JSON file to write after each case.
        steps: Number of steps.
        cases: Names in `CASES`; by default all cases of the backend.
        progress: Called with a line of text for each case, and at the end.

    Returns:
        The content of the file: the losses of each case, and their largest difference between one
        device and several. `"disturbed_difference"` compares two runs on one device; the second
        run starts from weights with relative noise `NOISE`.

    Raises:
        ValueError: If `steps` is less than 1.
        RuntimeError: If a run fails.
    """
    if steps < 1:
        raise ValueError(f"`steps` must be 1 or more. Received: {steps}")
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    count, done = COUNTS[backend], {}
    result = {"task": "check_devices", "backend": backend, "devices": count, "steps": steps,
              "cases": done, **environment()}  # fmt: skip
    for name in cases or CASES[backend]:
        case = CASES[backend][name]
        on_one = dataclasses.replace(case, how="data", mesh=None, micro_batches=1, processes=1)
        one, several = run(on_one, 1, steps), run(case, count, steps)
        disturbed = run(dataclasses.replace(on_one, noise=NOISE), 1, steps)
        difference, noise = (
            float(np.abs(np.subtract(one["losses"], other["losses"])).max())
            for other in (several, disturbed)
        )
        done[name] = {
            **dataclasses.asdict(case),
            "one": one,
            "several": several,
            "largest_difference": difference,
            "disturbed_difference": noise,
        }
        progress(
            f"{name}: {steps} steps, loss {one['losses'][0]:.4f} to {one['losses'][-1]:.4f}; "
            f"{count} devices differ from one by at most {difference:.1e}, one device with "
            f"disturbed weights by at most {noise:.1e}"
        )
        write_json(out, result)
    largest = max(case["largest_difference"] for case in done.values())
    progress(f"{out}: losses differ by at most {largest:.1e}")
    return result


def markdown(paths):
    """Returns the table of result files of `check_devices`, one file for each backend."""
    reports = [read_json(path) for path in paths]
    heads = [f"{r['backend']}, {r['devices']} devices, {r['steps']} steps" for r in reports]
    text = [f"| largest difference (one device, disturbed weights) | {' | '.join(heads)} |"]
    text.append("|---|" + "---:|" * len(reports))
    for name in dict.fromkeys(name for report in reports for name in report["cases"]):
        found = [report["cases"].get(name) for report in reports]
        cells = [
            f"{case['largest_difference']:.0e} ({case['disturbed_difference']:.0e})" if case else ""
            for case in found
        ]
        text.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    fields, *more = json.loads(sys.argv[2])
    mesh = fields["mesh"] and tuple(fields["mesh"])
    train(sys.argv[1], Case(**{**fields, "mesh": mesh}), *more)
