#!/usr/bin/env python3
"""One worker of a training without a framework: numpy alone, and prd.

    python3 -m prd.run -n 4 --engine p-reduce worker/python/examples/numpy_loop.py

Frameworks whose arrays are written in place, and have __array_interface__ or __cuda_array_interface__, are given as they are.
JAX: prd.jax.
"""
import numpy
import prd

INPUTS, BATCH, RATE, STEPS = 16, 32, 0.05, 200

truth = numpy.arange(INPUTS, dtype=numpy.float32) / INPUTS
model = numpy.zeros(INPUTS, numpy.float32)
gradient = numpy.zeros(INPUTS, numpy.float32)


def compute_gradient(random):
    """Of a batch's mean square error, which is returned."""
    inputs = random.standard_normal((BATCH, INPUTS), numpy.float32)
    error = inputs @ (model - truth)
    gradient[:] = 2 / BATCH * inputs.T @ error
    return float(numpy.square(error).mean())


def apply():
    model[:] -= RATE * gradient


with prd.Session() as session:
    session.attach(model, gradient, apply)
    random = numpy.random.default_rng(session.rank)
    first = loss = None
    while session.progress.steps < STEPS * session.workers:  # all workers' together: none waits for a slow one
        loss = compute_gradient(random)
        first = loss if first is None else first
        session.tell_loss(loss)
        session.step(samples=BATCH)
    session.finish()
    print(f"rank {session.rank}: loss from {first} to {loss}, model {float(model @ numpy.arange(INPUTS)):.6f}")
