"""What the checks in the booted system have in common: telling results, running programs, jobs of workers."""
import json
import pathlib
import re
import subprocess
import time
import traceback

RESULTS = "/dev/ttyS1"  # the host reads it
LIMIT_S = 300  # emulated processors are slow; a wait that takes longer is a failure
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive",
               "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"}
failures = 0
checks = 0


def tell(line):
    with open(RESULTS, "w", encoding="utf-8") as out:
        out.write(line + "\n")


def check(what, do):
    """Runs `do`, which returns what there is to say, or raises AssertionError. Whether it has passed."""
    global failures, checks
    checks += 1
    began = time.monotonic()
    try:
        found = do()
        tell(f"ok    {what}" + (f": {found}" if found else "") + f" ({time.monotonic() - began:.0f} s)")
        return True
    except Exception as error:  # whatever it is: the next check is another one
        failures += 1
        tell(f"FAIL  {what}: {error}")
        tell("".join(traceback.format_tb(error.__traceback__)[-2:]).rstrip())
        tell(run("journalctl", "-u", "prd", "-n", "25", "--no-pager", "-o", "short-monotonic", fails=None).stdout.rstrip())
        return False


def run(*command, fails=False, user=None, env=None, timeout=LIMIT_S):
    """Its result. `fails`: whether it is to fail; None: either."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          user=user, group=user, extra_groups=[] if user else None, env=dict(ENVIRONMENT, **env or {}), timeout=timeout)
    assert fails is None or (done.returncode != 0) == fails, f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stdout[-2000:]}"
    return done


def wait(what, predicate, limit_s=LIMIT_S):
    """Until it is true, or returns something. What it returned."""
    until = time.monotonic() + limit_s
    while True:
        found = predicate()
        if found:
            return found
        assert time.monotonic() < until, f"after {limit_s} s still not: {what}"
        time.sleep(0.3)


def show(unit, *names):
    """Properties of a unit."""
    lines = run("systemctl", "show", unit, *[f"-p{name}" for name in names]).stdout.splitlines()
    found = dict(line.split("=", 1) for line in lines)
    return [found[name] for name in names]


def active(unit="prd.service"):
    return show(unit, "ActiveState", "SubState") == ["active", "running"]


def journal(since, unit="prd.service"):
    """The messages of the unit, and of systemd about it, since a wall clock in s."""
    return run("journalctl", "-u", unit, "--no-pager", "-o", "cat", f"--since=@{since:.6f}").stdout


def said(since, *words):
    """The line of prd's journal with the first of these words, once all are there: messages come to the journal late."""
    def look():
        text = journal(since)
        return text if all(word in text for word in words) else None

    text = wait(f"the journal says {words}", look)
    return next(line for line in text.splitlines() if words[0] in line)


def prdctl(*words, user=None):
    done = run("prdctl", "--json", "--timeout-ms", 30000, *words, user=user)
    return json.loads(done.stdout)


def configure(text, restart=True):
    pathlib.Path("/etc/prd/prd.toml").write_text(text, encoding="utf-8")
    if restart:
        run("systemctl", "restart", "prd")


def drop_in(text):
    """The settings of an operator for prd.service; none with ""."""
    folder = pathlib.Path("/etc/systemd/system/prd.service.d")
    folder.mkdir(exist_ok=True)
    (folder / "test.conf").write_text(f"[Service]\n{text}\n", encoding="utf-8")
    run("systemctl", "daemon-reload")


class Worker:
    """One process. program: "cc" or "py"."""

    def __init__(self, job, rank, workers, program="cc", user=None, step_ms=200, within=(), **env):
        folder = pathlib.Path("/run/booted")
        folder.mkdir(mode=0o777, exist_ok=True)
        folder.chmod(0o777)
        self.job, self.rank = job, rank
        self.notes = folder / f"{job}-{rank}-{time.monotonic_ns()}.notes"
        self.said = self.notes.with_suffix(".said")
        command = ["booted-worker"] if program == "cc" else ["python3", "/opt/booted/worker.py"]
        environment = dict(ENVIRONMENT, PRD_JOB=job, PRD_RANK=str(rank), PRD_WORLD_SIZE=str(workers), **env)
        with open(self.said, "w", encoding="utf-8") as said:
            self.process = subprocess.Popen([*within, *command, str(self.notes), str(step_ms)], stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                                            user=user, group=user, extra_groups=[] if user else None, env=environment)

    def steps(self):
        """The wall clock in ns at the end of each step."""
        lines = self.notes.read_text(encoding="ascii").splitlines() if self.notes.exists() else []
        return [int(line.split()[0]) for line in lines if " " in line]

    def output(self):
        return self.said.read_text(encoding="utf-8")

    def refused(self):
        """It ends without a step. What it says."""
        assert self.process.wait(LIMIT_S) == 1 and not self.steps(), self.output()
        return self.output().strip().splitlines()[-1]


class Job:
    """Workers of one job, whose steps are counted."""

    def __init__(self, name, programs, **more):
        self.name = name
        self.workers = [Worker(name, rank, len(programs), program, **more) for rank, program in enumerate(programs)]

    def train(self, steps=10):
        """Until each worker has made so many more."""
        counts = [len(worker.steps()) + steps for worker in self.workers]

        def made():
            for worker in self.workers:
                assert worker.process.poll() is None, f"rank {worker.rank} of {self.name} ended with {worker.process.returncode}: {worker.output()}"
            return all(len(worker.steps()) >= count for worker, count in zip(self.workers, counts))

        wait(f"each worker of {self.name} has made {steps} more steps", made)

    def gap(self, since):
        """The longest time in s without a step, of any worker, from the wall clock `since` (s) on."""
        longest = 0
        for worker in self.workers:
            ends = [since * 1e9, *[end for end in worker.steps() if end > since * 1e9]]
            longest = max([longest, *[later - end for end, later in zip(ends, ends[1:])]])
        return longest / 1e9

    def through(self, do):
        """Trains, does it, and trains on. How long no step was made."""
        self.train()
        since = time.time()
        found = do()
        self.train()
        return f"{found + ', ' if found else ''}no step for {self.gap(since):.1f} s"

    def end(self):
        """Ends the job. Each step that a worker has made is counted, once."""
        run("prdctl", "--timeout-ms", 30000, "end", self.name)
        for worker in self.workers:
            assert worker.process.wait(LIMIT_S) == 0, f"rank {worker.rank} ended with {worker.process.returncode}: {worker.output()}"
        # In an exact engine the last step of a worker may be cut short by the job's end: neither it nor the controller counts that.
        counted = {found["rank"]: found["steps"] for found in wait("the run has ended", lambda: self.over())["workers"]}
        made = {worker.rank: len(worker.steps()) for worker in self.workers}
        assert counted == made, f"steps counted {counted}, and made {made}"
        return f"{sum(made.values())} steps made, as many counted"

    def over(self):
        found = prdctl("workers", self.name)
        return found if found["run"]["ended"] else None

    def kill(self):
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()


def pid():
    return int(show("prd.service", "MainPID")[0])


def back(former):
    """Until another process of prd is ready."""
    wait("prd has started again", lambda: active() and pid() not in (0, former))


SYSCALLS = {int(number): name for name, number in re.findall(r"^(\w+) (\d+)$", pathlib.Path("/opt/booted/syscalls").read_text(encoding="ascii"), re.M)}


def denied(boot):
    """The system calls that the unit's filter has denied to prd and its commands since that boot: how often each."""
    found = {}
    for line in run("journalctl", "-b", boot, "--no-pager", "-o", "cat", "_TRANSPORT=audit").stdout.splitlines():
        call = re.search(r'SECCOMP .*uid=(\d+) .*comm="([^"]*)" exe="([^"]*)" .*syscall=(\d+)', line)
        if call and not call[3].startswith("/usr/lib/systemd/"):  # systemd's own services
            name = SYSCALLS.get(int(call[4]), call[4])
            found.setdefault(name, {}).setdefault(call[3], 0)
            found[name][call[3]] += 1
    return found
