"""A step makes a GPU wait for no number; a decoded token reads one."""

import keras
import numpy as np
import pytest

from keras_plm.data.corpus import TokenStream
from keras_plm.data.task import Example
from keras_plm.decoding import beam_search, greedy, sample
from keras_plm.heads import (
    CoreferenceResolver,
    CRFTagger,
    SemanticRoleLabeler,
    SpanFinder,
    Tagger,
)
from keras_plm.heads.readers import BiLSTM
from keras_plm.layers import transformer
from keras_plm.models import GPT, ELMo, RecurrentLM, Seq2Seq, Transformer, Word2Vec
from keras_plm.pretraining import (
    BiLM,
    CausalLM,
    MaskedLM,
    causal_lm_batches,
    masked_lm_batches,
)
from keras_plm.tokenizers import Words
from keras_plm.training import _prefetch, kept_numbers
from keras_plm.training.optimizers import BertAdamW
from keras_plm.training.resume import set_seed
from keras_plm.training.schedules import WarmupLinearDecay
from tests.helpers import small_passages
from tests.helpers.checks import waits
from tests.helpers.small_encoders import TAGS, TOKENIZER, classifier, encoder, sentences, texts

pytestmark = [
    pytest.mark.skipif(
        keras.backend.backend() != "torch", reason="the others compile a step without reads"
    ),
    pytest.mark.backend_neutral,
]
LETTERS = list("abcdefgh")
WORDS = Words(["[PAD]", "[UNK]", "[EOS]", *LETTERS])
TINY = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
NO_CLIPS = {"cell_clip": None, "projection_clip": None}  # a CPU reads whether a clip was reached


def of_head(head, examples):
    return head, head.batches(examples, batch_size=4)[0]


def of_text(folder, tokenizer, model, batches_of, **options):
    rng, path = np.random.default_rng(0), folder / "text.txt"
    rows = [" ".join(rng.choice(LETTERS, rng.integers(3, 7))) for _ in range(200)]
    path.write_text("\n".join(row if i % 6 else "" for i, row in enumerate(rows)) + "\n")
    stream = TokenStream.build([path], tokenizer, folder / "stream", sentences="lines")
    return model, batches_of(stream, tokenizer, **options)[0]


def of_bilm(folder):
    elmo = ELMo(units=7, projection_dim=5, filters=[[1, 3]], **NO_CLIPS)
    model = BiLM(elmo, len(WORDS), num_sampled=0)
    return of_text(folder, WORDS, model, model.batches, unroll_steps=4)


def of_translator(model):
    ids, real = np.array([[4, 5, 6], [7, 8, 0]], "int32"), np.array([[1, 1, 1], [1, 1, 0]], bool)
    x = {"token_ids": ids, "padding_mask": real, "target_ids": ids}
    return model, (x, ids, real.astype("float32"))


def a_document():
    sizes, clusters = [3, 3], [[(0, 1), (3, 4)]]
    return [Example(["a", "e", "c"] * 2, clusters, sentences=sizes)] * 4


def a_role():
    return [Example(["a", "b", "c"], ["B-ARG0", "B-V", "O"], predicate=1)] * 4


def of_pairs(folder):
    model = Word2Vec(len(WORDS), 4)
    return model, model.batches(np.arange(3, 11).repeat(9), sample=None)[0]


STEPS = {
    "classifier": lambda _: of_head(classifier(), texts(8)),
    "tagger": lambda _: of_head(Tagger(encoder(), TAGS, tokenizer=TOKENIZER), sentences(8)),
    "crf": lambda _: of_head(CRFTagger(encoder(), TAGS, tokenizer=TOKENIZER), sentences(8)),
    "frozen": lambda _: of_head(
        Tagger(encoder(), TAGS, tokenizer=TOKENIZER, frozen=True, reader=BiLSTM(4)),
        sentences(8),
    ),
    "roles": lambda _: of_head(
        SemanticRoleLabeler(encoder(), ["O", "B-ARG0", "B-V"], tokenizer=TOKENIZER), a_role()
    ),
    "coreference": lambda _: of_head(
        CoreferenceResolver(encoder(), tokenizer=TOKENIZER), a_document()
    ),
    "answers": lambda _: of_head(
        SpanFinder(small_passages.encoder(), tokenizer=small_passages.PIECES),
        small_passages.made_up(8),
    ),
    "masked_lm": lambda folder: of_text(
        folder, TOKENIZER, MaskedLM(encoder()), masked_lm_batches, max_length=12, batch_size=4
    ),
    "gpt": lambda folder: of_text(
        folder, WORDS, CausalLM(GPT(len(WORDS), **TINY)), causal_lm_batches, max_length=6
    ),
    "recurrent": lambda folder: of_text(
        folder, WORDS, CausalLM(RecurrentLM(len(WORDS), 1, 8, 8)), causal_lm_batches, max_length=6
    ),
    "bilm": of_bilm,
    "seq2seq": lambda _: of_translator(Seq2Seq(11, 4, 6)),
    "transformer": lambda _: of_translator(Transformer(11, 1, 2, 8)),
    "word2vec": of_pairs,
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_a_training_step_makes_a_gpu_wait_for_no_number(name, tmp_path, monkeypatch):
    """Numbers sent before the backward pass cost little: Python takes longer than the GPU."""
    monkeypatch.setattr(kept_numbers, "_copies_wait", lambda: True)  # as on a GPU
    model, batch = STEPS[name](tmp_path)
    model.compile(BertAdamW(WarmupLinearDecay(1e-3, 20, 5), bias_correction=True))
    to_tensor = keras.ops.convert_to_tensor
    batch = keras.tree.map_structure(lambda x: None if x is None else to_tensor(x), batch)
    for _ in range(2):
        model.train_step(batch)  # builds the model and the optimizer, and keeps the numbers
    assert waits(lambda: model.train_step(batch), sent=False) == 0
    assert waits(lambda: model.train_step(batch), after_backward=True) == 0


SOURCE = {"token_ids": np.array([[4, 5, 6], [7, 8, 0]], "int32")}
SOURCE["padding_mask"] = SOURCE["token_ids"] > 0
WRITERS = {
    "gpt": lambda: GPT(len(WORDS), **TINY),
    "recurrent": lambda: RecurrentLM(len(WORDS), 1, 8, 8),
    "seq2seq": lambda: Seq2Seq(11, 4, 6),
    "transformer": lambda: Transformer(11, 2, 2, 8),
}


@pytest.mark.parametrize("strategy", [greedy, sample, beam_search])
@pytest.mark.parametrize("name", WRITERS)
def test_a_decoded_token_reads_one_number(name, strategy, monkeypatch):
    """It is whether all texts are finished."""
    model = WRITERS[name]()
    # A CPU reads the position, to attend to no empty ones.
    monkeypatch.setattr(transformer, "written_part", lambda caches, index, steps: (caches, index))

    def reads(count):
        return waits(lambda: strategy(model, SOURCE, 0, -1, max_new_tokens=count), sent=False)

    reads(2)  # builds the model
    assert reads(6) - reads(2) == 4


def test_reads_are_counted():
    import torch

    x = keras.ops.ones(3)
    assert waits(lambda: float(x[0]), sent=False) == 1
    assert waits(lambda: bool(keras.ops.all(x > 0)), sent=False) == 1
    with torch.inference_mode():
        assert waits(lambda: float(x[0]) + bool(x[1] > 0), sent=False) == 2
    assert waits(lambda: x + keras.ops.convert_to_tensor(1.0), sent=False) == 0
    assert waits(lambda: x + keras.ops.convert_to_tensor(1.0)) == 1


def test_kept_numbers_do_not_change_training(monkeypatch):
    def trained(away):
        monkeypatch.setattr(kept_numbers, "_copies_wait", lambda: away)
        set_seed(1)
        model, batch = of_head(Tagger(encoder(), TAGS, tokenizer=TOKENIZER), sentences(8))
        model.compile(BertAdamW(WarmupLinearDecay(1e-2, 20, 5), bias_correction=True))
        logs = [model.train_on_batch(*batch, return_dict=True) for _ in range(3)]
        return logs, model.get_weights()

    (logs, weights), (other_logs, other_weights) = trained(True), trained(False)
    assert logs == other_logs
    assert all(np.array_equal(a, b) for a, b in zip(weights, other_weights, strict=True))


def test_each_kept_number_is_a_tensor_of_its_own(monkeypatch):
    monkeypatch.setattr(kept_numbers, "_copies_wait", lambda: True)
    given = [1, True, 1.0, np.array([1, 2]), np.array([[1, 2]]), np.array([1.0, 2.0]), (1, 2)]
    with kept_numbers.kept_numbers():
        for _ in range(2):
            for value in given:
                tensor, wanted = keras.ops.convert_to_tensor(value), np.asarray(value)
                assert tuple(tensor.shape) == wanted.shape
                assert ("int" in str(tensor.dtype)) == (wanted.dtype.kind == "i")
                assert np.array_equal(tensor, wanted)
                tensor.fill_(0)  # the kept one stays
        assert keras.ops.convert_to_tensor(1, "float64").dtype != tensor.dtype
        assert float(keras.ops.maximum(keras.ops.zeros(()), 1.0)) == 1


def test_batches_that_are_sent_ahead_train_alike(monkeypatch):
    import torch

    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: pinned.append(x) or x.clone())

    def trained(gpu):
        monkeypatch.setattr(_prefetch, "_gpu", lambda: gpu)
        set_seed(1)
        model = Tagger(encoder(), TAGS, tokenizer=TOKENIZER)
        model.compile(BertAdamW(1e-2))
        data = model.batches(sentences(10), batch_size=4)
        logs = model.fit(data, epochs=2, verbose=0).history
        scores = model.evaluate(data, verbose=0, return_dict=True)
        return logs, scores, model.get_weights(), data.step

    *found, weights, step = trained("cpu")  # as on a GPU
    assert pinned
    *other, other_weights, other_step = trained(None)
    assert found == other and step == other_step
    assert all(np.array_equal(a, b) for a, b in zip(weights, other_weights, strict=True))
