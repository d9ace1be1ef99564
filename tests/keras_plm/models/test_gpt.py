"""GPT: sizes, contract, causality, generation with a cache, released files."""

import json
import warnings

import keras
import numpy as np
import pytest

import keras_plm
from keras_plm import decoding
from keras_plm.checkpoints import load_gpt, save_bert, save_gpt
from keras_plm.models import BERT, GPT, GPT_SIZES
from keras_plm.pretraining import CausalLM
from keras_plm.tokenizers import BytePair
from tests.helpers.checks import assert_close, check_encoder, check_learns, to_numpy, under_torch

TINY = {"num_layers": 3, "num_heads": 2, "hidden_dim": 10, "intermediate_dim": 40}
PROMPTS = [[3, 4, 5, 6], [7], [8, 9, 2]]


def gpt(vocabulary_size=17, **options):
    """Returns a GPT with random weights that are large enough for tokens to matter."""
    options = {"dropout": 0.0, "max_sequence_length": 24, **options}
    model = GPT(vocabulary_size, **TINY, **options)
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) * 0.3 for w in model.get_weights()])
    return model


def read(model, token_ids):
    """Returns the log probabilities of each next token, (T, V).

    Texts of any length become rows of one length, so that JAX compiles once.
    """
    row = np.zeros((1, model.max_sequence_length), "int32")
    row[0, : len(token_ids)] = token_ids
    inputs = {"token_ids": row, "padding_mask": np.arange(row.shape[1])[None] < len(token_ids)}
    logits = model.token_embedding(model(inputs)["sequence"], reverse=True)
    return to_numpy(keras.ops.log_softmax(logits))[0, : len(token_ids)]


def packed(prompts=PROMPTS, length=5):
    token_ids = np.zeros((len(prompts), length), "int32")
    for row, prompt in zip(token_ids, prompts, strict=True):
        row[: len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in prompts])
    return {"token_ids": token_ids, "padding_mask": np.arange(length) < lengths[:, None]}


@pytest.mark.full
@pytest.mark.backend_neutral
def test_base_has_the_parameter_count_of_the_released_model():
    """REFERENCE: 116,534,784 weights with 40,478 tokens. A small table here needs less memory."""
    model = GPT(10, **GPT_SIZES["base"])
    assert model.count_params() + (40_478 - 10) * 768 == 116_534_784


@pytest.mark.compiles
@pytest.mark.quick_cases("False")
@pytest.mark.parametrize("pre_norm", [False, True])
def test_keeps_the_encoder_contract(pre_norm, tmp_path):
    encoder = GPT(13, **TINY, pre_norm=pre_norm, max_sequence_length=9)
    assert len(check_encoder(encoder, tmp_path, vocabulary_size=13)["layers"]) == 4


@pytest.mark.compiles
def test_every_weight_learns():
    model = gpt(max_sequence_length=7)
    ids = np.random.default_rng(0).integers(0, 17, (9, 7)).astype("int32")
    inputs = {"token_ids": ids, "padding_mask": np.ones((9, 7), bool)}
    check_learns(keras.Model(model.input, model.output["sequence"]), inputs, np.ones((9, 7, 10)))


@pytest.mark.compiles
def test_outputs_do_not_depend_on_later_tokens():
    model = gpt()
    first = read(model, [3, 4, 5, 6, 7])
    other = read(model, [3, 4, 5, 11, 12])
    assert_close(other[:3], first[:3])
    assert np.abs(other[3:] - first[3:]).max() > 1e-3


@pytest.mark.split_to("jax")
@pytest.mark.compiles
@pytest.mark.parametrize("pre_norm", [False, under_torch(True)])
def test_batched_greedy_decoding_equals_rereading_each_text(pre_norm):
    model = gpt(pre_norm=pre_norm)
    written, scores = decoding.greedy(model, packed(), 0, -1, max_new_tokens=7)
    for prompt, row, score in zip(PROMPTS, written, scores, strict=True):
        text, total = list(prompt), 0.0
        for _ in range(7):
            logs = read(model, text)[-1]
            text.append(int(logs.argmax()))
            total += logs.max()
        assert row.tolist() == text[len(prompt) :]
        assert score == pytest.approx(total, abs=1e-4)


@pytest.mark.compiles
def test_decoding_with_cache_equals_decoding_without():
    model = gpt()
    for strategy, options in (
        (decoding.greedy, {}),
        (decoding.sample, {"seed": 3, "top_k": 5}),
        (decoding.beam_search, {"num_beams": 2}),
    ):
        with_cache = strategy(model, packed(), 0, 1, max_new_tokens=6, **options)
        without = strategy(model, packed(), 0, 1, max_new_tokens=6, cache=False, **options)
        for a, b in zip(with_cache, without, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.compiles
def test_half_precision_decodes_with_cache_as_without():
    model = gpt(dtype="mixed_bfloat16")
    options = {"start_token_id": 0, "stop_token_ids": -1, "max_new_tokens": 6}
    with_cache = decoding.greedy(model, packed(), **options)
    without = decoding.greedy(model, packed(), **options, cache=False)
    assert (with_cache.token_ids == without.token_ids).all()
    np.testing.assert_allclose(with_cache.scores, without.scores, atol=0.02)


def test_a_gpt_without_blocks_decodes():
    model = GPT(17, 0, 2, hidden_dim=10, intermediate_dim=40, dropout=0.0)
    options = {"start_token_id": 0, "stop_token_ids": -1, "max_new_tokens": 3}
    with_cache = decoding.greedy(model, packed(), **options)
    without = decoding.greedy(model, packed(), **options, cache=False)
    assert (with_cache.token_ids == without.token_ids).all()


@pytest.mark.full
def test_beam_scores_equal_log_probabilities_of_their_texts():
    model = gpt()
    options = {"num_beams": 3, "length_penalty": 0.0, "max_new_tokens": 6}
    written, scores = decoding.beam_search(model, packed(), 0, 1, **options)
    for prompt, beams, of_beams in zip(PROMPTS, written, scores, strict=True):
        for row, score in zip(beams, of_beams, strict=True):
            text = [*prompt, *decoding.until_stop(row, 1)]
            text += [1] if 1 in row else []
            logs = read(model, text[:-1])
            places = range(len(prompt) - 1, len(text) - 1)
            assert score == pytest.approx(sum(logs[i, text[i + 1]] for i in places), abs=1e-4)


PIECES = ["<unk>", *"abcdefghijklmnopqrstuvwxyz", *(f"{c}</w>" for c in "tenamo.,"), "\n</w>"]


@pytest.mark.split_to("jax")
@pytest.mark.compiles
def test_generate_continues_strings():
    tokenizer = BytePair(PIECES, [], scheme="gpt")
    model = gpt(tokenizer.text_size, max_sequence_length=40)
    prompts = ["the cat", "a", "on the mat, a cat"]
    texts = decoding.generate(model, tokenizer, prompts, max_new_tokens=9)
    assert texts == decoding.generate(CausalLM(model), tokenizer, prompts, max_new_tokens=9)
    for prompt, text in zip(prompts, texts, strict=True):
        assert text.startswith(prompt)
        assert decoding.generate(model, tokenizer, [prompt], max_new_tokens=9) == [text]
        ids = tokenizer.unframed().encode([prompt]).token_ids.tolist()
        for _ in range(9):
            ids.append(int(read(model, ids)[-1].argmax()))
        assert tokenizer.detokenize(ids).endswith(text[len(prompt) :])
    options = {"max_new_tokens": 9, "seed": 1}
    drawn = decoding.generate(model, tokenizer, ["a"] * 4, decoding.sample, **options)
    assert len(set(drawn)) > 1


@pytest.mark.backend_neutral
def test_prompts_that_cannot_be_continued_are_refused():
    tokenizer = BytePair(PIECES, [], scheme="gpt")
    model = gpt(tokenizer.text_size, max_sequence_length=12)
    with pytest.raises(ValueError, match="at most the model's 12 positions.*a prompt of length 12"):
        decoding.generate(model, tokenizer, ["a", "abcabcabcabc"])
    with pytest.raises(ValueError, match="max_new_tokens=10, a prompt of length 3"):
        decoding.generate(model, tokenizer, ["cat"], max_new_tokens=10)
    assert decoding.generate(model, tokenizer, ["cat"], max_new_tokens=9)[0].startswith("cat")
    with pytest.raises(ValueError, match="A prompt must have text"):
        decoding.generate(model, tokenizer, [" "])
    with pytest.raises(ValueError, match="must know every id"):
        decoding.generate(gpt(7), tokenizer, ["cat"])
    with pytest.raises(
        ValueError, match="12 positions. Received: max_new_tokens=9, inputs of length 4"
    ):
        decoding.greedy(model, packed(), 0, -1, max_new_tokens=9)
    empty = {name: array * 0 for name, array in packed().items()}
    with pytest.raises(ValueError, match="a row of padding only"):
        decoding.greedy(model, empty, 0, -1, max_new_tokens=2)


KINDS = ("openai-gpt", "gpt2")


@pytest.fixture(params=KINDS)
def released(request, tmp_path):
    """A model of `transformers`, its folder, and its outputs."""
    transformers = pytest.importorskip("transformers")
    import torch

    first = request.param == "openai-gpt"
    config = transformers.OpenAIGPTConfig if first else transformers.GPT2Config
    kind = transformers.OpenAIGPTLMHeadModel if first else transformers.GPT2LMHeadModel
    torch.manual_seed(0)
    sizes = {"vocab_size": 29, "n_positions": 16, "n_embd": 12, "n_layer": 3, "n_head": 2}
    ends = {} if first else {"bos_token_id": 0, "eos_token_id": 0}
    model = kind(config(**sizes, **ends, initializer_range=0.5)).eval()
    model.save_pretrained(tmp_path / "released")
    ids = np.random.default_rng(0).integers(0, 29, (2, 7))
    with torch.no_grad():
        outputs = model(torch.tensor(ids), output_hidden_states=True)
    return model, tmp_path / "released", ids, outputs


@pytest.mark.full
def test_load_gpt_equals_outputs_of_transformers(released):
    _, folder, ids, wanted = released
    model = load_gpt(folder)
    outputs = model({"token_ids": ids, "padding_mask": ids >= 0})
    for mine, theirs in zip(outputs["layers"], wanted.hidden_states, strict=True):
        np.testing.assert_allclose(to_numpy(mine), theirs.numpy(), atol=1e-5)
    logits = model.token_embedding(outputs["sequence"], reverse=True)
    np.testing.assert_allclose(to_numpy(logits), wanted.logits.numpy(), atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("stored", ["classifier", "lm_head"])
def test_load_gpt_reads_folders_with_other_heads_or_one_tied_table(stored, tmp_path):
    transformers = pytest.importorskip("transformers")
    import safetensors.torch
    import torch

    sizes = {"vocab_size": 29, "n_positions": 16, "n_embd": 12, "n_layer": 1, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    headed = stored == "classifier"
    name = "GPT2ForSequenceClassification" if headed else "GPT2LMHeadModel"
    model = getattr(transformers, name)(config).eval()
    model.save_pretrained(tmp_path)
    if not headed:  # keeps one of two names of a table
        safetensors.torch.save_model(model, str(tmp_path / "model.safetensors"))
    ids = np.arange(7)[None]
    with torch.no_grad():
        wanted = model.transformer(torch.tensor(ids)).last_hidden_state
    encoders = [load_gpt(tmp_path)]
    if not headed:
        encoders.append(load_gpt(tmp_path, head="pretraining").encoder)
    for encoder in encoders:
        found = encoder({"token_ids": ids, "padding_mask": ids >= 0})["sequence"]
        np.testing.assert_allclose(to_numpy(found), wanted.numpy(), atol=1e-5)


@pytest.mark.full
def test_load_gpt_reads_old_folder_formats(released):
    """Old folders lack a model type, use torch's files, or hold a wrapped model."""
    import torch
    from safetensors.torch import load_file

    _, folder, ids, wanted = released
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"]
    (folder / "config.json").write_text(json.dumps(config))
    arrays = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({f"module.{n}": a for n, a in arrays.items()}, folder / "pytorch_model.bin")
    outputs = load_gpt(folder)({"token_ids": ids, "padding_mask": ids >= 0})
    last = wanted.hidden_states[-1].numpy()
    np.testing.assert_allclose(to_numpy(outputs["sequence"]), last, atol=1e-5)
    table = next(a for n, a in arrays.items() if n.endswith(("wte.weight", "tokens_embed.weight")))
    torch.save({**arrays, "lm_head.weight": table + 1}, folder / "pytorch_model.bin")
    load_gpt(folder)
    with pytest.raises(ValueError, match="ties its output to the embeddings.*lm_head.weight"):
        load_gpt(folder, head="pretraining")
    (folder / "config.json").write_text(json.dumps({**config, "attn_pdrop": 0.3}))
    with pytest.warns(UserWarning, match="one dropout rate .*'attn_pdrop': 0.3"):
        load_gpt(folder)


@pytest.mark.backend_neutral
def test_save_gpt_warns_that_transformers_lower_cases_texts(tmp_path):
    for lowercase, said in ((False, 1), (True, 0)):
        tokenizer = BytePair(PIECES, [], scheme="gpt", lowercase=lowercase)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            save_gpt(tmp_path, gpt(tokenizer.text_size), tokenizer)
        assert sum("lower-cases the texts" in str(w.message) for w in caught) == said


@pytest.mark.backend_neutral
def test_save_gpt_replaces_only_its_own_files(tmp_path):
    tokenizers = [BytePair(PIECES[:1] + order, [], scheme="gpt") for order in
                  (PIECES[1:], PIECES[:0:-1])]  # fmt: skip
    encoder = gpt(tokenizers[0].text_size)
    for tokenizer in tokenizers:
        save_gpt(tmp_path / "gpt", encoder, tokenizer)
        assert keras_plm.load(tmp_path / "gpt")[1].vocabulary == tokenizer.vocabulary
    keras_plm.save(tmp_path / "ours", encoder, tokenizers[0])
    before = (tmp_path / "ours" / "config.json").read_bytes()
    with pytest.raises(ValueError, match="without the mark of save_gpt: name another folder"):
        save_gpt(tmp_path / "ours", encoder, tokenizers[1])
    assert (tmp_path / "ours" / "config.json").read_bytes() == before
    with pytest.raises(ValueError, match="without the mark of save_bert"):
        save_bert(tmp_path / "gpt", BERT(9, 1, 1, 4, 4))
    save_bert(tmp_path / "bert", BERT(9, 1, 1, 4, 4))
    with pytest.raises(ValueError, match="without the mark of save_gpt"):
        save_gpt(tmp_path / "bert", encoder)


@pytest.mark.full
def test_transformers_reads_a_saved_gpt(released, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    model, folder, ids, wanted = released
    save_gpt(tmp_path / "again", load_gpt(folder))
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    assert type(again) is type(model)
    with torch.no_grad():
        np.testing.assert_allclose(again(torch.tensor(ids)).logits, wanted.logits, atol=1e-6)


def slices(folder, model, count=10):
    """Returns our GPT in the format of openai/finetune-transformer-lm."""
    weights = {w.path: to_numpy(w) for w in model.weights}
    names = [name for name in weights if name.startswith("transformer")]
    order = ("attention/query_key_value/kernel", "attention/query_key_value/bias",
             "attention/output/kernel", "attention/output/bias",
             "attention_norm/gamma", "attention_norm/beta",
             "feed_forward/intermediate/kernel", "feed_forward/intermediate/bias",
             "feed_forward/output/kernel", "feed_forward/output/bias",
             "feed_forward_norm/gamma", "feed_forward_norm/beta")  # fmt: skip
    arrays = [weights["position_embedding/embeddings"], weights["token_embedding/embeddings"]]
    for i in range(model.num_layers):
        found = [weights[f"transformer/block_{i}/{part}"] for part in order]
        arrays += [a[None] if a.ndim == 2 else a for a in found]
    assert len(arrays) == len(names) + 2
    folder.mkdir(exist_ok=True)
    (folder / "params_shapes.json").write_text(json.dumps([a.shape for a in arrays]))
    flat = np.concatenate([a.ravel() for a in arrays])
    for i, part in enumerate(np.array_split(flat, count)):
        np.save(folder / f"params_{i}.npy", part)


@pytest.mark.compiles
def test_load_gpt_reads_slices_of_the_original(tmp_path):
    model = gpt()
    slices(tmp_path / "slices", model)
    again = load_gpt(tmp_path / "slices", num_heads=2)
    assert_close(again(packed())["sequence"], model(packed())["sequence"], atol=1e-6)


@pytest.mark.backend_neutral
def test_load_gpt_refuses_invalid_files(tmp_path):
    model = gpt()
    folder = tmp_path / "slices"
    slices(folder, model)
    first = np.load(folder / "params_0.npy")
    for array, match in (
        (np.array([{}]), "params_0.npy must hold numbers"),
        (first.astype("int32"), "params_0.npy must hold numbers"),
        (first * np.nan, "params_0.npy: weights must be finite"),
        (first[1:], "the slices must hold .* numbers"),
    ):
        np.save(folder / "params_0.npy", array, allow_pickle=True)
        with pytest.raises(ValueError, match=match):
            load_gpt(folder, num_heads=2)
    np.save(folder / "params_0.npy", first)
    whole = (folder / "params_0.npy").read_bytes()
    for content in (whole[:-4], whole[:9], whole + b"x", b""):
        (folder / "params_0.npy").write_bytes(content)
        with pytest.raises(ValueError, match="params_0.npy must be a whole .npy file"):
            load_gpt(folder, num_heads=2)
    (folder / "params_0.npy").write_bytes(whole)
    shapes = json.loads((folder / "params_shapes.json").read_text())
    for text in ("{", "3", '[["a"]]', "[[-1, 2]]", "[[1e9]]", "[]"):
        (folder / "params_shapes.json").write_text(text)
        with pytest.raises(ValueError, match="params_shapes.json"):
            load_gpt(folder, num_heads=2)
    (folder / "params_shapes.json").write_text(json.dumps(shapes))
    with pytest.raises(ValueError, match="params_shapes.json: .*num_heads"):
        load_gpt(folder, num_heads=3)
    np.save(folder / "params_9.npy", np.zeros(3, "float32"))
    with pytest.raises(ValueError, match="the slices must hold .* numbers"):
        load_gpt(folder, num_heads=2)
    (folder / "params_4.npy").unlink()
    with pytest.raises(ValueError, match="without a gap"):
        load_gpt(folder, num_heads=2)
    (folder / "params_shapes.json").write_text("[[3, 2], [4, 2]]")
    with pytest.raises(ValueError, match="twelve for each block. Received: 2 shapes"):
        load_gpt(folder)
    saved = tmp_path / "saved"
    save_gpt(saved, model)
    config = json.loads((saved / "config.json").read_text())
    for change, match in (
        (
            {"model_type": "bert"},
            "not that of a GPT or GPT-2 .*`keras_plm.load`. Received: model_type='bert'",
        ),
        ({"afn": "swish"}, "`afn` must be one of"),
        ({"n_head": None}, "`n_head` must be a whole number"),
        ({"n_layer": 2}, "unknown"),
        ({"tie_word_embeddings": False}, "this setting is not supported"),
        ({"n_ctx": 3}, "not supported: `n_ctx` must be None or"),
        ({"auto_map": {"AutoModel": "a.B"}}, "not supported: `auto_map` must be None"),
        ({"layer_norm_epsilon": "1e-5"}, "`layer_norm_epsilon` must be a number"),
    ):
        changed = {k: v for k, v in {**config, **change}.items() if v is not None}
        (saved / "config.json").write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=match):
            load_gpt(saved)
    with pytest.raises(ValueError, match="must be a GPT. Received: BERT"):
        save_gpt(tmp_path, BERT(9, 1, 1, 4, 4))
    with pytest.raises(ValueError, match="None or 'pretraining'"):
        load_gpt(saved, head="classification")
