"""Examples, file formats, and batches of a few static shapes."""

from keras_plm.data.batching import Batches
from keras_plm.data.corpus import TokenStream, read_ids
from keras_plm.data.corpus_writer import write_stream
from keras_plm.data.documents import join_sentences, part_sentences
from keras_plm.data.examples import batches
from keras_plm.data.formats.conll import read_conll
from keras_plm.data.formats.conll_2012 import Conll2012Document, read_conll_2012
from keras_plm.data.formats.fasttext import SubwordVectors, read_fasttext
from keras_plm.data.formats.parallel import read_parallel
from keras_plm.data.formats.squad import (
    best_threshold,
    evaluate_squad,
    read_predictions,
    read_squad,
    write_predictions,
)
from keras_plm.data.formats.tables import read_table
from keras_plm.data.formats.word_vectors import read_vectors, write_vectors
from keras_plm.data.labels import label_names
from keras_plm.data.packing import PackedExamples, stack_padded
from keras_plm.data.passages import Windows
from keras_plm.data.spans import Span, best_answers, best_spans
from keras_plm.data.task import Example, Task, cut_dev_set, find_file, split_groups
from keras_plm.data.translation import translation_batches

__all__ = [
    "Batches",
    "Conll2012Document",
    "Example",
    "PackedExamples",
    "Span",
    "SubwordVectors",
    "Task",
    "TokenStream",
    "Windows",
    "batches",
    "best_answers",
    "best_spans",
    "best_threshold",
    "cut_dev_set",
    "evaluate_squad",
    "find_file",
    "join_sentences",
    "label_names",
    "part_sentences",
    "read_conll",
    "read_conll_2012",
    "read_fasttext",
    "read_ids",
    "read_parallel",
    "read_predictions",
    "read_squad",
    "read_table",
    "read_vectors",
    "split_groups",
    "stack_padded",
    "translation_batches",
    "write_predictions",
    "write_stream",
    "write_vectors",
]
