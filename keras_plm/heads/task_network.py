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
    """One vector from n layers: side by side, or a learned mix.

    Args:
        combine: `"mix"`, or anything else for side by side.
        penalty, layer_norm: Of the `ScalarMix`.

    Call arguments:
        features: (B, W, n, D).
        padding_mask: (B, W), True at real words.

    Returns:
        (B, W, D) for `"mix"`, else (B, W, n * D).
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
# The layer that combines at each place.
COMBINES = {"input": "combine", "output": "combine_output"}


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where features enter a task network, how layers are mixed, what is next to them.

    Reference: Peters et al. 2018, arXiv 1802.05365, section 3.3; sections 5.1 and 5.2 compare.

    Attributes:
        place: `"input"`: the reader reads the features, behind the word vectors if there are any.
            `"output"`: the reader reads word vectors alone, and the features stand behind its
            outputs, of a reader of two texts behind those of its first BiLSTM. `"both"`: the two at
            once, each with a mix of its own.
        penalty: λ, the L2 penalty on the scalars of a mix: 1 keeps it near a plain mean, 0.001 lets
            the weights differ.
        mix_norm: If True, a mix first normalises each layer over all real words of a batch, so that
            a text's outputs also depend on those beside it.
        feature_dropout: Fraction of the features dropped in training; the paper's is 0.5.
        character_filters: Width of what a convolution over each word's spelling adds to what the
            reader reads, learned with it; 128 in Peters et al.'s tagger, 30 in that of Ma and Hovy
            2016, arXiv 1603.01354; 0 for none.

    Raises:
        ValueError: If a field has no meaning.
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
        """Raises unless there is what this placement needs: a reader, word vectors."""
        if self.place != "input" and reader is None:
            raise ValueError(
                "Features stand behind the outputs of a reader: choose reader='bilstm', or "
                f"placement='input'. Received: placement={self.place!r} without a reader"
            )
        if words is not None and reader is None:
            raise ValueError(
                "Word vectors need a reader: choose reader='bilstm', or leave `words` out. "
                "Received: `words` without a reader"
            )
        if self.character_filters and reader is None:
            raise ValueError(
                "The spelling of words needs a reader: choose reader='bilstm', or leave "
                "`character_filters` out. "
                f"Received: character_filters={self.character_filters} without a reader"
            )
        if self.place == "output" and words is None:
            raise ValueError(
                "With placement='output' the reader reads word vectors alone: give `words`, or "
                "choose placement='both'. Received: words=None"
            )


class TaskNetwork(FitsBatches, keras.Model):
    """A head's part from features to logits, trained alone by `transfer.FeatureBased`."""

    def mixing_weights(self):
        """Each place's learned mix: `{"input": {"weights": [a float a layer], "gamma": 1.02}}`.

        Empty where layers are not mixed.
        """
        mixes = {}
        for place, name in COMBINES.items():
            for layer in self.layers:
                if layer.name == name and layer.combine == "mix":
                    weights = [float(weight) for weight in layer.mix.mixing_weights()]
                    gamma = float(ops.convert_to_numpy(layer.mix.gamma))
                    mixes[place] = {"weights": weights, "gamma": gamma}
        return mixes
