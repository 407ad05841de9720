#!/usr/bin/env python3
"""Jobs with a batch that the controller divides. Usage: batch_test.py BIN_DIR [TEST ...]"""
import json
import math
import sys
import unittest

import cluster

BIN = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/bin"
BATCH = 48
SIZE, RATE = 8, 0.05


def job(engine="all-reduce", workers=4, more=f"batch = {BATCH}\n"):
    return f'[[job]]\nname = "toy"\nengine = "{engine}"\nworkers = {workers}\nlease_ms = 3000\n{more}'


def trained_alone(steps, batch=BATCH):
    """The parameters of one process that computes whole batches, as batch_worker does."""
    parameters = [0.0] * SIZE
    for step in range(steps):
        total = [0.0] * SIZE
        for sample in range(step * batch, (step + 1) * batch):
            x = [math.sin(sample * (i + 1)) for i in range(SIZE)]
            error = sum(p * v for p, v in zip(parameters, x)) - math.cos(sample)
            total = [t + error * v for t, v in zip(total, x)]
        parameters = [p - RATE * t / batch for p, t in zip(parameters, total)]
    return parameters


def passes(workers):
    """By step: the passes (first, samples) that were part of it, of workers that were not killed in it."""
    found = {}
    for worker in workers:
        pending = []
        for line in worker.steps():
            pending.append((line["first"], line["samples"]))
            if line["partial"]:
                continue
            if not line["adopted"]:
                found.setdefault(line["step"], []).extend(pending)
            pending = []
    return found


class Training(unittest.TestCase):
    def worker(self, c, rank, *args, env=(), **more):
        return c.worker(rank, program="batch_worker", args=[*map(str, args)], env=env, **more)

    def assert_trained_alone(self, ends, steps):
        alone = trained_alone(steps)
        for end in ends:
            for ours, theirs in zip(end["parameters"], alone):
                self.assertAlmostEqual(ours, theirs, delta=1e-9 * max(1, abs(theirs)))

    def assert_whole(self, workers, steps):
        """Each of these steps had each sample of its batch once."""
        by_step = passes(workers)
        for step in steps:
            at = 0
            for first, samples in sorted(by_step[step]):
                self.assertEqual(first, at, f"step {step}: {sorted(by_step[step])}")
                at += samples
            self.assertEqual(at, BATCH, f"step {step}: {sorted(by_step[step])}")

    def shares_set(self, c):
        return [r for r in (json.loads(line) for line in c.prdctl("export").splitlines()) if r["type"] == "shares_set"]

    def test_a_step_is_that_of_one_process_whoever_computes_it(self):
        # The last one is slower. One is killed and comes back, one comes late, one pauses, the daemon is killed: no step differs from a
        # single process's.
        steps = 60
        with cluster.Cluster(BIN, job()) as c:
            workers = [self.worker(c, rank, "--steps", steps, "--sample-ms", 8 if rank == 3 else 2, "--pause-at", 25 if rank == 0 else -1)
                       for rank in range(4)]  # fmt: skip
            workers[1].wait_for(lambda line: line.get("step", 0) >= 10, "step 10")
            workers[1].kill()
            late = [self.worker(c, 4, "--steps", steps, "--sample-ms", 2), self.worker(c, 1, "--steps", steps, "--sample-ms", 2)]
            workers[0].wait_for(lambda line: line.get("step", 0) >= 40, "step 40")
            c.kill_daemon()
            c.start_daemon()
            ends = [worker.end() for worker in [workers[0], *workers[2:], *late]]
            self.assert_trained_alone(ends, steps)
            # What the killed one computed last is not in its lines.
            self.assert_whole([*workers, *late], [step for step in range(1, steps + 1) if not 9 <= step <= 14])
            for record in self.shares_set(c):
                if not record.get("more"):
                    self.assertEqual(sum(share["samples"] for share in record["shares"]), BATCH, record)
            last = [record for record in self.shares_set(c) if not record.get("more")][-1]["shares"]
            self.assertEqual([share["rank"] for share in last], [0, 1, 2, 3, 4])
            slow = last[3]["samples"]
            self.assertTrue(all(share["samples"] > slow for share in last if share["rank"] != 3), last)
            c.stop_daemon()
            self.assertEqual(json.loads(c.prdctl("replay", offline=True))["not_recorded"], 0)

    def test_a_step_goes_on_without_a_lost_share_where_none_accumulates(self):
        with cluster.Cluster(BIN, job(workers=3)) as c:
            workers = [self.worker(c, rank, "--steps", 30, "--sample-ms", 1, "--does-not-accumulate") for rank in range(3)]
            workers[2].wait_for(lambda line: line.get("step", 0) >= 5, "step 5")
            workers[2].kill()
            ends = [worker.end() for worker in workers[:2]]
            self.assertEqual(ends[0]["parameters"], ends[1]["parameters"])
            self.assertFalse(any(line["partial"] for worker in workers for line in worker.steps()))
            records = self.shares_set(c)
            lost = [record for record in records if record.get("more")]
            self.assertTrue(lost and not lost[0]["shares"], records)
            self.assertIn("goes on without", lost[0]["reason"])
            self.assertEqual([share["rank"] for share in records[-1]["shares"]], [0, 1])

    def test_memory_limits_make_several_passes(self):
        steps = 12
        with cluster.Cluster(BIN, job(workers=2, more="")) as c:
            told = {"PRD_BATCH": str(BATCH), "PRD_MAX_SHARE": "10"}.items()  # the batch is the workers' own idea
            workers = [self.worker(c, rank, "--steps", steps, env=told) for rank in range(2)]
            self.assert_trained_alone([worker.end() for worker in workers], steps)
            self.assert_whole(workers, range(1, steps + 1))
            self.assertTrue(all(line["samples"] <= 10 for worker in workers for line in worker.steps()))
        with cluster.Cluster(BIN, job(workers=2)) as c:
            told = {"PRD_MAX_SHARE": "10"}.items()
            workers = [self.worker(c, rank, "--steps", steps, "--does-not-accumulate", env=told) for rank in range(2)]
            for worker in workers:
                self.assertEqual(worker.end()["samples"], 10 * steps)
            self.assertIn("does not fit", self.shares_set(c)[0]["reason"])

    def test_who_cannot_take_part_is_told_why(self):
        with cluster.Cluster(BIN, job(workers=2, more="batch = 2\n")) as c:
            workers = [self.worker(c, rank, "--steps", 1000, "--sample-ms", 5) for rank in range(2)]
            workers[0].wait_for(lambda line: "step" in line, "a step")
            self.assertIn("too few for 3 workers", self.worker(c, 2).fail())
        with cluster.Cluster(BIN, job("p-reduce", 2, "")) as c:  # it divides none: each worker has its part
            told = {"PRD_BATCH": "9"}.items()
            workers = [self.worker(c, rank, "--steps", 8, env=told) for rank in range(2)]
            for worker in workers:
                worker.end()
                self.assertEqual({line["samples"] for line in worker.steps()}, {4})


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
