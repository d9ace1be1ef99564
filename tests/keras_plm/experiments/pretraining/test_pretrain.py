"""The command `pretrain` for ELMo, and further training of an encoder on other text."""

import dataclasses
import json
import signal

import keras
import numpy as np
import pytest

import keras_plm
from keras_plm.cli.main import main
from keras_plm.experiments.flags import help_of, setting
from keras_plm.experiments.pretraining.callbacks import Meter
from keras_plm.experiments.pretraining.objectives import (
    OBJECTIVE,
    SIZES,
    WORDS,
    about_init,
    lexicon,
)
from keras_plm.experiments.pretraining.settings import Pretraining
from keras_plm.models import ELMO_SIZES, ELMo
from keras_plm.tokenizers import Characters, Words
from tests.helpers.checks import on_two_devices

SIZE = {"units": 6, "projection_dim": 4, "filters": [[1, 3], [2, 4]], "num_highway": 1}


@pytest.fixture
def flags(tmp_path, monkeypatch):
    monkeypatch.setitem(ELMO_SIZES, "tiny", SIZE)
    text = tmp_path / "text.txt"
    text.write_text("a cat sat . it ran .\n\nwe saw a dog , a cat and a bird .\n" * 20)
    other = tmp_path / "other.txt"
    other.write_text("a zebra sat .\nit saw a dog .\n" * 20)
    onward = ["--sentences", "lines", "--tokens-per-batch", "20", "--unroll-steps", "5"]
    onward += ["--model", "elmo"]
    return {"text": text, "other": other, "onward": onward, "common": [*onward, "--size", "tiny"]}


@pytest.mark.full
@pytest.mark.backend_neutral
def test_elmo_is_pretrained_and_resumed(flags, tmp_path, capsys):
    out = tmp_path / "elmo"
    command = ["pretrain", "--corpus", str(flags["text"]), "--valid", str(flags["other"])]
    command += [
        *flags["common"],
        "--out",
        str(out),
        "--vocabulary-size",
        "12",
        "--num-sampled",
        "5",
    ]
    assert main([*command, "--tokens", "200"]) == 0
    assert "forwards" in capsys.readouterr().out
    encoder, tokenizer = keras_plm.load(out)
    assert isinstance(tokenizer, Characters) and encoder.units == 6 and encoder.dropout == 0.1
    words = Words.load(out / WORDS).vocabulary
    assert len(words) == 12 and words[:4] == ["[PAD]", "[UNK]", "[EOS]", "a"]
    note = json.loads((out / "pretraining.json").read_text())
    assert note["steps_done"] == 10 and note["model"] == "elmo" and note["learning_rate"] == 0.2
    assert {"forward_perplexity", "backward_perplexity", "perplexity"} <= set(note["valid"])
    before = encoder.get_weights()
    assert main([*command, "--tokens", "200", "--resume"]) == 0
    for a, b in zip(keras_plm.load(out)[0].get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert json.loads((out / "pretraining.json").read_text())["valid"] == note["valid"]
    assert main([*command, "--tokens", "400", "--resume"]) == 2
    assert "tokens=400.0 instead of 200.0" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.backend_neutral
def test_stopped_and_resumed_run_equals_uninterrupted_run(flags, tmp_path, monkeypatch):
    """Weights, carried states and position in the text equal those of an uninterrupted run."""

    def run(name, stop=None):
        command = [
            "pretrain",
            "--corpus",
            str(flags["text"]),
            *flags["common"],
            "--num-sampled",
            "0",
        ]
        command += ["--out", str(tmp_path / name), "--tokens", "160", "--dropout", "0"]
        if stop:
            end = Meter.on_train_batch_end

            def stopped(self, batch, logs=None):
                if self.state.steps == stop:
                    self.stop.number = signal.SIGINT
                end(self, batch, logs)

            monkeypatch.setattr(Meter, "on_train_batch_end", stopped)
            assert main(command) == 130
            monkeypatch.undo()
            monkeypatch.setitem(ELMO_SIZES, "tiny", SIZE)
            command.append("--resume")
        assert main(command) == 0
        return keras_plm.load(tmp_path / name)[0].get_weights()

    for a, b in zip(run("whole"), run("stopped", stop=3), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.full
@pytest.mark.backend_neutral
@pytest.mark.parametrize("model", ["elmo", "bert"])
def test_pretraining_continues_from_encoder_on_other_text(model, flags, tmp_path, capsys):
    common = flags["onward"]
    if model == "bert":
        common = ["--sentences", "lines", "--tokens-per-batch", "64"]
        common += ["--max-length", "16", "--buckets", "1"]
        flags["other"].write_text("a zebra sat .\n\nit saw a dog .\n\n" * 20)
    sizes = ["--vocabulary-size", "60" if model == "bert" else "9", "--size", "tiny"]
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(["pretrain", "--corpus", str(flags["text"]), *common, *sizes, "--out", str(first),
                 "--tokens", "200"]) == 0  # fmt: skip
    onward = ["pretrain", "--corpus", str(flags["other"]), "--valid", str(flags["other"]), *common]
    onward += ["--init", str(first), "--out", str(second), "--tokens", "400"]
    assert main(onward) == 0
    note = json.loads((second / "pretraining.json").read_text())
    assert note["init"] == "first" and note["valid_before"]["loss"] > note["valid"]["loss"]
    assert note["size"] is None and note["vocabulary_size"] is None and note["init_objective"]
    shown = capsys.readouterr().out
    assert "held-out text before: " in shown and "held-out text after: " in shown
    assert main([*onward, *sizes[2:]]) == 2
    assert (
        "keeps the size and the vocabulary of its encoder: omit --size" in capsys.readouterr().err
    )
    if model == "elmo":
        known = set(Words.load(first / WORDS).vocabulary)
        words = flags["other"].read_text().split()
        unknown = sum(word not in known for word in words)
        assert 0 < unknown < len(words) and "unknown" in shown
        assert note["valid"]["unknown"] == pytest.approx(unknown / len(words))
        assert Words.load(second / WORDS).vocabulary == Words.load(first / WORDS).vocabulary
    assert (second / OBJECTIVE).is_file()
    before = [keras_plm.load(f)[0].get_weights() for f in (first, second)]
    assert any(not np.array_equal(a, b) for a, b in zip(*before, strict=True))
    assert main([*onward, "--resume"]) == 0


@pytest.mark.backend_neutral
def test_objective_with_other_vocabulary_is_refused(flags, tmp_path, capsys):
    first = tmp_path / "first"
    command = ["pretrain", "--corpus", str(flags["text"]), *flags["common"], "--tokens", "40"]
    assert main([*command, "--out", str(first), "--num-sampled", "0"]) == 0
    Words(["[PAD]", "[UNK]", "[EOS]", "a"]).save(first / WORDS)
    command = ["pretrain", "--corpus", str(flags["text"]), *flags["onward"], "--tokens", "40"]
    assert main([*command, "--out", str(tmp_path / "second"), "--init", str(first)]) == 2
    assert "must fit the objective" in capsys.readouterr().err


def test_lexicon_appends_text_words_to_predicted_words(flags):
    words = lexicon([flags["other"]], ["[PAD]", "[UNK]", "[EOS]", "dog"])
    assert words.vocabulary[:4] == ["[PAD]", "[UNK]", "[EOS]", "dog"]
    assert set(words.vocabulary[4:]) == {"a", "zebra", "sat", ".", "it", "saw"}


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "settings, match",
    [
        ({"model": "gpd"}, "Known models: bert in tiny.*elmo in tiny"),
        ({"model": "elmo", "size": "base"}, "Received: model='elmo', size='base'"),
        ({"model": "elmo", "max_length": 64}, "`max_length` applies only to bert, gpt, lstm"),
        ({"model": "bert", "unroll_steps": 10}, "`unroll_steps` applies only to elmo"),
        ({"model": "elmo", "split": "words"}, "`split` must be one of 'punctuation', 'spaces'"),
        ({"model": "elmo", "unroll_steps": 0}, "`unroll_steps` must be a whole number, 1 or more"),
        (
            {"model": "elmo", "tokens_per_batch": 10},
            "`tokens_per_batch` must be a whole number, 20 or more",
        ),
        ({"tokens_per_batch": 64}, "`tokens_per_batch` must be a whole number, 128 or more"),
        (
            {"model": "gpt", "max_length": 32, "first_length": 48, "tokens_per_batch": 40},
            "`tokens_per_batch` must be a whole number, 48 or more",
        ),
        ({"seed": -1}, "`seed` must be a whole number, 0 or more"),
    ],
)
def test_settings_of_other_models_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        Pretraining(**settings)
    assert Pretraining(model="elmo").vocabulary_size == 50_000
    assert Pretraining().vocabulary_size == 10_000


@pytest.mark.backend_neutral
def test_an_encoder_of_another_kind_is_refused(flags, tmp_path, capsys):
    from keras_plm.models import BERT
    from keras_plm.tokenizers import WordPiece

    pieces = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    keras_plm.save(tmp_path / "bert", BERT(6, 1, 1, 4, 4), pieces)
    command = ["pretrain", "--corpus", str(flags["text"]), *flags["onward"], "--tokens", "40"]
    assert main([*command, "--out", str(tmp_path / "o"), "--init", str(tmp_path / "bert")]) == 2
    printed = capsys.readouterr()
    assert "a model of the same kind, elmo" in printed.err and "random weights" not in printed.out


@pytest.mark.backend_neutral
def test_about_init_reports_missing_objective_and_other_split(tmp_path):
    init = tmp_path / "init"
    keras_plm.save(init, ELMo(2, 2, [[1, 2]], 2, 0), Characters())
    Words(["[PAD]", "[UNK]", "[EOS]", "a"]).save(init / WORDS)
    anew, split = about_init(Pretraining(model="elmo", split="spaces"), init)
    assert "random weights" in anew and "end at punctuation; with --split spaces" in split
    (init / OBJECTIVE).touch()
    assert not [*about_init(Pretraining(model="elmo"), init)]
    assert not [*about_init(Pretraining(), init)]


@pytest.mark.backend_neutral
def test_data_command_writes_text_of_a_task(tmp_path, capsys):
    trees = tmp_path / "data" / "sst" / "trees"
    trees.mkdir(parents=True)
    (trees / "train.txt").write_text("(3 (2 It) (2 's))\n(1 (2 -LRB-) (2 bad))\n")
    out = tmp_path / "text.txt"
    command = ["data", "--data", str(tmp_path / "data"), "--task", "sst5"]
    assert main([*command, "--text", str(out)]) == 0
    assert out.read_text() == "It 's\n( bad\n"
    assert main(command) == 2
    assert "`--task` and `--text` need each other" in capsys.readouterr().err
    words = lexicon([out], split="spaces").vocabulary
    assert "'s" in words and "'s" not in lexicon([out]).vocabulary


@pytest.fixture
def of_bert(tmp_path):
    """Returns the command that pre-trains a small BERT on a text, in a folder of this name."""
    text = tmp_path / "text.txt"
    text.write_text("a cat sat . it ran .\n\nwe saw a dog , a cat and a bird .\nit sang .\n\n" * 30)

    def command(name, *more):
        given = ["--corpus", text, "--valid", text, "--out", tmp_path / name, "--size", "tiny"]
        given += ["--vocabulary-size", 60, "--tokens", 1200, "--tokens-per-batch", 120]
        given += ["--max-length", 24, "--buckets", 2, "--learning-rate", 1e-3]
        return ["pretrain", *map(str, given), *more]

    return command


def weights_and_note(folder):
    weights = keras_plm.load(folder)[0].get_weights()
    return weights, json.loads((folder / "pretraining.json").read_text())


@pytest.mark.full
@pytest.mark.backend_neutral
def test_accumulation_and_remat_do_not_change_the_weights(of_bert, tmp_path, monkeypatch):
    assert main(of_bert("whole", "--snapshots", "1")) == 0
    parts = of_bert("parts", "--accumulation-steps", "3", "--remat", "--snapshots", "1")
    end = Meter.on_train_batch_end

    def stopped(self, batch, logs=None):
        if self.state.steps == 14:  # the second micro-batch of the fifth step
            self.stop.number = signal.SIGINT
        end(self, batch, logs)

    monkeypatch.setattr(Meter, "on_train_batch_end", stopped)
    assert main(parts) == 130
    monkeypatch.undo()
    assert main([*parts, "--resume"]) == 0
    whole, note = weights_and_note(tmp_path / "whole")
    again, noted = weights_and_note(tmp_path / "parts")
    for one, other in zip(again, whole, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
    assert noted["steps_done"] == note["steps_done"] == 10 and noted["accumulation_steps"] == 3
    assert noted["valid"]["loss"] == pytest.approx(note["valid"]["loss"], abs=1e-4)
    lines = (tmp_path / "parts" / "training" / "log.jsonl").read_text().splitlines()
    assert json.loads(lines[-2])["step"] == 10 and json.loads(lines[-2])["tokens"] == 1200
    kept = [path.name for path in (tmp_path / "parts" / "snapshots").iterdir()]
    assert kept == ["step_000005"]


@pytest.mark.full
@pytest.mark.backend_neutral
def test_float16(of_bert, tmp_path, capsys):
    assert main(of_bert("half", "--precision", "float16")) == 0
    _, note = weights_and_note(tmp_path / "half")
    assert note["precision"] == "float16" and np.isfinite(note["valid"]["loss"])
    assert main(of_bert("parts", "--precision", "float16", "--accumulation-steps", "2")) == 2
    assert "choose 'mixed_bfloat16'" in capsys.readouterr().err
    assert main(of_bert("quarter", "--precision", "float8")) == 2
    assert "must be 'float32', 'bfloat16' or 'float16'" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.backend_neutral
def test_pretraining_on_two_devices_equals_one_device(of_bert, tmp_path):
    """`python` or `torchrun` starts the devices, each run in separate processes."""
    assert main(of_bert("one")) == 0
    devices = "all" if keras.backend.backend() == "torch" else "2"
    done = on_two_devices(of_bert("several", "--devices", devices), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("10 steps") == 1
    one, note = weights_and_note(tmp_path / "one")
    several, noted = weights_and_note(tmp_path / "several")
    for a, b in zip(several, one, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)
    assert noted["devices"] == 2 and "devices" not in note
    assert noted["valid"]["loss"] == pytest.approx(note["valid"]["loss"], abs=1e-4)


@pytest.mark.backend_neutral
def test_unavailable_devices_are_refused(of_bert, flags, tmp_path, capsys, monkeypatch):
    assert main(of_bert("none", "--devices", "0")) == 2
    assert "1 or more, or all. Received: '0'" in capsys.readouterr().err
    assert main(of_bert("many", "--devices", "64")) == 2
    assert "torchrun, and set --devices all. Received: devices=64" in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(of_bert("alone")) == 2
    assert "Received: devices=1, of 2 processes" in capsys.readouterr().err
    elmo = ["pretrain", "--corpus", str(flags["text"]), *flags["common"]]
    assert main([*elmo, "--out", str(tmp_path / "elmo"), "--devices", "all"]) == 2
    assert "A biLM must train on one device" in capsys.readouterr().err
    assert not (tmp_path / "elmo").exists() and not (tmp_path / "alone").exists()


@pytest.mark.backend_neutral
def test_setting_metadata_restricts_models_and_prefixes_help():
    fields = {field.name: field for field in dataclasses.fields(Pretraining)}
    assert fields["unroll_steps"].metadata["models"] == ("elmo",)
    assert help_of(fields["unroll_steps"]) == "elmo: " + fields["unroll_steps"].metadata["help"]
    assert help_of(fields["seed"]) == fields["seed"].metadata["help"]
    other = {int: 3, float: 0.25, bool: None, str: "lines"}  # values that differ from defaults
    for name, field in fields.items():
        for model in SIZES if field.metadata["models"] else ():
            kind = type(field.default)
            value = {name: not field.default if kind is bool else other[kind]}
            if model not in field.metadata["models"]:
                with pytest.raises(ValueError, match=f"`{name}` applies only to"):
                    Pretraining(model, "mini", **value)


@pytest.mark.backend_neutral
def test_help_text_does_not_restrict_models():
    """A help text that begins with a model's name restricts nothing; data lists valid models."""

    @dataclasses.dataclass(frozen=True)
    class Reworded(Pretraining):
        seed: int = setting(0, "bert: of everything random")
        unroll_steps: int = setting(20, "steps through which gradients go back", ("elmo",))

    assert Reworded("elmo", "mini", seed=1).seed == 1
    with pytest.raises(ValueError, match="`unroll_steps` applies only to elmo"):
        Reworded("bert", "mini", unroll_steps=5)
