"""Corpora of raw text: their files, source and licence."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A corpus of raw text.

    Attributes:
        name: Name of the corpus.
        files: `{split: file}`, paths in the data folder.
        source: Place of publication.
        licence: Licence of the corpus.
    """

    name: str
    files: dict
    source: str
    licence: str


BOOKS = Corpus(
    "books",
    {f"part {i}": f"books/train-{i}.txt" for i in range(4)},
    "github.com/mlschmitt/classic-books-markdown",
    "public domain",
)
WIKITEXT2 = Corpus(
    "wikitext2",
    {split: f"wikitext-2/wiki.{split}.tokens" for split in ("train", "valid", "test")},
    "Merity et al. 2016, arXiv 1609.07843",
    "CC BY-SA 3.0",
)
MULTI30K = Corpus(
    "multi30k_en_de",
    {
        f"{split}, {language}": f"multi30k/{file}.{language}"
        for split, file in {"train": "train", "dev": "val", "test": "test2016"}.items()
        for language in ("en", "de")
    },
    "github.com/multi30k/dataset",
    "captions of Flickr30k, free for research",
)
CORPORA = {corpus.name: corpus for corpus in (MULTI30K, WIKITEXT2, BOOKS)}
