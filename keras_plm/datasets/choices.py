"""Multiple-choice tasks: SWAG's endings, RACE's questions, the Story Cloze Test."""

import functools
from pathlib import Path

from glue_tasks.tasks import group_shared
from keras_plm import metrics
from keras_plm.data.formats.tables import table_rows
from keras_plm.data.task import Example, Task, cut_dev_set, find_file
from keras_plm.files.json_files import OneOf, read_json
from keras_plm.heads import MultipleChoice

# Fractions of train in the dev sets: for SWAG as for GLUE, larger for the small Story Cloze.
DEV, STORY_DEV = 0.1, 0.2
SWAG_ENDINGS = 4
RACE_LEVELS, RACE_ANSWERS = ("middle", "high"), ("A", "B", "C", "D")
# Shape of a file of RACE: a passage with its questions.
RACE = {
    "article": str, "questions": [str], "options": [[str]], "answers": [OneOf(RACE_ANSWERS)],
}  # fmt: skip


def read_swag(path, gold_only=False):
    """Reads questions of SWAG: a sentence, and four endings of the next sentence.

    The text is the first sentence. A choice is the start of the second (`sent2`), a space and an
    ending. Questions of one video, or with the same first sentence, are in one group.

    Args:
        path: `train.csv` or `val.csv`.
        gold_only: If True, leave out questions whose right ending a language model wrote
            (`gold-source` not "gold"), like an option of published readers. By default read all.

    Raises:
        ValueError: If a line is malformed, or its label is not 0 to 3, with file and line. The
            file `test.csv` has no labels.
    """
    columns = ["video-id", "sent1", "sent2", "gold-source"]
    columns += [*(f"ending{i}" for i in range(SWAG_ENDINGS)), "label"]
    examples = []
    for where, row in table_rows(path):
        missing = [name for name in columns if name not in row]
        if missing:
            raise ValueError(
                f"{where}: No column {missing[0]!r}. Received: columns {', '.join(row)}"
            )
        if row["label"] not in map(str, range(SWAG_ENDINGS)):
            raise ValueError(
                f"{where}: The label must be the number of an ending, 0 to {SWAG_ENDINGS - 1}. "
                f"Received: {row['label']!r}"
            )
        if gold_only and row["gold-source"] != "gold":
            continue
        endings = [f"{row['sent2']} {row[f'ending{i}']}" for i in range(SWAG_ENDINGS)]
        group = f"video {row['video-id']}"
        examples.append(
            Example(row["sent1"], int(row["label"]), choices=endings, group=group, where=where)
        )
    if not examples:
        raise ValueError(f"{path}: No question in this file. Received: an empty table")
    return group_shared(examples, lambda example: (example.text, example.group))


def read_race(folder, levels=RACE_LEVELS):
    """Reads questions of RACE: a passage, a question and four answers.

    The text is the passage, a space and the question. Questions of one passage are in one group.

    Args:
        folder: A folder such as `RACE/train`, with a folder of passages, JSON files, per level.
        levels: A tuple of `"middle"`, `"high"` or both.

    Raises:
        ValueError: If a folder is missing or empty, or a file is not such a passage. The message
            names it.
    """
    examples = []
    for level in levels:
        files = sorted((Path(folder) / level).glob("*.txt"), key=lambda p: (len(p.stem), p.stem))
        if not files:
            raise ValueError(
                f"No passage {Path(folder) / level}/*.txt. Unpack RACE, and name the folder that "
                f"contains RACE with --data. Received: {str(folder)!r}"
            )
        for path in files:
            examples += _questions(path, f"{level} {path.stem}")
    return examples


def _questions(path, group):
    passage = read_json(path, RACE, description="of RACE")
    questions, options, answers = (passage[key] for key in ("questions", "options", "answers"))
    if not len(questions) == len(options) == len(answers):
        raise ValueError(
            f"{path}: every question must have its options and its answer. Received: "
            f"{len(questions)} questions, {len(options)} options, {len(answers)} answers"
        )
    wrong = next((given for given in options if len(given) != len(RACE_ANSWERS)), None)
    if wrong is not None:
        raise ValueError(
            f"{path}: a question of RACE must have {len(RACE_ANSWERS)} options. "
            f"Received: {len(wrong)}"
        )
    return [
        Example(
            f"{passage['article']} {question}", RACE_ANSWERS.index(answer), choices=given,
            group=group, where=str(path),
        )
        for question, given, answer in zip(questions, options, answers, strict=True)
    ]  # fmt: skip


def read_story_cloze(path):
    """Reads stories of four sentences, with two sentences as possible endings.

    Args:
        path: An official CSV file of the Story Cloze Test.

    Raises:
        ValueError: If a line is malformed, or its answer is neither 1 nor 2, with file and line.
    """
    sentences = [f"InputSentence{i}" for i in range(1, 5)]
    endings = [f"RandomFifthSentenceQuiz{i}" for i in (1, 2)]
    examples = []
    for where, row in table_rows(path):
        for name in ("InputStoryid", *sentences, *endings, "AnswerRightEnding"):
            if name not in row:
                raise ValueError(f"{where}: No column {name!r}. Received: columns {', '.join(row)}")
        if row["AnswerRightEnding"] not in ("1", "2"):
            raise ValueError(
                f"{where}: The right ending must be 1 or 2. Received: {row['AnswerRightEnding']!r}"
            )
        text = " ".join(row[name] for name in sentences)
        choices, right = [row[name] for name in endings], int(row["AnswerRightEnding"]) - 1
        examples.append(
            Example(text, right, choices=choices, group=row["InputStoryid"], where=where)
        )
    if not examples:
        raise ValueError(f"{path}: No story in this file. Received: an empty table")
    return examples


def _splits(files, reader, folder, split, dev=DEV):
    """Reads the examples of a split; the dev set is cut from the training file."""
    examples = reader(find_file(folder, files[split]))
    if split == "test":
        return examples
    return cut_dev_set(examples, dev)[split]


def _race(levels, folder, split):
    return read_race(Path(folder) / _RACE[split], levels)


# SWAG's test set has no labels: val is the evaluation split.
_SWAG = {"train": "swag/train.csv", "dev": "swag/train.csv", "test": "swag/val.csv"}
_RACE = {split: f"RACE/{split}" for split in ("train", "dev", "test")}
# Like published readers, train on the validation set: the stories of train have one ending.
_STORY = {
    split: f"StoryCloze/cloze_test_{part}__spring2016 - cloze_test_ALL_{part}.csv"
    for split, part in (("train", "val"), ("dev", "val"), ("test", "test"))
}

CHOICE_TASKS = (
    Task(
        "swag",
        functools.partial(_splits, _SWAG, read_swag),
        MultipleChoice,
        {"accuracy": metrics.accuracy},
        _SWAG,
        "Zellers et al. 2018, github.com/rowanz/swagaf",
        "see the page of the data",
    ),
    *(
        Task(
            name,
            functools.partial(_race, levels),
            MultipleChoice,
            {"accuracy": metrics.accuracy},
            _RACE,
            "Lai et al. 2017, cs.cmu.edu/~glai1/data/race",
            "see the page of the data",
        )
        for name, levels in (
            ("race", RACE_LEVELS),
            *((f"race_{level}", (level,)) for level in RACE_LEVELS),
        )
    ),
    Task(
        "story_cloze",
        functools.partial(_splits, _STORY, read_story_cloze, dev=STORY_DEV),
        MultipleChoice,
        {"accuracy": metrics.accuracy},
        _STORY,
        "Mostafazadeh et al. 2016, cs.rochester.edu/nlp/rocstories",
        "on request, see the page of the data",
    ),
)
