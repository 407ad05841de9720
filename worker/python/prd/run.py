"""python3 -m prd.run -n 8 script.py [ARGUMENT ...]: starts the workers of a job on this host."""
import argparse
import ctypes
import fcntl
import json
import os
import pathlib
import re
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import uuid

from prd import places

_PR_SET_PDEATHSIG = 1

EXAMPLES = """
Examples:
  python3 -m prd.run -n 4 --engine p-reduce train.py --lr 0.1
  python3 -m prd.run -n 4 --engine p-reduce --option group_size=2 --option weights=samples train.py
  python3 -m prd.run -n 4 --engine esync --job-option goal_steps=2000 train.py
  python3 -m prd.run -n 4 --engine p-reduce --env 3:SLOW_MS=50 train.py     rank 3 alone has SLOW_MS
  python3 -m prd.run -n 4 --engine p-reduce --keep out train.py             and then:
  prdctl --state-dir out/state groups
  python3 -m prd.run -n 4 --config job.toml train.py                        your own [[job]] sections
  python3 -m prd.run -n 4 --engine ssp --no-python ./trainer

Each worker has PRD_RANK, PRD_WORLD_SIZE, PRD_JOB, PRD_CONTROLLER and PRD_LAUNCH; its lines begin with its rank. A worker that
dies leaves the others alone. Without PRD_CONTROLLER a daemon of this job's own is started, with --engine or --config, and ended
with the last worker; the first line on stderr says how prdctl asks it. Its config has JOB, and JOB/* for scripts with several jobs.

Signals: SIGINT and SIGTERM are passed to all workers once; a second one kills them. On SIGTERM workers leave the job after the
step they are in, unless they have a handler of their own, and end with 143. SIGHUP, of a terminal that is closed, is as SIGTERM;
under nohup they train on.

Exit codes: 0 every worker ended with 0, in the end; 1 one did not; 2 wrong usage or config.
"""
_LITERAL = re.compile(r"""true|false|["'\[{].*|[+-]?(inf|nan|0x[\da-fA-F_]+|0o[0-7_]+|0b[01_]+|\d[\d_]*(\.\d[\d_]*)?([eE][+-]?\d+)?)|\d{4}-\d\d-\d\d.*""")
_IN_DAEMON = re.compile(r"\s*(listen|admin|state_dir)\s*=")


def _setting(text):
    """KEY=VALUE as a line of TOML, and as it was given: a value that is none in TOML, as p-reduce, is a string."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"found {text!r}, needed is KEY=VALUE")
    return f"{key} = {value if _LITERAL.fullmatch(value) else json.dumps(value, ensure_ascii=False)}", text


def _variable(text):
    """[RANK,...:]NAME=VALUE as (ranks, name, value); no ranks: of all."""
    found = re.fullmatch(r"(?:(\d+(?:,\d+)*):)?([A-Za-z_]\w*)=(.*)", text, re.DOTALL)
    if found is None:
        raise argparse.ArgumentTypeError(f"found {text!r}, needed is NAME=VALUE, or RANK:NAME=VALUE, or RANK,RANK:NAME=VALUE")
    return [int(rank) for rank in (found[1] or "").split(",") if rank], found[2], found[3]


def parser():
    """What the command line may be. The manual page is made of it."""
    made = argparse.ArgumentParser(prog="python3 -m prd.run", description="Starts the workers of a job on this host.", epilog=EXAMPLES,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("-n", "--workers", type=int, required=True, help="how many")
    made.add_argument("--job", help="the job's name (default: PRD_JOB, or the script's name)")
    made.add_argument("--engine", help="of the daemon that is started: as in prd.toml")
    made.add_argument("--option", action="append", default=[], type=_setting, metavar="KEY=VALUE",
                      help="of the engine, as in prd.toml; strings need no quotes; may be given again")
    made.add_argument("--job-option", action="append", default=[], type=_setting, metavar="KEY=VALUE",
                      help="of [[job]], as in prd.toml: goal_steps, lease_ms; may be given again")
    made.add_argument("--config", type=pathlib.Path, metavar="FILE",
                      help="a prd.toml with [[job]] sections, instead of --engine; listen, admin and state_dir are this program's")
    made.add_argument("--env", action="append", default=[], type=_variable, metavar="[RANK:]NAME=VALUE",
                      help="an environment variable of all workers, or of these ranks (1,2:NAME=VALUE); may be given again")
    made.add_argument("--keep", type=pathlib.Path, metavar="FOLDER",
                      help="leaves the daemon's history in FOLDER/state, for prdctl --state-dir, with its config and its log")
    made.add_argument("--log", type=pathlib.Path, metavar="FILE", help="where the daemon's log goes")
    made.add_argument("--controller", default=os.environ.get("PRD_CONTROLLER"), help="the endpoint of a daemon that runs (default: PRD_CONTROLLER)")
    made.add_argument("--daemon", default=os.environ.get("PRD_DAEMON", places.program("prd")), help="the program to start otherwise (default: PRD_DAEMON, or prd)")
    made.add_argument("--restart", type=int, default=0, metavar="N", help="starts a worker that fails again, up to N times")
    made.add_argument("--no-python", action="store_true", help="the script is a program of its own")
    made.add_argument("script", help="what each worker runs")
    made.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's arguments")
    return made


def parse(arguments=None):
    """The command line, checked; who gives a wrong one is told, and the program ends with 2."""
    command = parser()
    args = command.parse_args(arguments)
    if args.workers < 1:
        command.error(f"--workers: found {args.workers}, allowed is 1 or more")
    if args.controller and (args.engine or args.option or args.job_option or args.config or args.keep or args.log):
        command.error("--engine, --option, --job-option, --config, --keep, --log: are for a daemon of this job's own, and one runs already "
                      f"({args.controller}: PRD_CONTROLLER, --controller)")
    if args.config and (args.engine or args.option or args.job_option):
        command.error("--engine, --option, --job-option: are the file's, with --config")
    if not args.controller and not args.engine and not args.config:
        command.error("--engine: needed, or --config, as there is no daemon yet (PRD_CONTROLLER, --controller)")
    for ranks, name, _ in args.env:
        if any(rank >= args.workers for rank in ranks):
            command.error(f"--env: found {name} for rank {max(ranks)}, there are ranks 0 to {args.workers - 1}")
    args.job = args.job or os.environ.get("PRD_JOB") or pathlib.Path(args.script).stem
    return args


def how_it_ended(code):
    """Of a process, by its return code."""
    if code >= 0:
        return f"ended with {code}"
    return f"was killed by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"was killed by signal {-code}"


class WrongUsage(Exception):
    """What the command line, or a file that it names, cannot mean."""


def _die_with_parent():
    """In a child: SIGTERM when this program dies, and no part in what its terminal sends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _config(args, daemon):
    """Lines of prd.toml, each with the option that it is of. `daemon`: the lines of [daemon] that are this program's."""
    if args.config is None:
        engine, lines = f"--engine {args.engine}", [("[daemon]", ""), *((line, "") for line in daemon)]
        for name in (args.job, f"{args.job}/*"):
            lines += [("[[job]]", ""), (f"name = {json.dumps(name, ensure_ascii=False)}", f"--job {args.job}"),
                      (f"engine = {json.dumps(args.engine, ensure_ascii=False)}", engine), (f"workers = {args.workers}", f"--workers {args.workers}")]
            lines += [(line, f"--job-option {given}") for line, given in args.job_option]
            if args.option:
                lines.append((f"[job.{json.dumps(args.engine, ensure_ascii=False)}]", engine))
            lines += [(line, f"--option {given}") for line, given in args.option]
        return lines
    lines, section = [], None
    for number, line in enumerate(args.config.read_text(encoding="utf-8").splitlines(), 1):
        header = re.match(r"\s*\[+\s*([^]]*?)\s*\]", line)
        section = header[1] if header else section
        mine = section == "daemon" and _IN_DAEMON.match(line)
        lines.append(("" if mine else line, f"{args.config}:{number}"))
        if header and section == "daemon":
            lines += [(text, "") for text in daemon]
    if not any(text == daemon[0] for text, _ in lines):
        lines += [("[daemon]", ""), *((text, "") for text in daemon)]
    return lines


class Daemon:
    """A daemon of this job's own."""

    def __init__(self, args):
        """Raises WrongUsage for a config that prd refuses, before anything is started."""
        if shutil.which(args.daemon) is None:
            raise WrongUsage(f"--daemon: found {args.daemon!r}, which is no program here; name the daemon by --daemon or PRD_DAEMON "
                             "(built from the sources: build/release/bin/prd)")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prd-run-"))  # short: its sockets' names may have 107 bytes
        try:
            self._start(args)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _start(self, args):
        self._program = args.daemon
        kept = args.keep.absolute() if args.keep is not None else self.folder
        kept.mkdir(parents=True, exist_ok=True)
        self._kept = open(kept / "prd.run.lock", "w")  # as long as this program is there
        try:
            fcntl.flock(self._kept, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise WrongUsage(f"--keep: {kept} is another prd.run's, which is running") from None
        self.endpoint, self.admin = (f"ipc://{self.folder}/{name}.sock" for name in ("workers", "admin"))
        state = str(kept / "state")
        try:
            lines = _config(args, [f"{key} = {json.dumps(value, ensure_ascii=False)}"
                                   for key, value in (("listen", self.endpoint), ("admin", self.admin), ("state_dir", state))])
        except (OSError, UnicodeDecodeError) as error:
            raise WrongUsage(f"--config: {error}") from None
        file = kept / "prd.toml"
        file.write_text("".join(f"{text}\n" for text, _ in lines), encoding="utf-8")
        self._check(args, file, [of for _, of in lines])
        self.log = args.log or kept / "prd.log"
        with open(self.log, "a") as log:
            self.process = subprocess.Popen([args.daemon, "--config", str(file)], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                            start_new_session=True, preexec_fn=_die_with_parent)

    def _check(self, args, file, origins):
        done = subprocess.run([args.daemon, "--config", str(file), "--check-config"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode == 0:
            return

        def origin(found):
            of = origins[int(found[1]) - 1]
            return f"{of}: " if of else ""

        said = re.sub(rf"{re.escape(str(file))}:(\d+): ", origin, done.stderr.removeprefix("prd: ").strip())
        said = said or f"{args.daemon} --config {file} --check-config {how_it_ended(done.returncode)}, and said nothing"
        raise WrongUsage("\n".join(dict.fromkeys(said.splitlines())))  # JOB and JOB/* have the same errors

    def waits_for_workers(self):
        """Whether the newest run has yet to begin, because too few workers have come."""
        try:
            done = subprocess.run([_prdctl(self._program), "--admin", self.admin, "--json", "jobs"], stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=10)
            return max(json.loads(done.stdout)["runs"], key=lambda run: run["run"])["state"] == "starting"
        except (OSError, subprocess.TimeoutExpired, ValueError, LookupError):
            return False

    def last_words(self):
        """The end of its log, if that is a file; --log may name anything."""
        if not self.log.is_file():
            return f"its log is in {self.log}"
        with open(self.log, "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 1500))
            return "its log ends so:\n" + log.read(1500).decode(errors="replace")

    def end(self):
        """Ends the daemon, and removes its folder; what --keep and --log name stays."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


_LATE_S = 3  # a worker that came back may wait so long for others that have all ended
_TOGETHER_S = 0.05  # lines that come in such a distance are written together
_TRACEBACK_S = 2  # and the lines of a traceback, in this one


def _blocks(pipe):
    """Lists of lines that have come together, so that tracebacks of several workers are not mixed."""
    rest, lines, since = b"", [], time.monotonic()
    while True:
        wait = None
        if lines:
            in_traceback = _in_traceback(lines)
            wait = _TRACEBACK_S if in_traceback else min(_TOGETHER_S, max(0, since + 4 * _TOGETHER_S - time.monotonic()))
        if not select.select([pipe], [], [], wait)[0]:
            yield lines
            lines = []
            continue
        got = os.read(pipe, 65536)
        if not lines:
            since = time.monotonic()
        *whole, rest = (rest + got).split(b"\n")
        if not got and rest:
            whole.append(rest)
        lines += [line.rstrip(b"\r") for line in whole]
        if not got:
            if lines:
                yield lines
            return


def _in_traceback(lines):
    """Whether the newest traceback has not come to its last line, which is not indented."""
    for line in reversed(lines):
        if line.startswith(b"Traceback (most recent call last)"):
            return True
        if not line.startswith(b" "):
            return False
    return False


class _Said:
    """The last line that a worker has said on stderr, but for notices of prd, progress bars, and exceptions that Python has ignored."""

    def __init__(self):
        self.line = None
        self._ignores = False  # until the exception's own line, which follows its traceback

    def take(self, lines):
        for line in lines:
            if line.startswith(b"Exception ignored "):
                self._ignores = True
            elif self._ignores:
                self._ignores = line.startswith((b" ", b"Traceback "))
            elif line and not line.startswith(b"prd: ") and b"\r" not in line:
                self.line = line.decode(errors="replace")


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
        self._said = {}  # by rank
        self.failed = []  # ranks that have failed for good, the first one first
        self.running = {}  # by rank
        self.codes = {}
        for rank in range(args.workers):
            self._start(rank)

    def _environment_of(self, rank):
        own = {name: value for ranks, name, value in self._args.env if not ranks or rank in ranks}
        return {**self._environment, **own, "PRD_RANK": str(rank)}

    def _start(self, rank):
        command = [self._args.script] if self._args.no_python else [sys.executable, self._args.script]
        self.running[rank] = process = subprocess.Popen(
            [*command, *self._args.arguments], env=self._environment_of(rank), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=_die_with_parent,
        )
        for pipe, to in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            self._readers.append(threading.Thread(target=self._pass_on, args=(rank, pipe, to), daemon=True))
            self._readers[-1].start()

    def _pass_on(self, rank, pipe, to):
        with pipe:
            for block in _blocks(pipe.fileno()):
                if to is sys.stderr:
                    self._said.setdefault(rank, _Said()).take(block)
                self._write(to, b"".join(b"[%d] %s\n" % (rank, line) for line in block))

    def _write(self, to, text):
        with self._lock:
            error = _write(to, text)
        if error is not None and to is sys.stdout:
            self.say(f"what workers print on stdout is lost from here on: {error}")

    def say(self, text):
        """A line of this program on stderr, between those of the workers."""
        self._write(sys.stderr, f"prd.run: {text}\n".encode(errors="backslashreplace"))

    def look(self, ending):
        """Notes who has ended, and starts who is to be started again."""
        ended = {rank: code for rank, code in ((rank, process.poll()) for rank, process in self.running.items()) if code is not None}
        for rank, code in ended.items():
            del self.running[rank]
            self.codes[rank] = code
        for rank, code in ended.items():
            if code == 0:
                continue
            how = how_it_ended(code)
            others = [self.codes.get(other) for other in range(self._args.workers) if other != rank]
            again = not ending and self._restarts[rank] < self._args.restart
            if again and others and not self.running and not any(others):  # it would begin the job anew, alone
                again, how = False, f"{how}, and is not started again: all others have ended with 0, and so has the job"
            if again:
                self._restarts[rank] += 1
                self.say(f"rank {rank} {how}, and is started again ({self._restarts[rank]} of {self._args.restart})")
                self._start(rank)
            else:
                self.failed.append(rank)
                self.say(f"rank {rank} {how}")

    def late(self):
        """Whether each worker that runs was started again, and all others have ended with 0."""
        others = [self.codes.get(rank) for rank in range(self._args.workers) if rank not in self.running]
        return bool(self.running and others) and all(self._restarts[rank] for rank in self.running) and not any(others)

    def say_who_failed_first(self):
        """Where several have: the first one is likely to be why."""
        if len(self.failed) > 1:
            first = self.failed[0]
            line = first in self._said and self._said[first].line
            self.say(f"{len(self.failed)} of {self._args.workers} workers failed, rank {first} first" + (f": {line}" if line else ""))

    def signal(self, number):
        """To each worker that runs."""
        for process in self.running.values():
            process.send_signal(number)

    def join(self):
        """Waits until what the workers have printed is written."""
        for reader in self._readers:
            reader.join(5)  # a child of a worker may have its output yet


def _prdctl(daemon):
    """The one beside this daemon, if it is there."""
    beside = os.path.join(os.path.dirname(daemon), "prdctl")
    return beside if "/" in beside and os.path.exists(beside) else "prdctl"


def _leave(stream):
    """Nobody reads what is said there from here on, and nobody who writes to it gets an error."""
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null, stream)
    os.close(null)


def _leave_terminal():
    """It is closed."""
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode):
            _leave(stream)


def _write(to, text):
    """To stdout or stderr. Gives the error of the first time that nobody reads it, or the disk is full: the job goes on."""
    try:
        to.buffer.write(text)
        to.flush()
    except OSError as error:
        _leave(to.fileno())
        return error
    return None


def _wait(workers, daemon, woken, came):
    """Until no worker runs. `came`: signals that have come; `woken`: a pipe that tells of them."""
    passed, late = 0, 0
    while workers.running:
        if select.select([woken], [], [], 1)[0]:
            os.read(woken, 4096)
        elif daemon is not None and not came:  # a second has passed
            late = late + 1 if workers.late() and daemon.waits_for_workers() else 0
            if late == _LATE_S:
                ranks = ", ".join(map(str, sorted(workers.running)))
                workers.say(f"rank {ranks} came back when all others had ended with 0, and so has the job: it is not begun anew")
                workers.signal(signal.SIGTERM)
        if daemon is not None and daemon.process.poll() is not None:
            workers.signal(signal.SIGKILL)
            workers.say(f"the daemon {how_it_ended(daemon.process.returncode)}; {daemon.last_words()}")
            came.append(signal.SIGTERM)
            daemon = None
        while passed < len(came):
            workers.signal(came[passed] if passed == 0 else signal.SIGKILL)
            passed += 1
        workers.look(ending=bool(came))
    workers.join()
    if not came:
        workers.say_who_failed_first()


def main(arguments=None):
    """Starts the workers, and waits for them. Returns the exit code."""
    args = parse(arguments)
    came = []
    # Signals wake the loop through a pipe: a handler may come while this thread holds any lock.
    woken, waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: came.append(number))
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # not under nohup
        signal.signal(signal.SIGHUP, lambda *_: (_leave_terminal(), came.append(signal.SIGTERM)))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    daemon = None
    try:
        daemon = None if args.controller else Daemon(args)
        if daemon is not None:
            _write(sys.stderr, f"prd.run: to look at it: PRD_ADMIN={daemon.admin} {_prdctl(args.daemon)} workers\n".encode())
        workers = Workers(args, args.controller or daemon.endpoint)
    except WrongUsage as error:
        print(f"prd.run: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if daemon is not None:
            daemon.end()
        sys.exit(f"prd.run: {error}")
    try:
        _wait(workers, daemon, woken, came)
    finally:
        if daemon is not None:
            daemon.end()
    if args.keep is not None:
        workers.say(f"to look at it again: {_prdctl(args.daemon)} --state-dir {shlex.quote(str(args.keep / 'state'))} jobs")
    return 0 if all(code == 0 for code in workers.codes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
