"""Published orderings from before ELMo: translation, language models, word vectors."""

import math

from benchmarks.claims.match import NATS, Arm, row

PUBLISHED = "2001-08"  # the earliest paper

BAHDANAU, VASWANI = "Bahdanau et al. 2015", "Vaswani et al. 2017"
BENGIO, MIKOLOV = "Bengio et al. 2003", "Mikolov et al. 2013, arXiv 1301.3781"
NOISE, GLOVE = "Mikolov et al. 2013, arXiv 1310.4546", "Pennington et al. 2014"
FASTTEXT = "Bojanowski et al. 2017"


def _named(name):
    """Returns a test for results of a model and a run, such as "rnn.additive"."""
    return lambda result: f"{result['encoder']}.{result.get('run')}" == name


def _bleu(label, run, scale=None, words=None, minus=None):
    """Returns an arm with the BLEU of captions.

    With `words` it is the BLEU of the sources in that bucket, minus that of the bucket `minus`.
    """

    def of_length(result):
        found = {bucket["from"]: bucket["bleu"] for bucket in result["by_length"]}
        return (found[words] - (0 if minus is None else found[minus])) / 100

    return Arm(
        label, "seq2seq", "multi30k_en_de", metric="bleu", scale=scale,
        value=None if words is None else of_length, where=_named(run),
    )  # fmt: skip


def _perplexity(label, run, mixture=None):
    def of_text(result):
        scores = result["metrics"] if mixture is None else result["mixtures"][mixture]
        return -math.log(scores["perplexity_test"])

    return Arm(label, "language_models", "wikitext2", value=of_text, where=_named(run))


def _words(label, kind, section=None, pairs="WS-353"):
    """Returns an arm of word vectors: accuracy on analogies, or agreement with human scores."""

    def score(result):
        if section is None:
            return result["metrics"][pairs]
        return result["scores"]["analogies"][section]["accuracy"]

    def of_kind(result):
        return (result["settings"]["kind"], result["settings"]["by"]) == (kind, "keras_plm")

    return Arm(label, "word_vectors", "word_vectors", value=score, where=of_kind)


def _pair(name, kinds, what, source, published, on, verified=True, note=""):
    labels = {"skip_gram": "skip-gram", "cbow": "CBOW", "skip_gram_hs": "hierarchical softmax",
              "glove": "GloVe", "fasttext": "fastText"}  # fmt: skip
    section = {"semantic": "semantic", "syntactic": "syntactic", "all": "total"}.get(what)
    title = f"{what} analogies" if section else what
    cells = [_words(f"{title}: {labels[kinds[0]]}", kinds[0], section),
             _words(labels[kinds[1]], kinds[1], section)]  # fmt: skip
    return row(name, *cells, source, published, on, verified=verified, note=note)


KN, NEURAL = "ngram5.kneser_ney", "nnlm5.hidden100"
ON_BROWN = {"source": f"{BENGIO}, table 1", "on": "Brown, perplexity", **NATS}
PASSES = "GloVe took ten passes over its pairs, the other one over the text"
FRENCH, GERMAN = "WMT 2014 English to French", "WMT 2014 English to German"

ROWS = [
    row("bahdanau-t1", _bleu("attention", "rnn.additive"), _bleu("one vector", "rnn.none"),
        f"{BAHDANAU}, table 1", (26.75, 17.82), FRENCH),
    row("bahdanau-t1-longer", _bleu("attention, 30 passes", "rnn.additive", "long"),
        _bleu("10 passes", "rnn.additive"), f"{BAHDANAU}, table 1", (28.45, 26.75), FRENCH),
    row("bahdanau-f2-long", _bleu("sources of 50 to 59 words: attention", "rnn.additive", words=50),
        _bleu("one vector", "rnn.none", words=50), f"{BAHDANAU}, figure 2", on=FRENCH),
    row("bahdanau-f2-fall",
        _bleu("change from below 10 to 50 words: attention", "rnn.additive", None, 50, 0),
        _bleu("one vector", "rnn.none", None, 50, 0), f"{BAHDANAU}, figure 2", on=FRENCH),
    row("vaswani-t2", _bleu("Transformer", "transformer.self"),
        _bleu("RNN with attention", "rnn.additive"), f"{VASWANI}, table 2", (27.3, 24.6), GERMAN),
    row("vaswani-t2-long", _bleu("Transformer, 30 passes", "transformer.self", "long"),
        _bleu("RNN with attention, 30 passes", "rnn.additive", "long"), f"{VASWANI}, table 2",
        (27.3, 24.6), GERMAN),
    row("bengio-t1-neural", _perplexity("neural model", NEURAL), _perplexity("5-grams", KN),
        published=(276, 321), **ON_BROWN),
    row("bengio-t1-mixed", _perplexity("neural model and 3-grams", NEURAL, "interpolation 3, half"),
        _perplexity("neural model", NEURAL), published=(252, 276), **ON_BROWN),
    row("bengio-t1-mixed-counts",
        _perplexity("neural model and 3-grams", NEURAL, "interpolation 3, half"),
        _perplexity("5-grams", KN), published=(252, 321), **ON_BROWN),
    row("bengio-t1-smoothing", _perplexity("3-grams, modified Kneser-Ney", "ngram3.kneser_ney"),
        _perplexity("3-grams, interpolation", "ngram3.interpolation"), published=(323, 336),
        **ON_BROWN),
    row("bengio-t1-order", _perplexity("4-grams", "ngram4.kneser_ney"),
        _perplexity("3-grams", "ngram3.kneser_ney"), published=(321, 323), **ON_BROWN),
    _pair("word2vec-t3-semantic", ("skip_gram", "cbow"), "semantic", f"{MIKOLOV}, table 3",
          (55, 24), "640 numbers a word"),
    _pair("word2vec-t3-syntactic", ("cbow", "skip_gram"), "syntactic", f"{MIKOLOV}, table 3",
          (64, 59), "640 numbers a word"),
    _pair("noise-t1", ("skip_gram", "skip_gram_hs"), "all", f"{NOISE}, table 1", (59, 47),
          "five noise words", False),
    _pair("glove-t2-skipgram", ("glove", "skip_gram"), "all", f"{GLOVE}, table 2", (71.7, 69.1),
          "6 billion words", note=PASSES),
    _pair("glove-t2-cbow", ("glove", "cbow"), "all", f"{GLOVE}, table 2", (71.7, 65.7),
          "6 billion words", note=PASSES),
    _pair("fasttext-syntactic", ("fasttext", "skip_gram"), "syntactic", f"{FASTTEXT}, analogies",
          (74.9, 70.1), "", False),
    _pair("fasttext-semantic", ("skip_gram", "fasttext"), "semantic", f"{FASTTEXT}, analogies",
          (78.5, 77.8), "", False),
    _pair("fasttext-similarity", ("skip_gram", "fasttext"), "WS-353", f"{FASTTEXT}, similarity",
          (72, 71), "", False),
]  # fmt: skip
