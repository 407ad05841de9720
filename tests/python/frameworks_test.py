#!/usr/bin/env python3
"""Frameworks over PyTorch: the examples, and jobs that are saved, resumed and stopped. Usage: frameworks_test.py BIN_DIR [TEST ...]"""
import place
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest


class Frameworks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="prd-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = dict(os.environ, PYTHONPATH=str(place.PACKAGE), PRD_DAEMON=str(place.BIN / "prd"), TMPDIR=folder.name, OMP_NUM_THREADS="1")
        self.environment.pop("PRD_CONTROLLER", None)

    def train(self, workers, script, *arguments):
        """What it prints, without the ranks; lines that begin alike are equal on all workers."""
        done = subprocess.run([sys.executable, "-m", "prd.run", "-n", str(workers), "--engine", "p-reduce", "--option", "group_size=2", script, *arguments],
                              env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def example(self, name, saved):
        out = self.train(3, place.PACKAGE / f"examples/with_{name}.py")
        weights = re.findall(r"weights \[\[(.*)\]\]", out)
        self.assertEqual((len(weights), len(set(weights))), (3, 1), out)
        self.assertLess(max(abs(float(weight) - 1) for weight in weights[0].split(",")), 0.1)
        for samples, rate in re.findall(r"samples (\d+) lr (\S+)", out):
            # Ten epochs of the job, and what was in progress; a worker of a loaded machine hears late how far the job is.
            self.assertTrue(20_000 <= int(samples) <= 21_000, out)
            self.assertLess(float(rate), 0.003, out)  # the cosine's end, by the job's clock
        self.assertTrue(list(self.folder.glob(saved)), list(self.folder.rglob("*")))

    def test_accelerate(self):
        self.example("accelerate", "accelerate-model/model.safetensors")

    def test_lightning(self):
        self.example("lightning", "lightning-checkpoints/*.ckpt")

    def test_transformers(self):
        self.example("transformers", "transformers-model/model.safetensors")

    def saves_resumes_and_stops(self, name, checkpoints):
        """Of two workers, rank 0 alone saves; the next job goes on from there; and one that finds it enough ends both."""
        def train(*arguments):
            out = self.train(2, place.ROOT / f"tests/python/frameworks/{name}_program.py", *arguments)
            ends = re.findall(r"end \(\d+, (\d+)\) (.*)", out)
            self.assertEqual((len(ends), len({model for _, model in ends})), (2, 1), out)
            return int(ends[0][0])

        few = 1000  # samples more, of batches that were in progress: half an epoch at most
        self.assertLess(train("2") - 2000, few)
        saved = sorted(self.folder.glob(checkpoints))
        self.assertEqual(len(saved), 1, saved)
        self.assertLess(abs(train("4", str(saved[0])) - 4000), few)
        self.assertLess(train("1000", "stop"), 6000)

    def test_lightning_saves_resumes_and_stops(self):
        self.saves_resumes_and_stops("lightning", "saved/last.ckpt")

    def test_transformers_saves_resumes_and_stops(self):
        self.saves_resumes_and_stops("transformers", "saved/checkpoint-*")


if __name__ == "__main__":
    unittest.main()
