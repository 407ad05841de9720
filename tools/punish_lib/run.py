"""One run: the job starts, trains without faults, is punished, comes to rest, ends, and is checked."""
import heapq
import itertools
import json
import re
import signal
import time

import checks
import faults
import goodput
import job as jobs
from options import LAWS
from processes import ToolError

WARM_S = 2  # after the first steps of all, before the baseline
JOIN_S = 60  # for all workers to make their first step
END_S = 30  # from being told to end to the last worker's end
RESPAWN_S = 2  # until a worker that ended by itself is started again, as a launcher would
PROGRESS_S = 10
LINK = re.compile(r"\blinks?\b")


def named(ranks):
    return f"worker{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


class Run:
    """REQUIRES: job is entered. log: report.Log."""

    def __init__(self, options, job, log, schedule):
        self.options = options
        self.job = job
        self.log = log
        self.schedule = schedule  # the faults
        self.findings = {law: [] for law in LAWS}
        self.watch = goodput.Watch(options.workers, options.patience_s, options.lease_ms / 1000)
        self.down = [[] for _ in range(options.workers)]  # [start, end] of each rank, end None: still
        self.cut = [[] for _ in range(options.workers)]  # the same, of cut links alone
        self.edges = []  # (when, kind) of all begins and ends of faults
        self.active = {}  # fault -> its intervals in `down`
        self.away = None  # the fault because of which there is no daemon
        self.punisher = faults.Faults(job, options.slow_rate)
        self.checks = checks.Checks(job, self.broken)
        self.begun = None  # when the first fault could come
        self.ended = None
        self.base_rate = None
        self.told_to_end = False
        self._actions = []
        self._order = itertools.count()
        self._explains = []
        self._explain_from = 0.0
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
        for fault in self.schedule:
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
        deadline = time.monotonic() + jobs.START_S
        while self.away is not None and time.monotonic() < deadline:
            self.loop(time.monotonic() + 0.05)
        since = time.monotonic()
        self.loop(since + self.options.patience_s)
        silent = [w.rank for w in self.job.workers if w.live and not any(step > since for step in self.job.steps[w.rank][-1:])]
        if silent:
            self.broken("no-hang", f"{named(silent)}: no step since the last fault ended; {self.checks.why(silent[0])}")
        self.checks.running()

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
        self.checks.ends((0, -signal.SIGTERM, 128 + signal.SIGTERM) if by_signal else (0,), END_S)
        self.checks.daemon_ends()
        replayed = self.checks.histories(self.punisher.kept)
        self.say("checked", f"{replayed} runs of {1 + len(self.punisher.kept)} state_dirs replayed")

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
        if hanging := self.watch.hangs(now, self.excused()):
            ranks = [rank for rank, _ in hanging]
            self.hang(ranks, f"{named(ranks)}: no step for {max(silent_s for _, silent_s in hanging):.1f} s")
        self.show_explains()
        if now - self._shown[0] > PROGRESS_S:
            self.progress(now)

    def look_at_daemon(self):
        """One that ends by itself is started again, as systemd would."""
        released = self.away is None or self.job.starting is not None
        if released and not self.job.daemon.running() and not self.told_to_end:
            self.broken("daemon-lives", self.job.daemon.how_it_ended())
            self.job.kill_daemon()
            self.job.begin_daemon()
            time.sleep(0.2)  # one that cannot start is not to be started a thousand times a second
        if self.job.starting is not None and self.job.daemon_ready() and self.away is not None:
            fault, self.away = self.away, None
            self.over(fault)

    def excused(self):
        """The ranks that need not step: dead, stopped, or without a daemon. Who is at the end of a cut link has other links."""
        dead = {worker.rank for worker in self.job.workers if not worker.live}
        struck = (fault.ranks or range(self.options.workers) for fault in self.active if fault.stops_victims and fault.kind != "cut")
        return dead.union(*struck)

    def respawn(self, worker):
        struck = any(fault.kind == "kill" and worker.rank in fault.ranks for fault in self.active)
        if self.job.workers[worker.rank] is worker and not struck and not self.told_to_end:
            self.job.start_worker(worker.rank)
            self.watch.from_(worker.rank, time.monotonic() + self.options.load_seconds)

    # Faults.

    def copy(self, fault):
        took_s = self.punisher.copy(fault)
        self.say("copy", f"state_dir copied in {1000 * took_s:.0f} ms, to be put back {fault.age:.1f} s later", took_s=round(took_s, 4))

    def strike(self, fault):
        self._struck += 1
        if fault.kind in faults.AWAY:
            self.away = fault
        self.punisher.strike(fault)
        now = time.monotonic()
        self.edge(now, fault.kind)
        self.active[fault] = []
        if fault.stops_victims:
            for rank in fault.ranks or range(self.options.workers):
                self.active[fault].append([now, None])
                self.down[rank].append(self.active[fault][-1])
                if fault.kind == "cut":
                    self.cut[rank].append(self.active[fault][-1])
        self.say("fault", faults.in_words(fault), **faults.as_fields(fault))
        if fault.kind == "switch":
            self.say("switch", self.punisher.switches[-1])

    def release(self, fault):
        """Ends a fault. A daemon that starts again is back only when it is ready."""
        self.punisher.release(fault)
        if fault.kind == "kill":
            self.watch.from_(fault.ranks[0], time.monotonic() + self.options.load_seconds)
        if fault is not self.away:
            self.over(fault)

    def edge(self, now, kind):
        self.watch.edge(now)
        self.edges.append((now, kind))

    def over(self, fault):
        now = time.monotonic()
        self.edge(now, fault.kind)
        for interval in self.active.pop(fault):
            interval[1] = now + (self.options.load_seconds if fault.kind == "kill" else 0)
        self.say("over", f"{faults.in_words(fault)}: over", **faults.as_fields(fault))

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

    def hang(self, ranks, text):
        """Breaks no-hang, unless a link is cut, and prdctl says of some worker that it waits for a link."""
        if any(fault.kind == "cut" for fault in self.active):
            code, said = self.job.prdctl("workers", timeout_s=3)
            waits = [row["why"] for row in json.loads(said)["workers"] if LINK.search(row["why"])] if code == 0 else []
            if waits:
                self.say("waits", f"{text}; prdctl names the link: {waits[0]}", ranks=ranks)
                return
        self.broken("no-hang", text)
        self.explain(ranks[0])

    def explain(self, rank):
        """Asks prdctl beside the run why a worker hangs."""
        if time.monotonic() < self._explain_from:
            return  # the answer that is on its way tells of all
        self._explain_from = time.monotonic() + PROGRESS_S
        output = self.job.dir / f"explain-{next(self._order)}.txt"
        command = [self.options.bin / "prdctl", "--admin", self.job.admin, "explain"]
        self._explains.append((self.job.children.start("prdctl", command, output), rank, output))

    def show_explains(self):
        for entry in [entry for entry in self._explains if not entry[0].running()]:
            self._explains.remove(entry)
            lines = entry[2].read_text(errors="replace").strip().splitlines()
            line = next((line.strip() for line in lines if line.split()[:1] == [str(entry[1])]), lines[-1] if lines else "nothing")
            self.say("explain", f"prdctl explain: {line}", lines=lines)

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
        for fault in sorted(self.schedule, key=lambda fault: fault.start)[: self._struck]:
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
