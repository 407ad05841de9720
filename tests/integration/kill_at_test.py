#!/usr/bin/env python3
"""A worker is killed (SIGKILL) before its n-th message, for many n, under every engine. Usage: kill_at_test.py BIN_DIR [TEST ...]

PRD_KILLS=N in the environment: so many deaths for each case, one message later each; otherwise a few, spread over what a worker
sends until it has taken part in some groups.
"""
import os
import signal
import sys
import unittest

import cluster
import cluster_test

BIN = cluster_test.BIN
KILLS = int(os.environ.get("PRD_KILLS", "0"))
FEW = (2, 3, 5, 8, 12, 17, 23, 31, 40, 52, 67, 90)
FLOATS = 600_000  # so many that reductions go around the ring, in chunks
OFFSET, TARGETS = 1000, 3  # the model starts at OFFSET, and worker r pulls it towards OFFSET + r
VICTIM = 3
CHUNKS = 32  # of 512 KiB, in the model that a newcomer copies

CASES = (("all-reduce", ""), ("backup", "backups = 1\n"), ("eager", 'quorum = "majority"\n'), ("esync", ""),
         ("p-reduce", ""), ("p-reduce", "overlap = true\n"), ("prague", 'generator = "random"\n'), ("ad-psgd", ""),
         ("hop", "backups = 1\n"), ("ssp", "staleness = 2\n"))
EQUAL = ("all-reduce", "backup")  # after each step, too


class Training(cluster_test.Training):
    def dies(self, case):
        """The victim is killed before one message after another, and comes back each time; then all train to the end."""
        engine, options = case
        config = f'[[job]]\nname = "toy"\nengine = "{engine}"\nworkers = 4\n[job.{engine}]\n{options}'
        state = engine in EQUAL
        with cluster.Cluster(BIN, config) as c:
            stop = c.dir / "stop"
            usual = {"steps": 1_000_000, "step_ms": 5, "size": FLOATS, "velocity": "state" if state else "none",
                     "args": ["--stop-file", stop, "--offset", str(OFFSET)]}
            others = [c.worker(rank, **usual) for rank in range(4) if rank != VICTIM]
            lives = []

            def killed(at):
                env = {"LD_PRELOAD": f"{BIN}/libkill_at.so", "PRD_TEST_KILL_AT": str(at)}
                lives.append(c.worker(VICTIM, env=env, **usual))
                self.assertEqual(lives[-1].process.wait(cluster.DEADLINE_S), -signal.SIGKILL, lives[-1].lines[-3:])

            for at in range(1, KILLS + 1) if KILLS else FEW:
                killed(at)
            while not any(life.steps() for life in lives):  # on a busy machine it says more before it trains
                killed(2 * at)
                at *= 2
            lives.append(c.worker(VICTIM, **usual))
            lives[-1].wait_for(lambda line: line.get("step", -1) >= 3, "step 3 of who came back")
            stop.touch()
            self.finish_equal(others + lives[-1:])
            self.replays(c)
            steps = [line for worker in others + lives for line in worker.steps()]
        for line in steps:
            # What is averaged stays between what is averaged: no part of a model counts twice, or is left out.
            self.assertGreaterEqual(line["least"], OFFSET - TARGETS, line)
            self.assertLessEqual(line["most"], OFFSET + 2 * TARGETS, line)
        models = {}
        for line in steps if state else ():
            models.setdefault(line["iteration"], set()).add(line["model"])
        self.assertEqual([at for at, of in models.items() if len(of) > 1], [], "workers of one iteration have several models")

    def copied(self, engine):
        """The only source is killed as a newcomer copies its model: so the newcomer has a part of it, and ends, saying so."""
        config = f'[[job]]\nname = "toy"\nengine = "{engine}"\nworkers = 1\n'
        dies = {"LD_PRELOAD": f"{BIN}/libkill_at.so", "PRD_TEST_KILL_LONG": str(CHUNKS // 2)}
        with cluster.Cluster(BIN, config) as c:
            stop = c.dir / "stop"
            usual = {"steps": 1_000_000, "step_ms": 20, "size": CHUNKS << 17, "args": ["--stop-file", stop]}

            source = c.worker(0, env=dies, **usual)
            source.wait_for(lambda line: line.get("step", -1) >= 3, "step 3")
            newcomer = c.worker(1, **usual)
            self.assertEqual(source.process.wait(cluster.DEADLINE_S), -signal.SIGKILL, source.lines[-3:])
            self.assertIn("are partly those of a peer", newcomer.fail())
            others = [c.worker(rank, **usual) for rank in (0, 1)]
            for worker in others:
                worker.wait_for(lambda line: line.get("step", -1) >= 3, "step 3 after that")
            stop.touch()
            self.finish_equal(others)
            self.replays(c)

    def slept(self, engine):
        """The only source sleeps past its lease as a newcomer copies its model: the newcomer ends, and the source, once awake, trains on."""
        config = f'[[job]]\nname = "toy"\nengine = "{engine}"\nworkers = 1\nlease_ms = 1000\nheartbeat_ms = 200\n'
        sleeps = {"LD_PRELOAD": f"{BIN}/libkill_at.so", "PRD_TEST_KILL_LONG": str(CHUNKS // 2), "PRD_TEST_KILL_SIGNAL": str(int(signal.SIGSTOP))}
        with cluster.Cluster(BIN, config) as c:
            stop = c.dir / "stop"
            usual = {"steps": 1_000_000, "step_ms": 20, "size": CHUNKS << 17, "args": ["--stop-file", stop]}
            source = c.worker(0, env=sleeps, **usual)
            source.wait_for(lambda line: line.get("step", -1) >= 3, "step 3")
            self.assertIn("are partly those of a peer", c.worker(1, **usual).fail())
            trained = source.steps()[-1]["steps"]
            source.wake()
            again = source.wait_for(lambda line: line.get("steps", 0) > trained, "a step after the sleep")
            self.assertGreaterEqual(again["applied"], trained)
            newcomer = c.worker(1, **usual)
            newcomer.wait_for(lambda line: line.get("step", -1) >= 3, "step 3 of the newcomer")
            stop.touch()
            self.finish_equal([source, newcomer])
            self.replays(c)

    def started(self, engine):
        """Rank 0 is killed as the others take its model over at the common start: the next rank 0's takes the place of what they have."""
        config = f'[[job]]\nname = "toy"\nengine = "{engine}"\nworkers = 3\n'
        dies = {"LD_PRELOAD": f"{BIN}/libkill_at.so", "PRD_TEST_KILL_LONG": str(CHUNKS // 2)}
        with cluster.Cluster(BIN, config) as c:
            usual = {"steps": 5, "step_ms": 20, "size": CHUNKS << 17}
            others = [c.worker(rank, **usual) for rank in (1, 2)]
            source = c.worker(0, env=dies, **usual)
            self.assertEqual(source.process.wait(cluster.DEADLINE_S), -signal.SIGKILL, source.lines[-3:])
            self.assertEqual(source.steps(), [])
            self.finish_equal([c.worker(0, **usual)] + others)
            self.replays(c)

    def test_a_worker_dies_before_any_message(self):
        self.side_by_side(self.dies, *CASES)

    def test_a_source_dies_as_it_is_copied(self):
        self.side_by_side(self.copied, *(engine for engine, options in CASES if not options))

    def test_a_source_sleeps_as_it_is_copied(self):
        self.side_by_side(self.slept, *(engine for engine, options in CASES if not options))

    def test_a_source_dies_in_the_common_start(self):
        self.side_by_side(self.started, *(engine for engine, options in CASES if not options))


if __name__ == "__main__":
    unittest.main()
