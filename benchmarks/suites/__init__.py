"""Each published comparison as a list of runs: `python -m benchmarks suite NAME`."""

import dataclasses
import typing

from benchmarks.suites import (
    bert_ablations,
    bert_tasks,
    elmo_domain_adaptation,
    elmo_features,
    elmo_neighbours,
    elmo_probes,
    features_or_fine_tuning,
    gpt_ablations,
    gpt_samples,
    gpt_zero_shot,
    language_models,
    translation_report,
    word_vectors,
)
from benchmarks.suites.language_models import Counts, Neural
from benchmarks.suites.step_time import Copying, StepTimes, measure
from benchmarks.suites.translation import Translation, TranslationRunner
from keras_plm.experiments.pretraining.word_vectors import MAKERS, Vectors
from keras_plm.experiments.results import suite_folder


@dataclasses.dataclass(frozen=True)
class Suite:
    """A published comparison. Each scale but "small" has its own folder of results.

    Args:
        markdown: `markdown(results)`, the tables of its result files.
        figures: `figures(results)`, a dict of pictures by name.
        scales: Lists of runs by scale: "small" for two cores in hours, "long" for a GPU or a day,
            "test" for seconds.
        source: The tables and figures that it follows.
        jobs: `jobs(runs, workspace, **flags)` lists its `Job`s, of a suite that is made of them.
        run: `run(runs, data, results, seeds, progress, **flags)` does what is not done yet, of
            another suite.
        home: The folder of results, where suites share one; by default the suite's own.
        flags: Names of the flags of the command `run` that it takes.
    """

    markdown: typing.Callable
    figures: typing.Callable
    scales: dict
    source: str
    jobs: typing.Callable | None = None
    run: typing.Callable | None = None
    home: str = ""
    flags: tuple = ()


def folder(results, suite, scale=None):
    """Where a suite's results at a scale are."""
    home = SUITES[suite].home if suite in SUITES else ""
    return suite_folder(results, home or suite, scale)


def _run_seq2seq(runs, data, results, seeds, progress):
    runner = TranslationRunner(data, results, progress=progress)
    for seed in range(seeds):
        for settings in runs:
            if isinstance(settings, Translation):
                runner.run(settings, seed)
    for settings in runs:
        if not isinstance(settings, Translation):
            measure(settings, results, progress)


_TEST = {"vocabulary_size": 400, "embedding_dim": 16, "hidden_dim": 16, "num_layers": 1,
         "num_heads": 2, "epochs": 1, "limit": 40, "beams": 2}  # fmt: skip

# With attention and without, and the Transformer, before the other scores.
_MODELS = ("additive", "none", "transformer", "dot", "scaled_dot", "bilinear", "cosine")

_VECTORS = [
    (kind, by)
    for kind in ("skip_gram", "cbow", "fasttext", "glove", "skip_gram_hs", "cbow_hs")
    for by in MAKERS
    if (kind, by) != ("glove", "gensim")
]

_GPT = {"home": gpt_ablations.HOME, "flags": ("encoder", "features", "feature_gb")}
_ELMO = {"home": elmo_features.HOME, "flags": ("encoder", "words", "features", "feature_gb")}

SUITES = {
    "seq2seq": Suite(
        translation_report.markdown,
        translation_report.figures,
        {
            "small": [*(Translation(model) for model in _MODELS), StepTimes(), Copying()],
            "long": [Translation(model, epochs=30) for model in ("transformer", "additive")],
            "test": [
                *(Translation(model, **_TEST) for model in ("additive", "none", "transformer")),
                StepTimes(width=16, vocabulary_size=20, lengths=(4, 8), tokens=16, turns=1),
                Copying(width=16, symbols=3, lengths=(2, 4), steps=3, tokens=20, seeds=1, test=5),
            ],
        },
        "Bahdanau et al. 2015, table 1 and figure 2; Vaswani et al. 2017, tables 1 and 2",
        run=_run_seq2seq,
    ),
    "word_vectors": Suite(
        word_vectors.markdown,
        lambda results: {},
        {
            "small": [
                *(Vectors(kind, by, limit=10_000_000) for kind, by in _VECTORS),
                # gensim's own rates are for many passes.
                *(
                    Vectors(kind, "gensim", rate=0.1, limit=10_000_000)
                    for kind in ("skip_gram", "cbow", "fasttext")
                ),
            ],
            "long": [Vectors(kind, by) for kind, by in _VECTORS],
            "test": [
                Vectors(kind, by, dim=8, epochs=1, limit=20_000)
                for kind, by in (("skip_gram", "keras_plm"), ("glove", "keras_plm"))
            ],
        },
        "Mikolov et al. 2013, arXiv 1301.3781; Pennington et al. 2014; Bojanowski et al. 2017",
        run=word_vectors.run_vectors,
    ),
    "language_models": Suite(
        language_models.markdown,
        lambda results: {},
        {
            "small": [
                *(Counts("mle", order) for order in (1, 2)),
                *(Counts("add_k", order) for order in (2, 3)),
                *(Counts("interpolation", order) for order in (2, 3)),
                *(Counts("kneser_ney", order) for order in (2, 3, 4, 5)),
                Neural(),
            ],
            "test": [
                *(Counts(kind, 2, limit=5000) for kind in ("add_k", "interpolation")),
                Neural(3, 4, 5, epochs=1, batch_size=256, limit=2000),
            ],
        },
        "Bengio et al. 2003, tables 1 and 2; Chen and Goodman 1998",
        run=language_models.run_models,
    ),
    "elmo_layers": Suite(
        elmo_features.layers_markdown,
        elmo_features.layers_figures,
        elmo_features.scales(elmo_features.LAYERS),
        "Peters et al. 2018, table 2",
        jobs=elmo_features.jobs_of,
        **_ELMO,
    ),
    "elmo_placement": Suite(
        elmo_features.placement_markdown,
        elmo_features.placement_figures,
        elmo_features.scales(elmo_features.PLACES),
        "Peters et al. 2018, table 3 and figure 2",
        jobs=elmo_features.jobs_of,
        **_ELMO,
    ),
    "sample_efficiency": Suite(
        elmo_features.efficiency_markdown,
        elmo_features.efficiency_figures,
        elmo_features.scales(elmo_features.EFFICIENCY, tuple(elmo_features.SHARES)),
        "Peters et al. 2018, figure 1",
        jobs=elmo_features.jobs_of,
        **_ELMO,
    ),
    "elmo_domain_adaptation": Suite(
        elmo_domain_adaptation.markdown,
        lambda results: {},
        elmo_domain_adaptation.scales(),
        "Peters et al. 2018, table 7",
        jobs=elmo_domain_adaptation.jobs_of,
        **_ELMO,
    ),
    "elmo_neighbours": Suite(
        elmo_neighbours.markdown,
        lambda results: {},
        elmo_neighbours.SCALES,
        "Peters et al. 2018, table 4",
        run=elmo_neighbours.run_neighbours,
        **_ELMO,
    ),
    "elmo_intrinsic": Suite(
        elmo_probes.markdown,
        lambda results: {},
        elmo_probes.SCALES,
        "Peters et al. 2018, tables 5 and 6",
        run=elmo_probes.run_intrinsic,
        home=elmo_features.HOME,
        flags=(*_ELMO["flags"], "task_file", "text", "label"),
    ),
    "gpt_ablation": Suite(
        gpt_ablations.ablation_markdown,
        gpt_ablations.ablation_figures,
        gpt_ablations.scales(gpt_ablations.ABLATION, more=gpt_ablations.SIZES),
        "Radford et al. 2018, table 5",
        jobs=gpt_ablations.jobs_of,
        **_GPT,
    ),
    "gpt_layers_transferred": Suite(
        gpt_ablations.layers_markdown,
        gpt_ablations.layers_figures,
        gpt_ablations.scales(gpt_ablations.DEPTHS, gpt_ablations.LAYERS_READ),
        "Radford et al. 2018, figure 2, left",
        jobs=gpt_ablations.jobs_of,
        **_GPT,
    ),
    "gpt_zero_shot": Suite(
        gpt_zero_shot.markdown,
        gpt_zero_shot.figures,
        {
            "small": gpt_zero_shot.ZeroShot(),
            "test": gpt_zero_shot.ZeroShot(threshold_from=20, limit=20, questions=3, tiny=True),
        },
        "Radford et al. 2018, figure 2, right",
        run=gpt_zero_shot.run_zero_shot,
        **_GPT,
    ),
    "gpt_samples": Suite(
        gpt_samples.markdown,
        lambda results: {},
        {"small": gpt_samples.Samples(), "test": gpt_samples.Samples(("a", "a cat"), 5, tiny=True)},
        "what a small GPT writes",
        run=gpt_samples.run_samples,
        **_GPT,
    ),
    "bert_tasks": Suite(
        bert_tasks.markdown,
        lambda results: {},
        bert_tasks.SCALES,
        "Turc et al. 2019; Devlin et al. 2018, sections 4.1 to 4.3",
        jobs=bert_tasks.jobs_of,
        flags=_GPT["flags"],
    ),
    "features_or_fine_tuning": Suite(
        features_or_fine_tuning.markdown,
        features_or_fine_tuning.figures,
        features_or_fine_tuning.SCALES,
        "Peters, Ruder and Smith 2019; Devlin et al. 2018, section 5.3; Peters et al. 2018",
        jobs=features_or_fine_tuning.jobs_of,
        flags=_GPT["flags"],
    ),
    **{
        name: Suite(
            bert_ablations.markdown(name),
            bert_ablations.figures(name),
            bert_ablations.scales(name),
            source,
            jobs=bert_ablations.jobs_of,
            home=bert_ablations.HOME,
            flags=("features", "feature_gb"),
        )
        for name, source in {
            "bert_objectives": "Devlin et al. 2018, table 5",
            "bert_masking": "Devlin et al. 2018, table 8",
            "bert_size": "Devlin et al. 2018, table 6",
            "bert_steps": "Devlin et al. 2018, figure 5",
        }.items()
    },
}
