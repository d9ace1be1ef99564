"""F1 of semantic roles by the rules of CoNLL-2005, on cases worked out by hand."""

import pytest

from keras_plm.metrics import role_f1, role_scores, roles

pytestmark = pytest.mark.backend_neutral

# The news , they said , surprised them .
SAID = ["B-ARG1", "I-ARG1", "O", "B-ARG0", "B-V", "O", "B-C-ARG1", "I-C-ARG1", "O"]


def test_continued_spans_are_one_argument():
    assert roles(SAID) == [("ARG1", ((0, 2), (6, 8))), ("ARG0", ((3, 4),))]
    # C-X joins the last X before it, and is an X without one.
    tags = ["B-C-ARG1", "B-ARG1", "B-V", "B-ARG1", "B-C-ARG1", "B-C-V", "B-R-ARG1"]
    assert roles(tags) == [
        ("ARG1", ((0, 1),)), ("ARG1", ((1, 2),)), ("ARG1", ((3, 4), (4, 5))),
        ("R-ARG1", ((6, 7),)),
    ]  # fmt: skip


def test_scores_by_hand():
    part = [*SAID[:6], "O", "O", "O"]  # without the second half of ARG1: wrong as a whole
    scores = role_scores([SAID, SAID], [SAID, part])
    assert scores["ARG1"] == {
        "precision": 0.5, "recall": 0.5, "f1": 0.5, "true": 2, "found": 2, "correct": 1,
    }  # fmt: skip
    assert scores["all"]["correct"] == 3 and scores["all"]["f1"] == 3 / 4
    assert role_f1([SAID], [SAID]) == 1.0
    verb = ["O", "B-V"]
    assert role_f1([verb], [verb]) == 0.0  # the predicate is no argument
    assert role_scores([["B-ARG0", "B-V"]], [["B-ARG0", "B-ARG1"]])["all"]["found"] == 2


def test_invalid_tags_are_refused():
    with pytest.raises(ValueError, match="Received: 2 and 1 tags of predicate 0"):
        role_scores([["B-V", "O"]], [["B-V"]])
    with pytest.raises(ValueError, match="The label 'all' is the row of all arguments"):
        role_scores([["B-all", "B-V"]], [["B-all", "B-V"]])
    with pytest.raises(ValueError, match="1 truths and 0 predictions"):
        role_f1([["B-V"]], [])
