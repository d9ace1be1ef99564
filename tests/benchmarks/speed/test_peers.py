"""Peers do the same work as our implementations."""

import keras
import numpy as np
import pytest

from benchmarks.speed.measurements import elmo as speed_elmo
from benchmarks.speed.measurements import gpt as speed_gpt
from benchmarks.speed.measurements import squad as speed_squad
from benchmarks.speed.measurements import translator as speed_translator
from benchmarks.speed.settings import SpeedSettings
from keras_plm.checkpoints import load_bert, save_gpt
from keras_plm.decoding import greedy
from keras_plm.layers import (
    MultiHeadAttention,
    ProjectedLSTM,
)
from keras_plm.models import GPT, Transformer
from keras_plm.tokenizers import WordPiece
from tests.helpers.checks import assert_close, to_numpy


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


@pytest.mark.full
@pytest.mark.parametrize("clip", [0.1, 3.0])
def test_looped_lstm_peer_equals_projected_lstm(clip):
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
    layers = [kind(7, 3, clip, clip) for kind in (ProjectedLSTM, speed_elmo.LoopedLSTM)]
    outputs = [layer(x) for layer in layers]
    layers[1].set_weights(layers[0].get_weights())
    assert_close(layers[1](x), outputs[0])


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
