#!/usr/bin/env python3
"""Who is out gets nothing from its peers any more: a worker that has left, was evicted, revoked or lost goes on asking for
the model, over its old connections and over new ones. Usage: gone_test.py BIN_DIR [TEST ...]

PRD_OUT_TRIES in the environment says how often each one asks, over each kind of connection."""
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import cluster

BIN = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/bin"
TRIES = int(os.environ.get("PRD_OUT_TRIES", "10"))
AWAY = "another-host"  # so that its peers and it take tcp


def job(security, lease_ms):
    return (f'[[job]]\nname = "*"\nengine = "p-reduce"\nworkers = 2\nlease_ms = {lease_ms}\nmesh_security = "{security}"\n'
            "[job.p-reduce]\ngroup_size = 2\n")  # fmt: skip


class Member:
    """An out_member process, which has copied the model as it may and has unused orders of copies, too."""

    def __init__(self, c, host="", env=()):
        command = [f"{BIN}/out_member", c.endpoint, c.admin, "toy"] + ([host] if host else [])
        self.process = subprocess.Popen(command, env={**os.environ, **dict(env)}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.lines, self.changed = [], threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.rank = self.wait("rank")["rank"]
        self.joined = self.wait("adopted")

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(json.loads(line))
                self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def wait(self, word):
        """For a line with this word, which is taken."""
        end = time.monotonic() + cluster.DEADLINE_S
        with self.changed:
            while not any(word in line for line in self.lines):
                if time.monotonic() > end or self.process.poll() is not None:
                    raise AssertionError(f"no line with {word!r}; it said {self.lines}")
                self.changed.wait(0.2)
            found = next(line for line in self.lines if word in line)
            self.lines.remove(found)
            return found

    def say(self, word, answer):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.wait(answer)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdin.close()
        self.process.stdout.close()


class Training(unittest.TestCase):
    def train(self, c, peer_env=(), steps=100_000):
        workers = [c.worker(rank, steps=steps, step_ms=5, env=peer_env, args=["--stop-file", str(c.dir / "stop")]) for rank in (0, 1)]
        for worker in workers:
            worker.wait_for(lambda line: line.get("step", -1) >= 3, "step 3")
        return workers

    def end(self, c, workers):
        (c.dir / "stop").touch()
        for worker in workers:
            self.assertTrue(worker.end()["finished"])

    def member(self, c, host="", env=()):
        member = Member(c, host, env)
        self.addCleanup(member.close)
        self.assertTrue(member.joined["adopted"], member.joined)
        self.assertEqual(member.say("copy", "copied"), {"copied": 2, "peers": 2}, "as a member it gets what is ordered")
        self.assertEqual(member.say("copy", "ordered"), {"ordered": 2})
        return member

    def expect_nothing(self, member):
        self.assertEqual(member.say(f"try {TRIES}", "tries"), {"tries": 4 * TRIES, "got": 0, "frames": 0, "connections": 0})

    @staticmethod
    def wait_gone(c, rank):
        def gone():
            done = subprocess.run([f"{BIN}/prdctl", "--admin", c.admin, "--json", "explain"], capture_output=True, text=True, timeout=60)
            if done.returncode != 0:
                return False
            return not any(w["here"] for w in json.loads(done.stdout)["workers"] if w["rank"] == rank)

        cluster.wait_until(gone, f"rank {rank} is out")

    def by_every_way(self, security):
        for host in ("", AWAY):
            with self.subTest(host=host), cluster.Cluster(BIN, job(security, 2000)) as c:
                workers = self.train(c, {"PRD_ADDRESS": "127.0.0.1"})
                member = self.member(c, host)
                member.say("leave", "out")
                self.expect_nothing(member)
                member = self.member(c, host)
                c.prdctl("evict", "toy", str(member.rank), "--reason", "out")
                self.assertIn("evicted", member.wait("out")["out"])
                self.expect_nothing(member)
                member = self.member(c, host)
                member.say("silent", "silent")
                self.wait_gone(c, member.rank)
                self.expect_nothing(member)
                # While nobody is there to tell its peers.
                member = self.member(c, host)
                c.kill_daemon()
                member.say("silent", "silent")
                c.start_daemon()
                self.wait_gone(c, member.rank)
                self.expect_nothing(member)
                self.end(c, workers)
                c.stop_daemon()
                self.assertEqual(json.loads(c.prdctl("replay", offline=True))["not_recorded"], 0)

    def test_who_is_out_gets_nothing_under_none(self):
        self.by_every_way("none")

    def test_who_is_out_gets_nothing_under_aead(self):
        self.by_every_way("aead")

    def test_who_is_out_gets_nothing_under_curve(self):
        self.by_every_way("curve")

    def test_a_revoked_member_gets_nothing(self):
        """A reload that takes its key out evicts it; its lease need not run out."""

        def keygen(folder, name):
            subprocess.run([f"{BIN}/prdctl", "keygen", folder / name], check=True, capture_output=True)
            return str(folder / f"{name}.key"), (folder / f"{name}.pub").read_text().strip()

        for security, host in itertools.product(("aead", "curve"), ("", AWAY)):
            with self.subTest(security=security, host=host), tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                daemon_file, daemon_key = keygen(folder, "daemon")
                keys = {name: keygen(folder, name) for name in ("alice", "carol")}
                env = {name: {"PRD_CURVE_SERVER_KEY": daemon_key, "PRD_CURVE_SECRET_KEY_FILE": keys[name][0]} for name in keys}
                identities = {name: f'[[identity]]\nname = "{name}"\nkeys = ["{keys[name][1]}"]\njobs = ["*"]\n' for name in keys}
                config = "".join(identities.values()) + job(security, 10_000)
                with cluster.Cluster(BIN, config, f'\ncurve_secret_key_file = "{daemon_file}"\n') as c:
                    workers = self.train(c, {**env["alice"], "PRD_ADDRESS": "127.0.0.1"})
                    member = self.member(c, host, env["carol"])
                    text = c.config.read_text()
                    c.config.write_text(text.replace(identities["carol"], "") + "colour = 1\n")
                    c.daemon.send_signal(signal.SIGHUP)
                    cluster.wait_until(lambda: "reload refused" in c.daemon_log(), "a reload that is refused")
                    self.assertEqual(member.say("copy", "ordered"), {"ordered": 2}, "which changes nothing")
                    c.config.write_text(text.replace(identities["carol"], ""))
                    c.daemon.send_signal(signal.SIGHUP)
                    self.assertIn("the daemon's config does not let it in any more", member.wait("out")["out"])
                    self.expect_nothing(member)
                    self.end(c, workers)
                    left = [r for r in map(json.loads, c.prdctl("export").splitlines()) if r.get("type") == "worker_left" and r["rank"] == member.rank]
                    self.assertEqual([r["why"] for r in left], ["evicted"])
                    self.assertIn("evicted by a reload of", left[0]["reason"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
