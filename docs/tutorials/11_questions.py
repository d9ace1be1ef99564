# %% [markdown]
# # Answers from passages
#
# You learn to find the answer to a question in a passage: as a span with two ends, in passages longer than the
# encoder reads, with questions that have no answer, and scored as SQuAD scores. Reading takes 20 minutes, running
# two to three minutes on a laptop without a GPU.

# %%
import matplotlib.pyplot as plt
import numpy as np

import keras_plm
from keras_plm import metrics
from keras_plm.data import Example, Windows, best_spans
from keras_plm.datasets.microworld import World
from keras_plm.heads import SpanFinder
from keras_plm.transfer import FineTune

train_size = 300  # in tests: 12
test_size = 300  # in tests: 8
epochs = 8  # in tests: 1

# %% [markdown]
# ## Questions
#
# SQuAD asks questions about paragraphs of Wikipedia, and each answer is a piece of its paragraph (Rajpurkar et al.
# 2016). Here the passages are made: three facts of a small world, in random order. The people, places and firms of
# the test set do not occur in the training set, so a model must find answers by what the question says.
#
# An `Example` holds the question, the list of its answers, the passage, and where each answer begins, in characters.

# %%
world = World(seed=0)
train, dev, test = (world.questions(split) for split in ("train", "dev", "test"))
example = train[0]
print("passage: ", example.pair)
print("question:", example.text)
print("answer:  ", example.label, "at", example.starts)

# %% [markdown]
# SQuAD 2.0 adds questions that the passage does not answer (Rajpurkar et al. 2018). Here, two thirds of the passages
# lose a fact that the question does not need. The others lose the fact with the answer. So all have two facts, and a
# model cannot see by the length which question has an answer. A question without one has empty lists:


# %%
def shorten(example, answered):
    """Leaves out one fact of a passage: one that is not needed, or the one with the answer."""
    (answer,) = example.label
    facts = [f"{fact} ." for fact in example.pair.removesuffix(" .").split(" . ")]
    needed = next(fact for fact in facts if f" {answer} " in f" {fact} ")
    facts.remove(next(fact for fact in facts if (fact != needed) == answered))
    passage = " ".join(facts)
    if not answered:
        return Example(example.text, [], pair=passage, starts=[])
    start = f" {passage} ".index(f" {answer} ")
    return Example(example.text, [answer], pair=passage, starts=[start])


train, dev, test = (
    [shorten(example, answered=i % 3 > 0) for i, example in enumerate(part[:size])]
    for part, size in ((train, train_size), (dev, test_size), (test, test_size))
)
for example in train[:2]:
    print(example.pair, "|", example.text, "|", example.label)

# %% [markdown]
# ## One row, or several windows
#
# BERT reads question and passage in one row, `[CLS] question [SEP] passage [SEP]`. Where a passage is too long for
# one row, it is read in *windows* that overlap. Each window begins `stride` tokens after the one before. An answer at
# the edge of one window then stands in the middle of another one.

# %%
encoder, tokenizer = keras_plm.load("benchmarks/weights/bert_mini")
long = Example("where does Ada live ?", pair=" ".join(e.pair for e in train[:3]))
windows = Windows([long], tokenizer, max_length=44, stride=16)
for row in range(len(windows)):
    first = windows.begins[row]
    begin, end = windows.offsets(0, first, first + windows.counts[row] - 1)
    print(f"tokens {first:2} to {first + windows.counts[row] - 1:2}: {long.pair[begin:end]}")

# %% [markdown]
# A token near the edge of a window has little context on one side. So each token is scored in the window where the
# smaller one of its two contexts is largest (google-research/bert, `run_squad.py`).
#
# ## Two ends
#
# BERT learns two vectors, $S$ for the start and $E$ for the end (Devlin et al. 2018, section 4.2). With $T_i$ the
# encoder's output at token $i$, the probability of the start is a softmax over all tokens of the passage:
#
# $$P_i = \frac{\exp(S \cdot T_i)}{\sum_j \exp(S \cdot T_j)}$$
#
# and the same with $E$ for the end. The loss is $-\frac12 (\log P_{\mathrm{start}} + \log P_{\mathrm{end}})$, as in
# the released code; the paper has the sum. `[CLS]` stands for "no answer": for an unanswered question, both ends are
# there.
#
# `SpanFinder` is this head. `FineTune` trains it together with a copy of the encoder; the dev set picks the epoch.

# %%
method = FineTune(learning_rate=3e-4, epochs=epochs, batch_size=16)
model = method.fit(encoder, SpanFinder, tokenizer, train, dev)
print("labels:", model.labels)
print("loss by epoch:", np.round(model.training_log["loss"], 2))

# %% [markdown]
# ## From scores to a span
#
# The score of a span from $i$ to $j$ is $S \cdot T_i + E \cdot T_j$. The best span has the highest score among all
# with $i \le j$ and at most 30 tokens.

# %%
example = test[1]
batch = model.batches([example], training=False)[0][0]
starts, ends = np.asarray(model.predict_on_batch(batch))[0]
tokens = [tokenizer.vocabulary[i] for i in batch["token_ids"][0]]
mask = batch["answer_mask"][0]  # the passage, and [CLS]


def softmax(scores):
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


figure, axes = plt.subplots(figsize=(9, 3.5))
place = np.flatnonzero(mask)
axes.bar(np.arange(len(place)) - 0.2, softmax(starts)[place], 0.4, label="start", color="#0072b2")
axes.bar(np.arange(len(place)) + 0.2, softmax(ends)[place], 0.4, label="end", color="#d55e00")
axes.set_xticks(range(len(place)), [tokens[i] for i in place], rotation=90, parse_math=False)
axes.set_xlabel("token that may be an end of the answer")
axes.set_ylabel("probability")
axes.set_title(example.text, loc="left", fontsize=11)
axes.legend(frameon=False)
figure.tight_layout()
plt.show()

# %% [markdown]
# By hand, and by the function that the head calls. Both leave out `[CLS]`, which is no span of the passage.

# %%
inside = mask.copy()
inside[0] = False
sums = np.where(inside[:, None] & inside[None], starts[:, None] + ends[None], -np.inf)
i, j = np.indices(sums.shape)
sums[(j < i) | (j - i >= 30)] = -np.inf
first, last = np.unravel_index(sums.argmax(), sums.shape)
print("by hand:   ", tokens[first : last + 1], f"{sums.max():.2f}")

score, begin, end = best_spans(starts[None], ends[None], inside[None], inside[None])
print("best_spans:", tokens[begin[0, 0] : end[0, 0] + 1], f"{score[0, 0]:.2f}")
print("true:      ", example.label)

# %% [markdown]
# `predict` returns texts as the passage writes them. With `probabilities=True` it returns the best spans of each
# question, with "no answer" as the empty text.

# %%
for span in model.predict([example], probabilities=True)[0][:4]:
    print(f"{span.probability:6.3f}  {span.text!r}")

# %% [markdown]
# ## No answer
#
# "No answer" has the score $s_\varnothing = S \cdot C + E \cdot C$, with $C$ the output at `[CLS]`. A question is
# refused if $s_\varnothing$ exceeds the best span's score by more than a threshold $\tau$ (Devlin et al. 2018, section
# 4.3). $\tau$ is chosen on the dev set, for the highest F1. `fit` did so already, and `choose_threshold` does it for
# any examples.

# %%
best = model.choose_threshold(dev)
print(f"threshold {model.null_threshold:.2f}, F1 on the dev set {100 * best:.1f}")

odds = []  # how much higher "no answer" scores than the best span
for spans in model.predict(test, probabilities=True):
    scores = {span.text == "": span.score for span in spans[::-1]}  # the best span comes last
    odds.append(scores[True] - scores[False])
odds = np.array(odds)
has_answer = np.array([len(example.label) > 0 for example in test])

figure, axes = plt.subplots(figsize=(7, 3.5))
bins = np.linspace(odds.min(), odds.max(), 30)
axes.hist(odds[has_answer], bins, alpha=0.7, label="answered", color="#0072b2")
axes.hist(odds[~has_answer], bins, alpha=0.7, label="not answered", color="#d55e00")
axes.axvline(model.null_threshold, color="#333333", linestyle="--", label="threshold")
axes.set_xlabel('score of "no answer" minus score of the best span')
axes.set_ylabel("questions of the test set")
axes.legend(frameon=False)
figure.tight_layout()
plt.show()

# %% [markdown]
# ## SQuAD's measures
#
# *Exact match* is the fraction of answers that equal a true answer, after case, punctuation and articles are removed.
# *F1* compares the words of both as bags, so that a part of an answer counts: half of its words and no others give 2/3
# (Rajpurkar et al. 2016, section 6.1). With $c$ the number of common words:
#
# $$P = \frac{c}{|\mathrm{found}|}, \qquad R = \frac{c}{|\mathrm{true}|}, \qquad F_1 = \frac{2 P R}{P + R}$$
#
# The best of several true answers counts.

# %%
true, found = "the old harbour of Kiel", "Harbour of Kiel."
common, of_true, of_found = 3, 4, 3  # "the" is left out
precision, recall = common / of_found, common / of_true
print(f"by hand:  F1 {2 * precision * recall / (precision + recall):.3f}")
print(f"squad_f1: F1 {metrics.squad_f1([[true]], [found]):.3f}")
print(f"exact match: {metrics.squad_exact_match([[true]], [found])}")

# %% [markdown]
# An unanswered question scores 1 if it is refused, else 0: `version=2`. A mean over all questions hides which part is
# weak, so give both parts.

# %%
predicted = model.predict(test)
truth = [example.label for example in test]
print(f"{'':14} {'questions':>9} {'exact':>6} {'F1':>6}")
for name, part in {
    "all": has_answer >= 0,
    "answered": has_answer,
    "not answered": ~has_answer,
}.items():
    y, z = ([labels[i] for i in np.flatnonzero(part)] for labels in (truth, predicted))
    exact, f1 = metrics.squad_exact_match(y, z, version=2), metrics.squad_f1(y, z, version=2)
    print(f"{name:14} {len(y):9} {100 * exact:6.1f} {100 * f1:6.1f}")

# %% [markdown]
# These are results of one seed, on passages of two facts. SQuAD's passages are longer and its questions say things in
# other words: see the results of this library on [SQuAD](../../results/features_or_fine_tuning.md).
#
# The errors, by the first word of the question:

# %%
wrong = [(e, z) for e, z in zip(test, predicted, strict=True) if z not in (e.label or [""])]
for first_word in ("where", "who", "what"):
    of_kind = [e for e in test if e.text.startswith(first_word)]
    print(
        f"{first_word:6} {sum(e.text.startswith(first_word) for e, _ in wrong)} of {len(of_kind)} wrong"
    )
for example, answer in wrong[:3]:
    print()
    print(example.pair)
    print(f"{example.text} {answer!r}, true: {example.label}")

# %% [markdown]
# ## Exercises
#
# 1. Put a passage of ten sentences together and ask about the last one. Does the answer change with `stride`?
#    Hint: `model.max_length, model.stride = 64, 16`, then `predict([question], pairs=[passage])`.
# 2. Ask about a person who is not in the passage. Does the model refuse, or does it read "lives in" only?
#    Hint: `predict(questions, pairs=passages)` with the passages moved by one; Jia and Liang 2017 fool models so.
# 3. Read frozen features by BiDAF instead of fine-tuning (Seo et al. 2017; Clark and Gardner 2018). Which is better
#    with 300 questions?
#    Hint: `FeatureBased(layers="mix", reader="bidaf", units=32).fit(encoder, SpanFinder, tokenizer, train, dev)`.
#
# ## Next
#
# - [Run the harness](../../how-to/run_the_harness.md): `keras-plm run --task squad` and `--task squad2`.
# - [Your own task](../../how-to/own_task.md): questions about passages of yours.
# - [API](../../reference/api.md): `SpanFinder`, `Windows`, `read_squad` and `evaluate_squad`.
