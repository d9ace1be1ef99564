"""The command `data`: files of the known tasks, and the text of one of them."""

from pathlib import Path


def add_data(commands):
    text = "list the files of each known task, whether they exist, their source and licence"
    parser = commands.add_parser("data", help=text, description=text)
    parser.add_argument("--data", default="data", metavar="DIR", help="data folder (default data)")
    parser.add_argument("--task", metavar="NAME", help="with --text: write the text of this task")
    parser.add_argument(
        "--text",
        metavar="FILE",
        help="write the unlabelled training text of --task to this file, for `pretrain`",
    )
    parser.set_defaults(run=run_data)


def run_data(flags):
    from rich.text import Text

    from keras_plm.datasets.tasks import TASKS, write_text_of
    from keras_plm.experiments.flags import named
    from keras_plm.experiments.progress import console

    if (flags.task is None) != (flags.text is None):
        raise ValueError(
            "`--task` and `--text` need each other. "
            f"Received: --task {flags.task}, --text {flags.text}"
        )
    if flags.task is not None:
        count = write_text_of(named(TASKS, flags.task, "task"), flags.data, flags.text)
        console.print(f"{flags.text}: {count:,} lines")
        return
    for name, source, licence, files in _known():
        console.print(Text.assemble((name, "bold"), f"  {source}  ({licence})"))
        for file in dict.fromkeys(files.values()):
            splits = ", ".join(split for split, other in files.items() if other == file)
            console.print(f"  {splits:18} {_state(flags.data, file)}")


def _known():
    """Yields `(name, source, licence, {split: file})` of each task and corpus."""
    from keras_plm.datasets import word_similarity
    from keras_plm.datasets.corpora import CORPORA
    from keras_plm.datasets.tasks import TASKS

    yield from (
        (known.name, known.source, known.licence, known.files)
        for known in (*TASKS.values(), *CORPORA.values())
    )
    yield (
        "dependencies of edge-probing",
        "github.com/UniversalDependencies/UD_English-EWT",
        "CC BY-SA 4.0",
        {split: f"ud_english_ewt/{split}.conllu" for split in ("train", "dev", "test")},
    )
    questions = {**word_similarity.PAIRS, "analogies": word_similarity.QUESTIONS}
    yield "word similarity", word_similarity.SOURCE, word_similarity.LICENCE, questions


def _state(data, file):
    """Describes a file: missing, or found or shipped with the package, with path and checksum."""
    from keras_plm.data.task import SHIPPED_FOLDER, find_file
    from keras_plm.datasets.tasks import checksum

    try:
        path = find_file(data, file)
    except ValueError:
        folder = Path(data) / file
        return f"{'found  ' if folder.is_dir() else 'missing'}  {folder}"
    state = f"{path}  sha256 {checksum(path)[:16]}"
    if path.parent == SHIPPED_FOLDER:
        return f"shipped  {state}  (attribution in {SHIPPED_FOLDER.name}/LICENSE)"
    return f"found    {state}"
