"""GLUE's files and splits."""

import pytest

from glue_tasks import GLUE
from glue_tasks.tasks import group_phrases
from keras_plm.task import Example


def test_sst2_has_its_published_counts_and_no_shared_phrase(data):
    data("glue/SST-2/train.tsv")
    folder = data("glue").parent
    parts = {split: GLUE["sst2"].read(folder, split) for split in ("train", "dev", "test")}
    assert len(parts["train"]) + len(parts["dev"]) == 67_349 and len(parts["test"]) == 872
    assert {e.label for e in parts["test"]} == {"0", "1"}
    texts = {split: {" ".join(e.text.split()) for e in part} for split, part in parts.items()}
    assert not texts["train"] & texts["dev"]
    assert not {e.group for e in parts["train"]} & {e.group for e in parts["dev"]}
    # No chosen sentence is made of a longer one that is trained on.
    longest = sorted(texts["train"], key=lambda t: -len(t))[:300]
    for phrase in list(texts["dev"])[:300]:
        if len(phrase.split()) > 4:
            assert not any(f" {phrase} " in f" {whole} " for whole in longest)


def test_phrases_go_with_the_longest_that_holds_them():
    texts = ["a good film", "good film", "film", "a bad play", "bad", "good film and play"]
    groups = [e.group for e in group_phrases([Example(t, "1") for t in texts])]
    assert groups[1] == groups[5] and groups[3] == groups[4] and groups[3] != groups[5]


def test_missing_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="No file .*glue/SST-2/train.tsv .*--data"):
        GLUE["sst2"].read(tmp_path, "train")
