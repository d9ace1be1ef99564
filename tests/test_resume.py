"""A stopped and resumed run ends as one that never stopped."""

import keras
import numpy as np
import pytest

from keras_plm.batching import Batches
from keras_plm.models import BERT
from keras_plm.optimization import AdamW
from keras_plm.pretraining import MaskedLM, masked_lm_batches
from keras_plm.resume import TrainingState, set_seed
from keras_plm.streams import TokenStream
from keras_plm.tokenizers import WordPiece
from tests.checks import assert_close
from tests.test_data import Seen

TOKENIZER = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"])


@pytest.fixture
def stream(tmp_path):
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(list("abcdefgh"), rng.integers(3, 9))) for _ in range(60)]
    text = "\n".join(line + ("\n" if i % 5 == 4 else "") for i, line in enumerate(lines))
    (tmp_path / "text.txt").write_text(text)
    return TokenStream.build([tmp_path / "text.txt"], TOKENIZER, tmp_path / "s", "lines")


def start(stream, seed=4):
    """A model with dropout and its batches, as a fresh process has them."""
    set_seed(seed)
    size = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    model = MaskedLM(BERT(13, **size, dropout=0.3, max_sequence_length=32))
    model.compile(AdamW(1e-3))
    return model, masked_lm_batches(stream, TOKENIZER, 32, batch_size=4, buckets=2)


def test_resume_is_exact_with_dropout_within_an_epoch(stream, tmp_path):
    model, batches = start(stream)
    epoch = len(batches)
    total = 2 * epoch + 1
    state = TrainingState(tmp_path / "whole", batches)
    model.fit(batches, epochs=9, callbacks=[state, Seen(total)], verbose=0)
    assert batches.step == total

    stopped, batches = start(stream)
    state = TrainingState(tmp_path / "run", batches)
    assert not state.restore(stopped)
    stopped.fit(batches, epochs=9, callbacks=[state, Seen(epoch + 2)], verbose=0)
    assert state.steps == epoch + 2

    resumed, batches = start(stream, seed=99)  # nothing of the new process matters
    state = TrainingState(tmp_path / "run", batches)
    assert state.restore(resumed)
    assert state.steps == batches.step == epoch + 2
    resumed.fit(batches, epochs=9, callbacks=[state, Seen(total - epoch - 2)], verbose=0)
    assert state.steps == total
    assert_close(resumed.get_weights(), model.get_weights(), atol=1e-6)
    for a, b in zip(resumed.optimizer.variables, model.optimizer.variables, strict=True):
        assert_close(a, b, atol=1e-6)
    assert not list((tmp_path / "run").glob("*.tmp"))


def test_saves_as_it_goes(stream, tmp_path):
    model, batches = start(stream)
    saved = []
    state = TrainingState(
        tmp_path, batches, every_seconds=0, on_save=lambda s: saved.append(s.steps)
    )
    model.fit(batches, epochs=1, callbacks=[state, Seen(3)], verbose=0)
    assert saved == [1, 2, 3, 3]


def test_a_damaged_or_foreign_state_changes_nothing(stream, tmp_path):
    model, batches = start(stream)
    state = TrainingState(tmp_path, batches)
    model.fit(batches, epochs=1, callbacks=[state, Seen(1)], verbose=0)
    path = tmp_path / "state.safetensors"
    whole = path.read_bytes()

    other, batches = start(stream)
    before = other.get_weights()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="no whole training state"):
        TrainingState(tmp_path, batches).restore(other)
    path.write_bytes(whole)
    larger = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    larger.compile(AdamW(), loss="mse")
    with pytest.raises(ValueError, match="another model or optimizer"):
        TrainingState(tmp_path, batches).restore(larger)
    assert_close(other.get_weights(), before, atol=0)
    assert batches.step == 0


def test_works_with_any_keras_model(tmp_path):
    def start():
        set_seed(1)
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
        )
        model.compile("adam", loss="mse")

        def collate(rows, length, rng, epoch):
            return np.asarray(rows, "float32")[:, None], np.asarray(rows, "float32"), None

        return model, Batches(np.ones(20, int), collate, batch_size=4, seed=2)

    model, batches = start()
    count = TrainingState(tmp_path / "a", batches)
    model.fit(batches, epochs=2, callbacks=[count], shuffle=False, verbose=0)
    again, batches = start()
    state = TrainingState(tmp_path / "b", batches)
    again.fit(batches, epochs=9, callbacks=[state, Seen(7)], shuffle=False, verbose=0)
    again, batches = start()
    state = TrainingState(tmp_path / "b", batches)
    state.restore(again)
    again.fit(batches, epochs=9, callbacks=[state, Seen(3)], shuffle=False, verbose=0)
    assert state.steps == count.steps == 10
    assert_close(again.get_weights(), model.get_weights(), atol=1e-6)


def test_a_stopped_run_ends_where_it_would_have(stream, tmp_path):
    def train(stop=None):
        model, batches = start(stream)
        state = TrainingState(tmp_path / "run", batches, total_steps=7)
        state.restore(model)
        if not state.finished:
            callbacks = [state] + ([Seen(stop)] if stop else [])
            model.fit(batches, epochs=9, callbacks=callbacks, verbose=0)
        return state.steps

    assert [train(stop=3), train(), train()] == [3, 7, 7]
