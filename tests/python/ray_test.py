#!/usr/bin/env python3
"""config/ray/train.py with a stand-in for Ray, which Debian does not have. Usage: ray_test.py BIN_DIR [TEST ...]"""
import place
import os
import pathlib
import subprocess
import tempfile
import unittest

# The calls that the launcher makes, as Ray documents them.
RAY = """
from concurrent import futures

pool = futures.ThreadPoolExecutor(16)

def init():
    pass

def remote(num_cpus, max_retries, retry_exceptions):
    assert num_cpus == 1 and retry_exceptions is True
    def decorate(function):
        def tries(*arguments):
            for left in range(max_retries, -1, -1):
                try:
                    return function(*arguments)
                except Exception:
                    if left == 0:
                        raise
        class Remote:
            remote = staticmethod(lambda *arguments: pool.submit(tries, *arguments))
        return Remote
    return decorate

def wait(tasks, num_returns):
    done, rest = futures.wait(tasks, return_when=futures.FIRST_COMPLETED)
    return [*done][:num_returns], [*done][num_returns:] + [*rest]

def get(task):
    return task.result()
"""


class Ray(unittest.TestCase):
    def test_a_task_that_fails_is_tried_again_and_the_others_go_on(self):
        job = place.job("p-reduce", 0, "lease_ms = 1000\nheartbeat_ms = 200")
        with tempfile.TemporaryDirectory(prefix="prd-test-") as name, place.Cluster(job) as c:
            folder = pathlib.Path(name)
            (folder / "ray.py").write_text(RAY)
            (folder / "toy.py").write_text(place.DIES_ONCE)
            environment = place.environment(c, FOLDER=name)
            environment["PYTHONPATH"] += f":{name}"
            done = subprocess.run(["/usr/bin/python3", place.ROOT / "config/ray/train.py", "-n", "3", folder / "toy.py"], env=environment,
                                  capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(place.finished(folder), [f"{rank}-of-3" for rank in range(3)])


if __name__ == "__main__":
    unittest.main()
