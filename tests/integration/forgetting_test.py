#!/usr/bin/env python3
"""A daemon that has forgotten: its state directory is an older copy, or empty. Real processes.
Usage: forgetting_test.py BIN_DIR [TEST ...]"""
from concurrent import futures
import json
import pathlib
import shutil
import subprocess
import sys
import time
import unittest

import cluster

BIN = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/bin"
LEASE_S = 2
PROMISE_S = 2 * LEASE_S + 5


def engines():
    described = subprocess.run([f"{BIN}/prd", "--engines-json"], check=True, capture_output=True, text=True).stdout
    return [engine["name"] for engine in json.loads(described)["engines"]]


def job(engine):
    return f'[[job]]\nname = "toy"\nengine = "{engine}"\nworkers = 4\n[job.p-reduce]\ngroup_size = 2\n'


class Forgetting:
    """Four workers that train, and what happens to the state directory meanwhile."""

    def __init__(self, c):
        self.c = c
        self.state = pathlib.Path(c.dir) / "state"
        self.copy = pathlib.Path(c.dir) / "copy"
        self.workers = [c.worker(rank, steps=120, step_ms=25) for rank in range(4)]
        self.pass_step(8)

    def pass_step(self, step):
        for worker in self.workers:
            worker.wait_for(lambda line: line.get("step", -1) >= step, f"step {step}")

    def age(self):
        """The daemon is killed; what it starts with is a copy from twelve steps before."""
        shutil.copytree(self.state, self.copy)
        self.pass_step(20)
        self.c.kill_daemon()
        shutil.rmtree(self.state)
        self.copy.rename(self.state)

    def wipe(self):
        self.pass_step(20)
        self.c.kill_daemon()
        shutil.rmtree(self.state)

    def lose(self, rank):
        self.workers.pop(rank).kill()

    def go_on(self):
        """The daemon starts. Gives how long it was until every worker had made three steps more."""
        made = [len(worker.steps()) for worker in self.workers]
        self.c.start_daemon()
        since = time.monotonic()
        for worker, before in zip(self.workers, made):
            worker.wait_for(lambda line, before=before: line.get("step", -1) >= before + 2, "a step after the restart")
        return time.monotonic() - since


class Training(unittest.TestCase):
    def survive(self, name, harm):
        """harm(forgetting) is done to a job of every engine; all go on, and end as one model."""

        def one(engine):
            with cluster.Cluster(BIN, job(engine)) as c:
                forgetting = Forgetting(c)
                harm(forgetting)
                took = forgetting.go_on()
                ends = [worker.end() for worker in forgetting.workers]
                self.assertEqual(len({end["sum"] for end in ends}), 1, ends)
                c.stop_daemon()
                replay = json.loads(c.prdctl("replay", offline=True))
                self.assertEqual(replay["not_recorded"], 0, replay)
                self.assertTrue(replay["run"]["ended"], replay)
                return took

        with futures.ThreadPoolExecutor(3) as pool:
            running = [(engine, pool.submit(one, engine)) for engine in engines()]
        for engine, done in running:
            with self.subTest(engine=engine):
                print(f"{name}: {engine}: went on after {done.result():.2f} s; {PROMISE_S} s are promised")

    def test_an_old_state_is_noticed(self):
        self.survive("old state", lambda f: f.age())

    def test_an_old_state_is_noticed_by_three_of_four(self):
        def harm(f):
            f.age()
            f.lose(2)

        self.survive("old state, one worker less", harm)

    def test_a_lost_state_is_noticed_by_three_of_four(self):
        def harm(f):
            f.wipe()
            f.lose(0)  # whose replica a first start would take

        self.survive("no state, one worker less", harm)


if __name__ == "__main__":
    unittest.main(verbosity=2)
