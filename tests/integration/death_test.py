#!/usr/bin/env python3
"""Who notices that a process is gone, and who is taken for gone that is not. Usage: death_test.py BIN_DIR [TEST ...]"""
import json
import os
import sys
import unittest

import cluster
import proxy

BIN = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/bin"
# So long that a test which waited for it would fail.
LEASE = "lease_ms = 3600000\nheartbeat_ms = 500\n"


def job(engine, workers, more=""):
    return f'[[job]]\nname = "*"\nengine = "{engine}"\nworkers = {workers}\n{LEASE}{more}\n'


def records(c, kind):
    return [r for r in (json.loads(line) for line in c.prdctl("export").splitlines()) if r["type"] == kind]


class Training(unittest.TestCase):
    def worker(self, c, rank, *args, **options):
        return c.worker(rank, steps=100_000, step_ms=10, args=["--stop-file", str(c.dir / "stop"), *args], **options)

    def start(self, c, count, **options):
        workers = [self.worker(c, rank, **options) for rank in range(count)]
        for worker in workers:
            self.go_on(worker)
        return workers

    def go_on(self, worker, steps=5):
        last = worker.steps()[-1]["step"] if worker.steps() else -1
        worker.wait_for(lambda line: line.get("step", -1) >= last + steps, f"step {last + steps}")

    def finish_equal(self, c, workers):
        (c.dir / "stop").touch()
        ends = [worker.end() for worker in workers]
        self.assertEqual(len({end["sum"] for end in ends}), 1, ends)

    def test_a_killed_process_is_not_waited_for(self):
        # Over ipc, tcp, and tcp with keys. Two die in one instant, then one more that is started again at once.
        for engine, over in (("all-reduce", "ipc"), ("all-reduce", "tcp"), ("all-reduce", "curve"), ("hop", "tcp"), ("ssp", "ipc")):
            c = cluster.Cluster(BIN, job(engine, 4), address="127.0.0.2" if over == "curve" else "127.0.0.1")
            if over == "ipc":
                ipc = f"ipc://{c.dir}/workers.sock"
                c.config.write_text(c.config.read_text().replace(c.endpoint, ipc))
                c.endpoint = ipc
            with self.subTest(engine=engine, over=over), c:
                workers = self.start(c, 4)
                for worker in workers[2:]:
                    worker.process.kill()
                for worker in workers[:2]:
                    self.go_on(worker)
                workers[1].process.kill()
                again = self.worker(c, 1)
                self.go_on(again)
                self.go_on(workers[0])
                self.assertEqual(sorted(r["rank"] for r in records(c, "process_ended")), [1, 2, 3])
                left = [r for r in records(c, "worker_left") if r["rank"] == 2]
                self.assertIn("its process ended: its connection closed", left[0]["reason"])
                self.finish_equal(c, [workers[0], again])

    def test_connections_that_break_and_come_back_cost_nothing(self):
        # The grace has to be longer than what a busy machine takes to connect, and runs out several times in this test.
        with cluster.Cluster(BIN, job("all-reduce", 3, "death_grace_ms = 3000\n")) as c, proxy.Proxy(c.port) as p:
            workers = self.start(c, 3, controller=f"tcp://127.0.0.1:{p.port}")
            for i in range(8):
                made = p.made
                p.cut(reset=i % 2 == 1)
                cluster.wait_until(lambda made=made: p.made >= made + 3, "connections made anew")
                for worker in workers:
                    self.go_on(worker)
            self.assertEqual(len(records(c, "process_ended")), 0)
            for worker in workers:
                self.go_on(worker, 300)  # 3 s at least: beyond the last grace
            for kind in ("process_ended", "worker_left", "adopt_ordered"):
                self.assertEqual(records(c, kind), [])
            for worker in workers:
                self.assertTrue(all(step["attempts"] == 1 and len(step["members"]) == 3 for step in worker.steps()))
            self.finish_equal(c, workers)

    def test_children_of_a_killed_process_do_not_keep_it_alive(self):
        # As PyTorch's DataLoader has them.
        with cluster.Cluster(BIN, job("all-reduce", 3)) as c:
            workers = [self.worker(c, 0), self.worker(c, 1)]
            forks = self.worker(c, 2, "--fork")
            child = forks.wait_for(lambda line: "child" in line, "child")["child"]
            self.go_on(forks)
            forks.process.kill()
            for worker in workers:
                self.go_on(worker)
            self.assertEqual(len(records(c, "process_ended")), 1)
            os.kill(child, 9)  # it was there all the time
            self.finish_equal(c, workers)


if __name__ == "__main__":
    unittest.main()
