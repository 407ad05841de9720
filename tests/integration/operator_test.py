#!/usr/bin/env python3
"""What operators do to running jobs, with real processes. Usage: operator_test.py BIN_DIR [TEST ...]"""
import json
import os
import signal
import subprocess
import sys
import time
import unittest
import urllib.request

import cluster

BIN = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/bin"
# A host name of its own; a user who is not root is root in there.
UTS = ["unshare", "--uts"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--uts"]
NO_UTS = subprocess.run([*UTS, "true"], capture_output=True).returncode != 0


def on(host):
    return [*UTS, "sh", "-c", 'hostname "$0" && exec "$@"', host]


def job(engine, workers):
    return f'[[job]]\nname = "toy"\nengine = "{engine}"\nworkers = {workers}\nlease_ms = 4000\n[job.p-reduce]\ngroup_size = 2\n'


def at_step(step):
    return lambda line: line.get("step") == step


class Training(unittest.TestCase):
    def drain(self, engine):
        steps = 60
        with cluster.Cluster(BIN, job(engine, 8)) as c:
            workers = [c.worker(rank, steps=steps, step_ms=40, inside=on(f"node{rank // 4}")) for rank in range(8)]
            for worker in workers:
                worker.wait_for(at_step(3), "step 3")
            done = json.loads(c.prdctl("drain", "node1", "--reason", "new disk"))["done"]
            self.assertIn("ranks 4, 5, 6, 7 of job toy leave at the next boundary", done)
            for worker in workers[4:]:
                self.assertIn("drained by user root: new disk" if os.geteuid() == 0 else "new disk", worker.fail())
            for worker in workers[:4]:
                worker.end()
                self.assertEqual([line["attempts"] for line in worker.steps() if line["attempts"] > 1], [])
                self.assertEqual(len(worker.steps()), steps)
            groups = json.loads(c.prdctl("groups", "--failed", "--last", "0"))
            self.assertEqual(groups["groups"], [], "a group failed")
            left = [json.loads(line) for line in c.prdctl("export").splitlines()]
            self.assertNotIn("lost", [record.get("why") for record in left if record.get("type") == "worker_left"])
            self.assertEqual([record["verb"] for record in left if record.get("type") == "operator_acted"], ["drain"])
            c.stop_daemon()
            self.assertEqual(json.loads(c.prdctl("replay", offline=True))["not_recorded"], 0)

    @unittest.skipIf(NO_UTS, "no host names of their own: unshare --uts does not work here")
    def test_a_host_is_drained_and_nobody_else_loses_anything(self):
        for engine in ("p-reduce", "ssp"):
            with self.subTest(engine=engine):
                self.drain(engine)

    def test_a_worker_leaves_on_sigterm_and_nobody_else_loses_anything(self):
        """In a step of its own, or while it waits for a slow one; the step counts. A second SIGTERM does not wait."""
        steps = 30
        for engine, waits in (("p-reduce", False), ("all-reduce", True)):
            with self.subTest(engine=engine, waits=waits), cluster.Cluster(BIN, job(engine, 4)) as c:
                hang = c.dir / "hang"
                workers = [c.worker(rank, steps=steps, step_ms=20, args=["--hang-file", hang] if rank == 3 else []) for rank in range(4)]
                for worker in workers:
                    worker.wait_for(at_step(3), "step 3")
                if waits:
                    hang.touch()
                    cluster.wait_until(lambda: all("rank 3" in w["why"] for w in self.explained(c)[:3]), "all wait for rank 3")
                workers[0].process.send_signal(signal.SIGTERM)
                if waits:
                    cluster.wait_until(lambda: self.was_told(workers[0]), "its line")
                    workers[1].process.send_signal(signal.SIGTERM)
                    cluster.wait_until(lambda: self.was_told(workers[1]), "its line")
                    workers[1].process.send_signal(signal.SIGTERM)
                    self.assertEqual(workers[1].end()["left"], "the session was cancelled")
                    hang.unlink()
                self.assertEqual(workers[0].end(), {"left": "left: SIGTERM", "where": "step"})
                for worker in workers[2 if waits else 1:]:
                    self.assertTrue(worker.end()["finished"])
                    self.assertEqual(len(worker.steps()), steps)
                self.assertEqual(json.loads(c.prdctl("groups", "--failed", "--last", "0"))["groups"], [])
                left = [r for r in map(json.loads, c.prdctl("export").splitlines()) if r.get("type") == "worker_left" and r["rank"] == 0]
                self.assertEqual((left[-1]["why"], left[-1]["reason"]), ("left", "SIGTERM"))
                c.stop_daemon()
                self.assertEqual(json.loads(c.prdctl("replay", offline=True))["not_recorded"], 0)

    def test_a_job_is_paused_through_a_kill_and_its_worker_evicted(self):
        port = cluster.free_port()
        with cluster.Cluster(BIN, job("all-reduce", 3), daemon=f'metrics = "127.0.0.1:{port}"') as c:
            audit = c.dir / "audit"
            c.config.write_text(c.config.read_text().replace("log_level", f'audit_log = "{audit}"\nlog_level', 1))
            c.daemon.send_signal(signal.SIGHUP)
            cluster.wait_until(audit.exists, "the audit log")
            workers = [c.worker(rank, steps=100_000, step_ms=5) for rank in range(3)]
            for worker in workers:
                worker.wait_for(at_step(3), "step 3")
            c.prdctl("pause", "toy", "--reason", "maintenance")
            c.kill_daemon()
            c.start_daemon()
            paused = json.loads(c.prdctl("jobs"))["runs"][-1]["paused"]
            self.assertEqual(paused["reason"], "maintenance")
            self.assertLess(abs(time.time() - paused["since_wall_ns"] / 1e9), 300)
            cluster.wait_until(lambda: all("paused by" in w["why"] for w in self.explained(c)), "all wait")
            cluster.wait_until(lambda: self.progress_is_due(port) is False, "nobody is to make progress in a pause")
            self.assertRegex(self.refusal(c, "pause", "toy"), "paused already")
            self.assertRegex(self.refusal(c, "evict", "toy", "9"), "no worker holds rank 9")
            counts = [len(worker.steps()) for worker in workers]
            cluster.wait_until(lambda: self.try_prdctl(c, "resume", "toy"), "resume")
            for worker, count in zip(workers, counts):
                worker.wait_for(at_step(count + 3), "steps after the pause")
            cluster.wait_until(lambda: self.progress_is_due(port), "progress is due again")
            c.prdctl("evict", "toy", "1", "--reason", "its disk fails")
            self.assertRegex(workers[1].fail(), "evicted by .*: its disk fails")
            fresh = c.worker(1, steps=100_000, step_ms=5)
            fresh.wait_for(at_step(3), "steps of a fresh process")
            c.prdctl("end", "toy")
            for worker in (workers[0], fresh, workers[2]):
                worker.end()
                self.assertTrue(worker.steps()[-1]["done"])
            text = audit.read_text()
            for words in ("pause job toy: maintenance", "resume job toy", "evict rank 1 of job toy: its disk fails", "end job toy"):
                self.assertRegex(text, f'done for .*"{words}"')
            self.assertRegex(text, 'refused .*"evict rank 9 of job toy".*no worker holds rank 9')
            c.stop_daemon()
            self.assertEqual(json.loads(c.prdctl("replay", offline=True))["not_recorded"], 0)

    @staticmethod
    def was_told(worker):
        with open(worker.log.name) as log:
            return "leaves the job after this step" in log.read()

    @staticmethod
    def progress_is_due(port):
        """Whether the metrics have what the alert PrdNoProgress goes by; None before they have the job."""
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return "\nprd_job_last_progress_timestamp_seconds{" in text if 'state="training"} 3\n' in text else None

    @staticmethod
    def explained(c):
        return json.loads(c.prdctl("explain"))["workers"]

    @staticmethod
    def try_prdctl(c, *args):
        """A daemon that has just started waits for its workers."""
        try:
            return c.prdctl(*args)
        except AssertionError as error:
            if "has just started" not in str(error):
                raise
        return None

    def refusal(self, c, *args):
        """Why prdctl is refused, once the daemon has heard from its workers."""
        why = []

        def refused():
            with self.assertRaises(AssertionError) as raised:
                c.prdctl(*args)
            why[:] = [str(raised.exception)]
            return "has just started" not in why[0]

        cluster.wait_until(refused, f"a refusal of {args}")
        return why[0]


if __name__ == "__main__":
    unittest.main(verbosity=2)
