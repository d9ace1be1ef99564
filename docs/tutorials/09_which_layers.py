# %% [markdown]
# # Which layers of an encoder to read
#
# You learn to compare the layers of a frozen encoder on a task, to tell a difference from noise, and to read what a
# choice costs. Reading takes 20 minutes, running two to three minutes on a laptop without a GPU.
#
# An encoder with $L$ blocks gives $L + 1$ vectors for each word: $h_0$ from the embeddings, then $h_1, \dots, h_L$
# from the blocks. A *feature-based* method freezes the encoder, reads some of these vectors, and trains a small
# network on them. BERT's paper compares six choices on named entities (Devlin et al. 2018, section 5.3, table 7).
# ELMo's paper learns a weighted sum (Peters et al. 2018, section 3.2). Both are one call here.

# %%
import tempfile
import time

import keras
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import t as student_t

import keras_plm
from keras_plm import metrics, plots
from keras_plm.datasets.tasks import TASKS
from keras_plm.heads import Tagger
from keras_plm.layers import ScalarMix
from keras_plm.transfer import FeatureBased, FeatureStore, compare_layers, layer_choice

train_limit = 1189  # in tests: 8
test_limit = 262  # in tests: 8
elmo_limit = 400  # in tests: 8
seeds = 4  # in tests: 2
epochs = 8  # in tests: 1
choices = None  # in tests: ["elmo_mix"]
penalties = (0.0, 1.0)  # in tests: (1.0,)

# %% [markdown]
# ## Task and encoder
#
# WikiGold has sentences of Wikipedia in which persons, places, organizations and other names are marked
# (Balasuriya et al. 2009). It ships with the library, so `read` needs no data folder. The three parts share no
# document.
#
# The encoder is BERT-mini: 4 blocks, 256 wide, pre-trained on novels. It never saw Wikipedia.

# %%
task = TASKS["wikigold"]
examples = {split: task.read(None, split) for split in ("train", "dev", "test")}
examples = {
    "train": examples["train"][:train_limit],
    "dev": examples["dev"][:test_limit],
    "test": examples["test"][:test_limit],
}
print({split: len(part) for split, part in examples.items()}, "sentences")
for word, tag in list(zip(examples["train"][0].text, examples["train"][0].label, strict=True))[
    5:14
]:
    print(f"{word:10} {tag}")

encoder, tokenizer = keras_plm.load("benchmarks/weights/bert_mini")

# %% [markdown]
# ## All layers at once
#
# The encoder does not change, so it runs only once. `FeatureStore` keeps every layer of every word in a folder. A
# word gets the vector of its first subword token, as in BERT's paper.

# %%
folder = tempfile.mkdtemp()
began = time.perf_counter()
stores = {
    split: FeatureStore.build(folder, encoder, tokenizer, part) for split, part in examples.items()
}
print(
    f"features of {sum(map(len, stores.values()))} sentences: {time.perf_counter() - began:.0f} s"
)

store = stores["test"]
h = np.array(store.array[: store.counts[0]], "float32")  # the first sentence
print("words, layers, width:", h.shape)

# %% [markdown]
# ## Choices
#
# A choice turns the vectors $h_0, \dots, h_L$ of a word into one:
#
# - a single layer: $h_j$,
# - the last four, side by side: $[h_{L-3}; \dots; h_L]$, four times as wide,
# - their mean, with nothing to learn,
# - a learned mix. ELMo's (Peters et al. 2018, equation 1) has a scalar $w_j$ for each layer and a scale $\gamma$,
#   which are trained with the task:
#
# $$\mathrm{mix} = \gamma \sum_{j=0}^{L} s_j h_j, \qquad s = \mathrm{softmax}(w)$$
#
# In NumPy, and by the layer that learns it:


# %%
def mix(h, w, gamma):
    s = np.exp(w) / np.exp(w).sum()
    return gamma * np.einsum("j,wjd->wd", s, h)


layer = ScalarMix(num_layers=h.shape[1])
layer.build((1, *h.shape))
w = np.linspace(-1, 1, h.shape[1])
layer.set_weights([w, np.array(1.5)])
by_layer = keras.ops.convert_to_numpy(layer(h[None]))[0]
print("largest difference:", abs(mix(h, w, 1.5) - by_layer).max())

# %% [markdown]
# ## Comparison
#
# `compare_layers` trains one network per choice and seed, here a linear layer under a softmax: a *probe*. It can use
# only what the vectors state openly. A BiLSTM instead of it (`reader="bilstm"`, as in BERT's table) would find more,
# take longer, and hide part of the difference between layers.
#
# For each run, the dev set picks the best epoch. The score is the F1 of whole names on the test set. The learning rate
# is not tuned for each choice, to save time: `keras-plm layers` does that.

# %%
seconds, last = {}, [time.perf_counter()]


def progress(row):
    seconds[row["layers"]] = (time.perf_counter() - last[0]) / seeds
    last[0] = time.perf_counter()


method = FeatureBased(learning_rate=1e-2, epochs=epochs, batch_size=64)
table = compare_layers(
    encoder, tokenizer, examples, Tagger, method, choices, seeds, store=folder, progress=progress
)


def interval(scores):
    """Half the width of the 95 % interval of a mean, by Student's t."""
    return student_t.ppf(0.975, len(scores) - 1) * np.std(scores, ddof=1) / np.sqrt(len(scores))


for row in sorted(table, key=lambda row: -row["mean"]):
    print(f"{row['layers']:24} {100 * row['mean']:5.1f} ± {100 * interval(row['scores']):.1f}")

# %% [markdown]
# The number after ± is the 95 % interval of the mean over seeds. For $n$ seeds with standard deviation $\sigma$ it is
#
# $$\bar{x} \pm t_{0.975,\, n-1} \, \frac{\sigma}{\sqrt{n}}$$
#
# The picture shows the same numbers.

# %%
ranked = sorted(table, key=lambda row: row["mean"])
figure, axes = plt.subplots(figsize=(7, 4))
for place, row in enumerate(ranked):
    axes.errorbar(
        100 * row["mean"], place, xerr=100 * interval(row["scores"]), fmt="o", color="#0072b2"
    )
    axes.plot([100 * score for score in row["scores"]], [place] * seeds, "|", color="#999999")
axes.set_yticks(range(len(ranked)), [row["layers"].replace("_", " ") for row in ranked])
axes.set_xlabel("F1 of names on the test set; dots: mean over seeds, ticks: single seeds")
axes.set_ylabel("layers read")
axes.grid(axis="x", color="#e4e4e4")
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Difference or noise
#
# The interval over seeds answers one question: would the mean move with other seeds? Seeds change the initial
# weights, the order of the examples, dropout, and so the epoch that the dev set picks.
#
# The test set is a second source of noise. It holds a few hundred names, and another sample of sentences would give
# another score. The *paired bootstrap* (Koehn 2004, section 4) draws sentences with replacement, the same for both
# methods, and looks at how the difference of their F1 varies. F1 needs only three counts per sentence:
#
# $$F_1 = \frac{2 \cdot \mathrm{correct}}{\mathrm{true} + \mathrm{found}}$$


# %%
def counts(truth, predicted):
    rows = []
    for gold, found in zip(truth, predicted, strict=True):
        gold, found = set(metrics.spans(gold)), set(metrics.spans(found))
        rows.append((len(gold & found), len(gold), len(found)))
    return np.array(rows)


def f1(counts):
    correct, true, found = np.moveaxis(counts, -1, 0)
    return 2 * correct / np.maximum(true + found, 1)


def trained(layers, encoder=encoder, tokenizer=tokenizer, limit=train_limit, **options):
    settings = dict(learning_rate=1e-2, epochs=epochs, batch_size=64, layers=layers, **options)
    train, dev = examples["train"][:limit], examples["dev"][:limit]
    return FeatureBased(**settings).fit(encoder, Tagger, tokenizer, train, dev, store=folder)


best = ranked[-1]["layers"]
models = {name: trained(name) for name in dict.fromkeys([best, "last", "elmo_mix"])}
truth = [example.label for example in examples["test"]]
texts = [example.text for example in examples["test"]]
found = {name: counts(truth, model.predict(texts)) for name, model in models.items()}

rng = np.random.default_rng(0)
draws = rng.integers(0, len(truth), (2000, len(truth)))  # sentences of each resample
for name in models:
    if name != best:
        resampled = [100 * f1(found[x][draws].sum(axis=1)) for x in (best, name)]
        low, high = np.quantile(resampled[0] - resampled[1], [0.025, 0.975])
        gain = 100 * (f1(found[best].sum(axis=0)) - f1(found[name].sum(axis=0)))
        print(f"{best} minus {name}: {gain:+.1f}, 95 % interval [{low:+.1f}, {high:+.1f}] (seed 0)")

# %% [markdown]
# An interval that contains 0 says: these data do not tell the two apart. Three cautions where it does not:
#
# - The best of nine is chosen on the scores that are compared, so its lead is too large on average. Choose layers on
#   the dev set, and read the test set once. `keras-plm layers` does both.
# - The bootstrap draws sentences only, with one seed each. Read it next to the intervals over seeds.
# - The learning rate and the number of epochs are the same for all. Four layers side by side learn faster under them
#   than one layer or a mix, and the lead may shrink with longer training.
#
# A result holds for its encoder, task and amount of text. In BERT's table 7, with 12 blocks and CoNLL-2003, all
# choices above the embeddings are between 94.9 and 96.1.
#
# `keras_plm.experiments.statistics.difference` resamples sentences and seeds together, and widens the interval where
# seeds are few.

# %% [markdown]
# ## Cost
#
# The scores of two choices may be equal, and their costs not. Layer $j$ needs the first $j$ blocks only, and a linear
# head has (width + 1) × labels weights.

# %%
blocks, width = len(encoder.output["layers"]) - 1, encoder.hidden_dim
labels = len(Tagger.labels_of(examples["train"]))
print(f"{'layers':24} {'F1':>5} {'blocks':>7} {'width':>6} {'weights':>8} {'seconds per fit':>14}")
for row in ranked[::-1]:
    choice = layer_choice(row["layers"])
    wide = choice.width(blocks + 1, width)
    print(
        f"{row['layers']:24} {100 * row['mean']:5.1f} {max(choice.indices(blocks + 1)):7} {wide:6} "
        f"{(wide + 1) * labels:8,} {seconds[row['layers']]:14.1f}"
    )

# %% [markdown]
# ## What a mix learns
#
# After training, the softmax $s$ of a mix tells how much of each layer the task takes. ELMo has three layers: a
# convolution over the letters of the word, and two LSTMs that read in both directions. Peters et al. 2018 find
# that the first LSTM is best for parts of speech (section 5.3, table 6), and that every task gives it the largest
# weight at the input (section 5.5, figure 2).
#
# The weights are no measure of importance by themselves. A layer with long vectors needs a small weight, and layers
# share much of what they state.

# %%
elmo, characters = keras_plm.load("benchmarks/weights/elmo_mini")
mixes = {"BERT-mini": models["elmo_mix"].training_log["mixes"]}
for penalty in penalties:
    model = trained("mix", elmo, characters, elmo_limit, penalty=penalty)
    mixes[f"ELMo-mini, λ = {penalty:g}"] = model.training_log["mixes"]

for name, of_place in mixes.items():
    print(
        f"{name:20}",
        np.round(of_place["input"]["weights"], 2),
        f"γ = {of_place['input']['gamma']:.2f}",
    )
plots.mixing_weights(mixes, title="Weights of layers in the mix, one seed")

# %% [markdown]
# The penalty $\lambda \lVert w \rVert^2$ pulls the mix towards the plain mean (Peters et al. 2018, section 3.3 and
# table 2). ELMo reads the first sentences only, to save time, so its mix rests on less text than BERT's.
#
# ## Exercises
#
# 1. Replace the linear probe by a BiLSTM. Which differences between layers become smaller?
#    Hint: `FeatureBased(reader="bilstm", units=64)`; three seeds and three choices are enough.
# 2. Rank the choices on the dev set instead of the test set. Is the winner the same?
#    Hint: pass `{"train": ..., "dev": ..., "test": examples["dev"]}`.
# 3. Compare with randomly initialised weights: how much of the score is the architecture?
#    Hint: `type(encoder).from_config(encoder.get_config())` has the same shape and new weights.
#
# ## Next
#
# - [Names](10_names.ipynb) puts a BiLSTM-CRF on these features.
# - [Features or fine-tuning](08_features_or_fine_tuning.ipynb) trains the encoder too.
# - [What layers know](../../explanation/what_layers_know.md) reports the same comparison with tuned learning rates,
#   more encoders and more tasks.
# - [Run the harness](../../how-to/run_the_harness.md): `keras-plm layers` from the command line.
