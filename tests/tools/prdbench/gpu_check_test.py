"""tools/gpu-check as far as it goes without a GPU: its words, the limit of a pack, and a whole run on the
stand-in for CUDA and NCCL, which shows that the script comes to its end and proves nothing about GPUs.

Usage: gpu_check_test.py SOURCE_DIR BIN_DIR [unittest arguments]
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PATIENCE_S = 240


def gpu_check(*arguments, **environment):
    return subprocess.run(
        [SOURCE / "tools" / "gpu-check", *arguments], capture_output=True, text=True, timeout=PATIENCE_S,
        env={**os.environ, "PRD_BIN": str(BIN), **environment})


class GpuCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def test_help(self):
        done = gpu_check("--help")
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ["pack", "run", "--stand-in", "PRD_NCCL_LIBRARY", "exit code"]:
            self.assertIn(word, done.stdout)

    def test_says_what_is_allowed(self):
        for wrong in [["fly"], ["run", "--fast"], ["run", "no-such-folder"], ["pack", "--out", "file.zip"],
                      ["pack", "--limit-mib", "few"]]:
            done = gpu_check(*wrong)
            self.assertEqual(done.returncode, 2, wrong)
            self.assertIn(wrong[-1], done.stderr)

    def test_pack_says_what_is_missing(self):
        empty = self.dir / "bin"
        empty.mkdir()
        done = gpu_check("pack", "--out", str(self.dir / "p.tar.gz"), PRD_BIN=str(empty))
        self.assertEqual(done.returncode, 1)
        self.assertIn("prdbench", done.stderr)
        self.assertFalse((self.dir / "p.tar.gz").exists())

    def test_pack_has_a_limit(self):
        if not (BIN / "prd-gpu-test").exists() or not (BIN / "prd-train-cuda").exists():
            self.skipTest("prd was built without CUDA")
        data = self.dir / "data"
        data.mkdir()
        for part in ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"]:
            (data / f"{part}-ubyte.gz").touch()
        out = self.dir / "p.tar.zst"
        done = gpu_check("pack", "--out", str(out), "--limit-mib", "1", PRD_DATA=str(data))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"\d+ bytes are \d+ more than fewer than 1 MiB")
        self.assertFalse(out.exists())

    def test_run_on_the_stand_in(self):
        if not (BIN / "prd-train-cuda").exists():
            self.skipTest("prd was built without CUDA")
        out = self.dir / "results.jsonl"
        done = gpu_check("run", "--stand-in", "--quick", "--out", str(out))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(out.read_text(), done.stdout)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        for line in lines:
            self.assertIs(line["stand_in"], True, line)
        steps = {line["step"]: line["ok"] for line in lines if "step" in line}
        self.assertEqual(steps, dict.fromkeys(STEPS, True))
        goals = {line["goal"]: line["met"] for line in lines if "goal" in line}
        self.assertEqual([name for name, met in goals.items() if met is None], TIMED)
        self.assertTrue(all(met for name, met in goals.items() if name not in TIMED), goals)
        ways = {line["way"] for line in lines if line.get("bench") == "reduce"}
        self.assertEqual(ways, {"collective", "exchange", "staged"})
        self.assertTrue(lines[-1]["right"])

    def test_what_is_wrong_is_told(self):
        if not (BIN / "prd-train-cuda").exists():
            self.skipTest("prd was built without CUDA")
        done = gpu_check("run", "--stand-in", "--quick", "--out", str(self.dir / "results.jsonl"),
                         PRD_STANDIN_FAIL_OPERATION="40")
        self.assertEqual(done.returncode, 1, done.stdout)
        last = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual((last["gpu_check"], last["right"]), ("done", False))


STEPS = ["kernels", "groups", "reduce-2", "reduce-4", "kill", "dtypes", "leak", "training"]
TIMED = ["weighted reduction", "kernels"]  # on the stand-in not judged

if __name__ == "__main__":
    SOURCE = pathlib.Path(sys.argv.pop(1))
    BIN = pathlib.Path(sys.argv.pop(1))
    unittest.main()
