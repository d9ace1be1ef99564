"""Builds the tutorials' notebooks: `make notebooks`, or `python docs/notebooks.py NAME ...`.

A tutorial is a script `docs/tutorials/NAME.py` with cell marks (the percent format of Jupytext).
Its notebook in `docs/tutorials/notebooks` has the same cells with their output and is a page of the
documentation. Edit only the script, then run this file.
"""

import os
import sys
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = ROOT / "docs" / "tutorials"
SECONDS = 600  # limit of a cell


def cells(notebook):
    """Returns the types and sources of a notebook's cells, to compare it with its script."""
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def build(script):
    """Runs a tutorial, writes its notebook and returns the path."""
    notebook = jupytext.read(script)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel})
    NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3",
        resources={"metadata": {"path": str(ROOT)}},
    ).execute()  # fmt: skip
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # the same in every build
        cell.metadata.pop("execution", None)  # times of day
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
            for output in cell.outputs:
                output.get("metadata", {}).clear()
    path = script.parent / "notebooks" / f"{script.stem}.ipynb"
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".tmp")
    nbformat.write(notebook, temporary)
    os.replace(temporary, path)
    return path


def main(names):
    os.environ.setdefault("KERAS_BACKEND", "torch")
    os.environ["PYTHONPATH"] = str(ROOT)
    scripts = sorted(TUTORIALS.glob("*.py"))
    unknown = set(names) - {script.stem for script in scripts}
    if unknown:
        print(f"No tutorial {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    for script in scripts:
        if names and script.stem not in names:
            continue
        begun = time.monotonic()
        path = build(script)
        print(f"{path.relative_to(ROOT)}  {time.monotonic() - begun:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
