"""Runs the command `speed`."""

import json

from benchmarks.__main__ import main
from benchmarks.speed.tables import speed_markdown


def timed(tmp_path, flags):
    out = tmp_path / "speed.json"
    assert main(["speed", *flags, "--out", str(out)]) == 0
    return json.loads(out.read_text())["results"], speed_markdown(out)
