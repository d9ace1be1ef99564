"""Several devices learn what one does, and what would go wrong in silence is an error."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from benchmarks import devices_check
from benchmarks.__main__ import main
from benchmarks.devices_check import CASES, COUNTS, Case
from keras_plm.batching import Batches
from keras_plm.distribution import LAYOUTS, Distribution, distribute
from keras_plm.optimization import AdamW
from keras_plm.training import FitsBatches
from tests.checks import assert_close

ROOT = Path(__file__).parent.parent
BACKEND = keras.backend.backend()
# Each in processes of its own, for a backend has as many devices as it began with.
TRIED = {
    "jax": ["data, batches in two parts", "model, mesh (2, 2)"],
    "tensorflow": ["data"],
    "torch": ["data, batches in two parts"],
}[BACKEND]


@pytest.mark.parametrize("name", TRIED)
def test_several_devices_learn_what_one_does(name):
    steps = 16  # more than a pass, whose last batch is not full
    case = CASES[BACKEND][name]
    alone = devices_check.run(Case(), 1, steps)
    together = devices_check.run(case, COUNTS[BACKEND], steps)
    assert len(set(alone["losses"])) == steps and alone["losses"][-1] < alone["losses"][0]
    assert_close(together["losses"], alone["losses"], atol=1e-5)
    assert together["metrics"].keys() == alone["metrics"].keys()
    for metric, value in alone["metrics"].items():
        assert together["metrics"][metric] == pytest.approx(value, abs=1e-5)


def test_several_devices_go_on_where_they_stopped(tmp_path):
    """Bit for bit, dropout and all, within a pass."""
    case, count = Case(dropout=0.2), COUNTS[BACKEND]
    whole = devices_check.run(case, count, 12, kept=tmp_path / "whole")
    first = devices_check.run(case, count, 7, kept=tmp_path / "parts")
    second = devices_check.run(case, count, 12, kept=tmp_path / "parts")
    assert first["losses"] + second["losses"] == whole["losses"]
    with pytest.raises(RuntimeError, match="another number of devices"):
        devices_check.run(case, 1, 14, kept=tmp_path / "parts")


class Parted(Distribution):
    """Of two processes with three devices each."""

    num_processes = 2

    def __init__(self, process_id):
        super().__init__(6)
        self.process_id = process_id


def batches(**options):
    """Of rows of three lengths; a row's number is its value."""
    lengths = np.array([3, 9, 4, 8, 5, 2, 7, 3, 9, 1, 2])

    def collate(rows, length, rng, epoch):
        noise = rng.normal(size=len(rows))  # as masks are drawn
        x = {"row": rows.astype("float32"), "noise": noise.astype("float32")}
        return x, rows.astype("float32"), None

    return Batches(lengths, collate, buckets=[4, 9], **{"batch_size": 4, "seed": 3, **options})


def test_parts_of_batches_hold_what_the_batches_hold():
    whole, parts = batches(), [batches().sharded(Parted(i)) for i in range(2)]
    assert all(len(part) == len(whole) for part in parts)
    for i, (x, y, weights) in enumerate(whole):
        of_parts = [part[i] for part in parts]
        joined = [np.concatenate(a) for a in zip(*[(p[0]["row"], p[1], p[2]) for p in of_parts],
                                                 strict=True)]  # fmt: skip
        assert len(joined[0]) == 6 and len(of_parts[0][1]) == 3
        rows = np.concatenate([part.rows(i) for part in parts])
        assert (rows[:4] == whole.rows(i)).all() and (rows[4:] == -1).all()
        np.testing.assert_array_equal(joined[0][:4], x["row"])  # and drawn as they were
        noise = np.concatenate([p[0]["noise"] for p in of_parts])
        np.testing.assert_array_equal(noise[:4], x["noise"])
        # The mean over all rows is that of the whole, padding included.
        assert_close((joined[2] * joined[1]).sum() / 6, (weights * y).sum() / 4)
        assert not joined[2][4:].any()


def test_the_loss_of_evaluation_is_that_of_all_rows():
    for part in (batches(training=False), batches(training=False).sharded(Parted(0))):
        assert len(part) == 3
    whole = [batches(training=False).sharded(Parted(i)) for i in range(2)]
    total, rows = 0.0, 0
    for i in range(3):
        for part in whole:
            _, y, weights = part[i]
            total, rows = total + (weights * y).sum() / len(y) * len(y), rows + len(y)
    assert_close(total / rows, np.arange(11).mean())


@pytest.mark.parametrize("order", ["shard first", "accumulate first"])
def test_batches_in_parts_hold_what_the_batches_hold(order):
    whole = batches()
    if order == "shard first":
        parts = [batches().sharded(Parted(i)).accumulated(2) for i in range(2)]
    else:
        parts = [batches().accumulated(2).sharded(Parted(i)) for i in range(2)]
    assert all(len(part) == 2 * len(whole) for part in parts)
    for i, (x, y, weights) in enumerate(whole):
        found = [part[2 * i + k] for k in range(2) for part in parts]
        drawn, labels, scales = (
            np.concatenate(a) for a in zip(*[(f[0]["row"], f[1], f[2]) for f in found], strict=True)
        )
        assert len(labels) == 12 and {len(f[1]) for f in found} == {3}
        np.testing.assert_array_equal(drawn[:4], x["row"])
        assert_close((scales * labels).sum() / 12, (weights * y).sum() / 4)
        rows = np.concatenate([part.rows(2 * i + k) for k in range(2) for part in parts])
        assert (rows[:4] == whole.rows(i)).all() and (rows[4:] == -1).all()
    part = batches().accumulated(2)
    part.step = 2 * len(whole) + 1  # the second part of the first batch of the second pass
    whole.step = len(whole)
    np.testing.assert_array_equal(part[0][1], whole[0][1][2:])
    with pytest.raises(ValueError, match="parted once.*count=2, of batches in 2 parts"):
        part.accumulated(2)
    with pytest.raises(ValueError, match="1 part or more. Received: count=0"):
        batches().accumulated(0)


def test_sums_are_not_filled_up():
    with pytest.raises(ValueError, match="is a sum: choose smaller batches"):
        batches(scale_weights=False).accumulated(2)
    with pytest.raises(ValueError, match="part evenly.*4 rows of length 4, 6 devices"):
        batches(scale_weights=False).sharded(Parted(0))
    assert len(batches(scale_weights=False, batch_size=6).sharded(Parted(1))[0][1]) == 3


class Plain(FitsBatches, keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs["row"][:, None])


class Wide(Plain):
    """Has a weight that two devices part."""

    def __init__(self):
        super().__init__()
        self.wide = keras.layers.Dense(4, name="wide")

    def call(self, inputs):
        return self.dense(self.wide(inputs["row"][:, None]))


def test_one_device_needs_no_other_script():
    distribution = distribute("data", devices=1)
    assert distribution.num_replicas == 1 and distribution.is_chief
    if BACKEND == "jax":  # would compile for a mesh of one again
        assert type(distribution) is Distribution
    with distribution.scope():
        model = Plain()
        model.compile(distribution.optimizer(AdamW(1e-2)), loss="mse")
    losses = model.fit(distribution.shard(batches()), epochs=2, verbose=0).history["loss"]
    other = Plain()
    other.compile(AdamW(1e-2), loss="mse")
    assert len(losses) == 2 and losses[1] < losses[0]
    assert other.fit(batches(), epochs=1, verbose=0)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow traces again for new variables")
def test_a_first_step_is_traced_once():
    traced = []

    class Counted(Plain):
        def train_step(self, data):
            traced.append(1)
            return super().train_step(data)

    model = Counted()
    model.compile(AdamW(1e-2), loss="mse", metrics=["mae"])
    model.fit(batches(), epochs=2, verbose=0)
    assert traced == [1]


def test_batches_in_parts_make_the_steps_of_whole_batches():
    def trained(parts):
        keras.utils.set_random_seed(1)
        model, more = Plain(), {}
        if parts > 1:
            more["gradient_accumulation_steps"] = parts
        model.compile(AdamW(1e-2, **more), loss="mse")
        model.fit(batches().accumulated(parts), epochs=3, verbose=0)
        return [np.asarray(w) for w in model.get_weights()]

    whole = trained(1)
    for parts in (2, 3):  # of 4 rows: filled up
        for one, other in zip(trained(parts), whole, strict=True):
            assert_close(one, other, atol=1e-6)


def test_an_optimizer_of_other_parts_is_refused():
    model = Plain()
    model.compile(AdamW(1e-2), loss="mse")
    with pytest.raises(ValueError, match="`gradient_accumulation_steps=2`. Received: 1"):
        model.fit(batches().accumulated(2), verbose=0)
    inner = AdamW(1e-2, gradient_accumulation_steps=2)
    model.compile(keras.optimizers.LossScaleOptimizer(inner), loss="mse")
    with pytest.raises(ValueError, match="choose 'mixed_bfloat16'.*LossScaleOptimizer"):
        model.fit(batches().accumulated(2), verbose=0)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"timeout": 0}, "more than 0 seconds. Received: 0"),
        ({"devices": "all"}, "or `None` for all there are. Received: 'all'"),
        ({"how": "model", "mesh": 4}, "a pair of whole numbers, .data, model.. Received: 4"),
        ({"how": "fast"}, "'auto', 'data' or 'model'. Received: 'fast'"),
        ({"mesh": (1, 1)}, "`mesh` is of how='model'"),
        ({"devices": 0}, "1 or more, or .* Received: 0"),
        ({"coordinator": "here:1"}, "need all three.*num_processes=None"),
        ({"coordinator": "here:1", "num_processes": 2, "process_id": 2}, "below `num_processes`"),
    ],
)
def test_bad_input(options, match):
    with pytest.raises(ValueError, match=match):
        distribute(**options)


def test_what_a_backend_has_not_is_named():
    many = {"jax": "fewer devices .*devices=64, of which there are 1.*cpu",
            "tensorflow": "fewer devices .*devices=64, of which there are 1.*CPU",
            "torch": "torchrun --nproc-per-node 64"}  # fmt: skip
    with pytest.raises(ValueError, match=many[BACKEND]):
        distribute(devices=64)
    if BACKEND != "jax":
        with pytest.raises(ValueError, match="Only JAX lays weights.*KERAS_BACKEND=jax"):
            distribute("model")
        return
    with pytest.raises(
        ValueError, match=r"product is the number.*as many `devices`.*\(2, 2\) for 1 devices"
    ):
        distribute("model", mesh=(2, 2))
    with pytest.raises(ValueError, match="Known layouts: transformer.*'other'"):
        distribute("model", layout="other")


@pytest.mark.skipif(BACKEND == "torch", reason="torchrun is torch's own")
def test_processes_of_torchrun_need_torch(monkeypatch):
    """Each would train a model of its own, in silence."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="KERAS_BACKEND=torch, or.*2 processes under"):
        distribute()
    monkeypatch.setenv("WORLD_SIZE", "1")
    distribute().close()


def test_weights_that_do_not_part_evenly_are_named():
    from keras_plm.distribution.on_jax import check_layout
    from keras_plm.models import BERT

    bert = BERT(20, 1, 2, 8, 12)
    with pytest.raises(ValueError, match=r"number of heads.*num_heads=2, mesh=\(..., 4\)"):
        check_layout(bert, LAYOUTS["transformer"], 4)
    with pytest.raises(ValueError, match="each axis.*of shape"):
        check_layout(BERT(20, 1, 5, 10, 12), LAYOUTS["transformer"], 5)
    with pytest.raises(ValueError, match="names none of this model's weights"):
        check_layout(bert, {"nothing": (None,)}, 2)
    check_layout(bert, LAYOUTS["transformer"], 2)


def test_an_optimizer_of_each_device_is_refused():
    """What would train every device by itself, in silence."""
    from keras_plm.distribution.whole_batch import check_optimizer, reducing

    model, distribution = Plain(), Parted(0)
    model.compile(AdamW(1e-2), loss="mse")
    with pytest.raises(ValueError, match="compile the model with `distribution.optimizer"):
        check_optimizer(distribution, model)
    optimizer = reducing(AdamW(1e-2), lambda gradients: [2 * g for g in gradients])
    assert isinstance(optimizer, AdamW) and type(optimizer).__name__ == "AdamW"
    for kind in (AdamW, keras.optimizers.Adam):  # saved as what it was
        saved = keras.saving.serialize_keras_object(reducing(kind(0.5, name="a"), list))
        loaded = keras.saving.deserialize_keras_object(saved)
        plain = kind(0.5, name="a")
        assert type(loaded) is type(plain) and loaded.get_config() == plain.get_config()
    optimizer.distribution = distribution
    model.compile(optimizer, loss="mse")
    check_optimizer(distribution, model)
    with pytest.raises(ValueError, match="give it `distribution.shard"):
        model.fit(batches(), verbose=0)


def begun(script, devices=1, environment=None):
    """A process of Python that runs a script, under JAX on so many parts of the processor."""
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    flags |= environment or {}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script], text=True, cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | flags,
    )  # fmt: skip


def lines(process):
    """What it prints until it ends."""
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, err[-1500:]
    return out.strip().splitlines()


@pytest.mark.skipif(BACKEND != "jax", reason="JAX alone lays weights over devices")
def test_what_does_not_lie_on_several_devices_is_refused():
    script = """
from keras_plm.distribution import distribute
from keras_plm.models import BERT
from keras_plm.optimization import AdamW
from tests.test_distribution import Plain, batches

def says(run):
    try:
        run()
    except ValueError as error:
        print(error)

def compiled():
    model = Plain()
    model.build({"row": (6,), "noise": (6,)})
    model.compile(distribution.optimizer(AdamW(1e-2)), loss="mse")
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


@pytest.mark.skipif(BACKEND != "jax", reason="torch's processes are among the cases")
@pytest.mark.parametrize("how", ["data", "model"])
def test_processes_learn_what_one_does(how):
    script = """
from keras_plm.distribution import distribute
from keras_plm.optimization import AdamW
from keras_plm.resume import set_seed
from tests.test_distribution import Wide, batches

options = {options}
layout = {"wide/kernel$": (None, "model")} if options.get("how") == "model" else "transformer"
set_seed(1 + options.get("process_id", 0))  # weights are drawn as the first process would
distribution = distribute(layout=layout, **options)
with distribution.scope():
    model = Wide()
    model.compile(distribution.optimizer(AdamW(1e-2)), loss="mse")
history = model.fit(distribution.shard(batches()), epochs=2, verbose=0).history
print(distribution.num_devices, *history["loss"])
"""
    named = {
        "coordinator": f"localhost:{devices_check._free_port()}",
        "num_processes": 2,
        "how": how,
    }
    processes = [begun(script.replace("{options}", str(named | {"process_id": i}))) for i in (1, 0)]
    two, same = (lines(process)[-1] for process in processes)
    assert two == same and two.startswith("2 ")
    (one,) = lines(begun(script.replace("{options}", "{}")))
    assert_close([float(x) for x in two.split()[1:]], [float(x) for x in one.split()[1:]])


@pytest.mark.skipif(BACKEND == "tensorflow", reason="has one process")
def test_what_processes_do_not_share_is_said():
    """Batches of other seeds; under torch also that another hangs, under JAX other weights."""
    script = """
import sys
import time
import keras
from keras_plm.distribution import distribute
from keras_plm.optimization import AdamW
from keras_plm.resume import set_seed
from tests.test_distribution import Wide, batches

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
    model.compile(distribution.optimizer(AdamW(1e-2)), loss="mse")
model.fit(distribution.shard(batches()), verbose=0)
says(lambda: model.fit(distribution.shard(batches(seed=number)), verbose=0))
says(lambda: model.evaluate(distribution.shard(batches(batch_size=4 + number)), verbose=0))
model.fit(distribution.shard(batches()), verbose=0)
if keras.backend.backend() == "torch":
    if number:
        sys.exit()
    says(lambda: model.fit(distribution.shard(batches()), verbose=0))
"""
    script = script.replace("{port}", str(devices_check._free_port()))
    processes = [begun(script.replace("{process_id}", str(i))) for i in (1, 0)]
    other, first = (lines(process) for process in processes)
    for said in (other, first):
        fit, evaluation = said[-3 if said is first and BACKEND == "torch" else -2 :][:2]
        for line in (fit, evaluation):
            assert "with the same `seed` in each. Received: others than process 0's in 1" in line
    if BACKEND == "torch":
        assert "Another process ended, or did not come within 60 s" in first[-1]


@pytest.mark.skipif(BACKEND != "jax", reason="torch's processes raise by themselves")
def test_a_process_that_hangs_is_not_waited_for():
    script = """
import time
import keras
from keras_plm.distribution import distribute
from keras_plm.optimization import AdamW
from keras_plm.resume import set_seed
from tests.test_distribution import Wide, batches

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
    model.compile(distribution.optimizer(AdamW(1e-2)), loss="mse")
model.fit(parts, verbose=0)
distribution.timeout = 3
hang = lambda batch, logs: time.sleep(900 * number)
hangs = keras.callbacks.LambdaCallback(on_train_batch_end=hang)
model.fit(parts, epochs=2, callbacks=[hangs], verbose=0)
"""
    script = script.replace("{port}", str(devices_check._free_port()))
    processes = [begun(script.replace("{process_id}", str(i))) for i in range(2)]
    said = []
    for number, process in enumerate(processes):
        try:
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
        assert process.returncode != 0
        assert "call `set_seed` with one seed in each" in out
        assert f"Received: others in process {number} of 2" in out
        said.append(err)
    # The first that ends may take the other with it.
    (ended,) = [err for err in said if "No step came to an end for 3 s" in err][:1]
    assert "keras/src/backend/jax/trainer.py" in ended  # where it stood


@pytest.mark.parametrize(
    "processes, model_shards, parts",
    [
        ([0, 0, 1, 1], 1, [(0, 2), (1, 2)]),
        ([0, 0, 1, 1], 2, [(0, 2), (1, 2)]),
        ([0, 0, 1, 1], 4, [(0, 1), (0, 1)]),  # both read all rows
        ([0, 0, 1, 1, 2, 2, 3, 3], 4, [(0, 2), (0, 2), (1, 2), (1, 2)]),
        ([0, 1, 0, 1], 2, [(0, 1), (0, 1)]),
    ],
)
def test_processes_of_one_row_of_a_mesh_draw_the_same_rows(processes, model_shards, parts):
    from keras_plm.distribution.on_jax import _part

    found = [_part(processes, model_shards, i) for i in range(len(parts))]
    assert found == parts


def test_meshes_that_cut_through_processes_are_refused():
    from keras_plm.distribution.on_jax import _part

    with pytest.raises(ValueError, match=r"whole rows of the mesh.*mesh=\(2, 3\)"):
        _part([0, 0, 1, 1, 2, 2], 3, 0)


def test_rows_that_go_on_stay_on_one_device():
    carried = batches()
    carried.carries_states = True
    with pytest.raises(ValueError, match="stay on one device.*6 devices"):
        carried.sharded(Parted(0))


def test_what_several_processes_would_each_train_alone_is_refused(monkeypatch):
    from keras_plm.distribution import Distribution

    model = Plain()
    model.compile(AdamW(1e-2), loss="mse")
    monkeypatch.setattr(Distribution, "of_processes", Parted(0))
    x, y, _ = batches()[0]
    for data in ((batches(),), (x, y)):
        with pytest.raises(ValueError, match="2 processes train together.*shard"):
            model.fit(*data, verbose=0)
    Distribution().close()
    model.fit(x, y, verbose=0)


SUMS = """
import os
from keras_plm.distribution import distribute
from keras_plm.models import Word2Vec
from keras_plm.resume import set_seed
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


@pytest.mark.skipif(BACKEND == "tensorflow", reason="has one device here")
def test_losses_that_are_sums_stay_sums():
    """torch averages gradients over its processes."""
    (one,) = lines(begun(SUMS))
    if BACKEND == "jax":
        (two,) = lines(begun(SUMS, devices=2))
    else:
        named = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(devices_check._free_port()),
                 "WORLD_SIZE": "2"}  # fmt: skip
        both = [begun(SUMS, environment=named | {"RANK": str(i)}) for i in (1, 0)]
        two = [lines(process) for process in both][1][-1]
    assert two.startswith("2 ") and one.startswith("1 ")
    two, one = ([float(x) for x in text.split()[1:]] for text in (two, one))
    np.testing.assert_allclose(two, one, rtol=1e-5)
    assert one[-1] < one[0]


@pytest.mark.parametrize("process_id", [0, 1])
def test_processes_that_do_not_come_are_not_waited_for(process_id):
    if BACKEND == "tensorflow":
        with pytest.raises(ValueError, match="KERAS_BACKEND=jax or torch"):
            distribute(coordinator="localhost:1", num_processes=2, process_id=process_id)
        return
    script = f"""
from keras_plm.distribution import distribute
named = {{"num_processes": 2, "process_id": {process_id}, "timeout": 2}}
try:
    distribute(coordinator="localhost:{devices_check._free_port()}", **named)
except TimeoutError as error:
    print(error)
"""
    assert "did not come together within 2 s" in lines(begun(script))[-1]


@pytest.mark.plumbing
def test_the_command_compares_every_case(tmp_path, monkeypatch, capsys):
    calls = []

    def run(case, count, steps):
        calls.append((case, count))
        return {"losses": [3.0, 2.0 + 1e-7 * count], "metrics": {}}

    monkeypatch.setattr(devices_check, "run", run)
    out = tmp_path / "devices.json"
    assert main(["devices", "--steps", "2", "--out", str(out)]) == 0
    assert (
        "differ by 1.0e-07 at the most, one of disturbed weights by 0.0e+00"
        in capsys.readouterr().out
    )
    result = json.loads(out.read_text())
    assert list(result["cases"]) == list(CASES[BACKEND]) and result["devices"] == COUNTS[BACKEND]
    assert len(calls) == 3 * len(CASES[BACKEND]) and all(
        (case.mesh, case.accumulate) == (None, 1) for case, n in calls if n == 1
    )
    assert main(["devices", "--steps", "0", "--out", str(out)]) == 2
