#!/usr/bin/env python3
"""Which run a worker belongs to, who is let in, and what the others hear of it. Real processes.
Usage: runs_test.py BIN_DIR [TEST ...]"""
from concurrent import futures
import json
import sys
import time
import unittest

import cluster

BIN = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/bin"
LEASE_MS = 2000


def job(engine, workers, lease_ms=LEASE_MS):
    return f'[[job]]\nname = "toy"\nengine = "{engine}"\nworkers = {workers}\nlease_ms = {lease_ms}\n[job.p-reduce]\ngroup_size = 2\n'


def has(key):
    return lambda line: key in line


class Training(unittest.TestCase):
    def each(self, test, *cases):
        with futures.ThreadPoolExecutor(3) as pool:
            running = [(case, pool.submit(test, case)) for case in cases]
        for case, done in running:
            with self.subTest(case=case):
                done.result()

    def leave_asleep(self, c):
        """A job of three is over, but for a worker that sleeps. Gives that one."""
        workers = [c.worker(rank, steps=60, step_ms=15) for rank in range(3)]
        sleeper = workers.pop(0)
        sleeper.wait_for(lambda line: line.get("step", -1) >= 5, "step 5")
        sleeper.stop()
        for worker in workers:
            worker.end()
        run = json.loads(c.prdctl("jobs"))["runs"][-1]
        self.assertEqual((run["ended"], run["state"]), (True, "finished"), run)
        return sleeper

    def is_aborted(self, sleeper):
        sleeper.wake()
        error = sleeper.fail()
        self.assertIn("aborted", error.lower())
        self.assertRegex(error, "run [0-9]+ of job toy, in which this worker trained, has ended")

    def trains(self, workers):
        """These have a start of their own, and end as one model."""
        firsts = [worker.wait_for(has("attached"), "attach") for worker in workers]
        self.assertEqual({first["iteration"] for first in firsts}, {0}, firsts)
        self.assertEqual({first["first"] for first in firsts}, {workers[0].process.pid % 1000}, "rank 0's own parameters")
        ends = [worker.end() for worker in workers]
        self.assertEqual(len({end["sum"] for end in ends}), 1, ends)

    def test_who_wakes_after_its_job_is_aborted(self):
        def one(case):
            engine, restart = case
            with cluster.Cluster(BIN, job(engine, 3)) as c:
                sleeper = self.leave_asleep(c)
                if restart:
                    c.kill_daemon()
                    c.start_daemon()
                self.is_aborted(sleeper)
                self.assertEqual(len(json.loads(c.prdctl("jobs"))["runs"]), 1, "it began no other run")
                self.assertIn("is refused: run 1 of job toy, in which this worker trained, has ended", c.daemon_log())
                self.trains([c.worker(rank, steps=5) for rank in range(3)])

        self.each(one, ("all-reduce", False), ("p-reduce", False), ("p-reduce", True), ("hop", False), ("ssp", False))

    def test_who_wakes_while_the_next_job_runs_is_not_in_it(self):
        def one(engine):
            with cluster.Cluster(BIN, job(engine, 3)) as c:
                sleeper = self.leave_asleep(c)
                fresh = [c.worker(rank, steps=60, step_ms=15) for rank in range(3)]
                fresh[0].wait_for(lambda line: line.get("step", -1) >= 5, "step 5")
                self.is_aborted(sleeper)
                self.trains(fresh)
                c.stop_daemon()
                joined = [record for record in map(json.loads, c.prdctl("export", "2", offline=True).splitlines())
                          if record["type"] == "worker_joined"]
                self.assertEqual(sorted(record["rank"] for record in joined), [0, 1, 2])

        self.each(one, "all-reduce", "p-reduce", "ssp")

    def test_the_others_hear_why_a_worker_was_refused(self):
        with cluster.Cluster(BIN, job("all-reduce", 3)) as c:
            others = [c.worker(rank, size=10, env={"PRD_START_TIMEOUT_MS": "12000"}) for rank in range(2)]

            def both_wait():
                runs = json.loads(c.prdctl("jobs"))["runs"]
                return runs and len(json.loads(c.prdctl("workers"))["workers"]) == 2

            cluster.wait_until(both_wait, "two workers that wait")
            self.assertEqual(json.loads(c.prdctl("jobs"))["runs"][0]["state"], "starting")
            wrong = c.worker(2, size=20)
            self.assertIn("model differs", wrong.fail())
            who = f"rank 2 (pid {wrong.process.pid} on "
            for worker in json.loads(c.prdctl("explain"))["workers"]:
                self.assertIn("missing: rank 2; refused: " + who, worker["why"])
            refused = json.loads(c.prdctl("explain"))["refused"]
            self.assertEqual([(r["rank"], r["pid"]) for r in refused], [(2, wrong.process.pid)])
            self.assertIn("model differs", refused[0]["reason"])
            self.assertIn(who, c.daemon_log())
            for worker in others:
                error = worker.fail()
                self.assertIn("the job has not begun for this worker within 12000 ms", error)
                self.assertIn("refused: " + who, error)
                self.assertIn("model differs", error)
            cluster.wait_until(lambda: json.loads(c.prdctl("jobs"))["runs"][0]["ended"], "the end of the run")
            self.assertEqual(json.loads(c.prdctl("jobs"))["runs"][0]["state"], "never began")

    def test_who_leaves_has_not_finished(self):
        with cluster.Cluster(BIN, job("p-reduce", 2)) as c:
            for worker in [c.worker(rank, leave=True) for rank in range(2)]:
                worker.end()
            run = json.loads(c.prdctl("jobs"))["runs"][0]
            self.assertEqual((run["ended"], run["state"]), (True, "left"), run)

    def test_a_launch_is_not_joined_by_the_remains_of_another(self):
        """A launcher is started again while a worker of its first start sleeps."""
        def launch(c, name, ranks, **options):
            return [c.worker(rank, step_ms=15, env={"PRD_LAUNCH": name}, **options) for rank in ranks]

        with cluster.Cluster(BIN, job("p-reduce", 2)) as c:
            remains, dead = launch(c, "first", range(2), steps=10000)
            remains.wait_for(lambda line: line.get("step", -1) >= 5, "step 5")
            second = launch(c, "second", [2])  # no rank of it is held

            def refused():
                return json.loads(c.prdctl("explain"))["refused"]

            cluster.wait_until(refused, "a refusal")
            self.assertRegex(refused()[0]["reason"], r"launch first of job toy still runs \(rank 0, pid [0-9]+ on .*\); this is launch second")
            remains.stop()
            dead.kill()
            second += launch(c, "second", [0], steps=60)
            firsts = [worker.wait_for(has("attached"), "attach") for worker in second]
            self.assertEqual({first["first"] for first in firsts}, {second[1].process.pid % 1000}, "rank 0's own parameters")
            remains.wake()
            self.assertRegex(remains.fail(), "a new launch of job toy has begun: second")
            ends = [worker.end() for worker in second]
            self.assertEqual(len({end["sum"] for end in ends}), 1, ends)
            self.assertEqual([run["state"] for run in json.loads(c.prdctl("jobs"))["runs"]], ["lost", "finished"])

    def test_a_dead_source_is_asked_once_a_second(self):
        """Both workers are killed, and started again at once, while the leases of the dead ones run on."""
        lease_s = 6
        text = job("p-reduce", 2, lease_ms=1000 * lease_s).replace("workers = 2", "workers = 2\ndeath_grace_ms = 0")  # by lease alone
        with cluster.Cluster(BIN, text) as c:
            dead = [c.worker(rank, steps=10000, step_ms=15) for rank in range(2)]
            dead[0].wait_for(lambda line: line.get("step", -1) >= 5, "step 5")
            dead[0].kill()
            again = [c.worker(0, steps=20, step_ms=15)]
            time.sleep(lease_s / 2)  # so long the second lease outlives the first
            dead[1].kill()
            again.append(c.worker(1, steps=20, step_ms=15))
            for worker in again:
                worker.end()
            c.stop_daemon()
            records = [json.loads(line) for line in c.prdctl("export", "1", offline=True).splitlines()]
            orders = [record for record in records if record["type"] == "adopt_ordered" and record["rank"] == 0]
            self.assertTrue(orders, "it did not join while the dead one's lease ran on")
            self.assertLessEqual(len(orders), lease_s + 2)
            for one, other in zip(orders, orders[1:]):
                self.assertGreaterEqual(other["now_ns"] - one["now_ns"], 1_000_000_000)


if __name__ == "__main__":
    unittest.main(verbosity=2)
