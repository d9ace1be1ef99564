"""README is run: its Python, its commands' flags, its map, its make targets."""

import argparse
import re
import shlex

import pytest

import benchmarks.__main__
import keras_plm.cli.main
from tests import ROOT

pytestmark = pytest.mark.backend_neutral

README = (ROOT / "README.md").read_text()


def blocks(language=""):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
    return [text for of_block, text in found if of_block == language]


@pytest.mark.full
def test_python_runs(tmp_path, monkeypatch, capsys):
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")  # its weights; what is written stays
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    out = capsys.readouterr().out
    assert "['good', 'bad']" in out  # what the classifier says of its two texts
    assert "featureextractor__layers" in out and "weighted_sum_last_four" in out
    assert "['Peter']" in out  # who bought the mill
    assert "['yes', 'no']" in out  # which days follow each other
    assert "['eight six four two']" in out and (tmp_path / "attention.png").is_file()


def commands():
    pattern = r"^(keras-plm|python -m benchmarks) (.+)$"
    return [found for block in blocks() for found in re.findall(pattern, block, re.MULTILINE)]


@pytest.mark.parametrize("program, line", commands())
def test_commands_know_their_flags(program, line, monkeypatch, capsys):
    """Each command line is parsed; the command itself does not run."""
    home = keras_plm.cli.main if program == "keras-plm" else benchmarks.__main__
    reached = []

    parse = argparse.ArgumentParser.parse_args

    def parse_args(parser, arguments):
        flags = parse(parser, arguments)
        flags.run = reached.append
        return flags

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    assert home.main(shlex.split(line)) == 0, capsys.readouterr().err
    assert len(reached) == 1


@pytest.mark.parametrize(
    "line", re.findall(r"^python -m glue_tasks (.+)$", "\n".join(blocks()), re.MULTILINE)
)
def test_commands_of_glue_know_their_flags(line, monkeypatch, capsys):
    import glue_tasks.__main__ as cli

    words, reached = shlex.split(line), []
    name = "run_submission" if words[0] == "submission" else "run_show"
    monkeypatch.setattr(cli, name, reached.append)
    assert cli.main(words) == 0, capsys.readouterr().err
    assert len(reached) == 1


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (?:[A-Z]+=\S+ )*([a-z-]+)", "\n".join(blocks()), re.MULTILINE):
        assert f"\n{target}:" in makefile, target


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target
