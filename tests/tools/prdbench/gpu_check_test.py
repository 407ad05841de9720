"""tools/gpu-check as far as it goes without a GPU: its words, the limit of a pack, and a whole run on the
stand-in for CUDA and NCCL, which shows that the script comes to its end and proves nothing about GPUs.

Usage: gpu_check_test.py SOURCE_DIR BIN_DIR [unittest arguments]
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TIMEOUT_S = 240


def gpu_check(*arguments, **environment):
    return subprocess.run(
        [SOURCE / "tools" / "gpu-check", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S,
        env={**os.environ, "PRD_BIN": str(BIN), **environment})


def until(done):
    deadline = time.monotonic() + TIMEOUT_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.02)


def alive_in(process_group):
    """Of those that only wait for whoever started them to look, none."""
    alive = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(group) == process_group and state != "Z":
            alive.append(stat.parent.name)
    return alive


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
        for wrong in [["fly"], ["run", "--fast"], ["run", "no-such-folder"], ["run", "--device", "gpu"], ["pack", "--out", "file.zip"],
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
        out = self.dir / "p.tar.gz"
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
        training = next(line for line in lines if "training" in line)
        self.assertIn("the processor", training["trained_on"])
        self.assertEqual(training["groups"]["collective"] + training["groups"]["exchange"], 0)
        self.assertIsNone(training["nccl_share"])

    # What runs on a GPU where PyTorch is, here on the processor; tests/python has the rest.
    def test_pytorch(self):
        if subprocess.run(["/usr/bin/python3", "-c", "import torch"], capture_output=True).returncode != 0:
            self.skipTest("there is no python3-torch here")
        done = subprocess.run(
            ["/usr/bin/python3", "-B", SOURCE / "tools/gpu_check_lib/torch_check.py", "--device", "cpu", "--quick", "exact", "kill"],
            capture_output=True, text=True, timeout=TIMEOUT_S, env={
                **os.environ, "PYTHONPATH": str(SOURCE / "worker/python"), "PRD_LIBRARY": str(BIN.parent / "worker/libprd.so.0"),
                "PRD_DAEMON": str(BIN / "prd"), "OPENBLAS_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(sorted(line["torch"] for line in lines), ["done", "engine", "engine", "exact"])
        self.assertTrue(all(line["ok"] for line in lines[:-1]), lines)

    def test_what_was_found_is_kept_when_it_is_stopped(self):
        out = self.dir / "results.jsonl"
        with subprocess.Popen([SOURCE / "tools" / "gpu-check", "run", "--stand-in", "--out", out],
                              stdout=subprocess.PIPE, text=True, env={**os.environ, "PRD_BIN": str(BIN)}) as check:
            until(lambda: out.exists() and '"step":"kernels"' in out.read_text())
            check.send_signal(signal.SIGTERM)
            stdout, _ = check.communicate(timeout=TIMEOUT_S)
        self.assertEqual(check.returncode, 1)
        self.assertEqual(out.read_text(), stdout)
        lines = [json.loads(line) for line in stdout.splitlines()]
        steps = {line["step"]: line for line in lines if "step" in line}
        self.assertEqual(list(steps), STEPS)
        self.assertTrue(steps["kernels"]["ok"])
        self.assertEqual(steps["leak"]["why"], "gpu-check was stopped")
        self.assertEqual((lines[-1]["gpu_check"], lines[-1]["right"]), ("done", False))

    def test_what_is_wrong_is_told(self):
        if not (BIN / "prd-train-cuda").exists():
            self.skipTest("prd was built without CUDA")
        done = gpu_check("run", "--stand-in", "--quick", "--out", str(self.dir / "results.jsonl"),
                         PRD_STANDIN_FAIL_OPERATION="40")
        self.assertEqual(done.returncode, 1, done.stdout)
        last = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual((last["gpu_check"], last["right"]), ("done", False))


class Finding(unittest.TestCase):
    """Where the driver and NCCL are, on machines that are made up."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        self.known = []

    def find(self, what, **environment):
        """Runs it where the loader knows `known`, and where there is no HOME."""
        tools = self.dir / "tools"
        tools.mkdir(exist_ok=True)
        ldconfig = tools / "ldconfig"
        listed = "".join(f"echo '\t{path.name} (libc6,x86-64) => {path}'\n" for path in self.known)
        ldconfig.write_text(f"#!/bin/sh\n{listed}")
        ldconfig.chmod(0o755)
        script = f"set -euo pipefail; source {SOURCE}/tools/gpu_check_lib/nccl.sh; {what}"
        bare = {"PATH": f"{tools}:/usr/bin:/bin", "CUDA_HOME": str(self.dir / "cuda"), **environment}
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=bare).stdout.strip()

    def nccl(self, folder, version):
        path = self.dir / folder / "libnccl.so.2"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"\x7fELF\0" + f"NCCL version {version}+cuda13.0".encode() + b"\0\n\0")
        return path

    def test_takes_the_first_nccl_that_is_new_enough(self):
        self.known = [self.nccl("old", "2.21.5")]
        new = self.nccl("cuda/lib64", "2.28.9")
        self.assertEqual(self.find("find_nccl"), str(new))
        self.assertEqual(self.find("find_nccl", PRD_NCCL_LIBRARY="/any"), "/any")

    def test_an_nccl_that_is_too_old_is_left_to_the_programs(self):
        self.known = [self.nccl("old", "2.21.5")]
        self.assertTrue(self.find("find_nccl"))

    def test_finds_a_driver_that_the_loader_does_not_know(self):
        driver = self.dir / "nvidia"
        (driver / "bin").mkdir(parents=True)
        told = 'find_driver; echo "$PATH ${LD_LIBRARY_PATH:-}"'
        path, _, libraries = self.find(told, PRD_DRIVER=str(driver), LD_LIBRARY_PATH="/mine").partition(" ")
        self.assertTrue(path.endswith(f":{driver}/bin"))
        self.assertEqual(libraries, f"/mine:{driver}/lib64:{driver}/lib")
        self.known = [pathlib.Path("/lib/libcuda.so.1")]
        self.assertTrue(self.find(told, PRD_DRIVER=str(driver)).endswith(f":{driver}/bin"))


class Training(unittest.TestCase):
    """The step that trains, with replicas on the stand-in: there its groups go the ways that they go on a GPU."""

    def setUp(self):
        if not (BIN / "prd-train-standin").exists():
            self.skipTest("prd was built without the training programs")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        (self.dir / "prd").symlink_to(BIN / "prd")
        (self.dir / "prd-train-cuda").symlink_to(BIN / "prd-train-standin")

    def start(self, steps, **environment):
        script = f"""
            set -euo pipefail
            for part in results training run; do source {SOURCE}/tools/gpu_check_lib/$part.sh; done
            bin={self.dir} data=/usr/share/datasets/fashion-mnist stand_in=true libraries= loader=()
            training {self.dir}/training {steps} 10 0.5 cuda:0"""
        return subprocess.Popen(
            ["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, "PRD_CUDA_MODULE": str(BIN / "libprd_standin_cnn_module.so"), **environment})

    def train(self, steps, **environment):
        with self.start(steps, **environment) as process:
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, json.loads(stdout), stderr

    def test_tells_that_nccl_carried_its_groups(self):
        code, line, stderr = self.train(200)
        self.assertEqual((code, line["ok"]), (0, True), f"{line}\n{stderr}")
        self.assertGreater(line["groups"]["collective"], 0)
        self.assertGreater(line["nccl_share"], 0.5)
        self.assertEqual(line["steps"], 200)

    def test_fails_where_nccl_carried_none(self):
        code, line, _ = self.train(60, PRD_STANDIN_NO_NCCL="1")
        self.assertEqual((code, line["ok"], line["nccl_share"]), (1, False, 0))
        self.assertRegex(line["why"], r"^NCCL carried 0 of \d+ groups in the second half of the steps$")
        self.assertGreater(line["test_accuracy"], 0.5)

    def test_says_which_worker_ended_and_what_it_said(self):
        code, line, _ = self.train(60, PRD_STANDIN_FAIL_MALLOC="1")
        self.assertEqual((code, line["test_accuracy"]), (1, None))
        self.assertIn("worker 0 ended with 1: stand-in worker: ", line["why"])

    def test_leaves_nothing_behind_when_it_takes_too_long(self):
        process = self.start(100_000, PRD_STANDIN_HANG_COLLECTIVES="1")
        until(lambda: all((self.dir / "training" / f"steps.{rank}").exists() for rank in range(4)))
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 1)
        until(lambda: not alive_in(process.pid))


STEPS = ["kernels", "groups", "reduce-2", "reduce-4", "training", "kill", "dtypes", "leak"]
TIMED = ["weighted reduction", "kernels", "training's groups over NCCL"]  # on the stand-in not judged

if __name__ == "__main__":
    SOURCE = pathlib.Path(sys.argv.pop(1))
    BIN = pathlib.Path(sys.argv.pop(1))
    unittest.main()
