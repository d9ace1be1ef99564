"""Tasks of choices: SWAG's endings, RACE's questions, the Story Cloze Test."""

import functools
from pathlib import Path

from glue_tasks.tasks import group_shared
from keras_plm import metrics
from keras_plm.data.formats.tables import table_rows
from keras_plm.data.task import Example, Task, cut_dev_set, find_file
from keras_plm.files.json_files import OneOf, read_json
from keras_plm.heads import MultipleChoice

# Fractions of train that the dev sets take: SWAG's as GLUE's, the small Story Cloze's larger.
DEV, STORY_DEV = 0.1, 0.2
SWAG_ENDINGS = 4
RACE_LEVELS, RACE_ANSWERS = ("middle", "high"), ("A", "B", "C", "D")
# What a file of RACE holds: a passage with its questions.
RACE = {
    "article": str, "questions": [str], "options": [[str]], "answers": [OneOf(RACE_ANSWERS)],
}  # fmt: skip


def read_swag(path, gold_only=False):
    """Questions of SWAG: a sentence, and four ways in which the next may end.

    The text is the first sentence; a choice is the beginning of the second (`sent2`), a blank and
    an ending. Questions of one video, or with the same first sentence, are of one group.

    Args:
        path: `train.csv` or `val.csv`.
        gold_only: If True, questions whose right ending a language model wrote (`gold-source` not
            "gold") are left out, as published readers can; by default all are read.

    Raises:
        ValueError: Naming file and line, if a line is malformed or its label is none of 0 to 3; as
            in `test.csv`, which has no labels.
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
                f"{where}: The label is the number of the right ending, 0 to {SWAG_ENDINGS - 1}. "
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
    """Questions of RACE: a passage and a question, and four answers.

    The text is the passage, a blank and the question; questions of one passage are of one group.

    Args:
        folder: `RACE/train`, say, which holds a folder of passages for each level, a JSON each.
        levels: Of `"middle"` and `"high"`.

    Raises:
        ValueError: If a folder is missing or empty; naming the file, if one is no such passage.
    """
    examples = []
    for level in levels:
        files = sorted((Path(folder) / level).glob("*.txt"), key=lambda p: (len(p.stem), p.stem))
        if not files:
            raise ValueError(
                f"No passage {Path(folder) / level}/*.txt. Unpack RACE, and name the folder that "
                f"holds RACE with --data. Received: {str(folder)!r}"
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
            f"{path}: a question of RACE has {len(RACE_ANSWERS)} options. Received: {len(wrong)}"
        )
    return [
        Example(
            f"{passage['article']} {question}", RACE_ANSWERS.index(answer), choices=given,
            group=group, where=str(path),
        )
        for question, given, answer in zip(questions, options, answers, strict=True)
    ]  # fmt: skip


def read_story_cloze(path):
    """Stories of four sentences, and two for their end.

    Args:
        path: An official CSV file of the Story Cloze Test.

    Raises:
        ValueError: Naming file and line, if a line is malformed or its answer is neither 1 nor 2.
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
                f"{where}: The right ending is 1 or 2. Received: {row['AnswerRightEnding']!r}"
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
    """The examples of a split; the dev set is cut out of train, where there is no other."""
    examples = reader(find_file(folder, files[split]))
    if split == "test":
        return examples
    return cut_dev_set(examples, dev)[split]


def _race(levels, folder, split):
    return read_race(Path(folder) / _RACE[split], levels)


# SWAG's test set has no labels: val is the evaluation split.
_SWAG = {"train": "swag/train.csv", "dev": "swag/train.csv", "test": "swag/val.csv"}
_RACE = {split: f"RACE/{split}" for split in ("train", "dev", "test")}
# As published readers, which learn from the validation set: the stories of train have one ending.
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
