"""Draw the picture of README.md from result files: `python docs/readme_picture.py`.

Each choice of BERT-mini's layers on WikiGold, frozen under a linear output layer, with other
methods as lines.
"""

from pathlib import Path

from keras_plm.experiments.config import summary
from keras_plm.experiments.results import read_results
from keras_plm.plots import score_by_layer

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "benchmarks" / "results" / "features_or_fine_tuning"
LAYERS = {
    "embeddings": "embeddings",
    "layer_1": "layer 1",
    "layer_2": "layer 2",
    "second_to_last": "layer 3",
    "last": "layer 4, the last",
    "concat_last_four": "layers 1 to 4, concatenated",
    "mean_last_four": "layers 1 to 4, mean",
    "weighted_sum_last_four": "layers 1 to 4, learned weights",
    "elmo_mix": "all layers, learned weights",
}
LINES = {
    "features-bilstm_crf-elmo_mix-characters64": "frozen, all layers under a BiLSTM-CRF",
    "fine_tune-bfloat16": "fine-tuned",
    "scratch-bfloat16": "random weights, all trained",
}


def figure():
    """The picture as a matplotlib figure."""
    runs = {}
    for record in read_results(RESULTS, "wikigold"):
        if record["encoder"] == "bert_mini":
            runs.setdefault(record["run"], []).append(record)
    table = []
    for layers, label in LAYERS.items():
        mean, deviation, _ = summary(runs[f"features-linear-{layers}"])
        table.append({"layers": label, "mean": mean, "deviation": deviation})
    lines = {label: summary(runs[run])[0] for run, label in LINES.items()}
    title = "Named entities in WikiGold: BERT-mini, frozen under an output layer, by layers"
    return score_by_layer(table, title, "F1 of spans, in points", lines)


if __name__ == "__main__":
    figure().savefig(DOCS / "readme.png", dpi=120)
