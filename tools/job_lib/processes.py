"""Child processes that are watched, ended by their ids, and never outlive the program; and ports for them."""
import contextlib
import ctypes
import os
import pathlib
import random
import signal
import socket
import subprocess
import time

PR_SET_PDEATHSIG = 1


class ToolError(Exception):
    """What went wrong, in words."""


def _die_with_parent(parent):
    # Also when the program itself is killed: the kernel ends the child then.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed before the line above
        os._exit(1)


def tail(path, lines=15):
    """The last lines of a log, indented, for an error message."""
    try:
        text = pathlib.Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return "    (no log)"
    return "\n".join("    " + line for line in text[-lines:]) or "    (the log is empty)"



def free_port():
    """Not one of those that the kernel gives to connections: somebody's could take it until it is used. Nor is it given to another
    process that asks here, as long as this one runs."""
    while True:
        port = random.randrange(10_000, 30_000)
        claim = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("127.0.0.1", port))
            claim.bind(f"\0prd-port-{port}")
            claim.detach()  # it stays open
            return port
        claim.close()


class Child:
    """A process with its standard error (and output, if `output` is no other file) in a log.

    piped: its output can be read from .process.stdout.
    """

    def __init__(self, name, command, log, environment=None, output=None, piped=False):
        self.name = name
        self.log = log
        with open(log, "ab") as errors, open(output or log, "ab") as out:
            try:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE if piped else out,
                    stderr=errors,
                    env=dict(os.environ, **(environment or {})),
                    # Ctrl-C in the terminal is for the program, which then ends its children in order.
                    start_new_session=True,
                    preexec_fn=lambda parent=os.getpid(): _die_with_parent(parent),
                )
            except OSError as error:
                raise ToolError(f"{name} cannot be started: {error}") from None

    def running(self):
        return self.process.poll() is None

    def how_it_ended(self):
        code = self.process.returncode
        known = -code in set(signal.Signals)
        how = f"was killed by signal {signal.Signals(-code).name if known else -code}" if code < 0 else f"ended with exit code {code}"
        return f"{self.name} {how}; its log ends so:\n{tail(self.log)}"


class Children:
    """All of them. Use in a with statement: leaving it ends those that still run."""

    def __init__(self):
        self._children = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def start(self, *args, **options):
        child = Child(*args, **options)
        self._children.append(child)
        return child

    def end(self, timeout_s=5):
        """Asks the youngest first (workers before prd), then kills what has not ended in time."""
        for child in reversed(self._children):
            if child.running():
                child.process.terminate()
        deadline = time.monotonic() + timeout_s
        for child in reversed(self._children):
            try:
                child.process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        self._children.clear()


def wait_all(children, timeout_s, what):
    """Waits until these have ended with exit code 0. Raises ToolError otherwise."""
    deadline = time.monotonic() + timeout_s
    for child in children:
        try:
            child.process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise ToolError(
                f"{child.name} did not end within {timeout_s:.0f} s of {what}; its log ends so:\n{tail(child.log)}"
            ) from None
        if child.process.returncode != 0:
            raise ToolError(child.how_it_ended())
