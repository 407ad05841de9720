"""What tools/measure counts in records and step logs, and its command line."""
import os
import pathlib
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(os.environ["PRD_SOURCE_DIR"])
sys.path[1:1] = [str(SOURCE / "tools/measure_lib"), str(SOURCE / "tools/job_lib")]
import figures
import memory


def formed(now_ns, ranks, kind="train"):
    return {"type": "group_formed", "now_ns": now_ns, "kind": kind, "members": [{"rank": rank} for rank in ranks]}


def step(end_ns, wait_ns):
    return {"end_ns": end_ns, "wait_ns": wait_ns}


class Figures(unittest.TestCase):
    RECORDS = [
        formed(1, [0, 1, 2], "initial"), formed(10, [0, 1, 2]), formed(20, [0, 2]),
        {"type": "worker_left", "now_ns": 25, "rank": 2, "why": "finished"},
        formed(30, [0, 1], "round"), formed(40, [0, 1]), formed(50, [0, 1, 2], "final"),
        {"type": "worker_left", "now_ns": 60, "rank": 2, "why": "left"},
    ]  # fmt: skip

    def test_members_are_those_of_groups_that_train(self):
        self.assertEqual(figures.members(self.RECORDS), [[0, 1, 2], [0, 2], [0, 1], [0, 1]])
        self.assertEqual(figures.members(self.RECORDS, since_ns=20), [[0, 1], [0, 1]])

    def test_the_longest_absence_is_of_groups_in_a_row(self):
        groups = [[0], [0, 1], [0], [0], [0, 1], [0]]
        self.assertEqual([figures.longest_absence(groups, rank) for rank in (0, 1, 2)], [0, 2, 6])

    def test_after_counts_what_the_others_did(self):
        steps = {0: [step(20, 9_000_000), step(30, 1_000_000), step(40, 3_000_000)], 1: [step(30, 0)], 2: [step(70, 10**9)]}
        self.assertEqual(
            figures.after(self.RECORDS, steps, 2),
            {"steps_after": 3, "rounds_after": 2, "rounds_after_with_it": 0, "longest_wait_after_ms": 3},
        )

    def test_digests_are_by_group(self):
        told = [{"type": "finished", "group": group, "digest": digest} for group, digest in ((2, 7), (3, 9), (2, 8))]
        self.assertEqual(figures.digests([*told, {"type": "finished", "group": 4}]), {2: [7, 8], 3: [9]})


    def test_memory_is_told_in_models_of_the_worker_that_takes_most(self):
        told = [{"resident": 300, "most": 400, "swapped": 0, "step_s": 0.5, "uses": {"results": 200}}, {"resident": 250, "most": 410, "swapped": 0, "step_s": 0.7, "uses": {"results": 100, "state": 50}}]
        self.assertEqual(memory.models(told, 200), {"resident": 1.5, "most": 2.05, "swapped": 0.0, "step_s": 0.7, "uses": {"results": 1.0, "state": 0.25}})


class CommandLine(unittest.TestCase):
    def run_measure(self, *arguments):
        environment = dict(os.environ, PRD_BIN="/nowhere")
        return subprocess.run([SOURCE / "tools/measure", *arguments], env=environment, capture_output=True, text=True)

    def test_help_names_what_can_be_measured(self):
        done = self.run_measure("--help")
        self.assertEqual(done.returncode, 0, done.stderr)
        for what in ("stopped", "end", "replicas", "turns", "step", "peers", "memory"):
            self.assertIn(f"  {what}  ", done.stdout)

    def test_names_of_peers_and_cases_are_checked(self):
        for what, flag, allowed in (("peers", "--peer", "alone, DistributedDataParallel"), ("peers", "--case", "4 equal"), ("memory", "--case", "alone, Distr")):
            done = self.run_measure(what, flag, "nosuch")
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"{flag}: found nosuch, needed is a part of one of: {allowed}", done.stderr)

    def test_what_cannot_be_started_is_said(self):
        done = self.run_measure("turns")
        self.assertEqual(done.returncode, 1)
        self.assertIn("tools/measure: {'what': 'turns', 'seed': 1}: prd cannot be started", done.stderr)


if __name__ == "__main__":
    unittest.main()
