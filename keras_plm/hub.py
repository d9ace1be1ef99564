"""KerasHub's backbones and tokenizers as our encoders and tokenizers."""

from keras_plm.tokenizers import WordPiece
from keras_plm.weight_files import read_object


def load_preset_tokenizer(folder):
    """The tokenizer of a KerasHub preset, of its vocabulary files."""
    assets = folder / "assets" / "tokenizer"
    settings = read_object(folder / "tokenizer.json").get("config", {})
    return WordPiece.load(assets / "vocabulary.txt", settings.get("lowercase"))
