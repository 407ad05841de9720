#!/usr/bin/env python3
"""One worker of a training with JAX and optax.

    python3 -m prd.run -n 4 --engine p-reduce worker/python/examples/jax_loop.py
"""
import jax
import jax.numpy as jnp
import optax

import prd.jax

STEPS, BATCH = 150, 32


def predict(params, x):
    return jnp.tanh(x @ params["first"]["w"] + params["first"]["b"]) @ params["last"]["w"]


@jax.jit
@jax.value_and_grad
def compute(params, x):
    return jnp.mean((predict(params, x) - jnp.sum(x, -1, keepdims=True)) ** 2)


first, last, data = jax.random.split(jax.random.key(1), 3)
params = {"first": {"w": jax.random.normal(first, (8, 32)) / 3, "b": jnp.zeros(32)}, "last": {"w": jax.random.normal(last, (32, 1)) / 6}}
worker = prd.jax.attach(params, optax.adamw(0.01))
data = worker.key(data)                               # this worker's own order
losses = []
for _ in worker.steps(STEPS):                         # all workers' together: none waits for a slow one
    data, key = jax.random.split(data)
    loss, gradients = compute(worker.params, jax.random.normal(key, (BATCH, 8)))
    worker.step(gradients, samples=BATCH)
    losses.append(float(loss))
worker.finish()
print(f"rank {worker.rank}: loss from {losses[0]:.4f} to {losses[-1]:.4f}, sum {float(sum(jnp.sum(leaf) for leaf in jax.tree_util.tree_leaves(worker.params))):.6f}")
