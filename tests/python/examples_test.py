#!/usr/bin/env python3
"""The examples of worker/python/examples, as they are. Usage: examples_test.py BIN_DIR [TEST ...]"""
import place
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

EXAMPLES = place.PACKAGE / "examples"


class Examples(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="prd-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = dict(os.environ, PYTHONPATH=str(place.PACKAGE), PRD_DAEMON=str(place.BIN / "prd"), PRD_BIN=str(place.BIN),
                                TMPDIR=str(self.folder))
        self.environment.pop("PRD_CONTROLLER", None)

    def run_program(self, *command):
        done = subprocess.run(command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_a_training_loop_of_numpy_alone(self):
        for engine in ("p-reduce", "all-reduce"):
            out = self.run_program(sys.executable, "-m", "prd.run", "-n", "2", "--engine", engine, EXAMPLES / "numpy_loop.py")
            ends = re.findall(r"loss from ([-\d.e]+) to ([-\d.e]+), model ([\d.]+)", out)
            self.assertEqual(len(ends), 2, out)
            self.assertEqual(ends[0][2], ends[1][2])
            for first, last, _ in ends:
                self.assertLess(float(last), float(first) / 100)

    def test_the_readmes_program(self):
        try:
            import torch  # noqa: F401
        except ModuleNotFoundError:
            self.skipTest("there is no python3-torch here")
        block = re.search(r"```python\n( import torch\n.*?)```", (place.PACKAGE / "README.md").read_text(), re.DOTALL)[1]
        self.assertEqual(sum(line.startswith("+") for line in block.splitlines()), 4)
        (self.folder / "train.py").write_text("".join(line[1:] for line in block.splitlines(keepends=True)))
        out = self.run_program(sys.executable, "-m", "prd.run", "-n", "2", "--engine", "p-reduce", "--option", "group_size = 2", "train.py")
        weights = re.findall(r"weights \[\[(.*)\]\]", out)
        self.assertEqual(len(weights), 2, out)
        self.assertEqual(weights[0], weights[1])
        for weight in map(float, weights[0].split(",")):
            self.assertLess(abs(weight - 1), 0.3)

    def test_the_readmes_first_block_in_a_fresh_clone(self):
        """As pasted into a shell: with what was built in place of the commands that build."""
        try:
            import torch  # noqa: F401
        except ModuleNotFoundError:
            self.skipTest("there is no python3-torch here")
        clone, shims = self.folder / "clone", self.folder / "shims"
        shutil.copytree(place.PACKAGE, clone / "worker/python")
        for folder in (shims, clone / "tools", clone / "build"):
            folder.mkdir()
        (clone / "build/release").symlink_to(place.BIN.parent)
        for name in (shims / "cmake", clone / "tools/deps"):
            name.write_text('#!/bin/sh\necho "$0 $*" >> "$BUILDS"\n')
            name.chmod(0o755)
        (shims / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')  # a link to that of a virtual environment is not in it
        (shims / "python3").chmod(0o755)
        block = re.search(r"```sh\n(.*?)```", (place.ROOT / "README.md").read_text(), re.DOTALL)[1]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PRD_") and name != "PYTHONPATH"}
        environment.update(PATH=f"{shims}:{environment['PATH']}", TMPDIR=str(self.folder), BUILDS=str(self.folder / "builds"))
        done = subprocess.run(["/bin/bash", "-e"], input=block, cwd=clone, env=environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        weights = re.findall(r"weights \[\[(.*)\]\]", done.stdout)
        self.assertEqual((len(weights), len(set(weights))), (4, 1), done.stdout)
        self.assertLess(max(abs(float(weight) - 1) for weight in weights[0].split(",")), 0.1)
        self.assertRegex(done.stderr, r"^prd\.run: to look at it: PRD_ADMIN=ipc://\S+ \S+/clone/build/release/bin/prdctl workers\n")
        self.assertIn("--target prd_installed", (self.folder / "builds").read_text())

    def test_the_first_example_is_the_readmes(self):
        example = (EXAMPLES / "first.py").read_text().partition('"""\nimport')[2].partition("\n")[2]
        example = [line.partition("  #")[0] for line in example.splitlines()]
        whole = re.search(r"```python\n import torch\n(.*?)```", (place.PACKAGE / "README.md").read_text(), re.DOTALL)[1]
        self.assertEqual(example, [line[1:].partition("  #")[0].rstrip() for line in whole.splitlines()])
        short = re.search(r"```python\n import torch\n(.*?)```", (place.ROOT / "README.md").read_text(), re.DOTALL)[1]
        for line in short.splitlines():
            if "..." not in line:
                self.assertIn(line[1:].partition("  #")[0].rstrip(), example)

    def test_the_tutorial_trains_resumes_and_stops_early(self):
        try:
            import torch
        except ModuleNotFoundError:
            self.skipTest("there is no python3-torch here")

        def train(*arguments):
            out = self.run_program(sys.executable, "-m", "prd.run", "-n", "2", "--engine", "p-reduce", "--option", "group_size=2",
                                   EXAMPLES / "tutorial.py", "--checkpoint", "saved.pt", *arguments)
            return [int(epoch) for epoch in re.findall(r"epoch (\d+): ", out)], float(re.search(r"the end: loss ([\d.]+)", out)[1])

        epochs, first = train("--epochs", "2")
        self.assertLessEqual(epochs, [0, 1])
        saved = torch.load(self.folder / "saved.pt")
        self.assertGreaterEqual(saved["job_trained"][1], 5000)
        epochs, second = train("--epochs", "4")
        self.assertTrue(epochs and min(epochs) >= saved["job_trained"][1] // 5000, epochs)
        self.assertLess(second, first + 0.05)
        saved = torch.load(self.folder / "saved.pt")
        torch.save(dict(saved, best=-1.0), self.folder / "saved.pt")  # no loss is lower
        epochs, _ = train("--epochs", "1000", "--patience", "1")
        self.assertLess(len(epochs), 5)

    def test_the_demo_trains_from_a_pytorch_script(self):
        try:
            import torch  # noqa: F401
        except ModuleNotFoundError:
            self.skipTest("there is no python3-torch here")
        self.run_program(place.ROOT / "tools/demo", "--torch", "--engines", "p-reduce", "--workers", "2", "--epochs", "0.2", "--step-ms", "5", "--batch", "64",
                         "--target", "0.5", "--group-size", "2", "--out", self.folder / "out")
        summary = json.loads((self.folder / "out/summary.json").read_text())
        self.assertEqual([run["engine"] for run in summary["runs"]], ["p-reduce"])
        for run in summary["runs"]:
            self.assertGreater(run["final_accuracy"], 0.5)
            self.assertGreaterEqual(run["final_samples"], 12_000 - 2 * 64)
            self.assertLess(run["final_samples"], 12_000 + 4 * 64, "the job's samples end it")


if __name__ == "__main__":
    unittest.main()
