"""Fixtures of training."""

import numpy as np
import pytest

from keras_plm.data.corpus import TokenStream
from tests.keras_plm.training.small_training import TOKENIZER


@pytest.fixture
def stream(tmp_path):
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(list("abcdefgh"), rng.integers(3, 9))) for _ in range(60)]
    text = "\n".join(line + ("\n" if i % 5 == 4 else "") for i, line in enumerate(lines))
    (tmp_path / "text.txt").write_text(text)
    return TokenStream.build([tmp_path / "text.txt"], TOKENIZER, tmp_path / "s", "lines")
