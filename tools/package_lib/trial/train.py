"""Fits one number on each worker, with the standard library alone."""
import array
import ctypes
import sys

import prd


class Values:
    """Numbers of one array, as numpy would show them."""

    def __init__(self, numbers):
        self.numbers = array.array("f", numbers)
        address, count = self.numbers.buffer_info()
        self.__array_interface__ = {"shape": (count,), "typestr": "<f4", "data": (address, False), "version": 3}


weights, gradients = Values([0.0] * 10), Values([0.0] * 10)


def apply():
    for i, slope in enumerate(gradients.numbers):
        weights.numbers[i] -= 0.1 * slope


with prd.Session() as session:
    session.attach(weights, gradients, apply)
    for _ in range(60):
        for i, weight in enumerate(weights.numbers):
            gradients.numbers[i] = weight - (i + session.rank)  # on average: i + (workers - 1) / 2
        session.step(samples=1)
    session.finish()
    wanted = [i + (session.workers - 1) / 2 for i in range(10)]
    worst = max(abs(weight - want) for weight, want in zip(weights.numbers, wanted))
    print(f"{prd.__version__} {session.engine}: rank {session.rank} of {session.workers}, error {worst:.3f}")
    sys.exit(worst > 0.1)
