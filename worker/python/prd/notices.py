"""Runs a script whose workers leave the job when they are told to: python3 -m prd.notices SCRIPT [ARGUMENT ...]

For launchers that hear before a worker's place is taken away. They write a line to its standard input: how many seconds are
left, a space, and why. All sessions of the script then leave as by prd.leave_soon. Its own standard input is empty.
"""
import os
import runpy
import sys
import threading

import prd


def _listen(notices):
    for line in notices:
        left_s, _, reason = line.strip().partition(" ")
        try:
            prd.leave_soon(reason, float(left_s))
        except (ValueError, OverflowError):
            print(f"prd.notices: found {line!r}, needed are seconds and a reason", file=sys.stderr)


def main():
    """Runs the script that the command line names; the exit code is 2 where it names none."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if len(sys.argv) > 1 else 2
    threading.Thread(target=_listen, args=(os.fdopen(os.dup(0)),), daemon=True).start()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
