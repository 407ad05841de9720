#!/usr/bin/env python3
"""A running job goes on under another engine, with real processes. Usage: switch_test.py BIN_DIR [TEST ...]"""
import json
import signal
import subprocess
import sys
import unittest

import cluster

BIN = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/bin"

JOB = '[[job]]\nname = "toy"\nengine = "{}"\nworkers = {}\nlease_ms = 60000\nheartbeat_ms = 200\n'


def under(engine):
    return lambda line: line.get("engine") == engine and "step" in line


def runs(c):
    return json.loads(c.prdctl("jobs"))["runs"]


class Training(unittest.TestCase):
    def start(self, c, workers, **options):
        started = [c.worker(rank, step_ms=20, velocity="state", **options) for rank in range(workers)]
        for worker in started:
            worker.wait_for(lambda line: line.get("step") == 3, "step 3")
        return started

    def check_steps(self, workers):
        """Each step is there once, and `apply` ran once for each; at a switch all have one model."""
        for worker in workers:
            steps = worker.steps()
            self.assertEqual([line["step"] for line in steps], list(range(len(steps))))
            self.assertEqual([line["steps"] for line in steps], list(range(1, len(steps) + 1)))
            self.assertEqual(steps[-1]["applied"], len(steps))

    def end_all(self, stop, workers):
        stop.touch()
        for worker in workers:
            worker.end()
        self.check_steps(workers)

    def check_replays(self, c, runs):
        c.stop_daemon()
        for run in runs:
            self.assertEqual(json.loads(c.prdctl("replay", run, offline=True))["not_recorded"], 0)

    def check_shown_as_one(self, c):
        """By its name the job is one, whatever its runs are."""
        replay = json.loads(c.prdctl("replay", "toy", offline=True))
        self.assertEqual([run["run"] for run in replay["runs"]], [1, 2, 3])
        self.assertEqual(replay["inputs"], sum(run["inputs"] for run in replay["runs"]))
        of_runs = [c.prdctl("export", run, offline=True).splitlines() for run in ("1", "2", "3")]
        self.assertEqual(c.prdctl("export", "toy", offline=True).splitlines(), sum(of_runs, []))
        # Each worker's iterations and steps go on: none comes twice, none is less than one before.
        last = {}
        for record in map(json.loads, sum(of_runs, [])):
            if record["type"] != "ready":
                continue
            at = (record["iteration"], record["own_steps"])
            before = last.setdefault(record["rank"], at)
            self.assertTrue(before[0] <= at[0] and before[1] <= at[1], (before, record))
            last[record["rank"]] = at
        for command in ("workers", "explain", "links", "stragglers", "groups", "graph"):
            done = subprocess.run([f"{c.bin}/prdctl", "--state-dir", f"{c.dir}/state", command, "toy"], capture_output=True, text=True, timeout=60)
            self.assertIn("job toy in turn: run 1 (p-reduce), run 2 (all-reduce), run 3 (hop); this is run 3", done.stdout, command)

    def models_at(self, workers, engine):
        """The model with which each worker's first step under this engine begins: the step before has it."""
        return {next(line["model"] for line in worker.steps() if line["engine"] == engine) for worker in workers}

    def test_a_job_goes_from_engine_to_engine(self):
        with cluster.Cluster(BIN, JOB.format("p-reduce", 4)) as c:
            stop = c.dir / "stop"
            workers = self.start(c, 4, steps=100_000, args=("--stop-file", str(stop)))
            follows = subprocess.Popen([f"{c.bin}/prdctl", "--admin", c.admin, "groups", "toy", "--follow"], stdout=subprocess.PIPE, text=True)
            self.addCleanup(follows.kill)
            self.assertIn("group", follows.stdout.readline())  # of the first run
            for engine in ("all-reduce", "hop"):
                done = json.loads(c.prdctl("switch", "toy", engine, "--reason", "try it"))["done"]
                self.assertIn("job toy goes on in another run", done)
                for worker in workers:
                    line = worker.wait_for(under(engine), f"a step under {engine}")
                    self.assertTrue(line["adopted"])
                self.assertEqual(len(self.models_at(workers, engine)), 1, "all begin with one model")
            counts = [len(worker.steps()) for worker in workers]
            for worker, count in zip(workers, counts):
                worker.wait_for(lambda line: line.get("step") == count + 3, "steps under the last engine")
            self.end_all(stop, workers)
            told = follows.stdout.read()  # ends with the job, not with its first run
            follows.stdout.close()
            self.assertEqual(follows.wait(), 0)
            self.assertEqual([line for line in told.splitlines() if "goes on" in line], ["the job goes on in run 2 (all-reduce)", "the job goes on in run 3 (hop)"])
            states = [(run["engine"], run["state"], run["former_run"], run["next_run"]) for run in runs(c)]
            self.assertEqual(states, [("p-reduce", "switched", None, 2), ("all-reduce", "switched", 1, 3), ("hop", "finished", 2, None)])
            self.check_replays(c, ("1", "2", "3"))
            self.check_shown_as_one(c)
            for run in ("1", "2", "3"):
                records = [json.loads(line) for line in c.prdctl("export", run, offline=True).splitlines()]
                failed = [record for record in records if record.get("type") == "group_ended" and not record["ok"]]
                self.assertEqual(failed, [])

    def test_a_switch_after_which_all_wait_for_the_slowest_says_so(self):
        with cluster.Cluster(BIN, JOB.format("all-reduce", 2)) as c:
            stop = c.dir / "stop"
            workers = self.start(c, 2, steps=100_000, args=("--stop-file", str(stop)))
            done = json.loads(c.prdctl("switch", "toy", "p-reduce", "group_size=99"))["done"]
            self.assertIn("; warning: group_size 99 of 2 workers: every group waits for the slowest worker", done)
            self.end_all(stop, workers)

    def test_a_kill_in_the_middle_of_a_switch_does_not_stop_it(self):
        with cluster.Cluster(BIN, JOB.format("all-reduce", 3)) as c:
            stop = c.dir / "stop"
            workers = self.start(c, 3, steps=100_000, args=("--stop-file", str(stop)))
            workers[1].stop()  # it ends no step: the switch waits
            c.prdctl("switch", "toy", "p-reduce", "group_size=2", "lease_ms=50000")
            c.kill_daemon()
            c.start_daemon()
            workers[1].wake()
            for worker in workers:
                worker.wait_for(under("p-reduce"), "a step under p-reduce")
            self.assertEqual(len(self.models_at(workers, "p-reduce")), 1, "all begin with one model")
            self.end_all(stop, workers)
            self.assertEqual([run["state"] for run in runs(c)], ["switched", "finished"])
            started = [json.loads(line) for line in c.prdctl("export", "2").splitlines()][0]
            self.assertIn("group_size = 2", started["spec"])
            self.assertIn("lease_ms = 50000", started["spec"])
            self.check_replays(c, ("1", "2"))

    def test_a_reload_switches_a_job_whose_table_is_live(self):
        with cluster.Cluster(BIN, JOB.format("p-reduce", 2) + "live = true\n") as c:
            stop = c.dir / "stop"
            workers = self.start(c, 2, steps=100_000, args=("--stop-file", str(stop)))
            c.config.write_text(c.config.read_text().replace('engine = "p-reduce"', 'engine = "all-reduce"'))
            c.daemon.send_signal(signal.SIGHUP)
            for worker in workers:
                worker.wait_for(under("all-reduce"), "a step under all-reduce")
            c.daemon.send_signal(signal.SIGHUP)  # nothing has changed
            counts = [len(worker.steps()) for worker in workers]
            for worker, count in zip(workers, counts):
                worker.wait_for(lambda line: line.get("step") == count + 3, "further steps")
            self.end_all(stop, workers)
            self.assertEqual([run["engine"] for run in runs(c)], ["p-reduce", "all-reduce"])

    def test_what_cannot_be_is_refused_and_nothing_stops(self):
        with cluster.Cluster(BIN, JOB.format("p-reduce", 2)) as c:
            stop = c.dir / "stop"
            workers = self.start(c, 2, steps=100_000, args=("--stop-file", str(stop)))
            for settings, why in (
                (["nonsense"], 'engine: found "nonsense", allowed is'),
                (["p-reduce", "group_sise=2"], "group_sise"),
                (["p-reduce", "group_size=1"], "group_size: found 1, allowed is"),
                (["all-reduce", "lease_ms=300"], "heartbeat_ms: found 200, allowed is less than half of lease_ms"),
            ):
                with self.assertRaises(AssertionError) as raised:
                    c.prdctl("switch", "toy", *settings)
                self.assertIn(why, str(raised.exception))
            counts = [len(worker.steps()) for worker in workers]
            for worker, count in zip(workers, counts):
                worker.wait_for(lambda line: line.get("step") == count + 3, "steps as before")
            stop.touch()
            for worker in workers:
                worker.end()
            self.assertEqual(len(runs(c)), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
