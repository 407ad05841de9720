#!/usr/bin/env python3
"""What a training loop may rely on, with real processes: clocks, goals, pauses. Usage: contract_test.py BIN_DIR [TEST ...]"""
import json
import sys
import unittest

import cluster

BIN = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/bin"

ENGINES = {
    "all-reduce": "", "backup": "", "p-reduce": "group_size = 2", "eager": "", "esync": "", "prague": "", "ad-psgd": "",
    "hop": "", "ssp": "",
}


def job(engine, workers, extra="", options=""):
    return f'[[job]]\nname = "toy"\nengine = "{engine}"\nworkers = {workers}\n{extra}\n[job.{engine}]\n{options}\n'


class Training(unittest.TestCase):
    def finish_equal(self, workers):
        """All end well, and as the same model."""
        ends = [worker.end() for worker in workers]
        self.assertEqual(len({end["sum"] for end in ends}), 1, ends)

    def test_a_goal_ends_every_engine(self):
        """The job's steps count those of all; every worker is told, the slow one too, and the clocks agree."""
        goal = 120
        for engine, options in ENGINES.items():
            with self.subTest(engine=engine), cluster.Cluster(BIN, job(engine, 3, f"goal_steps = {goal}", options)) as c:
                workers = [c.worker(rank, steps=100_000, step_ms=20 if rank == 2 else 5) for rank in range(3)]
                self.finish_equal(workers)
                lasts = [worker.steps()[-1] for worker in workers]
                self.assertTrue(all(last["done"] for last in lasts), lasts)
                self.assertGreaterEqual(sum(last["steps"] for last in lasts), goal)
                for worker in workers:
                    told = [line["job_steps"] for line in worker.steps()]
                    self.assertEqual(told, sorted(told), "progress() never falls")
                    self.assertEqual([line["steps"] for line in worker.steps()], list(range(1, len(told) + 1)))
                    self.assertFalse(any(line["done"] for line in worker.steps() if line["job_steps"] < goal))

    def test_clocks_go_on_after_a_kill(self):
        """A worker that is started again goes on with its count, and so does the job when its daemon is."""
        with cluster.Cluster(BIN, job("all-reduce", 2)) as c:
            workers = [c.worker(rank, steps=100_000, step_ms=20, args=["--stop-file", str(c.dir / "stop")]) for rank in range(2)]
            workers[0].wait_for(lambda line: line.get("steps", 0) >= 10, "ten steps")
            workers[1].kill()
            before = workers[1].steps()[-1]["steps"]
            again = c.worker(1, steps=100_000, step_ms=20, args=["--stop-file", str(c.dir / "stop")])
            first = again.wait_for(lambda line: "steps" in line, "a step")
            self.assertGreaterEqual(first["steps"], before)
            c.kill_daemon()
            told = workers[0].steps()[-1]["job_steps"]
            c.start_daemon()
            workers[0].wait_for(lambda line: line.get("job_steps", 0) > told + 10, "progress")
            (c.dir / "stop").touch()
            self.finish_equal([workers[0], again])
            counts = [line["job_steps"] for line in workers[0].steps()]
            self.assertEqual(counts, sorted(counts))
            own = workers[0].steps()[-1]["steps"] + again.steps()[-1]["steps"]
            self.assertLessEqual(counts[-1], own)
            self.assertGreaterEqual(counts[-1], own - 4)

    def test_a_pause_is_no_slow_step(self):
        """The others go on at their pace, and whoever has paused is one of them again."""
        for engine in ("all-reduce", "backup", "esync", "eager", "p-reduce", "hop"):
            with self.subTest(engine=engine), cluster.Cluster(BIN, job(engine, 3, "", ENGINES[engine])) as c:
                args = ["--stop-file", str(c.dir / "stop")]
                pauses = c.worker(1, steps=100_000, step_ms=10, args=args + ["--pause-at", "5", "--pause-ms", "1500"])
                others = [c.worker(rank, steps=100_000, step_ms=10, args=args) for rank in (0, 2)]
                pauses.wait_for(lambda line: line.get("step", -1) >= 4, "the step before the pause")
                at = len(others[0].steps())
                pauses.wait_for(lambda line: line.get("step", -1) >= 10, "steps after the pause")
                self.assertGreater(len(others[0].steps()) - at, 10, "steps of the others meanwhile")
                (c.dir / "stop").touch()
                self.finish_equal([pauses, *others])

    def test_who_stalls_until_the_others_have_finished_takes_their_model(self):
        with cluster.Cluster(BIN, job("p-reduce", 3, "goal_steps = 600", ENGINES["p-reduce"])) as c:
            hang = c.dir / "hang"
            workers = [c.worker(rank, steps=100_000, step_ms=1, args=["--hang-file", str(hang)] * (rank == 2))
                       for rank in range(3)]  # fmt: skip
            workers[2].wait_for(lambda line: line.get("step", -1) >= 3, "a few steps")
            hang.touch()
            states = lambda: [worker["state"] for worker in json.loads(c.prdctl("workers"))["workers"]]
            cluster.wait_until(lambda: states() == ["finishing", "finishing", "computing"], "the others' finish")
            hang.unlink()
            self.finish_equal(workers)
            final = [json.loads(line) for line in c.prdctl("export").splitlines() if '"final"' in line][0]
            self.assertRegex(final["reason"], r"^final average of ranks 0, 1; rank 2 is \d+ steps behind and takes it$")


if __name__ == "__main__":
    unittest.main()
