"""The command `speed`: small measurements run on every backend, and peers do the same work."""

import dataclasses
import json
import re
import runpy
import sys

import keras
import numpy as np
import pytest

import keras_plm
from benchmarks.__main__ import main
from benchmarks.checks import scaling
from benchmarks.speed import measurements, registry
from benchmarks.speed.inputs import Inputs, generated_sentences
from benchmarks.speed.measurements import attention as speed_attention
from benchmarks.speed.measurements import bert as speed_bert
from benchmarks.speed.measurements import coreference as speed_coreference
from benchmarks.speed.measurements import elmo as speed_elmo
from benchmarks.speed.measurements import gpt as speed_gpt
from benchmarks.speed.measurements import gpu as speed_gpu
from benchmarks.speed.measurements import memory as speed_memory
from benchmarks.speed.measurements import squad as speed_squad
from benchmarks.speed.measurements import transfer as speed_transfer
from benchmarks.speed.measurements import translator as speed_translator
from benchmarks.speed.peak import peak_of
from benchmarks.speed.registry import MEASUREMENTS, cases
from benchmarks.speed.settings import SpeedSettings
from benchmarks.speed.tables import speed_markdown, speed_tables
from keras_plm.checkpoints import load_bert, save_gpt
from keras_plm.decoding import greedy
from keras_plm.layers import (
    MultiHeadAttention,
    ProjectedLSTM,
    TransformerBlock,
    multi_head_attention,
)
from keras_plm.layers._fused.attention import fused_attention, fused_is_slow
from keras_plm.models import BERT, BERT_SIZES, GPT, Transformer
from keras_plm.pretraining import MaskedLM
from keras_plm.tokenizers import WordPiece
from tests import ROOT
from tests.helpers.checks import assert_close, to_numpy


@pytest.fixture
def small(monkeypatch):
    """Returns flags for sizes at which the work takes no time."""
    size = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
    monkeypatch.setitem(speed_translator.TRANSFORMER_SIZES, "tiny", {**size, "dropout": 0.1})
    for name, value in {"VOCABULARY": 13, "SOURCES": 3, "ROWS": 3}.items():
        monkeypatch.setattr(speed_translator, name, value)
    flags = ["--repeats", "1", "--steps", "1", "--shapes", "2x3x5x4"]
    return [*flags, "--translators", "tiny", "--written", "3"]


def timed(tmp_path, flags):
    out = tmp_path / "speed.json"
    assert main(["speed", *flags, "--out", str(out)]) == 0
    return json.loads(out.read_text())["results"], speed_markdown(out)


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


@pytest.mark.compiles
def test_timed_decoding_runs_all_steps_for_every_text(small):
    """Random weights never generate the end token."""
    written = []

    def decode(*arguments, **options):
        written.append(greedy(*arguments, **options)[0])

    comparison = speed_translator.decode(SpeedSettings(written=5), None, "tiny", decode)
    comparison.implementations[speed_translator.CACHED]()()
    assert written[0].shape == (comparison.amount, 5)
    assert (written[0] != speed_translator.NEVER).all()


@pytest.mark.full
@pytest.mark.parametrize("heads, head_dim", [(3, 5), (2, 7)])
def test_keras_attention_has_an_equal_number_of_weights(heads, head_dim):
    x = np.zeros((1, 2, heads * head_dim), "float32")
    ours = MultiHeadAttention(heads, heads * head_dim)
    theirs = keras.layers.MultiHeadAttention(heads, head_dim)
    ours(query=x), theirs(x, x)
    assert ours.count_params() == theirs.count_params()


@pytest.mark.full
def test_torch_transformer_peer_computes_equal_logits(small):
    """With our weights and embeddings, it computes our logits."""
    torch = pytest.importorskip("torch")
    size = {**speed_translator.TRANSFORMER_SIZES["tiny"], "dropout": 0.0}
    speed_translator.TRANSFORMER_SIZES["tiny"] = size
    model = Transformer(13, **size)
    rng = np.random.default_rng(0)
    source, target = rng.integers(4, 13, (2, 3, speed_translator.LONGEST))
    source[1, 5:] = speed_translator.PAD
    inputs = {"token_ids": source, "padding_mask": source > 0, "target_ids": target}
    model(inputs)
    for weight in model.weights:
        weight.assign(to_numpy(weight) + rng.normal(scale=0.1, size=weight.shape))

    peer = speed_translator.peer("tiny")

    def put(weight, *arrays):
        array = np.concatenate([to_numpy(a).T for a in arrays])
        weight.data.copy_(torch.from_numpy(array.copy()))

    def put_attention(theirs, ours):
        if ours.fused_projection:
            put(theirs.in_proj_weight, ours.query_key_value.kernel)
        else:
            put(theirs.in_proj_weight, *(x.kernel for x in (ours.query, ours.key, ours.value)))
        put(theirs.out_proj.weight, ours.output_projection.kernel)
        theirs.in_proj_bias.data.zero_()
        theirs.out_proj.bias.data.zero_()

    def put_norm(theirs, ours):
        put(theirs.weight, ours.gamma)
        put(theirs.bias, ours.beta)
        theirs.eps = ours.epsilon

    peer.embedding.weight.data.copy_(
        torch.from_numpy(to_numpy(model.encoder.token_embedding.embeddings).copy())
    )
    stacks = peer.transformer.encoder, peer.transformer.decoder
    for stack, ours in zip(stacks, (model.encoder._stack, model._decoder), strict=True):
        for layer, block in zip(stack.layers, ours.blocks, strict=True):
            put_attention(layer.self_attn, block.attention)
            norms = [block.attention_norm, block.feed_forward_norm]
            if block.cross_attention is not None:
                put_attention(layer.multihead_attn, block.cross_attention)
                norms.insert(1, block.cross_norm)
            for i, norm in enumerate(norms, 1):
                put_norm(getattr(layer, f"norm{i}"), norm)
            for theirs, dense in (
                (layer.linear1, block.feed_forward.intermediate),
                (layer.linear2, block.feed_forward.output_projection),
            ):
                put(theirs.weight, dense.kernel)
                put(theirs.bias, dense.bias)
    peer.train()  # the timed mode
    with torch.no_grad():
        logits = peer(torch.from_numpy(source), torch.from_numpy(target))
    assert_close(to_numpy(model(inputs)), logits.numpy(), atol=1e-4)


@pytest.mark.compiles
@pytest.mark.parametrize("training, fused", [(False, 1), (None, 1), (True, 0)])
def test_dropout_disables_fused_attention_in_training(training, fused, monkeypatch):
    calls = []

    def spy(*arguments):
        calls.append(1)
        return fused_attention(*arguments)

    monkeypatch.setattr(multi_head_attention, "fused_attention", spy)
    x = np.ones((2, 3, 8), "float32")
    MultiHeadAttention(2, 8, dropout=0.1)(query=x, training=training)
    assert len(calls) == fused
    TransformerBlock(2, 8, 12, dropout=0.1)(x, training=training)
    assert len(calls) == 2 * fused


@pytest.mark.full
@pytest.mark.split_to("torch")
def test_fused_path_depends_on_precision_and_length(monkeypatch):
    """Full float32 is fused in training too; oneDNN's products are not."""
    torch = pytest.importorskip("torch")
    if keras.backend.backend() != "torch":
        pytest.skip("other backends have one path")
    few, many = torch.zeros(1, 128, 1, 1), torch.zeros(1, 512, 1, 1)
    if few.device.type == "cpu":
        assert not fused_is_slow(few, few, training=True)
        half = few.bfloat16()
        assert fused_is_slow(half, half, training=False)
        assert fused_is_slow(many.bfloat16(), many.bfloat16(), training=True)
        assert not fused_is_slow(many.bfloat16(), many.bfloat16(), training=False)
        torch.set_float32_matmul_precision("medium")
        try:
            assert fused_is_slow(few, few, training=True)
            assert not fused_is_slow(many, many, training=True)
        finally:
            torch.set_float32_matmul_precision("highest")


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "flags, match",
    [
        (["--shapes", "8x12x512"], "`shapes` must be four numbers"),
        (["--shapes", "8x12x512x0"], "Received: '8x12x512x0'"),
        (["--elmos", "large"], "`elmos` must be of tiny, mini, small"),
        (["--translators", "mini"], "`translators` must be of tiny, small"),
        (["--written", "0"], "`written` must be a whole number, 1 or more"),
        (["--words", "50"], "`words` must be a whole number, 2000 or more"),
        (["--sizes", "tiny,minni"], r"`sizes` must be of .*'minni'"),
        (["--work", "train,infr"], r"`work` must be of .*'infr'"),
        (["--repeats", "0"], "`repeats` must be a whole number, 1 or more"),
        (["--length", "1024"], "`length` must be .* at most 512"),
    ],
)
def test_speed_refuses_bad_flags_before_timing(flags, match, capsys):
    assert main(["speed", *flags]) == 2
    assert re.search(match, capsys.readouterr().err)


@pytest.mark.backend_neutral
def test_speed_files_of_earlier_versions_are_read():
    old = json.loads((ROOT / "benchmarks" / "results" / "speed.json").read_text())
    assert SpeedSettings(**old["settings"]).repeats == old["settings"]["repeats"]
    assert speed_markdown(ROOT / "benchmarks" / "results" / "speed.json").count("\n") == 13


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


@pytest.fixture
def small_elmo(monkeypatch):
    size = {"units": 5, "projection_dim": 3, "filters": [[1, 2], [2, 3]], "num_highway": 1}
    for name in ("small", "original"):
        monkeypatch.setitem(speed_elmo.ELMO_SIZES, name, size)
    monkeypatch.setattr(speed_elmo, "PROJECTED", [(2, 3)])
    monkeypatch.setattr(speed_elmo, "READERS", [(2, 3, 4, 5)])
    monkeypatch.setattr(speed_elmo, "VOCABULARY", 50)
    monkeypatch.setattr(speed_elmo, "SAMPLES", 7)


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
@pytest.mark.parametrize("clip", [0.1, 3.0])
def test_looped_lstm_peer_equals_projected_lstm(clip):
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
    layers = [kind(7, 3, clip, clip) for kind in (ProjectedLSTM, speed_elmo.LoopedLSTM)]
    outputs = [layer(x) for layer in layers]
    layers[1].set_weights(layers[0].get_weights())
    assert_close(layers[1](x), outputs[0])


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
    for work in (results["train GPT tiny, 8x128"], results["write, GPT tiny"]):
        assert work["implementations"][speed_gpt.OURS]["ratios"][speed_gpt.PEER] > 0
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


@pytest.mark.backend_neutral
def test_scaling_estimate_equals_a_hand_computed_example(tmp_path, capsys):
    model = MaskedLM(BERT(scaling.VOCABULARY, **BERT_SIZES["tiny"]))
    assert scaling.weights("tiny") == sum(int(np.prod(w.shape)) for w in model.trainable_weights)
    assert scaling.ring(4, 100.0, 50.0) == 3.0  # 2 * 3/4 * 100 / 50
    assert scaling.meshes("base", 8) == [(8, 1), (2, 4)]  # 12 heads
    card = scaling.Cluster(8, 1e12, 1e9, "")
    work = speed_bert.matrix_work("base", 128, "pretrain") * 256 * 128
    compute, messages = scaling.step("base", 128, (2, 4), card, 0.5)
    assert compute == pytest.approx(work / 4e12)
    of_gradients = 2 * (1 / 2) * scaling.weights("base") * 4 / 4 / 1e9
    of_blocks = 12 * 4 * 2 * (3 / 4) * (128 * 128 * 768 * 2) / 1e9
    assert messages == pytest.approx(of_gradients + of_blocks)
    with pytest.raises(ValueError, match="speed --work pretrain --sizes base"):
        scaling.check_scaling(tmp_path)
    row = {"implementations": {scaling.OURS: {"fraction_of_matrix_rate": 0.5}}}
    speed_file = {"device": "this", "backend": "torch", "results": {scaling.CASE: row}}
    (tmp_path / "speed.json").write_text(json.dumps(speed_file))
    scaling.check_scaling(tmp_path)
    assert "| BERT-large | 8 A100, NVLink | 1 x 8 |" in capsys.readouterr().out


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
def test_gpt_peer_computes_equal_loss(tmp_path, monkeypatch):
    """With our weights, the peer computes our losses."""
    pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    load_file = pytest.importorskip("safetensors.torch").load_file
    size = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 32}
    monkeypatch.setattr(speed_gpt, "VOCABULARY", 50)
    monkeypatch.setattr(speed_gpt, "GPT_SIZES", {"tiny": size})
    ours = GPT(50, **size, dropout=0.0)
    save_gpt(tmp_path, ours)
    theirs = speed_gpt.peer("tiny", dropout=0.0).eval()
    theirs.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False)
    ids = np.random.default_rng(0).integers(0, 50, (2, 9)).astype("int32")
    x = {"token_ids": ids[:, :-1], "padding_mask": ids[:, :-1] >= 0, "target_ids": ids[:, 1:]}
    mine = float(np.mean(to_numpy(speed_gpt.CausalLM(ours)(x))))
    batch = torch.from_numpy(ids).long()
    with torch.no_grad():
        loss = theirs(input_ids=batch, labels=batch).loss.item()
    assert loss == pytest.approx(mine, abs=1e-4)


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


@pytest.mark.full
def test_squad_peer_returns_equal_answers(tmp_path, monkeypatch):
    """With the same weights, the peer's own rows, batches and search give the same answers."""
    monkeypatch.setattr(speed_squad, "N_BEST", 384)  # random weights need more than a trained model
    transformers = pytest.importorskip("transformers")
    asked = speed_squad.questions(12)
    tokenizer = WordPiece.load(speed_squad.TOKENIZER)
    config = speed_squad.peer_config("tiny")
    config.vocab_size = len(tokenizer)
    transformers.set_seed(0)
    peer = transformers.BertForQuestionAnswering(config).eval()
    for weight in peer.parameters():
        weight.data *= 3  # separates the scores
    peer.save_pretrained(tmp_path)
    tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "vocab.txt").write_text("\n".join(tokenizer.vocabulary) + "\n")
    model = load_bert(tmp_path, head="span", tokenizer=tokenizer)
    found = model.predict(asked)
    assert len(set(found)) > 3
    theirs = speed_squad._peer_tokenizer()
    for sort in (False, True):
        assert speed_squad.peer_answers(peer, theirs, asked, sort) == found


TOY = '''"""A toy measurement."""

from benchmarks.speed.clock import Comparison
from benchmarks.speed.registry import Suite, measurement


@measurement(suite=Suite("toy", "Speed: Toys", {"repeats": 2}), unit="sums", peak_memory=True)
def toy_sums(settings, inputs):
    """Sums of numbers."""
    numbers = list(range(settings.words))

    def absent():
        raise ImportError("not installed")

    def large():
        raise RuntimeError("out of memory\\nmore")

    implementations = {
        "absent": absent,
        "large": large,
        "loop": lambda: lambda: [sum([n]) for n in numbers[: len(numbers) // 2]],
        "keras_plm": lambda: lambda: sum(numbers),
    }
    peers = {"keras_plm": ("loop", "absent", "large")}
    return Comparison(implementations, 1, peers, fractions={"loop": 1 / 2})


@measurement(suite=Suite("large", "Speed: Large toys", {}), unit="sums")
def toy_products(settings, inputs):
    """Products that do not fit."""

    def large():
        raise RuntimeError("out of memory\\nmore")

    return Comparison({"keras_plm": large}, 1, {})
'''


@pytest.mark.full
@pytest.mark.backend_neutral
def test_measurement_is_added_by_one_file(tmp_path, monkeypatch, capsys):
    """A new file of the package is found, runs by name and suite, and appears in a table."""
    monkeypatch.setattr(registry, "MEASUREMENTS", MEASUREMENTS | {})
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(measurements, "__path__", [*measurements.__path__, str(tmp_path)])
    monkeypatch.setattr("benchmarks.speed.run.peak_of", lambda *arguments: 123.0)
    monkeypatch.setattr("benchmarks.speed.settings.MEASUREMENTS", registry.MEASUREMENTS)
    measurements.load_all()
    del sys.modules["benchmarks.speed.measurements.toy"]
    results, table = timed(tmp_path, ["--suite", "toy", "--words", "2000"])
    shown = capsys.readouterr().out
    assert "absent left out: not installed" in shown and "large left out: out of memory\n" in shown
    rows = results["toy_sums"]["implementations"]
    assert list(rows) == ["loop", "keras_plm"] and len(rows["loop"]["seconds"]) == 2
    assert rows["keras_plm"]["ratios"].keys() == {"loop"} and rows["loop"]["peak_mb"] == 123.0
    assert "| toy_sums: sums | loop |" in table
    flags = ["speed", "--work", "toy_products,toy_sums", "--words", "2000"]
    assert main([*flags, "--out", str(tmp_path / "other.json")]) == 2
    said = "All measurements must run. Received: 1 that failed, toy_products"
    assert said in capsys.readouterr().err
    assert list(json.loads((tmp_path / "other.json").read_text())["results"]) == ["toy_sums"]
    (tmp_path / "speed.json").rename(tmp_path / "speed_toy.torch.json")
    assert speed_tables(tmp_path) == {"speed_toy": table}
    with pytest.raises(ValueError, match="unique. Received: 'toy_sums' twice"):
        runpy.run_path(str(tmp_path / "toy.py"))


@pytest.mark.backend_neutral
def test_case_names_are_unique_across_measurements():
    """The only exception is ELMo on a GPU, which has the cases of `bilm`."""
    names = [name for name in MEASUREMENTS if name != "gpu_elmo"]
    count = sum(len(MEASUREMENTS[name].cases(SpeedSettings())) for name in names)
    assert len(cases(SpeedSettings(work=",".join(names)))) == count > len(names)
