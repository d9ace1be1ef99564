"""Readers of vocabularies, word vectors and raw text."""

import json
import re
import tempfile
from pathlib import Path

import numpy as np

from keras_plm.checkpoints import load_tokenizer
from keras_plm.checkpoints.keras_hub_tokenizer import HubTokenizer
from keras_plm.data.corpus import TokenStream, read_ids
from keras_plm.data.formats.fasttext import SubwordVectors, read_fasttext
from keras_plm.data.formats.word_vectors import read_vectors, write_vectors
from keras_plm.experiments.pretraining.prepare import prepare, read_prepared
from keras_plm.experiments.pretraining.word_vectors import Vectors, VectorTrainer
from keras_plm.models.word_vectors import WordVectors
from keras_plm.tokenizers import BytePair, Characters, WordPiece, Words
from tests.fuzz.cases import Reader

WORDS = "the a good bad film was is not very dull fine we saw they met Ann Tom today".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [
    *SPECIAL,
    *dict.fromkeys((*(word.lower() for word in WORDS), *LETTERS)),
    *(f"##{letter}" for letter in LETTERS),
    *(".", ",", "?"),
]
WORDPIECE = WordPiece(VOCABULARY)
TEXT = "a good film was here .\nwe saw it today .\n\nthey met Ann , and Tom ?\n" * 8


def find(folder, name):
    """Returns the file with this prefix, plain or .gz, or a path that does not exist."""
    found = [path for path in folder.glob(f"{name}*") if path.suffix != ".tmp"]
    return found[0] if found else folder / (name if not name.endswith(".") else f"{name}csv")


def with_text(use):
    """Calls `use(path)` with a file of `TEXT`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        path.write_text(TEXT)
        return use(path)


def train_byte_pair(scheme):
    size = 400 if scheme == "gpt2" else 150
    return with_text(lambda path: BytePair.train(path, size, scheme=scheme))


BYTE_PAIRS = {scheme: train_byte_pair(scheme) for scheme in ("space", "gpt", "gpt2")}
WORD_LIST = with_text(Words.train)

# ---- tokenizers


def encodes(folder, tokenizer):
    """Checks that texts become ids of the vocabulary."""
    texts = ["a good film was here", "Ann, Tom?", "é ñ 😀", "[MASK] x"]
    encoded = tokenizer.encode(texts)
    if isinstance(tokenizer, Characters):
        return None
    ids = np.asarray(encoded.token_ids)
    if ids.size and not (0 <= ids.min() and ids.max() < len(tokenizer)):
        return f"ids from {ids.min()} to {ids.max()} of {len(tokenizer)}"
    return None


def same_ids(folder, tokenizer):
    """Checks that the ids of the vocabulary are those of `tokenizer.json`."""
    saved = json.loads((folder / "tokenizer.json").read_bytes())["model"]
    vocabulary = saved.get("vocab")
    if isinstance(vocabulary, dict):
        own = list(tokenizer.vocabulary)
        wrong = [token for token, i in vocabulary.items() if not _holds(own, i, token)]
        if wrong:
            return f"the id of {wrong[0]!r:.30} is not the file's"
    return encodes(folder, tokenizer)


def _holds(vocabulary, i, token):
    whole = isinstance(i, int) and not isinstance(i, bool)
    return whole and 0 <= i < len(vocabulary) and vocabulary[i] == token


def same_lines(folder, tokenizer):
    """Checks that the vocabulary is the lines of `vocab.txt`, without blank lines at its end."""
    text = (folder / "vocab.txt").read_bytes().decode("utf-8-sig")
    if text.lstrip().startswith("{"):
        return encodes(folder, tokenizer)
    lines = re.split("\r\n|\r|\n", text)
    while len(lines) > 1 and not lines[-1]:
        lines.pop()  # blank lines at the end name no token and change no id
    if list(tokenizer.vocabulary) != lines:
        return f"{len(tokenizer.vocabulary)} tokens that differ from the {len(lines)} lines"
    return encodes(folder, tokenizer)


def saved(tokenizer):
    return lambda folder: tokenizer.save(folder / "tokenizer.json")


def loading(kind):
    return lambda folder: kind.load(folder / "tokenizer.json")


def released(scheme):
    """The files of a released GPT: `vocab.json` and `merges.txt`."""
    tokenizer, own = BYTE_PAIRS[scheme], ("_start_", "_delimiter_", "_classify_", "_pad_")
    tokens = [token for token in tokenizer.vocabulary if token not in own]
    merges = "".join(f"{' '.join(merge)}\n" for merge in tokenizer.merges)
    ids = {token: i for i, token in enumerate(tokens)}
    return {"vocab.json": json.dumps(ids), "merges.txt": f"#version: 0.2\n{merges}"}


def write_hugging_face_bert(folder):
    import tokenizers

    ids = {token: i for i, token in enumerate(VOCABULARY)}
    tokenizers.BertWordPieceTokenizer(ids, lowercase=True).save(str(folder / "tokenizer.json"))


def write_hugging_face_gpt2(folder):
    import tokenizers

    files = released("gpt2")
    merges = [tuple(line.split(" ")) for line in files["merges.txt"].splitlines()[1:]]
    model = tokenizers.ByteLevelBPETokenizer(json.loads(files["vocab.json"]), merges)
    model.save(str(folder / "tokenizer.json"))


def write_hub_tokenizer(folder):
    ids = {"pad_id": 0, "unk_id": 1, "cls_id": 2, "sep_id": 3, "mask_id": 4}
    HubTokenizer(WORDPIECE._tokenizer.to_str(), ids, 1, True).save(folder / "tokenizer.json")


CONFIG = json.dumps({"do_lower_case": True, "tokenizer_class": "BertTokenizer"})
LINES = "\n".join(VOCABULARY) + "\n"
WHOLE = {"tokenizer.json": "json"}


TRAININGS = {
    "words": Words.train,
    "word_piece": lambda path: WordPiece.train(path, 120),
    "byte_pair": lambda path: BytePair.train(path, 120),
    "byte_pair_gpt2": lambda path: BytePair.train(path, 400, scheme="gpt2"),
}


TOKENIZERS = [
    Reader("wordpiece_vocab", {"vocab.txt": LINES}, lambda f: WordPiece.load(f / "vocab.txt"),
           {"vocab.txt": "text"}, same_lines),
    Reader("wordpiece_json", saved(WORDPIECE), loading(WordPiece), WHOLE, same_ids),
    *(Reader(f"bytepair_{scheme}", saved(tokenizer), loading(BytePair), WHOLE, same_ids, 0.8)
      for scheme, tokenizer in BYTE_PAIRS.items()),
    *(Reader(f"bytepair_released_{scheme}", released(scheme),
             lambda f: BytePair.load(f / "vocab.json", f / "merges.txt"),
             {"vocab.json": "json", "merges.txt": "text"}, encodes, 0.8)
      for scheme in ("gpt", "gpt2")),
    Reader("words_json", saved(WORD_LIST), loading(Words), WHOLE, same_ids, 0.8),
    Reader("characters_json", saved(Characters()), loading(Characters), WHOLE, encodes, 0.3),
    Reader("hub_tokenizer_json", write_hub_tokenizer, loading(HubTokenizer), WHOLE, encodes, 0.8),
    Reader("tokenizer_folder", {"vocab.txt": LINES, "tokenizer_config.json": CONFIG},
           load_tokenizer, {"vocab.txt": "text", "tokenizer_config.json": "json"}, encodes),
    Reader("hugging_face_bert_json", write_hugging_face_bert, load_tokenizer, WHOLE, same_ids, 0.6),
    Reader("hugging_face_gpt2_json", write_hugging_face_gpt2, load_tokenizer, WHOLE, encodes, 0.6),
    Reader("openai_vocabulary", {
               "encoder_bpe_40000.json": released("gpt")["vocab.json"],
               "vocab_40000.bpe": released("gpt")["merges.txt"],
           }, load_tokenizer, {"encoder_bpe_40000.json": "json", "vocab_40000.bpe": "text"},
           encodes, 0.5),
    *(Reader(f"train_{name}", {"x.txt": TEXT}, lambda f, train=train: train(find(f, "x.txt")),
             {"x.txt": "text"}, encodes, 0.15, gz=True)
      for name, train in TRAININGS.items()),
]  # fmt: skip

# ---- word vectors


def vectors():
    return np.random.default_rng(0).normal(size=(len(WORDS), 6)).astype("float32").round(3)


def write_words(format):
    return lambda folder: write_vectors(folder / "v.txt", WORDS, vectors(), format)


def finite_rows(folder, found):
    words, rows = found
    if len(words) != len(rows) or len(set(words)) != len(words):
        return "words that stand twice, or are not as many as vectors"
    return None if np.isfinite(rows).all() else "numbers that are not finite"


def same_numbers(folder, found):
    """Checks that numbers are those of the lines; the first line of a word counts."""
    words, rows = found
    right, width = {}, rows.shape[1]
    for line in find(folder, "v.txt").read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        parts = line.rstrip().split(b" ")
        if len(parts) > width:
            word = b" ".join(parts[:-width]).decode("utf-8", "replace")
            word = word.strip(" ") or word  # the word may be a space
            try:
                right.setdefault(word, np.array(parts[-width:], "S").astype("float64"))
            except ValueError:
                continue
    for word, row in zip(words, rows, strict=True):
        if word not in right or not np.allclose(right[word], row, rtol=1e-5, atol=1e-30):
            return f"the numbers of {word!r:.30} are not the file's"
    return finite_rows(folder, found)


def write_fasttext(folder):
    rng = np.random.default_rng(0)
    rows, ngrams = rng.normal(size=(len(WORDS), 4)), rng.normal(size=(50, 4))
    SubwordVectors(WORDS, rows, ngrams, min_n=2, max_n=4).save(folder / "m.bin")


def read_all_ways(folder):
    """Reads the whole model, a few of its words, and only its words."""
    model = read_fasttext(folder / "m.bin")
    model.vectors(["the", "unseen", "é"])
    read_fasttext(folder / "m.bin", words=["the", "unseen"]).vectors(["the", "unseen"])
    return read_vectors(folder / "m.bin")


def as_encoder(folder):
    model = WordVectors.read(folder / "v.txt")
    words = model.tokenizer().vocabulary
    table = np.asarray(model.get_weights()[0])[-len(words) :]
    return list(words), table


VECTORS = [
    *(Reader(f"vectors_{format}", write_words(format), lambda f: read_vectors(f / "v.txt"),
             {"v.txt": "text"}, same_numbers, 0.8) for format in ("word2vec", "glove")),
    Reader("vectors_binary", write_words("binary"), lambda f: read_vectors(f / "v.txt"),
           {"v.txt": "bytes"}, finite_rows, 0.8),
    Reader("vectors_gz", write_words("word2vec"), lambda f: read_vectors(f / "v.txt.gz"),
           {"v.txt": "text"}, finite_rows, 0.5, gz="always"),
    Reader("vectors_encoder", write_words("word2vec"), as_encoder, {"v.txt": "text"}, finite_rows,
           0.2),
    Reader("fasttext", write_fasttext, read_all_ways, {"m.bin": "fasttext"}, finite_rows),
]  # fmt: skip

# ---- raw text, and text as ids


def write_stream(folder):
    with_text(lambda path: TokenStream.build([path], WORDPIECE, folder / "s", "lines"))
    (folder / "x").write_bytes(bytes(4000))  # the name of a shard may point outside its folder


def contents(stream):
    return tuple(np.array(a[:]) for a in (stream.tokens, stream.sentences, stream.documents))


RIGHT = with_text(
    lambda path: contents(
        TokenStream.build([path], WORDPIECE, Path(tempfile.mkdtemp(dir=path.parent)) / "s", "lines")
    )
)


def same_tokens(folder, found):
    """Checks that damage is refused or the stream is rebuilt from its text."""
    for name, array, right in zip(("tokens", "sentences", "documents"), found, RIGHT, strict=True):
        if not np.array_equal(array, right):
            return f"{name} that are not the text's, {len(array)} for {len(right)}"
    return None


def verified(folder):
    return contents(TokenStream(folder / "s", verify=True))


def built_again(folder):
    return with_text(lambda p: contents(TokenStream.build([p], WORDPIECE, folder / "s", "lines")))


def ids_and_stream(folder):
    """Reads a text as ids in memory and as a stream."""
    path = find(folder, "x.txt")
    words = Words.train(path)
    ids = read_ids(path, words)
    with tempfile.TemporaryDirectory() as other:
        stream = TokenStream.build([path], WORDPIECE, Path(other) / "s", "lines")
        return ids, len(words), contents(stream)


def within_bounds(folder, found):
    ids, size, (tokens, sentences, documents) = found
    if not (0 <= ids.min() and ids.max() < size and tokens.max() < len(WORDPIECE)):
        return "ids beyond the vocabulary"
    if sentences[-1] != len(tokens) or documents[-1] != len(sentences) - 1:
        return "sentences or documents that do not end with the text"
    return None


def write_prepared(folder):
    with_text(lambda path: prepare([path], folder / "p", "bert", None, 120, True, "lines"))


def prepared_text(folder):
    _, tokenizer, stream = read_prepared(folder / "p", "bert", verify=True)
    return tokenizer.vocabulary, contents(stream)


def same_prepared(folder, found):
    if not hasattr(same_prepared, "right"):
        with tempfile.TemporaryDirectory() as other:
            write_prepared(Path(other))
            same_prepared.right = prepared_text(Path(other))
    vocabulary, arrays = same_prepared.right
    if list(vocabulary) != list(found[0]):
        return "a vocabulary that is not the text's"
    equal = (np.array_equal(a, b) for a, b in zip(arrays, found[1], strict=True))
    return None if all(equal) else "tokens that are not the text's"


def words_as_ids(folder):
    """Reads the file of ids that training of word vectors keeps."""

    def use(path):
        trainer = VectorTrainer([path], folder / "work", progress=lambda line: None)
        ids, tokenizer = trainer.text(Vectors(dim=4, min_count=1))
        return np.array(ids), list(tokenizer.vocabulary)

    return with_text(use)


def same_words(folder, found):
    if not hasattr(same_words, "right"):
        with tempfile.TemporaryDirectory() as other:
            same_words.right = words_as_ids(Path(other))
    same = np.array_equal(found[0], same_words.right[0]) and found[1] == same_words.right[1]
    return None if same else "ids that are not the text's"


def kept_words():
    """Returns the names of the files that training of word vectors keeps."""
    with tempfile.TemporaryDirectory() as folder:
        words_as_ids(Path(folder))
        paths = [path.relative_to(folder).as_posix() for path in Path(folder).rglob("*.*")]
    kinds = {".npy": "npy", ".json": "json"}
    return {path: kinds[Path(path).suffix] for path in sorted(paths) if Path(path).suffix in kinds}


STREAM = {"s/stream.json": "json", "s/tokens.00000.bin": "bytes", "s/sentences.bin": "bytes",
          "s/documents.bin": "bytes"}  # fmt: skip
PREPARED = {"p/prepared.json": "json", "p/tokenizer.json": "json", "p/stream/stream.json": "json",
            "p/stream/tokens.00000.bin": "bytes", "p/stream/sentences.bin": "bytes"}  # fmt: skip

CORPORA = [
    Reader("text_to_ids", {"x.txt": TEXT}, ids_and_stream, {"x.txt": "text"}, within_bounds, 0.5,
           gz=True),
    Reader("token_stream", write_stream, verified, STREAM, same_tokens),
    Reader("token_stream_build", write_stream, built_again, STREAM, same_tokens,
           leaves=("s/*", ".s.*")),
    Reader("prepared", write_prepared, prepared_text, PREPARED, same_prepared, 0.8),
    Reader("word_ids", words_as_ids, words_as_ids, kept_words(), same_words, 0.4,
           leaves=("work/*",)),
]  # fmt: skip

READERS = [*TOKENIZERS, *VECTORS, *CORPORA]
