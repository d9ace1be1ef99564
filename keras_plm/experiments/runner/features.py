"""Encoders of runs, and their stored features and word vectors, each read or extracted once."""

import keras_plm
from keras_plm.experiments.flags import policy
from keras_plm.files.fingerprint import fingerprint
from keras_plm.heads.encoded import check_word_vectors
from keras_plm.training.resume import set_seed
from keras_plm.transfer import FeatureStore, clone


class Features:
    """Encoders, features and word vectors of the runs of a task and an encoder.

    Args:
        runner: The `Runner` of the task and the encoder.
    """

    def __init__(self, runner):
        self.runner, self._stores, self._words = runner, {}, {}

    def encoder(self, run, seed):
        """Returns the encoder of a run, pre-trained or randomly initialised, in its precision."""
        pretrained = self.runner.pretrained
        dtype = "float32" if run.reads_features else policy(run.precision)
        if run.method in ("scratch", "randomly_initialised"):
            set_seed(seed)
            config = {**pretrained.get_config(), "dtype": dtype}
            return type(pretrained).from_config(config)
        if dtype == pretrained.dtype_policy.name:
            return pretrained
        return clone(pretrained, dtype=dtype)

    def of(self, run, seed, examples):
        """Returns the features of some examples, extracted once for all choices of layers."""
        runner = self.runner
        pool = run.build(run.grid[0], seed).store_pool(run.head(runner.task))
        key = (run.method, seed if run.method == "randomly_initialised" else 0, pool, id(examples))
        if key not in self._stores:
            encoder = self.encoder(run, seed)
            shown = runner.epoch and (
                lambda done, total: runner.epoch(f"features: {done:,} of {total:,} rows read")
            )
            self._stores[key] = (
                FeatureStore.build(
                    runner.store,
                    encoder,
                    runner.tokenizer,
                    examples,
                    pool,
                    runner.feature_gb,
                    progress=shown,
                ),
                examples,  # stored to keep its id unique
            )
        return self._stores[key][0]

    def word_vectors(self, run):
        """Returns `(encoder, hash)` of a run's word vectors."""
        if run.words not in self._words:
            words, _ = keras_plm.load(run.words, dtype="float32")
            check_word_vectors(words)
            self._words[run.words] = words, fingerprint(words)
        return self._words[run.words]

    def of_words(self, run, examples):
        """Returns the word vectors of some examples, next to their features."""
        runner = self.runner
        words, state = self.word_vectors(run)
        key = (state, id(examples))
        if key not in self._stores:
            pool = run.build(run.grid[0], 0).store_pool(run.head(runner.task))
            store = FeatureStore.build_words(
                runner.store,
                words,
                runner.pretrained,
                runner.tokenizer,
                examples,
                runner.feature_gb,
                pool,
            )
            self._stores[key] = store, examples
        return self._stores[key][0]
