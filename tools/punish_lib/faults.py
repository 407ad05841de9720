"""What each kind of fault does to a job, and how it ends."""
import signal

import job as jobs

AWAY = ("kill-daemon", "old-state", "wipe")  # kinds that kill the daemon, and start it again when they end


class Faults:
    """Of one run. .kept: (what, folder) of each state_dir that was taken from the daemon."""

    def __init__(self, job, slow_rate):
        self._job = job
        self._slow_rate = slow_rate
        self._copies = {}  # old-state's fault -> the copy to put back
        self.kept = []
        self.switches = []  # what prdctl said of each

    def copy(self, fault):
        """Makes the copy that old-state is to put back. Gives for how many seconds the daemon was stopped."""
        self._copies[fault] = self._job.dir / f"copy-{len(self._copies)}"
        return self._job.copy_state(self._copies[fault])

    def strike(self, fault):
        job, place = self._job, self._job.place
        if fault.kind == "kill":
            job.workers[fault.ranks[0]].expected_to_end = True
            jobs.kill(job.workers[fault.ranks[0]].child)
        elif fault.kind in ("stop", "stop-daemon"):
            jobs.send(self._victim(fault), signal.SIGSTOP)
        elif fault.kind in AWAY:
            job.kill_daemon()
            if fault.kind != "kill-daemon":
                folder = job.dir / f"kept-{len(self.kept)}"
                if job.take_state(folder):
                    self.kept.append((f"{fault.kind} at {fault.start:.1f} s", folder))
            if fault.kind == "old-state":
                job.put_state(self._copies[fault])
        elif fault.kind == "cut":
            place.hosts.cut(*fault.ranks, one_way=fault.one_way)
        elif fault.kind == "slow":
            place.hosts.set_rate(fault.ranks[0], self._slow_rate)
        elif fault.kind == "disk-full":
            place.disk.fill()
        elif fault.kind == "switch":
            self.switches.append(job.switch())

    def release(self, fault):
        job, place = self._job, self._job.place
        if fault.kind == "kill":
            job.start_worker(fault.ranks[0])
        elif fault.kind in ("stop", "stop-daemon"):
            jobs.send(self._victim(fault), signal.SIGCONT)
        elif fault.kind in AWAY:
            job.begin_daemon()
        elif fault.kind == "cut":
            place.hosts.mend(*fault.ranks, one_way=fault.one_way)
        elif fault.kind == "slow":
            place.hosts.set_rate(fault.ranks[0], place.hosts.rate)
        elif fault.kind == "disk-full":
            place.disk.free()

    def _victim(self, fault):
        return self._job.daemon if fault.strikes_daemon else self._job.workers[fault.ranks[0]].child


def in_words(fault):
    if fault.kind == "switch":
        return "switch      of the engine"
    if fault.kind == "cut" and fault.one_way:
        who = f"link from worker {fault.ranks[0]} to {fault.ranks[1]}"
    elif fault.kind == "cut":
        who = f"link between workers {min(fault.ranks)} and {max(fault.ranks)}"
    else:
        who = "daemon" if fault.strikes_daemon else f"worker {fault.ranks[0]}"
    old = f", copy {fault.age:.1f} s old" if fault.kind == "old-state" else ""
    return f"{fault.kind:<11} {who} for {fault.end - fault.start:.1f} s{old}"


def as_fields(fault):
    """For the file of events."""
    fields = {"kind": fault.kind, "ranks": list(fault.ranks), "for_s": round(fault.end - fault.start, 3)}
    if fault.kind == "old-state":
        fields["age_s"] = round(fault.age, 3)
    if fault.kind == "cut":
        fields["one_way"] = fault.one_way
    return fields
