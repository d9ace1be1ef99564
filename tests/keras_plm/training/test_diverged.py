"""Training that diverges ends with an error, has no score and never wins a search."""

import json
import math

import numpy as np
import pytest

from keras_plm import metrics
from keras_plm.cli.main import main
from keras_plm.decoding import beam_search, generate, greedy, sample
from keras_plm.experiments.results import ResultFolder
from keras_plm.experiments.runner import best_trial
from keras_plm.heads import Classifier, Tagger
from keras_plm.models.nnlm import NNLM
from keras_plm.training.resume import TrainingState
from keras_plm.transfer import FeatureBased, FineTune, KeepBest, compare_layers
from tests.helpers.small_encoders import TOKENIZER, encoder, sentences, texts
from tests.helpers.small_gpt import gpt
from tests.helpers.small_passages import PAIRS
from tests.helpers.small_runs import common, result_files
from tests.keras_plm.training.small_training import start

RATE = 1e30  # one step gives weights with infinite squares
DIVERGED = r"training diverged: .*loss=nan in epoch \d, after step \d+, learning_rate=1e\+30"


@pytest.mark.compiles
@pytest.mark.quick_cases("FineTune-Classifier-texts")
@pytest.mark.parametrize(
    "method, head, examples",
    [
        (FineTune, Classifier, texts),
        (FeatureBased, Classifier, texts),
        (FineTune, Tagger, sentences),
    ],
)
def test_divergence_of_a_method_raises(method, head, examples):
    method = method(learning_rate=RATE, epochs=2, batch_size=8)
    with pytest.raises(FloatingPointError, match=DIVERGED):
        method.fit(encoder(), head, TOKENIZER, examples(24), examples(8))


@pytest.mark.backend_neutral
def test_divergence_of_lora_raises():
    method = FineTune(learning_rate=RATE, epochs=2, batch_size=8, lora_rank=1)
    with pytest.raises(FloatingPointError, match=DIVERGED):
        method.fit(encoder(), Classifier, TOKENIZER, texts(24))


def test_predict_refuses_weights_that_are_not_finite():
    model = Classifier(encoder(), ["no", "yes"], tokenizer=TOKENIZER)
    model.set_weights([np.nan * w for w in model.get_weights()])
    for probabilities in (False, True):
        with pytest.raises(FloatingPointError, match="outputs must be finite.* Received: nan"):
            model.predict(["a b"], probabilities=probabilities)


@pytest.mark.compiles
@pytest.mark.parametrize("strategy", [greedy, sample, beam_search])
def test_generate_refuses_weights_that_are_not_finite(strategy):
    model = gpt(len(PAIRS))
    model.set_weights([np.nan * w for w in model.get_weights()])
    with pytest.raises(FloatingPointError, match="outputs must be finite.* Received: nan"):
        generate(model, PAIRS, ["a b"], strategy, max_new_tokens=3)


@pytest.mark.backend_neutral
def test_divergence_in_compare_layers_names_the_layers():
    parts = {"train": texts(24), "dev": texts(8, seed=1), "test": texts(8, seed=2)}
    method = FeatureBased(learning_rate=RATE, epochs=2, batch_size=8)
    with pytest.raises(FloatingPointError, match="layers=last, seed=0: .*training diverged"):
        compare_layers(encoder(), TOKENIZER, parts, Classifier, method, ["last"], seeds=1)


@pytest.mark.full
@pytest.mark.backend_neutral
def test_epoch_with_a_nan_score_is_never_the_best():
    scores = iter([math.nan, 0.25, math.nan])
    method = FineTune(epochs=3, batch_size=8)
    dev = texts(8, seed=1)
    model = method.fit(
        encoder(), Classifier, TOKENIZER, texts(24), dev, metric=lambda *_: next(scores)
    )
    assert model.training_log["best_epoch"] == 2 and model.training_log["dev_score"] == 0.25
    with pytest.raises(ValueError, match=r"must give a number .* Received: scores \[nan\]"):
        FineTune(epochs=1).fit(
            encoder(), Classifier, TOKENIZER, texts(24), dev, metric=lambda *_: math.nan
        )
    KeepBest(None).on_train_end()  # without training


@pytest.mark.backend_neutral
@pytest.mark.parametrize("metric", [metrics.pearson_correlation, metrics.spearman_correlation])
def test_correlations_refuse_nan_and_infinity(metric):
    with pytest.raises(ValueError, match="Received: nan in row 1 of `y_pred`"):
        metric([1, 2, 3], [1, math.nan, 3])
    with pytest.raises(ValueError, match=r"must be finite. Received: y_pred\[1\]=inf"):
        metric([1, 2, 3], [1, math.inf, 3])
    assert metric([1, 2, 3], [4, 4, 4]) == 0.0  # as documented; SciPy returns NaN


@pytest.mark.backend_neutral
def test_state_with_nan_weights_is_not_saved(stream, tmp_path):
    model, batches = start(stream)
    state = TrainingState(tmp_path, batches)
    model.fit(batches, epochs=1, callbacks=[state], verbose=0)
    kept = sorted(tmp_path.glob("state*"))
    model.encoder.set_weights([np.nan * w for w in model.encoder.get_weights()])
    with pytest.raises(FloatingPointError, match="The state is not saved"):
        state.save()
    assert kept and sorted(tmp_path.glob("state*")) == kept


@pytest.mark.backend_neutral
def test_nnlm_refuses_weights_that_are_not_finite():
    model = NNLM(7, 3, 4, 5)
    model.set_weights([np.nan * w for w in model.get_weights()])
    for call in (model.log_prob, model.distribution):
        with pytest.raises(FloatingPointError, match="outputs must be finite"):
            call([1, 2, 3])


@pytest.mark.backend_neutral
def test_diverged_pretraining_fails_and_writes_no_encoder(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("a cat sat . it ran .\n\nwe saw a dog , a cat and a bird .\n" * 20)
    flags = ["--size", "tiny", "--tokens-per-batch", "64", "--max-length", "16"]
    flags += ["--tokens", "640", "--vocabulary-size", "60", "--warmup", "0"]
    command = ["pretrain", "--corpus", str(text), *flags, "--out", str(tmp_path / "bert")]
    assert main([*command, "--learning-rate", "1e30"]) == 2
    assert "diverged" in capsys.readouterr().err
    assert not (tmp_path / "bert" / "model.safetensors").exists()


@pytest.mark.full
@pytest.mark.backend_neutral
def test_rate_search_skips_diverged_rates_and_fails_if_all_do(
    encoder,  # noqa: F811
    table,
    tmp_path,
    capsys,
):
    flags = ["run", *table, *common(encoder, tmp_path), "--epochs", "1", "--seeds", "2"]
    assert main([*flags, "--learning-rates", "1e30,1e-3"]) == 0
    assert "learning rate 1e+30 diverged" in capsys.readouterr().out
    for path in result_files(tmp_path):
        result = json.loads(path.read_text())
        assert result["learning_rate"] == 1e-3
        assert [trial["dev_score"] is None for trial in result["trials"]] == [True, False]
        assert "loss=nan" in result["trials"][0]["error"]
    assert best_trial(result["trials"])["learning_rate"] == 1e-3
    for path in result_files(tmp_path):
        path.unlink()
    assert main([*flags, "--learning-rates", "1e30,1e29"]) == 2
    assert "Training must converge with one learning rate" in capsys.readouterr().err
    assert not result_files(tmp_path)
    (failed,) = (tmp_path / "results").glob("**/*.failed")
    record = json.loads(failed.read_text())
    assert record["seed"] == 0 and record["error"].startswith("FloatingPointError")
    assert main([*flags, "--learning-rates", "1e-3"]) == 0
    assert not failed.exists()


@pytest.mark.backend_neutral
def test_result_folder_refuses_a_nan_score(tmp_path):
    path = tmp_path / "x.seed0.json"
    path.write_text(
        '{"task": "t", "encoder": "e", "method": "fine_tune", "score": NaN, "seed": 0, '
        '"metrics": {}, "settings": {}}'
    )
    with pytest.raises(ValueError, match="x.seed0.json: .* must be a number"):
        ResultFolder(tmp_path).record(path.name)
