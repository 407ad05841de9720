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


class Ray(unittest.TestCase):
    def launch(self, c, folder, cpus, *arguments):
        environment = place.environment(c, FOLDER=str(folder), RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_UV_RUN_RUNTIME_ENV="0")
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

    def test_too_few_cpus_are_named(self):
        with tempfile.TemporaryDirectory(prefix="prd-") as name, place.Cluster(place.job("p-reduce", 0)) as c:
            done = self.launch(c, pathlib.Path(name), 2, "-n", "3", "--wait", "1", "toy.py")
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("3 workers have no room: needed are 3 CPU of 2 that the cluster has", done.stderr)


if __name__ == "__main__":
    unittest.main()
