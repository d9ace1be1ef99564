"""Readers of texts and labels: tables, CoNLL, SQuAD, GLUE and other tasks."""

import csv
import functools
import gzip
import io
import json
import math
import re
import tempfile
from pathlib import Path

from glue_tasks import submission
from glue_tasks.tasks import GLUE, read_unlabelled
from keras_plm.data.formats.conll import read_conll
from keras_plm.data.formats.conll_2012 import conll_2012_documents, conll_2012_roles
from keras_plm.data.formats.parallel import read_parallel
from keras_plm.data.formats.squad import evaluate_squad, read_predictions, read_squad
from keras_plm.data.formats.tables import read_table
from keras_plm.data.labels import label_names
from keras_plm.datasets.choices import read_race, read_story_cloze, read_swag
from keras_plm.datasets.coreference import read_coreference
from keras_plm.datasets.pairs import read_scitail, read_sick
from keras_plm.datasets.questions import read_qnli, read_squad1, read_squad2
from keras_plm.datasets.semantic_roles import read_roles
from keras_plm.datasets.tasks import (
    checksum,
    read_snli,
    read_trees,
    task_from_file,
    write_text_of,
)
from keras_plm.datasets.word_similarity import read_pairs, read_questions
from tests.fuzz.cases import Reader
from tests.fuzz.readers.tokens import find


def content(path):
    """Returns the text of a plain or .gz file, with LF as line ends."""
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


# ---- checks


def sound(folder, examples):
    """Checks that examples have valid texts and labels and name their lines correctly."""
    if not examples:
        return "no examples, and no error"
    for example in examples:
        words = [example.text] if isinstance(example.text, str) else list(example.text)
        for text in (*words, *([] if example.pair is None else [example.pair]),
                     *(example.choices or ())):  # fmt: skip
            if not isinstance(text, str):
                return f"a {type(text).__name__} for a text"
            if re.search("[\ud800-\udfff]", text):
                return "a text that is no Unicode: a surrogate without its other half"
        if isinstance(example.label, float) and not math.isfinite(example.label):
            return f"the label {example.label}"
        if example.choices is not None and not 0 <= int(example.label) < len(example.choices):
            return f"the choice {example.label} of {len(example.choices)}"
    if all(isinstance(example.label, str | list) for example in examples):
        try:
            label_names(examples)
        except (ValueError, TypeError) as error:
            if type(error) is TypeError:
                return f"labels that cannot be named: {error}"
    return placed(examples)


@functools.lru_cache(maxsize=8)
def _lines(path, time):
    return content(Path(path)).split("\n")


def placed(examples):
    """Returns whether the line that an example names contains its first word."""
    for example in examples[:200]:
        named = re.fullmatch(r"(.*):(\d+)", example.where or "")
        words = [example.text] if isinstance(example.text, str) else list(example.text)
        first = re.match(r"[A-Za-z0-9]{1,8}\b", words[0].strip()) if words else None
        if named is None or first is None:
            continue
        lines, number = _lines(named[1], Path(named[1]).stat().st_mtime_ns), int(named[2])
        near = "".join(lines[number - 1 : number + 2])
        if first[0].lower() not in near.lower() and "\\" not in near:
            return f"the line {number} does not hold {first[0]!r}"
    return None


def columns_are(rows_of, *names):
    """Returns a check that the texts are those of a plain reader of the same file."""

    def check(folder, examples):
        rows = rows_of(content(find(folder, "x.")))
        fields = ("text", "label", "pair", "group")[: len(names)]
        found = [[getattr(example, field) for field in fields] for example in examples]
        right = [[_field(field, row[name]) for field, name in zip(fields, names, strict=True)]
                 for row in rows]  # fmt: skip
        if found != right:
            return f"{len(found)} rows that differ from the {len(right)} of the file"
        return sound(folder, examples)

    return check


def _field(field, value):
    """Strips spaces around labels and groups; an empty group becomes `None`."""
    if field in ("label", "group") and isinstance(value, str):
        value = value.strip() or (None if field == "group" else "")
    if field == "label" and isinstance(value, list):
        value = [tag.strip() for tag in value]
    return value


def rows_of_csv(text):
    """Returns the rows of a CSV file as dicts."""
    before = csv.field_size_limit(len(text) + 1)
    rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    csv.field_size_limit(before)
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def rows_of_tsv(text):
    """Returns the rows of a TSV file as dicts; only empty fields are quoted."""
    if not text.replace('\t""', "\t").count('"'):
        text = text.replace('\t""', "\t")
    rows = [line.split("\t") for line in text.split("\n") if line]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def rows_of_json_lines(text):
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def same_sentences(folder, examples):
    """Checks the sentences of a CoNLL file with two columns."""
    right, words = [], []
    for line in [*content(find(folder, "x.conll")).split("\n"), ""]:
        if not line.strip(" \t") or line.startswith("-DOCSTART-"):
            right += [words] if words else []
            words = []
        elif not (line.startswith("# ") and not words) and not line.startswith("#begin document"):
            pattern = "\t" if "\t" in line else " +"  # words on lines with tabs may contain spaces
            fields = [field.strip(" ") for field in re.split(pattern, line.strip(" \t"))]
            words.append((fields[0], fields[-1]))
    found = [list(zip(example.text, example.label, strict=True)) for example in examples]
    if found != right:
        return f"{len(found)} sentences that differ from the {len(right)} of the file"
    return sound(folder, examples)


def aligned(folder, texts):
    """Checks that sources and targets are the lines of their files."""
    for found, name in zip(texts, ("a.en", "a.de"), strict=True):
        lines = content(folder / name).split("\n")
        right = [line.strip() for line in lines[: -1 if not lines[-1].strip() else None]]
        if [text.strip() for text in found] != right:
            return f"{len(found)} texts that differ from the {len(right)} of {name}"
    return None


# ---- plain files

TAGGED = "Ann B-PER\nmet O\nTom B-PER\n\nwe O\nsaw O\nRome B-LOC\n. O\n\n"
CONLL = "-DOCSTART- -X- O O\n\n" + TAGGED + "-DOCSTART- -X- O O\n\nit O\nwas O\ngood O\n"
CONLLU = "# text = Ann saw\n" + "".join(
    f"{i}\t{word}\t_\t{tag}\t_\t_\t{i - 1}\troot\t_\t_\n"
    for i, (word, tag) in enumerate([("Ann", "PROPN"), ("saw", "VERB"), ("Rome", "PROPN")], 1)
)
FIRST = [(a, b) for a in ("a", "the", "we saw a") for b in ("good", "bad")]
ROWS = [(f"{a} film was {b}", b, f"the {a}, it is", str(i // 2)) for i, (a, b) in enumerate(FIRST)]
HEAD = ("text", "label", "pair", "group")
TSV = "".join("\t".join(row) + "\n" for row in (HEAD, *ROWS))
CSV = "".join(",".join(f'"{f}"' if "," in f else f for f in row) + "\n" for row in (HEAD, *ROWS))
CSV = CSV.replace('"the a, it is"', '"the ""a"", it\nis"', 1)
JSONL = "".join(
    json.dumps(dict(zip(HEAD[:3], row, strict=False)) | {"n": 1}) + "\n" for row in ROWS
)
TAGS = "".join(
    json.dumps({"text": ["Ann", "met", name], "label": ["B-PER", "O", "B-PER"]}) + "\n"
    for name in ("Tom", "Ann", "it")
)


def table(*names):
    return lambda folder: read_table(find(folder, "x."), *names)


def task_file(folder):
    """Reads a user's own file as a task, with its three splits, metrics and labels."""
    task = task_from_file(find(folder, "x."), None, None)
    parts = [task.read(None, split) for split in ("train", "dev", "test")]
    labels = [example.label for example in parts[0]]
    for metric in task.metrics.values():
        metric(labels, labels)
    with tempfile.TemporaryDirectory() as other:
        write_text_of(task, None, Path(other) / "text.txt")
    return [example for part in parts for example in part]


MANY = [
    (f"{a} film number {i}", b) for i in range(6) for a in ("a", "the") for b in ("good", "bad")
]
OWN = {
    "x.csv": "text,label\n" + "".join(f"{text},{label}\n" for text, label in MANY),
    "x.jsonl": "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in MANY),
    "x.conll": "\n".join("Ann B-PER\nmet O\nTom B-PER\n" for _ in range(9)),
}
KIND = {"x.csv": "text", "x.jsonl": "jsonl", "x.conll": "text", "x.tsv": "text", "x.txt": "text"}

PLAIN = [
    Reader("conll", {"x.conll": CONLL}, lambda f: read_conll(find(f, "x.conll")),
           {"x.conll": "text"}, same_sentences, gz=True),
    Reader("conllu", {"x.conllu": CONLLU * 3}, lambda f: read_conll(f / "x.conllu"),
           {"x.conllu": "text"}, sound, 0.5),
    Reader("csv", {"x.csv": CSV}, table(*HEAD), {"x.csv": "text"},
           columns_are(rows_of_csv, *HEAD), gz=True),
    Reader("tsv", {"x.tsv": TSV}, table(*HEAD), {"x.tsv": "text"},
           columns_are(rows_of_tsv, *HEAD), gz=True),
    Reader("jsonl", {"x.jsonl": JSONL}, table(*HEAD[:3]), {"x.jsonl": "jsonl"},
           columns_are(rows_of_json_lines, *HEAD[:3]), gz=True),
    Reader("jsonl_tags", {"x.jsonl": TAGS}, table(*HEAD[:2]), {"x.jsonl": "jsonl"},
           columns_are(rows_of_json_lines, *HEAD[:2])),
    Reader("parallel", {"a.en": "a good film\nwe saw it\n", "a.de": "ein Film\nwir sahen es\n"},
           lambda f: read_parallel(f / "a.en", f / "a.de"), {"a.en": "text", "a.de": "text"},
           aligned),
    Reader("checksum", {"x.txt": "a good film\n" * 5}, lambda f: checksum(find(f, "x.txt")),
           {"x.txt": "text"}, None, 0.2, gz=True),
    *(Reader(f"task_file_{name[2:]}", {name: text}, task_file, {name: KIND[name]}, sound, 0.6)
      for name, text in OWN.items()),
]  # fmt: skip

# ---- SQuAD

PASSAGE = "The old house in Rome was sold. Ann bought it in the spring."


def question(name, text, answer):
    answers = [{"text": answer, "answer_start": PASSAGE.index(answer)}] if answer else []
    return {"id": name, "question": text, "answers": answers, "is_impossible": not answer}


def squad(impossible=True, articles=3):
    """Returns a file of SQuAD 2.0, or of 1.1 without impossible questions."""
    return {"version": "v2.0", "data": [
        {"title": f"t{i}", "paragraphs": [{"context": PASSAGE, "qas": [
            question(f"q{i}a", "Who bought it?", "Ann"), question(f"q{i}b", "Where?", "Rome"),
            *([question(f"q{i}c", "Why?", "")] if impossible else [])]}]}
        for i in range(articles)]}  # fmt: skip


SQUAD = json.dumps(squad())


def both_versions(folder):
    """Reads the file with and without answers, and scores predictions."""
    examples = read_squad(folder / "x.json")
    read_squad(folder / "x.json", labelled=False)
    evaluate_squad(examples, {example.id: "Ann" for example in examples}, version=2)
    return examples


def same_questions(folder, examples):
    """Checks that all questions were read and that answers begin at their positions."""
    data = json.loads(content(find(folder, "x.json")))["data"]
    rows = [(q, p["context"]) for a in data for p in a["paragraphs"] for q in p["qas"]]
    if [(e.id, e.text, e.pair) for e in examples] != [
        (str(q["id"]), q["question"], c) for q, c in rows
    ]:
        return f"{len(examples)} questions that differ from the {len(rows)} of the file"
    for example in examples:
        for answer, start in zip(example.label, example.starts, strict=True):
            if example.pair[start : start + len(answer)] != answer:
                return f"the answer {answer!r} is not at {start}"
    return sound(folder, examples)


def same_answers(folder, answers):
    right = json.loads(content(folder / "p.json"))
    if answers != right or not all(isinstance(text, str) for text in answers.values()):
        return "answers that differ from those of the file"
    return None


def squad_tasks(folder):
    """Reads the tasks `squad`, `squad2` and `qnli_squad`."""
    found = []
    for read in (read_squad1, read_squad2, read_qnli):
        found += [example for split in ("train", "dev", "test") for example in read(folder, split)]
    return found


def squad_files():
    from keras_plm.datasets.tasks import TASKS

    names = dict.fromkeys(n for task in ("squad", "squad2") for n in TASKS[task].files.values())
    return {name: json.dumps(squad("v2" in name, 35)) for name in names}


QUESTIONS = [
    Reader("squad", {"x.json": SQUAD}, both_versions, {"x.json": "json"}, same_questions, 1.2),
    Reader("squad_gz", {"x.json": SQUAD}, lambda f: read_squad(f / "x.json.gz"),
           {"x.json": "json"}, same_questions, 0.3, gz="always"),
    Reader("squad_predictions", {"p.json": json.dumps({f"q{i}": "Ann" for i in range(4)})},
           lambda f: read_predictions(f / "p.json"), {"p.json": "json"}, same_answers, 0.4),
]  # fmt: skip

# ---- GLUE

COLUMNS = {
    "sst2": "sentence label",
    "mrpc": "Quality|#1 ID|#2 ID|#1 String|#2 String",
    "qqp": "id qid1 qid2 question1 question2 is_duplicate",
    "stsb": "index genre sentence1 sentence2 score",
    "mnli": "index promptID sentence1 sentence2 gold_label",
    "qnli": "index question sentence label",
    "rte": "index sentence1 sentence2 label",
    "wnli": "index sentence1 sentence2 label",
}
FIRST_TEXTS = ("sentence", "sentence1", "question1", "#1 String", "question")
SECOND_TEXTS = ("sentence2", "question2", "#2 String")
LABELS = ("label", "Quality", "is_duplicate", "score", "gold_label")


def glue_label(name, i):
    if name == "stsb":
        return f"{i % 5}.5"
    labels = GLUE[name].labels
    return labels[i % len(labels)] if set(labels) != {"0", "1"} else str(i % 2)


def glue_table(name, count, labelled=True):
    """Returns the text of a task's file."""
    first, second = "the film {} was good", "we saw another {} today"
    if name == "cola" and labelled:
        return "".join(f"gj04\t{i % 2}\t\t{first.format(i)}\n" for i in range(count))
    columns = re.split(r"\|", COLUMNS[name]) if name == "mrpc" else COLUMNS.get(name, "").split()
    columns = ["sentence"] if name == "cola" else columns
    if not labelled:
        texts = [c for c in columns if c in (*FIRST_TEXTS, *SECOND_TEXTS)]
        columns = ["id" if name == "qqp" else "index", *texts]

    def value(column, i):
        if column in LABELS:
            return glue_label(name, i)
        text = first if column in FIRST_TEXTS else second if column in SECOND_TEXTS else "{}"
        return text.format(i)

    rows = [columns, *([value(column, i) for column in columns] for i in range(count))]
    return "".join("\t".join(row) + "\n" for row in rows)


def glue_files(name):
    files = GLUE[name].files
    return {
        files["train"]: glue_table(name, 24),
        files["test"]: glue_table(name, 4),
        files["unlabelled"]: glue_table(name, 4, labelled=False),
    }


def glue_reader(name):
    task = GLUE[name]

    def read(folder):
        found = [task.read(folder, split) for split in ("train", "dev", "test")]
        return [*found[0], *found[1], *found[2], *read_unlabelled(task, folder)]

    def check(folder, examples):
        labels = {example.label for example in examples} - {None}
        if name == "stsb" and not all(0 <= label <= 5 for label in labels):
            return "a score beyond 0 to 5"
        if name != "stsb" and not labels <= set(task.labels):
            return f"labels {labels}"
        return sound(folder, [e for e in examples if e.label is not None]) or sound(
            folder, examples
        )

    files = glue_files(name)
    return Reader(f"glue_{name}", files, read, dict.fromkeys(files, "text"), check, 0.3)


def predicted(name):
    count = GLUE[name].rows
    values = [f"{i % 5}.25" if name == "stsb" else str(i % 2) for i in range(count)]
    return "index\tprediction\n" + "".join(f"{i}\t{value}\n" for i, value in enumerate(values))


def submit(folder):
    found = submission.read_predictions(folder, GLUE["wnli"])
    with tempfile.TemporaryDirectory() as other:
        submission.write_submission(folder, Path(other) / "o.zip", fill=True)
    return found


def predictions_are(name, low, high):
    def check(folder, found):
        right = [row["prediction"] for row in rows_of_tsv(content(folder / f"{name}.tsv"))]
        numbers = [float(value) for value in found]
        if len(found) != GLUE[name].rows or not all(low <= value <= high for value in numbers):
            return "predictions that GLUE does not take"
        close = (
            abs(min(max(float(a), low), high) - b) < 1e-3
            for a, b in zip(right, numbers, strict=True)
        )
        return None if all(close) else "predictions that are not those of the file"

    return check


GLUE_TASKS = [
    Reader("squad_tasks", squad_files() | glue_files("qnli"), squad_tasks,
           dict.fromkeys(squad_files(), "json"), sound, 0.3),
    *(glue_reader(name) for name in ("cola", *COLUMNS)),
    Reader("glue_submission", {"wnli.tsv": predicted("wnli")}, submit, {"wnli.tsv": "text"},
           predictions_are("wnli", 0, 1), 0.1),
    Reader("glue_submission_stsb", {"stsb.tsv": predicted("stsb")},
           lambda f: submission.read_predictions(f, GLUE["stsb"]), {"stsb.tsv": "text"},
           predictions_are("stsb", 0, 5), 0.2),
]  # fmt: skip

# ---- other tasks

SNLI = "".join(
    json.dumps({"gold_label": label, "sentence1": "A man sleeps .", "sentence2": "He is awake ."})
    + "\n"
    for label in ("entailment", "-", "neutral")
)
SICK = (
    "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    "1\tA man is\tA man was\t4.5\tNEUTRAL\n2\ta b\tc d\t1.0\tENTAILMENT\n"
)
SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
) + "".join(f'{i},v{i % 3},1,x,A man walks.,He,gold,sits,"runs, fast",eats,sleeps,{i % 4}\n'
            for i in range(6))  # fmt: skip
RACE = {
    "article": "Ann went home.",
    "questions": ["Who went?", "Where?"],
    "options": [["Ann", "Tom", "we", "it"], ["home", "out", "in", "up"]],
    "answers": ["A", "B"],
    "id": "h1.txt",
}
ROLES = "".join(
    json.dumps({"id": f"s{i}", "words": ["Ann", "sings", "."], "predicates": [
        {"index": 1, "sense": "sing.01", "arguments": [[0, 1, "ARG0"], [1, 2, "V"]]}
    ]}) + "\n"
    for i in range(3)
)  # fmt: skip
DOCUMENTS = "".join(
    json.dumps({"doc": f"d{i}", "sentences": [["Ann", "met", "Tom", "."], ["She", "sings"]],
                "clusters": [[[0, 0, 1], [1, 0, 1]]], "singletons": [[0, 2, 3]]}) + "\n"
    for i in range(3)
)  # fmt: skip
SENTENCES = ",".join(f"InputSentence{i}" for i in range(1, 5))
STORY = f"InputStoryid,{SENTENCES},RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,"
STORY += "AnswerRightEnding\n"
STORY += "".join(f"id{i},a,b,c,d,good end,bad end,{1 + i % 2}\n" for i in range(4))
ANALOGIES = ": family\nboy girl king queen\nman woman he she\n: grammar\nbig bigger old older\n"


def race_answers(folder, examples):
    """Checks that the letters in the files name the right answers."""
    files = [folder / level / "1.txt" for level in ("middle", "high")]
    right = [a for f in files for a in json.loads(content(f))["answers"]]
    if ["ABCD"[example.label] for example in examples] != right:
        return "answers that are not those of the file"
    if any(len(example.choices) != 4 for example in examples):
        return "a question without four answers"
    return sound(folder, examples)


def chosen(column, first):
    """Returns a check that the right choice is the number in a column of the table."""

    def check(folder, examples):
        right = [int(row[column]) - first for row in rows_of_csv(content(folder / "s.csv"))]
        if [example.label for example in examples] != right:
            return "choices that are not those of the file"
        return sound(folder, examples)

    return check


def roles_are(folder, examples):
    """Checks that tags mark exactly the arguments in the file."""
    rows = [json.loads(line) for line in content(folder / "r.jsonl").split("\n") if line.strip()]
    right = [
        (row["words"], predicate["index"], sorted(map(tuple, predicate["arguments"])))
        for row in rows
        for predicate in row["predicates"]
    ]
    found = []
    for example in examples:
        begins = [i for i, tag in enumerate(example.label) if tag.startswith("B-")]
        spans = []
        for begin in begins:
            end = begin + 1
            while end < len(example.label) and example.label[end].startswith("I-"):
                end += 1
            spans.append((begin, end, example.label[begin][2:]))
        found.append((example.text, example.predicate, spans))
    return None if found == right else "roles that differ from those of the file"


def pairs_are(folder, pairs):
    lines = [
        re.split("[ \t]+", line.strip(" \t")) for line in content(folder / "p.txt").split("\n")
    ]
    right = [(line[0], line[1], float(line[2])) for line in lines if line != [""]]
    if pairs != right or not all(math.isfinite(score) for *_, score in pairs):
        return "pairs that differ from those of the file"
    return None


CONLL_2012 = "".join(
    f"#begin document (d{i}); part 000\n"
    "d 0 0 Ann X * - - - - * (ARG0*) (0)\n"
    "d 0 1 met X * meet 01 - - * (V*) -\n"
    "d 0 2 Tom X * - - - - * (ARG1* (1)|(2\n"
    "d 0 3 Lee X * - - - - * *) 2)\n\n"
    "d 0 0 She X * - - - - * (0)\n"
    "#end document\n"
    for i in range(3)
)


def read_both_2012(folder):
    """Reads the roles and the clusters of the file."""
    return conll_2012_roles(folder / "c.conll"), conll_2012_documents(folder / "c.conll")


def brackets_are(folder, found):
    """Checks the numbers of predicates, words and mentions by the brackets of the file."""
    roles, documents = found
    lines = content(folder / "c.conll").split("\n")
    rows = [re.split("[ \t]+", line.strip(" \t")) for line in lines if line.strip(" \t")]
    rows = [row for row in rows if row[0] not in ("#begin", "#end")]
    predicates = sum(cell.startswith("(V*") for row in rows for cell in row[11:-1])
    mentions = sum(row[-1].count("(") for row in rows)
    counts = len(roles), sum(len(d.text) for d in documents)
    clusters = sum(len(cluster) for d in documents for cluster in d.label)
    if (*counts, clusters) != (predicates, len(rows), mentions):
        return "predicates, words or mentions that differ from those of the file"
    return None


def clusters_are(folder, examples):
    """Checks that examples have exactly the mentions in the file, in its clusters."""
    rows = [json.loads(line) for line in content(folder / "d.jsonl").split("\n") if line.strip()]
    right, found = [], []
    for row, example in zip(rows, examples, strict=True):
        clusters = [*row["clusters"], *([one] for one in row["singletons"])]
        words = [
            [row["sentences"][sentence][start:end] for sentence, start, end in cluster]
            for cluster in clusters
        ]
        right.append((row["sentences"], words))
        ends = [sum(example.sentences[:i]) for i in range(len(example.sentences) + 1)]
        sentences = [example.text[a:b] for a, b in zip(ends, ends[1:], strict=False)]
        of_clusters = [[example.text[a:b] for a, b in cluster] for cluster in example.label]
        found.append((sentences, of_clusters))
    return None if found == right else "clusters that differ from those of the file"


OTHERS = [
    Reader("sst_trees", {"t.txt": "(3 (2 Good) (2 film))\n(1 (1 Bad) (2 (2 ,) (2 film)))\n"},
           lambda f: read_trees(find(f, "t.txt")), {"t.txt": "text"}, None, 0.6, gz=True),
    Reader("snli", {"s.jsonl": SNLI}, lambda f: read_snli(f / "s.jsonl"), {"s.jsonl": "jsonl"},
           sound, 0.6),
    Reader("scitail", {"s.tsv": "a fox runs\tan animal runs\tentails\nit is\tit was\tneutral\n"},
           lambda f: read_scitail(f / "s.tsv"), {"s.tsv": "text"}, sound, 0.5),
    Reader("sick", {"s.txt": SICK},
           lambda f: read_sick(f / "s.txt") + read_sick(f / "s.txt", scores=True),
           {"s.txt": "text"}, sound, 0.5),
    Reader("swag", {"s.csv": SWAG}, lambda f: read_swag(f / "s.csv"), {"s.csv": "text"},
           chosen("label", 0), 0.6),
    Reader("race", {f"{level}/1.txt": json.dumps(RACE) for level in ("middle", "high")}, read_race,
           {"middle/1.txt": "json", "high/1.txt": "json"}, race_answers, 0.8),
    Reader("story_cloze", {"s.csv": STORY}, lambda f: read_story_cloze(f / "s.csv"),
           {"s.csv": "text"}, chosen("AnswerRightEnding", 1), 0.5),
    Reader("semantic_roles", {"r.jsonl": ROLES}, lambda f: read_roles(f / "r.jsonl"),
           {"r.jsonl": "jsonl"}, roles_are, 0.5),
    Reader("conll_2012", {"c.conll": CONLL_2012}, read_both_2012, {"c.conll": "text"},
           brackets_are, 0.5),
    Reader("coreference", {"d.jsonl": DOCUMENTS}, lambda f: read_coreference(f / "d.jsonl"),
           {"d.jsonl": "jsonl"}, clusters_are, 0.5),
    Reader("word_pairs", {"p.txt": "tiger cat 7.35\nold new 1.58\nbook\tpaper\t7\n"},
           lambda f: read_pairs(f / "p.txt"), {"p.txt": "text"}, pairs_are, 0.5),
    Reader("word_questions", {"q.txt": ANALOGIES}, lambda f: read_questions(f / "q.txt"),
           {"q.txt": "text"}, lambda f, found: None if found else "no questions", 0.5),
]  # fmt: skip

READERS = [*PLAIN, *QUESTIONS, *GLUE_TASKS, *OTHERS]
