"""Task network of a head: from features to logits, with mixed layers.

Shapes: B examples, W words, C characters of a word, n layers read, D width.
"""

import dataclasses

import keras
from keras import ops

from keras_plm.files.arguments import check_number, check_one_of, check_whole
from keras_plm.layers import ScalarMix
from keras_plm.training.fit import FitsBatches


@keras.saving.register_keras_serializable("keras_plm")
class Combine(keras.layers.Layer):
    """One vector from n layers: their concatenation, or a learned mix.

    Args:
        combine: `"mix"`, or any other value for concatenation.
        penalty, layer_norm: Arguments of the `ScalarMix`.

    Call arguments:
        features: (B, W, n, D).
        padding_mask: (B, W), True at real words.

    Returns:
        (B, W, D) for `"mix"`, otherwise (B, W, n * D).
    """

    def __init__(self, combine, penalty=0.0, layer_norm=False, **kwargs):
        super().__init__(**kwargs)
        self.combine = combine
        self.penalty = penalty
        self.layer_norm = layer_norm

    def build(self, features_shape, padding_mask_shape=None):
        if self.combine == "mix":
            options = {"penalty": self.penalty, "layer_norm": self.layer_norm}
            policy = self.dtype_policy
            self.mix = ScalarMix(features_shape[2], **options, dtype=policy, name="mix")
            self.mix.build(features_shape)

    def call(self, features, padding_mask=None):
        if self.combine == "mix":
            return self.mix(features, padding_mask=padding_mask)
        count, width = features.shape[2:]
        return ops.reshape(features, (-1, ops.shape(features)[1], count * width))

    def get_config(self):
        names = ("combine", "penalty", "layer_norm")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


PLACES = ("input", "output", "both")
# Name of the combining layer at each place.
COMBINES = {"input": "combine", "output": "combine_output"}


@dataclasses.dataclass(frozen=True)
class Placement:
    """Placement of features in a task network, and the mix of their layers.

    Reference: Peters et al. 2018, arXiv 1802.05365, section 3.3; sections 5.1 and 5.2 compare.

    Attributes:
        place: `"input"`: the reader reads the word vectors, if any, and after them the features.
            `"output"`: the reader reads only word vectors, and the features are appended to its
            outputs. With a reader of two texts they are appended to the outputs of its first
            BiLSTM. `"both"`: both placements, each with its own mix.
        penalty: λ, the L2 penalty on the scalars of a mix: 1 keeps it near a plain mean, 0.001 lets
            the weights differ.
        mix_norm: If True, a mix first normalises each layer over all real words of a batch. The
            outputs of a text then also depend on the other texts of the batch.
        feature_dropout: Fraction of the features dropped in training; the paper's is 0.5.
        character_filters: Number of filters of a convolution over the characters of each word. The
            reader also reads its output, and both are trained together. Peters et al.'s tagger has
            128 filters, that of Ma and Hovy 2016, arXiv 1603.01354, has 30; 0 for none.

    Raises:
        ValueError: If a field is invalid.
    """

    place: str = "input"
    penalty: float = 0.0
    mix_norm: bool = False
    feature_dropout: float = 0.0
    character_filters: int = 0

    def __post_init__(self):
        check_one_of(self.place, "placement", PLACES)
        check_number(self.penalty, "penalty", least=0)
        check_number(self.feature_dropout, "feature_dropout", least=0, below=1)
        check_whole(self.character_filters, "character_filters", least=0)

    def check(self, reader, words):
        """Raises if this placement needs a missing reader or missing word vectors."""
        if self.place != "input" and reader is None:
            raise ValueError(
                "Features at the output need a reader: choose reader='bilstm', or "
                f"placement='input'. Received: placement={self.place!r} without a reader"
            )
        if words is not None and reader is None:
            raise ValueError(
                "Word vectors need a reader: choose reader='bilstm', or leave `words` out. "
                "Received: `words` without a reader"
            )
        if self.character_filters and reader is None:
            raise ValueError(
                "The characters of words need a reader: choose reader='bilstm', or leave "
                "`character_filters` out. "
                f"Received: character_filters={self.character_filters} without a reader"
            )
        if self.place == "output" and words is None:
            raise ValueError(
                "With placement='output' the reader reads only word vectors: pass `words`, or "
                "choose placement='both'. Received: words=None"
            )


class TaskNetwork(FitsBatches, keras.Model):
    """A head's network from features to logits; `transfer.FeatureBased` trains only this part."""

    def mixing_weights(self):
        """Returns the learned mix of each place; an empty dict without a mix.

        With two layers, for example, `{"input": {"weights": [0.4, 0.6], "gamma": 1.02}}`.
        """
        mixes = {}
        for place, name in COMBINES.items():
            for layer in self.layers:
                if layer.name == name and layer.combine == "mix":
                    weights = [float(weight) for weight in layer.mix.mixing_weights()]
                    gamma = float(ops.convert_to_numpy(layer.mix.gamma))
                    mixes[place] = {"weights": weights, "gamma": gamma}
        return mixes
