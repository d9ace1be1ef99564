# %% [markdown]
# # Names in text, with a BiLSTM-CRF
#
# You learn how tags mark spans, what a conditional random field (CRF) computes, and how to find the names of WikiGold
# with a BiLSTM-CRF on features of BERT. Reading takes 20 minutes, running two to three minutes on a laptop without a
# GPU.

# %%
import itertools
import tempfile
from collections import Counter

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_plm
from keras_plm import metrics
from keras_plm.datasets.tasks import TASKS
from keras_plm.heads import CRFTagger, Tagger
from keras_plm.layers import CRF, allowed_transitions, crf_losses, marginals, viterbi
from keras_plm.transfer import FeatureBased

train_limit = 1189  # in tests: 8
test_limit = 262  # in tests: 4
epochs = 6  # in tests: 1
units = 64  # in tests: 4
heads = {"softmax": Tagger, "CRF": CRFTagger}  # in tests: {"CRF": CRFTagger}

# %% [markdown]
# ## Spans and tags
#
# A name is a span: a type, a first word and a last word. A tagger gives one tag to each word, so spans are written as
# tags. In the scheme IOB2, `B-PER` begins a person, `I-PER` continues it, and `O` is outside of all names. IOB1 uses
# `B-` only where a name follows another one of its type. `spans` reads both:

# %%
words = "Ada Lovelace met Charles Babbage in London".split()
tags = ["B-PER", "I-PER", "O", "B-PER", "I-PER", "O", "B-LOC"]
for kind, first, end in metrics.spans(tags):
    print(f"{kind}  words {first} to {end - 1}:  {' '.join(words[first:end])}")

# %% [markdown]
# A span counts only if its type and both its ends are right (Tjong Kim Sang and De Meulder 2003, section 2.3).
# Precision is the fraction of the found spans that are right, recall the fraction of the true spans that are found,
# and $F_1$ their harmonic mean:
#
# $$F_1 = \frac{2 P R}{P + R}$$
#
# So a tagger that misses one word of a name pays twice: one span too many, one missing.

# %%
found = ["B-PER", "O", "O", "B-PER", "I-PER", "O", "B-LOC"]  # "Ada" instead of "Ada Lovelace"
scores = metrics.span_scores([tags], [found])["all"]
print({name: round(scores[name], 2) for name in ("precision", "recall", "f1")})
print("words with the right tag:", f"{sum(a == b for a, b in zip(tags, found, strict=True))} of 7")

# %% [markdown]
# ## From independent tags to a CRF
#
# A tagger with a softmax chooses each tag by itself. Nothing keeps it from writing `O I-PER`, or `B-PER I-LOC`. A
# linear-chain CRF (Lafferty et al. 2001; for neural taggers Huang et al. 2015, section 2.4) scores the tags of a
# whole sentence. With $x_{t,k}$ the network's score of tag $k$ at word $t$, and a learned score $A_{j,k}$ for tag
# $k$ right after tag $j$:
#
# $$s(y) = \sum_{t=1}^{T} x_{t, y_t} + \sum_{t=2}^{T} A_{y_{t-1}, y_t} + b_{y_1} + e_{y_T}, \qquad
# p(y) = \frac{\exp s(y)}{\sum_{y'} \exp s(y')}$$
#
# $b$ and $e$ score the first and the last tag. Four words and three tags have $3^4 = 81$ sequences, few enough to
# try all of them:

# %%
rng = np.random.default_rng(0)
steps, count = 4, 3
x = rng.normal(size=(steps, count)).astype("float32")
A = rng.normal(size=(count, count)).astype("float32")
b, e = rng.normal(size=(2, count)).astype("float32")


def score(y):
    inside = sum(x[t, y[t]] for t in range(steps)) + sum(A[i, j] for i, j in itertools.pairwise(y))
    return inside + b[y[0]] + e[y[-1]]


sequences = list(itertools.product(range(count), repeat=steps))
every = np.array([score(y) for y in sequences])
log_z = np.log(np.exp(every).sum())
y = (0, 2, 1, 1)
print(f"-log p{y} over {len(sequences)} sequences: {log_z - score(y):.5f}")

# %% [markdown]
# A sentence of 20 words and 9 tags has $9^{20}$ sequences. The *forward algorithm* needs only $T K^2$ sums. Let
# $\alpha_t(k)$ be the log of the summed scores of all beginnings that end in tag $k$ at word $t$. Each beginning
# extends one that is a word shorter:
#
# $$\alpha_t(k) = \log \sum_j \exp\left(\alpha_{t-1}(j) + A_{j,k}\right) + x_{t,k}$$
#
# `layers.CRF` adds $A$, $b$ and $e$ to the network's scores. `crf_losses` runs the forward algorithm and gives
# $-\log p(y)$ in parts, one per word. All three agree:

# %%
alpha = b + x[0]
for t in range(1, steps):
    alpha = np.log(np.exp(alpha[:, None] + A).sum(axis=0)) + x[t]
forward = np.log(np.exp(alpha + e).sum()) - score(y)

crf = CRF()
crf.build((1, steps, count))
crf.set_weights([A, b, e])
edges = crf(x[None])  # (1, T, K, K): the score of each tag after each tag of the word before
by_layer = keras.ops.convert_to_numpy(crf_losses(np.array([y]), edges)).sum()
print(f"forward algorithm: {forward:.5f}, by the layer: {by_layer:.5f}")

# %% [markdown]
# ## The best tags
#
# The Viterbi algorithm (Viterbi 1967) is the forward algorithm with a maximum instead of the sum. It also notes
# which tag before gave the maximum, and then follows these notes from the end. The result is the best sequence of
# all, which need not hold the best tag of each word.

# %%
best, notes = b + x[0], []
for t in range(1, steps):
    sums = best[:, None] + A
    notes.append(sums.argmax(axis=0))
    best = sums.max(axis=0) + x[t]
path = [int((best + e).argmax())]
for note in reversed(notes):
    path.append(int(note[path[-1]]))

edges = keras.ops.convert_to_numpy(edges)[0]
print("all sequences:    ", sequences[every.argmax()])
print("Viterbi by hand:  ", tuple(path[::-1]))
print("viterbi:          ", tuple(viterbi(edges)[0]))
print("best tag per word:", tuple(x.argmax(axis=1).tolist()))

# %% [markdown]
# `marginals` gives the probability of each tag at each word, summed over all sequences. `allowed_transitions` states
# which tag may follow which in a scheme, and `viterbi(edges, allowed)` obeys it.

# %%
p = np.exp(every - log_z)
by_hand = [sum(p[i] for i, s in enumerate(sequences) if s[0] == k) for k in range(count)]
print("first word, by hand:  ", np.round(by_hand, 4))
print("first word, marginals:", np.round(marginals(edges)[0], 4))
print("allowed in IOB2, from O, B-PER, I-PER, start; to O, B-PER, I-PER, end:")
print(allowed_transitions(["O", "B-PER", "I-PER"], "IOB2")[:4][:, [0, 1, 2, 4]].astype(int))

# %% [markdown]
# ## Names of WikiGold
#
# WikiGold (Balasuriya et al. 2009) holds 145 documents of Wikipedia with four types of names. It ships with the
# library. Its tags are IOB1.

# %%
task = TASKS["wikigold"]
train = task.read(None, "train")[:train_limit]
dev, test = (task.read(None, split)[:test_limit] for split in ("dev", "test"))
names = Counter(kind for example in train for kind, _, _ in metrics.spans(example.label))
print(len(train), "sentences to train on, with", dict(names))

# %% [markdown]
# The network reads, for each word, a learned mix of all layers of the frozen BERT-mini and a convolution over the
# letters of the word. Two bidirectional LSTMs put each word into its context. Then comes the output layer, with a
# softmax for each word (`Tagger`) or a CRF over all (`CRFTagger`). This is the tagger of Peters et al. 2018
# (section 4, named entities), with BERT in the place of ELMo.
#
# The dev set picks the best epoch. Both heads share the stored features.

# %%
encoder, tokenizer = keras_plm.load("benchmarks/weights/bert_mini")
method = FeatureBased(
    layers="mix",
    reader="bilstm",
    units=units,
    character_filters=32,
    learning_rate=5e-3,
    epochs=epochs,
)
folder = tempfile.mkdtemp()
models = {}
for name, head in heads.items():
    models[name] = method.fit(encoder, head, tokenizer, train, dev, store=folder)

texts, truth = [example.text for example in test], [example.label for example in test]
predicted = {name: model.predict(texts) for name, model in models.items()}
for name, tags in predicted.items():
    print(f"{name:8} F1 {100 * metrics.span_f1(truth, tags):.1f}")

# %% [markdown]
# These are results of one seed, six epochs and one learning rate, so they do not rank the two heads:
# [Which layers to read](09_which_layers.ipynb) shows how to measure the noise. Huang et al. 2015 (table 2) find that
# the CRF helps on CoNLL-2003.
#
# The scores by type, of the CRF:

# %%
by_type = metrics.span_scores(truth, predicted["CRF"])
print(f"{'type':6} {'true':>5} {'found':>6} {'precision':>10} {'recall':>7} {'F1':>6}")
for kind, row in by_type.items():
    if kind != "accuracy":
        print(
            f"{kind:6} {row['true']:5} {row['found']:6} {100 * row['precision']:10.1f} "
            f"{100 * row['recall']:7.1f} {100 * row['f1']:6.1f}"
        )

# %% [markdown]
# ## Learned transitions
#
# The matrix $A$ after training. Rows are the tag of the word before, columns the tag of the word. A name mostly
# continues with its own type, and rarely changes it.

# %%
model = models["CRF"]
(crf,) = (layer for layer in model.task_network.layers if isinstance(layer, CRF))
learned = keras.ops.convert_to_numpy(crf.transitions)
figure, axes = plt.subplots(figsize=(5.5, 4.5))
limit = abs(learned).max() or 1
picture = axes.imshow(learned, cmap="RdBu", vmin=-limit, vmax=limit)
axes.set_xticks(range(len(model.labels)), model.labels, rotation=90)
axes.set_yticks(range(len(model.labels)), model.labels)
axes.set_xlabel("tag of the word")
axes.set_ylabel("tag of the word before")
figure.colorbar(picture, label="score of the transition")
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Errors
#
# A wrong span has one of four kinds. Look at them before you change the model: missing names ask for more data or a
# better encoder, wrong types for more context, wrong ends for the annotation guide.


# %%
def errors(gold, found):
    """Pairs of a kind of error and its span."""
    gold, found = set(metrics.spans(gold)), set(metrics.spans(found))
    for span in sorted(found - gold, key=lambda span: span[1]):
        kind, first, end = span
        overlaps = [g for g in gold if g[1] < end and first < g[2]]
        if any(g[1:] == (first, end) for g in overlaps):
            yield "wrong type", span
        elif overlaps:
            yield "wrong ends", span
        else:
            yield "no name", span
    for span in sorted(gold - found, key=lambda span: span[1]):
        if not any(f[1] < span[2] and span[1] < f[2] for f in found):
            yield "missed", span


kinds, shown = Counter(), Counter()
for text, gold, tags in zip(texts, truth, predicted["CRF"], strict=True):
    for error, (kind, first, end) in errors(gold, tags):
        kinds[error] += 1
        if kinds[error] <= 3:
            context = " ".join(text[max(0, first - 4) : first])
            print(f"{error:11} ... {context} [{' '.join(text[first:end])}] {kind}")
print(dict(kinds))

# %% [markdown]
# ## Use the tagger
#
# `predict` takes lists of words. With `probabilities=True` it gives the marginals of each word, which tell how sure
# the CRF is.

# %%
sentence = "Mary Shelley was born in London , and wrote for Blackwood 's Magazine .".split()
(tags,), (sure,) = model.predict([sentence]), model.predict([sentence], probabilities=True)
for word, tag, row in zip(sentence, tags, sure, strict=True):
    print(f"{word:10} {tag:7} {row[model.labels.index(tag)]:.2f}")

# %% [markdown]
# ## Exercises
#
# 1. Read word vectors instead of BERT. How much of the score comes from context?
#    Hint: `keras_plm.load("benchmarks/weights/books_skip_gram")` gives an encoder with one layer; set `layers="last"`.
# 2. Leave out the letters. Which type of name loses most?
#    Hint: `character_filters=0`; print `span_scores` for both.
# 3. Write the *backward* algorithm and compute the marginals of all words by hand.
#    Hint: $\beta_T(k) = e_k$, and $\beta_t(j) = \log \sum_k \exp(A_{j,k} + x_{t+1,k} + \beta_{t+1}(k))$.
#
# ## Next
#
# - [Questions](11_questions.ipynb): spans without tags.
# - [Your own task](../../how-to/own_task.md): a tagger for a CoNLL, CSV or JSONL file of yours.
# - [Features or fine-tuning](../../results/features_or_fine_tuning.md): WikiGold with every encoder and method.
