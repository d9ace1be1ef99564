"""Tiny made-up files of the data sets of the suites."""

import json

import numpy as np

WORDS = "a cat sat on the mat and ran to two dogs".split()


class SmallData:
    """Writes files of random words below a folder; the words are the same each time."""

    def __init__(self, root):
        self.root, self.rng = root, np.random.default_rng(0)

    def text(self):
        return " ".join(self.rng.choice(WORDS, self.rng.integers(3, 7)))

    def folder(self, name):
        (self.root / name).mkdir(parents=True)
        return self.root / name

    def snli(self, **counts):
        """Writes these numbers of pairs for train, dev and test."""
        folder, labels = self.folder("snli_1.0"), ("entailment", "neutral", "contradiction")
        for split, count in counts.items():
            rows = [
                {"gold_label": labels[i % 3], "sentence1": self.text(), "sentence2": self.text(),
                 "pairID": f"{split}{i}"} for i in range(count)
            ]  # fmt: skip
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"snli_1.0_{split}.jsonl").write_text(lines)

    def wikigold(self, documents):
        tagged = [
            f"{word} {'I-PER' if word == 'cat' else 'O'}\n" if word else "\n"
            for i in range(documents)
            for word in ["-DOCSTART-", "", *self.text().split(), str(i), "", "the", "cat", str(i)]
            + [""]
        ]
        (self.folder("wikigold") / "wikigold.conll.txt").write_text("".join(tagged))

    def sst(self):
        folder = self.folder("sst/trees")
        for split in ("train", "dev", "test"):
            trees = [f"({i % 5} (2 {WORDS[i]}) (2 {WORDS[i + 1]}))" for i in range(10)]
            (folder / f"{split}.txt").write_text("\n".join(trees) + "\n")

    def rte(self, count):
        folder = self.folder("glue/RTE")
        for split in ("train", "dev"):
            rows = [
                f"{i}\t{self.text()} {i}\t{self.text()}\t{('', 'not_')[i % 2]}entailment"
                for i in range(count)
            ]
            lines = ["index\tsentence1\tsentence2\tlabel", *rows]
            (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")

    def squad(self):
        folder = self.folder("squad")
        for split, articles in (("train", 42), ("dev", 2)):
            data = []
            for i in range(articles):
                context = f"{self.text()} {i}"
                answer = {"text": str(i), "answer_start": context.index(str(i))}
                asked = {"id": f"{i}", "question": "what number?", "answers": [answer]}
                data.append({"title": str(i), "paragraphs": [{"context": context, "qas": [asked]}]})
            path = folder / f"{split}-v1.1.json"
            path.write_text(json.dumps({"version": "1.1", "data": data}))

    def roles(self):
        """Writes sentences whose first word is the argument of the second."""
        folder = self.folder("ewt_srl")
        for split in ("train", "dev", "test"):
            rows = []
            for i in range(12):
                words = self.text().split()
                arguments = [[0, 1, "ARG0"], [1, 2, "V"]]
                predicates = [{"index": 1, "arguments": arguments}]
                rows.append({"id": f"{split}{i}", "words": words, "predicates": predicates})
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{split}.jsonl").write_text(lines)

    def coreference(self):
        """Writes documents whose sentences begin with the same mention."""
        folder = self.folder("litbank")
        for split in ("train", "dev", "test"):
            rows = []
            for i in range(3):
                sentences = [["Ada", *self.text().split()] for _ in range(3)]
                clusters = [[[sentence, 0, 1] for sentence in range(3)]]
                rows.append({"doc": f"{split}{i}", "sentences": sentences, "clusters": clusters,
                             "singletons": []})  # fmt: skip
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{split}.jsonl").write_text(lines)

    def books(self, *names):
        folder = self.folder("books")
        chapters = [
            " ".join(f"{self.text().capitalize()} now and then." for _ in range(9)) for _ in "abcde"
        ]
        for name in names:
            (folder / f"{name}.txt").write_text("\n\n".join(chapters) + "\n")
