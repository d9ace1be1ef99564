"""Comparison of our own mini encoders: training text, cost, held-out loss.

`python -m benchmarks encoders` counts words on the held-out books and writes a result file.
"""

from pathlib import Path

import keras_plm
from keras_plm.data.corpus import split_sentences
from keras_plm.data.task import find_file
from keras_plm.experiments.environment import environment
from keras_plm.experiments.report.tables import cell
from keras_plm.experiments.results import read_json
from keras_plm.files.writing import write_json
from keras_plm.models import BERT, GPT, ELMo, RecurrentLM
from keras_plm.tokenizers import Characters, Words, open_text

WEIGHTS = Path(__file__).parents[1] / "weights"
FILE = "encoders.json"  # in the folder of results
TEXT = "books/valid.txt"
MASKED, TRAINING = 0.15, 3  # fraction of the tokens; one forward product needs two backward ones


def forward_work(encoder, note):
    """Returns the FLOP of the matrix products of one token in pre-training, without backward pass.

    They are twice the weights used, the two products of attention over the whole row, and the
    softmax. GPT, the LSTM and a left-to-right BERT compute the softmax at every token, other BERTs
    at 15 % of the tokens. ELMo computes it over its sample, once in each direction. The sum omits
    BERT's next sentence and ELMo's convolutions, which run once for each different word of a batch.
    """
    if isinstance(encoder, ELMo):
        n, p = encoder.units, encoder.projection_dim
        layer = 4 * n * (p + p) + n * p
        return 2 * 2 * (encoder.num_layers * layer + note["num_sampled"] * p)
    width = encoder.hidden_dim
    softmax = 2 * encoder.vocabulary_size * width
    if isinstance(encoder, RecurrentLM):
        n = encoder.units
        return 2 * encoder.num_layers * (4 * n * (width + width) + n * width) + softmax
    length = note["max_length"]
    if note["first_length"]:
        fraction = note["first_fraction"]
        length = fraction * note["first_length"] + (1 - fraction) * length
    block = 2 * (4 * width**2 + 2 * width * encoder.intermediate_dim) + 4 * length * width
    if isinstance(encoder, BERT) and not note.get("left_to_right"):
        softmax = MASKED * (softmax + 2 * width**2)
    return encoder.num_layers * block + softmax


def _count_tokens(tokenizer, lines, words):
    """Counts the tokens of these lines; words include a mark at the end of each sentence."""
    if isinstance(tokenizer, Characters):
        return words + sum(len(split_sentences(line.strip())) for line in lines)
    plain = tokenizer.unframed() if hasattr(tokenizer, "unframed") else tokenizer
    prefix, suffix = plain.framed
    return int((plain.encode(lines).lengths - prefix - suffix).sum())


def describe(folder, lines, words):
    """Returns the row of one encoder."""
    note = read_json(folder / "pretraining.json")
    encoder, tokenizer = keras_plm.load(folder)
    tokens = note["steps_done"] * note["tokens_per_batch"]
    work = TRAINING * forward_work(encoder, note)
    valid = note.get("valid", {})
    known = ("masked_lm_loss", "perplexity", "word_perplexity", "unknown")
    return {
        "encoder": folder.name,
        "model": type(encoder).__name__,
        "weights": encoder.count_params(),
        "tokens": tokens,
        "tokens_per_word": _count_tokens(tokenizer, lines, words) / words,
        "flop": work * tokens,
        "seconds": note["seconds"],
        "device": note["device"],
        "backend": note["backend"],
        "precision": note["precision"],
        "valid": {name: valid[name] for name in known if name in valid},
    }


def compare(data, results, say=print):
    """Writes the rows of all encoders in `benchmarks/weights`; returns the content of the file."""
    with open_text(find_file(data, TEXT)) as file:
        lines = [line for line in file if line.strip()]
    words = int(Words.train(find_file(data, TEXT)).encode(lines).lengths.sum())
    rows = []
    for folder in sorted(WEIGHTS.iterdir()):
        if (folder / "config.json").is_file() and (folder / "pretraining.json").is_file():
            rows.append(describe(folder, lines, words))
            say(f"{folder.name}: {rows[-1]['tokens']:,} tokens")
    report = {"text": TEXT, "words": words, "rows": rows, **environment()}
    write_json(Path(results) / FILE, report)
    return report


def markdown(results):
    """Returns the table of the file that `compare` wrote.

    Raises:
        ValueError: If the file does not exist.
    """
    path = Path(results) / FILE
    if not path.is_file():
        raise ValueError(
            f"The folder of results must hold {FILE}: `python -m benchmarks encoders` writes it. "
            f"Received: {str(results)!r}"
        )
    text = [
        "| | training text, M words | M weights | PFLOP | hours | machine | on held-out text |",
        "|---|---:|---:|---:|---:|---|---|",
    ]
    order = {kind.__name__: i for i, kind in enumerate((BERT, ELMo, GPT, RecurrentLM))}
    for row in sorted(read_json(path)["rows"], key=lambda row: order[row["model"]]):
        read = row["tokens"] / row["tokens_per_word"] / 1e6
        machine = cell(f"{row['device']}, {row['backend']}, {row['precision']}")
        text.append(
            f"| {cell(row['encoder'])} | {read:.1f} | {row['weights'] / 1e6:.1f} | "
            f"{row['flop'] / 1e15:.2f} | {row['seconds'] / 3600:.1f} | {machine} | "
            f"{_said(row)} |"
        )
    return "\n".join(text) + "\n"


def _said(row):
    valid = row["valid"]
    if "word_perplexity" in valid:
        per = row["tokens_per_word"]
        return (
            f"perplexity {valid['word_perplexity']:.0f} per word "
            f"({valid['perplexity']:.1f} per subword token, {per:.2f} subword tokens per word)"
        )
    if "perplexity" in valid:
        return (
            f"perplexity {valid['perplexity']:.0f} per word, both directions, "
            f"{valid['unknown']:.1%} unknown"
        )
    return f"loss {valid['masked_lm_loss']:.2f} per masked subword token, bidirectional"
