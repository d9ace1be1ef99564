"""BERT's tokenizer."""

import itertools
import json

import keras
import tokenizers

from keras_plm.tokenizers.subwords import (
    FlatPieces,
    KnownChunks,
    SubwordTokenizer,
    frequent_characters,
    lines,
    naming,
    no_text,
    numbered,
    paths,
    saved_pieces,
)
from keras_plm.tokenizers.text import open_text

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@keras.saving.register_keras_serializable("keras_plm")
class WordPiece(SubwordTokenizer):
    """BERT's tokenizer: words and punctuation, each cut greedily into the longest known pieces.

    A word with no cover becomes `[UNK]`. The work is done by the `tokenizers` package, so ids
    agree with Hugging Face's BERT tokenizer; the saved JSON is that package's own format.

    Reference: Wu et al. 2016, arXiv 1609.08144, section 4.1; Devlin et al. 2018, section 3.

    Args:
        vocabulary: The pieces in order of their ids; must hold `[PAD] [UNK] [CLS] [SEP] [MASK]`.
        lowercase: If True, lower-case and strip accents first ("uncased"). By default that is
            done unless the vocabulary has upper-case pieces.

    Raises:
        ValueError: If a special token is missing or a piece stands twice.

    >>> pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "want", "##ed", "un", "##want"]
    >>> tokenizer = WordPiece(pieces)
    >>> tokenizer.tokenize("UNwanted, wanted")
    ['un', '##want', '##ed', '[UNK]', 'want', '##ed']
    >>> tokenizer.pack(["unwanted", "want"])["token_ids"].tolist()
    [[2, 7, 8, 6, 3], [2, 5, 3, 0, 0]]
    """

    _special = {f"{token[1:-1].lower()}_id": token for token in SPECIAL_TOKENS}
    _first, _middle, _last = "cls_id", "sep_id", "sep_id"

    def __init__(self, vocabulary, lowercase=None):
        ids = numbered(vocabulary, SPECIAL_TOKENS, "WordPiece")
        if lowercase is None:
            lowercase = not any(p != p.lower() for p in ids if p not in SPECIAL_TOKENS)
        model = tokenizers.models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100)
        self._set(_bert_tokenizer(model, lowercase))
        self.lowercase = lowercase
        self._known = KnownChunks(self._tokenizer)

    @classmethod
    def train(cls, files, vocabulary_size, lowercase=True):
        """Learns a vocabulary from text files (plain or .gz).

        Args:
            files: One path or a list of paths.
            vocabulary_size: Number of pieces, special tokens included.
            lowercase: If True, lower-case and strip accents first.

        Raises:
            ValueError: If a file is missing, there is no text, or `vocabulary_size` does not hold
                the letters.
        """
        files = paths(files)
        model = tokenizers.models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100)
        tokenizer = _bert_tokenizer(model, lowercase)
        limit = min(max(100, vocabulary_size // 20), 1000)
        alphabet = frequent_characters(lines(files), tokenizer.normalizer, limit)
        if not alphabet:
            raise no_text(files)
        # The trainer numbers "##" letters in the order of a hash map, and ids break its ties:
        # without given ids no two trainings agree.
        pre_tokenize = tokenizer.pre_tokenizer.pre_tokenize_str
        inner = [letter for letter in alphabet if len(pre_tokenize("a" + letter)) == 1]
        letters = [*SPECIAL_TOKENS, *alphabet, *("##" + letter for letter in inner)]
        if len(letters) > vocabulary_size:
            raise ValueError(
                f"This text needs a vocabulary of at least {len(letters)} pieces: its letters, "
                "alone and inside words, and the special tokens. "
                f"Received: vocabulary_size={vocabulary_size}"
            )
        trainer = tokenizers.trainers.WordPieceTrainer(
            vocab_size=vocabulary_size,
            special_tokens=letters,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        tokenizer.train_from_iterator(lines(files), trainer)
        # Rebuilt from its pieces, so that a trained and a loaded tokenizer are the same thing.
        vocabulary = tokenizer.get_vocab()
        return cls(sorted(vocabulary, key=vocabulary.get), lowercase=lowercase)

    @classmethod
    def load(cls, path, lowercase=None):
        """Reads what `save` wrote, a `tokenizer.json`, or a `vocab.txt` (one piece a line).

        Args:
            path: The file.
            lowercase: Overrides what the file says or, in a `vocab.txt`, suggests.

        Raises:
            ValueError: If the file is missing or is no WordPiece tokenizer.
        """
        with open_text(path) as file:
            text = file.read()
        if not text.lstrip().startswith("{"):
            pieces = text.split("\n")
            return cls(pieces[:-1] if pieces[-1] == "" else pieces, lowercase)
        with naming(path, "WordPiece"):
            saved = json.loads(text)
            vocabulary = saved_pieces(saved["model"], "WordPiece")
            if lowercase is None:
                lowercase = saved["normalizer"]["lowercase"]
        return cls(vocabulary, lowercase=lowercase)

    def pieces(self, texts, return_offsets=False):
        if return_offsets or not all(isinstance(text, str) for text in texts):
            return super().pieces(texts, return_offsets)
        found, chain = self._known.__getitem__, itertools.chain.from_iterable
        return FlatPieces([list(chain(map(found, text.split(" ")))) for text in texts])

    def get_config(self):
        return {"vocabulary": self.vocabulary, "lowercase": self.lowercase}


def _bert_tokenizer(model, lowercase):
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    # So that "[MASK]" in a text is the mask, as in the original.
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer
