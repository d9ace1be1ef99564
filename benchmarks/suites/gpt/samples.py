"""The suite `gpt_samples`: texts of a language model, prompts and continuations in one file."""

import dataclasses
from pathlib import Path

import keras_plm
from benchmarks.suites.gpt.ablations import OPTIONS, encoder_folder
from benchmarks.suites.registry import Suite, no_figures
from keras_plm.decoding import generate, greedy, sample
from keras_plm.experiments.environment import environment
from keras_plm.experiments.results import NoResult, ResultFolder
from keras_plm.files.fingerprint import fingerprint
from keras_plm.files.writing import write_json

KEPT = "samples"  # subfolder of these files in the suite's results
PROMPTS = (
    "It was late in the evening when",
    "“I do not believe,” said the doctor,",
    "The ship had left the harbour, and",
)
# {name: (strategy, its options)}
STRATEGIES = {
    "the likeliest token": (greedy, {}),
    "drawn from the likeliest that hold 0.9": (sample, {"top_p": 0.9}),
    "drawn from all": (sample, {}),
}


@dataclasses.dataclass(frozen=True)
class Samples:
    """Settings of generation.

    Attributes:
        prompts: Beginnings of the texts.
        tokens: Most tokens of a continuation.
        tiny: Whether a model with random weights replaces the pre-trained one.
    """

    prompts: tuple = PROMPTS
    tokens: int = 60
    tiny: bool = False


def run_samples(
    settings,
    data,
    results,
    seeds,
    progress,
    *,
    encoder=None,
    features,
    feature_gb=8.0,
):
    """Generates missing texts: one sample per prompt and strategy, without selection."""
    folder = Path(encoder_folder("gpt", encoder, data, features, settings.tiny))
    kept, file = ResultFolder(results), f"{KEPT}/{folder.name}.json"
    model, tokenizer = keras_plm.load(folder, dtype="float32")
    key = fingerprint(model, tokenizer, dataclasses.asdict(settings))
    if file in kept and kept.json(file)["hash"] == key:
        return
    texts = {
        name: generate(
            model, tokenizer, settings.prompts, strategy, max_new_tokens=settings.tokens, **options
        )
        for name, (strategy, options) in STRATEGIES.items()
    }
    found = {"encoder": folder.name, "prompts": settings.prompts, "texts": texts, "seed": 0}
    write_json(kept.file(file), found | environment() | {"hash": key})
    progress(f"{folder.name}: {len(settings.prompts)} prompts, {len(texts)} continuations each")


def markdown(folder):
    """Returns each prompt, in bold, with its continuations.

    Raises:
        ValueError: If there is no file.
    """
    kept = ResultFolder(folder)
    names = kept.names(f"{KEPT}/*")
    if not names:
        raise NoResult(
            "The folder must hold samples: `python -m benchmarks suite gpt_samples` writes "
            f"them. Received: {str(folder)!r}"
        )
    text = []
    for file in names:
        found = kept.json(file)
        for i, prompt in enumerate(found["prompts"]):
            text += [f"{found['encoder']} (generated text; the prompt in bold):", ""]
            for name, texts in found["texts"].items():
                written = " ".join(texts[i][len(prompt) :].split("\n"))
                text.append(f"- {name}: **{prompt}**{written}")
            text.append("")
    return "\n".join(text)


SUITES = {
    "gpt_samples": Suite(
        markdown,
        no_figures,
        {"small": Samples(), "test": Samples(("a", "a cat"), 5, tiny=True)},
        "texts of a small GPT",
        published="2018-06",
        run=run_samples,
        **OPTIONS,
    ),
}
