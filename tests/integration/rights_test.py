#!/usr/bin/env python3
"""Who may do what, with real processes, as config/prd.toml and server/SECURITY.md say. Usage: rights_test.py BIN_DIR [TEST ...]"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import cluster
import hosts

BIN = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/bin"
JOBS = '[[job]]\nname = "*"\nengine = "all-reduce"\nworkers = 2\n'
STEPS = 15


def keygen(folder, name):
    """As the manual says. Gives (the file of the secret key, the public key)."""
    subprocess.run([f"{BIN}/prdctl", "keygen", folder / name], check=True, capture_output=True)
    return folder / f"{name}.key", (folder / f"{name}.pub").read_text().strip()


class Training(unittest.TestCase):
    @unittest.skipIf(hosts.why_not(), hosts.why_not())
    def test_two_identities_have_jobs_of_their_own_under_one_daemon(self):
        """Two hosts, two jobs at once with a worker of each on each host; then each key is tried on the other's job."""
        with tempfile.TemporaryDirectory() as folder, hosts.Hosts(2, "1gbit") as at:
            folder = pathlib.Path(folder)
            daemon_file, daemon_key = keygen(folder, "daemon")
            files, identities = {}, ""
            for name in ("alice", "bob"):
                files[name], key = keygen(folder, name)
                identities += f'[[identity]]\nname = "{name}"\nkeys = ["{key}"]\njobs = ["{name}-*"]\n'
            lines = f'\ncurve_secret_key_file = "{daemon_file}"\naudit_log = "{folder}/audit"\n'
            with cluster.Cluster(BIN, identities + JOBS, lines, inside=at.enter(0), address=at.address(0)) as c:

                def worker(name, job, rank, **options):
                    env = {"PRD_CURVE_SERVER_KEY": daemon_key, "PRD_CURVE_SECRET_KEY_FILE": str(files[name])}
                    return c.worker(rank, job=job, env=env, inside=at.enter(rank % 2), **options)

                workers = {name: [worker(name, f"{name}-1", rank, steps=STEPS) for rank in (0, 1)] for name in files}
                for theirs, others in (("alice", "bob"), ("bob", "alice")):
                    intruder = worker(theirs, f"{others}-1", 2)
                    self.assertIn(f"identity {theirs}: it may not train in job {others}-1", intruder.fail())
                for name, pair in workers.items():
                    ends = [one.end() for one in pair]
                    self.assertEqual(ends[0]["sum"], ends[1]["sum"])
                    for one in pair:
                        self.assertEqual([sorted(step["members"]) for step in one.steps()], [[0, 1]] * STEPS)
                jobs = {run["job"] for run in json.loads(c.prdctl("jobs"))["runs"]}
                self.assertEqual(jobs, {"alice-1", "bob-1"})
                audit = (folder / "audit").read_text()
                for name in files:
                    self.assertIn(f'let in "identity {name}"', audit)
                    self.assertIn(f'refused "identity {name}"', audit)
                self.assertIn(f'from "{at.address(1)}"', audit)

    def test_a_revoked_key_ends_its_workers_and_nobody_elses(self):
        """The links are there already: a reload counts for them."""
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            daemon_file, daemon_key = keygen(folder, "daemon")
            keys = {name: keygen(folder, name) for name in ("alice", "bob")}

            def identity(name, key):
                return f'[[identity]]\nname = "{name}"\nkeys = [{key}]\njobs = ["{name}-*"]\n'

            identities = [identity(name, f'"{keys[name][1]}"') for name in keys]
            lines = f'\ncurve_secret_key_file = "{daemon_file}"\n'
            with cluster.Cluster(BIN, "".join(identities) + JOBS, lines) as c:
                stop = folder / "stop"
                workers = {}
                for name, (file, _) in keys.items():
                    env = {"PRD_CURVE_SERVER_KEY": daemon_key, "PRD_CURVE_SECRET_KEY_FILE": str(file)}
                    workers[name] = [c.worker(rank, job=f"{name}-1", env=env, steps=100_000, step_ms=5,
                                              args=["--stop-file", str(stop)]) for rank in (0, 1)]  # fmt: skip
                for pair in workers.values():
                    for one in pair:
                        one.wait_for(lambda line: line.get("step") == 3, "step 3")
                text = c.config.read_text()
                c.config.write_text(text.replace(identities[0], identity("alice", "")))
                c.daemon.send_signal(signal.SIGHUP)
                for one in workers["alice"]:
                    self.assertIn("the daemon's config does not let it in any more", one.fail())
                # They are evicted: nobody is in the job any more.
                deadline = time.monotonic() + cluster.DEADLINE_S
                while not all(run["ended"] for run in json.loads(c.prdctl("jobs"))["runs"] if run["job"] == "alice-1"):
                    self.assertLess(time.monotonic(), deadline, "alice's run does not end")
                    time.sleep(0.05)
                stop.touch()
                ends = [one.end() for one in workers["bob"]]
                self.assertEqual(ends[0]["sum"], ends[1]["sum"])

    def test_who_is_not_let_in_is_told_why_at_once(self):
        """Before any message: nothing but the handshake says so. No call waits for its time-out, but for the one case in
        which the controller may as well be about to stop."""
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            file, key = keygen(folder, "worker")
            other_file, other_key = keygen(folder, "other")
            daemon_file, daemon_key = keygen(folder, "daemon")
            identity = f'[[identity]]\nname = "alice"\nkeys = ["{key}"]\njobs = ["*"]\n'
            never = {"PRD_TIMEOUT_MS": "0"}
            with cluster.Cluster(BIN, identity + JOBS, f'\ncurve_secret_key_file = "{daemon_file}"\n') as c:
                keys = {"PRD_CURVE_SERVER_KEY": daemon_key, "PRD_CURVE_SECRET_KEY_FILE": str(file)}
                unknown = c.worker(0, env={**keys, **never, "PRD_CURVE_SECRET_KEY_FILE": str(other_file)})
                self.assertIn(f"does not let the key {other_key} in; its config must name the key", unknown.fail())
                self.assertIn("lets nobody in without keys; PRD_CURVE_SERVER_KEY", c.worker(0, env=never).fail())
                fooled = c.worker(0, env={**keys, "PRD_CURVE_SERVER_KEY": other_key, "PRD_TIMEOUT_MS": "5000"})
                self.assertIn(f"PRD_CURVE_SERVER_KEY ({other_key}) is not its public key", fooled.fail())
                # A daemon that starts anew without its key.
                workers = [c.worker(rank, env={**keys, **never}, steps=100_000) for rank in (0, 1)]
                for one in workers:
                    one.wait_for(lambda line: line.get("step") == 3, "step 3")
                c.stop_daemon()
                c.config.write_text(c.config.read_text().replace(key, other_key))
                c.start_daemon()
                for one in workers:
                    self.assertIn(f"does not let the key {key} in", one.fail())
            with cluster.Cluster(BIN, JOBS) as c:
                self.assertIn("has no keys; PRD_CURVE_SERVER_KEY is to be left out", c.worker(0, env={**keys, **never}).fail())

    def test_what_is_told_nothing_meets_in_the_users_own_folder(self):
        """As a user who is not root: neither the daemon nor the workers are told an endpoint."""
        user, as_user = os.geteuid(), []
        if user == 0:
            user, as_user = 65533, ["setpriv", "--reuid", "65533", "--clear-groups"]
            if subprocess.run([*as_user, "test", "-x", f"{BIN}/prd"]).returncode != 0:
                self.skipTest("another user cannot run what is built here")
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "prd.toml").write_text(
                f'[daemon]\nadmin = "ipc://{folder}/admin.sock"\nstate_dir = "{folder}/state"\n{JOBS}')
            os.chown(folder, user, -1)
            env = dict(os.environ, XDG_RUNTIME_DIR=str(folder), PRD_JOB="mine", PRD_TIMEOUT_MS="60000")
            env.pop("PRD_CONTROLLER", None)
            prd = subprocess.Popen([*as_user, f"{BIN}/prd", "--config", folder / "prd.toml"], env=env)
            try:
                deadline = time.monotonic() + cluster.DEADLINE_S
                while not (folder / "prd/workers").exists():
                    self.assertIsNone(prd.poll(), "prd has ended")
                    self.assertLess(time.monotonic(), deadline, "prd does not listen")
                    time.sleep(0.01)
                self.assertEqual((folder / "prd").stat().st_mode & 0o777, 0o700)
                workers = [subprocess.Popen([*as_user, f"{BIN}/toy_worker", "--steps", str(STEPS), "--step-ms", "5"],
                                            env=dict(env, PRD_RANK=str(rank)), stdout=subprocess.PIPE, text=True)
                           for rank in (0, 1)]  # fmt: skip
                for one in workers:
                    output, _ = one.communicate(timeout=cluster.DEADLINE_S)
                    self.assertEqual(one.returncode, 0, output)
            finally:
                prd.kill()
                prd.wait()

    def ephemeral(self, folder, name, *flags, listen="tcp://127.0.0.1:*"):
        """The file with its workers' environment, once it is told, and the process."""
        environment = folder / name
        prd = subprocess.Popen(
            [f"{BIN}/prd", "--ephemeral", "--config", folder / "job.toml", "--env-file", environment, "--listen",
             listen, "--dir", folder, *flags], stderr=subprocess.PIPE, text=True)  # fmt: skip
        deadline = time.monotonic() + cluster.DEADLINE_S
        while not environment.exists():
            self.assertIsNone(prd.poll(), "prd has ended")
            self.assertLess(time.monotonic(), deadline, "no environment is told")
            time.sleep(0.01)
        return environment, prd

    def test_what_a_killed_ephemeral_controller_leaves_the_next_one_removes(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "job.toml").write_text(JOBS)
            (folder / "prd-ephemeral-mine").mkdir()  # the user's own: it has no lock
            started = []

            def start(name, *flags):
                before = set(folder.glob("prd-ephemeral-*"))
                started.append(self.ephemeral(folder, name, *flags)[1])
                return (set(folder.glob("prd-ephemeral-*")) - before).pop()

            try:
                killed = start("1.env")
                kept = start("2.env", "--keep")
                for prd in started:
                    prd.kill()
                    prd.wait()
                lives = start("3.env")
                last = start("4.env")
                # Its file is its own while it lives, and its successor's once it was killed.
                told = [(folder / name).read_text() for name in ("4.env", "4.env.key")]
                started.append(self.ephemeral(folder, "4.env")[1])
                self.assertNotEqual(started[-1].wait(cluster.DEADLINE_S), 0)
                self.assertIn("4.env.key is that of another prd, which runs", started[-1].stderr.read())
                self.assertEqual([(folder / name).read_text() for name in ("4.env", "4.env.key")], told)
                started[-2].kill()
                started[-2].wait()
                before = set(folder.glob("prd-ephemeral-*"))
                started.append(self.ephemeral(folder, "4.env")[1])
                deadline = time.monotonic() + cluster.DEADLINE_S
                while (folder / "4.env").read_text() == told[0]:
                    self.assertLess(time.monotonic(), deadline, "no environment is told")
                    time.sleep(0.01)
                again = (set(folder.glob("prd-ephemeral-*")) - before).pop()
                self.assertFalse(last.exists())
                self.assertEqual(sorted(file.name for file in folder.glob("4.env*")), ["4.env", "4.env.key"])
                self.assertEqual(set(folder.glob("prd-ephemeral-*")), {folder / "prd-ephemeral-mine", kept, lives, again})
                self.assertTrue((lives / "daemon.key").exists())
                self.assertFalse(killed.exists())
            finally:
                for prd in started:
                    prd.kill()
                    prd.wait()
                    prd.stderr.close()

    def test_an_ephemeral_controller_is_gone_with_its_job(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "job.toml").write_text(JOBS.replace('name = "*"', 'name = "mine"'))
            environment, prd = self.ephemeral(folder, "prd.env", "--address", "localhost", listen="tcp://0.0.0.0:*")
            try:
                # The secret is in no environment, and nobody else reads it.
                self.assertNotIn("PRD_CURVE_SECRET_KEY=", environment.read_text())
                self.assertIn(f"PRD_CURVE_SECRET_KEY_FILE='{environment}.key'", environment.read_text())
                for file in (environment, folder / "prd.env.key"):
                    self.assertEqual(file.stat().st_mode & 0o777, 0o600)
                prd.send_signal(signal.SIGHUP)  # its terminal is closed
                start = f". {environment} && exec {BIN}/toy_worker --steps {STEPS} --step-ms 5"

                def worker(rank, script):
                    env = dict(os.environ, PRD_RANK=str(rank), PRD_TIMEOUT_MS="60000")
                    env.pop("PRD_JOB", None)  # the file has it, as the config has one job
                    return subprocess.Popen(["sh", "-c", script], env=env, stdout=subprocess.PIPE, text=True)

                workers = [worker(rank, start) for rank in (0, 1)]
                sums = set()
                for one in workers:
                    output, _ = one.communicate(timeout=cluster.DEADLINE_S)
                    self.assertEqual(one.returncode, 0, output)
                    sums.add(json.loads(output.splitlines()[-1])["sum"])
                self.assertEqual(len(sums), 1)
                _, log = prd.communicate(timeout=cluster.DEADLINE_S)
                self.assertEqual(prd.returncode, 0, log)
                self.assertIn("prd is at localhost, which is a loopback address here", log)
                self.assertEqual([file.name for file in folder.iterdir()], ["job.toml"], log)
            finally:
                prd.kill()
                prd.wait()
                prd.stderr.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
