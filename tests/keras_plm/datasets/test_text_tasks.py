"""Customer reviews (CR) and subjectivity (SUBJ)."""

import pytest

from keras_plm.datasets.tasks import TASKS

pytestmark = pytest.mark.backend_neutral


def test_texts_keep_their_quotes(tmp_path):
    (tmp_path / "cr").mkdir()
    (tmp_path / "cr" / "train.tsv").write_text('text\tlabel\n"good" , they say\tnegative\n')
    (example,) = TASKS["cr"].read(tmp_path, "train")
    assert (example.text, example.label) == ('"good" , they say', "negative")
    assert example.where.endswith("train.tsv:2")


def test_other_labels_are_refused(tmp_path):
    (tmp_path / "subj").mkdir()
    (tmp_path / "subj" / "dev.tsv").write_text("text\tlabel\na film\tneutral\n")
    with pytest.raises(ValueError, match=r"dev.tsv:2: .*objective, subjective.*'neutral'"):
        TASKS["subj"].read(tmp_path, "dev")


@pytest.mark.parametrize(
    ("name", "counts"), [("cr", (2997, 375, 375)), ("subj", (8000, 1000, 1000))]
)
def test_real_files_have_their_counts(data, name, counts):
    folder = data(f"{name}/train.tsv").parent.parent
    for split, count in zip(("train", "dev", "test"), counts, strict=True):
        assert len(TASKS[name].read(folder, split)) == count
