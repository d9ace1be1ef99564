# %% [markdown]
# # GPT: predict the next token, then fine-tune
#
# Pre-train a small causal language model, check its mask, sample with temperature and top-p, score
# texts by their log probability, and fine-tune with the auxiliary objective. The page takes about
# 20 minutes to read and about a minute to run.
#
# GPT is the decoder of a [Transformer](04_transformer.ipynb) without the encoder: Radford et al.
# 2018, "Improving Language Understanding by Generative Pre-Training".

# %%
import tempfile
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_plm
from keras_plm import metrics
from keras_plm.attention_maps import attention_weights
from keras_plm.data import TokenStream
from keras_plm.datasets.microworld import World
from keras_plm.decoding import generate, sample
from keras_plm.heads import Classifier
from keras_plm.models import GPT, GPT_SIZES
from keras_plm.pretraining import CausalLM, causal_lm_batches, token_losses
from keras_plm.tokenizers import BytePair
from keras_plm.training import BertAdamW, WarmupLinearDecay, set_seed
from keras_plm.transfer import GPT_SETTINGS, FineTune

documents = 1000  # in tests: 40
passes = 5  # in tests: 1
num_layers = 2  # in tests: 1
new_tokens = 40  # in tests: 2
train_limit = 300  # in tests: 16
test_limit = 600  # in tests: 16
epochs = 10  # in tests: 1

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## The objective
#
# A language model factors the probability of a text into next-token probabilities. Training
# maximises their log (section 3.1, equation 1):
#
# $$ L_1 = \sum_i \log p(u_i \mid u_1, \ldots, u_{i-1}), \qquad
#    p(u \mid u_1, \ldots, u_{i-1}) = \mathrm{softmax}_u(W_e h_{i-1}) $$
#
# $h_{i-1}$ is the last layer's vector at position $i - 1$. $W_e$ is the table of token embeddings:
# it reads tokens and predicts them (equation 2). One forward pass gives the loss of every token, if
# position $i$ sees only positions up to $i$.
#
# ## The text
#
# `World` generates an English-like language with invented names. `BytePair` with `scheme="gpt"`
# learns lower-case tokens; the last token of a word ends in `</w>`.

# %%
world = World(seed=0)
corpus = world.corpus(documents)
(folder / "corpus.txt").write_text("\n\n".join("\n".join(document) for document in corpus) + "\n")
tokenizer = BytePair.train(folder / "corpus.txt", 800, scheme="gpt")
stream = TokenStream.build(
    [folder / "corpus.txt"],
    tokenizer,
    folder / "stream",
    sentences="lines",
    end_id=tokenizer.newline_id,
)
print(f"{len(stream.tokens):,} tokens")
print(tokenizer.tokenize(corpus[0][0]))

# %% [markdown]
# A batch holds windows of contiguous text. The targets are the same tokens, one position later.

# %%
batches = causal_lm_batches(stream, tokenizer, max_length=40, batch_size=50)
x, y, _ = batches[0]
print({name: array.shape for name, array in x.items()})
for token, target in zip(x["token_ids"][0, :8], x["target_ids"][0, :8], strict=True):
    print(f"{tokenizer.vocabulary[token]!r:16} -> {tokenizer.vocabulary[target]!r}")

# %% [markdown]
# ## The mask
#
# In every layer, position $i$ may attend to position $j$ only if $j \le i$:
#
# $$ \alpha_{ij} = \mathrm{softmax}_j\left(\frac{q_i \cdot k_j}{\sqrt{d}} + m_{ij}\right), \qquad
#    m_{ij} = \begin{cases} 0 & j \le i \\ -\infty & j > i \end{cases} $$
#
# The picture shows the attention weights of one head of the untrained model: nothing above the
# diagonal. The second check is independent of the picture. Change the last token of a text; the
# vectors before it stay.

# %%
set_seed(0)
gpt = GPT(
    tokenizer.text_size,
    **(GPT_SIZES["tiny"] | {"num_layers": num_layers}),
    max_sequence_length=40,
    dropout=0.0,
    pre_norm=True,  # as GPT-2; a small model leaves the first plateau sooner
    initializer_range=0.05,
)
inputs = {name: x[name][:1, :12].copy() for name in ("token_ids", "padding_mask")}
weights = attention_weights(gpt, inputs)  # (B, L, N, T, T)

names = [tokenizer.vocabulary[i] for i in inputs["token_ids"][0]]
names = [name.replace("</w>", "").replace("\n", "\\n") for name in names]
figure, axes = plt.subplots(figsize=(5.5, 4.5), layout="constrained")
picture = axes.imshow(weights[0, 0, 0], cmap="Blues", vmin=0, vmax=1)
axes.set_xticks(range(12), names, rotation=90)
axes.set_yticks(range(12), names)
axes.set_xlabel("token that is looked at, j")
axes.set_ylabel("token that looks, i")
figure.colorbar(picture, label="attention weight, layer 1, head 1")
plt.show()

# %%
changed = {**inputs, "token_ids": inputs["token_ids"].copy()}
changed["token_ids"][0, -1] = 5
before = np.asarray(gpt.predict_on_batch(inputs)["sequence"])
after = np.asarray(gpt.predict_on_batch(changed)["sequence"])
print("positions that change:", np.flatnonzero(np.abs(before - after).max(axis=-1)[0] > 1e-6))

# %% [markdown]
# ## Pre-training
#
# `CausalLM` is a Keras model around the encoder; its metric is perplexity, $e^{-L_1 / n}$ over $n$
# tokens. Two numbers help to read it: a model that knows nothing has the perplexity $V$; one that
# knows only how frequent each token is has $e$ to the entropy of these frequencies.

# %%
model = CausalLM(gpt)
steps = passes * len(batches)
model.compile(BertAdamW(WarmupLinearDecay(1e-3, steps, steps // 20), bias_correction=True))
history = model.fit(batches, epochs=passes, verbose=0).history

counts = np.bincount(stream.tokens[:], minlength=tokenizer.text_size)
frequency = counts[counts > 0] / counts.sum()
of_frequencies = np.exp(-(frequency * np.log(frequency)).sum())

figure, axes = plt.subplots(figsize=(6.5, 3.5), layout="constrained")
axes.plot(np.arange(1, passes + 1), history["perplexity"], marker="o", label="tiny GPT")
axes.axhline(tokenizer.text_size, color="grey", linestyle=":", label="all tokens alike")
axes.axhline(of_frequencies, color="grey", linestyle="--", label="frequencies only")
axes.set_yscale("log")
axes.set_xlabel("pass over the text (perplexity is the mean of a pass)")
axes.set_ylabel("perplexity of a token")
axes.legend(frameon=False)
plt.show()
print(f"last pass {history['perplexity'][-1]:.1f}, frequencies only {of_frequencies:.1f}")

# %% [markdown]
# `generate` continues a prompt. By default it takes the likeliest token at every step.

# %%
print(generate(gpt, tokenizer, ["the concert was"], max_new_tokens=min(new_tokens, 12))[0])

# %% [markdown]
# ## Temperature and top-p
#
# `benchmarks/weights/gpt_mini_571m` holds a GPT of 4 layers and a width of 256 that read novels.
# These are the probabilities of its next token. With logits $z$ and temperature $T$:
#
# $$ p_T(u) = \mathrm{softmax}_u(z / T) $$
#
# Below 1 the temperature sharpens the distribution, above 1 it flattens it. Top-p keeps the
# smallest set of likeliest tokens with a total probability of at least $p$, and draws from these:
# Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1.

# %%
mini, mini_tokenizer = keras_plm.load("benchmarks/weights/gpt_mini_571m")
prompt = "The captain looked at the"
inputs = mini_tokenizer.unframed().pack([prompt])  # without special tokens
hidden = mini({name: keras.ops.convert_to_tensor(inputs[name]) for name in mini.input})["sequence"]
logits = mini.token_embedding(hidden, reverse=True)  # (1, T, V)
logits = keras.ops.convert_to_numpy(logits)[0, -1].astype("float64")


def softmax(z):
    z = np.exp(z - z.max())
    return z / z.sum()


def top_p_set(p, limit):
    """The ids of the fewest likeliest tokens that hold the probability `limit`."""
    order = np.argsort(-p)
    count = np.searchsorted(np.cumsum(p[order]), limit) + 1
    return order[:count]


best = np.argsort(-logits)[:10]
figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
for i, temperature in enumerate((0.5, 1.0, 1.5)):
    p = softmax(logits / temperature)
    axes.bar(np.arange(10) + 0.27 * (i - 1), p[best], width=0.27, label=f"T = {temperature}")
    print(f"T = {temperature}: {len(top_p_set(p, 0.9)):5,} of {len(p):,} tokens hold 0.9")
axes.set_xticks(range(10), [mini_tokenizer.vocabulary[i].replace("</w>", "") for i in best])
axes.set_xlabel(f"token after “{prompt}”")
axes.set_ylabel("probability")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## GPT-mini writes
#
# Greedy decoding repeats itself. Drawing from all tokens picks an unlikely one every few words.
# Top-p is between the two. Each text is the first one drawn, with `seed=0`.

# %%
prompts = ["It was late in the evening when"]
options = {"max_new_tokens": new_tokens}
print("greedy:  ", generate(mini, mini_tokenizer, prompts, **options)[0])
for name, chosen in {
    "top-p 0.9": {"top_p": 0.9},
    "T = 0.7": {"temperature": 0.7},
    "all tokens": {},
}.items():
    print(
        f"{name}:", generate(mini, mini_tokenizer, prompts, sample, seed=0, **chosen, **options)[0]
    )

# %% [markdown]
# ## Scores without training
#
# A language model can choose between texts: it prefers the one whose tokens have the higher mean
# log probability. Radford et al. 2018, section 5 ("zero-shot behaviors"), and Radford et al. 2019
# score tasks like this. `token_losses` gives $-\log p$ of each token. Ten pairs, written for this
# page, differ in one word:

# %%
pairs = [
    ("The children were playing in the garden.", "The children was playing in the garden."),
    ("He has seen the house before.", "He has saw the house before."),
    ("She gave him a cup of tea.", "She gave he a cup of tea."),
    ("They went to the sea in summer.", "They went to the sea on summer."),
    ("The old man sat by the fire.", "The old man sat by the write."),
    ("I do not know what you mean.", "I do not knows what you mean."),
    ("The ships are in the harbour.", "The ships is in the harbour."),
    ("He put on his hat and went out.", "He put on his hat and go out."),
    ("It is better than nothing.", "It is better then nothing."),
    ("No one had ever heard of it.", "No one had never heard of it."),
]
losses = token_losses(mini, mini_tokenizer, [text for pair in pairs for text in pair])
score = -np.array([of_text.mean() for of_text in losses]).reshape(-1, 2)  # (pairs, 2)
for (good, bad), (of_good, of_bad) in zip(pairs, score, strict=True):
    mark = "right" if of_good > of_bad else "wrong"
    print(f"{mark}  {of_good:.2f}  {of_bad:.2f}  {good}  |  {bad}")
print(f"{(score[:, 0] > score[:, 1]).sum()} of {len(pairs)}; by chance five")

# %% [markdown]
# With `contexts=` the text is scored after another one: the sum over an answer's tokens given a
# question ranks answers.
#
# ## Fine-tuning
#
# GPT solves tasks without a new network. The tokenizer writes the inputs as one row (section 3.3):
# a text as `_start_ text _classify_`, a pair as `_start_ text _delimiter_ pair _classify_`. An
# output layer reads the last position. The special tokens get vectors in fine-tuning.

# %%
for row in tokenizer.pack(["the film was not bad ."], ["no one laughed ."])["token_ids"]:
    print(" ".join(tokenizer.vocabulary[i] for i in row))

# %% [markdown]
# Fine-tuning adds the language model's loss of the task's own texts to the task's loss (section
# 3.2, equation 5):
#
# $$ L_3 = L_2 + \lambda L_1 $$
#
# The paper uses $\lambda = 0.5$. The task here is inference in the made-up language: does the
# second text follow from the first one, contradict it, or neither? It needs to know that a dog is
# an animal, which the raw text says. `GPT_SETTINGS` holds the published settings; the learning rate
# and the number of epochs are larger, for a small model and few examples.

# %%
train = world.inference("train")[:train_limit]
test = world.inference("test")[:test_limit]
for example in train[:3]:
    print(example.text, "|", example.pair, "->", example.label)

set_seed(1)
untrained = GPT.from_config(gpt.get_config())  # the same sizes, random weights
truth, scores = [example.label for example in test], {}
for name, start, weight in (
    ("pre-trained, λ = 0.5", gpt, 0.5),
    ("pre-trained, λ = 0", gpt, 0.0),
    ("random weights, λ = 0", untrained, 0.0),
):
    changes = {"learning_rate": 1e-3, "epochs": epochs, "language_model_weight": weight}
    method = FineTune(**{**GPT_SETTINGS, **changes, "seed": 0})
    classifier = method.fit(start, Classifier, tokenizer, train)
    scores[name] = metrics.accuracy(truth, classifier.predict(test))
    print(f"{name:22} accuracy {scores[name]:.3f}")

# %%
most_frequent = max(truth.count(label) for label in truth) / len(truth)
figure, axes = plt.subplots(figsize=(6, 2.2), layout="constrained")
axes.barh(list(scores), list(scores.values()))
axes.axvline(most_frequent, color="grey", linestyle="--", label="most frequent label")
axes.set_xlim(0, 1)
axes.set_xlabel(f"accuracy, test set, {len(train)} training examples")
axes.set_ylabel("start and objective")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# One seed of each, in a language that this library generates: differences of a few points mean
# nothing. The paper found that the auxiliary objective helps on its larger tasks and not on the
# small ones (section 5, table 5). [Results of GPT](../../results/gpt.md) has that ablation for
# GPT-mini, with seeds.
#
# ## Exercises
#
# 1. Let `GPT-mini` write with `top_k=1`. *Hint: compare with greedy decoding.*
# 2. Compute the perplexity per word of your own text. *Hint: the sum of `token_losses` over all
#    tokens, divided by the number of words, exponentiated.*
# 3. Fine-tune on `world.feelings`, sentences with one of five degrees of feeling. Does pre-training
#    help there? *Hint: in our run under torch it did not: accuracy 0.715 and 0.698 pre-trained,
#    0.742 from random weights; 300 examples hold nearly all words of that task.*
#
# ## Next
#
# [BERT](07_bert.ipynb) reads both sides of a word.
# [Features or fine-tuning](08_features_or_fine_tuning.ipynb) compares this kind of fine-tuning with
# frozen features. [Functions and classes](../../reference/api.md) lists all arguments.
