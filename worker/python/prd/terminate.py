"""SIGTERM, which schedulers send to a worker some time before they kill it: its sessions leave their jobs.

This is for sessions of the main thread, as long as the program has no handler of its own. They leave at the next boundary:
before a step or after it, or where a pause ends. Then Terminated is raised. A second SIGTERM raises it at once.
"""
import contextlib
import os
import signal
import threading
import time
import weakref

from prd import errors

LIMIT_S = 20  # for the step in which it comes; many schedulers kill after 30 s

_sessions = weakref.WeakSet()
_came = None  # since when the sessions are to leave


class Terminated(SystemExit):
    """The worker has left its job because of SIGTERM. The exit code is that of a program that SIGTERM has ended."""

    def __init__(self):
        super().__init__(128 + signal.SIGTERM)

    def __str__(self):
        return "SIGTERM"


def _on_signal(*_):
    global _came
    if _came is not None or not any(session._trains for session in _sessions):
        raise Terminated
    _came = time.monotonic()
    os.write(2, b"prd: SIGTERM: leaves the job after this step, and the others go on; once more: at once\n")


def _installed():
    return signal.getsignal(signal.SIGTERM) is _on_signal


def _restore():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def watch(session):
    """From here on the session leaves on SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_signal)
    if _installed():
        _sessions.add(session)


def forget(session):
    """The session has finished, or left."""
    global _came
    _sessions.discard(session)
    if _sessions:
        return
    _came = None
    if threading.current_thread() is threading.main_thread() and _installed():
        _restore()


def told(session):
    """Whether the session is to leave now, where it is at a boundary."""
    return _came is not None and session in _sessions


def overdue(session):
    """Whether it is to leave in the midst of a call."""
    return told(session) and time.monotonic() - _came > LIMIT_S


def leave():
    """All sessions leave. Raises Terminated."""
    for session in list(_sessions):
        with contextlib.suppress(errors.Error):
            session.leave("SIGTERM")
    raise Terminated


# A child has the program's own way again: those of a DataLoader or a pool end by SIGTERM. It may be sent before the child
# has lost this module's handler, so SIGTERM is blocked while a program forks.
_forks = threading.local()


def _before_fork():
    _forks.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]) if _installed() else None


def _after_fork():
    if _forks.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forks.mask)


def _in_child():
    global _came
    _sessions.clear()
    _came = None
    if _installed():
        _restore()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
