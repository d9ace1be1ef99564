# %% [markdown]
# # ELMo: a vector of a word in its sentence
#
# Pre-train a small bidirectional language model, see one word get two vectors for two senses, mix
# the layers, and put the features of a pre-trained ELMo under a tagger. The page takes about 20
# minutes to read and about a minute to run.
#
# [Word vectors](02_word_vectors.ipynb) give every word one vector. *May* in "in may it rains" and
# *may* in "you may go" then share it. ELMo ("Embeddings from Language Models") computes the vector
# of a word from the whole sentence: Peters et al. 2018, "Deep contextualized word representations".

# %%
import tempfile
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_plm
from keras_plm import metrics
from keras_plm.data import TokenStream
from keras_plm.datasets.microworld import World
from keras_plm.heads import Tagger
from keras_plm.layers import ScalarMix
from keras_plm.models import ELMO_SIZES, ELMo
from keras_plm.pretraining import BiLM
from keras_plm.tokenizers import Characters, Words
from keras_plm.training import set_seed
from keras_plm.transfer import FeatureBased, extract_features

repeats = 12  # in tests: 2
passes = 8  # in tests: 1
train_limit = 300  # in tests: 8
test_limit = 300  # in tests: 8
epochs = 15  # in tests: 1
choices = ["embeddings", "layer_1", "last", "elmo_mix"]  # in tests: ["elmo_mix"]

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## The text
#
# Sentences from templates, so that we know the sense of each *may*: a month or a modal verb.

# %%
months, modals = "may june april march".split(), "may can must will".split()
of_months = ["in {} it rains a lot .", "we met in {} .", "the fair begins in {} every year ."]
of_modals = ["you {} go home now .", "they {} not come back .", "she {} sell the old house ."]
sentences = [text.format(word) for text in of_months for word in months]
sentences += [text.format(word) for text in of_modals for word in modals]
rng = np.random.default_rng(0)
lines = [sentences[i] for _ in range(repeats) for i in rng.permutation(len(sentences))]
(folder / "senses.txt").write_text("\n".join(lines) + "\n")
print(f"{len(lines)} sentences, {len(sentences)} different ones:", *sentences[:2], sep="\n")

# %% [markdown]
# ## The objective
#
# A forward language model predicts each word from those before it, a backward one from those after
# it. The biLM maximises the sum of both log likelihoods (section 3.1):
#
# $$ \sum_{k=1}^{N} \log p(t_k \mid t_1, \ldots, t_{k-1}) + \log p(t_k \mid t_{k+1}, \ldots, t_N) $$
#
# Each direction is a stack of LSTMs. Both share the network that reads a word and the softmax that
# predicts one. A word enters as its characters: convolutions over character vectors, a highway
# layer and a projection. No word is unknown at the input. At the output the model predicts the
# words of a vocabulary.

# %%
words = Words.train(folder / "senses.txt")
stream = TokenStream.build([folder / "senses.txt"], words, folder / "stream", sentences="lines")
set_seed(0)
elmo = ELMo(**ELMO_SIZES["tiny"])  # two layers, 64 wide in each direction
model = BiLM(elmo, len(words), num_sampled=0, batch_size=8)  # no sampled softmax: few words
model.compile()  # the published loss, AdaGrad at 0.2

# %% [markdown]
# A batch holds both directions: axis 1 of `word_rows` and `target_ids` is forward, then backward.
# The backward network reads each sentence from its end.

# %%
batches = model.batches(stream, words, unroll_steps=10)
x, y, _ = batches[0]
spelled = ["".join(chr(c - 1) for c in row if 0 < c - 1 < 256) for row in x["words"]]
for direction, name in enumerate(("forward", "backward")):
    print(f"{name}: word that is read -> word to predict")
    for row, target in zip(
        x["word_rows"][0, direction], x["target_ids"][0, direction], strict=True
    ):
        print(f"  {spelled[row]!r:10} -> {words.vocabulary[target]}")

# %% [markdown]
# The character ids 257 and 258 mark begin and end of a sentence and have no letter here, so that
# their spelling is empty.
#
# Perplexity is $e$ to the mean negative log probability of a word, in each direction.

# %%
history = model.fit(batches, epochs=passes, verbose=0).history
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for name, marker in (("forward", "o"), ("backward", "s")):
    axes.plot(np.arange(1, passes + 1), history[f"{name}_perplexity"], marker=marker, label=name)
axes.set_yscale("log")
axes.set_xlabel("pass over the text (perplexity is the mean of a pass)")
axes.set_ylabel("perplexity of a word")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Two senses, two vectors
#
# `extract_features` gives a vector of each word from the layers that you name. Layer 0 is the word
# without its context, layers 1 and 2 are the LSTMs. We compare *may* the month with *june*, and
# with *may* the modal verb, by the cosine
#
# $$ \cos(u, v) = \frac{u \cdot v}{\lVert u \rVert \, \lVert v \rVert} $$


# %%
def cosine(u, v):
    return float(u @ v / np.linalg.norm(u) / np.linalg.norm(v))


characters = Characters()
texts = ["in may it rains a lot .", "in june it rains a lot .", "you may go home now ."]
for layer in ("layer_0", "layer_1", "layer_2"):
    may, june, modal = (v[1] for v in extract_features(elmo, characters, texts, layer))
    same, other = cosine(may, june), cosine(may, modal)
    print(f"{layer}: may (month) and june {same:.2f}, may (month) and may (modal) {other:.2f}")

# %% [markdown]
# In layer 0 both *may* have one vector: cosine 1. Above it the context decides. The two main
# directions of all twelve occurrences of *may*, *june* and *can* show the same:

# %%
shown = [(text.format(word), word, "month") for text in of_months for word in ("may", "june")]
shown += [(text.format(word), word, "modal verb") for text in of_modals for word in ("may", "can")]
figure, panels = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
for layer, axes in enumerate(panels):
    features = extract_features(elmo, characters, [text for text, *_ in shown], f"layer_{layer}")
    vectors = np.stack(
        [v[text.split().index(word)] for v, (text, word, _) in zip(features, shown, strict=True)]
    )
    centred = vectors - vectors.mean(axis=0)
    xy = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T  # principal components
    for (x0, x1), (_, word, sense) in zip(xy, shown, strict=True):
        colour = "tab:blue" if sense == "month" else "tab:orange"
        axes.scatter(x0, x1, color=colour, marker="o" if word == "may" else "x")
    axes.set_title(f"layer {layer}")
    axes.set_xlabel("first component")
panels[0].set_ylabel("second component")
figure.suptitle("blue: month, orange: modal verb; dots: may, crosses: june and can")
plt.show()

# %% [markdown]
# ## The mix of layers
#
# A task reads all layers as one vector, with weights that it learns (equation 1):
#
# $$ \mathrm{ELMo}_k = \gamma \sum_{j=0}^{L} s_j h_{k,j}, \qquad s = \mathrm{softmax}(w) $$
#
# The scalars $w_j$ and $\gamma$ are all that the task adds. `ScalarMix` is this layer; in NumPy it
# is three lines.

# %%
inputs = {name: keras.ops.convert_to_tensor(a) for name, a in characters.pack(texts).items()}
layers = elmo(inputs)["layers"]  # L + 1 tensors (B, T, D), the lowest first
mix = ScalarMix(num_layers=len(layers))
mixed = keras.ops.convert_to_numpy(mix(layers))

h = np.stack([keras.ops.convert_to_numpy(layer) for layer in layers])  # (L + 1, B, T, D)
w, gamma = np.zeros(len(h)), 1.0  # as `ScalarMix` starts
s = np.exp(w) / np.exp(w).sum()
by_hand = gamma * np.tensordot(s, h, axes=1)
print("weights", s.round(3), "largest difference", np.abs(by_hand - mixed).max())

# %% [markdown]
# ## An ELMo that read novels
#
# `benchmarks/weights/elmo_mini` holds an ELMo of two layers, 128 wide in each direction, that read
# 29 million words of novels. Below are sentences with a word in two senses, written for this page.
# For each one, the nearest of the other five is the one with the highest cosine of the word's
# vectors.

# %%
mini, mini_characters = keras_plm.load("benchmarks/weights/elmo_mini")
senses = {
    "rose": [
        ("flower", "He gave her a red rose from the garden ."),
        ("flower", "There was a white rose upon the table ."),
        ("flower", "She wore a rose in her hair ."),
        ("stood up", "The old man rose from his chair ."),
        ("stood up", "She rose and went to the window ."),
        ("stood up", "Then he rose to his feet again ."),
    ],
    "kind": [
        ("gentle", "She was always kind to the poor ."),
        ("gentle", "You are very kind , sir ."),
        ("gentle", "He was a good and kind man ."),
        ("sort", "It was a kind of small boat ."),
        ("sort", "I never saw anything of the kind ."),
        ("sort", "What kind of house is it ?"),
    ],
    "left": [
        ("went away", "They left the town in the morning ."),
        ("went away", "He left her without a word ."),
        ("went away", "The ship left the harbour at noon ."),
        ("side", "She held it in her left hand ."),
        ("side", "The door on the left was open ."),
        ("side", "His left arm was broken ."),
    ],
}


def nearest(word, layer):
    """For each sentence the number of the nearest other one."""
    texts = [text.split() for _, text in senses[word]]
    features = extract_features(mini, mini_characters, texts, layer)
    vectors = np.stack([v[text.index(word)] for v, text in zip(features, texts, strict=True)])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similar = unit @ unit.T
    np.fill_diagonal(similar, -np.inf)
    return similar.argmax(axis=1)


for word, occurrences in senses.items():
    for layer in ("layer_1", "layer_2"):
        found = nearest(word, layer)
        right = [occurrences[i][0] == occurrences[j][0] for i, j in enumerate(found)]
        print(f"{word}, {layer}: nearest has the same sense in {sum(right)} of {len(right)}")
for i, j in enumerate(nearest("rose", "layer_2")):
    print(f"{senses['rose'][i][1]:42} -> {senses['rose'][j][1]}")

# %% [markdown]
# By chance the nearest of five others has the same sense in two of five cases. Eighteen sentences
# are an illustration. [Results of ELMo](../../results/elmo.md) measures it on 21,065 words of
# English text.
#
# ## Features under a tagger
#
# The task: tag names of a made-up language as people, places and firms. All names come from one
# pool, so a name itself does not tell its type. The encoder stays frozen; an output layer, and for
# `elmo_mix` the weights of the mix, learn. `embeddings` is layer 0, the word without context.

# %%
world = World(seed=0)
train = world.tag_names("train")[:train_limit]
test = world.tag_names("test")[:test_limit]
print(" ".join(f"{w}/{t}" for w, t in zip(train[0].text, train[0].label, strict=True)))

truth, scores = [example.label for example in test], {}
for layers in choices:
    method = FeatureBased(layers=layers, learning_rate=1e-2, epochs=epochs, seed=0)
    tagger = method.fit(mini, Tagger, mini_characters, train, store=folder / "features")
    scores[layers] = metrics.span_f1(truth, tagger.predict(test))
    print(f"{layers:12} F1 of names {scores[layers]:.3f}")

# %%
figure, axes = plt.subplots(figsize=(5, 2.5), layout="constrained")
axes.barh([name.replace("_", " ") for name in scores], list(scores.values()))
axes.set_xlim(0, 1)
axes.set_xlabel(f"F1 of names, test set, {len(train)} training examples")
axes.set_ylabel("layers that are read")
plt.show()

# %% [markdown]
# The learned weights $s_j$ of the mix, lowest layer first:

# %%
print(tagger.mixing_weights())

# %% [markdown]
# These scores are of one seed and a made-up language. On real text, with seeds and intervals, see
# [results of ELMo](../../results/elmo.md).
#
# A task network such as a BiLSTM can read the features instead of an output layer:
# `reader="bilstm"` in `FeatureBased`, with the mix at its input, its output or both (`placement=`,
# section 3.3 and table 3 of the paper). `penalty=` is the λ of the paper: 1 keeps the mix near the
# plain mean, 0.001 lets it vary.
#
# ## Exercises
#
# 1. Pre-train with the forward direction only in mind: read the first half of each vector. Does
#    "may it rain ?" get the sense of its *may* right? *Hint: a vector is forward, then backward,
#    each 64 wide; add such sentences to the templates.*
# 2. Replace `elmo_mini` by an ELMo of random weights under the tagger. *Hint:
#    `ELMo.from_config(mini.get_config())` after `set_seed`.*
# 3. Train a BiLSTM over the mix, at the input and at both places. *Hint: `reader="bilstm"`,
#    `placement="both"`, `feature_dropout=0.5`; compare three seeds of each.*
#
# ## Next
#
# [GPT](06_gpt.ipynb) replaces the LSTMs by a Transformer and fine-tunes all of it.
# [Names](10_names.ipynb) builds a complete tagger. [Functions and classes](../../reference/api.md)
# lists all arguments.
