"""Weights that decay, and weights that do not."""

import keras
import pytest

from keras_plm.models import ELMo
from keras_plm.training.optimizers import BertAdamW
from tests.helpers.checks import assert_close, to_numpy
from tests.keras_plm.training.optimizers.quadratic import START, TARGET, by_formula, run

pytestmark = pytest.mark.each_backend


@pytest.mark.parametrize("name", ["bias", "gamma", "beta"])
def test_biases_and_norms_do_not_decay(name):
    optimizer = BertAdamW(0.02, weight_decay=0.1, global_clipnorm=None)
    assert_close(run(optimizer, 5, name)[5], by_formula(5, 0.02, 0.0, None, False))


@pytest.mark.parametrize("name", ["scalars", "log_temperature", "transitions", "scale", "norm/w"])
def test_scales_and_additive_scores_do_not_decay(name):
    optimizer = BertAdamW(0.02, weight_decay=0.1, global_clipnorm=None)
    variable = keras.Variable(START.astype("float32"), name=name.split("/")[-1])
    if "/" in name:
        variable._path = name
    optimizer.build([variable])
    for _ in range(5):
        gradient = 2 / 3 * (to_numpy(variable) - TARGET)
        optimizer.apply([keras.ops.convert_to_tensor(gradient.astype("float32"))], [variable])
    assert_close(variable, by_formula(5, 0.02, 0.0, None, False))


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "path, decays",
    [
        ("unbiased_head/kernel", True),
        ("my_beta_model/block_0/kernel", True),
        ("classifier_normalized/kernel", True),
        ("block_0/attention_norm/gamma", False),
        ("layer_normalization_3/scale", False),
        ("transformer_layer_0_layer_norm/beta", False),
        ("dense/bias", False),
        ("bias", False),
        ("crf/transitions", False),
    ],
)
def test_layer_names_do_not_exclude_kernels_from_decay(path, decays):
    from keras_plm.training.optimizers import NOT_DECAYED

    assert (NOT_DECAYED.search(path) is None) is decays


@pytest.mark.backend_neutral
def test_only_kernels_embeddings_and_projections_decay():
    """BERT's rule excludes biases and norms, and the biases and scales of other models."""
    from keras_plm.heads import CRFTagger, Tagger
    from keras_plm.heads.readers import BiLSTM
    from keras_plm.heads.task_network import Placement
    from keras_plm.layers import LayerChoice
    from keras_plm.models import BERT, GPT, NNLM, Seq2Seq, Transformer
    from keras_plm.pretraining import BiLM, CausalLM, MaskedLM

    size = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
    elmo = ELMo(units=6, projection_dim=4, filters=[[1, 2], [2, 3]], character_dim=2)
    mix = {"layers": LayerChoice(0, -1, "mix"), "reader": BiLSTM(4)}
    models = [
        MaskedLM(BERT(13, **size)), CausalLM(GPT(13, **size)),
        BiLM(elmo, 20, num_sampled=5, batch_size=2),
        NNLM(7), Transformer(9, 1, 2, 8),
        *(Seq2Seq(9, 4, 6, attention=name) for name in (None, "dot", "cosine", "additive")),
        CRFTagger(BERT(13, **size), ["a", "b"], **mix),
        Tagger(BERT(13, **size), ["a", "b"], reader=BiLSTM(4),
               placement=Placement(character_filters=4)),
    ]  # fmt: skip
    found = {True: set(), False: set()}
    for model in models:
        optimizer = BertAdamW()
        optimizer.build(model.trainable_variables)
        for variable in model.trainable_variables:
            found[optimizer._use_weight_decay(variable)].add(variable.name)
    kernels = ["kernel", "recurrent_kernel", "gates_kernel", "candidate_kernel", "score_kernel"]
    spelling = ["width_1_kernel", "width_2_kernel", "width_3_kernel"]
    assert found[True] == {*kernels, *spelling, "embeddings", "projection"}
    scales = {"gamma", "scalars", "log_temperature"}
    scores = {"bias", "beta", "width_1_bias", "width_2_bias", "width_3_bias"}
    assert found[False] == scales | scores | {"transitions", "starts", "ends"}
