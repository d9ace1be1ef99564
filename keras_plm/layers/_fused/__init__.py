"""The fastest form of each operation on each backend. The layers call these functions.

Here code may ask for the backend. `Dense`, `LayerNormalization` and `Dropout` hold the weights or
seeds of pure functions of arrays: `dense`, `layer_norm` and `dropout`. `transformer_block` calls
these functions with the arrays of its layers.
"""
