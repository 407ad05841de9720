"""python3 -m prd.run -n 8 script.py [ARGUMENT ...]: starts the workers of a job on this host."""
import argparse
import ctypes
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import uuid

_PR_SET_PDEATHSIG = 1

HELP = """
Each worker has PRD_RANK, PRD_WORLD_SIZE, PRD_JOB, PRD_CONTROLLER and PRD_LAUNCH; its lines begin with its rank. A worker that
dies leaves the others alone. Without PRD_CONTROLLER a daemon of this job's own is started, with --engine, and ended with the last worker.
SIGINT and SIGTERM are passed to all workers once; a second one kills them. On SIGTERM workers leave the job after the
step they are in, unless they have a handler of their own, and end with 143. Exit code: 0 if every worker ended with 0, in the
end; else 1.
"""


def _own_daemon():
    """The one that came with this package in a wheel, or whatever prd the system has."""
    beside = pathlib.Path(__file__).resolve().parent / ".bin" / "prd"
    return str(beside) if beside.exists() else "prd"


def parse(arguments=None):
    parser = argparse.ArgumentParser(prog="python3 -m prd.run", description="Starts the workers of a job on this host.", epilog=HELP,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--workers", type=int, required=True, help="how many")
    parser.add_argument("--job", help="the job's name (default: PRD_JOB, or the script's name)")
    parser.add_argument("--engine", help="of the daemon that is started: as in prd.toml")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of the engine, as in prd.toml; may be given again")
    parser.add_argument("--job-option", action="append", default=[], metavar="KEY=VALUE", help="of [[job]], as in prd.toml; may be given again")
    parser.add_argument("--controller", default=os.environ.get("PRD_CONTROLLER"), help="the endpoint of a daemon that runs (default: PRD_CONTROLLER)")
    parser.add_argument("--daemon", default=os.environ.get("PRD_DAEMON", _own_daemon()), help="the program to start otherwise (default: PRD_DAEMON, or prd)")
    parser.add_argument("--restart", type=int, default=0, metavar="N", help="starts a worker that fails again, up to N times")
    parser.add_argument("--no-python", action="store_true", help="the script is a program of its own")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args(arguments)
    if args.workers < 1:
        parser.error(f"--workers: found {args.workers}, allowed is 1 or more")
    if args.controller and (args.engine or args.option or args.job_option):
        parser.error("--engine, --option, --job-option: are the config's where a daemon runs already (PRD_CONTROLLER, --controller)")
    if not args.controller and not args.engine:
        parser.error("--engine: needed, as there is no daemon yet (PRD_CONTROLLER, --controller)")
    args.job = args.job or os.environ.get("PRD_JOB") or pathlib.Path(args.script).stem
    return args


def _die_with_parent():
    """In a child: SIGTERM when this program dies, and no part in what its terminal sends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Daemon:
    """A daemon of this job's own."""

    def __init__(self, args):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prd-run-"))
        self.endpoint = f"ipc://{self.folder}/workers.sock"
        lines = ["[daemon]", f'listen = "{self.endpoint}"', f'admin = "ipc://{self.folder}/admin.sock"', f'state_dir = "{self.folder}/state"',
                 "[[job]]", f'name = "{args.job}"', f'engine = "{args.engine}"', f"workers = {args.workers}",
                 *args.job_option, f"[job.{args.engine}]", *args.option]
        (self.folder / "prd.toml").write_text("\n".join(lines) + "\n")
        self.log = self.folder / "prd.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([args.daemon, "--config", str(self.folder / "prd.toml")], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                            start_new_session=True, preexec_fn=_die_with_parent)

    def failure(self):
        """Why it does not run; None while it does."""
        return None if self.process.poll() is None else self.log.read_text()[-1500:]

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Workers:
    """The processes, and what they print."""

    def __init__(self, args, endpoint):
        self._args = args
        self._environment = dict(os.environ, PRD_CONTROLLER=endpoint, PRD_JOB=args.job, PRD_WORLD_SIZE=str(args.workers),
                                 PYTHONUNBUFFERED="1")
        self._environment.setdefault("PRD_LAUNCH", f"run-{uuid.uuid4().hex}")
        self._lock = threading.Lock()
        self._restarts = [0] * args.workers
        self._readers = []
        self.running = {}  # by rank
        self.codes = {}
        for rank in range(args.workers):
            self._start(rank)

    def _start(self, rank):
        command = [self._args.script] if self._args.no_python else [sys.executable, self._args.script]
        self.running[rank] = process = subprocess.Popen(
            [*command, *self._args.arguments], env=dict(self._environment, PRD_RANK=str(rank)), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=_die_with_parent,
        )
        for pipe, to in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            self._readers.append(threading.Thread(target=self._pass_on, args=(rank, pipe, to), daemon=True))
            self._readers[-1].start()

    def _pass_on(self, rank, pipe, to):
        with pipe:
            for line in pipe:
                with self._lock:
                    to.buffer.write(b"[%d] %s\n" % (rank, line.rstrip(b"\r\n")))
                    to.flush()

    def say(self, text):
        with self._lock:
            print(f"prd.run: {text}", file=sys.stderr, flush=True)

    def look(self, ending):
        """Notes who has ended, and starts who is to be started again."""
        for rank, process in list(self.running.items()):
            code = process.poll()
            if code is None:
                continue
            del self.running[rank]
            self.codes[rank] = code
            if code == 0:
                continue
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            if not ending and self._restarts[rank] < self._args.restart:
                self._restarts[rank] += 1
                self.say(f"rank {rank} {how}, and is started again ({self._restarts[rank]} of {self._args.restart})")
                self._start(rank)
            else:
                self.say(f"rank {rank} {how}")

    def signal(self, number):
        for process in self.running.values():
            process.send_signal(number)

    def join(self):
        for reader in self._readers:
            reader.join(5)  # a child of a worker may have its output yet


def main(arguments=None):
    args = parse(arguments)
    came = []
    # Signals wake the loop through a pipe: a handler may come while this thread holds any lock.
    woken, waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: came.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    daemon = None
    try:
        daemon = None if args.controller else Daemon(args)
        workers = Workers(args, args.controller or daemon.endpoint)
    except OSError as error:
        if daemon is not None:
            daemon.end()
        sys.exit(f"prd.run: {error}")
    passed = 0
    while workers.running:
        if select.select([woken], [], [], 1)[0]:
            os.read(woken, 4096)
        if daemon is not None and daemon.process.poll() is not None:
            workers.say(f"the daemon ended; its log ends so:\n{daemon.failure()}")
            workers.signal(signal.SIGKILL)
            came.append(signal.SIGTERM)
            daemon, ended = None, daemon
            ended.end()
        while passed < len(came):
            workers.signal(came[passed] if passed == 0 else signal.SIGKILL)
            passed += 1
        workers.look(ending=bool(came))
    workers.join()
    if daemon is not None:
        daemon.end()
    return 0 if all(code == 0 for code in workers.codes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
