#!/usr/bin/env python3
"""The example in C with a real daemon, under several engines. Usage: train_linear_test.py BIN_DIR [TEST ...]"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "integration"))
import cluster

BIN = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/bin"
END = re.compile(r"rank (\d) of 3, (\S+): (\d+) steps, loss from (\S+) to (\S+), model (\S+)")


class TrainLinear(unittest.TestCase):
    def start(self, c, rank, steps):
        env = dict(os.environ, PRD_CONTROLLER=c.endpoint, PRD_JOB="linear", PRD_RANK=str(rank), **c.keys)
        return subprocess.Popen([f"{BIN}/prd-train-linear", str(steps)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def job(self, engine, workers):
        return f'[[job]]\nname = "linear"\nengine = "{engine}"\nworkers = {workers}\n'

    def ends(self, programs, engine):
        """How many steps the programs made; all have learned, and end under this engine with one model."""
        ends = []
        for program in programs:
            out, err = program.communicate(timeout=90)
            self.assertEqual(program.returncode, 0, err)
            ends.append(END.fullmatch(out.strip()))
            self.assertIsNotNone(ends[-1], out)
        self.assertEqual([end[1] for end in ends], ["0", "1", "2"])
        self.assertEqual({end[2] for end in ends}, {engine})
        self.assertEqual(len({end[6] for end in ends}), 1, "one model")
        for end in ends:
            self.assertLess(float(end[5]), float(end[4]) / 2)
        return sum(int(end[3]) for end in ends)

    def test_it_learns_under_several_engines(self):
        for engine in ("all-reduce", "p-reduce", "eager", "hop", "ssp"):
            with self.subTest(engine=engine), cluster.Cluster(BIN, self.job(engine, 3)) as c:
                self.ends([self.start(c, rank, 300) for rank in range(3)], engine)

    def test_a_job_goes_on_under_another_engine(self):
        def runs():
            return json.loads(c.prdctl("jobs"))["runs"]

        def trained(run):
            return int(re.search(r"has trained (\d+) steps", run["end"])[1])

        with cluster.Cluster(BIN, self.job("p-reduce", 3) + "live = true\n") as c:
            programs = [self.start(c, rank, 10**9) for rank in range(3)]
            cluster.wait_until(lambda: runs() and runs()[0]["steps"] > 60, "60 steps under p-reduce")
            c.prdctl("switch", "linear", "all-reduce")
            cluster.wait_until(lambda: len(runs()) == 2, "the second run")
            before = trained(runs()[0])
            cluster.wait_until(lambda: runs()[1]["steps"] > before + 30, "30 steps under all-reduce")
            c.config.write_text(c.config.read_text().replace('"p-reduce"', '"all-reduce"') + "goal_steps = 1\n")
            c.daemon.send_signal(signal.SIGHUP)  # it has more, so training is done
            steps = self.ends(programs, "all-reduce")
            self.assertEqual([run["state"] for run in runs()], ["switched", "switched", "finished"])
            self.assertEqual(steps, trained(runs()[2]))
            c.stop_daemon()
            for run in ("1", "2", "3"):
                self.assertEqual(json.loads(c.prdctl("replay", run, offline=True))["not_recorded"], 0)

    def test_an_interrupt_ends_a_wait_and_the_program(self):
        with cluster.Cluster(BIN, self.job("all-reduce", 2)) as c:
            program = self.start(c, 0, 10)
            line = program.stderr.readline()  # that it waits for the other one
            self.assertIn("Attach", line)
            program.send_signal(signal.SIGINT)
            out, err = program.communicate(timeout=60)
            self.assertEqual((program.returncode, out), (0, "rank -1 left after 0 steps\n"), err)

    def test_what_is_no_number_of_steps_is_refused(self):
        for arguments in (["abc"], ["-5"], ["0"], [""], ["7x"], ["5", "6"]):
            done = subprocess.run([f"{BIN}/prd-train-linear", *arguments], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertIn("usage: ", done.stderr)
        done = subprocess.run([f"{BIN}/prd-train-linear", "--help"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("STEPS", done.stdout)


if __name__ == "__main__":
    unittest.main()
