#!/usr/bin/env python3
"""The example in C with a real daemon, under several engines. Usage: train_linear_test.py BIN_DIR [TEST ...]"""
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

    def test_it_learns_under_several_engines(self):
        for engine in ("all-reduce", "p-reduce", "eager", "hop", "ssp"):
            with self.subTest(engine=engine), cluster.Cluster(BIN, self.job(engine, 3)) as c:
                ends = []
                for program in [self.start(c, rank, 300) for rank in range(3)]:
                    out, err = program.communicate(timeout=90)
                    self.assertEqual(program.returncode, 0, err)
                    ends.append(END.fullmatch(out.strip()))
                    self.assertIsNotNone(ends[-1], out)
                self.assertEqual([end[1] for end in ends], ["0", "1", "2"])
                self.assertEqual({end[2] for end in ends}, {engine})
                self.assertEqual(len({end[6] for end in ends}), 1, "one model")
                for end in ends:
                    self.assertLess(float(end[5]), float(end[4]) / 2)

    def test_an_interrupt_ends_a_wait_and_the_program(self):
        with cluster.Cluster(BIN, self.job("all-reduce", 2)) as c:
            program = self.start(c, 0, 10)
            line = program.stderr.readline()  # that it waits for the other one
            self.assertIn("Attach", line)
            program.send_signal(signal.SIGINT)
            out, err = program.communicate(timeout=60)
            self.assertEqual((program.returncode, out), (0, "rank -1 left after 0 steps\n"), err)


if __name__ == "__main__":
    unittest.main()
