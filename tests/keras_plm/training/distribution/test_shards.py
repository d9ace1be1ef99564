"""Shards of batches, for devices and micro-batches, together have the rows of the batches."""

import keras
import numpy as np
import pytest

from keras_plm.training.optimizers import BertAdamW
from tests.helpers.checks import assert_close
from tests.keras_plm.training.distribution.device_cases import Parted, Plain, batches

pytestmark = pytest.mark.each_backend


def test_shards_together_contain_the_rows_of_the_batch():
    whole, parts = batches(), [batches().sharded(Parted(i)) for i in range(2)]
    assert all(len(part) == len(whole) for part in parts)
    for i, (x, y, weights) in enumerate(whole):
        of_parts = [part[i] for part in parts]
        joined = [np.concatenate(a) for a in zip(*[(p[0]["row"], p[1], p[2]) for p in of_parts],
                                                 strict=True)]  # fmt: skip
        assert len(joined[0]) == 6 and len(of_parts[0][1]) == 3
        rows = np.concatenate([part.rows(i) for part in parts])
        assert (rows[:4] == whole.rows(i)).all() and (rows[4:] == -1).all()
        np.testing.assert_array_equal(joined[0][:4], x["row"])  # with the same random draws
        noise = np.concatenate([p[0]["noise"] for p in of_parts])
        np.testing.assert_array_equal(noise[:4], x["noise"])
        # The mean over all rows equals that of the whole batch, including padding.
        assert_close((joined[2] * joined[1]).sum() / 6, (weights * y).sum() / 4)
        assert not joined[2][4:].any()


def test_sharded_evaluation_loss_is_the_mean_of_all_rows():
    for part in (batches(training=False), batches(training=False).sharded(Parted(0))):
        assert len(part) == 3
    whole = [batches(training=False).sharded(Parted(i)) for i in range(2)]
    total, rows = 0.0, 0
    for i in range(3):
        for part in whole:
            _, y, weights = part[i]
            total, rows = total + (weights * y).sum(), rows + len(y)
    assert_close(total / rows, np.arange(11).mean())


@pytest.mark.parametrize("order", ["shard first", "accumulate first"])
def test_micro_batches_together_contain_the_rows_of_the_batch(order):
    whole = batches()
    if order == "shard first":
        parts = [batches().sharded(Parted(i)).in_micro_batches(2) for i in range(2)]
    else:
        parts = [batches().in_micro_batches(2).sharded(Parted(i)) for i in range(2)]
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
    part = batches().in_micro_batches(2)
    part.step = 2 * len(whole) + 1  # the second micro-batch of the first batch of the second pass
    whole.step = len(whole)
    np.testing.assert_array_equal(part[0][1], whole[0][1][2:])
    with pytest.raises(
        ValueError, match="split into micro-batches only once.*count=2, for batches of 2 micro"
    ):
        part.in_micro_batches(2)
    with pytest.raises(ValueError, match="1 or more. Received: count=0"):
        batches().in_micro_batches(0)


@pytest.mark.backend_neutral
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("read_before", [True, False])
@pytest.mark.parametrize("order", ["shard first", "accumulate first"])
def test_weights_average_1_for_any_order_of_splits(order, read_before, training):
    """11 rows in 3 batches of 4, in 2 parts over 6 devices: each batch is padded to 12 rows."""
    whole = batches(training=training)
    steps = [lambda b, i: b.sharded(Parted(i)), lambda b, i: b.in_micro_batches(2)]
    found = []
    for process in range(2):
        made = whole
        for step in steps if order == "shard first" else steps[::-1]:
            if read_before:  # then scales and plans are cached
                made[0], made[len(made) - 1]
            made = step(made, process)
        found.append([made[i] for i in range(len(made))])
    assert [len(part) for part in found] == [6, 6]
    for number in range(3):
        of_batch = [part[2 * number + k] for part in found for k in range(2)]
        rows, weights = (np.concatenate([b[i] for b in of_batch]) for i in (1, 2))
        real = weights > 0
        assert len(rows) == 12 and real.sum() in (3, 4)
        wanted = 12 / real.sum() if training else 36 / 11
        np.testing.assert_allclose(weights[real], wanted, rtol=1e-6)
        np.testing.assert_allclose(weights.sum(), 12 if training else real.sum() * 36 / 11)


@pytest.mark.backend_neutral
def test_shards_split_into_micro_batches():
    """Shards can be split into micro-batches: 6 rows in 2 parts for 2 processes become 8."""
    parts = [batches(batch_size=6, shard=(i, 2)).in_micro_batches(2) for i in range(2)]
    of_batch = [part[k] for part in parts for k in range(2)]
    weights = np.concatenate([b[2] for b in of_batch])
    assert len(weights) == 8 and (weights > 0).sum() == 6
    np.testing.assert_allclose(weights[weights > 0], 8 / 6, rtol=1e-6)


def test_sum_losses_refuse_padded_batches():
    with pytest.raises(ValueError, match="is a sum: choose smaller batches"):
        batches(scale_weights=False).in_micro_batches(2)
    with pytest.raises(ValueError, match="divide evenly.*4 rows of length 4, 6 devices"):
        batches(scale_weights=False).sharded(Parted(0))
    assert len(batches(scale_weights=False, batch_size=6).sharded(Parted(1))[0][1]) == 3


def test_batches_with_carried_states_need_one_device():
    carried = batches()
    carried.carries_states = True
    with pytest.raises(ValueError, match="need one device.*6 devices"):
        carried.sharded(Parted(0))


def test_micro_batches_train_like_whole_batches():
    def trained(parts):
        keras.utils.set_random_seed(1)
        model, more = Plain(), {}
        if parts > 1:
            more["gradient_accumulation_steps"] = parts
        model.compile(BertAdamW(1e-2, **more), loss="mse")
        model.fit(batches().in_micro_batches(parts), epochs=3, verbose=0)
        return [np.asarray(w) for w in model.get_weights()]

    whole = trained(1)
    for parts in (2, 3):  # 4 rows, padded if necessary
        for one, other in zip(trained(parts), whole, strict=True):
            assert_close(one, other, atol=1e-6)


@pytest.mark.full
def test_mismatched_gradient_accumulation_is_refused():
    model = Plain()
    model.compile(BertAdamW(1e-2), loss="mse")
    with pytest.raises(ValueError, match="`gradient_accumulation_steps=2`. Received: 1"):
        model.fit(batches().in_micro_batches(2), verbose=0)
    inner = BertAdamW(1e-2, gradient_accumulation_steps=2)
    model.compile(keras.optimizers.LossScaleOptimizer(inner), loss="mse")
    with pytest.raises(ValueError, match="choose 'mixed_bfloat16'.*LossScaleOptimizer"):
        model.fit(batches().in_micro_batches(2), verbose=0)


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
def test_processes_in_one_mesh_row_read_the_same_examples(processes, model_shards, parts):
    from keras_plm.training.distribution.on_jax import _part

    found = [_part(processes, model_shards, i) for i in range(len(parts))]
    assert found == parts


def test_meshes_that_split_processes_over_rows_are_refused():
    from keras_plm.training.distribution.on_jax import _part

    with pytest.raises(ValueError, match=r"whole rows of the mesh.*mesh=\(2, 3\)"):
        _part([0, 0, 1, 1, 2, 2], 3, 0)
