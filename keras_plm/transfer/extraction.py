"""Features of texts as arrays: a function and a scikit-learn transformer."""

import tempfile
import weakref
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

from keras_plm.files.arguments import check_one_of
from keras_plm.files.fingerprint import fingerprint
from keras_plm.files.sequences import as_texts
from keras_plm.layers import POOLINGS, LayerChoice
from keras_plm.models.encoder import Encoder, check_encoder
from keras_plm.tokenizers.subwords import SubwordTokenizer
from keras_plm.transfer.feature_store import FeatureStore
from keras_plm.transfer.layer_choices import layer_choice


def extract_features(
    encoder: Encoder,
    tokenizer: SubwordTokenizer,
    texts: Iterable[Any],
    layers: str | int | LayerChoice = "last",
    pool: str | None = None,
    feature_gb: float = 8.0,
    batch_size: int | None = None,
    verbose: int = 0,
) -> np.ndarray | list[np.ndarray]:
    """Extracts vectors of texts from chosen layers of an encoder.

    Args:
        encoder: The encoder; it runs once, without dropout.
        tokenizer: The encoder's tokenizer.
        texts: A list of texts, of lists of words or of `Example`.
        layers: As in `layer_choice`, without learned weights.
        pool: `"cls"`, `"mean"`, `"max"` or `"last"` for one vector per text, including special
            tokens; `None` for one vector per word.
        feature_gb: Largest temporary store of features, in gigabytes.
        batch_size, verbose: As in `FeatureStore.build`.

    Returns:
        With a `pool` (N, D) float32, rounded to float16; otherwise a list of N arrays (words, D).
        D is the encoder's width, times the number of layers for a concatenation. With a
        `pool` it is twice that for pairs of separate texts, with the first text before the second;
        without one, the words of the second text follow those of the first.

    Raises:
        ValueError: If the choice of layers has learned weights. Otherwise as `FeatureStore.build`.

    >>> import numpy as np
    >>> from keras_plm.models import WordVectors
    >>> encoder = WordVectors.from_vectors(["fine", "dull", "film"], np.eye(3))
    >>> extract_features(encoder, encoder.tokenizer(), ["fine film", "dull"], pool="mean").tolist()
    [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]
    """
    check_encoder(encoder, tokenizer)
    choice = layer_choice(layers)
    _refuse_learned(choice, layers)
    texts = as_texts(texts, tuples=False)
    if not texts:
        width = choice.width(len(encoder.output["layers"]), encoder.hidden_dim)
        return np.zeros((0, width), "float32") if pool else []
    with tempfile.TemporaryDirectory() as folder:
        options = {"batch_size": batch_size, "verbose": verbose}
        store = FeatureStore.build(folder, encoder, tokenizer, texts, pool, feature_gb, **options)
        rows = [store.vectors(i, choice) for i in range(len(store))]
        rows = [row.reshape(len(row), row.shape[1] * row.shape[2]) for row in rows]
        del store
    return np.stack([row.ravel() for row in rows]) if pool else rows


def _refuse_learned(choice, name):
    if choice.combine == "mix":
        raise ValueError(
            "A weighted sum is learned with a reader: use `FeatureBased` or `compare_layers`, or "
            "choose a plain mean: 'mean_all', without the embeddings, or LayerChoice(0, -1, "
            f"'mean'), with them. Received: layers={name!r}"
        )


# Cache of `FeatureExtractor`, with the lifetime of the encoder.
_EXTRACTED = weakref.WeakKeyDictionary()


class FeatureExtractor(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Feature extraction as a scikit-learn transformer, for any classifier.

    It has nothing to fit. It works in a `Pipeline` and, for one column of a table, in a
    `ColumnTransformer`; `set_output(transform="pandas")` names its columns. In `GridSearchCV` over
    `layers` and `pool` the encoder runs once per text and `pool`: a cache keeps all layers while
    the encoder exists with the same weights.

    Args:
        encoder: The encoder.
        tokenizer: The encoder's tokenizer.
        layers: As in `layer_choice`, without learned weights.
        pool: `"cls"`, `"mean"`, `"max"` or `"last"`, see `layers.Pooling`.
        batch_size, verbose: As in `FeatureStore.build`.

    Raises:
        ValueError: In `transform`, if `layers` has learned weights or `pool` is unknown.

    >>> import numpy as np
    >>> from keras_plm.models import WordVectors
    >>> encoder = WordVectors.from_vectors(["fine", "dull", "film"], np.eye(3))
    >>> extractor = FeatureExtractor(encoder, encoder.tokenizer())
    >>> extractor.fit_transform(["fine film", "dull"]).tolist()
    [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]
    """

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: SubwordTokenizer,
        layers: str | int | LayerChoice = "last",
        pool: str = "mean",
        batch_size: int | None = None,
        verbose: int = 0,
    ):
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.layers = layers
        self.pool = pool
        self.batch_size = batch_size
        self.verbose = verbose

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.requires_fit, tags.no_validation = False, True
        return tags

    @property
    def _n_features_out(self):  # scikit-learn's name for the number of columns
        count = len(self.encoder.output["layers"])
        return layer_choice(self.layers).width(count, self.encoder.hidden_dim)

    def __sklearn_clone__(self):
        # scikit-learn would copy the encoder for every candidate of a search.
        return type(self)(**self.get_params(deep=False))

    def __sklearn_is_fitted__(self):
        return True

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803
        """Checks the parameters and returns the transformer."""
        check_encoder(self.encoder, self.tokenizer)
        choice = layer_choice(self.layers)
        _refuse_learned(choice, self.layers)
        choice.indices(len(self.encoder.output["layers"]))
        check_one_of(self.pool, "pool", POOLINGS)
        return self

    def transform(self, X: Any) -> np.ndarray:  # noqa: N803
        """Extracts vectors (N, D) of N texts."""
        self.fit(X)
        # A `ColumnTransformer` with a list of names passes a table of one column.
        if getattr(X, "ndim", 1) == 2 and X.shape[1] == 1:
            raise ValueError(
                "Texts must be one column: name it without brackets in a `ColumnTransformer`. "
                f"Received: X of shape {X.shape}"
            )
        X = as_texts(X, "X", tuples=False)  # noqa: N806
        choice = layer_choice(self.layers)
        count = len(self.encoder.output["layers"])
        if not len(X):
            return np.zeros((0, choice.width(count, self.encoder.hidden_dim)), "float32")
        state = fingerprint(self.encoder, self.tokenizer)
        if _EXTRACTED.get(self.encoder, (None,))[0] != state:
            _EXTRACTED[self.encoder] = (state, {})  # drops the vectors of earlier weights
        known = _EXTRACTED[self.encoder][1].setdefault(self.pool, {})
        texts = [x if isinstance(x, str) else tuple(x) for x in X]
        new = list(dict.fromkeys(text for text in texts if text not in known))
        if new:
            every = LayerChoice(0, -1, "concat")
            lists = [text if isinstance(text, str) else list(text) for text in new]
            options = {"batch_size": self.batch_size, "verbose": self.verbose}
            rows = extract_features(
                self.encoder, self.tokenizer, lists, every, self.pool, **options
            )
            known.update(zip(new, rows.reshape(len(new), count, -1), strict=True))
        indices = choice.indices(count)
        rows = np.stack([known[text][indices] for text in texts])  # (N, n, D)
        return rows.mean(axis=1) if choice.combine == "mean" else rows.reshape(len(rows), -1)
