# %% [markdown]
# # Features or fine-tuning
#
# Decide with numbers, on a CSV file of your own: read frozen features, or fine-tune the encoder?
# You compare both on equal terms, with a dev set, several seeds and an interval; then one command
# does the same. The page takes about 15 minutes to read and about two minutes to run.
#
# - *Frozen features.* The encoder stays as it is and runs once over each text. A small layer learns
#   from its vectors. A fit takes seconds.
# - *Fine-tuning.* Encoder and output layer learn together. A fit takes minutes or hours, and each
#   task keeps its own copy of the encoder.
#
# Peters, Ruder and Smith 2019, "To Tune or Not to Tune?", arXiv 1903.05987, ask this question;
# Devlin et al. 2018 compare the two for BERT in section 5.3.

# %%
import csv
import dataclasses
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import keras_plm
from keras_plm import metrics
from keras_plm.cli.main import main
from keras_plm.data import cut_dev_set, read_table
from keras_plm.experiments.statistics import difference, summands
from keras_plm.heads import Classifier
from keras_plm.models import BERT
from keras_plm.training import set_seed
from keras_plm.transfer import FeatureBased, FineTune

rows = 800  # in tests: 60
train_limit = 60  # in tests: 16
seeds = 3  # in tests: 1
feature_rates = [1e-3, 1e-2]  # in tests: [1e-2]
tuning_rates = [3e-4, 1e-3]  # in tests: [1e-3]
feature_epochs = 30  # in tests: 1
tuning_epochs = 8  # in tests: 1
command_rates = "3e-4,1e-2"  # in tests: "1e-2"
command = ["layers"]  # in tests: ["run", "--method", "features", "--layers", "last"]

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## The file
#
# The file has a header, a column of texts and a column of labels. Put your own file here. This page
# writes one, so that it needs no download: sentences from templates about one of four subjects, 20
# nouns each. They are not real text, and easier. With 60 labels, about a third of the nouns are in
# no training sentence: the encoder has to know what kind of thing they are.

# %%
nouns = {
    "sea": "captain sailor ship boat mast deck harbour anchor wave shore sail crew island "
    "fish beach oar storm tide cabin pilot",
    "army": "soldier general regiment officer battle sword gun enemy fort camp colonel bullet "
    "rifle sergeant wound war victory sentinel prisoner flag",
    "house": "kitchen table chair lamp window door bed fire curtain cupboard stairs carpet "
    "mirror candle shelf parlour pillow plate cup clock",
    "farm": "horse cow farmer barn field sheep wheat plough garden tree hen stable hay calf "
    "pig fence orchard corn meadow shepherd",
}
templates = [
    "We saw the {} and the {} .",
    "He spoke of the {} .",
    "There was a {} near the {} .",
    "I remember the {} very well .",
    "She could not forget the {} and the {} .",
]
rng = np.random.default_rng(0)
table = {}  # each text once
while len(table) < rows:
    subject = str(rng.choice(list(nouns)))
    text = str(rng.choice(templates)).format(*rng.choice(nouns[subject].split(), 2, replace=False))
    table[text] = subject
with open(folder / "sentences.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["sentence", "subject"])
    writer.writerows(table.items())
print("\n".join((folder / "sentences.csv").read_text().splitlines()[:6]))

# %% [markdown]
# `read_table` names file and line of a malformed row. `cut_dev_set` splits at random: 70 % to
# train, 15 % for the **dev set**, 15 % for the **evaluation split**. The roles are different:
#
# - The dev set makes every choice: the learning rate and the epoch. Its score is too high
#   afterwards.
# - The evaluation split is scored once per method and seed. No choice reads it.
#
# Texts that belong together, such as sentences of one document, must stay in one part: name their
# column with `group=`. Duplicates would leak; the dict above removed them.

# %%
examples = read_table(folder / "sentences.csv", text="sentence", label="subject")
parts = cut_dev_set(examples, dev=0.15, test=0.15)
train, dev, test = parts["train"][:train_limit], parts["dev"], parts["test"]
truth = [example.label for example in test]
frequent = max(truth.count(label) for label in set(truth)) / len(truth)
print(len(train), "to train,", len(dev), "in the dev set,", len(test), "in the evaluation split")
print(f"most frequent label: {frequent:.3f} of the evaluation split")

# %% [markdown]
# ## Four arms
#
# The encoder is BERT-mini, which read novels. Next to the two methods stand two controls with
# random weights of the same sizes. They show how much is due to pre-training, and how much to the
# network itself.
#
# Fair terms: each arm searches the same number of learning rates with seed 0 on the dev set, and
# its other seeds take the best one. Each arm keeps its best epoch on the dev set. The rates differ,
# because an output layer needs a higher one than an encoder.

# %%
encoder, tokenizer = keras_plm.load("benchmarks/weights/bert_mini")
set_seed(0)
untrained = BERT.from_config(encoder.get_config())

features = FeatureBased(layers="last", pool="mean", epochs=feature_epochs)
tuning = FineTune(epochs=tuning_epochs, batch_size=16)
arms = {
    "frozen": (encoder, features, feature_rates),
    "fine-tuned": (encoder, tuning, tuning_rates),
    "frozen, random weights": (untrained, features, feature_rates),
    "trained from random weights": (untrained, tuning, tuning_rates),
}


def fit(start, method, rate, seed):
    """A trained classifier and its score on the dev set."""
    method = dataclasses.replace(method, learning_rate=rate, seed=seed)
    options = {"store": folder / "features"} if isinstance(method, FeatureBased) else {}
    model = method.fit(start, Classifier, tokenizer, train, dev=dev, **options)
    return model, model.training_log["dev_score"]


predicted, seconds = {}, {}
for name, (start, method, rates) in arms.items():
    started = time.perf_counter()
    trials = {rate: fit(start, method, rate, seed=0) for rate in rates}
    best = max(trials, key=lambda rate: trials[rate][1])
    models = [trials[best][0]] + [fit(start, method, best, seed)[0] for seed in range(1, seeds)]
    seconds[name] = (time.perf_counter() - started) / (len(rates) + seeds - 1)
    predicted[name] = [model.predict(test) for model in models]
    scores = [metrics.accuracy(truth, labels) for labels in predicted[name]]
    shown = " ".join(f"{score:.3f}" for score in scores)
    print(f"{name:28} rate {best:g}, evaluation split {shown}, {seconds[name]:.1f} s a fit")

# %% [markdown]
# ## Is the difference real?
#
# Two things are random: the seed, and the examples that happen to be in the evaluation split. A
# *paired bootstrap* (Efron and Tibshirani 1993, chapter 16; for NLP Berg-Kirkpatrick et al. 2012)
# draws both anew: in each of $R = 10{,}000$ resamples it draws $N$ examples with replacement, the
# same ones for both arms, and seeds of each arm. The difference of accuracies of one resample is
#
# $$ \Delta^{(r)} = \frac{1}{N} \sum_{n \in \mathrm{draw}_r}
#    \left( \overline{1[\hat y^{A}_n = y_n]} - \overline{1[\hat y^{B}_n = y_n]} \right) $$
#
# where the bars average the drawn seeds. The interval holds the middle 95 % of the differences.
# First in a few lines of NumPy:

# %%
right = {  # (seeds, examples) of 0 and 1
    name: np.array([[a == b for a, b in zip(truth, labels, strict=True)] for labels in of_seeds])
    for name, of_seeds in predicted.items()
}
rng, found = np.random.default_rng(0), []
a, b = right["fine-tuned"], right["frozen"]
for _ in range(2000):
    drawn = rng.integers(len(truth), size=len(truth))
    of_a, of_b = rng.integers(len(a), size=len(a)), rng.integers(len(b), size=len(b))
    found.append(a[of_a][:, drawn].mean() - b[of_b][:, drawn].mean())
low, high = np.quantile(found, [0.025, 0.975])
print(
    f"fine-tuned - frozen: {100 * (a.mean() - b.mean()):+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
)

# %% [markdown]
# The library's `difference` does the same for every metric of `keras_plm.metrics`. It widens the
# interval where seeds are few: three seeds drawn with replacement show too little of the spread
# between seeds.


# %%
def compare(first, second):
    """The `Difference` of two arms' accuracies."""
    kept = {
        name: [summands(metrics.accuracy, truth, labels) for labels in predicted[name]]
        for name in (first, second)
    }
    sums = {name: np.stack([part for _, part in of_seeds]) for name, of_seeds in kept.items()}
    return difference(kept[first][0][0], sums[first], sums[second])


pairs = [
    ("fine-tuned", "frozen"),
    ("frozen", "frozen, random weights"),
    ("fine-tuned", "trained from random weights"),
]
for first, second in pairs:
    print(f"{first} - {second}: {compare(first, second)} points")

# %%
figure, axes = plt.subplots(figsize=(6.5, 2.5), layout="constrained")
for i, name in enumerate(predicted):
    of_seeds = right[name].mean(axis=1)
    axes.barh(i, of_seeds.mean(), color="tab:blue" if "random" not in name else "lightgrey")
    axes.plot(of_seeds, [i] * len(of_seeds), "k|", markersize=12)
axes.axvline(frequent, color="black", linestyle=":", label="most frequent label")
axes.set_yticks(range(len(predicted)), list(predicted))
axes.set_xlim(0, 1)
axes.set_xlabel("accuracy, evaluation split (lines: seeds)")
axes.set_ylabel("arm")
axes.legend(frameon=False, loc="lower right")
plt.show()

# %% [markdown]
# ## The decision
#
# A rule that you can state before you look at the numbers:
#
# 1. If the interval of *fine-tuned - frozen* lies above 0, and the gain is worth its cost,
#    fine-tune.
# 2. Otherwise keep the frozen features: they are cheaper, and one encoder serves many tasks.
# 3. If a control with random weights is as good as its arm, pre-training does not help here: get an
#    encoder that read text like yours, or more labels.

# %%
found = compare("fine-tuned", "frozen")
ratio = seconds["fine-tuned"] / seconds["frozen"]
decision = "fine-tune" if found.low > 0 else "keep frozen features"
print(f"{decision}: {found} points for {ratio:.1f} times the time of a fit")

# %% [markdown]
# A wide interval says that the evaluation split is too small to tell, not that the methods are
# equal. A larger comparison, with four tasks, four encoders and up to ten seeds, is on
# [features or fine-tuning](../../results/features_or_fine_tuning.md).
#
# ## The same by a command
#
# `keras-plm layers` reads the file, splits it 70/15/15, reads every choice of layers, fine-tunes
# next to them, and recommends. It writes a record of each run, and resumes where it was stopped. In
# a shell:
#
# ```console
# keras-plm layers --task-file sentences.csv --text sentence --label subject --encoder bert_mini
# ```
#
# `bert_mini` is the folder of the encoder. By default it searches six learning rates for the layers
# and three for fine-tuning, with three seeds. Here it runs in this process, with the smaller
# settings of this page:

# %%
status = main([
    *command,
    "--task-file", str(folder / "sentences.csv"),
    "--text", "sentence",
    "--label", "subject",
    "--encoder", "benchmarks/weights/bert_mini",
    "--train-limit", str(train_limit),
    "--learning-rates", command_rates,
    "--batch-size", "16",
    "--epochs", str(tuning_epochs),
    "--seeds", str(min(seeds, 2)),
    "--results", str(folder / "results"),
    "--feature-cache", str(folder / "cache"),
])  # fmt: skip
assert status == 0

# %% [markdown]
# The rows are sorted by the dev set. *first minus this* is the interval of the difference to the
# first row on the evaluation split. [Your own task](../../how-to/own_task.md) describes files,
# columns and flags.
#
# ## Exercises
#
# 1. Double `train_limit` three times and draw both curves. *Hint: `keras_plm.plots.lines`; more
#    labels usually help fine-tuning more.*
# 2. Put a task network over the frozen features. *Hint:
#    `FeatureBased(reader="bcn", layers="elmo_mix")`, or `--reader bcn`.*
# 3. Train few weights instead of none or all. *Hint: `FineTune(lora_rank=8)`, with a higher
#    learning rate.*
#
# ## Next
#
# [Which layers](09_which_layers.ipynb) reads each layer by itself.
# [Verdicts](../../explanation/verdicts.md) explains intervals and decisions,
# [equal terms](../../explanation/equal_terms.md) the search of settings.
