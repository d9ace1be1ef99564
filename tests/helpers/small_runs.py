"""Helpers for tests of single runs: a tokenizer, flags, and the path of the results."""

from keras_plm.tokenizers import WordPiece

LETTERS = list("abcdefgh")
TOKENIZER = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS])
FAST = ["--learning-rates", "1e-2", "--epochs", "1"]


def common(encoder, tmp_path):
    places = ["--results", str(tmp_path / "results"), "--feature-cache", str(tmp_path / "features")]
    return ["--encoder", encoder, *places]


def result_files(tmp_path):
    return sorted((tmp_path / "results").glob("**/*.json"))
