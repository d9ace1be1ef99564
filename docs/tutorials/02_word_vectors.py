# %% [markdown]
# # Word vectors
#
# You learn to train word vectors with skip-gram, GloVe and fastText, and to test them with
# neighbours and analogies. You also make a vector for a word that was never seen. Reading takes 20
# minutes, running about one minute on a laptop without a GPU.
#
# The idea is older than neural networks: words that occur in the same contexts have similar
# meanings (Harris 1954). So a vector that predicts the context of a word describes its meaning.

# %%
import tempfile
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np

from keras_plm.data import read_ids
from keras_plm.datasets import microworld
from keras_plm.models import FastText, GloVe, Word2Vec, WordVectors, cooccurrences
from keras_plm.tokenizers import Words
from keras_plm.training import WarmupLinearDecay

documents = 1500  # in tests: 300
epochs = 5  # in tests: 1
glove_epochs = 30  # in tests: 1

keras.utils.set_random_seed(0)  # initial vectors

# %% [markdown]
# ## A text
#
# The *microworld* is a made-up language with English words. Its meanings are known: the module
# lists groups of words that can replace each other. So we can check whether the vectors find these
# groups.

# %%
path = Path(tempfile.mkdtemp()) / "text.txt"
texts = microworld.World(seed=0).corpus(documents)
path.write_text("\n".join(sentence for document in texts for sentence in document) + "\n")

words = Words.train(path, min_count=5)
ids = read_ids(path, words)  # one stream, [EOS] after every sentence
print(f"{len(words)} words, {len(ids):,} tokens")
print("\n".join(texts[0][:3]))

groups = {name: words_.split() for name, words_ in microworld.NOUNS.items()}
groups |= {name: words_.split() for name, words_ in microworld.VERBS.items()}
groups |= {name: words_.split() for name, words_ in microworld.KINDS.items()}
for name in ("profession", "like", "fruit"):
    print(f"{name}: {', '.join(groups[name])}")

# %% [markdown]
# ## Skip-gram with negative sampling
#
# Skip-gram (Mikolov et al. 2013a, section 3.2) goes through the text. Each word $w$ predicts every
# word $c$ within a window. A softmax over the vocabulary would be slow. Negative sampling (Mikolov
# et al. 2013b, section 2.2) asks an easier question: is $c$ a real neighbour, or was it drawn at
# random? With $v_w$ the vector of the word, $u_c$ the output vector of the neighbour, and $k$ noise
# words $n$, it maximises
#
# $$\log \sigma(u_c \cdot v_w) + \sum_{i=1}^{k} \log \sigma(-u_{n_i} \cdot v_w)$$
#
# Noise words are drawn in proportion to $\mathrm{count}^{3/4}$: frequent words come often, but less
# often than in the text. Frequent words also say little about their neighbours. So a word of
# relative frequency $f$ is kept with probability $\sqrt{t/f} + t/f$ only, with $t = 10^{-3}$ here.

# %%
counts = np.bincount(ids, minlength=len(words))
counts[:3] = 0  # [PAD], [UNK] and [EOS] are no words
frequency = counts / counts.sum()
noise = counts**0.75 / (counts**0.75).sum()
kept = np.minimum(
    1, np.sqrt(1e-3 / np.maximum(frequency, 1e-9)) + 1e-3 / np.maximum(frequency, 1e-9)
)
print("word     frequency   noise    kept")
for word in ("the", "of", "doctor"):
    i = words.vocabulary.index(word)
    print(f"{word:8}{frequency[i]:10.4f}{noise[i]:9.4f}{kept[i]:8.2f}")

# %% [markdown]
# `batches` does all of this: it draws noise, drops frequent words, and makes new windows in each
# epoch. The learning rate falls linearly to zero, as in the original program.

# %%
skip_gram = Word2Vec(len(words), hidden_dim=32, window=5, row_length=64)
batches = skip_gram.batches(ids, negatives=5, sample=1e-3, tokens_per_batch=4096)
skip_gram.compile(WarmupLinearDecay(skip_gram.default_rate, epochs * len(batches)))
history = skip_gram.fit(batches, epochs=epochs, verbose=0)
for epoch, loss in enumerate(history.history["loss_per_word"], start=1):
    print(f"epoch {epoch}: loss per word {loss:.2f}")

# %% [markdown]
# The trained model answers its question. How likely is it that a pair comes from the text, and not
# from the noise?

# %%
v = skip_gram.vectors
u = keras.ops.convert_to_numpy(skip_gram.get_layer("output").embeddings)
for word, neighbour in (("bank", "money"), ("bank", "grass"), ("bank", "violin")):
    score = u[words.vocabulary.index(neighbour)] @ v[words.vocabulary.index(word)]
    print(f"P({neighbour} is a neighbour of {word}) = {1 / (1 + np.exp(-score)):.3f}")

# %% [markdown]
# ## Neighbours
#
# `WordVectors` holds words and vectors. Similarity is the cosine of two vectors. The first three
# rows are special words and are left out.

# %%
vectors = WordVectors.from_vectors(words.vocabulary[3:], skip_gram.vectors[3:])
for word in ("doctor", "loved", "apple", "bridges"):
    nearest = vectors.most_similar(word, count=4)
    print(f"{word:8}", ", ".join(f"{other} {cosine:.2f}" for other, cosine in nearest))

# %% [markdown]
# A number for it: of the three nearest neighbours of a word, the fraction that is in its group.

# %%
group_of = {word: name for name, members in groups.items() for word in members}


def precision(vectors):
    hits = [
        group_of.get(other) == group_of[word]
        for word in group_of
        if word in vectors.words
        for other, _ in vectors.most_similar(word, count=3)
    ]
    return np.mean(hits)


print(f"skip-gram: {precision(vectors):.0%} of the nearest neighbours are in the group")

# %% [markdown]
# ## A picture
#
# 32 dimensions do not fit on a page. A principal component analysis projects them on the two
# directions in which these words differ most. It is a singular value decomposition of the centred
# vectors.

# %%
shown = {
    name: groups[name] for name in ("profession", "like", "make", "product", "fruit", "animal")
}
names = [word for members in shown.values() for word in members]
table = np.stack([vectors.vectors[vectors.id_of(word)] for word in names])
table /= np.linalg.norm(table, axis=1, keepdims=True)
centred = table - table.mean(axis=0)
_, values, directions = np.linalg.svd(centred, full_matrices=False)
points = centred @ directions[:2].T

figure, axes = plt.subplots(figsize=(7, 5))
for name, members in shown.items():
    places = points[[names.index(word) for word in members]]
    axes.scatter(*places.T, s=16, label=name)
    for (x, y), word in zip(places[:3], members[:3], strict=True):
        axes.annotate(word, (x, y), fontsize=7, xytext=(3, 2), textcoords="offset points")
explained = values**2 / (values**2).sum()
axes.set(
    xlabel=f"first component ({explained[0]:.0%})", ylabel=f"second component ({explained[1]:.0%})"
)
axes.legend(fontsize=8)
plt.show()

# %% [markdown]
# ## Analogies
#
# Differences of vectors can carry a relation. "fruit is to fruits as animal is to ..." asks for the
# word nearest to $v_{\text{fruits}} - v_{\text{fruit}} + v_{\text{animal}}$ (Mikolov et al. 2013a,
# section 4).

# %%
for a, b, c in (
    ("fruit", "fruits", "animal"),
    ("vehicle", "vehicles", "instrument"),
    ("dog", "animal", "cart"),
):
    answers = [word for word, _ in vectors.analogy(a, b, c, count=3)]
    print(f"{a} : {b} = {c} : {', '.join(answers)}")


def solved(vectors, questions):
    return np.mean([vectors.analogy(a, b, c)[0][0] == d for a, b, c, d in questions])


kinds = microworld.KINDS
plurals = [(a, f"{a}s", b, f"{b}s") for a in kinds for b in kinds if a != b]
hypernyms = [
    (x, a, y, b)
    for a in kinds
    for b in kinds
    if a != b
    for x in kinds[a].split()[:3]
    for y in kinds[b].split()[:3]
    if x in vectors.words and y in vectors.words
]
print(f"plurals: {solved(vectors, plurals):.0%} of {len(plurals)}")
print(f"kinds of things: {solved(vectors, hypernyms):.0%} of {len(hypernyms)}")

# %% [markdown]
# ## GloVe
#
# Skip-gram reads the text window by window. GloVe (Pennington, Socher and Manning 2014) counts
# first. $X_{ij}$ is the number of times that word $j$ occurs near word $i$, where a neighbour $d$
# places away counts as $1/d$. The model then fits the logarithm of these counts (equation 8):
#
# $$J = \sum_{i,j} f(X_{ij})\, \big(w_i \cdot \tilde w_j + b_i + \tilde b_j - \log X_{ij}\big)^2,
# \qquad f(x) = \min\big(1, (x / x_{\max})^{0.75}\big)$$
#
# The weight $f$ keeps rare pairs from dominating. The vector of a word is $w_i + \tilde w_i$.

# %%
rows, columns, near = cooccurrences(ids, len(words), window=5)
print(f"{len(near):,} pairs of words, of {len(words) ** 2:,} possible ones")

keras.utils.set_random_seed(0)
glove = GloVe(len(words), hidden_dim=32)
glove.fit(
    glove.batches(rows, columns, near, x_max=100, batch_size=8192),
    epochs=glove_epochs,
    verbose=0,
)
glove_vectors = WordVectors.from_vectors(words.vocabulary[3:], glove.vectors[3:])

# %%
chosen = np.random.default_rng(0).permutation(len(near))[:3000]
scores = glove.predict_on_batch({"rows": rows[chosen], "columns": columns[chosen]})
figure, axes = plt.subplots(figsize=(5, 4))
axes.scatter(np.log(near[chosen]), scores, s=4, alpha=0.4)
axes.axline((0, 0), slope=1, color="gray", linewidth=1)
axes.set(xlabel="log X", ylabel="score of the model")
plt.show()

# %% [markdown]
# Frequent pairs lie on the line, rare pairs do not: their weight is small.
#
# ## fastText
#
# Both methods have one vector for each word of the vocabulary, and none for any other word.
# fastText (Bojanowski et al. 2017, section 3.2) makes the vector of a word from vectors of its
# character n-grams:


# %%
def character_ngrams(word, shortest=3, longest=5):
    word = f"<{word}>"
    return [word[i : i + n] for n in range(shortest, longest + 1) for i in range(len(word) - n + 1)]


print(character_ngrams("doctors"))
print(
    "in common with doctor:", sorted({*character_ngrams("doctors")} & {*character_ngrams("doctor")})
)

# %%
keras.utils.set_random_seed(0)
fasttext = FastText(words.vocabulary, hidden_dim=32, window=5, row_length=64, min_n=3, max_n=5)
batches = fasttext.batches(ids, sample=1e-3, tokens_per_batch=4096)
fasttext.compile(WarmupLinearDecay(fasttext.default_rate, epochs * len(batches)))
fasttext.fit(batches, epochs=epochs, verbose=0)

subwords = fasttext.subword_vectors()  # n-grams included
fasttext_vectors = WordVectors.from_vectors(words.vocabulary[3:], fasttext.vectors[3:])

# %% [markdown]
# None of the following words is in the text.

# %%
new = ["doctors", "wonderfully", "enjoying", "neighbourhood", "xylophone"]
both = WordVectors.from_vectors(
    [*fasttext_vectors.words, *new],
    np.concatenate([fasttext_vectors.vectors[3:], subwords.vectors(new)]),
)
for word in new:
    nearest = [other for other, _ in both.most_similar(word, count=20) if other not in new][:4]
    print(f"{word:14} {', '.join(nearest)}")

# %% [markdown]
# A new form of a known word is close to that word. "xylophone" shares hardly any n-gram with a
# known word, so its neighbours mean nothing.
#
# ## Compare

# %%
print("           neighbours   plurals   kinds of things")
models = {"skip-gram": vectors, "GloVe": glove_vectors, "fastText": fasttext_vectors}
for name, model in models.items():
    row = precision(model), solved(model, plurals), solved(model, hypernyms)
    print(f"{name:10}{row[0]:12.0%}{row[1]:10.0%}{row[2]:18.0%}")

# %% [markdown]
# This is one seed on a small, regular text. Do not conclude that one method is better. On ten
# million words of real text no method is ahead in every column: see [Word
# vectors](../../results/word_vectors.md).
#
# ## Limits
#
# A word has one vector, whatever its sentence. "bank" has two senses in this text, and its
# neighbours mix them. And words of opposite meaning occur in the same contexts:

# %%
for word in ("bank", "good"):
    print(f"{word:6}", ", ".join(other for other, _ in vectors.most_similar(word, count=6)))

# %% [markdown]
# Models that give a word a vector *in its sentence* solve the first problem. ELMo, GPT and BERT are
# such models.
#
# ## Save
#
# The file format of word2vec is text: a word and its numbers on each line. Other programs read it,
# and `WordVectors.read` reads theirs.

# %%
file = path.parent / "vectors.txt"
vectors.write(file)
again = WordVectors.read(file, words=["doctor", "teacher", "apple"])
print(again.words, round(again.similarity("doctor", "teacher"), 3))

# %% [markdown]
# `WordVectors` is also a Keras model with one layer. All heads and readers of the library take it
# as an encoder.
#
# ## Exercises
#
# 1. Train skip-gram with `window=2` and with `window=8`. Which neighbours of "apple" change? *Hint:
#    in this text, what distinguishes a fruit from a vehicle stands several words away.*
# 2. Levy and Goldberg (2014, section 3.1) show that $u_c \cdot v_w$ approximates the pointwise
#    mutual information of the pair minus $\log k$. Plot one against the other. *Hint: count pairs
#    with `cooccurrences`, and train with `sample=None`.*
# 3. Train CBOW (`architecture="cbow"`) and hierarchical softmax
#    (`objective="hierarchical_softmax"`). *Hint: the learning rate of each is `model.default_rate`;
#    put the results into the table of "Compare".*
#
# ## Next
#
# - [Attention](03_attention.ipynb): a network that chooses what to read.
# - [ELMo](05_elmo.ipynb): vectors of words in their sentence.
# - [Word vectors](../../results/word_vectors.md): results on real text.
# - [Python API](../../reference/api.md): all arguments.
