"""SIGTERM, which schedulers send to a worker some time before they kill it: its sessions leave their jobs.

This is for sessions of the main thread, as long as the program has no handler of its own. They leave as by
Session.leave_soon, and the call in which one has left raises Terminated. A second SIGTERM raises it at once.
"""
import contextlib
import os
import signal
import threading
import weakref

from prd import errors

LIMIT_S = 20  # for the step in which it comes; many schedulers kill after 30 s

_sessions = weakref.WeakSet()
_came = False  # the sessions are to leave


class Terminated(SystemExit):
    """The worker has left its job because of SIGTERM. The exit code is that of a program that SIGTERM has ended."""

    def __init__(self):
        super().__init__(128 + signal.SIGTERM)

    def __str__(self):
        return "SIGTERM"


def _on_signal(*_):
    global _came
    if _came or not any(session._trains for session in _sessions):
        raise Terminated
    _came = True
    for session in _sessions:
        session.leave_soon("SIGTERM", LIMIT_S)
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
    _came = False
    if threading.current_thread() is threading.main_thread() and _installed():
        _restore()


def raise_if_told(session):
    """In a call that has failed because the session has left: raises Terminated, if SIGTERM is why. All sessions leave."""
    if not _came or session not in _sessions:
        return
    for each in list(_sessions):
        with contextlib.suppress(errors.Error):
            each.leave("SIGTERM")
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
    _came = False
    if _installed():
        _restore()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
