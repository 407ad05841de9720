"""As worker.cc, in Python, with the standard library alone: worker.py NOTES STEP_MS"""
import array
import sys
import time

import prd


class Values:
    """Numbers of one array, as numpy would show them."""

    def __init__(self):
        self.numbers = array.array("f", [0.0] * 10)
        address, count = self.numbers.buffer_info()
        self.__array_interface__ = {"shape": (count,), "typestr": "<f4", "data": (address, False), "version": 3}


weights, gradients = Values(), Values()


def apply():
    for i, slope in enumerate(gradients.numbers):
        weights.numbers[i] -= 0.5 * slope


with open(sys.argv[1], "a", buffering=1, encoding="ascii") as notes, prd.Session() as session:
    session.attach(weights, gradients, apply)
    done = False
    while not done:
        time.sleep(int(sys.argv[2]) / 1000)
        for i, weight in enumerate(weights.numbers):
            gradients.numbers[i] = weight - i
        step = session.step(samples=1)
        notes.write(f"{time.time_ns()} {step.steps}\n")
        done = step.done
    session.finish()
