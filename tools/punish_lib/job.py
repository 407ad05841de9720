"""The processes of one run: the daemon, its state_dir, and the workers with their steps."""
import contextlib
import json
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import time

import daemon
import engines
import processes
from processes import ToolError

NAME = "punish"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
MARK = f"PRD_PUNISH={os.getpid()}"  # in the environment of all that is started
GROUP_SIZE = 2  # unless asked for: few workers then wait for a group, and the pace is in proportion to who lives
START_S = 60  # for a daemon to be ready
PRDCTL_S = 10  # for an answer, while the job goes on

CONFIG = """\
# Written by tools/punish.
[daemon]
listen = "{endpoint}"
admin = "{admin}"
state_dir = "{state}"
{keys}
[[job]]
name = "{name}"
engine = "{engine}"
workers = {workers}
lease_ms = {lease_ms}
heartbeat_ms = {heartbeat_ms}
{more}

{tables}
"""


def session_of(pid):
    """The session of a process, None if there is no such process or it has ended and only its parent has not asked."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[3])


def started_here(pid):
    """Whether this program has started the process, or one that it started has: a number may be another's by now."""
    try:
        return MARK.encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def of_session(leader):
    """The processes of a child: it and its own children have one session."""
    pids = [int(p.name) for p in pathlib.Path("/proc").iterdir() if p.name.isdigit() and session_of(p.name) == leader]
    return [pid for pid in pids if started_here(pid)]


def send(child, sent):
    """Sends a signal to a child and its children."""
    # The child itself is known by being waited for, also if it has another environment by now.
    itself = {child.process.pid} if child.running() else set()
    for pid in itself.union(of_session(child.process.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sent)


def kill(child):
    """kill -9 of a child and its children."""
    # Stopped first, they start no others meanwhile.
    for sent in (signal.SIGSTOP, signal.SIGKILL):
        send(child, sent)
    child.process.wait()


def marked():
    return dict([MARK.split("=")])


def toml(value):
    """A value of the command line as TOML has it."""
    try:
        float(value)
        return value
    except ValueError:
        return value if value in ("true", "false") else json.dumps(value)


class Worker:
    """One process of a rank, and its children."""

    def __init__(self, rank, child):
        self.rank = rank
        self.child = child
        self.expected_to_end = False  # it was killed, or told to end
        self.said = []  # its last lines that are no steps
        self.unread = b""

    @property
    def live(self):
        return self.child.running()

    def finished(self):
        """What it printed at a good end, if it did."""
        for line in reversed(self.said):
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict) and value.get("finished"):
                    return value
        return None

    def last_words(self):
        return " ".join(self.said[-1:])[:300] or processes.tail(self.child.log, 1).strip()


class Job:
    """Use in a with statement: leaving it ends everything that it started.

    place: places.Place, where the processes run and the state_dir is.
    """

    def __init__(self, options, engine, folder, place):
        self.options = options
        self.engine = engine
        self.dir = folder
        self.place = place
        self.stop_file = folder / "stop"
        self.children = processes.Children()
        self.daemon = None
        self.starting = None  # the ReadySocket of a daemon that is not ready yet
        self.workers = []
        self.steps = [[] for _ in range(options.workers)]  # when, of each rank
        self.leaders = []  # of all sessions of workers, ever
        self.keys = {}
        self._selector = selectors.DefaultSelector()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self.workers:
            kill(worker.child)
        if self.daemon is not None and self.daemon.running():
            kill(self.daemon)
        self.children.end()
        self._selector.close()
        for worker in self.workers:
            worker.child.process.stdout.close()
        if self.starting is not None:
            self.starting.close()

    # The daemon.

    def configure(self):
        """Writes the config. Raises ToolError if prd refuses it."""
        port = processes.free_port()
        self.endpoint = f"tcp://{self.place.daemon_address}:{port}"
        self.admin = f"ipc://{self.dir}/admin.sock"
        keys = ""
        if not self.place.loopback:
            keys, self.keys = daemon.make_keys(self.options.bin, self.dir)
        self.config = self.dir / "prd.toml"
        self.config.write_text(
            CONFIG.format(
                endpoint=self.endpoint, admin=self.admin, state=self.place.state, keys=keys, name=NAME,
                engine=self.engine.name, workers=self.options.workers, lease_ms=self.options.lease_ms,
                heartbeat_ms=self.options.lease_ms // 4,
                more="\n".join(f"{key} = {toml(value)}" for key, value in self.options.job),
                tables=engines.tables(self.engine, [self.engine], GROUP_SIZE),
            )
        )  # fmt: skip
        checked = subprocess.run(
            [self.options.bin / "prd", "--config", self.config, "--check-config"], capture_output=True, text=True, check=False
        )
        if checked.returncode != 0:
            raise ToolError(f"{self.engine.text}: prd --check-config says: {checked.stderr.strip()}")

    def begin_daemon(self):
        """Starts it; `daemon_ready` says when it is ready."""
        self.starting = daemon.ReadySocket(self.dir)
        self.daemon = self.children.start(
            "prd", [*self.place.inside_daemon, self.options.bin / "prd", "--config", self.config], self.dir / "prd.log",
            {**self.starting.environment, **marked()},
        )  # fmt: skip

    def daemon_ready(self, wait_s=0):
        """Whether the daemon is ready, and no fault has made it otherwise."""
        if self.starting is not None and self.starting.heard(wait_s):
            self.starting.close()
            self.starting = None
        return self.starting is None and self.daemon.running()

    def start_daemon(self):
        self.begin_daemon()
        self.starting.wait(self.daemon.process.poll, self.daemon.log, START_S)
        self.starting.close()
        self.starting = None

    def kill_daemon(self):
        kill(self.daemon)
        if self.starting is not None:
            self.starting.close()
            self.starting = None

    def prdctl(self, *arguments, state=None, timeout_s=120):
        """(exit code, output) of prdctl --json: of the running daemon, or on the files in `state`."""
        where = ["--state-dir", state] if state else ["--admin", self.admin]
        command = [self.options.bin / "prdctl", *where, "--json", *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            return None, f"no end within {timeout_s} s"
        return done.returncode, done.stdout if done.returncode == 0 else done.stderr.strip()

    def going(self):
        """The runs that go on, as prdctl jobs has them; None if it does not answer."""
        code, text = self.prdctl("jobs", timeout_s=PRDCTL_S)
        return [run for run in json.loads(text)["runs"] if not run["ended"]] if code == 0 else None

    def switch(self):
        """To the next engine of --switch. Gives what prdctl says: a run that just begins is not switched."""
        engines_of = self.options.switch
        names = [engine.name for engine in engines_of]
        now = next((names.index(run["engine"]) for run in self.going() or () if run["engine"] in names), -1)
        to = engines_of[(now + 1) % len(engines_of)]
        settings = [f"{key}={value}" for key, value in to.settings(GROUP_SIZE).items()]
        code, said = self.prdctl("switch", NAME, to.name, *settings, timeout_s=PRDCTL_S)
        return json.loads(said)["done"] if code == 0 else f"no switch to {to.text}: {said.strip()}"

    # Its state_dir.

    def copy_state(self, to):
        """As a picture of the disk at one moment: the daemon is stopped meanwhile. Gives how long."""
        begun = time.monotonic()
        running = self.daemon.running() and not self.is_stopped(self.daemon)
        if running:
            send(self.daemon, signal.SIGSTOP)
            while self.daemon.running() and not self.is_stopped(self.daemon):
                time.sleep(0.001)
        try:
            if self.place.state_seen.exists():
                shutil.copytree(self.place.state_seen, to)
            else:  # wiped, and nobody has made another
                to.mkdir(mode=0o700)
        finally:
            if running:
                send(self.daemon, signal.SIGCONT)
        return time.monotonic() - begun

    @staticmethod
    def is_stopped(child):
        """All of its threads."""
        states = set()
        for task in pathlib.Path(f"/proc/{child.process.pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):
                states.add(task.read_text().rpartition(")")[2].split()[0])
        return states == {"T"}

    def take_state(self, to):
        """Moves what a killed daemon left, if anything, to `to`; it has no state_dir then. Gives whether there was one."""
        if not self.place.state_seen.exists():  # it was wiped, and nobody has made another
            return False
        shutil.copytree(self.place.state_seen, to)
        shutil.rmtree(self.place.state_seen)
        return True

    def put_state(self, back):
        shutil.copytree(back, self.place.state_seen)

    # The workers.

    def command(self, rank):
        if self.options.command:
            places = {"{rank}": str(rank), "{stop}": str(self.stop_file)}
            words = list(self.options.command)
            for name, value in places.items():
                words = [word.replace(name, value) for word in words]
            return words
        return [
            str(self.options.bin / "toy_worker"), "--steps", "1000000000", "--stop-file", str(self.stop_file),
            "--step-ms", str(self.options.step_ms), "--size", str(self.options.floats),
        ]  # fmt: skip

    def start_worker(self, rank):
        environment = {
            "PRD_CONTROLLER": self.endpoint,
            "PRD_JOB": NAME,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.options.workers),
            **self.keys,
            **({} if self.options.command else ONE_THREAD),
            **marked(),
        }
        child = self.children.start(
            f"worker {rank}", [*self.place.inside(rank), *self.command(rank)], self.dir / f"worker-{rank}.log", environment,
            piped=True,
        )
        worker = Worker(rank, child)
        self.leaders.append(child.process.pid)
        os.set_blocking(child.process.stdout.fileno(), False)
        self._selector.register(child.process.stdout, selectors.EVENT_READ, worker)
        if rank < len(self.workers):
            self.forget(self.workers[rank])
            self.workers[rank] = worker
        else:
            self.workers.append(worker)
        return worker

    def forget(self, worker):
        """REQUIRES: it has ended."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(worker.child.process.stdout)
        worker.child.process.stdout.close()

    def read(self, timeout_s):
        """Takes in what the workers say, for `timeout_s`. Gives the ranks that made steps, with the time."""
        stepped = []
        for key, _ in self._selector.select(timeout_s):
            worker = key.data
            try:
                data = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            if not data:
                self._selector.unregister(key.fileobj)
                continue
            now = time.monotonic()
            *lines, worker.unread = (worker.unread + data).split(b"\n")
            for line in lines:
                text = line.decode(errors="replace")
                if self.options.step_line in text:
                    self.steps[worker.rank].append(now)
                    stepped.append((worker.rank, now))
                else:
                    worker.said = [*worker.said[-20:], text]
                    with open(worker.child.log, "a", encoding="utf-8") as log:
                        log.write(text + "\n")
        return stepped

    def leaked(self):
        """Processes of workers that still run."""
        return [pid for leader in self.leaders for pid in of_session(leader)]
