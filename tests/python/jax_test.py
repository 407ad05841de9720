#!/usr/bin/env python3
"""prd.jax with a real daemon, workers as threads. Usage: jax_test.py BIN_DIR [TEST ...]"""
import place
import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy
import optax

import prd
import prd.jax

WORKERS, STEPS = 3, 60
OVERLAPS = {"p-reduce": "group_size = 2\noverlap = true", "ad-psgd": "overlap = true"}


def make_params(seed=0, dtype=jnp.float32):
    key = jax.random.key(seed)
    return {"layer": [jax.random.normal(key, (6, 1), dtype), jnp.zeros(1, dtype)]}


@jax.jit
def loss_of(params, x):
    w, b = params["layer"]
    return jnp.mean((x.astype(w.dtype) @ w + b - x.sum(-1, keepdims=True)).astype(jnp.float32) ** 2)


compute = jax.jit(jax.value_and_grad(loss_of))


def draw(rank, steps):
    return jax.random.normal(jax.random.key(100 + rank), (steps, 8, 6))


def attach(c, rank, params, optimizer, **options):
    return prd.jax.attach(params, optimizer, session=prd.Session(controller=c.endpoint, job="toy", rank=rank, timeout=60), **options)


def train(worker, batches):
    losses = []
    for x in batches:
        loss, gradients = compute(worker.params, x)
        worker.step(gradients, samples=len(x))
        losses.append(float(loss))
    return losses


def bits(tree):
    return [numpy.asarray(leaf).tobytes() for leaf in jax.tree_util.tree_leaves(tree)]


class Jax(unittest.TestCase):
    def test_every_engine_trains_and_all_end_equal(self):
        for engine, options in [*place.ENGINES.items(), *OVERLAPS.items()]:
            with self.subTest(engine=engine, options=options), place.Cluster(place.job(engine, WORKERS, "", options)) as c:
                def body(rank):
                    worker = attach(c, rank, make_params(rank), optax.sgd(0.02, momentum=0.9))
                    self.assertEqual(bits(worker.params), bits(make_params(0)))  # the lowest rank's
                    losses = train(worker, draw(rank, STEPS))
                    worker.finish()
                    return losses, worker

                ends = place.in_threads(WORKERS, body)
                for losses, worker in ends:
                    self.assertLess(sum(losses[-5:]), 0.5 * sum(losses[:5]), losses)
                    self.assertEqual(bits(worker.params), bits(ends[0][1].params))

    def test_all_reduce_is_one_process_with_the_mean_gradient(self):
        """To rounding: of the workers' gradients, not of their losses. The optimizer's state goes on with it."""
        batches = [draw(rank, 20) for rank in range(2)]
        optimizer = optax.adam(0.03)
        params = make_params()
        state = optimizer.init(params)
        for step in range(20):
            both = [compute(params, batches[rank][step])[1] for rank in range(2)]
            updates, state = optimizer.update(jax.tree_util.tree_map(lambda a, b: (a + b) / 2, *both), state, params)
            params = optax.apply_updates(params, updates)
        with place.Cluster(place.job("all-reduce", 2)) as c:
            def body(rank):
                with attach(c, rank, make_params(), optimizer) as worker:
                    train(worker, batches[rank])
                return worker

            for worker in place.in_threads(2, body):
                for ours, theirs in zip(jax.tree_util.tree_leaves((worker.params, worker.state)), jax.tree_util.tree_leaves((params, state))):
                    numpy.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)

    def test_params_that_were_read_stay_as_they_were(self):
        """JAX's arrays never change, though prd writes the memory that they were made of."""
        with place.Cluster(place.job("p-reduce", 2)) as c:
            def body(rank):
                with attach(c, rank, make_params(), optax.sgd(0.05)) as worker:
                    seen = []
                    for x in draw(rank, 20):
                        seen.append((worker.params, bits(worker.params)))
                        train(worker, [x])
                self.assertEqual([bits(params) for params, _ in seen], [then for _, then in seen])
                self.assertGreater(len({then[0] for _, then in seen}), 10)

            place.in_threads(2, body)

    def one_joins_another(self, optimizer, check):
        """check() sees the worker that joins a job of one that trains. Both end equal."""
        joined, left = threading.Event(), threading.Event()
        with place.Cluster(place.job("all-reduce", 1)) as c:
            def body(rank):
                if rank == 1:
                    joined.wait()
                with attach(c, rank, make_params(rank), optimizer) as worker:
                    if rank == 0:
                        train(worker, draw(0, 5))
                        joined.set()
                        while not left.is_set():
                            train(worker, draw(0, 1))
                    else:
                        check(worker)
                        train(worker, draw(1, 3))
                        left.set()
                return worker

            first, second = place.in_threads(2, body)
            self.assertEqual(bits(first.params), bits(second.params))

    def test_who_joins_later_gets_params_and_state(self):
        """So equal replicas stay equal, and Adam counts on."""
        self.one_joins_another(optax.adam(0.03), lambda worker: self.assertGreaterEqual(int(worker.state[0].count), 5))

    def test_other_dtypes_and_wrong_trees(self):
        with place.Cluster(place.job("all-reduce", 1)) as c:
            with self.assertRaisesRegex(prd.InvalidArgument, r"\['layer'\].*int32, allowed are float32"):
                attach(c, 0, {"layer": jnp.zeros(2, jnp.int32)}, optax.sgd(0.1))
            with self.assertRaisesRegex(prd.InvalidArgument, "found a float"):
                attach(c, 0, {"layer": 1.0}, optax.sgd(0.1))
            with attach(c, 0, make_params(dtype=jnp.bfloat16), optax.sgd(0.05, momentum=0.9)) as worker:
                losses = train(worker, draw(0, 40))
                self.assertLess(losses[-1], 0.5 * losses[0])
                self.assertEqual({str(leaf.dtype) for leaf in jax.tree_util.tree_leaves(worker.params)}, {"bfloat16"})
                with self.assertRaisesRegex(prd.InvalidArgument, "needed is the tree of params"):
                    worker.step({"other": jnp.zeros(1)})
                with self.assertRaisesRegex(prd.InvalidArgument, r"gradients\['layer'\]\[0\]: found the shape \(\), needed is that of the parameter, \(6, 1\)"):
                    worker.step({"layer": [jnp.zeros(()), jnp.zeros(1)]})
                mean = worker.average()
                self.assertEqual(bits(mean), bits(worker.params))
        with place.Cluster(place.job("all-reduce", 1, 'on_nonfinite = "stop"')) as c:
            worker = attach(c, 0, make_params(), optax.sgd(0.05))
            with self.assertRaisesRegex(prd.Error, r"\(\['layer'\]\[1\]\) has a value that is not finite"):
                worker.step({"layer": [jnp.zeros((6, 1)), jnp.full(1, jnp.nan)]})

    def test_any_state_goes_with_the_replica_and_other_updates_are_refused(self):
        """Random keys, flags and a few whole numbers, too."""
        # The gradients' noise is from a key in the state, so workers stay equal only if that has gone with the model.
        optimizer = optax.apply_if_finite(optax.chain(optax.add_noise(0.1, 0.5, 3), optax.sgd(0.03)), 2)
        with place.Cluster(place.job("all-reduce", 1)) as c:
            for refused, found in ((optax.lbfgs(), "missing .* required keyword"),
                                   (optax.GradientTransformation(lambda params: (), lambda g, s, p: (g, (jnp.zeros(2),))), "kind of the state: 0 arrays become 1")):
                with self.assertRaisesRegex(prd.InvalidArgument, found):
                    attach(c, 0, make_params(), refused)

        def check(worker):
            key = jax.random.key_data(worker.state.inner_state[0].rng_key)
            self.assertNotEqual(bits(key), bits(jax.random.key_data(optimizer.init(make_params()).inner_state[0].rng_key)))
            self.assertTrue(bool(worker.state.last_finite))

        self.one_joins_another(optimizer, check)

    def test_params_are_those_of_a_call_that_was_interrupted_once_it_has_ended(self):
        with place.Cluster(place.job("p-reduce", 2, "", "group_size = 2")) as c:
            go_on = threading.Semaphore(0)

            def interrupted(worker, call):
                def interrupt():
                    while not worker.session.in_call:
                        time.sleep(0.001)
                    os.kill(os.getpid(), signal.SIGINT)

                thread = threading.Thread(target=interrupt)
                thread.start()
                with self.assertRaises(KeyboardInterrupt):
                    call()
                thread.join()
                self.assertTrue(worker.session.in_call)

            def other():
                worker = attach(c, 1, make_params(), optax.sgd(1))
                go_on.acquire()
                worker.step(jax.tree_util.tree_map(lambda p: p * 0 - 2, worker.params))
                go_on.acquire()
                worker.finish()
                ends.append(bits(worker.params))

            ends = []
            thread = threading.Thread(target=other)
            thread.start()
            worker = attach(c, 0, make_params(), optax.sgd(1))
            before = worker.params["layer"][1]
            interrupted(worker, lambda: worker.step(jax.tree_util.tree_map(lambda p: p * 0 - 1, worker.params)))
            go_on.release()
            worker.session.proceed()
            numpy.testing.assert_allclose(worker.params["layer"][1], before + 1.5, rtol=1e-6)
            self.assertEqual(bits(worker.average()), bits(worker.params))
            interrupted(worker, worker.finish)
            go_on.release()
            worker.finish()
            thread.join()
            self.assertEqual(ends, [bits(worker.params)])

    def test_an_attach_that_is_interrupted_leaves_the_job(self):
        with place.Cluster(place.job("all-reduce", 2)) as c:
            script = (
                "import os, signal, threading, jax.numpy as jnp, optax, prd, prd.jax\n"
                "threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
                "try:\n    prd.jax.attach({'w': jnp.zeros(1)}, optax.sgd(0.1))\n"
                "except KeyboardInterrupt as interrupt:\n    print('interrupted', flush=True)\n    kept = interrupt\n"
                "with prd.jax.attach({'w': jnp.zeros(1)}, optax.sgd(0.1)) as worker:\n    worker.step({'w': jnp.ones(1)})\n"
                "print(float(worker.params['w'][0]))\n"
            )
            first = subprocess.Popen([sys.executable, "-c", script], env=place.environment(c, 0), stdout=subprocess.PIPE, text=True)
            self.assertEqual(first.stdout.readline(), "interrupted\n")
            with attach(c, 1, {"w": jnp.zeros(1)}, optax.sgd(0.1)) as worker:
                worker.step({"w": jnp.ones(1)})
            said, _ = first.communicate(timeout=60)
            self.assertAlmostEqual(float(said), -0.1, places=6)

    def test_other_samples_than_the_share_are_said_once(self):
        with place.Cluster(place.job("all-reduce", 1, "batch = 60")) as c, contextlib.redirect_stderr(io.StringIO()) as err:
            params = make_params()
            worker = attach(c, 0, params, optax.sgd(0.1))
            for samples in (0, 60, 20, 20):
                worker.step(params, samples=samples)
            worker.finish()
        self.assertEqual(err.getvalue(), "prd: rank 0: a step was told 20 samples, and this worker's share of the job's batch is 60 now: "
                                         "session.share() says which ones to compute\n")

    def test_the_example(self):
        environment = dict(os.environ, PYTHONPATH=str(place.PACKAGE), PRD_DAEMON=str(place.BIN / "prd"))
        environment.pop("PRD_CONTROLLER", None)
        done = subprocess.run([sys.executable, "-m", "prd.run", "-n", "2", "--engine", "p-reduce", place.PACKAGE / "examples/jax_loop.py"],
                              env=environment, capture_output=True, text=True, timeout=200)
        ends = re.findall(r"loss from (\S+) to (\S+), sum (\S+)", done.stdout)
        self.assertEqual(len(ends), 2, done.stdout + done.stderr)
        self.assertEqual(ends[0][2], ends[1][2])
        for first, last, _ in ends:
            self.assertLess(float(last), 0.3 * float(first))


if __name__ == "__main__":
    unittest.main()
