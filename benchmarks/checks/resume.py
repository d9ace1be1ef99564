"""Checks that killed training resumes bit for bit: `python -m benchmarks check resume`.

`python -m benchmarks.checks.resume FOLDER` is the run to kill. It trains a small BERT with dropout
on masked words, prints each finished step, and resumes from the state in its folder.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from keras_plm.experiments.environment import environment
from keras_plm.files.writing import write_json

STEPS = 40  # an epoch has about 13, so that most kills fall within an epoch
EVERY = 3  # steps between two states, so that most kills lose some steps
LIMIT = 300  # seconds without output before the check fails


def small_text(folder, documents):
    """Returns `(stream, tokenizer)` of a text of the microworld, written to a folder."""
    from keras_plm.data.corpus import TokenStream
    from keras_plm.datasets.microworld import World
    from keras_plm.tokenizers import WordPiece

    folder.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join("\n".join(sentences) for sentences in World().corpus(documents))
    (folder / "text.txt").write_text(text)
    words = sorted(set(text.lower().split()))
    tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words], lowercase=True)
    stream = TokenStream.build([folder / "text.txt"], tokenizer, folder / "stream", "lines")
    return stream, tokenizer


def train(folder):
    """Trains for `STEPS` steps; resumes from the state in the folder, if any."""
    import keras

    from keras_plm.models import BERT
    from keras_plm.pretraining import MaskedLM, masked_lm_batches
    from keras_plm.training.optimizers import BertAdamW
    from keras_plm.training.resume import TrainingState, set_seed
    from keras_plm.training.state_files import has_state

    folder = Path(folder)
    stream, tokenizer = small_text(folder, 40)
    # A resumed process has another seed, which must not change the result.
    set_seed(os.getpid() if has_state(folder) else 1)
    size = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
    model = MaskedLM(BERT(len(tokenizer), **size, dropout=0.2, max_sequence_length=64))
    model.compile(BertAdamW(1e-3))
    batches = masked_lm_batches(stream, tokenizer, 64, batch_size=8, buckets=2, seed=1)
    state = TrainingState(folder, batches, every_seconds=None, every_steps=EVERY, total_steps=STEPS)
    state.restore(model)
    report = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: print(f"step {state.steps}", flush=True)
    )
    if not state.finished:
        model.fit(batches, epochs=STEPS, verbose=0, callbacks=[state, report])
    print("finished", flush=True)


def run(folder, kill_at=None, delay=0.0, threads=1):
    """Runs `train` in a new process.

    Args:
        folder: Folder of the run.
        kill_at: Send SIGKILL after this step.
        delay: Seconds between the end of that step and the signal.
        threads: Threads of the backend.

    Returns:
        `(step, killed)`: the last printed step, and whether the signal ended the process.

    Raises:
        RuntimeError: If the process fails, or prints nothing for five minutes.
    """
    command = [sys.executable, "-m", "benchmarks.checks.resume", str(folder)]
    root = Path(__file__).parents[2]
    with open(Path(folder).with_suffix(".err"), "w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, cwd=root, env=_environment(threads)
        )
        step = 0
        try:
            for line in _lines(process):
                if line.startswith("step "):
                    step = int(line.split()[1])
                if kill_at is not None and step >= kill_at:
                    time.sleep(delay)
                    process.kill()
                    kill_at = None
            process.wait(LIMIT)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        errors.seek(0)
        if process.returncode not in (0, -signal.SIGKILL):
            raise RuntimeError(
                f"The run in {folder} ended with {process.returncode}: {errors.read()[-2000:]}"
            )
    return step, process.returncode != 0


def _lines(process):
    """Yields the lines of a process as it prints them.

    Raises:
        RuntimeError: If it prints nothing for `LIMIT` seconds.
    """
    import selectors

    left = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(LIMIT):
                raise RuntimeError(
                    f"A run must print a line at least every {LIMIT} seconds. Received: no line"
                )
            part = os.read(process.stdout.fileno(), 4096)
            if not part:
                return
            *lines, left = (left + part).split(b"\n")
            yield from (line.decode() for line in lines)


def with_xla_flag(flag):
    """Returns the environment variable `XLA_FLAGS` of this process with another flag, as a dict."""
    return {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()}


def _environment(threads):
    """Returns the environment variables of a process with this number of threads."""
    one_thread = f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
    return os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": str(threads),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **with_xla_flag(one_thread),
    }


def differences(folder, other):
    """Returns the names of arrays and histories that differ between the last states of two runs."""
    from safetensors import safe_open

    found = []
    for place in (folder, other):
        path = Path(place) / f"state-{STEPS:06d}.safetensors"
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}
            bits = {n: (str(a.dtype), a.shape, a.tobytes()) for n, a in arrays.items()}
            bits["history"] = json.loads(file.metadata()["state"])["history"]
        found.append(bits)
    here, there = found
    return sorted(n for n in here.keys() | there.keys() if here.get(n) != there.get(n))


def check_resume(out, runs=20, seed=0, threads=1, progress=print):
    """Kills training runs at random steps, resumes them, and compares them with an unkilled run.

    Args:
        out: JSON file to write.
        runs: Number of runs to kill, each once.
        seed: Seed of the steps and of the delays after them.
        threads: Threads of the backend.
        progress: Called with a line of text for each run, and at the end.

    Returns:
        The content of the file: a dict for each run, and the numbers of kills and differences.

    Raises:
        ValueError: If `runs` or `threads` is less than 1.
        RuntimeError: If a run fails.
    """
    for name, value in (("runs", runs), ("threads", threads)):
        if value < 1:
            raise ValueError(f"`{name}` must be 1 or more. Received: {value}")
    rng = random.Random(seed)
    done = []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        run(folder / "whole", threads=threads)
        # The kill falls anywhere in the next steps, or in a write.
        for i, step in enumerate(_steps(rng, runs)):
            killed_run = folder / str(i)
            last, killed = run(killed_run, step, rng.uniform(0, 0.05), threads)
            if not killed:  # the run ended before the signal
                killed_run = folder / f"{i}again"
                last, killed = run(killed_run, step, 0, threads)
            states = [path.stem for path in sorted(killed_run.glob("state-*.safetensors"))]
            run(killed_run, threads=threads)
            found = differences(folder / "whole", killed_run)
            after = int(states[-1].partition("-")[2]) if states else 0
            done.append(
                {"killed": killed, "killed_after_step": last, "resumed_after_step": after,
                 "differences": found}
            )  # fmt: skip
            progress(
                f"killed after step {last}, resumed after step {after}: {len(found)} differences"
            )
    result = {"task": "check_resume", "steps": STEPS, "threads": threads, "seed": seed,
              "runs": done, "different_runs": sum(bool(one["differences"]) for one in done),
              "differences": sum(len(one["differences"]) for one in done),
              "kills": sum(one["killed"] for one in done), **environment()}  # fmt: skip
    write_json(out, result)
    progress(
        f"{out}: {result['kills']} kills, {result['differences']} differences in "
        f"{result['different_runs']} runs"
    )
    return result


def _steps(rng, runs):
    """Draws a step to kill at for each run; steps repeat only after each was drawn once."""
    steps = []
    while len(steps) < runs:
        steps += rng.sample(range(1, STEPS), min(STEPS - 1, runs - len(steps)))
    return steps


if __name__ == "__main__":
    train(sys.argv[1])
