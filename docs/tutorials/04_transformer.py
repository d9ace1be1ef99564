# %% [markdown]
# # The Transformer
#
# You learn to compute scaled dot-product and multi-head attention in NumPy, and why positions and
# masks are needed. You train a small Transformer and decode with a cache. Reading takes 25 minutes,
# running about two minutes on a laptop without a GPU.
#
# [Attention](03_attention.ipynb) connected a recurrent encoder to a recurrent decoder. Vaswani et
# al. (2017) drop the recurrence: every position reads every other one by attention. All positions
# are computed at the same time, and any two words are one step apart. BERT is the encoder of this
# model, GPT its decoder.

# %%
import tempfile
import time
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np

from keras_plm import metrics, plots
from keras_plm.data import translation_batches
from keras_plm.datasets.microworld import World
from keras_plm.decoding import alignment, generate, greedy
from keras_plm.layers import (
    MultiHeadAttention,
    ScaledDotProductAttention,
    SinePositionEmbedding,
)
from keras_plm.models import Transformer
from keras_plm.tokenizers import BytePair
from keras_plm.training import BertAdamW, WarmupLinearDecay

most_clauses = 4  # in tests: 1
training_pairs = 3000  # in tests: 64
test_pairs = 240  # in tests: 8
epochs = 8  # in tests: 1
longest_output = 45  # in tests: 12
num_layers = 2  # in tests: 1
buckets = 2  # in tests: 1

keras.utils.set_random_seed(0)  # initial weights
rng = np.random.default_rng(0)


def numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


def softmax(x):
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


# %% [markdown]
# ## Scaled dot-product attention
#
# A query is compared with all keys, and the result is a weighted mean of the values (section 3.2.1,
# equation 1):
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\Big(\frac{Q K^\top}{\sqrt{D}}\Big) V$$
#
# Here are 3 queries, 5 keys and 5 values. The last key is padding, so its score is $-\infty$ and
# its weight zero.

# %%
query = rng.normal(size=(1, 3, 8)).astype("float32")  # (B, T, D)
key = rng.normal(size=(1, 5, 8)).astype("float32")  # (B, S, D)
value = rng.normal(size=(1, 5, 6)).astype("float32")
padding_mask = np.array([[True, True, True, True, False]])

scores = query @ key.transpose(0, 2, 1) / np.sqrt(8)  # (B, T, S)
scores = np.where(padding_mask[:, None], scores, -np.inf)
by_hand = softmax(scores) @ value

context, weights = ScaledDotProductAttention()(
    query=query, key=key, value=value, padding_mask=padding_mask
)
print(softmax(scores)[0].round(2))
print("same as the layer:", np.allclose(by_hand, numpy(context), atol=1e-5))

# %% [markdown]
# Why divide by $\sqrt{D}$? If the numbers of $q$ and $k$ are independent with mean 0 and variance
# 1, then $q \cdot k$ has the variance $D$. Large scores make the softmax choose one key, and its
# gradient vanishes. The scale keeps the variance at 1.

# %%
print("   D   deviation of q·k   largest of 10 weights: plain   scaled")
for width in (4, 16, 64, 256, 1024):
    q, k = rng.normal(size=(1000, 1, width)), rng.normal(size=(1000, 10, width))
    products = (q * k).sum(axis=-1)  # (1000, 10)
    plain = softmax(products).max(axis=-1).mean()
    scaled = softmax(products / np.sqrt(width)).max(axis=-1).mean()
    print(f"{width:4}{products.std():19.1f}{plain:31.2f}{scaled:9.2f}")

# %% [markdown]
# ## Several heads
#
# One softmax gives one pattern of weights. Multi-head attention (section 3.2.2) runs $N$ attentions
# of width $H = D / N$ in parallel. Each has its own projections of the same input:
#
# $$\mathrm{head}_n = \mathrm{Attention}(x W^Q_n,\, x W^K_n,\, x W^V_n), \qquad
# \mathrm{output} = [\mathrm{head}_1; \dots; \mathrm{head}_N]\, W^O$$
#
# In self-attention, queries, keys and values come from one sequence. The layer then keeps the three
# projections of all heads in one matrix, `query_key_value`. By hand:

# %%
num_heads, width = 2, 8
x = rng.normal(size=(1, 5, width)).astype("float32")  # (B, T, D)
layer = MultiHeadAttention(num_heads=num_heads, hidden_dim=width, use_bias=False)
output = numpy(layer(query=x))

kernels = {name: numpy(arrays["kernel"]) for name, arrays in layer.arrays().items()}
heads = []
for n in range(num_heads):
    own = slice(n * width // num_heads, (n + 1) * width // num_heads)
    q, k, v = (x[0] @ part[:, own] for part in np.split(kernels["query_key_value"], 3, axis=1))
    heads.append(softmax(q @ k.T / np.sqrt(width // num_heads)) @ v)  # (T, H)
by_hand = np.concatenate(heads, axis=-1) @ kernels["output"]
print("same as the layer:", np.allclose(by_hand, output[0], atol=1e-5))

# %% [markdown]
# A decoder must not read the tokens that it has to predict. The causal mask gives zero weight to
# all later positions. `run` also returns the weights:

# %%
weights = layer.run(query=x, causal=True, return_weights=True).weights  # (B, N, T, T)
print(numpy(weights)[0, 0].round(2))

# %% [markdown]
# ## Positions
#
# Attention does not know the order of its inputs. If you permute the inputs, the outputs are the
# same vectors, permuted:

# %%
order = np.array([3, 0, 4, 1, 2])
permuted = numpy(layer(query=x[:, order]))
print("a permutation changes nothing else:", np.allclose(permuted, output[:, order], atol=1e-5))

# %% [markdown]
# So the model adds a vector of the position to each token vector. Section 3.5 takes sines and
# cosines of wavelengths from $2\pi$ to $10000 \cdot 2\pi$:
#
# $$p_{t, 2i} = \sin(t / 10000^{2i/D}), \qquad p_{t, 2i+1} = \cos(t / 10000^{2i/D})$$

# %%
steps, width = 60, 64
angles = np.arange(steps)[:, None] / 10000 ** (np.arange(0, width, 2) / width)  # (T, D / 2)
by_hand = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(steps, width)
positions = numpy(SinePositionEmbedding()(np.zeros((1, steps, width), "float32")))
print("same as the layer:", np.allclose(by_hand, positions, atol=1e-4))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
image = left.imshow(positions, cmap="RdBu", aspect="auto")
left.set(xlabel="dimension", ylabel="position", title="position vectors")
figure.colorbar(image, ax=left)
for position in (10, 30, 50):
    right.plot(positions @ positions[position], label=f"position {position}")
right.set(
    xlabel="other position", ylabel="dot product", title="products with one position", ylim=(12, 38)
)
right.legend(loc="upper center", ncols=3, fontsize=8)
plt.show()

# %% [markdown]
# Low dimensions change fast and tell neighbours apart, high ones change slowly. The dot product of
# two position vectors depends only on their distance and is largest at distance 0. So a head can
# learn to look at neighbours.
#
# ## The whole model
#
# A block has two parts, attention and a feed-forward network $W_2\, \mathrm{ReLU}(W_1 x + b_1) +
# b_2$ of each position. Each part is added to its input (a residual connection), and layer
# normalisation keeps the scale (sections 3.1 and 3.3):
#
# $$x \leftarrow \mathrm{LN}(x + \mathrm{part}(x)) \quad \text{(the paper)}, \qquad
# x \leftarrow x + \mathrm{part}(\mathrm{LN}(x)) \quad \text{(pre-norm)}$$
#
# Pre-norm (Xiong et al. 2020) trains with higher learning rates, so it is used here. A block of the
# decoder has a third part between these two: attention whose queries come from the target and whose
# keys and values come from the encoder.
#
# The task is that of the page on [attention](03_attention.ipynb): translate an English-like
# sentence to a made-up language with another word order.

# %%
world = World(seed=0)


def pairs(split, count):
    sources, targets = world.translations(split)
    chosen = [i for i in range(len(sources)) if i % 4 < most_clauses][:count]
    return [sources[i] for i in chosen], [targets[i] for i in chosen]


train_sources, train_targets = pairs("train", training_pairs)
test_sources, test_targets = pairs("test", test_pairs)
print(train_sources[0], "|", train_targets[0])

path = Path(tempfile.mkdtemp()) / "text.txt"
path.write_text("\n".join(train_sources + train_targets) + "\n")
tokenizer = BytePair.train(path, vocabulary_size=600)
batches = translation_batches(
    train_sources, train_targets, tokenizer, batch_size=32, buckets=buckets
)

# %%
keras.utils.set_random_seed(0)
model = Transformer(
    len(tokenizer),
    num_layers=num_layers,
    num_heads=2,
    hidden_dim=48,
    dropout=0.0,
    pre_norm=True,
)
total = epochs * len(batches)
rate = WarmupLinearDecay(1e-2, total, warmup_steps=total // 10)
model.compile(BertAdamW(rate, bias_correction=True))
history = model.fit(batches, epochs=epochs, verbose=0)

print(f"{model.count_params():,} weights")
for epoch, loss in enumerate(history.history["loss"], start=1):
    print(f"epoch {epoch}: loss {loss:.3f}")

# %% [markdown]
# Training is one forward pass over all target positions, because the true target is known. The
# causal mask makes sure that position $t$ still cannot read what follows. The test: change the last
# two target tokens. The logits before them stay.

# %%
inputs = {name: array[:1] for name, array in batches[0][0].items()}
changed = {**inputs, "target_ids": inputs["target_ids"].copy()}
length = int(inputs["target_ids"].astype(bool).sum())
changed["target_ids"][0, length - 2 : length] = 5  # another token

difference = np.abs(numpy(model(changed)) - numpy(model(inputs)))[0, :length].max(axis=-1)
print("largest change of the logits at each position:")
print(difference.round(3))

# %% [markdown]
# ## Decode with a cache
#
# At inference the target is not known, and tokens are written one by one. Keys and values of
# earlier positions do not change, again because of the causal mask. So they are kept in a cache,
# and each step computes one position only. With `cache=False`, each step computes all positions
# again. Both write the same text.

# %%
outputs = {}
for cache in (True, False):
    options = {"strategy": greedy, "max_new_tokens": longest_output, "cache": cache}
    generate(model, tokenizer, test_sources, **options)  # JAX and TensorFlow compile here
    started = time.perf_counter()
    outputs[cache] = generate(model, tokenizer, test_sources, **options)
    print(f"cache={cache}: {time.perf_counter() - started:.2f} s")
print("same texts:", outputs[True] == outputs[False])

# %%
for k in range(most_clauses):
    references, written = test_targets[k::most_clauses], outputs[True][k::most_clauses]
    print(f"clauses: {k + 1}   BLEU {metrics.bleu(references, written):.1f}")
print("source:   ", test_sources[0])
print("reference:", test_targets[0])
print("output:   ", outputs[True][0])

# %% [markdown]
# ## Where it looks
#
# Each layer and each head has its own weights. This is the attention of the decoder to the source,
# while it writes the reference:

# %%
example = min(1, most_clauses - 1)
weights, written, read = alignment(model, tokenizer, test_sources[example], test_targets[example])
print("layers, heads, target, source:", weights.shape)
figure = plots.attention(weights, written, read)
figure

# %% [markdown]
# The numbers on this page come from one seed and a made-up language.
# [Translation](../../results/translation.md) compares the Transformer with recurrent models on real
# sentences, [Speed](../../results/speed.md) measures the cost.
#
# ## Exercises
#
# 1. Set all position vectors to zero. What does the model still translate? *Hint: train with
#    `positions="learned"` and `max_sequence_length=48`, set both tables to zero before `fit`, and
#    make them not trainable (`model.get_layer("target_positions").trainable = False`).*
# 2. Train with 1 head and with 4 heads. Does the number of weights change? *Hint: the heads share
#    the width.*
# 3. Translate five clauses. *Hint: join a sentence of four clauses and one of one with "and";
#    compare sines with learned positions, and with the recurrent model of
#    [Attention](03_attention.ipynb).*
#
# ## Next
#
# - [GPT](06_gpt.ipynb): the decoder as a language model.
# - [BERT](07_bert.ipynb): the encoder, pre-trained by masking words.
# - [Your own encoder](../../how-to/own_encoder.md): use another network in the library.
# - [Python API](../../reference/api.md): all arguments.
