"""Small measurements run, and their peers are timed in turn."""

import dataclasses
import json

import pytest

import keras_plm
from benchmarks.__main__ import main
from benchmarks.speed.inputs import Inputs, generated_sentences
from benchmarks.speed.measurements import attention as speed_attention
from benchmarks.speed.measurements import bert as speed_bert
from benchmarks.speed.measurements import coreference as speed_coreference
from benchmarks.speed.measurements import elmo as speed_elmo
from benchmarks.speed.measurements import gpt as speed_gpt
from benchmarks.speed.measurements import gpu as speed_gpu
from benchmarks.speed.measurements import memory as speed_memory
from benchmarks.speed.measurements import roles as speed_roles
from benchmarks.speed.measurements import transfer as speed_transfer
from benchmarks.speed.measurements import translator as speed_translator
from benchmarks.speed.peak import peak_of
from benchmarks.speed.registry import MEASUREMENTS
from benchmarks.speed.settings import SpeedSettings
from benchmarks.speed.tables import speed_markdown
from keras_plm.models import BERT, BERT_SIZES
from keras_plm.tokenizers import WordPiece
from tests.benchmarks.speed.timing import timed


@pytest.mark.full
@pytest.mark.backend_neutral
def test_attention_is_timed_against_its_peers(small, tmp_path):
    results, table = timed(tmp_path, [*small, "--work", "attention"])
    assert list(results) == ["attention infer 2x3x5x4", "attention train 2x3x5x4"]
    for name, work in results.items():
        ours, *peers = reversed(work["implementations"])
        assert ours == speed_attention.OURS and speed_attention.KERAS in peers
        assert work["implementations"][ours]["per_second"] > 0
        for peer in peers:
            assert work["implementations"][ours]["ratios"][peer] > 0
            assert f"| {name}: tokens | {peer} |" in table
    again, _ = timed(tmp_path, [*small, "--work", "attention"])
    assert again == results  # nothing is timed twice


@pytest.mark.full
@pytest.mark.backend_neutral
def test_decoding_is_timed_with_and_without_cache(small, tmp_path):
    results, table = timed(tmp_path, [*small, "--work", "decode"])
    assert list(results) == ["decode greedy tiny", "decode beam-4 tiny"]
    for name, work in results.items():
        cached = work["implementations"][speed_translator.CACHED]
        assert cached["ratios"][speed_translator.UNCACHED] > 0
        assert f"| {name}: sentences | {speed_translator.UNCACHED} |" in table


@pytest.mark.full
@pytest.mark.backend_neutral
def test_translation_trains_in_both_precisions(small, tmp_path):
    results, table = timed(tmp_path, [*small, "--work", "translate"])
    rows = results["translate tiny"]["implementations"]
    assert {speed_translator.OURS, speed_translator.OURS_HALF} <= set(rows)
    for way, peer in (("", speed_translator.TORCH), (", bfloat16", speed_translator.TORCH_HALF)):
        assert (f"| translate tiny{way}: tokens | {peer} |" in table) == (peer in rows)


@pytest.mark.full
@pytest.mark.backend_neutral
def test_no_half_flag_times_only_float32(small, tmp_path):
    flags = [*small, "--work", "translate"]
    alone, _ = timed(tmp_path, [*flags, "--no-half"])
    half = {speed_translator.OURS_HALF, speed_translator.TORCH_HALF}
    assert speed_translator.OURS in alone["translate tiny"]["implementations"]
    assert not half & set(alone["translate tiny"]["implementations"])
    both, _ = timed(tmp_path, flags)  # results with fewer implementations are not enough
    assert speed_translator.OURS_HALF in both["translate tiny"]["implementations"]
    assert timed(tmp_path, [*flags, "--no-half"])[0] == both


@pytest.mark.full
@pytest.mark.backend_neutral
def test_word_models_are_timed_against_their_peers(tmp_path, monkeypatch):
    pytest.importorskip("gensim")
    pytest.importorskip("nltk")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("benchmarks.speed.measurements.words.TRAINED", ("cbow",))
    monkeypatch.setattr("benchmarks.speed.run.peak_of", lambda *arguments: 123.0)
    out = tmp_path / "speed.json"
    flags = ["--work", "ngram,vectors,vector_file", "--words", "5000", "--rows", "200"]
    assert main(["speed", *flags, "--repeats", "1", "--out", str(out)]) == 0
    results = json.loads(out.read_text())["results"]
    assert list(results) == ["ngram count", "ngram perplexity", "train cbow", "read glove file",
                             "read glove file, one word in 100"]  # fmt: skip
    for work in results.values():
        assert all(row["peak_mb"] == 123.0 for row in work["implementations"].values())
    settings = SpeedSettings(words=5000, work="ngram")
    assert peak_of("ngram count", "keras_plm", settings, Inputs(tmp_path)) > 50
    table = speed_markdown(out)
    assert "| train cbow: words | gensim |" in table and " MB" in table


@pytest.mark.full
@pytest.mark.backend_neutral
def test_elmo_parts_are_timed_against_their_peers(small_elmo, tmp_path):
    flags = ["--repeats", "1", "--steps", "1", "--sentences", "4", "--elmos", "small"]
    results, table = timed(tmp_path, [*flags, "--work", "lstm,bilm,encode_words,reader"])
    assert list(results) == [
        "train biLSTM 5/3, 2x3",
        "pre-train ELMo 5/3, 2x3",
        "encode sentences, ELMo small",
        "train reader 2x3x5",
    ]
    rows = results["train biLSTM 5/3, 2x3"]["implementations"][speed_elmo.OURS]
    assert rows["ratios"][speed_elmo.LOOP] > 0
    cached = results["encode sentences, ELMo small"]["implementations"][speed_elmo.CACHED]
    assert cached["ratios"][speed_elmo.OURS] > 0
    assert "| train reader 2x3x5: words | keras.layers.LSTM |" in table
    assert "| encode sentences, ELMo small, cached words: sentences | keras_plm |" in table
    assert "| train biLSTM 5/3, 2x3, bfloat16: words | torch.nn.LSTM |" in table
    assert "| train biLSTM 5/3, 2x3, bfloat16: words | torch.nn.LSTM, bfloat16 |" in table


@pytest.mark.full
@pytest.mark.backend_neutral
def test_gpt_is_timed_against_its_peers(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    size = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 32}
    monkeypatch.setitem(speed_gpt.GPT_SIZES, "tiny", size)
    for name, value in (("VOCABULARY", 50), ("WIDTH", 8), ("ROWS", 2), ("TOKENS", 16)):
        monkeypatch.setattr(speed_gpt, name, value)
    monkeypatch.setattr("benchmarks.speed.run.peak_of", lambda *arguments: 123.0)
    out = tmp_path / "speed.json"
    flags = ["--work", "causal_lm,gpt_loss,write", "--sizes", "tiny", "--steps", "1"]
    flags += ["--repeats", "1", "--written", "3", "--no-half", "--out", str(out)]
    assert main(["speed", *flags]) == 0
    results = json.loads(out.read_text())["results"]
    assert list(results) == ["train GPT tiny, 8x128", "loss of 2x16x50", "write, GPT tiny"]
    peers = {"train GPT tiny, 8x128": speed_gpt.PEER, "write, GPT tiny": speed_gpt.CACHED}
    for work, peer in peers.items():
        assert results[work]["implementations"][speed_gpt.OURS]["ratios"][peer] > 0
    assert results["loss of 2x16x50"]["implementations"][speed_gpt.CHUNKS]["peak_mb"] == 123.0
    table = speed_markdown(out)
    assert "| train GPT tiny, 8x128: tokens | transformers GPT |" in table and "MB" in table


@pytest.mark.full
@pytest.mark.backend_neutral
def test_memory_saving_variants_are_timed(tmp_path, monkeypatch):
    size = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
    monkeypatch.setitem(BERT_SIZES, "medium", size)
    for name, value in (("VOCABULARY", 1010), ("ROWS", 4), ("LENGTH", 16)):
        monkeypatch.setattr(speed_memory, name, value)
    monkeypatch.setattr(speed_bert, "VOCABULARY", 1010)
    monkeypatch.setattr("benchmarks.speed.run.peak_of", lambda *arguments: 123.0)
    results, table = timed(tmp_path, ["--work", "memory", "--repeats", "1", "--steps", "1"])
    (work,) = results.values()
    assert list(work["implementations"]) == list(speed_memory.VARIANTS)
    for variant, row in work["implementations"].items():
        assert row["peak_mb"] == 123.0 and (variant == speed_memory.PLAIN or row["ratios"])
    assert ", bfloat16, 4 micro-batches, remat: tokens | float32 |" in table
    assert ", 4x16, float32, a quarter of the batch: tokens | float32 |" in table


@pytest.mark.full
@pytest.mark.backend_neutral
def test_work_on_a_gpu_is_timed_against_its_peer(tmp_path, monkeypatch, capsys):
    """The test runs without a GPU, with small sizes and without compilation."""
    pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    assert main(["speed", "--suite", "gpu"]) == 2
    assert "need a GPU that JAX or torch detects" in capsys.readouterr().err
    assert main(["speed", "--suite", "tpu"]) == 2
    assert "Unknown suite 'tpu'" in capsys.readouterr().err
    size = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
    for sizes in (BERT_SIZES, speed_gpt.GPT_SIZES):
        monkeypatch.setitem(sizes, "base", size)
    elmo = {"units": 6, "projection_dim": 4, "filters": [[1, 3], [2, 4]], "num_highway": 1}
    monkeypatch.setitem(speed_elmo.ELMO_SIZES, "original", elmo)
    monkeypatch.setattr(speed_elmo, "PROJECTED", [(2, 5)])
    monkeypatch.setattr(speed_gpu, "SHAPES", ((2, 16),))
    monkeypatch.setattr(speed_gpu, "SIDE", 16)
    monkeypatch.setattr(speed_gpu, "BATCH", 4)
    monkeypatch.setattr(speed_gpu, "PROMPTS", ((2, 5),))
    names = [name for name in MEASUREMENTS if name.startswith("gpu_")]
    for name in names:
        without = dataclasses.replace(MEASUREMENTS[name], check=None)
        monkeypatch.setitem(MEASUREMENTS, name, without)
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    options = ["--suite", "gpu", "--repeats", "1", "--steps", "1", "--written", "3"]
    results, table = timed(tmp_path, options)
    assert list(results) == [
        "pre-train BERT base with dropout, 2x16",
        "pre-train GPT base with dropout, 2x16",
        "fine-tune BERT base with dropout, rows of 8 to 64 tokens",
        "write, GPT base, 2 prompts of 5",
        "pre-train ELMo 6/4, 2x5",
    ]
    for name, work in list(results.items())[:4]:
        ours = work["implementations"][speed_gpu.OURS_HALF]
        assert ours["ratios"].keys() == {speed_gpu.EAGER, speed_gpu.COMPILED}
        compiled = work["implementations"][speed_gpu.OURS_COMPILED]
        assert compiled["ratios"].keys() == {*ours["ratios"], speed_gpu.OURS_HALF}
        assert "first_seconds" in compiled
        assert ("fraction_of_matrix_rate" in ours) == name.startswith("pre-train")
    assert (
        "| pre-train BERT base with dropout, 2x16, bfloat16: tokens | transformers, sdpa |" in table
    )


@pytest.mark.full
@pytest.mark.backend_neutral
def test_data_preparation_is_timed_against_its_peer(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr("benchmarks.speed.run.peak_of", lambda *arguments: 123.0)
    flags = ["--work", "prepare", "--words", "2000"]
    results, table = timed(tmp_path, [*flags, "--repeats", "1"])
    assert list(results) == ["prepare 0.012 MB", "prepare 0.12 MB"]
    ours = results["prepare 0.12 MB"]["implementations"]["keras_plm"]
    assert ours["ratios"]["transformers tokenizer"] > 0 and ours["peak_mb"] == 123.0
    assert "| prepare 0.12 MB: MB | transformers tokenizer |" in table and "MB" in table


@pytest.mark.full
def test_squad_answers_are_timed_against_their_peers(tmp_path, monkeypatch):
    monkeypatch.setitem(BERT_SIZES, "mini", {**BERT_SIZES["tiny"], "num_layers": 1})
    flags = ["--repeats", "1", "--sentences", "8", "--sizes", "mini", "--no-half"]
    results, table = timed(tmp_path, [*flags, "--work", "squad_rows,squad_answers"])
    assert list(results) == ["squad rows", "squad answers mini"]
    for name, work in results.items():
        assert work["implementations"]["keras_plm"]["ratios"]["transformers"] > 0
        assert f"| {name}: questions |" in table


@pytest.mark.full
@pytest.mark.backend_neutral
def test_coreference_is_timed_next_to_tagging(tmp_path, monkeypatch):
    monkeypatch.setattr(speed_coreference, "_cases", lambda settings: {"75 words": {"words": 75}})
    results, table = timed(tmp_path, ["--suite", "coreference", "--repeats", "1"])
    assert list(results) == ["resolve 75 words", "train on 75 words"]
    for name, work in results.items():
        assert work["implementations"]["keras_plm"]["ratios"][speed_coreference.TAGGER] > 0
        assert f"| {name}: words |" in table


@pytest.mark.full
@pytest.mark.backend_neutral
def test_roles_are_timed_next_to_tagging(tmp_path, monkeypatch):
    monkeypatch.setattr(speed_roles, "COUNT", 8)
    results, table = timed(tmp_path, ["--suite", "roles", "--repeats", "1"])
    assert list(results) == ["label roles of 8 predicates", "train on 8 predicates"]
    for name, work in results.items():
        assert work["implementations"]["keras_plm"]["ratios"][speed_roles.TAGGER] > 0
        assert f"| {name}: predicates |" in table


@pytest.mark.full
@pytest.mark.backend_neutral
def test_reading_features_is_timed(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("\n".join(generated_sentences(100)))
    tokenizer = WordPiece.train(tmp_path / "text.txt", 300)
    keras_plm.save(tmp_path / "bert", BERT(len(tokenizer), 4, 2, 8, 12), tokenizer)
    monkeypatch.setattr(speed_transfer, "ENCODER", tmp_path / "bert")
    flags = ["--repeats", "1", "--sentences", "16", "--work", "choices,probes,features,crf"]
    results, table = timed(tmp_path, flags)
    assert len(results) == 4 and all(f"| {name}: " in table for name in results)
    for work in results.values():
        ours = work["implementations"]["keras_plm"]
        assert min(ours["seconds"]) > 0 and all(ratio > 0 for ratio in ours["ratios"].values())
