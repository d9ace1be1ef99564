# %% [markdown]
# # BERT: predict masked words
#
# Build a batch of the masked language model token by token, pre-train a tiny BERT on a made-up
# language, let it predict masked words, and fine-tune it. The page takes about 20 minutes to read
# and about a minute to run.
#
# A [GPT](06_gpt.ipynb) reads from left to right, so a word never sees the words after it. An
# [ELMo](05_elmo.ipynb) reads both ways, but in two separate networks. BERT lets every position
# attend to both sides in every layer. Such a network would see the word that it has to predict.
# BERT therefore hides some of the words and predicts these only: Devlin et al. 2018, "BERT:
# Pre-training of Deep Bidirectional Transformers for Language Understanding", section 3.1.

# %%
import tempfile
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np
from safetensors.numpy import load_file

import keras_plm
from keras_plm import metrics
from keras_plm.data import TokenStream
from keras_plm.datasets.microworld import World
from keras_plm.heads import Tagger
from keras_plm.models import BERT, BERT_SIZES
from keras_plm.pretraining import MaskedLM, masked_lm_batches
from keras_plm.pretraining.masked_inputs import choose_positions, mask_tokens
from keras_plm.tokenizers import WordPiece
from keras_plm.training import BertAdamW, WarmupLinearDecay, set_seed
from keras_plm.transfer import FineTune

documents = 1000  # in tests: 40
passes = 10  # in tests: 1
num_layers = 2  # in tests: 1
train_limit = 300  # in tests: 12
test_limit = 600  # in tests: 12
epochs = 8  # in tests: 1

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## A language whose rules are known
#
# `World` generates an English-like language. Names of people, places and firms are drawn from one
# pool, so that only the context tells which is which. A document has a few sentences about the same
# names.

# %%
world = World(seed=0)
corpus = world.corpus(documents)
print("\n".join(corpus[0]))
(folder / "corpus.txt").write_text("\n\n".join("\n".join(document) for document in corpus) + "\n")

# %% [markdown]
# WordPiece (Wu et al. 2016, section 4.1) learns the tokens. Frequent words stay whole; a rare word
# is cut into pieces, and `##` marks each piece after the first one. A `TokenStream` holds the ids
# of the text on disk, with the bounds of sentences and documents.

# %%
tokenizer = WordPiece.train(folder / "corpus.txt", 800)
stream = TokenStream.build([folder / "corpus.txt"], tokenizer, folder / "stream", sentences="lines")
print(f"{len(stream.tokens):,} tokens, {len(stream.documents) - 1:,} documents")
print(tokenizer.tokenize(corpus[0][0]))

# %% [markdown]
# ## The masking rule
#
# BERT chooses 15 % of the tokens of a row. Of the chosen tokens
#
# - 80 % become `[MASK]`,
# - 10 % become a random token,
# - 10 % stay.
#
# The network has to predict all chosen tokens. Fine-tuning never shows `[MASK]`, so the last two
# cases teach the network that a visible token may be wrong, and that a visible token also needs a
# good vector (Devlin et al. 2018, appendix A.1). Two functions are the whole rule:

# %%
rng = np.random.default_rng(42)  # a seed with all three cases in this row
row = tokenizer.pack([corpus[0][0]], [corpus[0][1]])
token_ids, real = row["token_ids"], row["padding_mask"]
text = real & ~np.isin(token_ids, [tokenizer.cls_id, tokenizer.sep_id])  # marks are never chosen
chosen = choose_positions(text, real.sum(axis=1), rng, rate=0.15)
masked = mask_tokens(token_ids, chosen, tokenizer.mask_id, len(tokenizer), rng)

names = np.array(tokenizer.vocabulary)
print(f"{'position':>8}  {'segment':>7}  {'text':12} {'input':12} target")
for i in range(token_ids.shape[1]):
    target = names[token_ids[0, i]] if chosen[0, i] else ""
    before, after = names[token_ids[0, i]], names[masked[0, i]]
    print(f"{i:8}  {row['segment_ids'][0, i]:7}  {before:12} {after:12} {target}")

# %% [markdown]
# The same functions on many rows give the fractions of the paper. A random token is the right one
# in about one of 800 cases, which counts as "stays" here.

# %%
many = rng.integers(5, len(tokenizer), (2000, 40), dtype="int32")
chosen = choose_positions(np.ones(many.shape, bool), np.full(2000, 40), rng)
inputs = mask_tokens(many, chosen, tokenizer.mask_id, len(tokenizer), rng)
mask, same = inputs == tokenizer.mask_id, inputs == many
print(f"chosen {chosen.mean():.3f}")
print(f"of these [MASK] {mask[chosen].mean():.3f}, stays {same[chosen].mean():.3f}", end=", ")
print(f"random {(~mask & ~same)[chosen].mean():.3f}")
print(f"of the others changed {(~same)[~chosen].mean():.3f}")

# %% [markdown]
# ## A batch
#
# `masked_lm_batches` cuts the stream into rows `[CLS] A [SEP] B [SEP]`, masks them, and draws rows
# and masks anew in every epoch. Segment B follows A in the text, or it comes from another document,
# with equal chances. Where nothing follows, at the end of a document or of a full row, B is always
# random, as in the released code; these short documents give more random rows than others. The
# network also predicts which one it is: 0 if B follows, 1 if it is random. `masked_positions` holds
# the chosen positions, so that the network computes scores of the vocabulary there only.

# %%
batches = masked_lm_batches(stream, tokenizer, max_length=40, tokens_per_batch=2000, buckets=[40])
x, y, weights = batches[0]
print({name: array.shape for name, array in x.items()})
print({name: array.shape for name, array in y.items()})
for i in range(3):
    tokens = names[x["token_ids"][i][x["padding_mask"][i]]]
    predicted = names[y["masked_lm"][i][weights["masked_lm"][i] > 0]]
    print()
    print(" ".join(tokens))
    print("targets:", " ".join(predicted), "| next sentence:", y["next_sentence"][i])

# %% [markdown]
# ## The loss
#
# Let $M$ be the chosen positions of a batch, $w_i$ the token at $i$ and $\tilde w$ the row with
# masks. The loss is
#
# $$ L_{\mathrm{MLM}} = -\frac{1}{|M|} \sum_{i \in M} \log p(w_i \mid \tilde w), \qquad
#    p(\cdot \mid \tilde w) = \mathrm{softmax}(E \, \mathrm{LN}(\mathrm{GELU}(W h_i + b)) + c) $$
#
# where $h_i$ is the last layer's vector and $E$ the table of token embeddings, which is also the
# output layer. The next-sentence loss is the cross-entropy of two classes over the vector of
# `[CLS]`; the total loss is the sum of the two. `MaskedLM` is a Keras model whose `compile` sets
# these losses. Here the loss of one batch is computed by hand and by the model:

# %%
set_seed(0)
encoder = BERT(
    len(tokenizer),
    **(BERT_SIZES["tiny"] | {"num_layers": num_layers}),
    max_sequence_length=40,
    dropout=0.0,
    pre_norm=True,  # a small BERT leaves the first plateau sooner
    initializer_range=0.05,  # the paper's 0.02 is small for a width of 128
)
model = MaskedLM(encoder)
steps = passes * len(batches)
model.compile(BertAdamW(WarmupLinearDecay(1e-3, steps, steps // 20)))


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


outputs = model.predict_on_batch(x)
log_p = log_softmax(outputs["masked_lm"].astype("float64"))  # (B, P, V)
of_targets = np.take_along_axis(log_p, y["masked_lm"][..., None], axis=-1)[..., 0]  # (B, P)
first_loss = -of_targets[weights["masked_lm"] > 0].mean()
log_p = log_softmax(outputs["next_sentence"].astype("float64"))  # (B, 2)
of_targets = log_p[np.arange(len(log_p)), y["next_sentence"]]
next_sentence_loss = -np.average(of_targets, weights=weights["next_sentence"])  # 0: empty row
by_model = float(model.compute_loss(x, y, outputs, weights))
print(f"by hand {first_loss:.4f} + {next_sentence_loss:.4f}, by the model {by_model:.4f}")
print(f"log V = {np.log(len(tokenizer)):.4f}, log 2 = {np.log(2):.4f}")

# %% [markdown]
# Random weights give every token about the same probability $1 / V$, so the first loss is near
# $\log V$, and the second near $\log 2$.
#
# ## Pre-training
#
# Each epoch is one pass over the text. Two lines help to read the curve. A model that knows only
# how frequent each token is has the entropy of these frequencies as its loss; a small BERT often
# stays there for a while. A model below this line uses the context. For the next sentence, compare
# with the share of random rows: the answer "random" for every row has this accuracy.

# %%
counts = np.bincount(stream.tokens[:], minlength=len(tokenizer))
frequency = counts[counts > 0] / counts.sum()
entropy = -(frequency * np.log(frequency)).sum()

history = model.fit(batches, epochs=passes, verbose=0).history
print(f"loss of masked tokens {history['masked_lm_loss'][-1]:.2f}, of frequencies {entropy:.2f}")
print(f"masked tokens predicted right {history['masked_lm_accuracy'][-1]:.1%}")
rows = [batches[i] for i in range(len(batches))]
targets = np.concatenate([y["next_sentence"] for _, y, _ in rows])
real = np.concatenate([w["next_sentence"] > 0 for *_, w in rows])
print(f"next sentences predicted right {history['next_sentence_accuracy'][-1]:.1%}", end=", ")
print(f"rows with a random B {targets[real].mean():.1%}")

figure, axes = plt.subplots(figsize=(6.5, 3.5), layout="constrained")
done = np.arange(passes + 1)
axes.plot(done, [first_loss, *history["masked_lm_loss"]], marker="o", label="masked tokens")
axes.axhline(np.log(len(tokenizer)), color="grey", linestyle=":", label="all tokens alike")
axes.axhline(entropy, color="grey", linestyle="--", label="frequencies only")
axes.set_xlabel("passes over the text (the loss is the mean of a pass)")
axes.set_ylabel("loss, nats per masked token")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# The numbers are of one seed. Another seed, and another backend, gives somewhat different ones. The
# accuracy of the next sentence is about that of a constant answer: this small BERT learns which
# words fit a gap, and not yet which sentences belong together.
#
# ## Predict a masked word
#
# The tokenizer reads `[MASK]` in a text as the mask. `fill` packs the texts, runs the model at the
# masks and returns the likeliest tokens.


# %%
def fill(model, tokenizer, texts, count=5):
    """The likeliest tokens at the one [MASK] of each text, with their probabilities."""
    inputs = tokenizer.pack(texts)
    positions = np.argwhere(inputs["token_ids"] == tokenizer.mask_id)[:, 1:]  # (B, 1)
    logits = model.predict_on_batch({**inputs, "masked_positions": positions.astype("int32")})
    p = keras.ops.convert_to_numpy(keras.ops.softmax(logits["masked_lm"][:, 0]))  # (B, V)
    for text, row in zip(texts, p, strict=True):
        best = np.argsort(-row)[:count]
        print(text, "->", ", ".join(f"{tokenizer.vocabulary[i]} {row[i]:.2f}" for i in best))


place, firm, person = world.names["corpus"][:3]
fill(
    model,
    tokenizer,
    [
        f"{person} travelled to [MASK] .",
        f"{person} met the [MASK] of {firm} near {place} .",
        f"the concert was very [MASK] and {person} laughed .",
        f"the concert was very [MASK] and {person} wept .",
        "the violin is an [MASK] .",
        "the bank lent [MASK] to the doctor .",
    ],
)

# %% [markdown]
# A model this small, after ten passes, mostly knows which *kind* of word fits: an adjective after
# "very", a noun after "the". Compare the two sentences about the concert: the word that tells good
# from bad stands *after* the mask. A model that reads from left to right cannot use it; whether
# this one does is for you to see in the two rows.
#
# ## A BERT that read novels
#
# `benchmarks/weights/bert_mini_445m` holds a BERT of 4 layers and a width of 256. It read 445
# million tokens of novels; `README.md` next to it states how. `keras_plm.load` gives the encoder
# and its tokenizer. The head of the masked LM is not part of an encoder; its weights are in
# `objective.safetensors`.

# %%
mini, mini_tokenizer = keras_plm.load("benchmarks/weights/bert_mini_445m")
mini_model = MaskedLM(mini)
heads = load_file("benchmarks/weights/bert_mini_445m/objective.safetensors")
for weight in mini_model.weights:
    if weight.path in heads:
        weight.assign(heads[weight.path])

fill(
    mini_model,
    mini_tokenizer,
    [
        "The old man sat down in his [MASK] and lit a pipe .",
        "She opened the [MASK] and went into the garden .",
        "The captain ordered the [MASK] to lower the boats .",
        "He was very [MASK] , for he had not slept all night .",
        "They [MASK] not know what to say .",
    ],
)

# %% [markdown]
# ## Fine-tuning
#
# Fine-tuning puts an output layer on the encoder and trains all weights on the task (section 4).
# The task here: tag the names of the made-up language as people (PER), places (LOC) and firms
# (ORG). The names of the test set are in no training example. `FineTune.fit` trains a copy, so that
# `encoder` stays as it is.

# %%
train = world.tag_names("train")[:train_limit]
test = world.tag_names("test")[:test_limit]
for word, tag in zip(train[0].text, train[0].label, strict=True):
    print(f"{word:12} {tag}")

# %%
set_seed(1)
untrained = BERT.from_config(encoder.get_config())  # the same sizes, random weights
truth = [example.label for example in test]
scores = {}
for name, start in {"pre-trained": encoder, "random weights": untrained}.items():
    method = FineTune(learning_rate=1e-3, epochs=epochs, batch_size=16, seed=0)
    tagger = method.fit(start, Tagger, tokenizer, train)
    scores[name] = metrics.span_f1(truth, tagger.predict(test))
    print(
        f"{name:15} F1 of names {scores[name]:.3f}, last loss {tagger.training_log['loss'][-1]:.3f}"
    )

# %%
figure, axes = plt.subplots(figsize=(5, 2), layout="constrained")
axes.barh(list(scores), list(scores.values()), color=["tab:blue", "tab:grey"])
axes.set_xlim(0, 1)
axes.set_xlabel(f"F1 of names, test set, {len(train)} training examples")
axes.set_ylabel("start of training")
plt.show()

# %% [markdown]
# This is one seed of each, in a language that this library generates; another seed can turn the
# order. It shows how the parts work together. It is not evidence about real text: [results of
# BERT](../../results/bert.md) gives that, with seeds and intervals.
#
# Settings that matter when you fine-tune on your own data:
#
# - *Learning rate.* The paper searches 2e-5 to 5e-5 for its large models; small ones need 1e-4 to
#   3e-3.
# - *Epochs.* With few examples train longer and correct Adam's bias: Mosbach et al. 2021, "On the
#   Stability of Fine-tuning BERT", section 6; `FineTune(**FEW_EXAMPLES_SETTINGS)` does so.
# - *Seeds.* Repeat with several seeds before you compare two settings.
#
# ## Exercises
#
# 1. Train the tiny BERT with `mask_selection_rate=0.4`. Does the loss at the same number of passes
#    fall? *Hint: it is an argument of `masked_lm_batches`; evaluate both models on batches of the
#    same rate.*
# 2. Set `mask_token_rate=1.0, random_token_rate=0.0` and fine-tune again. *Hint: appendix C.2 of
#    the paper makes this comparison; use three seeds.*
# 3. Show that the vector of `[MASK]` depends on both sides. *Hint: `fill` the same text with one
#    word after the mask replaced, and compare the probabilities.*
#
# ## Next
#
# [Features or fine-tuning](08_features_or_fine_tuning.ipynb) asks whether you need to fine-tune at
# all. [Which layers](09_which_layers.ipynb) looks into the layers of a frozen encoder.
# [Functions and classes](../../reference/api.md) lists all arguments.
