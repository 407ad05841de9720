#!/usr/bin/env python3
"""Real processes end to end: a daemon, workers, kill -9. Usage: cluster_test.py BIN_DIR [TEST ...]"""
from concurrent import futures
import json
import sys
import types
import unittest

import cluster

BIN = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/bin"


def job(engine, workers, name="toy", extra=""):
    return (f'[[job]]\nname = "{name}"\nengine = "{engine}"\nworkers = {workers}\n{extra}\n'
            f"[job.p-reduce]\ngroup_size = 3\n")


def count(lines, predicate):
    return sum(1 for line in lines if predicate(line))


class Training(unittest.TestCase):
    def finish_equal(self, workers):
        """All end well, and as the same model."""
        ends = [worker.end() for worker in workers]
        self.assertEqual(len({end["sum"] for end in ends}), 1, ends)
        return ends

    def end_after_kills(self, c, again_in_groups=False, devices=(), alone=False):
        """Four workers; the daemon dies, worker 3 dies, and another takes its rank. Gives how they ended.

        again_in_groups: that one has been in a group with others; devices: the ranks that are on one; alone: workers train on
        without the daemon. They stand still while it starts, and while the other comes, however long that takes.
        """
        hang = c.dir / "hang"
        workers = [c.worker(rank, steps=80, step_ms=60 if rank == 0 else 25, device=rank in devices, args=["--hang-file", hang])
                   for rank in range(4)]

        def reaches(step):
            workers[1].wait_for(lambda line: line.get("step", -1) >= step, f"step {step}")

        def stand_still(do):
            if alone:
                hang.touch()
            done = do()
            hang.unlink(missing_ok=True)
            return done

        def comes():
            again = c.worker(3, steps=15, step_ms=25, device=3 in devices)
            return again, again.wait_for(lambda line: "attached" in line, "attach")

        reaches(5)
        c.kill_daemon()
        if alone:
            reaches(8)
        stand_still(c.start_daemon)
        reaches(12)
        workers[3].kill()
        again, attached = stand_still(comes)
        self.assertGreater(attached["iteration"], 0)
        if again_in_groups:
            again.wait_for(lambda line: len(line.get("members", [])) > 1, "a group with others")
        return self.finish_equal(workers[:3] + [again])

    def side_by_side(self, test, *cases):
        """Calls test(case) of all, a few at a time: they mostly wait."""
        with futures.ThreadPoolExecutor(3) as pool:
            running = [(case, pool.submit(test, case)) for case in cases]
        for case, done in running:
            with self.subTest(case=case):
                done.result()

    def replays(self, c):
        """The history of the ended run is whole: a replay takes the same decisions."""
        c.stop_daemon()
        replay = json.loads(c.prdctl("replay", offline=True))
        self.assertEqual(replay["not_recorded"], 0, replay)
        self.assertTrue(replay["run"]["ended"], replay)

    def test_engines_switch_by_config_alone(self):
        for engine in ("all-reduce", "p-reduce"):
            with self.subTest(engine=engine), cluster.Cluster(BIN, job(engine, 4)) as c:
                workers = [c.worker(rank, steps=10, step_ms=60 if rank == 0 else 15) for rank in range(4)]
                ends = self.finish_equal(workers)
                self.assertTrue(all(end["applied"] == 10 for end in ends), ends)
                first = {w.lines[0]["first"] for w in workers}
                self.assertEqual(len(first), 1, "the common start differs")
                self.assertEqual({w.lines[0]["engine"] for w in workers}, {engine})
                for w in workers:
                    size = 4 if engine == "all-reduce" else 3
                    largest = max(len(step["members"]) for step in w.steps())
                    self.assertEqual(largest, size)
                    iterations = [step["iteration"] for step in w.steps()]
                    self.assertEqual(iterations, sorted(iterations))

    def test_one_worker_alone(self):
        with cluster.Cluster(BIN, job("p-reduce", 1)) as c:
            self.finish_equal([c.worker(0, steps=5)])

    def test_two_jobs_at_once(self):
        with cluster.Cluster(BIN, job("p-reduce", 3, "one") + job("all-reduce", 2, "two")) as c:
            one = [c.worker(rank, job="one") for rank in range(3)]
            two = [c.worker(rank, job="two") for rank in range(2)]
            self.finish_equal(one)
            self.finish_equal(two)

    def test_daemon_killed_and_restarted(self):
        for engine in ("all-reduce", "p-reduce"):
            with self.subTest(engine=engine), cluster.Cluster(BIN, job(engine, 4)) as c:
                workers = [c.worker(rank, steps=40, step_ms=25) for rank in range(4)]
                for at in (5, 15):
                    workers[1].wait_for(lambda line, at=at: line.get("step", -1) >= at, f"step {at}")
                    c.kill_daemon()
                    c.start_daemon()
                ends = self.finish_equal(workers)
                # No iteration is lost: every worker applied each of its steps exactly once.
                self.assertTrue(all(end["applied"] == 40 for end in ends), ends)
                c.stop_daemon()
                # The history has no hole, and a replay takes the same decisions.
                replay = json.loads(c.prdctl("replay", offline=True))
                self.assertEqual(replay["not_recorded"], 0, replay)
                self.assertGreater(replay["decisions"], 40, replay)
                self.assertTrue(replay["run"]["ended"], replay)

    def test_worker_killed(self):
        for engine in ("all-reduce", "p-reduce"):
            with self.subTest(engine=engine), cluster.Cluster(BIN, job(engine, 4)) as c:
                workers = [c.worker(rank, steps=30, step_ms=25) for rank in range(4)]
                workers[3].wait_for(lambda line: line.get("step", -1) >= 5, "step 5")
                workers[3].kill()
                ends = self.finish_equal(workers[:3])
                # A step whose round the others have, but not this worker, ends with a copy instead of an apply.
                for worker, end in zip(workers, ends):
                    adopted = sum(step["adopted"] for step in worker.steps())
                    self.assertEqual(end["applied"] + adopted, 30, end)

    def test_late_worker_gets_a_running_model(self):
        for engine in ("all-reduce", "p-reduce"):
            with self.subTest(engine=engine), cluster.Cluster(BIN, job(engine, 3)) as c:
                workers = [c.worker(rank, steps=60, step_ms=25) for rank in range(3)]
                workers[0].wait_for(lambda line: line.get("step", -1) >= 8, "step 8")
                late = c.worker(3, steps=10, step_ms=25)
                attached = late.wait_for(lambda line: "attached" in line, "attach")
                self.assertGreaterEqual(attached["iteration"], 5)
                late.wait_for(lambda line: len(line.get("members", [])) > 1, "a group with others")
                self.finish_equal(workers + [late])

    def test_killed_worker_comes_back(self):
        with cluster.Cluster(BIN, job("p-reduce", 3)) as c:
            workers = [c.worker(rank, steps=120, step_ms=25) for rank in range(3)]
            workers[2].wait_for(lambda line: line.get("step", -1) >= 5, "step 5")
            workers[2].kill()
            again = c.worker(2, steps=10, step_ms=25)  # refused until the lease has run out, then let in
            again.wait_for(lambda line: len(line.get("members", [])) > 1, "a group with others")
            self.finish_equal(workers[:2] + [again])

    def digests(self, records, since_ns):
        """By group, in order: what members told of their replicas after its result was in."""
        told = {}
        for record in records:
            if record["type"] == "finished" and record.get("digest") and record["now_ns"] > since_ns:
                told.setdefault(record["group"], []).append(record["digest"])
        return told

    def momentum(self, config, velocity):
        """Three workers train with momentum, towards targets of their own, up to a goal. Rank 0 pauses now and then; rank 2 dies,
        and another takes its rank. Gives the iterations after which two of them had different models, and how many were
        compared; whether all were the same before Finish; the digests, and the records of replicas that differ."""
        with cluster.Cluster(BIN, config) as c:
            pauses = ["--pause-at", "12", "--pause-ms", "300", "--pause-every", "30"]
            workers = [c.worker(rank, steps=100_000, step_ms=60 if rank == 0 else 25, velocity=velocity, args=() if rank else pauses)
                       for rank in range(3)]
            workers[1].wait_for(lambda line: line.get("step", -1) >= 10, "step 10")
            workers[2].kill()
            again = c.worker(2, steps=100_000, step_ms=25, velocity=velocity)
            attached = again.wait_for(lambda line: "attached" in line, "attach")
            self.assertGreater(attached["iteration"], 0)
            ends = self.finish_equal(workers[:2] + [again])
            self.assertGreater(ends[2]["applied"], 0, "the new one took part")
            lasts = [worker.steps()[-1] for worker in (*workers[:2], again)]
            self.assertTrue(all(last["done"] for last in lasts), lasts)
            models = {}
            for worker in [*workers, again]:
                for step in worker.steps():
                    models.setdefault(step["iteration"], []).append(step["model"])
            models = {at: of for at, of in models.items() if len(of) > 1}
            records = [json.loads(line) for line in c.prdctl("export").splitlines()]
            self.assertGreater(count(records, lambda r: r["type"] == "worker_left" and r["rank"] == 0 and r["why"] == "paused"), 0)
            joined_ns = [r["now_ns"] for r in records if r["type"] == "worker_joined" and r["rank"] == 2][-1]
            differ = [r for r in records if r["type"] == "replicas_differ"]
            if differ:
                print(f"{velocity}: {differ[0]['reason']}: {(differ[0]['now_ns'] - joined_ns) / 1e9:.2f} s after it joined")
            mends = [r for r in records if r["type"] == "adopt_ordered" and r["reason"].startswith("its replica differs")]
            self.assertEqual(bool(mends), 'on_divergence = "repair"' in config, mends)
            log = (c.dir / "prd.log").read_text().splitlines()
            warned = any("warning" in line and " other parameters than " in line for line in log)
            self.assertEqual(warned, bool(differ), "replicas that differ are a warning")
            return types.SimpleNamespace(
                apart=[at for at, of in models.items() if len(set(of)) > 1], compared=len(models),
                end_equal=len({last["model"] for last in lasts}) == 1, differ=differ, digests=self.digests(records, 0),
                until_told=len(self.digests([r for r in records if differ and r["now_ns"] <= differ[0]["now_ns"]], joined_ns)))

    def test_replicas_with_momentum_stay_equal(self):
        """As long as the velocity is state of the replica (Replica::state), and goes with every copy of it. Otherwise the
        history and the log tell who differs; and a worker that copies what the others have is equal again for a while."""
        def trains(case):
            engine, velocity, on_divergence = case
            config = job(engine, 3, extra=f'goal_steps = 210\ncheck_replicas_ms = 200\non_divergence = "{on_divergence}"')
            config += "[job.backup]\nbackups = 1\n" if engine == "backup" else ""
            run = self.momentum(config, velocity)
            self.assertGreater(run.compared, 20)
            self.assertGreater(count(run.digests.values(), lambda told: len(told) > 1), 5)
            if velocity == "state":
                self.assertEqual((run.apart, run.differ), ([], []))
                # Under backup one of them may have a round more, whose gradients reached the goal.
                self.assertTrue(run.end_equal or engine == "backup", "before Finish")
                self.assertTrue(all(len(set(told)) == 1 for told in run.digests.values()), run.digests)
                return
            self.assertGreater(len(run.apart), 5, "a difference that nobody sees")
            self.assertTrue(any(record["ranks"] for record in run.differ), run.differ)
            if engine == "all-reduce":  # the others never copied: the second comparison finds it, so within 10 s by default
                self.assertLessEqual(run.until_told, 2)
        cases = [(e, v, "warn") for e in ("all-reduce", "backup") for v in ("state", "own")]
        self.side_by_side(trains, *cases, ("all-reduce", "own", "repair"))

    def test_shared_rounds_survive_kills(self):
        """Engines whose rounds all share: the daemon dies, a worker dies, another takes its rank."""
        for engine, table in (("eager", '[job.eager]\nquorum = "solo"\nsync_every = 10\n'),
                              ("eager", '[job.eager]\nquorum = "majority"\n'),
                              ("backup", "[job.backup]\nbackups = 1\n"),
                              ("esync", '[job.esync]\nmode = "blocking"\n'),
                              ("esync", '[job.esync]\nmode = "delayed-ack"\n')):
            config = job(engine, 4) + table
            with self.subTest(table=table), cluster.Cluster(BIN, config) as c:
                ends = self.end_after_kills(c)
                if engine == "eager":  # a step applies once; Finish may apply what came after
                    self.assertTrue(all(end["applied"] >= 80 for end in ends[:3]), ends)
                if engine == "esync":
                    self.assertTrue(all(end["applied"] == 80 for end in ends[:3]), ends)
                self.replays(c)

    def test_groups_of_models_survive_kills(self):
        """Groups drawn ahead, or averaged beside the training: the daemon dies, a worker dies, and comes back."""
        smart = 'generator = "smart"\nworkers_per_host = 2\n'
        for engine, options in (("p-reduce", "overlap = true\n"), ("ad-psgd", 'graph = "ring"\n'),
                                ("ad-psgd", "overlap = true\n"), ("prague", 'generator = "random"\n'),
                                ("prague", smart), ("prague", smart + "overlap = true\n"),
                                ("prague", 'generator = "static"\nworkers_per_host = 2\n')):
            config = job(engine, 4) + ("" if engine == "p-reduce" else f"[job.{engine}]\n") + options
            with self.subTest(engine=engine, options=options), cluster.Cluster(BIN, config) as c:
                ends = self.end_after_kills(c, again_in_groups=True, alone="static" in options)
                self.assertTrue(all(end["applied"] == 80 for end in ends[:3]), ends)
                self.assertEqual(ends[3]["applied"], 15)
                self.replays(c)

    def test_devices_survive_kills(self):
        """Models on devices of the stand-in for CUDA and NCCL (which says nothing about GPUs), alone and beside others."""
        def survive(case):
            (engine, options), devices = case
            config = job(engine, 4) + ("" if engine == "p-reduce" else f"[job.{engine}]\n") + options
            with cluster.Cluster(BIN, config) as c:
                self.end_after_kills(c, devices=devices)
                self.replays(c)

        engines = (("p-reduce", ""), ("all-reduce", ""), ("eager", 'quorum = "majority"\n'), ("prague", 'generator = "random"\n'))
        self.side_by_side(survive, *[(engine, (0, 1, 2, 3)) for engine in engines],
                          *[(engine, (1, 3)) for engine in engines])

    def test_neighbours_survive_kills(self):
        """hop: the daemon dies, a worker dies while its neighbours wait for it, and another takes its rank."""

        def survives(options):
            with cluster.Cluster(BIN, job("hop", 4) + "[job.hop]\n" + options) as c:
                ends = self.end_after_kills(c)
                # No step is lost: each is applied once, also of who skips iterations.
                self.assertEqual([end["applied"] for end in ends], [80, 80, 80, 15])
                self.replays(c)

        self.side_by_side(survives, "backups = 1\n", "staleness = 3\n", "backups = 1\nmax_jump = 10\n",
                          'order = "serial"\n', 'graph = "hierarchical"\nworkers_per_host = 2\n')

    def test_shards_survive_kills(self):
        """ssp: the daemon dies, an owner of shards dies, and another takes its rank."""

        def survives(options):
            with cluster.Cluster(BIN, job("ssp", 4) + "[job.ssp]\n" + options) as c:
                ends = self.end_after_kills(c)
                self.assertEqual([end["applied"] for end in ends], [80, 80, 80, 15])
                self.replays(c)
                # The shards of who was killed were taken from who had copies: nobody began anew.
                placements = [record for record in map(json.loads, c.prdctl("export", offline=True).splitlines())
                              if record["type"] == "placement_set"]
                # One for the start, one without rank 3, and one with it again; the last two are one if it comes soon.
                self.assertGreater(len(placements), 1)
                for placement in placements[1:]:
                    self.assertTrue(all(shard["source"] >= 0 for shard in placement["shards"]), placement)

        self.side_by_side(survives, "staleness = 0\n", "staleness = 3\n", "staleness = -1\n")

    def test_without_groups_workers_join_and_leave(self):
        def works(engine):
            with cluster.Cluster(BIN, job(engine, 3)) as c:
                workers = [c.worker(rank, steps=60, step_ms=25) for rank in range(3)]
                leaver = workers.pop()
                workers[0].wait_for(lambda line: line.get("step", -1) >= 8, "step 8")
                late = c.worker(3, steps=10, step_ms=25)
                attached = late.wait_for(lambda line: "attached" in line, "attach")
                self.assertGreaterEqual(attached["iteration"], 5)
                leaver.kill()
                leaves = c.worker(4, steps=3, step_ms=25, leave=True)
                leaves.end()
                self.finish_equal(workers + [late])
                self.replays(c)

        self.side_by_side(works, "hop", "ssp")

    def test_leaving_worker_releases_the_others(self):
        with cluster.Cluster(BIN, job("all-reduce", 3)) as c:
            leaver = c.worker(2, steps=5, leave=True)
            others = [c.worker(rank, steps=20) for rank in range(2)]
            leaver.end()
            self.finish_equal(others)

    def test_refusals_say_why(self):
        with cluster.Cluster(BIN, job("p-reduce", 2)) as c:
            stranger = c.worker(0, job="no-such-job")
            self.assertEqual(stranger.process.wait(cluster.DEADLINE_S), 1)
            stranger.reader.join()
            self.assertIn("no-such-job", stranger.lines[-1]["error"])
            self.assertIn("toy", stranger.lines[-1]["error"])
            other_size = [c.worker(0, size=10), c.worker(1, size=20)]
            ended = cluster.first_to_end(other_size)
            ended.reader.join()
            self.assertIn("model differs", ended.lines[-1]["error"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
