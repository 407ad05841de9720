"""One run: the job starts, trains without faults, is punished, comes to rest, ends, and is checked."""
import contextlib
import heapq
import itertools
import pathlib
import re
import signal
import subprocess
import time

import goodput
import job as jobs
import schedule
from options import LAWS
from processes import ToolError

WARM_S = 2  # after the first steps of all, before the baseline
JOIN_S = 60  # for all workers to make their first step
END_S = 30  # from being told to end to the last worker's end
RESPAWN_S = 2  # until a worker that ended by itself is started again, as a launcher would
PROGRESS_S = 10
LINK = re.compile(r"\blinks?\b")
DAEMON_ENDS = ("kill-daemon", "old-state", "wipe")


class Run:
    """REQUIRES: job is entered. log: report.Log."""

    def __init__(self, options, job, log, faults):
        self.options = options
        self.job = job
        self.log = log
        self.faults = faults
        self.findings = {law: [] for law in LAWS}
        self.watch = goodput.Watch(options.workers, options.patience_s, options.lease_ms / 1000)
        self.down = [[] for _ in range(options.workers)]  # [start, end] of each rank, end None: still
        self.cut = [[] for _ in range(options.workers)]  # the same, of cut links alone
        self.edges = []  # (when, kind) of all begins and ends of faults
        self.active = {}  # fault -> its intervals in `down`
        self.killed_daemon = None  # the fault because of which the daemon is away
        self.copies = {}  # old-state's fault -> the copy to put back
        self.kept = []  # (what, folder) of state_dirs that were in use
        self.begun = None  # when the first fault could come
        self.ended = None
        self.base_rate = None
        self.told_to_end = False
        self._actions = []
        self._order = itertools.count()
        self._explains = []
        self._struck = 0
        self._shown = (0.0, 0)

    # The phases.

    def go(self):
        job, options = self.job, self.options
        job.configure()
        job.start_daemon()
        for rank in range(options.workers):
            job.start_worker(rank)
        self.wait_for_all()
        self.loop(time.monotonic() + WARM_S)
        self.measure()
        self.begun = time.monotonic()
        self.watch.begin(self.begun)
        for fault in self.faults:
            if fault.kind == "old-state":
                self.at(self.begun + fault.start - fault.age, lambda fault=fault: self.copy(fault))
            self.at(self.begun + fault.start, lambda fault=fault: self.strike(fault))
            self.at(self.begun + fault.end, lambda fault=fault: self.release(fault))
        self.loop(self.begun + 60 * options.minutes)
        self.ended = time.monotonic()
        self.rest()
        self.end()

    def wait_for_all(self):
        """Until each worker has made a step."""
        deadline = time.monotonic() + JOIN_S + self.options.load_seconds
        while not all(self.job.steps):
            self.loop(time.monotonic() + 0.1)
            for worker in self.job.workers:
                if not worker.live:
                    raise ToolError(worker.child.how_it_ended())
            if time.monotonic() > deadline:
                none = [rank for rank, steps in enumerate(self.job.steps) if not steps]
                raise ToolError(
                    f"workers {none} made no step within {JOIN_S + self.options.load_seconds:.0f} s; "
                    f"worker {none[0]} said: {self.job.workers[none[0]].last_words() or 'nothing'}\n"
                    f"allowed is a line per step that holds {self.options.step_line!r} (--step-line)"
                )

    def measure(self):
        """The baseline."""
        begun = time.monotonic()
        self.loop(begun + self.options.baseline_seconds)
        window = (begun, time.monotonic())
        self.base_rate = sum(goodput.count(steps, window) for steps in self.job.steps) / (window[1] - window[0])
        self.say("baseline", f"{self.base_rate:.1f} steps/s without faults", steps_per_s=round(self.base_rate, 3))
        if self.base_rate == 0:
            raise ToolError("no worker made a step in the baseline")

    def rest(self):
        """No more faults: within the patience of no-hang every live worker steps."""
        self.say("rest", f"no more faults; every worker must step within {self.options.patience_s:g} s")
        since = time.monotonic()
        while not self.job.daemon_ready(0.05) and time.monotonic() < since + jobs.START_S:
            self.loop(time.monotonic() + 0.05)
        since = time.monotonic()
        self.loop(since + self.options.patience_s)
        for worker in self.job.workers:
            if worker.live and not (self.job.steps[worker.rank] and self.job.steps[worker.rank][-1] > since):
                self.broken("no-hang", f"worker {worker.rank} has made no step since the last fault ended; {self.why(worker.rank)}")
        self.check_run()

    def end(self):
        """Ends the job in order, then the daemon, and looks at what is left."""
        self.say("ending", "the workers are told to end")
        self.told_to_end = True
        self.job.stop_file.touch()
        by_signal = bool(self.options.command) and not any("{stop}" in word for word in self.options.command)
        for worker in self.job.workers:
            worker.expected_to_end = True
            if by_signal:
                jobs.send(worker.child, signal.SIGTERM)
        deadline = time.monotonic() + END_S
        while any(worker.live for worker in self.job.workers) and time.monotonic() < deadline:
            self.loop(time.monotonic() + 0.1)
        self.loop(time.monotonic() + 0.1)
        self.check_ends((0, -signal.SIGTERM, 128 + signal.SIGTERM) if by_signal else (0,))
        self.stop_daemon()
        self.check_histories()

    # The loop.

    def at(self, when, what):
        heapq.heappush(self._actions, (when, next(self._order), what))

    def loop(self, until):
        """Does what is due, and takes in what happens, until then."""
        while True:
            now = time.monotonic()
            while self._actions and self._actions[0][0] <= min(now, until):
                heapq.heappop(self._actions)[2]()
            if now >= until:
                return
            due = self._actions[0][0] if self._actions else until
            for rank, when in self.job.read(max(0.0, min(due, until, now + 0.2) - now)):
                self.watch.step(rank, when)
            self.look()

    def look(self):
        """At daemon and workers: who has ended, who hangs."""
        now = time.monotonic()
        self.look_at_daemon()
        for worker in self.job.workers:
            if not worker.live and not worker.expected_to_end and self.begun is not None:
                worker.expected_to_end = True
                self.broken("no-death", f"{worker.child.how_it_ended().partition(';')[0]} by itself: {worker.last_words()}")
                self.at(now + RESPAWN_S, lambda worker=worker: self.respawn(worker))
        if self.begun is None or self.told_to_end:
            return
        for rank, silent_s in self.watch.hangs(now, self.excused()):
            self.hangs(rank, f"worker {rank} has made no step for {silent_s:.1f} s")
        self.show_explains()
        if now - self._shown[0] > PROGRESS_S:
            self.progress(now)

    def look_at_daemon(self):
        if self.killed_daemon is None and self.job.daemon is not None and not self.job.daemon.running() and not self.told_to_end:
            self.broken("daemon-lives", self.job.daemon.how_it_ended())
            self.job.kill_daemon()
            self.job.begin_daemon()
            time.sleep(0.2)  # one that cannot start is not to be started a thousand times a second
        if self.killed_daemon is not None and self.job.starting is not None:
            if not self.job.daemon.running():
                self.broken("daemon-lives", "started again: " + self.job.daemon.how_it_ended())
                self.job.kill_daemon()
                self.job.begin_daemon()
                time.sleep(0.2)
            elif self.job.daemon_ready():
                fault, self.killed_daemon = self.killed_daemon, None
                self.over(fault)

    def excused(self):
        """The ranks that need not step: under a fault, or dead."""
        under = {rank for rank, intervals in enumerate(self.down) if intervals and intervals[-1][1] is None}
        return under | {worker.rank for worker in self.job.workers if not worker.live}

    def respawn(self, worker):
        if self.job.workers[worker.rank] is worker and not self.told_to_end:
            self.start_again(worker.rank)

    def start_again(self, rank):
        self.job.start_worker(rank)
        self.watch.from_(rank, time.monotonic() + self.options.load_seconds)

    # Faults.

    def copy(self, fault):
        """The copy that old-state is to put back."""
        folder = self.job.dir / f"copy-{len(self.copies)}"
        took_s = self.job.copy_state(folder)
        self.copies[fault] = folder
        self.say("copy", f"state_dir copied in {1000 * took_s:.0f} ms, to be put back {fault.age:.1f} s later", took_s=round(took_s, 4))

    def strike(self, fault):
        job, kind = self.job, fault.kind
        self._struck += 1
        if kind == "kill":
            job.workers[fault.ranks[0]].expected_to_end = True
            jobs.kill(job.workers[fault.ranks[0]].child)
        elif kind == "stop":
            jobs.send(job.workers[fault.ranks[0]].child, signal.SIGSTOP)
        elif kind == "stop-daemon":
            jobs.send(job.daemon, signal.SIGSTOP)
        elif kind in DAEMON_ENDS:
            self.killed_daemon = fault
            job.kill_daemon()
            if kind != "kill-daemon":
                self.kept.append((f"{kind} at {fault.start:.1f} s", job.dir / f"kept-{len(self.kept)}"))
                job.take_state(self.kept[-1][1])
            if kind == "old-state":
                job.put_state(self.copies[fault])
        elif kind == "cut":
            job.place.hosts.cut(*fault.ranks, one_way=fault.one_way)
        elif kind == "slow":
            job.place.hosts.set_rate(fault.ranks[0], self.options.slow_rate)
        elif kind == "disk-full":
            job.place.disk.fill()
        now = time.monotonic()
        self.edge(now, kind)
        self.active[fault] = []
        if fault.stops_victims:
            for rank in fault.ranks or range(self.options.workers):
                self.active[fault].append([now, None])
                self.down[rank].append(self.active[fault][-1])
                if kind == "cut":
                    self.cut[rank].append(self.active[fault][-1])
        self.say("fault", self.describe(fault), **self.fields(fault))

    def release(self, fault):
        """Ends a fault; a daemon that starts again is back only when it is ready."""
        job, kind = self.job, fault.kind
        if fault not in self.active:
            return
        if kind == "kill":
            self.start_again(fault.ranks[0])
        elif kind == "stop":
            jobs.send(job.workers[fault.ranks[0]].child, signal.SIGCONT)
        elif kind == "stop-daemon":
            jobs.send(job.daemon, signal.SIGCONT)
        elif kind in DAEMON_ENDS:
            job.begin_daemon()
            return
        elif kind == "cut":
            job.place.hosts.mend(*fault.ranks, one_way=fault.one_way)
        elif kind == "slow":
            job.place.hosts.set_rate(fault.ranks[0], job.place.hosts.rate)
        elif kind == "disk-full":
            job.place.disk.free()
        self.over(fault)

    def edge(self, now, kind):
        self.watch.edge(now)
        self.edges.append((now, kind))

    def over(self, fault):
        now = time.monotonic()
        self.edge(now, fault.kind)
        for interval in self.active.pop(fault):
            interval[1] = now + (self.options.load_seconds if fault.kind == "kill" else 0)
        self.say("over", f"{self.describe(fault)}: over", **self.fields(fault))

    @staticmethod
    def describe(fault):
        """In words, for the terminal."""
        who = "daemon" if fault.strikes_daemon else f"worker {fault.ranks[0]}"
        if fault.kind == "cut":
            who = f"link from worker {fault.ranks[0]} to {fault.ranks[1]}" if fault.one_way else (
                f"link between workers {min(fault.ranks)} and {max(fault.ranks)}")
        old = f", copy {fault.age:.1f} s old" if fault.kind == "old-state" else ""
        return f"{fault.kind:<11} {who} for {fault.end - fault.start:.1f} s{old}"

    @staticmethod
    def fields(fault):
        fields = {"kind": fault.kind, "ranks": list(fault.ranks), "for_s": round(fault.end - fault.start, 3)}
        if fault.kind == "old-state":
            fields["age_s"] = round(fault.age, 3)
        if fault.kind == "cut":
            fields["one_way"] = fault.one_way
        return fields

    # What is said.

    def say(self, event, text, **fields):
        time_s = time.monotonic() - self.begun if self.begun is not None else None
        self.log.event(time_s, event, text, **fields)

    def broken(self, law, finding):
        self.findings[law].append(finding)
        if len(self.findings[law]) <= 20:  # the terminal's; all are in the file
            self.say("broken", f"LAW BROKEN: {law}: {finding.splitlines()[0]}", law=law, finding=finding)

    def progress(self, now):
        steps = sum(map(len, self.job.steps))
        if self._shown[0]:
            rate = (steps - self._shown[1]) / (now - self._shown[0])
            live = self.options.workers - len(self.excused())
            self.say("progress", f"{rate:.1f} steps/s, {live} of {self.options.workers} workers live", steps_per_s=round(rate, 3),
                     live=live)  # fmt: skip
        self._shown = (now, steps)

    def hangs(self, rank, text):
        """Breaks no-hang, unless a link is cut, and prdctl says of some worker that it waits for a link."""
        if any(fault.kind == "cut" for fault in self.active):
            code, said = self.job.prdctl("workers", timeout_s=3)
            named = [row["why"] for row in jobs.json.loads(said)["workers"] if LINK.search(row["why"])] if code == 0 else []
            if named:
                self.say("waits", f"{text}; prdctl names the link: {named[0]}", rank=rank)
                return
        self.broken("no-hang", text)
        self.explain(rank)

    def explain(self, rank):
        """Asks prdctl beside the run why a worker hangs."""
        if any(running.running() for running, _, _ in self._explains):
            return  # its answer tells of all
        output = self.job.dir / f"explain-{next(self._order)}.txt"
        command = [self.options.bin / "prdctl", "--admin", self.job.admin, "explain"]
        self._explains.append((self.job.children.start("prdctl", command, output), rank, output))

    def show_explains(self):
        for entry in [entry for entry in self._explains if not entry[0].running()]:
            self._explains.remove(entry)
            lines = entry[2].read_text(errors="replace").strip().splitlines()
            line = next((line.strip() for line in lines if line.split()[:1] == [str(entry[1])]), lines[-1] if lines else "nothing")
            self.say("explain", f"prdctl explain: {line}", lines=lines)

    def why(self, rank):
        """What prdctl says that a worker waits for."""
        code, text = self.job.prdctl("workers", timeout_s=20)
        if code != 0:
            return f"prdctl workers ended with {code}: {text}"
        rows = [row for row in jobs.json.loads(text)["workers"] if row["rank"] == rank]
        return f"prdctl says: {rows[0]['why']}" if rows else "the daemon does not know it"

    # Checks at the end.

    def check_run(self):
        """The laws daemon-lives and one-run, while the job still goes on."""
        code, text = self.job.prdctl("status", timeout_s=20)
        if code != 0:
            self.broken("daemon-lives", f"prdctl status ended with {code}: {text}")
            return
        code, text = self.job.prdctl("jobs", timeout_s=20)
        going = [run["run"] for run in jobs.json.loads(text)["runs"] if not run["ended"]] if code == 0 else []
        if len(going) != 1:
            self.broken("one-run", f"runs that go on: {going}" if code == 0 else f"prdctl jobs ended with {code}: {text}")
            return
        code, text = self.job.prdctl("workers", str(going[0]), timeout_s=20)
        here = {row["rank"] for row in jobs.json.loads(text)["workers"] if row["here"]} if code == 0 else set()
        missing = [worker.rank for worker in self.job.workers if worker.live and worker.rank not in here]
        if missing:
            self.broken("one-run", f"workers {missing} live and are not in run {going[0]}")

    def check_ends(self, allowed):
        """The laws ends, same-model and no-leak."""
        for worker in self.job.workers:
            if worker.live:
                self.broken("ends", f"worker {worker.rank} has not ended within {END_S} s of being told to; {self.why(worker.rank)}")
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

    def stop_daemon(self):
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

    def check_histories(self):
        """The law replays."""
        replayed = 0
        for what, state in [*self.kept, ("at the end", self.job.place.state_seen)]:
            code, text = self.job.prdctl("jobs", state=state)
            if code != 0:
                self.broken("replays", f"state_dir, {what}: prdctl jobs ended with {code}: {text}")
                continue
            for run in jobs.json.loads(text)["runs"]:
                code, text = self.job.prdctl("replay", str(run["run"]), state=state, timeout_s=600)
                replayed += 1
                if code != 0:
                    self.broken("replays", f"state_dir, {what}: prdctl replay {run['run']} ended with {code}: {text}")
                if what == "at the end" and not run["ended"] and not self.findings["ends"]:
                    self.broken("ends", f"run {run['run']} has not ended, though all workers have")
        self.say("checked", f"{replayed} runs of {1 + len(self.kept)} state_dirs replayed")

    # The result.

    def result(self):
        """One object of summary.json; also of a run that was interrupted."""
        figures = {}
        if self.begun is not None:
            end = self.ended or time.monotonic()
            down = [[(start, stop if stop is not None else end) for start, stop in intervals] for intervals in self.down]
            window = (self.begun, end)
            figures = goodput.figures(self.job.steps, down, window, self.base_rate)
            cut = [[(start + 2 * self.options.lease_ms / 1000, stop or end) for start, stop in parts] for parts in self.cut]
            figures["lost_s"] = goodput.lost(self.job.steps, down, window, self.base_rate, self.edges)
            figures["cut_pace"] = goodput.pace(self.job.steps, cut, self.base_rate / self.options.workers)
        kinds = {}
        for fault in sorted(self.faults, key=lambda fault: fault.start)[: self._struck]:
            kinds[fault.kind] = kinds.get(fault.kind, 0) + 1
        return {
            "engine": self.job.engine.text,
            "workers": self.options.workers,
            "seed": self.options.seed,
            "lease_ms": self.options.lease_ms,
            "faults": kinds,
            "baseline_steps_per_s": self.base_rate,
            **figures,
            "goal": self.options.goal,
            "laws": {law: not found for law, found in self.findings.items()},
            "findings": {law: found for law, found in self.findings.items() if found},
        }
