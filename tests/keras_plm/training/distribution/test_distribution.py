"""Several devices train like one, and silent mistakes are errors."""

import json
from dataclasses import replace

import keras
import pytest

from benchmarks.__main__ import main
from benchmarks.checks import devices
from benchmarks.checks.devices import CASES, COUNTS, Case
from keras_plm.training.distribution import LAYOUTS, Distribution, distribute
from keras_plm.training.distribution.on_jax import _bind_address
from keras_plm.training.optimizers import BertAdamW
from tests.helpers.checks import assert_close
from tests.keras_plm.training.distribution.device_cases import Parted, Plain, batches, begun, lines

pytestmark = pytest.mark.each_backend

BACKEND = keras.backend.backend()
# Each runs in new processes, because a backend keeps its initial number of devices.
TRIED = {
    "jax": ["model, mesh (2, 2)"],
    "tensorflow": ["data"],
    "torch": ["data, two micro-batches"],
}[BACKEND]


@pytest.mark.full
@pytest.mark.parametrize("name", TRIED)
def test_training_on_several_devices_equals_one_device(name):
    steps = 16  # more than a pass; its last batch is smaller
    case = replace(CASES[BACKEND][name], buckets=1)
    alone = devices.run(Case(buckets=1), 1, steps)
    together = devices.run(case, COUNTS[BACKEND], steps)
    assert len(set(alone["losses"])) == steps and alone["losses"][-1] < alone["losses"][0]
    assert_close(together["losses"], alone["losses"], atol=1e-5)
    assert together["metrics"].keys() == alone["metrics"].keys()
    for metric, value in alone["metrics"].items():
        assert together["metrics"][metric] == pytest.approx(value, abs=1e-5)


@pytest.mark.full
@pytest.mark.split_to("torch")  # compiles nothing for the three runs
def test_training_on_several_devices_resumes_exactly(tmp_path):
    """Training resumes bit for bit within a pass, including dropout."""
    case, count = Case(dropout=0.2), COUNTS[BACKEND]
    whole = devices.run(case, count, 12, kept=tmp_path / "whole")
    first = devices.run(case, count, 7, kept=tmp_path / "parts")
    second = devices.run(case, count, 12, kept=tmp_path / "parts")
    assert first["losses"] + second["losses"] == whole["losses"]


def test_distributed_script_runs_on_one_device():
    distribution = distribute("data", devices=1)
    assert distribution.num_replicas == 1 and distribution.is_chief
    if BACKEND == "jax":  # would compile again for a mesh of one device
        assert type(distribution) is Distribution
    with distribution.scope():
        model = Plain()
        model.compile(distribution.optimizer(BertAdamW(1e-2)), loss="mse")
    losses = model.fit(distribution.shard(batches()), epochs=2, verbose=0).history["loss"]
    other = Plain()
    other.compile(BertAdamW(1e-2), loss="mse")
    assert len(losses) == 2 and losses[1] < losses[0]
    assert other.fit(batches(), epochs=1, verbose=0)


@pytest.mark.full
@pytest.mark.skipif(BACKEND != "tensorflow", reason="the cases of the other backends cover it")
def test_replicas_draw_their_own_dropout_masks():
    script = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
from keras_plm.layers import Dropout
with strategy.scope():
    layer = Dropout(0.5, seed=1)
run = tf.function(lambda: strategy.run(lambda: layer(tf.ones([64]), training=True)))
masks = [mask.numpy() for _ in range(2) for mask in strategy.experimental_local_results(run())]
print(len({mask.tobytes() for mask in masks}))
"""
    assert lines(begun(script)) == ["4"]


@pytest.mark.full
@pytest.mark.skipif(BACKEND != "tensorflow", reason="the cases of the other backends cover it")
def test_a_second_distribution_trains():
    script = """
import keras
import numpy as np
import tensorflow as tf
from keras_plm.models import NNLM
from keras_plm.training.distribution import distribute

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
text = np.array([3, 4, 5, 2, 4, 3, 2, 5] * 11)
for width in (5, 6):  # gradients of other sizes
    devices = distribute()
    with devices.scope():
        model = NNLM(6, 3, 4, width)
        model.compile(devices.optimizer(keras.optimizers.SGD(0.1)))
    batches = devices.shard(model.batches(text, batch_size=8))
    losses = model.fit(batches, verbose=0).history["loss"]
    devices.close()
    print(devices.num_replicas, np.isfinite(losses).all())
"""
    assert lines(begun(script)) == ["2 True"] * 2


@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow traces again for new variables")
def test_train_step_is_traced_once():
    traced = []

    class Counted(Plain):
        def train_step(self, data):
            traced.append(1)
            return super().train_step(data)

    model = Counted()
    model.compile(BertAdamW(1e-2), loss="mse", metrics=["mae"])
    model.fit(batches(), epochs=2, verbose=0)
    assert traced == [1]


@pytest.mark.parametrize(
    "options, match",
    [
        ({"timeout": 0}, "above 0 seconds. Received: 0"),
        ({"devices": "all"}, "or `None` for all devices. Received: 'all'"),
        ({"how": "model", "mesh": 4}, "two whole numbers, .data, model.. Received: 4"),
        ({"how": "fast"}, "'auto', 'data' or 'model'. Received: 'fast'"),
        ({"mesh": (1, 1)}, "`mesh` needs how='model'"),
        ({"devices": 0}, "1 or more, or .* Received: 0"),
        ({"coordinator": "here:1"}, "need all of `coordinator`.*num_processes=None"),
        ({"coordinator": "here:1", "num_processes": 2, "process_id": 2}, "below `num_processes`"),
    ],
)
def test_bad_input(options, match):
    with pytest.raises(ValueError, match=match):
        distribute(**options)


def test_unavailable_devices_and_layouts_are_refused():
    many = {"jax": "number of available devices.*devices=64, available: 1 .cpu",
            "tensorflow": "number of available devices.*devices=64, available: 1 .CPU",
            "torch": "torchrun --nproc-per-node 64"}  # fmt: skip
    with pytest.raises(ValueError, match=many[BACKEND]):
        distribute(devices=64)
    if BACKEND != "jax":
        with pytest.raises(ValueError, match="needs the JAX backend: set KERAS_BACKEND=jax"):
            distribute("model")
        return
    with pytest.raises(
        ValueError,
        match=r"the number of devices.*as many `devices`.*\(2, 2\) for 1 devices",
    ):
        distribute("model", mesh=(2, 2))
    with pytest.raises(ValueError, match="a dict or one of: transformer.*'other'"):
        distribute("model", layout="other")


@pytest.mark.compiles
def test_weights_that_do_not_divide_evenly_are_refused():
    from keras_plm.models import BERT
    from keras_plm.training.distribution.on_jax import check_layout

    bert = BERT(20, 1, 2, 8, 12)
    with pytest.raises(ValueError, match=r"number of heads.*num_heads=2, mesh=\(..., 4\)"):
        check_layout(bert, LAYOUTS["transformer"], 4)
    with pytest.raises(ValueError, match="each weight axis.*of shape"):
        check_layout(BERT(20, 1, 5, 10, 12), LAYOUTS["transformer"], 5)
    with pytest.raises(ValueError, match="must name weights of this model"):
        check_layout(bert, {"nothing": (None,)}, 2)
    check_layout(bert, LAYOUTS["transformer"], 2)


def test_optimizers_not_from_the_distribution_are_refused():
    """Otherwise every device would silently train by itself."""
    from keras_plm.training.distribution.whole_batch import check_optimizer, reducing

    model, distribution = Plain(), Parted(0)
    model.compile(BertAdamW(1e-2), loss="mse")
    with pytest.raises(ValueError, match="compile the model with `distribution.optimizer"):
        check_optimizer(distribution, model)
    optimizer = reducing(BertAdamW(1e-2), lambda gradients: [2 * g for g in gradients])
    assert isinstance(optimizer, BertAdamW) and type(optimizer).__name__ == "BertAdamW"
    for kind in (BertAdamW, keras.optimizers.Adam):  # saved as the original class
        saved = keras.saving.serialize_keras_object(reducing(kind(0.5, name="a"), list))
        loaded = keras.saving.deserialize_keras_object(saved)
        plain = kind(0.5, name="a")
        assert type(loaded) is type(plain) and loaded.get_config() == plain.get_config()
    optimizer.distribution = distribution
    model.compile(optimizer, loss="mse")
    check_optimizer(distribution, model)
    with pytest.raises(ValueError, match="give it `distribution.shard"):
        model.fit(batches(), verbose=0)


@pytest.mark.full
@pytest.mark.skipif(BACKEND != "jax", reason="JAX alone lays weights over devices")
def test_models_and_batches_on_one_device_are_refused():
    script = """
from keras_plm.training.distribution import distribute
from keras_plm.models import BERT
from tests.keras_plm.training.distribution.device_cases import Plain
from tests.keras_plm.training.distribution.device_cases import batches
from keras_plm.training.optimizers import BertAdamW

def says(run):
    try:
        run()
    except ValueError as error:
        print(error)

def compiled():
    model = Plain()
    model.build({"row": (6,), "noise": (6,)})
    model.compile(distribution.optimizer(BertAdamW(1e-2)), loss="mse")
    return model

def of_three_heads():
    with distribution.scope():
        BERT(20, 1, 3, 9, 12)

distribution = distribute("model")
says(of_three_heads)
distribution.close()
distribution = distribute()
outside = compiled()
says(lambda: outside.fit(distribution.shard(batches()), verbose=0))
with distribution.scope():
    model = compiled()
says(lambda: model.fit(batches(), verbose=0))
model.fit(distribution.shard(batches()), verbose=0)
print("done")
"""
    uneven, outside, whole, last = lines(begun(script, devices=2))
    assert "choose another mesh. Received: mesh=(..., 2), a weight of shape (" in uneven
    assert "build and compile it `with distribution.scope():`" in outside
    assert "give it `distribution.shard(batches)`" in whole and last == "done"


@pytest.mark.backend_neutral
def test_check_devices_command_compares_every_case(tmp_path, monkeypatch, capsys):
    calls = []

    def run(case, count, steps):
        calls.append((case, count))
        return {"losses": [3.0, 2.0 + 1e-7 * count], "metrics": {}}

    monkeypatch.setattr(devices, "run", run)
    out = tmp_path / "devices.json"
    assert main(["check", "devices", "--steps", "2", "--out", str(out)]) == 0
    assert (
        "differ from one by at most 1.0e-07, one device with disturbed weights by at most 0.0e+00"
        in capsys.readouterr().out
    )
    result = json.loads(out.read_text())
    assert list(result["cases"]) == list(CASES[BACKEND]) and result["devices"] == COUNTS[BACKEND]
    assert len(calls) == 3 * len(CASES[BACKEND]) and all(
        (case.mesh, case.micro_batches) == (None, 1) for case, n in calls if n == 1
    )
    assert main(["check", "devices", "--steps", "0", "--out", str(out)]) == 2


@pytest.mark.backend_neutral
def test_process_0_listens_only_on_its_given_address(monkeypatch):
    for own in ("127.0.0.1:1234", "localhost:1234"):
        assert _bind_address(own) == own
    assert _bind_address("203.0.113.9:1234") == "[::]:1234"  # no machine has it, RFC 5737
    # A machine's own name may resolve to an address that no other machine can reach.
    monkeypatch.setattr("socket.create_server", lambda *_, **__: Named())
    assert _bind_address("node1:1234") == "[::]:1234"


class Named:
    """A server on 127.0.1.1."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def getsockname(self):
        return "127.0.1.1", 9
