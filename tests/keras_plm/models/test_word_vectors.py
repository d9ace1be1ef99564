"""Word vectors as an encoder, similar words and analogies."""

import keras
import numpy as np
import pytest

import keras_plm
from keras_plm.data.formats.fasttext import read_fasttext
from keras_plm.data.task import Example
from keras_plm.heads import Classifier, Tagger
from keras_plm.models.fasttext import FastText
from keras_plm.models.word_vectors import Spelling, Word2Vec, WordTable, WordVectors
from keras_plm.transfer import FeatureBased, FineTune, compare_layers, extract_features
from tests.helpers.checks import assert_close, check_encoder, check_layer, to_numpy

WORDS = ["king", "queen", "man", "woman", "apple", "Paris", "é"]
VECTORS = np.random.default_rng(0).normal(size=(7, 5)).astype("float32")
VOCABULARY = ["[PAD]", "[UNK]", "[EOS]", *WORDS]


@pytest.fixture
def encoder():
    return WordVectors.from_vectors(WORDS, VECTORS)


@pytest.mark.compiles
def test_encoder_contract(encoder, tmp_path):
    outputs = check_encoder(encoder, tmp_path, len(VOCABULARY))
    assert len(outputs["layers"]) == 1
    with_characters = WordVectors(VOCABULARY, 9, character_filters=4, learns=False)
    check_encoder(with_characters, tmp_path, len(VOCABULARY))


@pytest.mark.full
def test_word_table_and_spelling_pass_layer_checks(tmp_path):
    ids = {"token_ids": np.array([[0, 3, 4], [9, 1, 5]], "int32")}
    check_layer(WordTable(10, 4), ids, tmp_path)
    check_layer(Spelling(VOCABULARY, 3), ids, tmp_path, learns=False)  # ReLUs may be inactive


def test_encoder_returns_the_vectors_of_words(encoder):
    tokenizer = encoder.tokenizer()
    assert not tokenizer.lowercase  # because of Paris
    packed = tokenizer.pack([["queen", "never", "é"], ["man"]])
    sequence = to_numpy(encoder(packed)["sequence"])
    assert_close(sequence[0], np.stack([VECTORS[1], np.zeros(5), VECTORS[6]]))
    assert_close(sequence[1], np.stack([VECTORS[2], np.zeros(5), np.zeros(5)]))
    assert encoder.words == WORDS
    assert WordVectors.from_vectors(WORDS[:5], VECTORS[:5]).tokenizer().lowercase
    unknown = WordVectors.from_vectors(["the", "<unk>", "[PAD]"], VECTORS[:3])
    assert unknown.words == ["the", "<unk>"]
    assert_close(unknown.vectors, VECTORS[[2, 1, 1, 0, 1]] * [[1], [1], [0], [1], [1]])


def test_spelling_against_loops():
    layer = Spelling(["[PAD]", "[UNK]", "[EOS]", "cat", "é" * 20], 2, 3, 3, max_characters=7)
    out = to_numpy(layer(np.array([[3, 4]])))[0]
    table = to_numpy(layer.embedding.embeddings)
    kernel, bias = (to_numpy(w) for w in layer.convolution.weights)
    for row, word in zip(out, (b"cat", ("é" * 20).encode()[:5]), strict=True):
        letters = [table[1], *(table[byte + 3] for byte in word), table[2]]
        around = [np.zeros(3), *letters, np.zeros(3)]
        best = np.zeros(2)
        for place in range(len(letters)):
            found = sum(around[place + i] @ kernel[i] for i in range(3)) + bias
            best = np.maximum(best, found)
        assert_close(row, best)


def test_similar_words_and_analogies_equal_cosines(encoder):
    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    cosines = unit @ unit.T
    order = [i for i in np.argsort(-cosines[0]) if i != 0]
    found = encoder.most_similar("king", count=3)
    assert [word for word, _ in found] == [WORDS[i] for i in order[:3]]
    assert_close([c for _, c in found], [float(cosines[0, i]) for i in order[:3]], atol=1e-4)
    assert encoder.similarity("king", "KING") == pytest.approx(1)
    assert encoder.similarity("king", "man") == pytest.approx(cosines[0, 2], abs=1e-5)
    target = unit[1] - unit[0] + unit[2]
    scores = unit @ target / np.linalg.norm(target)
    scores[:3] = -9
    assert encoder.analogy("king", "queen", "man") == [
        (WORDS[scores.argmax()], pytest.approx(scores.max(), abs=1e-4))
    ]
    assert len(encoder.most_similar(["king", "queen"], unlike="man", count=99)) == 4


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_cosines_of_long_and_zero_vectors(dtype):
    vectors = [[0, 0], [1, 0], [300, 0], [0, 300]]
    model = WordVectors.from_vectors(list("abcd"), vectors, dtype=dtype)
    assert [model.similarity(*pair) for pair in ("ab", "bc", "cd")] == [0.0, 1.0, 0.0]
    assert model.most_similar("c")[0] == ("b", 1.0)


def test_vector_files_round_trip(encoder, tmp_path):
    for name, format in (("v.txt", "word2vec"), ("v.bin", "binary"), ("v.glove", "glove")):
        encoder.write(tmp_path / name, format)
        again = WordVectors.read(tmp_path / name)
        assert again.vocabulary == encoder.vocabulary
        assert_close(again.vectors, encoder.vectors, atol=0)
    part = WordVectors.read(tmp_path / "v.txt", words={"man", "Paris", "none"}, learns=False)
    assert part.words == ["man", "Paris"] and not part.learns
    model = FastText(VOCABULARY, 4, buckets=97)
    model.subword_vectors().save(tmp_path / "fast.bin")
    read = read_fasttext(tmp_path / "fast.bin")
    assert_close(read.vectors(["queens"]), model.subword_vectors().vectors(["queens"]))
    assert_close(WordVectors.read(tmp_path / "fast.bin").vectors[3:], model.vectors[3:])


@pytest.mark.full
def test_published_glove_file_loads(data):
    encoder = WordVectors.read(data("word_similarity/glove.6B.100d.sample.txt.gz"))
    assert len(encoder.words) == 100 and encoder.hidden_dim == 100
    nearest = [word for word, _ in encoder.most_similar("was", count=5)]
    assert "were" in nearest or "had" in nearest
    assert encoder.tokenizer().tokenize("The year, he said") == ["the", "year", ",", "he", "said"]


def test_saves_and_loads(encoder, tmp_path):
    keras_plm.save(tmp_path / "mine", encoder, encoder.tokenizer())
    again, tokenizer = keras_plm.load(tmp_path / "mine")
    assert again.most_similar("king") == encoder.most_similar("king")
    assert tokenizer.get_config() == encoder.tokenizer().get_config()


TAGGED = [Example([a, "apple", b], ["A", "O", "B"]) for a in ("king", "man")
          for b in ("queen", "woman")] * 4  # fmt: skip


@pytest.mark.backend_neutral
def test_save_refuses_models_that_load_cannot_read(encoder, tmp_path):
    with pytest.raises(ValueError, match="Save other models with `model.save`.*Word2Vec"):
        keras_plm.save(tmp_path / "x", Word2Vec(encoder.vocabulary_size), encoder.tokenizer())
    assert not (tmp_path / "x").exists()


@pytest.mark.full
def test_heads_learn_from_word_vectors(encoder, tmp_path):
    tokenizer = encoder.tokenizer()
    method = FeatureBased(epochs=30, learning_rate=0.05, dropout=0.0)
    tagger = method.fit(encoder, Tagger, tokenizer, TAGGED)
    assert tagger.predict([["man", "apple", "queen"], ["queen"]]) == [["A", "O", "B"], ["B"]]
    texts = [Example(f"{a} apple", a) for a in ("king", "queen")] * 8
    fine = FineTune(epochs=20, learning_rate=0.05, dropout=0.0)
    classifier = fine.fit(encoder, Classifier, tokenizer, texts)
    assert classifier.predict(["apple queen", "king"]) == ["queen", "king"]
    classifier.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.predict(["apple queen", "king"]) == ["queen", "king"]
    rows = compare_layers(encoder, tokenizer, TAGGED, Tagger, FeatureBased(epochs=1), seeds=1)
    assert [row["layers"] for row in rows] == ["embeddings"]  # the only layer
    pooled = extract_features(encoder, tokenizer, ["king man"], pool="mean")
    assert_close(pooled[0], VECTORS[[0, 2]].mean(axis=0), atol=1e-3)  # stored in float16


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_character_filters_have_the_precision_of_the_encoder(dtype):
    encoder = WordVectors(VOCABULARY, 9, character_filters=4, dtype=dtype)
    inputs = {"token_ids": np.array([[1, 2]]), "padding_mask": np.array([[True, True]])}
    found = encoder(inputs)["sequence"]
    assert keras.backend.standardize_dtype(found.dtype) == encoder.output["sequence"].dtype
    assert encoder.get_layer("spelling").convolution.compute_dtype == encoder.compute_dtype


@pytest.mark.full
def test_frozen_vectors_stay_while_character_filters_learn():
    encoder = WordVectors.from_vectors(WORDS, VECTORS, character_filters=6, learns=False)
    assert encoder.hidden_dim == 11
    model = FineTune(epochs=3, learning_rate=0.05).fit(encoder, Tagger, encoder.tokenizer(), TAGGED)
    assert_close(model.encoder.vectors, encoder.vectors, atol=0)
    before, after = (
        to_numpy(e.get_layer("spelling").convolution.kernel) for e in (encoder, model.encoder)
    )
    assert not np.allclose(before, after)


def test_words_without_a_vector_get_character_features(encoder):
    more = encoder.with_words(["king", "prince", "King", "prince"], character_filters=4)
    assert more.words == [*WORDS, "prince", "King"] and more.hidden_dim == 9
    added = np.stack([np.zeros(5), VECTORS[0]])
    assert_close(more.vectors, np.concatenate([encoder.vectors, added]), atol=0)
    packed = more.tokenizer().pack([["prince", "unseen"]])
    known, unseen = to_numpy(more(packed)["sequence"])[0]
    assert (known[:5] == 0).all() and not np.allclose(known[5:], unseen[5:])


def test_with_words_copies_all_settings():
    encoder = WordVectors.from_vectors(WORDS, VECTORS, 4, learns=False, dropout=0.3)
    encoder.trainable = False
    more = encoder.with_words(["zebra"])
    config, expected = more.get_config(), encoder.get_config()
    expected["vocabulary"] = [*expected["vocabulary"], "zebra"]
    assert {**config, "name": None} == {**expected, "name": None}
    with pytest.raises(ValueError, match="a list of words"):
        encoder.with_words("zebra")


@pytest.mark.backend_neutral
def test_bad_input(encoder, tmp_path):
    with pytest.raises(ValueError, match="must hold"):
        WordVectors(["a", "b"], 4)
    for filters in (4, -1):
        with pytest.raises(ValueError, match="part of `hidden_dim`"):
            WordVectors(VOCABULARY, 4, character_filters=filters)
    for words, vectors in ((WORDS, VECTORS[:3]), (WORDS[:2], VECTORS[:2, 0])):
        with pytest.raises(ValueError, match="Every word needs one vector"):
            WordVectors.from_vectors(words, vectors)
    with pytest.raises(ValueError, match="'a' twice"):
        WordVectors.from_vectors(["a", "b", "a"], VECTORS[:3])
    for ask in (encoder.most_similar, lambda w: encoder.similarity("king", w)):
        for word in ("unseen", "[UNK]", "[PAD]"):
            with pytest.raises(ValueError, match="Only words of the vocabulary"):
                ask(word)
    with pytest.raises(ValueError, match="Only words of the vocabulary"):
        encoder.analogy("king", "queen", "prince")
    with pytest.raises(ValueError, match="a word or more"):
        encoder.most_similar([])
    encoder.write(tmp_path / "v.txt")
    with pytest.raises(ValueError, match="must have a vector of these words"):
        WordVectors.read(tmp_path / "v.txt", words=(word for word in ["unseen"]))
    (tmp_path / "none.txt").write_text("0 2\n")
    with pytest.raises(ValueError, match="Received: no row"):
        WordVectors.read(tmp_path / "none.txt")
    with pytest.raises(ValueError, match="finite; did training diverge.* that of 'b'"):
        WordVectors.from_vectors(["a", "b"], [[1.0], [np.nan]])
