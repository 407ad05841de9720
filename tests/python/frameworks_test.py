#!/usr/bin/env python3
"""The recipes for frameworks over PyTorch, where these are installed. Usage: frameworks_test.py BIN_DIR [TEST ...]"""
import place
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest


class Frameworks(unittest.TestCase):
    def train(self, name, *options):
        if importlib.util.find_spec(name) is None:
            self.skipTest(f"the Python package {name} is not installed")
        with tempfile.TemporaryDirectory(prefix="prd-test-") as folder:
            environment = dict(os.environ, PYTHONPATH=str(place.PACKAGE), PRD_DAEMON=str(place.BIN / "prd"), TMPDIR=folder, OMP_NUM_THREADS="1")
            environment.pop("PRD_CONTROLLER", None)
            done = subprocess.run([sys.executable, "-m", "prd.run", "-n", "2", "--engine", "p-reduce", "--option", "group_size=2", *options,
                                   place.ROOT / f"tests/python/frameworks/with_{name}.py"], env=environment, cwd=folder, capture_output=True, text=True,
                                  timeout=240)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        weights = re.findall(r"weights \[\[(.*)\]\]", done.stdout)
        self.assertEqual((len(weights), len(set(weights))), (2, 1), done.stdout)
        self.assertLess(max(abs(float(weight) - 1) for weight in weights[0].split(",")), 0.1)

    def test_accelerate(self):
        self.train("accelerate")

    def test_lightning(self):
        self.train("lightning")

    def test_transformers(self):
        self.train("transformers", "--job-option", "goal_steps=600")


if __name__ == "__main__":
    unittest.main()
