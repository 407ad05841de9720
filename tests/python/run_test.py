#!/usr/bin/env python3
"""python3 -m prd.run. Usage: run_test.py BIN_DIR [TEST ...]"""
import place
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

SCRIPT = """
import numpy, os, prd, signal, sys, time
values = numpy.full(10, float(os.environ["PRD_RANK"]), numpy.float32)
gradients = numpy.ones(10, numpy.float32)
def apply():
    values[:] += gradients
with prd.Session() as session:
    session.attach(values, gradients, apply)
    print("attached", session.engine, session.workers, *sys.argv[1:])
    {body}
    session.finish()
print("model", values[0])
"""
DIES_ONCE = """
    mark = os.environ["MARK"]
    for step in range(5):
        session.step()
    if session.rank == 1:
        if not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        open(mark + ".back", "w").close()
    while "stay" in sys.argv and not os.path.exists(mark + ".back"):
        session.step()
        time.sleep(0.01)
"""
WAITS = """
    try:
        print("waits")
        while True:
            session.step()
            time.sleep(0.01)
    except KeyboardInterrupt:
        print("interrupted")
"""


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="prd-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = dict(os.environ, PYTHONPATH=str(place.PACKAGE), PRD_DAEMON=str(place.BIN / "prd"), MARK=str(self.folder / "mark"),
                                TMPDIR=str(self.folder))
        self.environment.pop("PRD_CONTROLLER", None)

    def start(self, body, *arguments, script_arguments=()):
        script = self.folder / "train.py"
        script.write_text(SCRIPT.replace("    {body}", body))
        return subprocess.Popen([sys.executable, "-m", "prd.run", *arguments, str(script), *script_arguments], env=self.environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self, program, code=0):
        out, err = program.communicate(timeout=90)
        self.assertEqual(program.returncode, code, out + err)
        return out, err

    def test_workers_and_a_daemon_of_their_own(self):
        out, _ = self.end(self.start("    session.step()", "-n", "3", "--engine", "p-reduce", "--option", "group_size = 2",
                                     script_arguments=("--lr", "0.1")))
        lines = sorted(out.splitlines())
        self.assertEqual([line for line in lines if "attached" in line], [f"[{rank}] attached p-reduce 3 --lr 0.1" for rank in range(3)])
        self.assertEqual([line for line in lines if "model" in line], [f"[{rank}] model 1.0" for rank in range(3)])
        self.assertEqual(list(self.folder.glob("prd-run-*")), [], "it leaves nothing behind")

    def test_a_daemon_that_runs_is_used(self):
        with place.Cluster(place.job("all-reduce", 2)) as c:
            self.environment.update(PRD_CONTROLLER=c.endpoint, PRD_JOB="toy")
            out, _ = self.end(self.start("    session.step()", "-n", "2"))
            self.assertIn("[1] attached all-reduce 2", out)

    def test_a_worker_that_dies_is_started_again_and_the_others_go_on(self):
        out, err = self.end(self.start(DIES_ONCE, "-n", "3", "--engine", "p-reduce", "--job-option", "lease_ms = 2000", "--restart", "1",
                                       script_arguments=("stay",)))
        self.assertIn("rank 1 was killed by SIGKILL, and is started again (1 of 1)", err)
        self.assertEqual(len(re.findall(r"\] model", out)), 3, out)
        (self.folder / "mark").unlink()
        (self.folder / "mark.back").unlink()
        out, err = self.end(self.start(DIES_ONCE, "-n", "3", "--engine", "p-reduce", "--job-option", "lease_ms = 2000"), code=1)
        self.assertIn("prd.run: rank 1 was killed by SIGKILL\n", err)
        self.assertEqual(len(re.findall(r"\] model", out)), 2, out)

    def test_an_interrupt_reaches_each_worker_once(self):
        program = self.start(WAITS, "-n", "2", "--engine", "p-reduce")
        waiting = set()
        while len(waiting) < 2:
            line = program.stdout.readline()
            self.assertTrue(line, "both are to wait")
            if "waits" in line:
                waiting.add(line)
        program.send_signal(signal.SIGINT)
        lines = [line.strip() for line in program.stdout]
        self.end(program)
        self.assertEqual(sorted(line for line in lines if "interrupted" in line), ["[0] interrupted", "[1] interrupted"])

    def test_what_is_wrong_is_said(self):
        _, err = self.end(self.start("    session.step()", "-n", "2", "--engine", "nonsense"), code=1)
        self.assertIn("the daemon ended; its log ends so", err)
        self.assertIn("nonsense", err)
        _, err = self.end(self.start("", "-n", "2"), code=2)
        self.assertIn("--engine: needed", err)
        _, err = self.end(self.start("", "-n", "0", "--engine", "hop"), code=2)
        self.assertIn("--workers: found 0", err)


if __name__ == "__main__":
    unittest.main()
