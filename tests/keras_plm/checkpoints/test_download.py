"""Loading released models by name."""

import sys
import types

import pytest

import keras_plm
from keras_plm.checkpoints import load_bert, load_gpt, load_tokenizer, save_bert
from keras_plm.checkpoints.download import FILES, NAMES, find_folder
from keras_plm.checkpoints.tokenizer import ADDED, CONFIG, MAP, WHOLE
from keras_plm.models import BERT
from keras_plm.tokenizers import WordPiece
from tests.helpers.checks import assert_close

pytestmark = pytest.mark.backend_neutral

TOKENIZER = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"])


@pytest.fixture
def encoder():
    return BERT(13, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=12)


@pytest.fixture
def hub(monkeypatch):
    """`hub(answer)` replaces `huggingface_hub`; its `snapshot_download` is `answer`."""

    def install(answer):
        asked = []

        def snapshot_download(name, allow_patterns, local_files_only):
            asked.append((name, local_files_only, "pytorch_model*.bin" in allow_patterns))
            return str(answer(*asked[-1]))

        fake = types.SimpleNamespace(snapshot_download=snapshot_download)
        monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
        return asked

    return install


def test_a_cached_model_is_read_by_its_name(encoder, tmp_path, monkeypatch):
    """Uses the real package with a cache folder in its format."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    name = NAMES["bert_base_uncased"]
    folder = tmp_path / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    save_bert(folder / "snapshots" / ("0" * 40), encoder, TOKENIZER)
    for asked in ("bert_base_uncased", name):
        again, tokenizer = keras_plm.load(asked)
        assert_close(again.get_weights(), encoder.get_weights(), atol=0)
        assert tokenizer.vocabulary == TOKENIZER.vocabulary
    assert_close(load_bert(name).get_weights(), encoder.get_weights(), atol=0)
    assert len(load_tokenizer(name)) == 13
    with pytest.raises(ValueError, match="is not that of a GPT"):
        load_gpt(name)


def test_uncached_model_is_downloaded(encoder, tmp_path, hub):
    save_bert(tmp_path / "there", encoder)

    def answer(name, here, old):
        if here:
            raise FileNotFoundError("not in the cache")
        return tmp_path / "there"

    asked = hub(answer)
    assert find_folder("someone/model") == tmp_path / "there"
    assert asked == [("someone/model", True, False), ("someone/model", False, False)]


@pytest.mark.parametrize("part", [None, "vocab.json"])
@pytest.mark.parametrize("online", [True, False])
def test_a_cached_model_is_completed(encoder, tmp_path, hub, online, part, capsys):
    save_bert(tmp_path / "cached", encoder)
    if part is not None:  # without merges.txt, no tokenizer
        (tmp_path / "cached" / part).write_text("{}")
    save_bert(tmp_path / "there", encoder, TOKENIZER)

    def answer(name, here, old):
        if not here and not online:
            raise ConnectionError("no network")
        return tmp_path / ("cached" if here else "there")

    asked = hub(answer)
    assert find_folder("someone/model") == tmp_path / ("there" if online else "cached")
    assert "has no tokenizer of 'someone/model': asking huggingface.co" in capsys.readouterr().err
    assert asked == [("someone/model", True, False), ("someone/model", False, False)]


def test_all_files_of_a_tokenizer_are_fetched():
    assert {CONFIG, MAP, ADDED, WHOLE, "vocab.txt", "vocab.json", "merges.txt"} <= {*FILES}


def test_torch_files_are_downloaded_if_safetensors_are_missing(tmp_path, hub):
    (tmp_path / "config.json").write_text("{}")

    def answer(name, here, old):
        if here:
            raise FileNotFoundError("not in the cache")
        if old:
            (tmp_path / "pytorch_model.bin").write_bytes(b"")
        return tmp_path

    asked = hub(answer)
    assert find_folder("bert_mini_uncased") == tmp_path
    name = "google/bert_uncased_L-4_H-256_A-4"
    assert asked == [(name, True, False), (name, False, False), (name, False, True)]


def test_unavailable_models_are_refused_with_a_reason(tmp_path, hub, monkeypatch):
    def answer(name, here, old):
        raise ConnectionError("no network")

    hub(answer)
    with pytest.raises(
        ValueError, match="no folder 'a/b' on.*not in .*'s cache and.*Received: no netw"
    ):
        keras_plm.load("a/b")
    hub(lambda *asked: tmp_path)
    with pytest.raises(ValueError, match="neither model.safetensors nor pytorch_model.bin"):
        load_bert("a/b")
    with pytest.raises(ValueError, match="No such folder.*Did you mean 'bert_base_uncased'"):
        keras_plm.load("bert_bse_uncased")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="'a/b', and finding.*huggingface_hub: pip install"):
        load_bert("a/b")


def test_paths_are_not_looked_up_as_model_names(tmp_path, hub, monkeypatch):
    """A path is not looked up as a name."""
    asked = hub(lambda *asked: tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for path in ("runs/mine", "./mine", "../a/b", "a/b/c", tmp_path / "mine", "mine"):
        with pytest.raises(ValueError, match="No such folder"):
            find_folder(path)
    assert not asked
    assert find_folder("runs") == tmp_path.__class__("runs")


def test_urls_are_refused(hub):
    asked = hub(lambda *asked: "/nowhere")
    for address in ("http://host/model", "https://host/a.zip", "file:///etc", "s3://a/b"):
        for read in (keras_plm.load, load_bert, load_gpt, load_tokenizer, find_folder):
            with pytest.raises(ValueError, match=r"download its files into a folder.*Received"):
                read(address)
    assert not asked


def test_file_names_are_not_requested_from_the_hub(hub):
    asked = hub(lambda *asked: "/nowhere")
    for path in (
        "nowhere/model.safetensors",
        "nowhere/a.keras",
        "no where/b",
        "ünder/way",
        "a\0b/c",
    ):
        with pytest.raises(ValueError, match="No such folder"):
            find_folder(path)
    assert not asked


def test_network_request_is_announced_on_stderr(hub, tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    for name in ("model.safetensors", "vocab.txt"):
        (tmp_path / name).write_bytes(b"")
    hub(lambda *asked: tmp_path)
    find_folder("someone/model")
    assert capsys.readouterr().err == ""

    def answer(name, here, old):
        raise ConnectionError("no network")

    hub(answer)
    with pytest.raises(ValueError, match="There is no folder 'wieghts/bert_mini' on this machine"):
        find_folder("wieghts/bert_mini")
    line = capsys.readouterr().err
    assert "No folder 'wieghts/bert_mini' on disk" in line and "asking huggingface.co" in line
