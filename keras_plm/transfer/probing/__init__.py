"""Probes: small networks that show which layers of a frozen encoder hold some information.

`probes` trains linear heads on many choices of layers in one fit. `edge_probing` classifies spans
of words and pairs of spans.
"""
