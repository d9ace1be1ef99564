"""Size, inputs and random weights of BERTs for tests of files."""

import numpy as np

from keras_plm.tokenizers import WordPiece
from tests.helpers.checks import to_numpy

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENIZER = WordPiece([*SPECIAL, *"abcdefgh"])
SIZE = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
POSITIONS = np.array([[1, 4], [0, 2], [3, 3]], "int32")
LABELS = ["no", "maybe", "yes"]


def inputs(rows=3, length=5):
    ids = np.random.default_rng(0).integers(5, 13, (rows, length)).astype("int32")
    segments = np.repeat(np.arange(length)[None] > 2, rows, 0).astype("int32")
    mask = np.ones((rows, length), bool)
    mask[1, 3:] = False
    return {"token_ids": ids, "segment_ids": segments, "padding_mask": mask}


def random_weights(model):
    """Sets random weights, so that each of them affects the output."""
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(0, 0.5, w.shape).astype("float32") for w in model.get_weights()])
    return model


def agree(actual, wanted, atol=1e-5):
    wanted = wanted.detach().numpy() if hasattr(wanted, "detach") else to_numpy(wanted)
    np.testing.assert_allclose(to_numpy(actual), wanted, atol=atol, rtol=1e-5)


def words():
    """Returns inputs of a `Tagger` with one token per word."""
    return {**inputs(), "word_positions": np.repeat(np.arange(5)[None], 3, 0).astype("int32")}


def theirs(model, **options):
    """Returns the outputs of a model of `transformers`."""
    import torch

    arrays = inputs()
    with torch.no_grad():
        return model.eval()(
            input_ids=torch.tensor(arrays["token_ids"]).long(),
            token_type_ids=torch.tensor(arrays["segment_ids"]).long(),
            attention_mask=torch.tensor(arrays["padding_mask"]).long(),
            **options,
        )


def masked_scores(logits):
    return np.take_along_axis(logits.numpy(), POSITIONS[..., None], 1)
