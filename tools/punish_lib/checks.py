"""What must hold when the faults are over: of the job that goes on, of its end, of the histories."""
import contextlib
import json
import pathlib
import subprocess

import job as jobs

ANSWER_S = 20  # for prdctl, of a daemon that goes on


class Checks:
    """broken: called with a law and a finding."""

    def __init__(self, job, broken):
        self.job = job
        self.broken = broken

    def running(self):
        """The laws daemon-lives and one-run, while the job still goes on."""
        code, text = self.job.prdctl("status", timeout_s=ANSWER_S)
        if code != 0:
            self.broken("daemon-lives", f"prdctl status ended with {code}: {text}")
            return
        code, text = self.job.prdctl("jobs", timeout_s=ANSWER_S)
        going = [run["run"] for run in json.loads(text)["runs"] if not run["ended"]] if code == 0 else []
        if len(going) != 1:
            self.broken("one-run", f"runs that go on: {going}" if code == 0 else f"prdctl jobs ended with {code}: {text}")
            return
        code, text = self.job.prdctl("workers", str(going[0]), timeout_s=ANSWER_S)
        here = {row["rank"] for row in json.loads(text)["workers"] if row["here"]} if code == 0 else set()
        missing = [worker.rank for worker in self.job.workers if worker.live and worker.rank not in here]
        if missing:
            self.broken("one-run", f"workers {missing} live and are not in run {going[0]}")

    def ends(self, allowed, within_s):
        """The laws ends, same-model and no-leak. allowed: exit codes."""
        for worker in self.job.workers:
            if worker.live:
                self.broken("ends", f"worker {worker.rank} has not ended within {within_s:g} s of being told to; {self.why(worker.rank)}")
                jobs.kill(worker.child)
            elif worker.child.process.returncode not in allowed:
                self.broken("ends", f"{worker.child.how_it_ended().partition(';')[0]}: {worker.last_words()}")
        ends = [worker.finished() for worker in self.job.workers]
        sums = {end["sum"] for end in ends if end is not None and "sum" in end}
        if len(sums) > 1:
            self.broken("same-model", f"sums of the parameters: {sorted(sums)}")
        for pid in self.job.leaked():
            with contextlib.suppress(OSError):
                command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                self.broken("no-leak", f"process {pid} still runs: {command}")

    def daemon_ends(self):
        """The law daemon-lives, of its end."""
        if not self.job.daemon.running():
            return  # told before
        self.job.daemon.process.terminate()
        try:
            code = self.job.daemon.process.wait(30)
        except subprocess.TimeoutExpired:
            self.broken("daemon-lives", "the daemon does not end within 30 s of SIGTERM")
            self.job.kill_daemon()
            return
        if code != 0:
            self.broken("daemon-lives", f"on SIGTERM {self.job.daemon.how_it_ended()}")

    def histories(self, kept):
        """The law replays. kept: (what, folder) of state_dirs beside the one at the end. Gives how many runs there are."""
        replayed = 0
        for what, state in [*kept, ("at the end", self.job.place.state_seen)]:
            code, text = self.job.prdctl("jobs", state=state)
            if code != 0:
                self.broken("replays", f"state_dir, {what}: prdctl jobs ended with {code}: {text}")
                continue
            runs = {run["run"]: run for run in json.loads(text)["runs"]}
            for run in runs.values():
                following = runs.get(run["next_run"], {})
                if run["next_run"] is not None and following.get("former_run") != run["run"]:
                    self.broken("linked", f"state_dir, {what}: run {run['run']} goes on in run {run['next_run']}, which does not")
                code, text = self.job.prdctl("replay", str(run["run"]), state=state, timeout_s=600)
                replayed += 1
                if code != 0:
                    self.broken("replays", f"state_dir, {what}: prdctl replay {run['run']} ended with {code}: {text}")
                if what == "at the end" and not run["ended"]:
                    self.broken("ends", f"run {run['run']} has not ended in the history")
        return replayed

    def why(self, rank):
        """What prdctl says that a worker waits for."""
        code, text = self.job.prdctl("workers", timeout_s=ANSWER_S)
        if code != 0:
            return f"prdctl workers ended with {code}: {text}"
        rows = [row for row in json.loads(text)["workers"] if row["rank"] == rank]
        return f"prdctl says of {rank}: {rows[0]['why']}" if rows else "the daemon does not know it"
