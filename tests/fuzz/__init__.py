"""A fuzzer of all readers of files: `python -m tests.fuzz --seed 1 --cases 1000`.

Each case takes a small valid input of one reader, damages one of its files and reads it. The result
must be right, or the error must name the file. `(seed, reader, case)` determines everything random,
so that each failure can be repeated.

A new reader of files needs a row in `readers/`. `test_fuzz.py` names readers without one.
"""
