"""Checkpoints of encoders and their tokenizers: our own folders, and released formats."""

from keras_plm.checkpoints.bert import load_bert, save_bert
from keras_plm.checkpoints.elmo import load_elmo, save_elmo
from keras_plm.checkpoints.gpt import load_gpt, save_gpt
from keras_plm.checkpoints.keras_hub import HubEncoder, from_hub, load_hub
from keras_plm.checkpoints.keras_hub_tokenizer import HubTokenizer
from keras_plm.checkpoints.native import average_weights, load, load_tokenizer, save
from keras_plm.checkpoints.saved_model import export

__all__ = [
    "HubEncoder",
    "HubTokenizer",
    "average_weights",
    "export",
    "from_hub",
    "load",
    "load_bert",
    "load_elmo",
    "load_gpt",
    "load_hub",
    "load_tokenizer",
    "save",
    "save_bert",
    "save_elmo",
    "save_gpt",
]
