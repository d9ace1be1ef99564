"""Several processes train like one, and waits between processes have a limit."""

import functools

import keras
import numpy as np
import pytest

from benchmarks.checks import devices
from keras_plm.training.distribution import Distribution, distribute
from keras_plm.training.optimizers import BertAdamW
from tests.helpers.checks import assert_close
from tests.keras_plm.training.distribution.device_cases import Parted, Plain, batches, begun, lines

pytestmark = pytest.mark.each_backend

BACKEND = keras.backend.backend()


@functools.cache
def alone(script):
    """Returns the line that a script prints in one process."""
    (line,) = lines(begun(script))
    return line


@pytest.mark.full
@pytest.mark.skipif(BACKEND != "jax", reason="torch's processes are among the cases")
@pytest.mark.parametrize("how", ["data", "model"])
def test_training_in_two_processes_equals_one_process(how):
    script = """
from keras_plm.training.distribution import distribute
from keras_plm.training.optimizers import BertAdamW
from keras_plm.training.resume import set_seed
from tests.keras_plm.training.distribution.device_cases import Wide, batches

options = {options}
layout = {"wide/kernel$": (None, "model")} if options.get("how") == "model" else "transformer"
set_seed(1 + options.get("process_id", 0))  # weights are drawn as the first process would
distribution = distribute(layout=layout, **options)
with distribution.scope():
    model = Wide()
    model.compile(distribution.optimizer(BertAdamW(1e-2)), loss="mse")
history = model.fit(distribution.shard(batches()), epochs=2, verbose=0).history
print(distribution.num_devices, *history["loss"])
"""
    named = {
        "coordinator": f"localhost:{devices._free_port()}",
        "num_processes": 2,
        "how": how,
    }
    processes = [begun(script.replace("{options}", str(named | {"process_id": i}))) for i in (1, 0)]
    two, same = (lines(process)[-1] for process in processes)
    assert two == same and two.startswith("2 ")
    one = alone(script.replace("{options}", "{}"))
    assert_close([float(x) for x in two.split()[1:]], [float(x) for x in one.split()[1:]])


@pytest.mark.full
@pytest.mark.skipif(BACKEND == "tensorflow", reason="has one process")
def test_different_batches_in_processes_raise_errors():
    """Errors report batches with other seeds, hanging processes (torch) and other weights (JAX)."""
    script = """
import sys
import time
import keras
from keras_plm.training.distribution import distribute
from keras_plm.training.optimizers import BertAdamW
from keras_plm.training.resume import set_seed
from tests.keras_plm.training.distribution.device_cases import Wide, batches

number = {process_id}
distribution = distribute(
    coordinator="localhost:{port}", num_processes=2, process_id=number, timeout=60
)

def says(run):
    try:
        run()
    except (ValueError, TimeoutError) as error:
        print(error, flush=True)

set_seed(1)
with distribution.scope():
    model = Wide()
    model.compile(distribution.optimizer(BertAdamW(1e-2)), loss="mse")
model.fit(distribution.shard(batches()), verbose=0)
says(lambda: model.fit(distribution.shard(batches(seed=number)), verbose=0))
says(lambda: model.evaluate(distribution.shard(batches(batch_size=4 + number)), verbose=0))
model.fit(distribution.shard(batches()), verbose=0)
if keras.backend.backend() == "torch":
    if number:
        sys.exit()
    says(lambda: model.fit(distribution.shard(batches()), verbose=0))
"""
    script = script.replace("{port}", str(devices._free_port()))
    processes = [begun(script.replace("{process_id}", str(i))) for i in (1, 0)]
    other, first = (lines(process) for process in processes)
    for said in (other, first):
        fit, evaluation = said[-3 if said is first and BACKEND == "torch" else -2 :][:2]
        for line in (fit, evaluation):
            assert "the same `seed`. Received: batches that differ from process 0's in 1" in line
    if BACKEND == "torch":
        assert "Another process ended, or missed a step for 60 s" in first[-1]


@pytest.mark.full
@pytest.mark.skipif(BACKEND != "jax", reason="torch's processes raise by themselves")
def test_hanging_process_causes_a_timeout():
    script = """
import time
import keras
from keras_plm.training.distribution import distribute
from keras_plm.training.optimizers import BertAdamW
from keras_plm.training.resume import set_seed
from tests.keras_plm.training.distribution.device_cases import Wide, batches

number = {process_id}
distribution = distribute(coordinator="localhost:{port}", num_processes=2, process_id=number)
parts = distribution.shard(batches())

set_seed(number)
try:
    with distribution.scope():
        keras.layers.Dense(2).build((None, 3))
except ValueError as error:
    print(error, flush=True)
set_seed(1)
with distribution.scope():
    model = Wide()
    model.compile(distribution.optimizer(BertAdamW(1e-2)), loss="mse")
model.fit(parts, verbose=0)
distribution.timeout = 3
hang = lambda batch, logs: time.sleep(900 * number)
hangs = keras.callbacks.LambdaCallback(on_train_batch_end=hang)
model.fit(parts, epochs=2, callbacks=[hangs], verbose=0)
"""
    script = script.replace("{port}", str(devices._free_port()))
    processes = [begun(script.replace("{process_id}", str(i))) for i in range(2)]
    said = []
    for number, process in enumerate(processes):
        try:
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
        assert process.returncode != 0
        assert "call `set_seed` with one seed in each" in out
        assert f"Received: other weights in process {number} of 2" in out
        said.append(err)
    # The first process to end may end the other one.
    (ended,) = [err for err in said if "A step must end within 3 s" in err][:1]
    assert "keras/src/backend/jax/trainer.py" in ended  # the position in the code


def test_unsharded_data_is_refused_with_several_processes(monkeypatch):
    model = Plain()
    model.compile(BertAdamW(1e-2), loss="mse")
    monkeypatch.setattr(Distribution, "of_processes", Parted(0))
    x, y, _ = batches()[0]
    for data in ((batches(),), (x, y)):
        with pytest.raises(ValueError, match="2 processes train together.*shard"):
            model.fit(*data, verbose=0)
    Distribution().close()
    model.fit(x, y, verbose=0)


@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_other_keras_models_are_refused_with_several_devices(method):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(BertAdamW(1e-2), loss="mse")
    sharded = batches(training=method == "fit").sharded(Parted(0))
    with pytest.raises(ValueError, match=f"`keras_plm.training.FitsBatches` .*`{method}`"):
        getattr(model, method)(sharded, verbose=0)


SUMS = """
import os
from keras_plm.training.distribution import distribute
from keras_plm.models import Word2Vec
from keras_plm.training.resume import set_seed
import keras, numpy as np

set_seed(1)
distribution = distribute()
ids = np.random.default_rng(0).integers(0, 20, 1024)
with distribution.scope():
    model = Word2Vec(20, 4)
    model.compile(distribution.optimizer(keras.optimizers.SGD(1e-2)))
batches = model.batches(ids, sample=None, tokens_per_batch=256)
history = model.fit(distribution.shard(batches), epochs=4, verbose=0).history
if distribution.is_chief:
    print(distribution.num_replicas, *history["loss"])
"""


@pytest.mark.full
@pytest.mark.skipif(BACKEND == "tensorflow", reason="has one device here")
def test_sum_losses_are_not_averaged_over_replicas():
    """torch averages gradients over processes, which must not change sums."""
    (one,) = lines(begun(SUMS))
    if BACKEND == "jax":
        (two,) = lines(begun(SUMS, devices=2))
    else:
        named = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(devices._free_port()),
                 "WORLD_SIZE": "2"}  # fmt: skip
        both = [begun(SUMS, environment=named | {"RANK": str(i)}) for i in (1, 0)]
        two = [lines(process) for process in both][1][-1]
    assert two.startswith("2 ") and one.startswith("1 ")
    two, one = ([float(x) for x in text.split()[1:]] for text in (two, one))
    np.testing.assert_allclose(two, one, rtol=1e-5)
    assert one[-1] < one[0]


@pytest.mark.full
@pytest.mark.parametrize("process_id", [0, 1])
def test_missing_processes_cause_a_connection_timeout(process_id):
    if BACKEND == "tensorflow":
        with pytest.raises(ValueError, match="KERAS_BACKEND=jax or torch"):
            distribute(coordinator="localhost:1", num_processes=2, process_id=process_id)
        return
    script = f"""
from keras_plm.training.distribution import distribute
named = {{"num_processes": 2, "process_id": {process_id}, "timeout": 2}}
try:
    distribute(coordinator="localhost:{devices._free_port()}", **named)
except TimeoutError as error:
    print(error)
"""
    assert "must connect within 2 s" in lines(begun(script))[-1]


@pytest.mark.skipif(BACKEND == "torch", reason="torchrun is torch's own")
def test_torchrun_needs_the_torch_backend(monkeypatch):
    """Otherwise each process would silently train its own model."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="KERAS_BACKEND=torch, or.*2 processes under"):
        distribute()
    monkeypatch.setenv("WORLD_SIZE", "1")
    distribute().close()
