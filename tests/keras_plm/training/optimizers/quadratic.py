"""A small problem for optimizers, and BERT's AdamW on it by its formula."""

import keras
import numpy as np

from tests.helpers.checks import to_numpy

START, TARGET = np.array([0.1, -0.2, -0.1]), np.array([0.4, 0.2, -0.5])


def run(optimizer, steps, name="weight"):
    variable = keras.Variable(START.astype("float32"), name=name)
    seen = {}
    for step in range(1, steps + 1):
        gradient = 2 / 3 * (to_numpy(variable) - TARGET)
        optimizer.apply([keras.ops.convert_to_tensor(gradient.astype("float32"))], [variable])
        seen[step] = to_numpy(variable).copy()
    return seen


def by_formula(steps, rate, decay, clip, correct, weight=START):
    weight, mean, square = weight.astype(float), np.zeros(3), np.zeros(3)
    for step in range(1, steps + 1):
        gradient = 2 / 3 * (weight - TARGET)
        if clip is not None:
            gradient = gradient * min(1.0, clip / np.sqrt((gradient**2).sum()))
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        m = mean / (1 - 0.9**step) if correct else mean
        v = square / (1 - 0.999**step) if correct else square
        weight = weight - rate * (m / (np.sqrt(v) + 1e-6) + decay * weight)
    return weight
