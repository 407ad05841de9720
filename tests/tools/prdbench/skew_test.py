"""prdbench skew with few processes: what it prints, and that it leaves nothing behind. No figure is
compared with another but where they must agree by definition. And what other commands refuse, and
leave behind.

Usage: skew_test.py BIN_DIR [unittest arguments]
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TIMEOUT_S = 120
PROCESSES = 4


def skew(*arguments):
    return [BIN / "prdbench", "skew", "--processes", str(PROCESSES), "--json", *arguments]


def run(*arguments):
    return subprocess.run(skew(*arguments), capture_output=True, text=True, timeout=TIMEOUT_S)


def processes_of(bench):
    """The pids of the processes that share a board of this prdbench, which each names."""
    mark = f"/prdbench-{bench.pid}-".encode()
    pids = []
    for folder in pathlib.Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark in (folder / "cmdline").read_bytes():
                pids.append(int(folder.name))
        except OSError:
            pass  # it has ended meanwhile
    return pids


class Skew(unittest.TestCase):
    def until(self, condition):
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def check_figures(self, figures, with_mpi):
        for name in ["latency_ms", "first_ms", "last_ms"]:
            self.assertGreater(figures[name], 0)
        self.assertGreaterEqual(figures["mean_active"], 1)
        self.assertLessEqual(figures["mean_active"], PROCESSES)
        if with_mpi:
            self.assertGreater(figures["mpi_latency_ms"], 0)
            expected = figures["mpi_latency_ms"] / figures["latency_ms"]
            self.assertAlmostEqual(figures["ratio"], expected, places=6)
        else:
            self.assertIsNone(figures["mpi_latency_ms"])
            self.assertIsNone(figures["ratio"])

    def check_lines(self, done, ops, sizes, with_mpi):
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([line["op"] for line in lines], ops)
        for line in lines:
            self.assertEqual(line["bench"], "skew")
            self.assertEqual(line["processes"], PROCESSES)
            self.assertEqual(line["cores"], os.cpu_count())
            self.assertEqual(line["iterations"], 6)
            self.assertEqual([size["bytes"] for size in line["sizes"]], sizes)
            self.assertIn("mpirun" if with_mpi else "Open MPI is", line["mpi"])
            for figures in [line, *line["sizes"]]:
                self.check_figures(figures, with_mpi)
        return lines

    def start(self):
        return subprocess.Popen(
            skew("--ops", "all-reduce", "--without-mpi", "--iterations", "100000"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_prd_alone(self):
        done = run("--ops", *OPS, "--without-mpi", "--rounds", "2", "--iterations", "3",
                   "--warmup", "1", "--bytes", "64", "4096")
        lines = self.check_lines(done, OPS, [64, 4096], with_mpi=False)
        self.assertIn("Open MPI is left out", done.stderr)
        self.assertAlmostEqual(lines[-1]["mean_active"], PROCESSES, places=3)  # all-reduce

    def test_beside_mpi(self):
        if not (BIN / "prd-mpi-skew").exists() or shutil.which("mpirun") is None:
            self.skipTest("prd was built without Open MPI")
        done = run("--ops", "all-reduce", "--rounds", "1", "--iterations", "6", "--warmup", "0",
                   "--bytes", "64")
        self.check_lines(done, ["all-reduce"], [64], with_mpi=True)

    def test_without_mpirun(self):
        done = run("--ops", "all-reduce", "--rounds", "1", "--iterations", "6", "--warmup", "0",
                   "--bytes", "64", "--mpirun", "/nonexistent/mpirun")
        self.check_lines(done, ["all-reduce"], [64], with_mpi=False)
        self.assertIn("Open MPI is absent", done.stderr)

    def test_interrupted(self):
        bench = self.start()
        self.until(lambda: len(processes_of(bench)) == PROCESSES)
        bench.send_signal(signal.SIGINT)
        out, err = bench.communicate(timeout=TIMEOUT_S)
        self.assertEqual(bench.returncode, 130, err)
        self.assertEqual(out, "")
        self.assertEqual(processes_of(bench), [])
        self.assertEqual(list(pathlib.Path("/dev/shm").glob(f"prdbench-{bench.pid}-*")), [])

    def test_process_dies(self):
        bench = self.start()
        self.until(lambda: len(processes_of(bench)) == PROCESSES)
        os.kill(processes_of(bench)[0], signal.SIGKILL)
        _, err = bench.communicate(timeout=TIMEOUT_S)
        self.assertEqual(bench.returncode, 1, err)
        self.assertRegex(err, r"all-reduce: process \d was ended by signal 9")
        self.assertEqual(processes_of(bench), [])

    def test_says_what_is_allowed(self):
        done = run("--bytes", "63")
        self.assertEqual(done.returncode, 2)
        self.assertIn("found 63, allowed are", done.stderr)


class Others(unittest.TestCase):
    def bench(self, *arguments, **streams):
        return subprocess.run([BIN / "prdbench", *arguments], text=True, timeout=TIMEOUT_S,
                              **(streams or {"capture_output": True}))

    def test_numbers_that_are_not_allowed(self):
        for arguments in [["broker", "--seconds", "nan"], ["skew", "--skew-ms", "nan"],
                          ["reduce", "--bytes", "3"], ["reduce", "--bytes", "0"],
                          ["reduce", "--bytes", "-4"], ["reduce", "--bytes", "17179869188"]]:
            done = self.bench(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(f"{arguments[1]}: found {arguments[2]}, allowed ", done.stdout + done.stderr)
        self.assertEqual(self.bench("reduce", "--dtype", "f64").returncode, 2)

    def test_groups_larger_than_all_workers(self):
        done = self.bench("broker", "--clients", "3", "--group-size", "5")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--group-size: found 5, allowed is 2 to 3", done.stderr)

    def test_a_device_that_is_not_there(self):
        done = self.bench("device", "--check", "groups", "--device", "cuda:99")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(json.loads(done.stdout)["why"], "^unavailable: (?!unavailable)")

    def test_an_engine_that_is_not_there(self):
        done = self.bench("decide", "--engine", "none")
        self.assertEqual(done.returncode, 2)
        self.assertIn("p-reduce", done.stdout + done.stderr)

    def test_a_daemon_that_ends(self):
        for daemon, how in [("/bin/true", "ended with exit code 0"), ("/bin/false", "exit code 1"),
                            ("/tmp", "cannot run /tmp: Permission denied")]:
            done = self.bench("broker", "--daemon", daemon)
            self.assertEqual(done.returncode, 1)
            self.assertIn(how, done.stderr)

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "w") as full:
            done = self.bench("--help", stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("the standard output cannot be written", done.stderr)

    def test_an_interrupted_broker_leaves_nothing(self):
        for end, code in [(signal.SIGINT, 130), (signal.SIGTERM, 143)]:
            with tempfile.TemporaryDirectory() as folder:
                tell = pathlib.Path(folder, "config")
                daemon = pathlib.Path(folder, "daemon")
                daemon.write_text(f"#!/bin/sh\necho $2 > {tell}.part; mv {tell}.part {tell}; exec sleep 60\n")
                daemon.chmod(0o755)
                bench = subprocess.Popen([BIN / "prdbench", "broker", "--daemon", daemon],
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                while not tell.exists():
                    self.assertIsNone(bench.poll())
                    time.sleep(0.01)
                config = pathlib.Path(tell.read_text().strip())
                self.assertTrue(config.exists())
                bench.send_signal(end)
                _, err = bench.communicate(timeout=TIMEOUT_S)
            self.assertEqual(bench.returncode, code, err)
            self.assertFalse(config.parent.exists())


OPS = ["solo", "majority", "all-reduce"]

if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1))
    unittest.main()
