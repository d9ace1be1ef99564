"""Predictions of `keras-plm predict`: labels, tags, scores, choices, answers or clusters."""

import json
import re
import warnings
from pathlib import Path

import keras

import keras_plm.checkpoints  # noqa: F401  (registers the classes of saved models)
import keras_plm.transfer  # noqa: F401
from keras_plm.checkpoints.settings import check_model_of
from keras_plm.data.formats.conll import read_conll
from keras_plm.data.formats.squad import read_squad, write_predictions
from keras_plm.data.formats.tables import is_empty, table_rows
from keras_plm.data.task import Unlabelled
from keras_plm.datasets.tasks import conll_column, is_conll
from keras_plm.files.arrays import as_weight
from keras_plm.files.json_files import Whole, check_shape
from keras_plm.files.opening import plain_name, similar
from keras_plm.files.saveable import check_model_file, described_error
from keras_plm.files.writing import write_text
from keras_plm.heads import MultipleChoice, SpanFinder, Tagger
from keras_plm.heads.head import Head
from keras_plm.tokenizers import open_text
from keras_plm.tokenizers.text import fields

TABLE = re.compile(r"\.(csv|tsv|jsonl)$")
LONGEST_TEXT = 1 << 23  # characters; tokenization takes about 50 bytes for each


def open_model(path):
    """Loads a fine-tuned model that `run --save-model` or `model.save` wrote.

    Raises:
        ValueError: If the file is missing or holds something else.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(
            f"No file {path}: `run --save-model` writes one.{similar(path)} Received: {str(path)!r}"
        )
    if not path.is_file() or path.suffix != ".keras":
        raise ValueError(
            "A fine-tuned model must be a .keras file of `run --save-model` or `model.save`. "
            f"Received: {str(path)!r}"
        )
    config, shapes = check_model_file(path)
    check_model_of(config, shapes, f"{path}, config.json")
    try:
        model = keras.saving.load_model(path)
    except ImportError:
        raise
    except Exception as error:  # Keras and custom classes raise many kinds of errors
        if unknown := _unknown_class(config):
            raise ValueError(
                f"{path} has a class of your own: first import the module that defines it "
                f"(--import MODULE). Received: {unknown!r:.80}"
            ) from error
        raise ValueError(
            f"{path} must be an undamaged file of a fine-tuned model. {described_error(error)}"
        ) from error
    for weight in model.weights:
        as_weight(keras.ops.convert_to_numpy(weight), weight.path, path)
    if not isinstance(model, Head) or model.tokenizer is None:
        raise ValueError(
            "Prediction needs a head with its tokenizer, as from `FineTune`. "
            f"Received: {type(model).__name__} in {str(path)!r}"
        )
    return model


def _unknown_class(config):
    """Returns the name of a registered class that no imported module defines, or `None`."""
    parts = [config]
    while parts:
        part = parts.pop()
        if isinstance(part, (dict, list)):
            parts += part.values() if isinstance(part, dict) else part
        name = part.get("registered_name") if isinstance(part, dict) else None
        of_user = isinstance(name, str) and ">" in name
        of_user = of_user and not name.startswith(("keras_plm>", "keras_hub>"))
        if of_user and keras.saving.get_registered_object(name) is None:
            return name
    return None


def check_probabilities(model):
    """Raises a ValueError if the predictions of a head have no probabilities."""
    if model.scores or model.reads_documents:
        raise ValueError(
            "Only labels, tags and answers have probabilities: omit --probabilities. "
            f"Received: a {type(model).__name__}"
        )


def read_inputs(path, model, text="text", pair=None, tagger=None):
    """Reads the inputs of a model from a file.

    With a `tagger`, a `SemanticRoleLabeler` reads the same files as a `Tagger`. Each word whose tag
    begins with "V", such as "VERB" or "VBD", is a predicate and an input of its own. A warning
    counts the sentences without a verb.

    - JSON in SQuAD's layout, for a `SpanFinder`.
    - CoNLL (ending in .conll, .conllu, .iob or .bio), for a `Tagger`. Words are in the column
      `text`; by default it is the first, in CoNLL-U the second. Tags are optional.
    - CSV, TSV and JSONL, by columns. A JSONL text may be a list of words. A `MultipleChoice` reads
      the list at "choices", a `SemanticRoleLabeler` the index of a word at "predicate", or JSONL
      as `read_roles`, with or without arguments.
    - For a `CoreferenceResolver`, JSONL with a document's lists of words at "sentences"; otherwise
      one sentence per line, with spaces between words and an empty line after each document.
    - Otherwise one text per line. A tab separates the two texts of a pair; spaces separate the
      words for a `Tagger`. Empty lines at the end are ignored.

    Args:
        path: The file.
        model: Result of `open_model`.
        text, pair: Columns of the texts, and of the second texts.
        tagger: A `Tagger` that finds the predicates of a `SemanticRoleLabeler`, or `None`.

    Raises:
        ValueError: If an input cannot be read, with file and line; or if the file has no input. If
            `tagger` does not fit the model, finds no verb, or the file names predicates itself.
    """
    if tagger is not None:
        if TABLE.search(plain_name(Path(path))):
            where, row = next(iter(table_rows(path)), ("", {}))
            if "predicate" in row:
                raise ValueError(
                    f"{where}: Predicates come from a tagger or from the column 'predicate': omit "
                    "--tagger, or the column. Received: both"
                )
        return _verbs_of(read_inputs(path, _tagger_for(model, tagger), text), tagger, path)
    path = Path(path)
    name = plain_name(path)
    if isinstance(model, SpanFinder) and name.endswith(".json"):
        return read_squad(path, labelled=False)
    if name.endswith(".json"):
        raise ValueError(
            "A .json file must be SQuAD's, for a `SpanFinder`: give other models one text per "
            f"line, .csv, .tsv or .jsonl. Received: {path.name} for a {type(model).__name__}"
        )
    if model.reads_documents:
        if text != "text":
            raise ValueError(
                "A `CoreferenceResolver` reads 'sentences' of .jsonl, or lines of words: omit "
                f"--text. Received: text={text!r}"
            )
        return _documents(path, name)
    is_table = TABLE.search(name)
    if model.marks_predicates and not is_table:
        raise ValueError(
            "A `SemanticRoleLabeler` reads a .csv, .tsv or .jsonl file with the columns 'text' and "
            "'predicate', the index of a word from 0; .jsonl in the layout of training; or other "
            f"files with `--tagger`, a model that finds verbs. Received: {path.name}"
        )
    if not is_table:
        names = {"text": text if text != "text" and not is_conll(path) else None, "pair": pair}
        for flag, column in names.items():
            if column is not None:
                raise ValueError(
                    f"Only a .csv, .tsv or .jsonl file has a column for `--{flag}`: omit it. "
                    f"Received: {flag}={column!r} for {path.name}"
                )
    if is_conll(path):
        column = conll_column(None if text == "text" else text)
        return [
            Unlabelled(e.text, where=e.where, lines=e.lines)
            for e in read_conll(path, column, labelled=False)
        ]
    if model.marks_predicates and text == "text" and name.endswith(".jsonl"):
        if "predicates" in next(iter(table_rows(path)), ("", {}))[1]:
            return _sentences_with_predicates(path)
    examples = list(_rows(path, model, text, pair) if is_table else _lines(path, model))
    if not examples:
        raise ValueError(f"{path} must hold a text. Received: an empty file")
    return examples


def _tagger_for(model, tagger):
    """Returns the tagger; raises unless it finds predicates for a model of roles."""
    if not model.marks_predicates:
        raise ValueError(
            "`--tagger` finds the predicates of a `SemanticRoleLabeler`: omit it. "
            f"Received: a {type(model).__name__}"
        )
    verbs = [label for label in tagger.labels if str(label).startswith("V")]
    if not isinstance(tagger, Tagger) or tagger.marks_predicates or not verbs:
        raise ValueError(
            "`--tagger` must be a `Tagger` of parts of speech with a tag of verbs, such as 'VERB'. "
            f"Received: a {type(tagger).__name__} with the labels "
            f"{', '.join(map(str, tagger.labels[:8]))}"
        )
    return tagger


def _verbs_of(sentences, tagger, path):
    """Makes an input of each verb that the tagger finds in the sentences."""
    found, without = [], []
    for sentence, tags in zip(sentences, tagger.predict(sentences), strict=True):
        places = [place for place, tag in enumerate(tags) if str(tag).startswith("V")]
        if not places:
            without.append(sentence)
        of_sentence = {"where": sentence.where, "lines": sentence.lines}
        found += [Unlabelled(sentence.text, predicate=place, **of_sentence) for place in places]
    if not found:
        raise ValueError(
            f"{path}: The tagger must find a verb in the file: use another tagger, or name the "
            "predicates in a column 'predicate'. Received: no verb in "
            f"{len(sentences):,} sentence{'s' * (len(sentences) > 1)}"
        )
    if without:
        warnings.warn(
            f"The tagger finds no verb in {len(without):,} of {len(sentences):,} sentences, which "
            f"have no prediction. The first is {without[0].where}: "
            f"{' '.join(without[0].text)!r:.60}",
            stacklevel=2,
        )
    return found


def _documents(path, name):
    """Reads documents of sentences, from JSONL or from lines of words."""
    if is_conll(path) or name.endswith((".csv", ".tsv")):
        raise ValueError(
            "A `CoreferenceResolver` reads .jsonl with lists of words at 'sentences', or lines of "
            f"words with an empty line after each document. Received: {path.name}"
        )
    found = list(_json_documents(path) if name.endswith(".jsonl") else _text_documents(path))
    if not found:
        raise ValueError(f"{path} must hold a document. Received: an empty file")
    return [
        Unlabelled(
            [word for sentence in sentences for word in sentence],
            where=where,
            sentences=[len(sentence) for sentence in sentences],
        )
        for where, sentences in found
    ]


def _json_documents(path):
    for where, row in table_rows(path):
        check_shape(row, {"sentences": [[str]]}, where)
        words = [word for sentence in row["sentences"] for word in sentence]
        if not (row["sentences"] and all(row["sentences"])) or any(map(is_empty, words)):
            raise ValueError(
                f"{where}: A document must have sentences, each with words. "
                f"Received: sentences={row['sentences']!r:.60}"
            )
        yield where, row["sentences"]


def _text_documents(path):
    with open_text(path) as file:
        sentences, where = [], ""
        for number, line in enumerate(file, 1):
            _check_length(f"{path}:{number}", line)
            words = fields(line)
            if words:
                where = where if sentences else f"{path}:{number}"
                sentences.append(words)
            elif sentences:
                yield where, sentences
                sentences = []
        if sentences:
            yield where, sentences


def _rows(path, model, text, pair):
    """Reads the inputs of a table, by columns."""
    first = None
    names = [text, *([pair] if pair else [])]
    names += ["choices"] if isinstance(model, MultipleChoice) else []
    names += ["predicate"] if model.marks_predicates else []
    for where, row in table_rows(path):
        missing = [column for column in names if column not in row]
        if missing == ["predicate"]:
            raise ValueError(
                f"{where}: A line must have the index of its predicate, counted in words from 0, "
                "in the column 'predicate'; or let a tagger find the verbs, with --tagger. "
                f"Received: {', '.join(map(str, row))}"
            )
        if missing:
            raise ValueError(
                f"{where}: No column {missing[0]!r}: name the column of texts with --text and "
                f"that of second texts with --pair. Received: {', '.join(map(str, row))}"
            )
        _check_values(where, row, text, pair, model)
        found = fields(row[text]) if _is_line(row[text], model) else row[text]
        if first is not None and isinstance(found, list) != isinstance(first, list):
            raise ValueError(
                f"{where}: Texts must be strings in all rows, or lists of words in all. "
                f"Received: {row[text]!r:.60}, unlike the first row"
            )
        choices = row["choices"] if isinstance(model, MultipleChoice) else None
        if choices is not None and len(choices) != len(model.labels):
            raise ValueError(
                f"{where}: 'choices' must be {len(model.labels)}, as in training. "
                f"Received: {choices!r:.80}"
            )
        first = found if first is None else first
        predicate = _predicate(where, row, found) if model.marks_predicates else None
        second = row[pair] if pair else None
        yield Unlabelled(found, second, choices=choices, where=where, predicate=predicate)


def _sentences_with_predicates(path):
    """Reads the predicates of sentences from a file like those of training; see `read_roles`."""
    examples = []
    for where, row in table_rows(path):
        check_shape(row, {"words": [str], "predicates": [{"index": Whole()}]}, where)
        words = row["words"]
        if not words or any(map(is_empty, words)):
            raise ValueError(
                f"{where}: A sentence must have words, none of them empty. "
                f"Received: words={words!r:.60}"
            )
        for predicate in row["predicates"]:
            index = _predicate(where, {"predicate": predicate["index"]}, words)
            examples.append(Unlabelled(words, predicate=index, where=where))
    if not examples:
        raise ValueError(f"{path}: No predicate in this file. Received: sentences without one")
    return examples


def _predicate(where, row, words):
    """Returns the predicate of a row: a whole number, in CSV and TSV as text."""
    found = row["predicate"]
    if isinstance(found, str) and found.strip().isdecimal():
        found = int(found)
    if type(found) is not int or not 0 <= found < len(words):
        raise ValueError(
            f"{where}: 'predicate' must be the index of a word, 0 to {len(words) - 1}. "
            f"Received: {row['predicate']!r:.60}"
        )
    return found


def _lines(path, model):
    """Reads one text per line, or two with a tab between."""
    gap, are_pairs = 0, None  # gap: number of the first empty line
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip(" \r\n"):
                gap = gap or number
                continue
            if gap:
                raise ValueError(
                    f"{path}:{gap}: A line must be a text; only the end of the file may have "
                    "empty lines: remove the line. Received: an empty line"
                )
            where = f"{path}:{number}"
            _check_length(where, line)
            first, *others = line.rstrip("\n").split("\t")
            if is_empty(first) or any(map(is_empty, others)) or others[1:]:
                raise ValueError(
                    f"{where}: A line must be a text, or two texts with a tab between. "
                    f"Received: {line.rstrip()!r:.60}"
                )
            if are_pairs not in (None, bool(others)):
                raise ValueError(
                    f"{where}: All lines must have a second text after a tab, or none. "
                    f"Received: {line.rstrip()!r:.60}, unlike the first line"
                )
            are_pairs = bool(others)
            words = fields(first) if isinstance(model, Tagger) else first
            yield Unlabelled(words, *others, where=where)


def _check_values(where, row, text, pair, model):
    """Checks that a row has the inputs of a model: texts, lists of words, lists of choices."""
    words = (str, [str])
    shapes = {text: words} | ({pair: words} if pair else {})
    shapes |= {"choices": [str]} if isinstance(model, MultipleChoice) else {}
    for name, shape in shapes.items():
        check_shape(row[name], shape, f"{where}, {name!r}")
        values = row[name] if isinstance(row[name], list) else [row[name]]
        if not values or any(map(is_empty, values)):
            raise ValueError(f"{where}: Every row needs a text. Received: {name}={row[name]!r:.60}")
        for value in values:
            _check_length(where, value)


def _check_length(where, text):
    if len(text) > LONGEST_TEXT:
        raise ValueError(
            f"{where}: A text must have at most {LONGEST_TEXT:,} characters: split it. "
            f"Received: {len(text):,}"
        )


def _is_line(text, model):
    return isinstance(model, Tagger) and isinstance(text, str)


def predict(model, examples, out=None, probabilities=False):
    """Predicts one line of JSON for each example; for a `SpanFinder`, SQuAD's official object.

    Args:
        model: Result of `open_model`.
        examples: Result of `read_inputs`.
        out: File for the predictions, written under a temporary name first; by default none.
        probabilities: If True, lines also hold the probability of each label, or the best answers.

    Returns:
        The content of the file.
    """
    if isinstance(model, SpanFinder) and not probabilities and hasattr(examples[0], "id"):
        answers = model.predict(examples)
        if out is not None:
            write_predictions(out, examples, answers)
        named = {example.id: answer for example, answer in zip(examples, answers, strict=True)}
        return json.dumps(named, indent=1, ensure_ascii=False) + "\n"
    found = model.predict(examples)
    rows = [{"prediction": value} for value in found]
    if model.reads_documents and not any(found):
        warnings.warn(
            "The model finds no mention in any document: train it longer, on more documents or "
            "with another learning rate",
            stacklevel=2,
        )
    if model.marks_predicates:
        if all(tag == "O" or tag[2:] == "V" for tags in found for tag in tags):
            warnings.warn(
                "The model finds no argument of any predicate: train it longer, on more examples "
                "or with another learning rate",
                stacklevel=2,
            )
        for row, example in zip(rows, examples, strict=True):
            row |= {"words": list(example.text), "predicate": int(example.predicate)}
    if model.reads_documents:  # a mention is (start, end)
        for row, example in zip(rows, examples, strict=True):
            row["texts"] = [
                [" ".join(example.text[start:end]) for start, end in cluster]
                for cluster in row["prediction"]
            ]
    if probabilities:
        for row, of_row in zip(rows, model.predict(examples, probabilities=True), strict=True):
            row["probabilities"] = _shares(model, of_row)
    lines = "".join(json.dumps(row, ensure_ascii=False, default=_plain) + "\n" for row in rows)
    if out is not None:
        write_text(out, lines)
    return lines


def _shares(model, row):
    """Returns `{label: probability}`, for a head of words a list of them; or the answers."""
    if isinstance(model, SpanFinder):
        return [span._asdict() for span in row]
    if model.per_word:
        return [dict(zip(model.labels, word, strict=True)) for word in row.tolist()]
    return dict(zip(map(str, model.labels), row.tolist(), strict=True))


def _plain(value):
    return value.item()  # a number of NumPy
