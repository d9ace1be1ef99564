# %% [markdown]
# # Language models, from n-grams to a neural network
#
# You learn to count n-grams, smooth them, measure perplexity, sample text, train a neural language
# model, and mix both. Reading takes 20 minutes, running about one minute on a laptop without a GPU.
#
# A language model gives a probability to a text. It does so word by word:
#
# $$P(w_1, \dots, w_N) = \prod_{t=1}^{N} P(w_t \mid w_1, \dots, w_{t-1})$$
#
# Everything in this library rests on this formula or on a variant of it. GPT predicts the next
# word, ELMo predicts the next word in both directions, BERT predicts words that are hidden.

# %%
import tempfile
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np

from keras_plm.data import read_ids
from keras_plm.datasets.microworld import World
from keras_plm.models import NNLM, Mixture, NGram
from keras_plm.models.nnlm import contexts
from keras_plm.tokenizers import Words
from keras_plm.training import BertAdamW

documents = 500  # in tests: 100
epochs = 4  # in tests: 1

keras.utils.set_random_seed(0)  # initial weights

# %% [markdown]
# ## A text
#
# The text is the *microworld*: a made-up language with English words. It has people, places and
# firms, words that can replace each other, and words with two senses. It needs no download, and its
# rules are known.
#
# A language model is judged on text that it has not seen. So the documents are split in three
# parts: one to train, a dev set to choose settings, and a test set for the final number.

# %%
texts = World(seed=0).corpus(documents)
train_end, dev_end = int(0.8 * documents), int(0.9 * documents)
parts = {"train": texts[:train_end], "dev": texts[train_end:dev_end], "test": texts[dev_end:]}

folder = Path(tempfile.mkdtemp())
for name, part in parts.items():
    sentences = [sentence for document in part for sentence in document]
    (folder / f"{name}.txt").write_text("\n".join(sentences) + "\n")

print("\n".join(texts[0]))

# %% [markdown]
# `Words` numbers the words of the training text, the most frequent first. Ids 0, 1 and 2 are
# `[PAD]`, `[UNK]` and `[EOS]`. `read_ids` reads a file as one stream of ids in which `[EOS]` ends
# every line. A word outside the vocabulary becomes `[UNK]`. Words that occur once are left out of
# the vocabulary, so that the model also sees `[UNK]` in training.

# %%
words = Words.train(folder / "train.txt", min_count=2)
ids = {name: read_ids(folder / f"{name}.txt", words) for name in parts}

print("vocabulary:", len(words), "words")
print("tokens:", {name: len(stream) for name, stream in ids.items()})
print("first ids:", ids["train"][:12].tolist())
print("as words: ", [words.vocabulary[i] for i in ids["train"][:12]])

# %% [markdown]
# ## Count
#
# An n-gram model keeps only the last $n - 1$ words of the context. Its simplest estimate is a
# relative frequency. With $n = 2$, and $c$ the number of times that words occur next to each other:
#
# $$P(w_t \mid w_{t-1}) = \frac{c(w_{t-1}\, w_t)}{\sum_w c(w_{t-1}\, w)}$$
#
# Here it is in NumPy, for the words after "the":

# %%
the = words.vocabulary.index("the")
stream = ids["train"]
after_the = stream[1:][stream[:-1] == the]
counts = np.bincount(after_the, minlength=len(words))
by_hand = counts / counts.sum()

bigrams = NGram(len(words), order=2, smoothing="mle").fit(stream)
print("same as NGram:", np.allclose(by_hand, bigrams.distribution([the])))
for i in np.argsort(-by_hand)[:5]:
    print(f"P({words.vocabulary[i]} | the) = {by_hand[i]:.3f}")

# %% [markdown]
# ## Perplexity
#
# Perplexity is the inverse of the geometric mean of the probabilities:
#
# $$\mathrm{PPL} = \exp\Big(-\frac{1}{N} \sum_{t=1}^{N} \ln P(w_t \mid w_{<t})\Big)$$
#
# A model with perplexity 10 is as uncertain as a fair choice among 10 words. Lower is better.
# Perplexities compare only between models with the same vocabulary on the same text.

# %%
log_probabilities = bigrams.log_prob(ids["train"])
print("by hand:      ", np.exp(-log_probabilities.mean()))
print("training text:", bigrams.perplexity(ids["train"]))
print("dev text:     ", bigrams.perplexity(ids["dev"]))

# %% [markdown]
# The perplexity of the dev text is infinite. One pair of words that the training text lacks is
# enough, because its probability is 0. How frequent are such pairs?

# %%
for order in (1, 2, 3, 4):
    model = NGram(len(words), order=order, smoothing="mle").fit(ids["train"])
    # A context that was never followed by anything is shortened until one is known.
    impossible = np.isinf(model.log_prob(ids["dev"])).mean()
    print(f"order {order}: {impossible:.1%} of the dev words have probability 0")

# %% [markdown]
# ## Smooth
#
# Smoothing takes probability from n-grams that were seen and gives it to those that were not.
#
# - **Add-k** adds a constant to every count: $\frac{c(h\,w) + k}{c(h\,\cdot) + kV}$, with $h$ the
#   context and $V$ the size of the vocabulary.
# - **Interpolation** (Jelinek and Mercer 1980) averages the estimates of all orders from 0 to $n$,
#   with weights learned on held-out text.
# - **Modified Kneser-Ney** (Chen and Goodman 1998, section 3) subtracts a discount $D$ from each
#   count, and spends what this frees on the shorter context $h'$:
#
# $$P(w \mid h) = \frac{a(h\,w) - D}{a(h\,\cdot)} + \gamma(h)\, P(w \mid h')$$
#
# $D$ has three values, for counts of 1, 2, and 3 or more. $\gamma(h)$ makes the sum over $w$ equal
# to 1.

# %%
kneser_ney = {o: NGram(len(words), order=o).fit(ids["train"]) for o in (1, 2, 3, 4, 5)}
print("discounts of the orders 1, 2 and 3:")
print(kneser_ney[3].discounts.round(2))

# %% [markdown]
# The idea of Kneser and Ney (1995) is the count $a$ of the shorter contexts. In the highest order
# it is the ordinary count $c$. Below, $a(w)$ is **the number of different words before** $w$. A
# word that follows only one other word is a poor prediction after an unknown context, however
# frequent it is. In this text "grass" only follows "wet":

# %%
previous, following = stream[:-1], stream[1:]
pairs = np.unique(np.stack([previous, following]), axis=1)  # each pair once
different_before = np.bincount(pairs[1], minlength=len(words))

unknown_context = [0]  # [PAD] occurs nowhere, so that the model falls back to one word
fallback = kneser_ney[2].distribution(unknown_context)
frequency = np.bincount(stream, minlength=len(words)) / len(stream)
print("word      count   different words before   frequency   Kneser-Ney")
for word in ("grass", "doctor", "nothing", "near"):
    i = words.vocabulary.index(word)
    count = round(frequency[i] * len(stream))
    print(f"{word:10}{count:5}{different_before[i]:25}{frequency[i]:12.5f}{fallback[i]:13.5f}")

# %% [markdown]
# Compare the methods and orders on the dev set.


# %%
def fitted(smoothing, order):
    options = {"held_out": ids["dev"]} if smoothing == "interpolation" else {}
    model = NGram(len(words), order=order, smoothing=smoothing, k=0.1)
    return model.fit(ids["train"], **options)


orders = [1, 2, 3, 4, 5]
smoothings = {
    "add_k": "add-k, k = 0.1",
    "interpolation": "interpolation",
    "kneser_ney": "Kneser-Ney",
}
perplexities = {
    smoothing: [fitted(smoothing, order).perplexity(ids["dev"]) for order in orders]
    for smoothing in smoothings
}

figure, axes = plt.subplots(figsize=(6, 3.6))
for smoothing, values in perplexities.items():
    axes.plot(orders, values, marker="o", label=smoothings[smoothing])
axes.set(xlabel="order n", ylabel="perplexity of the dev set", yscale="log", xticks=orders)
axes.legend()
plt.show()

# %% [markdown]
# Add-k gets worse beyond bigrams: the longer the context, the rarer it is, and the more probability
# goes to words that never occur there. Interpolation and Kneser-Ney use long contexts where they
# are known and short ones elsewhere. (Interpolation has an advantage here: its weights are fitted
# on the dev set itself.)
#
# ## Sample
#
# A language model also generates text: draw a word, append it, repeat. A `temperature` $\tau$ below
# 1 sharpens the distribution to $P(w)^{1/\tau}$, renormalised.

# %%
for order in (1, 2, 3, 5):
    for seed in (2, 5):
        text = words.detokenize(kneser_ney[order].generate(15, seed=seed))
        print(f"order {order}: {text}")

# %%
for temperature in (0.3, 1.0, 2.0):
    text = words.detokenize(kneser_ney[3].generate(15, seed=4, temperature=temperature))
    print(f"order 3, temperature {temperature}: {text}")

# %% [markdown]
# ## A neural language model
#
# An n-gram model treats words as unrelated symbols. If it has seen "the doctor walked to" but not
# "the lawyer walked to", the first tells it nothing about the second. Bengio, Ducharme, Vincent and
# Jauvin (2003, section 2) give every word a vector, and let a network read the vectors of the
# context. With $x$ the $n - 1$ vectors side by side:
#
# $$y = b + W x + U \tanh(d + H x), \qquad P(w \mid h) = \mathrm{softmax}(y)_w$$
#
# Similar words get similar vectors. What the network learns about one context then holds for
# similar contexts. The direct connections $W$ are optional: `direct=False` leaves them out.
# `start_from_unigrams` sets $b$ to the log frequencies, so that training does not spend its first
# steps on them.

# %%
network = NNLM(len(words), order=4, embedding_dim=32, hidden_dim=64, direct=False, dropout=0.2)
network.compile(BertAdamW(3e-3, bias_correction=True))
network.start_from_unigrams(ids["train"])
print(f"{network.count_params():,} weights")

curve, snapshots = [network.perplexity(ids["dev"])], []
for epoch in range(epochs):
    network.fit(network.batches(ids["train"], batch_size=256, seed=epoch), verbose=0)
    curve.append(network.perplexity(ids["dev"]))
    snapshots.append(network.get_weights())
    print(f"epoch {epoch + 1}: perplexity of the dev set {curve[-1]:.2f}")

# %%
figure, axes = plt.subplots(figsize=(6, 3.6))
axes.plot(range(len(curve)), curve, marker="o", label="neural model, order 4")
best = kneser_ney[4].perplexity(ids["dev"])
axes.axhline(best, color="gray", linestyle="--", label="Kneser-Ney, order 4")
axes.set(xlabel="epochs", ylabel="perplexity of the dev set", yscale="log")
axes.legend()
plt.show()

# %% [markdown]
# The equation is a few lines of NumPy. They give the same distribution as the model:


# %%
def arrays(layer):
    return [keras.ops.convert_to_numpy(weight) for weight in layer.weights]


(vectors,) = arrays(network.token_embedding)
H, d = arrays(network.get_layer("hidden"))
U, b = arrays(network.get_layer("output"))

context = [words.vocabulary.index(word) for word in ("the", "doctor", "of")]
x = vectors[context].reshape(-1)  # three vectors side by side
y = b + np.tanh(d + x @ H) @ U
by_hand = np.exp(y - y.max()) / np.exp(y - y.max()).sum()
print("same as NNLM:", np.allclose(by_hand, network.distribution(context), atol=1e-5))

# %% [markdown]
# ### Where the network is better
#
# Split the words of the dev set by their context: did the three words before occur together in the
# training text?


# %%
def seen_before(part, order):
    known = {tuple(context) for context in contexts(ids["train"], order, words.end_id)}
    return np.array([tuple(c) in known for c in contexts(ids[part], order, words.end_id)])


seen = seen_before("dev", order=4)
models = {"Kneser-Ney, order 4": kneser_ney[4], "neural, order 4": network}
for name, model in models.items():
    scores = model.log_prob(ids["dev"])
    known, new = np.exp(-scores[seen].mean()), np.exp(-scores[~seen].mean())
    print(f"{name:20} known contexts ({seen.mean():.0%}): {known:.2f}   new contexts: {new:.2f}")

# %% [markdown]
# (Known contexts are harder in themselves: the start of a sentence is one, and a name may follow
# it.) The gap between the models is widest after new contexts. There the count model falls back to
# shorter contexts, while the network still reads vectors of words that it knows.
#
# ### The vectors
#
# These vectors are a by-product of the prediction. Words that can replace each other have a high
# cosine:

# %%
unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
for word in ("doctor", "loved", "fruit", "early"):
    cosines = unit @ unit[words.vocabulary.index(word)]
    nearest = [words.vocabulary[i] for i in np.argsort(-cosines)[1:5]]
    print(f"{word:8} {', '.join(nearest)}")

# %% [markdown]
# ## Mix
#
# The two kinds of model err in different places. Bengio et al. (section 4.1) average their
# probabilities:
#
# $$P(w \mid h) = \lambda\, P_1(w \mid h) + (1 - \lambda)\, P_2(w \mid h)$$
#
# `Mixture.fit_weights` finds $\lambda$ by expectation maximisation on the dev set. The test set is
# used here for the first time.

# %%
for epoch, snapshot in enumerate(snapshots, start=1):
    network.set_weights(snapshot)
    mixture = Mixture.fit_weights([network, kneser_ney[4]], ids["dev"])
    print(
        f"after {epoch} epochs: weight of the network {mixture.weights[0]:.2f}, "
        f"dev set {mixture.perplexity(ids['dev']):.2f}"
    )
for name, model in {**models, "mixture": mixture}.items():
    print(f"{name:20} perplexity of the test set {model.perplexity(ids['test']):.2f}")

# %% [markdown]
# After one epoch the mixture is better than both of its parts. At the end the network has learned
# nearly all that the counts know about this simple language, and the mixture is the network. Real
# text is different: on WikiText-2 a network of order 5 has a test perplexity of 180.0, Kneser-Ney
# of order 5 220.1, and their mixture 159.3 (one seed). See [Language
# models](../../results/language_models.md).
#
# The numbers on this page come from one seed and a made-up language. They show how the methods
# work, not which one is better.
#
# ## Exercises
#
# 1. How much of the perplexity is due to names? *Hint: average `log_prob` over the words that begin
#    with a capital letter, and over the others.*
# 2. Train for 15 epochs with `dropout=0` and with `dropout=0.2`. Which epoch would you keep? *Hint:
#    compare the perplexity of the training text with that of the dev set.*
# 3. Add a cache: a unigram model of the last 50 words, mixed with the others. *Hint: `Mixture`
#    takes any object with `log_prob(token_ids)`, an array of natural logarithms, one for each
#    token. The documents keep to their people and places.*
#
# ## Next
#
# - [Word vectors](02_word_vectors.ipynb): learn the vectors only, without a language model.
# - [Python API](../../reference/api.md): all arguments of `NGram`, `NNLM` and `Mixture`.
