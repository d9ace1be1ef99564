"""The check `fine_tuning`: `FineTune` next to a plain training loop over `transformers`.

Both have dropout and the same settings. Data order, initial weights and dropout are drawn
independently, so only the means of several seeds can agree.
"""

import importlib.util
import time
from pathlib import Path

import numpy as np
from scipy import stats

import keras_plm
from keras_plm.checkpoints.packages import find_packaged
from keras_plm.datasets.tasks import TASKS
from keras_plm.experiments.config import Run
from keras_plm.experiments.environment import environment
from keras_plm.experiments.runner import Runner
from keras_plm.files.json_files import OneOf, Whole, Within, read_json
from keras_plm.files.writing import write_json
from keras_plm.transfer import FineTune

FILE = "check_fine_tuning.json"
ENCODER = "all-MiniLM-L6-v2"
TASKS_READ = {  # {task: (most training examples, settings)}
    "sst2": (4_000, {"learning_rate": 5e-5, "epochs": 2, "pool": "pooled"}),
    "wikigold": (0, {"learning_rate": 1e-4, "epochs": 3}),
}
SEEDS = 5
OURS, PEER = "keras_plm", "transformers"
ROW = {  # of a result file
    "task": str, "seed": Whole(), "trained": OneOf((OURS, PEER)), "metric": str,
    "score": Within(0, 1), "train": Whole(),
}  # fmt: skip
IGNORED = -100  # target of a token without a label, as in `transformers`


def train_ours(task, method, parts, labels, folder):
    """Fine-tunes with `FineTune`; returns the predictions for the evaluation split."""
    encoder, tokenizer = keras_plm.load(folder)
    model = method.fit(encoder, task.head, tokenizer, parts["train"], labels=labels)
    return model.predict([example.text for example in parts["test"]])


def train_peer(task, method, parts, labels, folder):
    """Fine-tunes a model of `transformers` in a plain loop; returns the predictions.

    Its tokenizer, data order, initial output layer and dropout are those of `transformers` and
    torch. The first token of each word has the word's label.
    """
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()  # no report about the new output layer
    transformers.utils.logging.disable_progress_bar()
    transformers.set_seed(method.seed)
    per_word, ids = task.head.per_word, {label: i for i, label in enumerate(labels)}
    kind = "TokenClassification" if per_word else "SequenceClassification"
    model = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(
        folder, num_labels=len(labels), hidden_dropout_prob=method.dropout,
        attention_probs_dropout_prob=method.dropout,
    )  # fmt: skip
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def packed(examples):
        """Returns `(inputs, places)`; places are the first tokens of words, (row, token) each."""
        inputs = tokenizer(
            [example.text for example in examples], is_split_into_words=per_word, padding=True,
            truncation=True, max_length=512, return_tensors="pt",
        )  # fmt: skip
        if not per_word:
            return inputs, None
        places = []
        for row in range(len(examples)):
            words = inputs.word_ids(row)
            places.append([words.index(i) for i in range(len(examples[row].text))])
        return inputs, places

    def targets(examples, inputs, places):
        if not per_word:
            return torch.tensor([ids[example.label] for example in examples])
        found = torch.full(inputs["input_ids"].shape, IGNORED)
        for row, example in enumerate(examples):
            found[row, places[row]] = torch.tensor([ids[tag] for tag in example.label])
        return found

    plain = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    decayed = [p for p in model.parameters() if not any(p is other for other in plain)]
    groups = [{"params": decayed, "weight_decay": method.weight_decay}]
    groups.append({"params": plain, "weight_decay": 0.0})
    optimizer = torch.optim.AdamW(groups, lr=method.learning_rate, eps=1e-6)
    train, size = parts["train"], method.batch_size
    total = method.epochs * -(-len(train) // size)
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, int(method.warmup * total), total
    )
    model.train()
    for _ in range(method.epochs):
        order = torch.randperm(len(train)).tolist()
        for start in range(0, len(train), size):
            batch = [train[row] for row in order[start : start + size]]
            inputs, places = packed(batch)
            logits = model(**inputs).logits
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, -2), targets(batch, inputs, places).flatten(),
                ignore_index=IGNORED,
            )  # fmt: skip
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    model.eval()
    found = []
    for start in range(0, len(parts["test"]), 64):
        batch = parts["test"][start : start + 64]
        inputs, places = packed(batch)
        with torch.no_grad():
            chosen = model(**inputs).logits.argmax(dim=-1).tolist()
        for row, of_row in enumerate(chosen):
            tokens = of_row if not per_word else [of_row[place] for place in places[row]]
            found.append([labels[i] for i in tokens] if per_word else labels[tokens])
    return found


TRAINED = {OURS: train_ours, PEER: train_peer}


def check_fine_tuning(data, out, progress=print):
    """Trains both with several seeds in turn, and writes a result file after each training.

    A second call with the same file resumes after the last finished training.

    Args:
        data: Folder of data.
        out: JSON file to write.
        progress: Called with a line for each training.

    Returns:
        The content of the file.

    Raises:
        ImportError: If the peer is not installed.
    """
    missing = [name for name in ("torch", PEER) if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            "The check compares with `transformers` on torch: install both. "
            f"Received: no {' and no '.join(missing)}"
        )
    rows = read_json(out, {"rows": [ROW]})["rows"] if Path(out).is_file() else []
    done = {(row["task"], row["seed"], row["trained"]) for row in rows}
    report = {"encoder": ENCODER, "rows": rows, **environment()}
    folder = find_packaged(ENCODER)
    for name, (limit, settings) in TASKS_READ.items():
        runner = Runner(TASKS[name], data, ENCODER, str(Path(out).parent), str(Path(out).parent))
        train, _, test = runner.all_examples(Run(train_limit=limit))
        parts = {"train": train, "test": test}
        metric, score = next(iter(runner.task.metrics.items()))
        labels = runner.task.head.labels_of(train)
        truth = [example.label for example in test]
        for seed in range(SEEDS):
            method = FineTune(seed=seed, bias_correction=True, **settings)
            for trained in (t for t in TRAINED if (name, seed, t) not in done):
                begun = time.monotonic()
                predictions = TRAINED[trained](runner.task, method, parts, labels, folder)
                row = {"task": name, "seed": seed, "trained": trained, "metric": metric}
                row |= {"score": float(score(truth, predictions)), "train": len(train)}
                row |= {"test": len(test), "seconds": round(time.monotonic() - begun, 1)}
                rows.append(row | settings)
                write_json(Path(out), report)
                progress(f"{name}, seed {seed}, {trained}: {100 * row['score']:.1f}")
    progress(f"{markdown(out)}\nResult file: {out}")
    return report


def markdown(path):
    """Returns the table of a result file: means, and the difference with its Welch interval."""
    rows, lines = read_json(path, {"rows": [ROW]})["rows"], []
    heads = ["task", "training examples", OURS, PEER, "difference, 95 % interval over seeds"]
    lines += [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for name in dict.fromkeys(row["task"] for row in rows):
        of_task = [row for row in rows if row["task"] == name]
        scores = {
            trained: 100 * np.array([row["score"] for row in of_task if row["trained"] == trained])
            for trained in TRAINED
        }
        cells = [f"{name} ({of_task[0]['metric'].replace('_', ' ')})", f"{of_task[0]['train']:,}"]
        cells += [
            f"{s.mean():.1f} ± {s.std(ddof=1):.1f} ({len(s)})" if len(s) > 1 else ""
            for s in scores.values()
        ]
        if all(len(s) > 1 and s.std() > 0 for s in scores.values()):
            test = stats.ttest_ind(scores[OURS], scores[PEER], equal_var=False)
            low, high = test.confidence_interval()
            difference = scores[OURS].mean() - scores[PEER].mean()
            cells.append(f"{difference:+.1f} ({low:+.1f} to {high:+.1f})")
        else:  # without a spread there is no interval
            cells.append("")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
