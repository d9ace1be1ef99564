"""Tokenizers of released folders give the ids and offsets of `transformers`, or are refused."""

import itertools
import json
import shutil

import numpy as np
import pytest

from keras_plm.checkpoints import load_tokenizer, save_bert, save_gpt
from keras_plm.checkpoints.keras_hub_tokenizer import HubTokenizer
from keras_plm.models import BERT, GPT
from keras_plm.tokenizers import BytePair, WordPiece
from tests.keras_plm.tokenizers.released_texts import ADDED, TEXTS

pytestmark = pytest.mark.backend_neutral

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abdefghilnorstuwxéüçßıяйσς中国文ガが각😀"
PIECES = [*LETTERS, *(f"##{letter}" for letter in LETTERS), *"LNFÉÜ$,.[]<>-'\"|#_1", "low", "Low"]
PIECES += ["##er", "##est", "new", "wide", "lower", "un", "##know", "endoftext", "MASK", "mask"]
PIECES += ["x", "##1"]
FLAGS = {
    "<ent>": {"special": True},
    "Foo": {"normalized": True},
    "bar baz": {"normalized": False},
    "中国": {"normalized": True},
    "é": {"normalized": True, "single_word": True},
    "##x": {"normalized": False},
    "lower": {"normalized": False, "single_word": True},
    "$": {"normalized": False, "lstrip": True},
    "ü ": {"normalized": True, "rstrip": True},
    "new": {"normalized": True, "lstrip": True, "rstrip": True, "special": True},
}


def vocabulary():
    return list(dict.fromkeys([*SPECIAL, *PIECES]))


def added_decoder(pieces):
    """Returns `added_tokens_decoder`, tokens by id; new tokens get the next ids."""
    decoder = {}
    for token in ADDED:
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        new = sum(i >= len(pieces) for i in decoder)
        i = pieces.index(token) if token in pieces else len(pieces) + new
        decoder[i] = {"content": token, **flags, **FLAGS[token]}
    return {str(i): decoder[i] for i in decoder}


def write(folder, **files):
    """Writes the folder of a BERT's tokenizer; files are JSON objects, `vocab` is a list."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    files.setdefault("config", {"model_type": "bert"})
    pieces = files.pop("vocab", vocabulary())
    if pieces is not None:
        (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def peer(folder):
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)


def agree(ours, theirs, texts=TEXTS, frame=True):
    """Checks for equal ids and offsets, for single texts and for all texts together."""
    wanted = theirs(texts, return_offsets_mapping=True, add_special_tokens=frame)
    rows = [ours.encode(texts, return_offsets=flag) for flag in (False, True)]
    for i, text in enumerate(texts):
        start = rows[0].starts[i]
        for row in rows:
            ids = row.token_ids[row.starts[i] :][: row.lengths[i]].tolist()
            assert ids == wanted["input_ids"][i], repr(text)
        offsets = rows[1].offsets[start:][: rows[1].lengths[i]].tolist()
        assert offsets == [list(pair) for pair in wanted["offset_mapping"][i]], repr(text)


@pytest.mark.quick_cases("True-True")
@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_bert_folders_agree_with_transformers(lowercase, whole, tmp_path):
    pieces = vocabulary()
    for strip, cjk, added in itertools.product((None, True, False), (True, False), (True, False)):
        settings = {"do_lower_case": lowercase, "strip_accents": strip}
        settings |= {"tokenize_chinese_chars": cjk, "tokenizer_class": "BertTokenizer"}
        if added:
            settings["added_tokens_decoder"] = added_decoder(pieces)
        folder = write(tmp_path / "one", tokenizer_config=settings)
        theirs = peer(folder)
        if whole:
            theirs.save_pretrained(tmp_path / "two")
            folder = write(tmp_path / "three", vocab=None)
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(tmp_path / "two" / name, folder / name)
            theirs = peer(folder)
        ours = load_tokenizer(folder)
        assert len(ours) == len(theirs)
        agree(ours, theirs)
        again = WordPiece.from_config(ours.get_config())
        again.save(tmp_path / "tokenizer.json")
        for same in (again, WordPiece.load(tmp_path / "tokenizer.json")):
            assert same.get_config() == ours.get_config() and len(same) == len(ours)
            assert same.encode(TEXTS).token_ids.tolist() == ours.encode(TEXTS).token_ids.tolist()


def test_old_added_token_files_agree_with_transformers(tmp_path):
    count = len(vocabulary())
    folder = write(
        tmp_path / "old",
        tokenizer_config={"do_lower_case": False, "additional_special_tokens": ["<ent>"]},
        added_tokens={"<ent>": count, "Foo": count + 1, "bar baz": count + 2},
        special_tokens_map={
            "additional_special_tokens": ["<ent>"],
            "bos_token": "[CLS]",
            "eos_token": {"content": "lower", "lstrip": True, "rstrip": False,
                          "normalized": False, "single_word": False},
        },
    )  # fmt: skip
    ours = load_tokenizer(folder)
    assert ours.tokenize("low<ent>Foo lower") == ["low", "<ent>", "Foo", "lower"]
    agree(ours, peer(folder))


def test_renamed_special_tokens_agree_with_transformers(tmp_path):
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
    names["mask_token"] = "<mask>"
    pieces = ["low", "<s>", "<pad>", "</s>", *PIECES[:-3], "<mask>", "<unk>"]
    pieces = list(dict.fromkeys(pieces))
    settings = {"do_lower_case": True, **names}
    folder = write(tmp_path / "names", vocab=pieces, tokenizer_config=settings)
    ours, theirs = load_tokenizer(folder), peer(folder)
    agree(ours, theirs)
    assert (ours.cls_id, ours.sep_id, ours.pad_id) == (1, 3, 2)
    assert ours.mask_id == theirs.mask_token_id and ours.unk_id == theirs.unk_token_id
    ours.save(tmp_path / "tokenizer.json")
    assert WordPiece.load(tmp_path / "tokenizer.json").get_config() == ours.get_config()
    packed = ours.pack(["low <mask>", "low"], ["low", "qq"])
    wanted = theirs(["low <mask>", "low"], ["low", "qq"], padding=True, return_tensors="np")
    np.testing.assert_array_equal(packed["token_ids"], wanted["input_ids"])
    np.testing.assert_array_equal(packed["segment_ids"], wanted["token_type_ids"])
    theirs.save_pretrained(tmp_path / "whole")
    agree(load_tokenizer(tmp_path / "whole"), theirs)


def test_transformers_reads_saved_tokenizer(tmp_path):
    pieces = [*vocabulary(), "<s>"]
    tokenizer = WordPiece(
        pieces, False, True, False, ["[PAD]", "[UNK]", "<s>", "[SEP]", "[MASK]"],
        [{"content": token, **FLAGS[token]} for token in ADDED],
    )  # fmt: skip
    encoder = BERT(len(tokenizer), 1, 2, 4, 4, max_sequence_length=512)
    save_bert(tmp_path / "bert", encoder, tokenizer)
    agree(tokenizer, peer(tmp_path / "bert"))
    assert load_tokenizer(tmp_path / "bert").get_config() == tokenizer.get_config()


@pytest.fixture
def gpt2(tmp_path):
    """`gpt2(**files)` writes the folder of a GPT-2's tokenizer."""
    text = tmp_path / "text.txt"
    text.write_text("low lower lowest new newer wide widest 中国 é ü\n" * 5, encoding="utf-8")
    ours = BytePair.train(text, 320, scheme="gpt2").unframed()

    def make(**files):
        files.setdefault("config", {"model_type": "gpt2"})
        pieces = [*ours.vocabulary, "<|endoftext|>"]
        folder = write(tmp_path / "gpt2", vocab=None, **files)
        vocab = {piece: i for i, piece in enumerate(pieces)}
        (folder / "vocab.json").write_text(json.dumps(vocab))
        lines = ["#version: 0.2", *(" ".join(merge) for merge in ours.merges)]
        (folder / "merges.txt").write_text("\n".join(lines) + "\n")
        return folder, pieces

    return make


def agree_gpt2(ours, theirs):
    """Like `agree`, but our offsets exclude the space before a word."""
    ours = ours.unframed()
    wanted = theirs(TEXTS, return_offsets_mapping=True)
    row = ours.encode(TEXTS, return_offsets=True)
    plain = ours.encode(TEXTS)
    for i, text in enumerate(TEXTS):
        ids = row.token_ids[row.starts[i] :][: row.lengths[i]].tolist()
        assert ids == wanted["input_ids"][i], repr(text)
        assert plain.token_ids[plain.starts[i] :][: plain.lengths[i]].tolist() == ids
        pieces = theirs.convert_ids_to_tokens(ids)
        found = row.offsets[row.starts[i] :][: len(pieces)].tolist()
        for piece, own, (start, end) in zip(
            pieces, found, wanted["offset_mapping"][i], strict=True
        ):
            start += piece.startswith("Ġ") and text[start].isspace()
            assert own == [start, start if piece == "Ġ" else end], (text, piece)


@pytest.mark.quick_cases("True")
@pytest.mark.parametrize("whole", [True, False])
def test_gpt2_folders_agree_with_transformers(whole, gpt2, tmp_path):
    for prefix, added in itertools.product((False, True), (False, True)):
        folder, pieces = gpt2()
        settings = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": prefix}
        if added:
            settings["added_tokens_decoder"] = added_decoder(pieces)
            settings |= {"pad_token": "<ent>", "eos_token": "new"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        theirs = peer(folder)
        if whole:
            theirs.save_pretrained(tmp_path / "two")
            folder = write(tmp_path / "three", vocab=None, config={"model_type": "gpt2"})
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(tmp_path / "two" / name, folder / name)
            theirs = peer(folder)
        ours = load_tokenizer(folder)
        assert ours.text_size == len(theirs) == len(ours) - 4
        agree_gpt2(ours, theirs)
        if added:
            assert ours.pad_id == theirs.pad_token_id and ours.end_id == theirs.eos_token_id
        again = BytePair.from_config(ours.get_config())
        again.save(tmp_path / "tokenizer.json")
        for same in (again, BytePair.load(tmp_path / "tokenizer.json"), load_tokenizer(tmp_path)):
            assert same.get_config() == ours.get_config()
            assert same.encode(TEXTS).token_ids.tolist() == ours.encode(TEXTS).token_ids.tolist()
        encoder = GPT(ours.text_size, 1, 2, 4, 16, max_sequence_length=512, pre_norm=True)
        save_gpt(tmp_path / "saved", encoder, ours)
        agree_gpt2(ours, peer(tmp_path / "saved"))
        assert load_tokenizer(tmp_path / "saved").get_config() == ours.get_config()


def test_released_vocabularies_agree_with_transformers(data, tmp_path):
    pieces = data("vocabularies/bert_uncased_vocab.txt").read_text(encoding="utf-8").split("\n")
    decoder = added_decoder(pieces[:-1])
    settings = {"do_lower_case": True, "strip_accents": False, "added_tokens_decoder": decoder}
    folder = write(tmp_path / "bert", vocab=pieces[:-1], tokenizer_config=settings)
    agree(load_tokenizer(folder), peer(folder))

    names = ("openai_gpt_encoder_bpe_40000.json", "openai_gpt_vocab_40000.bpe")
    folder = write(
        tmp_path / "gpt", vocab=None, config={"model_type": "openai-gpt"},
        tokenizer_config={"added_tokens_decoder": {
            str(40478 + i): {"content": token, "special": True}
            for i, token in enumerate(("_start_", "<ent>", "_delimiter_"))
        }},
    )  # fmt: skip
    for name, ours in zip(names, ("vocab.json", "merges.txt"), strict=True):
        shutil.copy(data(f"vocabularies/{name}"), folder / ours)
    ours, theirs = load_tokenizer(folder), peer(folder)
    assert (ours.text_size, len(ours)) == (40_481, 40_483)
    assert (ours.start_id, ours.delimiter_id, ours.classify_id) == (40_478, 40_480, 40_481)
    # Words that spaCy and `transformers` split in the same way.
    texts = ["The <unk> of a <ent>", "low<ent>lower, new", "_start_ Paris _delimiter_", "tea 中"]
    agree(ours.unframed(), theirs, texts, frame=False)


def change_whole(change):
    """Changes one component of a `tokenizer.json` from `transformers`."""

    def files(tmp_path):
        peer(write(tmp_path / "plain", tokenizer_config={})).save_pretrained(tmp_path / "whole")
        saved = json.loads((tmp_path / "whole" / "tokenizer.json").read_text())
        change(saved)
        return {"tokenizer": saved}

    return files


NORMAL = {"type": "Lowercase"}
LATER = {"content": "<a>", "lstrip": False, "rstrip": False, "single_word": False}
LATER |= {"normalized": True, "special": False}


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda saved: saved.update(normalizer=NORMAL), "component `normalizer` must be .*BertNor"),
        (lambda saved: saved.update(normalizer=None), "component `normalizer` must be"),
        (lambda saved: saved["normalizer"].update(clean_text=False), "component `normalizer`"),
        (
            lambda saved: saved.update(pre_tokenizer={"type": "Whitespace"}),
            "component `pre_tokenizer` must be .*BertPreTokenizer.*Received: .*Whitespace",
        ),
        (
            lambda saved: saved["model"].update(max_input_chars_per_word=50),
            "component `model` must be .*100.*Received: .*50",
        ),
        (
            lambda saved: saved["model"].update(continuing_subword_prefix="@@"),
            "component `model` must be .*Received: .*@@",
        ),
        (lambda saved: saved.update(model={"type": "Unigram"}), "component `model` must be a Word"),
        (
            lambda saved: saved["post_processor"]["single"].pop(),
            "component `post_processor` must be",
        ),
        (lambda saved: saved.update(decoder={"type": "Fuse"}), "component `decoder` must be"),
        (
            lambda saved: saved.update(truncation={
                "max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Left"}),
            "component `truncation` must cut a text at its end.*'Left'",
        ),
        (
            lambda saved: saved.update(padding={
                "strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None,
                "pad_id": 1, "pad_type_id": 0, "pad_token": "[UNK]"}),
            r"component `padding` must pad with the id 0 .*pad_id=1, pad_token='\[UNK\]'",
        ),
        (
            lambda saved: saved["added_tokens"].append({**LATER, "id": 500}),
            "follow it without a gap. Received: 500 for '<a>'",
        ),
        (
            lambda saved: saved["model"]["vocab"].update(low=500),
            'from 0 without a gap.* Received: 91 for "Low" instead of 90',
        ),
        (
            lambda saved: saved["model"]["vocab"].update(added=len(saved["model"]["vocab"])),
            "tokenizer.json and vocab.txt must have the same tokens",
        ),
    ],
)  # fmt: skip
def test_unsupported_components_are_refused(change, message, tmp_path):
    folder = write(tmp_path / "one", **change_whole(change)(tmp_path))
    with pytest.raises(ValueError, match=message):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    "files, message",
    [
        ({"tokenizer_config": {"tokenizer_class": "BertJapaneseTokenizer"}},
         "tokenizer_config.json: the `tokenizer_class` .* be BertTokenizer. Received: 'BertJap"),
        ({"config": {"tokenizer_class": "BertJapaneseTokenizer"}}, "config.json: the `tokenizer_"),
        ({"tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast"}}, "must be BertTok"),
        ({"tokenizer_config": {"auto_map": {"AutoTokenizer": ["a.B", None]}}}, "`auto_map` must"),
        ({"tokenizer_config": {"split_special_tokens": True}}, "`split_special_tokens` must be F"),
        ({"tokenizer_config": {"truncation_side": "left"}}, "`truncation_side` must be 'right'"),
        ({"tokenizer_config": {"do_basic_tokenize": False}}, "`do_basic_tokenize` must be True"),
        ({"tokenizer_config": {"do_lower_case": False, "never_split": ["[CLS]", "New York"]}},
         "`never_split` must be None. Received: .'New York'."),
        ({"tokenizer_config": {"do_lower_case": True, "bos_token": "<s>"}},
         "special token must be in the vocabulary, or have an id .*Received: bos_token='<s>'"),
        ({"tokenizer_config": {"sep_token": "[CLS]"}}, "five different names"),
        ({"tokenizer_config": {"mask_token": "low"}, "special_tokens_map": {"mask_token": "er"}},
         "must agree on `mask_token`. Received: 'low' and 'er'"),
        ({"tokenizer_config": {"do_lower_case": False,
                               "added_tokens_decoder": {"500": {"content": "<a>"}}}},
         "follow it without a gap. Received: 500 for '<a>'"),
        ({"tokenizer_config": {"added_tokens_decoder": {"0": {"content": "[PAD]"}}},
          "added_tokens": {"[PAD]": 1}}, "must agree on the token '.PAD.'. Received: id=0 and 1"),
        ({"tokenizer_config": {"added_tokens_decoder": {"0": {"content": "[PAD]"}}},
          "added_tokens": {"<a>": 1}}, "in `added_tokens_decoder` of .*Received: '<a>' of added"),
        ({"tokenizer_config": {}}, "must agree on `do_lower_case`; state it .*lacks the key"),
        ({"vocab": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"]}, r"must hold .*without \[MASK\]"),
        ({"vocab": [*SPECIAL, "a", "b", "a"]}, "vocab.txt:8: .*a token of line 6, 'a'"),
        ({"vocab": [*SPECIAL, "a", "", "b"]}, "vocab.txt:7: .*an empty line"),
    ],
)  # fmt: skip
def test_unsupported_and_conflicting_settings_are_refused(files, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_tokenizer(write(tmp_path / "one", **files))


def test_tokenizer_json_must_agree_with_settings(tmp_path):
    plain = write(tmp_path / "plain", tokenizer_config={"do_lower_case": False})
    peer(plain).save_pretrained(tmp_path / "whole")
    folder = tmp_path / "whole"
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    load_tokenizer(folder)
    for key, value in (
        ("do_lower_case", True), ("strip_accents", True), ("tokenize_chinese_chars", False),
    ):  # fmt: skip
        (folder / "tokenizer_config.json").write_text(json.dumps({**settings, key: value}))
        with pytest.raises(ValueError, match=f"must agree on `{key}`; state it in.* says {value}"):
            load_tokenizer(folder)
    (folder / "tokenizer_config.json").unlink()
    assert not load_tokenizer(folder).lowercase


def test_old_tokenizer_json_and_generic_class_are_read(tmp_path):
    folder = write(tmp_path / "plain", tokenizer_config={"do_lower_case": False})
    peer(folder).save_pretrained(tmp_path / "whole")
    folder = tmp_path / "whole"
    saved = json.loads((folder / "tokenizer.json").read_text())
    del saved["model"]["type"]
    (folder / "tokenizer.json").write_text(json.dumps(saved))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = load_tokenizer(folder)
    assert not ours.lowercase
    agree(ours, peer(folder))
    saved["post_processor"] = None
    (folder / "tokenizer.json").write_text(json.dumps(saved))
    with pytest.raises(ValueError, match="`post_processor` must put special tokens around"):
        load_tokenizer(folder)


def test_unsupported_gpt2_components_are_refused(gpt2, tmp_path):
    folder, pieces = gpt2()
    peer(folder).save_pretrained(tmp_path / "whole")
    folder = tmp_path / "whole"
    good = json.loads((folder / "tokenizer.json").read_text())
    template = {"type": "TemplateProcessing", "pair": [{"Sequence": {"id": "A", "type_id": 0}}]}
    template["single"] = [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}]
    template["special_tokens"] = {
        "<|endoftext|>": {"id": "<|endoftext|>", "ids": [len(pieces) - 1],
                          "tokens": ["<|endoftext|>"]}
    }  # fmt: skip
    for change, message in (
        ({"normalizer": {"type": "NFKC"}}, "component `normalizer` must be null"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "`pre_tokenizer` must be .*ByteLevel"),
        ({"model": {**good["model"], "ignore_merges": True}}, "component `model` must be"),
        ({"model": {**good["model"], "unk_token": "low"}}, "component `model` must be"),
        ({"post_processor": template}, "`post_processor` must put no token around a text"),
    ):
        (folder / "tokenizer.json").write_text(json.dumps({**good, **change}))
        with pytest.raises(ValueError, match=message):
            load_tokenizer(folder)
    (folder / "tokenizer.json").write_text(json.dumps(good))
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(tmp_path / "gpt2" / name, folder / name)
    assert load_tokenizer(folder).get_config() == load_tokenizer(tmp_path / "gpt2").get_config()
    with open(folder / "merges.txt", "a") as file:
        file.write("l o\n")
    with pytest.raises(ValueError, match="tokenizer.json and vocab.json with merges.txt must have"):
        load_tokenizer(folder)
    (folder / "merges.txt").unlink()
    for settings, message in (
        ({"add_bos_token": True}, "`add_bos_token` must be False"),
        ({"add_prefix_space": True}, "must agree on `add_prefix_space`"),
        ({"tokenizer_class": "RobertaTokenizer"}, "must be GPT2Tokenizer. Received: 'RobertaT"),
    ):
        (folder / "tokenizer.json").write_text(json.dumps(good))
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        with pytest.raises(ValueError, match=message):
            load_tokenizer(folder)


def test_padding_token_of_tokenizer_json_is_used(gpt2, tmp_path):
    folder, pieces = gpt2(tokenizer_config={})
    peer(folder).save_pretrained(tmp_path / "whole")
    folder = tmp_path / "whole"
    saved = json.loads((folder / "tokenizer.json").read_text())
    saved["padding"] = {
        "strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": None,
        "pad_id": len(pieces) - 1, "pad_type_id": 0, "pad_token": "<|endoftext|>",
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(saved))
    ours = load_tokenizer(folder)
    assert ours.pad_id == len(pieces) - 1
    packed = ours.unframed().pack(["low", "low lower"])["token_ids"]
    assert packed[0, -1] == len(pieces) - 1
    assert ours.detokenize(packed[0]) == "low"


def test_byte_order_mark_and_crlf_are_read_and_length_warns(tmp_path):
    folder = write(tmp_path / "one", config={"max_position_embeddings": 512})
    text = "\r\n".join([*vocabulary(), "", ""])
    (folder / "vocab.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert load_tokenizer(folder).vocabulary == vocabulary()
    settings = {"do_lower_case": False, "model_max_length": 256}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.warns(UserWarning, match="limits texts to 256 tokens.* `max_length=256`"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("tokenizer_config", [], "it must hold an object"),
        ("tokenizer_config", {"do_lower_case": None}, "`do_lower_case` must be true or false"),
        ("tokenizer_config", {"strip_accents": 1}, "`strip_accents` must be true or false or null"),
        ("tokenizer_config", {"tokenizer_class": 3}, "`tokenizer_class` must be text or null"),
        ("tokenizer_config", {"model_max_length": "9"}, "`model_max_length` must be a number"),
        ("tokenizer_config", {"never_split": "[CLS]"}, "`never_split` must be a list or null"),
        ("tokenizer_config", {"pad_token": 0}, "`pad_token` must be text or an object or null"),
        ("tokenizer_config", {"pad_token": {"lstrip": True}}, "`pad_token.content` must be text"),
        ("tokenizer_config", {"pad_token": ""}, "An added token needs its own content"),
        ("tokenizer_config", {"added_tokens_decoder": []}, "`added_tokens_decoder` must be an obj"),
        ("tokenizer_config", {"added_tokens_decoder": {"-2": {"content": "a"}}},
         "a key of `added_tokens_decoder` must be an id. Received: '-2'"),
        ("tokenizer_config", {"added_tokens_decoder": {"1": {"content": 1}}},
         "`added_tokens_decoder.1.content` must be text"),
        ("tokenizer_config", {"additional_special_tokens": ["a", None]},
         r"`additional_special_tokens\[1\]` must be text or an object"),
        ("special_tokens_map", {"mask_token": ["a"]}, "`mask_token` must be text or an object"),
        ("special_tokens_map", 3, "it must hold an object"),
        ("added_tokens", {"<a>": "9"}, "`<a>` must be a whole number"),
        ("added_tokens", {"<a>": -2}, "`<a>` must be a whole number, 0 or more"),
        ("config", {"tokenizer_class": []}, "`tokenizer_class` must be text or null"),
        ("tokenizer", {}, "`model` must be an object. Received: no such key"),
        ("tokenizer", {"model": {"type": ["BPE"]}}, "`model` must be a WordPiece or BPE"),
        ("tokenizer", {"model": {"type": "BPE", "vocab": [], "merges": []}}, "`model.vocab` must"),
        ("tokenizer", {"model": {"type": "BPE", "vocab": {"a": 2**31}, "merges": []}},
         "`model.vocab.a` must be a whole number"),
    ],
)  # fmt: skip
def test_json_values_of_wrong_type_are_refused(name, content, message, tmp_path):
    folder = write(tmp_path / "one", **{name: content})
    with pytest.raises(ValueError, match=f"{folder / name}.json: .*{message}"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    "name", ["tokenizer_config.json", "tokenizer.json", "vocab.txt", "added_tokens.json"]
)
def test_broken_links_are_refused(name, tmp_path):
    folder = write(tmp_path / "one")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("nowhere")
    with pytest.raises(ValueError, match=f"No file .*{name}"):
        load_tokenizer(folder)


def hub_tokenizer(**changes):
    """Saves a `HubTokenizer` with other settings; the prefix `json_` means settings of its JSON."""
    saved = json.loads(WordPiece([*SPECIAL, "low"])._tokenizer.to_str())
    saved |= {key.removeprefix("json_"): value for key, value in changes.items() if "json_" in key}
    special = dict(zip(("pad_id", "unk_id", "cls_id", "sep_id"), range(4), strict=True))
    settings = {"tokenizer_json": json.dumps(saved), "special": special, "between": 1}
    settings |= {"has_segments": True}
    settings |= {key: value for key, value in changes.items() if "json_" not in key}
    return {"model": {"type": "HubTokenizer", "settings": settings}}


BPE = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0], ["b", -1.0]]}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"special": {"pad_id": -2, "sep_id": 0}}, "`model.settings.special.pad_id` must be a"),
        ({"special": {"pad_id": 0, "sep_id": 6}}, "must hold ids below 6, .* Received: sep_id=6"),
        ({"special": {"pad_id": 0, "sep_id": 1, "end_id": 2}}, "by the names pad_id, .*end_id=2"),
        ({"special": [0, 1]}, "`model.settings.special` must be an object"),
        ({"between": 0}, "`model.settings.between` must be a whole number, 1 or more"),
        ({"has_segments": 1}, "`model.settings.has_segments` must be true or false"),
        ({"tokenizer_json": "{"}, "`tokenizer_json` must be JSON"),
        ({"tokenizer_json": "[" * 100_000}, "`tokenizer_json` must be JSON. .*hundreds of nested"),
        ({"tokenizer_json": "[]"}, "`tokenizer_json`: it must hold an object"),
        ({"json_model": {"type": "WordLevel", "vocab": {}}}, "`model.type` must be one of"),
        ({"json_model": {**BPE, "vocab": {"a": 0, "b": 2**31}}}, "`model.vocab.b` must be a whole"),
        ({"json_model": {**BPE, "vocab": {"a": 0, "b": 0}}}, "each id once"),
        ({"json_model": {**BPE, "vocab": {"a": 0, "b": 7}}}, "without a gap"),
        ({"json_model": {**BPE, "dropout": 0.5}}, "`model.dropout` must be null"),
        ({"json_model": {**BPE, "unk_token": "[UNK]"}}, "must have its `unk_token` in its vocab"),
        ({"json_model": {**BPE, "merges": [["a", "c"]]}}, "must be a tokenizer of the package"),
        ({"json_model": {**UNIGRAM, "unk_id": 9}}, "must be a tokenizer of the package"),
        ({"json_model": {**UNIGRAM, "vocab": [["a", 0.0], ["a", -1.0]]}, "json_added_tokens": []},
         "without a gap"),
        ({"json_normalizer": {"type": "Nothing"}}, "must be a tokenizer of the package"),
        ({"json_padding": {"strategy": "BatchLongest"}}, "`padding` must be null"),
        ({"json_added_tokens": [{"id": 9, "content": "<a>", "single_word": False, "lstrip": False,
                                 "rstrip": False, "normalized": False, "special": True}]},
         "follow it without a gap. Received: 9 for '<a>'"),
    ],
)  # fmt: skip
def test_damaged_keras_hub_tokenizers_are_refused(changes, message, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(hub_tokenizer()))
    assert load_tokenizer(tmp_path).tokenize("low") == ["low"]
    path.write_text(json.dumps(hub_tokenizer(**changes)))
    for load in (HubTokenizer.load, lambda file: load_tokenizer(file.parent)):
        with pytest.raises(ValueError, match=f"^{path}: .*{message}"):
            load(path)
