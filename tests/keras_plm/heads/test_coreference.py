"""Coreference: scores against loops, the loss, decoding, learning, files of documents."""

import json

import keras
import numpy as np
import pytest

import keras_plm
from keras_plm.cli.main import main
from keras_plm.data.task import Example
from keras_plm.datasets.coreference import read_coreference
from keras_plm.datasets.tasks import TASKS
from keras_plm.experiments.predict import predict, read_inputs
from keras_plm.heads import CoreferenceLoss, CoreferenceResolver, MentionLoss, SpanRanking
from keras_plm.heads.coreference import LABELS
from keras_plm.metrics import conll_coreference_f1
from keras_plm.models import GPT
from keras_plm.pretraining import WithLanguageModel
from keras_plm.transfer import FeatureBased, FineTune
from tests.helpers.checks import assert_close, check_layer, to_numpy, under_torch
from tests.helpers.small_encoders import TOKENIZER, encoder, word_encoder
from tests.helpers.small_runs import FAST, common, result_files


def documents(count=32, seed=0):
    """Documents of four sentences; all "a" are one entity, all "b" another, and "c" is none."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        words, clusters = [], {}
        for _ in range(4):
            name = str(rng.choice(["a", "b"]))
            clusters.setdefault(name, []).append((len(words), len(words) + 1))
            words += [name, str(rng.choice(["e", "f"])), "c"]
        found.append(Example(words, list(clusters.values()), sentences=[3] * 4))
    return found


def model_of(**options):
    size = {"hidden_dim": 8, "pair_dim": 8, "max_span_width": 3, "spans_per_word": 0.8}
    return CoreferenceResolver(encoder(), tokenizer=TOKENIZER, **{**size, **options})


class Loops:
    """Scores of one document by loops over spans, from the weights of a `SpanRanking`."""

    def __init__(self, layer):
        self.layer = layer
        self.weights = {
            weight.path.split("/", 1)[1]: to_numpy(weight).astype("float64")
            for weight in layer.weights
        }

    def network(self, name, parts):
        """Applies a network to the joined parts of its input."""
        w = self.weights
        kernel = np.concatenate([w[f"{name}_{part}/kernel"] for part in parts])
        first = next(part for part in parts if f"{name}_{part}/bias" in w)
        hidden = np.concatenate(list(parts.values())) @ kernel + w[f"{name}_{first}/bias"]
        hidden = np.maximum(hidden, 0) @ w[f"{name}_hidden/kernel"] + w[f"{name}_hidden/bias"]
        score = np.maximum(hidden, 0) @ w[f"{name}_score/kernel"] + w[f"{name}_score/bias"]
        return float(score[0])

    def __call__(self, x, sentences):
        layer, w = self.layer, self.weights
        logits = [self.network("attention", {"word": word}) for word in x]
        spans = []
        for start in range(len(x)):
            for end in range(start + 1, min(start + layer.max_span_width, len(x)) + 1):
                if sentences[start] != sentences[end - 1]:
                    continue
                odds = np.exp(logits[start:end] - np.max(logits[start:end]))
                head = odds / odds.sum() @ x[start:end]
                width = w["widths/embeddings"][end - start - 1]
                parts = {"start": x[start], "end": x[end - 1], "head": head, "width": width}
                vector = np.concatenate([x[start], x[end - 1], head, width])
                spans.append((self.network("mention", parts), start, end, vector))
        self.mentions = {(start, end): score for score, start, end, _ in spans}
        count = max(int(len(x) * round(100 * layer.spans_per_word) // 100), 1)
        spans = sorted(spans, key=lambda span: -span[0])[:count]
        spans = sorted(spans, key=lambda span: span[1:3])
        return [(span, self.antecedents(spans, i)) for i, span in enumerate(spans)]

    def antecedents(self, spans, i):
        layer, w, found = self.layer, self.weights, []
        mention, _, _, own = spans[i]
        if layer.pair_dim is not None:
            own = own @ w["projection/kernel"] + w["projection/bias"]
        for j in range(i):
            score, start, end, other = spans[j]
            if layer.pair_dim is not None:
                other = other @ w["projection/kernel"] + w["projection/bias"]
            coarse = 0.0
            if layer.coarse_to_fine:
                coarse = own @ w["coarse/kernel"] @ other / len(own)
            bounds = [1, 2, 3, 4, 5, 8, 16, 32, 64]
            place = max(k for k, bound in enumerate(bounds) if i - j >= bound)
            distance = w["distances/embeddings"][place]
            parts = {"span": own, "other": other, "product": own * other, "distance": distance}
            rank = mention + score + coarse
            order = rank if layer.coarse_to_fine else j
            found.append((order, rank + self.network("pair", parts), start, end))
        return sorted(found, reverse=True)[: layer.num_antecedents]


@pytest.mark.parametrize(
    "options",
    [{}, {"coarse_to_fine": False}, {"pair_dim": None, "num_antecedents": 2}],
    ids=["coarse to fine", "nearest", "whole vectors"],
)
def test_scores_equal_loops_over_spans(options):
    rng = np.random.default_rng(3)
    layer = SpanRanking(
        **{"max_span_width": 3, "spans_per_word": 0.7, "num_antecedents": 5, "hidden_dim": 7,
           "pair_dim": 11, **options}
    )  # fmt: skip
    x = rng.normal(size=(2, 13, 5)).astype("float32")
    mask = np.arange(13) < np.array([[13], [11]])
    sentences = np.array([[0] * 4 + [1] * 9, [0] * 2 + [1] * 6 + [2] * 3 + [-1] * 2])
    layer.build(x.shape)
    for weight in layer.weights:
        weight.assign(rng.normal(0, 0.5, weight.shape))
    outputs = layer(x, mask, sentences)
    links, mentions = to_numpy(outputs["links"]), to_numpy(outputs["mentions"])
    for of_document, of_spans, words, ids, real in zip(
        links, mentions, x, sentences, mask, strict=True
    ):
        loops = Loops(layer)
        expected = loops(words[real].astype("float64"), ids[real])
        existing = np.argwhere(of_spans[..., 0] > -1e8)
        found = {(s, s + w + 1): of_spans[s, w, 0] for s, w in existing}
        assert found == pytest.approx(loops.mentions, abs=2e-4)
        kept = {(s, s + w + 1) for s, w in np.argwhere(of_spans[..., 1] == 1)}
        assert kept == {(start, end) for (_, start, end, _), _ in expected}
        rows = [row for row in of_document if row[0, 0] > -1e8]
        assert len(rows) == len(expected)
        for row, ((mention, start, end, _), antecedents) in zip(rows, expected, strict=True):
            assert_close(row[0], np.array([mention, start, end]), atol=2e-4)
            own = sorted([tuple(pair[1:]) for pair in antecedents])
            got = sorted([tuple(slot.tolist()) for slot in row[1:] if slot[0] > -1e8])
            assert len(got) == len(own)
            assert_close(np.array(got), np.array(own).reshape(np.shape(got)), atol=1e-3)


def test_before_training_no_antecedent_is_as_probable_as_all():
    layer = SpanRanking(max_span_width=2, spans_per_word=1.0, num_antecedents=20)
    x, ids = np.zeros((1, 80, 16), "float32"), np.zeros((1, 80), "int32")
    layer.build(x.shape)
    for weight in layer.weights:
        if "embeddings" in weight.path:
            weight.assign(np.zeros(weight.shape))
    links = to_numpy(layer(x, np.ones((1, 80), bool), ids)["links"])
    odds = np.exp(links[0, 20:, 1:, 0]).sum(axis=-1)  # of 20 antecedents to none
    assert_close(odds, np.ones(60))


def test_layer_reloads_and_learns(tmp_path):
    layer = SpanRanking(max_span_width=2, spans_per_word=1.0, hidden_dim=4, pair_dim=3, dropout=0.0)
    x, sentences = np.random.default_rng(0).normal(size=(2, 5, 4)), np.array([[0, 0, 0, 1, 1]] * 2)
    inputs = {
        "x": x.astype("float32"),
        "padding_mask": np.ones((2, 5), bool),
        "sentence_ids": sentences.astype("int32"),
    }
    check_layer(layer, inputs, tmp_path, learns=False)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_preserves_the_numbers_of_words(dtype):
    layer = SpanRanking(max_span_width=2, spans_per_word=1.0, hidden_dim=4, dtype=dtype)
    count = 2101
    x = np.random.default_rng(0).normal(size=(1, count, 8)).astype("float32")
    links = layer(x, np.ones((1, count), bool), np.zeros((1, count), "int32"))["links"]
    first, after = np.moveaxis(to_numpy(links), -1, 0)[1:]
    widths = set((after - first).ravel().tolist())
    assert after.max() > 2048 and widths == {1.0, 2.0}


def test_padding_changes_no_score():
    model, (short, long) = model_of(), documents(2)
    words, sizes = long.text * 2, [*long.sentences] * 2
    long = Example(words, [], sentences=sizes)
    short = Example(short.text, [], sentences=short.sentences)
    alone = model.predict_on_batch(model.batches([short], training=False)[0][0])
    x = model.batches([short, long], batch_size=2, training=False, buckets=[32])[0][0]
    both = model.predict_on_batch(x)
    of_spans = both["mentions"][0, : len(short.text)]
    assert_close(alone["mentions"][0, : len(short.text)], of_spans)
    assert np.all(both["mentions"][0, len(short.text) :, :, 0] < -1e8)
    alone, both = alone["links"][0], both["links"][0]
    kept = [rows[rows[:, 0, 0] > -1e8] for rows in (alone, both)]
    assert len(kept[0]) == len(kept[1]) == 9
    for first, second in zip(*kept, strict=True):
        slots = [sorted(slot.tolist() for slot in row[1:] if slot[0] > -1e8)
                 for row in (first, second)]  # fmt: skip
        assert_close(first[0], second[0])
        assert_close(np.array(slots[0]), np.array(slots[1]))


@pytest.mark.backend_neutral
def test_largest_array_of_a_document_of_2000_words():
    """No array has spans x spans x width, or spans x spans of all candidates."""
    torch = pytest.importorskip("torch")
    if keras.backend.backend() != "torch":
        pytest.skip("the sizes of arrays are observed under torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            for out in keras.tree.flatten(found):
                if hasattr(out, "untyped_storage"):
                    self.size = max(self.size, out.untyped_storage().nbytes())
            return found

    layer, words = SpanRanking(), 2000
    x = torch.zeros((1, words, 64))
    layer.build(x.shape)
    with Largest() as largest:
        layer(x, torch.ones((1, words), dtype=torch.bool), torch.zeros((1, words), dtype=torch.int))
    kept = int(0.4 * words)
    assert largest.size <= 4 * kept * 50 * 256 * 1.01


@pytest.mark.backend_neutral
class TestLoss:
    def test_equals_a_loop(self):
        rng = np.random.default_rng(0)
        y_true = rng.integers(0, 3, (1, 7, 2))
        spans = [(s, s + w) for s in range(7) for w in (1, 2, 3)][:11]
        y_pred = np.full((1, 13, 5, 3), -1e9)
        losses = []
        for i, span in enumerate(spans):
            others = spans[max(0, i - 4) : i]
            scores = rng.normal(size=1 + len(others))
            y_pred[0, i, 0] = (scores[0], *span)
            y_pred[0, i, 1:, 1:] = 0, 1
            for k, other in enumerate(others):
                y_pred[0, i, 1 + k] = (scores[1 + k], *other)
            own = self.cluster(y_true, span)
            right = [own > 0 and self.cluster(y_true, other) == own for other in others]
            odds = np.exp([0.0, *scores[1:]])
            chosen = sum(o for o, r in zip(odds[1:], right, strict=True) if r) or odds[0]
            losses.append(-np.log(chosen / odds.sum()))
        y_pred[0, len(spans) :, :, 1:] = 0, 1
        y_pred = y_pred.astype("float32")
        assert float(CoreferenceLoss()(y_true, y_pred)) == pytest.approx(np.mean(losses))

    def cluster(self, y_true, span):
        start, end = span
        return y_true[0, start, end - start - 1] if end - start <= 2 else 0

    def test_a_document_without_spans_has_no_loss(self):
        y_pred = np.tile(np.array([-1e9, 0, 1], "float32"), (1, 2, 3, 1))
        y_true = np.zeros((1, 4, 2), "int32")
        assert float(CoreferenceLoss()(y_true, y_pred)) == 0.0
        assert float(MentionLoss()(y_true, np.full((1, 4, 2, 2), -1e9, "float32"))) == 0.0

    def test_mentions_equal_a_loop(self):
        rng = np.random.default_rng(1)
        y_true, scores = rng.integers(0, 2, (2, 5, 3)), rng.normal(size=(2, 5, 3))
        kept = rng.integers(0, 2, (2, 5, 3))
        scores[0, 4, 1:] = scores[1, 2:] = scores[1, 1, 1:] = -1e9
        losses = ([], [])
        for place in np.argwhere(scores > -1e8):
            place = tuple(place)
            odd = 1 / (1 + np.exp(-scores[place]))
            if y_true[place] > 0:
                losses[place[0]].append(-np.log(odd))
            elif kept[place]:
                losses[place[0]].append(-np.log(1 - odd))
        y_pred = np.stack([scores, kept], axis=-1).astype("float32")
        expected = np.mean([np.mean(of_document) for of_document in losses])
        assert float(MentionLoss()(y_true, y_pred)) == pytest.approx(expected)


@pytest.mark.backend_neutral
class TestDecoding:
    def decode(self, *spans):
        """Decodes spans, each its score, start and end, then `(score, index)` of antecedents."""
        scores = np.full((len(spans) + 1, 3, 3), -1e9)
        for i, ((score, *span), *links) in enumerate(spans):
            scores[i, 0] = (score, *span)
            for k, (link, j) in enumerate(links):
                scores[i, 1 + k] = (link, *spans[j][0][1:])
        (found,) = CoreferenceResolver.decode(LABELS, [{"links": scores}], None)
        return found

    def test_best_links_make_clusters(self):
        found = self.decode(
            ((-1.0, 0, 1),),
            ((2.0, 1, 3), (-0.5, 0)),  # a mention without a link
            ((0.5, 4, 5), (0.7, 0), (0.2, 1)),  # its antecedent is a mention too
            ((-3.0, 6, 7), (0.1, 1), (0.4, 2)),
            ((-0.1, 7, 8), (-1.0, 3)),  # no mention
        )
        assert found == [[(0, 1), (4, 5), (6, 7)], [(1, 3)]]

    def test_no_mention_gives_no_cluster(self):
        assert self.decode(((-1.0, 0, 1),)) == []

    def test_clusters_have_no_probabilities(self):
        with pytest.raises(ValueError, match="Clusters have no probabilities"):
            CoreferenceResolver.decode(LABELS, [], None, probabilities=True)


@pytest.mark.full
@pytest.mark.compiles
def test_fine_tuning_learns_clusters_and_reloads(tmp_path):
    model = model_of(dropout=0.0, max_length=9)
    train, dev = documents(), documents(8, seed=1)
    model.compile(keras.optimizers.Adam(2e-3))
    model.fit(model.batches(train, batch_size=4), epochs=40, verbose=0)
    predicted = model.predict(dev)
    assert conll_coreference_f1([e.label for e in dev], predicted) > 0.9
    model.save(tmp_path / "coreference.keras")
    loaded = keras.saving.load_model(tmp_path / "coreference.keras")
    assert loaded.predict(dev) == predicted and loaded.max_length == 9


@pytest.mark.full
@pytest.mark.parametrize("make", [under_torch(encoder), word_encoder])
def test_frozen_features_learn_clusters(make):
    train, dev = documents(), documents(8, seed=1)
    frozen = make()
    tokenizer = TOKENIZER if make is encoder else frozen.tokenizer()
    method = FeatureBased(learning_rate=1e-2, epochs=15, dropout=0.0, batch_size=4)
    model = method.fit(frozen, CoreferenceResolver, tokenizer, train, dev)
    predicted = model.predict(dev)
    truth = [example.label for example in dev]
    assert model.training_log["dev_score"] == conll_coreference_f1(truth, predicted) > 0.9


@pytest.mark.full
def test_predict_reads_documents_from_files(tmp_path):
    model = model_of()
    rows = [{"sentences": [["a", "c"], ["a"]]}, {"sentences": [["b"]]}]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "in.txt").write_text("\na c\na\n\n\nb\n")
    for name in ("in.jsonl", "in.txt"):
        examples = read_inputs(tmp_path / name, model)
        assert [(e.text, e.sentences) for e in examples] == [
            (["a", "c", "a"], [2, 1]),
            (["b"], [1]),
        ]
    lines = [json.loads(line) for line in predict(model, examples).splitlines()]
    for line, example, clusters in zip(lines, examples, model.predict(examples), strict=True):
        assert line["prediction"] == [[list(m) for m in cluster] for cluster in clusters]
        for cluster, texts in zip(clusters, line["texts"], strict=True):
            assert texts == [" ".join(example.text[a:b]) for a, b in cluster]
    with pytest.raises(ValueError, match="omit --text. Received: text='words'"):
        read_inputs(path, model, "words")
    for content, message in (
        ({"sentences": []}, "must have sentences"),
        ({"sentences": [["a"], []]}, "must have sentences"),
        ({"sentences": ["a"]}, "sentences"),
        ({"text": "a"}, "sentences"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=f"in.jsonl:1: .*{message}"):
            read_inputs(path, model)
    (tmp_path / "in.csv").write_text("text\na\n")
    with pytest.raises(ValueError, match="reads .jsonl with lists of words.*Received: in.csv"):
        read_inputs(tmp_path / "in.csv", model)
    (tmp_path / "in.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="must hold a document"):
        read_inputs(tmp_path / "in.txt", model)


def test_unsuitable_settings_and_examples_are_refused():
    with pytest.raises(ValueError, match=r"labels of a `CoreferenceResolver` must be"):
        model_of(labels=["a", "b"])
    with pytest.raises(ValueError, match="at most the encoder's 12 positions"):
        model_of(max_length=13)
    model = model_of()
    for call in (
        lambda: model.predict([["a", "b"]]),
        lambda: model.batches([Example(["a"], ["O"])]),
    ):
        with pytest.raises(ValueError, match="Coreference needs the sentences of a document"):
            call()
    with pytest.raises(TypeError, match="`predict` needs a list"):
        model.predict(documents(1)[0])
    (one,) = documents(1)
    crowded = Example(["a", "b", "c"], [[(0, 1), (1, 2), (2, 3)]], sentences=[3])
    with pytest.warns(UserWarning, match="1 of 1 documents have more mentions than kept spans, 80"):
        model.batches([crowded])
    with pytest.raises(ValueError, match="Either all documents must have clusters, or none"):
        model.batches([one, Example(["a"], sentences=[1])])
    gpt = GPT(len(TOKENIZER), 1, 2, 8, 16, max_sequence_length=12)
    with pytest.raises(ValueError, match="reads texts, not documents in windows"):
        WithLanguageModel(CoreferenceResolver(gpt, tokenizer=TOKENIZER))
    for method in (FineTune(epochs=1), FeatureBased(epochs=1)):
        with pytest.raises(ValueError, match="Documents are long: set `batch_size`.*: .*32"):
            method.fit(encoder(), CoreferenceResolver, TOKENIZER, [one])


@pytest.mark.backend_neutral
class TestReader:
    def write(self, path, **changes):
        row = {"doc": "d", "sentences": [["Ada", "sings"], ["She", "smiles"]],
               "clusters": [[[0, 0, 1], [1, 0, 1]]], "singletons": [[1, 0, 2]]}  # fmt: skip
        path.write_text("\n" + json.dumps(row | changes) + "\n")
        return path

    def test_a_document_occurs_once(self, tmp_path):
        path = self.write(tmp_path / "a.jsonl")
        path.write_text(path.read_text() * 2)
        with pytest.raises(ValueError, match="a.jsonl:4: .*once. Received: 'd', also at .*:2"):
            read_coreference(path)

    def test_examples_have_clusters_and_sentences(self, tmp_path):
        (example,) = read_coreference(self.write(tmp_path / "a.jsonl"))
        assert example.text == ["Ada", "sings", "She", "smiles"]
        assert example.label == [[(0, 1), (2, 3)], [(2, 4)]]
        assert (example.sentences, example.group, example.id) == ([2, 2], "d", "d")
        assert example.where.endswith("a.jsonl:2")

    @pytest.mark.parametrize(
        "changes, message",
        [
            ({"sentences": []}, "must have sentences, each with words"),
            ({"sentences": [["a"], []]}, r"sentences of \[1, 0\] words"),
            ({"singletons": [[0, 0, 1]]}, r"once. Received: \[0, 0, 1\] twice, 'Ada'"),
            ({"sentences": [["a", "b"], ["c", " "]]}, r"not be empty. Received: sentence 1, \['c'"),
            ({"singletons": [[0, 1, 3]]}, "part of a sentence.*sentence 0 of 2 words"),
            ({"singletons": [[0, 1, 1]]}, "part of a sentence"),
            ({"singletons": [[2, 0, 1]]}, "sentence 2 of 2 sentences"),
            ({"singletons": [[0, 1]]}, r"must be \[sentence, start, end\]"),
            ({"singletons": [[0, 0, True]]}, r"must be \[sentence, start, end\]"),
            ({"clusters": [[]]}, "A cluster must have a mention"),
            ({"clusters": None}, "clusters"),
        ],
    )
    def test_invalid_lines_are_refused(self, changes, message, tmp_path):
        with pytest.raises(ValueError, match=f"a.jsonl:2: .*{message}"):
            read_coreference(self.write(tmp_path / "a.jsonl", **changes))

    def test_an_empty_file_is_refused(self, tmp_path):
        (tmp_path / "a.jsonl").write_text("\n")
        with pytest.raises(ValueError, match="a.jsonl"):
            read_coreference(tmp_path / "a.jsonl")

    def test_real_data(self, data):
        folder = data("litbank").parent
        sizes = {}
        for split in ("train", "dev", "test"):
            examples = TASKS["litbank"].read(folder, split)
            mentions = sum(len(cluster) for e in examples for cluster in e.label)
            sizes[split] = len(examples), sum(len(e.text) for e in examples), mentions
        assert sizes["dev"][:2] == (10, 20438) and sizes["test"][:2] == (10, 20638)
        assert sizes["train"][:2] == (80, 169456)
        assert sum(count for *_, count in sizes.values()) == 29103


@pytest.mark.backend_neutral
def test_impossible_documents_are_refused():
    words = ["a", "b", "c"]
    for changes, message in (
        ({"sentences": [1, 1]}, r"number of words of each of its sentences.*\[1, 1\] of 3 words"),
        ({"sentences": [3, 0]}, "number of words of each"),
        ({"text": "a b c"}, "the text 'a b c'"),
        ({"label": [[(0, 3)]]}, r"must be in one sentence.*\(0, 3\), from sentence 0 to 1"),
        ({"label": [[(1, 1)]]}, r"must have words of.*index after.*\(1, 1\)"),
        ({"sentences": 3}, r"number of words of each of its sentences.*sentences=3"),
        ({"label": [[(2, 4)]]}, "of 3 words"),
        ({"label": [[(0, 1)], [(0, 1)]]}, "in one cluster, once"),
        ({"label": [[]]}, "must have a mention"),
        ({"label": [[(0, 1.0)]]}, r"list of clusters, each a list of mentions"),
        ({"label": [(0, 1)]}, r"list of clusters, each.*0 as a mention"),
        ({"label": [[(0, 1)]], "sentences": None}, "Clusters of mentions need `sentences`"),
        ({"label": ["O", "O", "O"]}, "a cluster"),
    ):
        fields = {"text": words, "label": [], "sentences": [1, 2], **changes}
        with pytest.raises((ValueError, TypeError), match=f"f:1: .*{message}"):
            Example(**fields, where="f:1")


@pytest.mark.backend_neutral
@pytest.mark.full
def test_run_trains_on_one_document_per_step(tmp_path, capsys):
    """Frozen features and fine-tuning through the command, on files in LitBank's format."""
    for split, count in (("train", 4), ("dev", 2), ("test", 3)):
        rows = []
        for i, example in enumerate(documents(count, seed=len(split))):
            ends = np.cumsum([0, *example.sentences])
            sentences = [example.text[a:b] for a, b in zip(ends, ends[1:], strict=False)]
            mentions = [[[a // 3, a % 3, a % 3 + 1] for a, _ in c] for c in example.label]
            rows.append({"doc": f"{split}{i}", "sentences": sentences, "clusters": mentions,
                         "singletons": []})  # fmt: skip
        (tmp_path / "litbank").mkdir(exist_ok=True)
        path = tmp_path / "litbank" / f"{split}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    keras_plm.save(tmp_path / "bert", encoder(), TOKENIZER)
    flags = ["run", "--task", "litbank", "--data", str(tmp_path), *FAST, "--seeds", "1"]
    flags += common(str(tmp_path / "bert"), tmp_path)
    for method in (["features", "--layers", "mix"], ["fine_tune"]):
        assert main([*flags, "--method", *method]) == 0
    out = capsys.readouterr().out
    assert "litbank: 48, 24, 36 words; 16, 8, 12 mentions" in out
    assert "0, 0, 0 mentions of more than 10 words" in out
    records = [json.loads(path.read_text()) for path in result_files(tmp_path)]
    assert [record["settings"]["batch_size"] for record in records] == [1, 1]
    for record in records:
        assert set(record["metrics"]) == {"coreference_f1", "without_singletons", "lea"}
        assert record["score"] == record["metrics"]["coreference_f1"]
