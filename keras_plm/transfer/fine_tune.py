"""Fine-tuning of an encoder together with its output layer."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from keras_plm.data.task import Example
from keras_plm.files.arguments import check_number, check_one_of, check_whole
from keras_plm.heads import Classifier, MultipleChoice
from keras_plm.heads.head import Head
from keras_plm.heads.readers.reading import texts_of
from keras_plm.layers import POOLINGS, recompute_blocks
from keras_plm.models.encoder import Encoder, check_encoder
from keras_plm.pretraining import WithLanguageModel
from keras_plm.tokenizers.subwords import SubwordTokenizer
from keras_plm.training.distribution import Distribution
from keras_plm.training.fit import lacks_special_tokens
from keras_plm.training.resume import set_seed
from keras_plm.training.schedules import SlantedTriangular, WarmupCosineDecay, WarmupLinearDecay
from keras_plm.transfer.layer_groups import layer_groups
from keras_plm.transfer.lora import adapt, merged
from keras_plm.transfer.method import (
    READERS,
    Method,
    check_documents,
    check_head,
    check_reader,
    check_reads,
    compile_trained,
    labelled,
    new_reader,
    scorer,
)
from keras_plm.transfer.surgery import (
    clone,
    keep_pretrained_layers,
    resize_token_embeddings,
)

SCHEDULES = ("linear", "slanted_triangular", "gpt_linear", "cosine")
# Settings of GPT's fine-tuning: Radford et al. 2018, section 4.1, and its released code.
GPT_SETTINGS = {
    "learning_rate": 6.25e-5,
    "epochs": 3,
    "batch_size": 32,
    "warmup": 0.002,
    "schedule": "gpt_linear",
    "bias_correction": True,
    "language_model_weight": 0.5,
}
# For a few thousand examples or less: more passes, and Adam with bias correction. Mosbach et al.
# 2021, arXiv 2006.04884, section 6; Zhang et al. 2021, arXiv 2006.05987, sections 4 and 6.
FEW_EXAMPLES_SETTINGS = {"epochs": 20, "warmup": 0.1, "bias_correction": True}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTune(Method):
    """Fine-tuning: trains encoder and output layer together on a task.

    The defaults are BERT's. For an ELMo use `schedule="slanted_triangular"`, a `layer_decay`,
    `pool="max"` and, against forgetting, `unfreeze_epochs=1`. For a GPT use
    `FineTune(**GPT_SETTINGS)`; its unknown special tokens get new vectors, see
    `resize_token_embeddings`. For few examples, or if seeds differ much, use
    `FineTune(**FEW_EXAMPLES_SETTINGS)`, which trains longer.

    Reference: Devlin et al. 2018, section 4 and appendix A.3; Radford et al. 2018, section 3.2 and
    4.1; for an ELMo Peters et al. 2019, arXiv 1903.05987, section 3, with the methods of Howard and
    Ruder 2018, arXiv 1801.06146.

    Args:
        learning_rate: Peak learning rate; the paper's grid for larger models is 2e-5 to 5e-5.
        epochs: Number of passes over the training examples.
        batch_size: Number of examples per step; the paper uses 16 or 32.
        warmup: Fraction of the steps with a rising learning rate.
        weight_decay: Weight decay of AdamW.
        dropout: Fraction dropped in the encoder and before the output layer.
        seed: Seed of the order of examples, the initial weights and dropout.
        schedule: `"linear"` (`schedules.WarmupLinearDecay`), `"gpt_linear"` (the same with
            `decay_in_warmup`), `"cosine"` (`schedules.WarmupCosineDecay`) or
            `"slanted_triangular"` (`schedules.SlantedTriangular`), with the warm-up `warmup`.
        layer_decay: Ratio of the learning rates of a layer and the next higher one, see
            `transfer.layer_groups`; 1 / 2.6 in ULMFiT.
        unfreeze_epochs: Number of epochs between the starts of two layers, from the last layer
            down; 0 for all at once. With more layers than epochs the lowest stay frozen.
        pool: Pooling of a `Classifier`; by default as in the class.
        bias_correction: Bias correction of AdamW; BERT trains without it, GPT with it.
        language_model_weight: Weight λ of the language model on the texts of the task, see
            `pretraining.WithLanguageModel`; 0 for none.
        pretrained_layers: Number of pre-trained layers, see `keep_pretrained_layers`; by default
            all. The layers above and the pooler have random weights. Zhang et al. 2021, section 5,
            re-initialise one to six layers of BERT and its pooler.
        reader: `"linear"`, only an output layer; `"bilstm"`, a BiLSTM over the vectors of words, as
            in BERT's ablations, section 5.1, with two layers as in section 5.3;
            `"alternating_lstm"`, the LSTM of He et al. 2017; `"bcn"` for texts, `"esim"` for pairs
            of texts, `"bidaf"` for questions, see `keras_plm.heads.readers`.
        units: Width of each direction of the reader's LSTMs; by default half the encoder's width.
        reader_layers: Number of layers of the reader "bilstm", by default 2, or "alternating_lstm",
            by default 8.
        lora_rank: Rank of LoRA matrices, or `None`. In the encoder, only these matrices of
            attention are trained; they are merged at the end, see `keras_plm.transfer.lora`. Use
            a higher learning rate; Hu et al. 2021 use 1e-4 and more. New vectors of special
            tokens stay random.
        accumulation_steps: Number of micro-batches per step, to save memory; the step is the same
            except for dropout, see `Batches.in_micro_batches`.
        remat: If True, recompute the blocks of a Transformer for gradients, to save memory, see
            `TransformerStack`.

    Raises:
        ValueError: If a setting is out of range, or settings do not fit together.

    >>> import numpy as np
    >>> from keras_plm.data import Example
    >>> from keras_plm.models import WordVectors
    >>> encoder = WordVectors.from_vectors(["fine", "dull", "film"], np.eye(3))
    >>> train = [Example("fine film", "good"), Example("dull film", "bad")] * 4
    >>> method = FineTune(epochs=1, batch_size=8)
    >>> model = method.fit(encoder, Classifier, encoder.tokenizer(), train)
    >>> model.labels, model.predict(["fine film"])[0] in model.labels
    (['bad', 'good'], True)
    """

    learning_rate: float = 1e-4
    epochs: int = 3
    batch_size: int = 32
    warmup: float = 0.1
    weight_decay: float = 0.01
    dropout: float = 0.1
    seed: int = 0
    schedule: str = "linear"
    layer_decay: float = 1.0
    unfreeze_epochs: int = 0
    pool: str | None = None
    bias_correction: bool = False
    language_model_weight: float = 0.0
    pretrained_layers: int | None = None
    reader: str = "linear"
    units: int | None = None
    reader_layers: int | None = None
    lora_rank: int | None = None
    accumulation_steps: int = 1
    remat: bool = False

    def __post_init__(self):
        super().__post_init__()
        check_one_of(self.schedule, "schedule", SCHEDULES)
        check_reader(self.reader, self.units, self.reader_layers)
        check_number(self.layer_decay, "layer_decay", above=0, most=1)
        check_whole(self.unfreeze_epochs, "unfreeze_epochs", least=0)
        check_number(self.language_model_weight, "language_model_weight", least=0)
        check_whole(self.accumulation_steps, "accumulation_steps", least=1)
        check_one_of(self.pool, "pool", (None, "pooled", *POOLINGS))
        if self.lora_rank is not None and self.pretrained_layers is not None:
            raise ValueError(
                "`lora_rank` keeps all pre-trained weights, but `pretrained_layers` replaces some: "
                "set only one of them. "
                f"Received: lora_rank={self.lora_rank}, pretrained_layers={self.pretrained_layers}"
            )

    def _schedule(self, total):
        if self.schedule == "slanted_triangular":
            return SlantedTriangular(self.learning_rate, total, self.warmup)
        rise = int(self.warmup * total)
        if self.schedule == "cosine":
            return WarmupCosineDecay(self.learning_rate, total, rise)
        falls = self.schedule == "gpt_linear"
        return WarmupLinearDecay(self.learning_rate, total, rise, decay_in_warmup=falls)

    def _optimizer(self, rate, **options):
        if self.accumulation_steps > 1:
            options["gradient_accumulation_steps"] = self.accumulation_steps
        return super()._optimizer(rate, bias_correction=self.bias_correction, **options)

    def _groups(self, model, steps):
        return layer_groups(model, self.layer_decay, self.unfreeze_epochs * steps)

    def fit(
        self,
        encoder: Encoder,
        head: type[Head],
        tokenizer: SubwordTokenizer,
        train: Sequence[Example],
        dev: Sequence[Example] | None = None,
        labels: Iterable[Any] | None = None,
        metric: Callable[[Any, Any], float] | None = None,
        callbacks: Sequence[keras.callbacks.Callback] | keras.callbacks.Callback = (),
        verbose: int = 0,
        symmetric: bool = False,
        distribution: Distribution | None = None,
    ) -> Head:
        """Fine-tunes a copy of the encoder.

        If the tokenizer does not pack two texts into one row, the encoder reads them separately,
        see `pairs` of `Classifier`.

        Args:
            encoder: A pre-trained encoder.
            head: Class of the head, one of `keras_plm.heads`. For a `CoreferenceResolver` set
                `batch_size=1`.
            tokenizer: The encoder's tokenizer.
            train: A list of `Example`.
            dev: Examples of the dev set, which choose the best epoch and a `SpanFinder`'s threshold
                for no answer. Without them the last epoch counts.
            labels: Label names, or the lowest and highest score; by default those in `train`.
            metric: `(y_true, y_pred) -> float` that chooses the epoch; by default the head's.
            callbacks: More Keras callbacks. `val_score` is the score on `dev`, as for
                `EarlyStopping("val_score", mode="max")`.
            verbose: As in `keras.Model.fit`.
            symmetric: If True, the two texts of a pair have no order, and a causal encoder reads
                both orders.
            distribution: Result of `keras_plm.training.distribution.distribute`.

        Returns:
            The trained head, a compiled Keras model whose `predict` takes texts. `training_log` has
            the losses, the best epoch and its score, and the number of trained weights.

        Raises:
            TypeError: If examples are texts without labels, or `head` is not a head class.
            ValueError: If there are no examples, a text or label is missing, or the head, encoder
                and settings do not fit together.
            FloatingPointError: If training diverges: its loss or its predictions are not finite.
        """
        train, dev, labels = labelled(train, dev, labels)
        check_head(head)
        check_documents(head, self.batch_size)
        check_encoder(encoder, tokenizer)
        distribution = distribution or Distribution()
        if not isinstance(distribution, Distribution):
            raise TypeError(
                "`distribution` must be from `keras_plm.training.distribution.distribute(...)`. "
                f"Received: distribution={distribution!r:.60}"
            )
        with distribution.scope():
            return self._fit(
                encoder, head, tokenizer, train, dev, labels, metric, callbacks, verbose, symmetric,
                distribution,
            )  # fmt: skip

    def _fit(
        self, encoder, head, tokenizer, train, dev, labels, metric, callbacks, verbose, symmetric,
        distribution,
    ):  # fmt: skip
        set_seed(self.seed)
        labels = head.labels_of(train) if labels is None else labels
        options = self._head_options(encoder, head, tokenizer, train, symmetric)
        encoder = self.prepare_encoder(encoder, tokenizer)
        model = head(encoder, labels, tokenizer=tokenizer, dropout=self.dropout, **options)
        source = model.batches(train, batch_size=self.batch_size, seed=self.seed)
        score = scorer(head, dev, labels, metric, lambda: model.predict(dev))
        trained, loss = model, model.default_loss()
        if self.language_model_weight:
            trained = WithLanguageModel(model, self.language_model_weight)
            source = trained.batches(source)
        source = source.in_micro_batches(self.accumulation_steps)
        if distribution.num_devices > 1:
            source = distribution.shard(source)
        log = self._train(trained, source, score, callbacks, verbose, loss, distribution)
        log["learned_weights"] = sum(int(np.prod(w.shape)) for w in model.trainable_weights)
        if self.lora_rank is not None:
            model = merged(model)
        if dev:
            found = head.settle(labels, dev, lambda: model.predict(dev, probabilities=True))
            for name, value in found.items():
                setattr(model, name, value)
        if trained is not model:
            compile_trained(model, self._optimizer(self.learning_rate))
        model.training_log = log
        model.trained_on_pairs = train[0].pair is not None
        return model

    def _head_options(self, encoder, head, tokenizer, train, symmetric):
        """Returns the arguments of the head for texts and pairs of texts."""
        options = {} if self.pool is None else {"pool": self.pool}
        if options and head.per_word:
            raise ValueError(
                "Vectors of words are not pooled: set pool=None for this head. "
                f"Received: pool={self.pool!r}, head={head.__name__}"
            )
        if self.reader != "linear":
            if options or issubclass(head, MultipleChoice):
                raise ValueError(
                    "A reader has its own pooling and reads no choices: leave `pool` out, or set "
                    "reader='linear'. "
                    f"Received: reader={self.reader!r}, pool={self.pool!r}, head={head.__name__}"
                )
            check_reads(self.reader, head, train)
            options["reader"] = new_reader(self, encoder.hidden_dim)
        paired = any(example.pair is not None for example in train)
        if paired and issubclass(head, Classifier):
            options["pairs"] = self._pairs(encoder, tokenizer, symmetric)
        return options

    def _pairs(self, encoder, tokenizer, symmetric):
        """Returns the argument `pairs` of a `Classifier` for pairs of texts."""
        reads_two = texts_of(READERS[self.reader]) is not None
        if not getattr(tokenizer, "joint_pairs", True):
            return "words" if reads_two else True
        # A reader of two texts already has both; it needs no second row.
        both_orders = symmetric and encoder.causal and not reads_two
        return "both_orders" if both_orders else False

    def prepare_encoder(self, encoder: Encoder, tokenizer: SubwordTokenizer) -> Encoder:
        """Creates the copy of an encoder to fine-tune; override it to change the copy."""
        if self.pretrained_layers is not None:
            encoder = keep_pretrained_layers(encoder, self.pretrained_layers)
        dropout = {"dropout": self.dropout} if "dropout" in encoder.get_config() else {}
        if lacks_special_tokens(encoder, tokenizer):
            encoder = resize_token_embeddings(encoder, len(tokenizer), self.seed)
        encoder = clone(encoder, **dropout)
        if self.lora_rank is not None:
            adapt(encoder, self.lora_rank)
        if self.remat:
            recompute_blocks(encoder)
        return encoder
