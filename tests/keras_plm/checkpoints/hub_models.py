"""Small backbones and tokenizers of KerasHub."""

import numpy as np
import pytest

SIZE = {"num_layers": 3, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BYTES = ["l", "o", "w", "e", "r", "Ġ", "n", ".", "'", "Ã", "©"]
MERGES = ["l o", "lo w", "Ġ low", "e r", "Ġ n", "Ġn e", "Ġne w"]
PIECES = [merge.replace(" ", "") for merge in MERGES]


def backbone(kind, vocabulary_size=13, **options):
    """Returns a tiny backbone with random values in every weight."""
    import keras_hub

    more = {"DebertaV3": {"bucket_size": 4}, "Albert": {"embedding_dim": 6}}
    name = "vocab_size" if kind == "Electra" else "vocabulary_size"
    more["Electra"] = {"embedding_dim": 6}
    made = getattr(keras_hub.models, f"{kind}Backbone")(
        **{name: vocabulary_size},
        **SIZE,
        max_sequence_length=9,
        **more.get(kind, {}),
        **options,
    )
    rng = np.random.default_rng(0)
    made.set_weights([rng.normal(0, 0.3, w.shape).astype("float32") for w in made.get_weights()])
    return made


def hub_tokenizer(kind):
    import keras_hub

    if kind in ("Bert", "DistilBert", "Electra"):
        pieces = [*SPECIAL, *"abcde", "##b", "##c", "."]
        return getattr(keras_hub.models, f"{kind}Tokenizer")(pieces, lowercase=True)
    marks = ["<|endoftext|>"] if kind == "GPT2" else ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    ids = {piece: i for i, piece in enumerate([*marks, *BYTES, *PIECES])}
    return getattr(keras_hub.models, f"{kind}Tokenizer")(ids, MERGES)


def sentence_piece(kind, tmp_path, model_type="unigram", extra="", **options):
    """Returns a KerasHub tokenizer with a model trained on a made-up text and `extra`."""
    import io

    import keras_hub

    sentencepiece = pytest.importorskip("sentencepiece")
    words = [f"{a}{b}{c}" for a in "lmn" for b in "oea" for c in ("w", "wer", "st")]
    rng = np.random.default_rng(0)
    text = [" ".join(rng.choice(words, 7)) + f".{extra}" for _ in range(200)]
    model = io.BytesIO()
    names = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
    pad = {"pad_piece": "<pad>" if kind == "Albert" else "[PAD]"}
    pad |= {"unk_piece": "<unk>", "bos_piece": "[CLS]", "eos_piece": "[SEP]"}
    if kind == "Albert":
        pad["user_defined_symbols"] = "[MASK]"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=model,
        model_type=model_type,
        minloglevel=2,
        **names,
        **pad,
        **{"vocab_size": 40, **options},
    )
    return getattr(keras_hub.models, f"{kind}Tokenizer")(model.getvalue())
