#!/usr/bin/env python3
"""config/ray/train.py with a Ray of this host. Usage: ray_test.py BIN_DIR [TEST ...]"""
import place
import pathlib
import subprocess
import sys
import tempfile
import unittest

LAUNCHER = place.ROOT / "config/ray/train.py"
# As many CPUs as the test says, whatever this host has.
LAUNCH = "import ray, runpy, sys; init = ray.init; ray.init = lambda: init(num_cpus={cpus}, include_dashboard=False, log_to_driver=False, " \
    "_temp_dir={folder!r}); sys.argv = [sys.argv[1], *sys.argv[2:]]; runpy.run_path(sys.argv[0], run_name='__main__')"

# A cluster beside the launcher: once the worker on the second node trains, that node is drained, as Ray does before a preemption;
# once the worker has left, the node goes, and another one comes.
TWO_NODES = """
import os, pathlib, ray, subprocess, sys, time
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2
launcher, folder, script = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
(folder / "ray").mkdir()
cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=1, include_dashboard=False))
second = cluster.add_node(num_cpus=1, env_vars={"GOES": "1"})
job = subprocess.Popen([sys.executable, launcher, "-n", "2", script], env=dict(os.environ, RAY_ADDRESS=cluster.address))
def wait_for(name):
    while not (folder / name).exists():
        if job.poll() is not None:
            sys.exit("the job ended early")
        time.sleep(0.1)
wait_for("trains")
ray._raylet.GcsClient(address=cluster.address).drain_node(
    second.node_id, autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"), "", int((time.time() + 30) * 1000))
wait_for("left")
cluster.remove_node(second)
cluster.add_node(num_cpus=1)
sys.exit(job.wait())
"""
# The worker on that node trains until it is told; both train then until its second life has begun.
SLOW_STEPS = """
import numpy, os, pathlib, prd, time
folder = pathlib.Path(os.environ["FOLDER"])
values, gradients = numpy.zeros(8, numpy.float32), numpy.ones(8, numpy.float32)
def apply():
    values[:] -= 0.1 * gradients
def step():
    time.sleep(0.1)
    session.step()
with prd.Session() as session:
    session.attach(values, gradients, apply)
    if "GOES" in os.environ:
        try:
            while True:
                step()
                (folder / "trains").touch()
        except prd.Aborted:
            (folder / "left").touch()
            raise
    while not (folder / "both").exists():
        if (folder / "left").exists() and session.progress.workers == 2:
            (folder / "both").touch()  # one that has finished is not counted: so both go by what one has seen
        step()
    session.finish()
    (folder / f"finished-{session.rank}-of-{session.workers}").touch()
"""


class Ray(unittest.TestCase):
    def environment(self, c, folder):
        return place.environment(c, FOLDER=str(folder), RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_UV_RUN_RUNTIME_ENV="0")

    def launch(self, c, folder, cpus, *arguments):
        environment = self.environment(c, folder)
        return subprocess.run([sys.executable, "-c", LAUNCH.format(cpus=cpus, folder=str(folder / "ray")), LAUNCHER, *arguments],
                              env=environment, capture_output=True, text=True, timeout=200)

    def test_a_worker_that_dies_comes_back_and_the_others_go_on(self):
        """By itself, or with Ray's process, as when a node is taken away: then it leaves the job by a word of its own."""
        for process, reason in (("os.getpid()", "connection"), ("os.getppid()", "SIGTERM")):
            with self.subTest(process), tempfile.TemporaryDirectory(prefix="prd-") as name, \
                    place.Cluster(place.job("p-reduce", 0, "lease_ms = 1000\nheartbeat_ms = 200")) as c:
                folder = pathlib.Path(name)
                died = "os.kill(os.getpid(), signal.SIGKILL)"
                self.assertIn(died, place.DIES_ONCE)
                dies = died.replace("os.getpid()", process) + "\n            while True: session.step()"
                (folder / "toy.py").write_text(place.DIES_ONCE.replace(died, dies))
                done = self.launch(c, folder, 3, "-n", "3", str(folder / "toy.py"))
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(place.finished(folder), [f"{rank}-of-3" for rank in range(3)])
                left = [line for line in (c.dir / "prd.log").read_text().splitlines() if "rank 1" in line]
                self.assertTrue(any(reason in line for line in left), left)

    def test_a_worker_whose_node_is_taken_away_leaves_by_the_deadline(self):
        with tempfile.TemporaryDirectory(prefix="prd-") as name, place.Cluster(place.job("all-reduce", 0)) as c:
            folder = pathlib.Path(name)
            (folder / "slow.py").write_text(SLOW_STEPS)
            environment = dict(self.environment(c, folder), RAY_TMPDIR=str(folder / "ray"))
            done = subprocess.run([sys.executable, "-c", TWO_NODES, LAUNCHER, str(folder), str(folder / "slow.py")], env=environment,
                                  capture_output=True, text=True, timeout=400)
            self.assertEqual(done.returncode, 0, done.stderr[-3000:])
            self.assertEqual(place.finished(folder), ["0-of-2", "1-of-2"])
            log = (c.dir / "prd.log").read_text()
            self.assertEqual(log.count("Ray drains its node"), 1, log)
            self.assertNotIn("failed", log)  # no group, for it

    def test_too_few_cpus_are_named(self):
        with tempfile.TemporaryDirectory(prefix="prd-") as name, place.Cluster(place.job("p-reduce", 0)) as c:
            done = self.launch(c, pathlib.Path(name), 2, "-n", "3", "--wait", "1", "toy.py")
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("3 workers have no room: needed are 3 CPU of 2 that the cluster has", done.stderr)


if __name__ == "__main__":
    unittest.main()
