"""The suites `word_vectors` and `language_models`, and the command `vectors`, on small texts."""

import json

import numpy as np
import pytest

import keras_plm
from benchmarks.__main__ import main as benchmarks
from benchmarks.suites import SUITES, language_models, word_vectors
from benchmarks.suites.language_models import Counts, LanguageModelRunner, Neural
from keras_plm.cli.main import main
from keras_plm.datasets import word_similarity
from keras_plm.datasets.corpora import BOOKS
from keras_plm.experiments.pretraining.word_vectors import (
    NAMES,
    Sentences,
    Vectors,
    VectorTrainer,
)
from keras_plm.files.cache import cache_folder
from keras_plm.models import WordVectors

pytestmark = pytest.mark.backend_neutral

ANIMALS, FOODS = "cat dog cow hen".split(), "bread soup cake rice".split()


def sentences(count=400, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        words = [str(w) for w in rng.choice(ANIMALS if rng.random() < 0.5 else FOODS, 7)]
        yield " ".join(["The", *words, "."])


@pytest.fixture
def data_folder(tmp_path):
    """A minimal data folder for the suites."""
    folder = tmp_path / "data"
    for name in ("books", "word_similarity", "wikitext-2"):
        (folder / name).mkdir(parents=True)
    for seed, name in enumerate(BOOKS.files.values()):
        (folder / name).write_text("\n".join(sentences(seed=seed)) + "\n")
    pairs = "cat\tdog\t9\ncat\tsoup\t1\nbread\tcake\t8\nhen\trice\t2\ncow\tunseen\t5\n"
    for name in word_similarity.PAIRS.values():
        (folder / name).write_text(pairs)
    questions = ": family\ncat dog bread cake\n: gram1\ncow hen soup rice\n"
    (folder / word_similarity.QUESTIONS).write_text(questions)
    for seed, (split, name) in enumerate(language_models.FILES.items()):
        lines = [f" {line} <unk> " for line in sentences(120 if split == "train" else 30, seed)]
        (folder / name).write_text("\n \n".join(lines) + "\n")
    return folder


def test_settings_depend_on_kind_and_are_validated():
    assert Vectors().window == 5 and Vectors("glove").window == 10
    assert Vectors("cbow", "gensim").learning_rate == 0.05 and Vectors("cbow").learning_rate == 1.0
    assert Vectors("cbow", dim=7).name == "cbow.keras_plm.dim7"
    assert (
        Vectors("cbow", "gensim", learning_rate=0.1, limit=9).title
        == "CBOW, negative sampling, gensim, learning rate 0.1"
    )
    assert len({s.name for s in SUITES["word_vectors"].scales["small"]}) == 14
    for wrong, match in (
        ({"kind": "lsa"}, "`kind` must be one of"),
        ({"by": "me"}, "`by` must be one of"),
        ({"kind": "glove", "by": "gensim"}, "GloVe must be trained by 'keras_plm'"),
        ({"dim": 0}, "`dim` must be a whole number, above 0"),
        ({"epochs": -1}, "`epochs` must be a whole number, 0 or more"),
    ):
        with pytest.raises(ValueError, match=match):
            Vectors(**wrong)


def test_trainer_replaces_rare_words_and_caches_text(data_folder, tmp_path):
    files = [data_folder / name for name in list(BOOKS.files.values())[:1]]
    files[0].write_text(files[0].read_text() + "rare bird cat\n")
    runner = VectorTrainer(files, tmp_path / "work", progress=lambda line: None)
    ids, words = runner.text(Vectors())
    assert set(words.vocabulary[3:]) == {"the", ".", *ANIMALS, *FOODS}
    assert [words.vocabulary[i] for i in ids[-4:]] == ["[UNK]", "[UNK]", "cat", "[EOS]"]
    again = VectorTrainer(files, tmp_path / "work", progress=pytest.fail)  # rereads no file
    assert (again.text(Vectors())[0] == ids).all()
    assert len(again.text(Vectors(limit=50))[0]) == 50
    assert list(Sentences(ids, words))[-1] == ["cat"]
    assert len(Sentences(ids, words)) == 401
    with pytest.raises(ValueError, match="of the most frequent word"):
        runner.text(Vectors(min_count=10_000))


@pytest.mark.full
@pytest.mark.parametrize("kind", word_vectors.KINDS)
def test_every_kind_is_trained_and_scored(kind, data_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = []
    settings = Vectors(kind, dim=8, epochs=4, sample=1.0, learning_rate=0.5)
    word_vectors.run_vectors([settings], data_folder, tmp_path / "out", 1, said.append)
    path = tmp_path / "out" / "word_vectors" / f"{settings.name}.seed0.json"
    result = json.loads(path.read_text())
    assert result["scores"]["similarity"]["MEN"]["missing"] == 1
    assert result["words_per_second"] > 0 and result["tokens"] == 4 * 400 * 9
    assert result["metrics"]["MEN"] > 0.5  # animals are close to animals
    before = path.read_bytes()
    word_vectors.run_vectors([settings], data_folder, tmp_path / "out", 1, said.append)
    assert path.read_bytes() == before
    table = word_vectors.markdown(tmp_path / "out")
    assert NAMES[kind] in table and "MEN 1 of 5" in table


@pytest.mark.full
def test_gensim_models_train_and_appear_in_the_table(data_folder, tmp_path, monkeypatch):
    pytest.importorskip("gensim")
    monkeypatch.chdir(tmp_path)
    runs = [
        Vectors(kind, "gensim", dim=8, epochs=9) for kind in ("skip_gram", "cbow_hs", "fasttext")
    ]
    word_vectors.run_vectors(runs, data_folder, tmp_path / "out", 1, lambda line: None)
    assert "fastText, gensim" in word_vectors.markdown(tmp_path / "out")


@pytest.mark.full
def test_language_models(data_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [Counts("mle", 1), Counts("add_k", 2), Counts("kneser_ney", 3),
            Neural(3, 8, 8, epochs=3, batch_size=64)]  # fmt: skip
    said = []
    language_models.run_models(runs, data_folder, tmp_path / "out", 2, said.append)
    read = {path.name: json.loads(path.read_text())
            for path in (tmp_path / "out" / language_models.TASK).iterdir()}  # fmt: skip
    assert len(read) == 5  # two seeds of the network only
    runner = LanguageModelRunner(data_folder, tmp_path / "out", progress=lambda line: None)
    ids = runner.texts["valid"]
    counts = np.bincount(runner.texts["train"], minlength=len(runner.words))
    unigram = counts / counts.sum()
    found = read["ngram1.mle.seed0.json"]["metrics"]["perplexity_valid"]
    assert found == pytest.approx(np.exp(-np.log(unigram[ids]).mean()))
    # Blank lines also end sentences, and <unk> in the text is the unknown word.
    assert (ids == runner.words.end_id).sum() == 59
    assert (ids == runner.words.unk_id).sum() == 30
    mixtures = read["nnlm3.hidden8.seed0.json"]["mixtures"]
    half, learned = (mixtures[f"Kneser-Ney 3, {kind}"] for kind in ("half", "learned"))
    assert half["weight"] == 0.5
    assert learned["perplexity_valid"] <= half["perplexity_valid"] + 1e-6
    table = language_models.markdown(tmp_path / "out")
    assert "3-grams, modified Kneser-Ney" in table and "mixed with" in table and "(2)" in table
    before = len(said)
    language_models.run_models(runs, data_folder, tmp_path / "out", 2, said.append)
    assert len(said) == before


@pytest.mark.full
def test_command_makes_an_encoder(data_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    book = str(data_folder / BOOKS.files["part 0"])
    options = ["--dim", "8", "--epochs", "9", "--sample", "1"]
    assert (
        main(["word-vectors", "--corpus", book, "--out", "mine", "--like", "zz", "cat", *options])
        == 0
    )
    shown = capsys.readouterr().out
    assert "cat: " in shown and "10 words, 8 wide" in shown
    # The same settings on another text are a new training.
    other = tmp_path / "other.txt"
    other.write_text("\n".join(sentences(seed=5)).upper().replace("CAT", "LYNX") + "\n")
    assert main(["word-vectors", "--corpus", str(other), "--out", "other", *options]) == 0
    assert "lynx" in keras_plm.load("other")[0].words
    assert not list(cache_folder("training").glob("skip_gram*"))  # finished training leaves nothing
    first = keras_plm.load("mine")[0].vectors
    assert not np.allclose(keras_plm.load("other")[0].vectors, first)
    encoder, tokenizer = keras_plm.load("mine")
    assert isinstance(encoder, WordVectors) and tokenizer.lowercase
    encoder.write("vectors.txt")
    (tmp_path / "few.txt").write_text("Cat bread\n")
    command = ["word-vectors", "--file", "vectors.txt", "--corpus", "few.txt", "--out", "few"]
    assert main(command) == 0
    assert sorted(keras_plm.load("few")[0].words) == ["bread", "cat"]
    assert main([*command, "--characters", "3"]) == 0
    spelled = keras_plm.load("few")[0]
    assert spelled.hidden_dim == 11 and {"Cat", "cat", "bread"} == set(spelled.words)
    for wrong, match in (
        (["--out", "x"], "takes a --corpus or a --file"),
        (["--out", "x", "--file", "vectors.txt", "--dim", "4"], "trained already"),
        (
            ["--out", "x", "--corpus", book, "--max-words", "4"],
            "`--max-words` must be 1 or more and needs",
        ),
        (["--out", "x", "--corpus", book, "--characters", "-3"], "`--characters` must be 0"),
        (["--out", "few.txt", "--corpus", book], "`--out` must be a folder"),
        (["--out", "x", "--corpus", "nope.txt"], "No file nope.txt"),
    ):
        assert main(["word-vectors", *wrong]) == 2
        assert match in capsys.readouterr().err


@pytest.mark.full
def test_suites_run_from_the_command_line(data_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for suite in ("word_vectors", "language_models"):
        command = ["suite", suite, "--scale", "test", "--data", str(data_folder)]
        assert benchmarks([*command, "--results", "results", "--seeds", "1"]) == 0
        assert (
            benchmarks(["report", "--suite", suite, "--scale", "test", "--results", "results"]) == 0
        )
        assert "|---|" in capsys.readouterr().out
