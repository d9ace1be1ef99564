# %% [markdown]
# # Attention: an encoder-decoder that looks back
#
# You learn to train a recurrent translator without and with attention, and to compute attention by
# hand. You look at its weights and decode with greedy and beam search. Reading takes 20 minutes,
# running two to three minutes on a laptop without a GPU.
#
# An encoder-decoder models the probability of a target sentence $y$ given a source sentence $x$,
# token by token:
#
# $$P(y \mid x) = \prod_{i=1}^{T} P(y_i \mid y_1, \dots, y_{i-1}, x)$$
#
# It is a language model of the target with one more input, the source. How the source reaches the
# decoder is the subject of this page.

# %%
import tempfile
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np

from keras_plm import metrics, plots
from keras_plm.data import translation_batches
from keras_plm.datasets.microworld import World
from keras_plm.decoding import alignment, beam_search, generate, greedy
from keras_plm.layers import AdditiveAttention
from keras_plm.models import Seq2Seq
from keras_plm.tokenizers import BytePair
from keras_plm.training import BertAdamW, WarmupLinearDecay

most_clauses = 4  # in tests: 1
training_pairs = 3000  # in tests: 64
test_pairs = 240  # in tests: 8
epochs = 6  # in tests: 1
longest_output = 45  # in tests: 12
buckets = 2  # in tests: 1

# %% [markdown]
# ## A language to translate into
#
# The *microworld* has English-like sentences and their translation into a made-up language. Every
# word has one other word, and names stay. But the order differs:
#
# - "the" falls away.
# - The verb stands at the end of its clause. "never" becomes its prefix.
# - "of" and its name stand before their noun.
# - A noun stands before its adjective, an adjective before its degree, a name before its
#   preposition.
#
# Sentences have one to four clauses, joined by "and". Each length has the same number of sentences.

# %%
world = World(seed=0)


def pairs(split, count):
    sources, targets = world.translations(split)
    chosen = [i for i in range(len(sources)) if i % 4 < most_clauses][:count]
    return [sources[i] for i in chosen], [targets[i] for i in chosen]


train_sources, train_targets = pairs("train", training_pairs)
test_sources, test_targets = pairs("test", test_pairs)
for i in range(most_clauses):
    print(train_sources[i], "\n   ", train_targets[i])

# %% [markdown]
# ## Tokens and batches
#
# Source and target share one vocabulary of byte pairs. It is large enough here to keep every word
# whole.
#
# `translation_batches` pads pairs of similar length to the same length. The decoder's input is the
# target after a start token, and its labels are the target with an end token. So each position
# predicts the next token given the *true* earlier ones. This is called teacher forcing.

# %%
path = Path(tempfile.mkdtemp()) / "text.txt"
path.write_text("\n".join(train_sources + train_targets) + "\n")
tokenizer = BytePair.train(path, vocabulary_size=600)

batches = translation_batches(
    train_sources, train_targets, tokenizer, batch_size=32, buckets=buckets
)
inputs, labels, weights = batches[0]
print(f"{len(tokenizer)} tokens, {len(batches)} batches")
for name, array in {**inputs, "labels": labels}.items():
    print(f"{name:13} {array.shape}  {array[0][:7].tolist()}")

# %% [markdown]
# ## One vector for a sentence
#
# The first encoder-decoders (Cho et al. 2014; Sutskever, Vinyals and Le 2014) read the source with
# a recurrent network and keep its last state. The decoder gets this one vector $c$ for every
# sentence, short or long:
#
# $$h_j = \mathrm{GRU}(x_j, h_{j-1}), \qquad c = h_S, \qquad
# P(y_i \mid y_{<i}, x) = g(y_{i-1}, s_i, c)$$
#
# `Seq2Seq(attention=None)` is this model. It reads the source in both directions.


# %%
def train(attention):
    keras.utils.set_random_seed(0)
    model = Seq2Seq(
        len(tokenizer),
        embedding_dim=64,
        hidden_dim=64,
        attention=attention,
        share_embeddings=True,
    )
    steps = epochs * len(batches)
    rate = WarmupLinearDecay(2e-2, steps, warmup_steps=steps // 10)
    model.compile(BertAdamW(rate, bias_correction=True))
    history = model.fit(batches, epochs=epochs, verbose=0)
    losses = ", ".join(f"{loss:.2f}" for loss in history.history["loss"])
    print(f"{model.count_params():,} weights, loss by epoch: {losses}")
    return model


one_vector = train(attention=None)

# %% [markdown]
# ## Attention
#
# Bahdanau, Cho and Bengio (2015, section 3.1) keep all states $h_1, \dots, h_S$ of the encoder,
# called annotations. At each step $i$ the decoder computes a context of its own, a weighted mean of
# the annotations. A small network scores each of them by the decoder's last state:
#
# $$e_{ij} = v^\top \tanh(W s_{i-1} + U h_j), \qquad
# \alpha_{ij} = \frac{\exp(e_{ij})}{\sum_k \exp(e_{ik})}, \qquad c_i = \sum_j \alpha_{ij} h_j$$
#
# The weights $\alpha$ are learned together with everything else: no one tells the model which words
# correspond. Padding gets a weight of zero. The layer `AdditiveAttention` computes these three
# equations. By hand:

# %%
rng = np.random.default_rng(0)
state = rng.normal(size=(1, 1, 5)).astype("float32")  # (B, T, width of s)
annotations = rng.normal(size=(1, 4, 6)).astype("float32")  # (B, S, width of h)
padding_mask = np.array([[True, True, True, False]])  # the last position is padding

layer = AdditiveAttention(units=3)
context, weights = layer(query=state, value=annotations, padding_mask=padding_mask)

kernels = layer.query_projection.kernel, layer.key_projection.kernel, layer.score_kernel
W, U, v = (keras.ops.convert_to_numpy(kernel) for kernel in kernels)
scores = np.tanh(state @ W + annotations @ U) @ v  # (1, S, 1)
scores = np.where(padding_mask, scores[..., 0], -np.inf)
alpha = np.exp(scores) / np.exp(scores).sum()
by_hand = alpha @ annotations[0]

print("weights:", alpha.round(3))
print("same as the layer:", np.allclose(by_hand, keras.ops.convert_to_numpy(context)[0], atol=1e-5))

# %%
with_attention = train(attention="additive")

# %% [markdown]
# ## BLEU by length
#
# BLEU (Papineni et al. 2002) compares a translation with a reference by their common n-grams. $p_n$
# is the fraction of the translation's n-grams that occur in the reference, and the factor in front
# lowers the score of short translations:
#
# $$\mathrm{BLEU} = \min\big(1, e^{1 - r/c}\big) \exp\Big(\frac14 \sum_{n=1}^{4} \ln p_n\Big)$$
#
# with $c$ and $r$ the numbers of words of all translations and references. `generate` turns texts
# into texts. With `greedy` it takes the most likely token at each step.

# %%
models = {"one vector": one_vector, "attention": with_attention}
outputs = {
    name: generate(model, tokenizer, test_sources, strategy=greedy, max_new_tokens=longest_output)
    for name, model in models.items()
}

clauses = list(range(1, most_clauses + 1))
figure, axes = plt.subplots(figsize=(6, 3.6))
for name, texts in outputs.items():
    scores = [
        metrics.bleu(test_targets[k::most_clauses], texts[k::most_clauses])
        for k in range(most_clauses)
    ]
    print(f"{name:10} BLEU by number of clauses: {[round(score, 1) for score in scores]}")
    axes.plot(clauses, scores, marker="o", label=name)
axes.set(xlabel="clauses of the source", ylabel="BLEU", xticks=clauses, ylim=(0, 105))
axes.legend()
plt.show()

# %% [markdown]
# With one vector, BLEU falls with the length: the vector has as many numbers for four clauses as
# for one. With attention it does not. Cho et al. (2014, "On the Properties of Neural Machine
# Translation") measured the first, figure 2 of Bahdanau et al. shows both. Here are the outputs for
# one long sentence:

# %%
example = most_clauses - 1
print("source:    ", test_sources[example])
print("reference: ", test_targets[example])
for name, texts in outputs.items():
    print(f"{name + ':':11}", texts[example])

# %% [markdown]
# The output of the first model is a correct sentence of the language. But names and words of the
# source are missing from it. Such a decoder is a good language model with too little knowledge of
# the source.
#
# ## Where it looks
#
# `alignment` returns the weights $\alpha_{ij}$ while the model writes a given translation (without
# one, the best of a beam search). Each row is a word that is written, each column a word of the
# source. A row sums to 1.

# %%
example = min(1, most_clauses - 1)
alpha, written, read = alignment(
    with_attention, tokenizer, test_sources[example], test_targets[example]
)
figure = plots.attention(alpha, written, read, title="weights of the attention")
figure

# %% [markdown]
# Inside "the good farmer of Draikas" the path runs backwards: the name, "of", the noun, its
# adjective. The verb "moved" comes after the place. Nothing in the target comes from "the", "." and
# `[EOS]`, and they get little weight. Do not expect one dark cell in each row. The annotation $h_j$
# comes from a network that reads in both directions, so it also describes the neighbours of word
# $j$.
#
# ## Beam search
#
# Greedy decoding takes the best token of each step, which need not lead to the best sentence. Beam
# search keeps the $K$ best partial texts. Because a longer text has a lower probability, finished
# texts are compared with a length penalty (Wu et al. 2016, equation 14):
#
# $$\mathrm{score}(y) = \frac{\log P(y \mid x)}{\big((5 + |y|) / 6\big)^{\alpha}}$$
#
# `generate(strategy=beam_search)` returns the best text. `beam_search` itself takes arrays and
# returns all beams. Here they are for one sentence and the model with one vector:

# %%
packed = tokenizer.pack(test_sources)
found = beam_search(
    one_vector,
    packed,
    tokenizer.start_id,
    tokenizer.end_id,
    num_beams=4,
    length_penalty=0.6,
    max_new_tokens=longest_output,
)
print("token ids (B, K, U):", found.token_ids.shape, " scores (B, K):", found.scores.shape)


def text(token_ids):
    special = tokenizer.pad_id, tokenizer.end_id
    return tokenizer.detokenize([i for i in token_ids.tolist() if i not in special])


print("reference:   ", test_targets[example])
for token_ids, score in zip(found.token_ids[example], found.scores[example], strict=True):
    print(f"score {score:6.2f}  {text(token_ids)}")

# %%
best = [text(beams[0]) for beams in found.token_ids]
print(f"greedy:  BLEU {metrics.bleu(test_targets, outputs['one vector']):.1f}")
print(f"4 beams: BLEU {metrics.bleu(test_targets, best):.1f}")

# %% [markdown]
# A search cannot add what the model does not know. It helps where the model hesitates between
# several texts.
#
# All numbers of this page come from one seed and a made-up language. For real sentences, several
# scores of attention and the Transformer, see [Translation](../../results/translation.md).
#
# ## Exercises
#
# 1. Translate sentences that are longer than all training sentences. *Hint: join two test sentences
#    of four clauses with "and", and their translations with `world.other_words["and"]`.*
# 2. Train with `attention="dot"` and `attention="bilinear"`. Which one is as good as `"additive"`,
#    and which is faster? *Hint: Luong, Pham and Manning (2015, section 3.1) define both.*
# 3. Give the model with one vector 128 hidden units. Does its BLEU still fall with the length?
#    *Hint: change `hidden_dim` in `train`, and compare the numbers of weights.*
#
# ## Next
#
# - [The Transformer](04_transformer.ipynb): attention without recurrence.
# - [Translation](../../results/translation.md): results on Multi30k.
# - [Python API](../../reference/api.md): all arguments.
