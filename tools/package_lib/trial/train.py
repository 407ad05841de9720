"""Fits one number on each worker, with the standard library alone."""
import array
import sys

import prd


weights, gradients = array.array("f", [0.0] * 10), array.array("f", [0.0] * 10)


def apply():
    for i, slope in enumerate(gradients):
        weights[i] -= 0.1 * slope


with prd.Session() as session:
    session.attach(weights, gradients, apply)
    for _ in range(60):
        for i, weight in enumerate(weights):
            gradients[i] = weight - (i + session.rank)  # on average: i + (workers - 1) / 2
        session.step(samples=1)
    session.finish()
    wanted = [i + (session.workers - 1) / 2 for i in range(10)]
    worst = max(abs(weight - want) for weight, want in zip(weights, wanted))
    print(f"{prd.__version__} {session.engine}: rank {session.rank} of {session.workers}, error {worst:.3f}")
    sys.exit(worst > 0.1)
