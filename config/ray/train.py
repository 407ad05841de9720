"""Workers of prd as tasks of Ray: python3 train.py -n 8 script.py [ARGUMENT ...]

Each task runs the script in a process of its own. A worker that dies is started again with its rank, three times at
most (max_retries, retry_exceptions); the others go on, as no task waits for another one. PRD_CONTROLLER, and the keys if
the daemon has some, are passed on; the daemon must be reached by all nodes (tcp). Ray is not in Debian: this was tried
with a stand-in for the calls that it makes (tests/python/ray_test.py).
"""
import argparse
import ctypes
import os
import signal
import subprocess
import sys
import uuid

import ray


@ray.remote(num_cpus=1, max_retries=3, retry_exceptions=True)
def worker(command, environment):
    subprocess.run(command, env={**os.environ, **environment}, check=True, preexec_fn=die_with_parent)


def die_with_parent():
    """In the script's process: where Ray's is lost, the rank is free for the next one."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--workers", type=int, required=True)
    parser.add_argument("--job", default=os.environ.get("PRD_JOB"), help="default: the script's name")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    ray.init()  # the cluster of RAY_ADDRESS, or one of this host
    common = {name: value for name, value in os.environ.items() if name.startswith("PRD_")}
    common |= {"PRD_JOB": args.job or os.path.splitext(os.path.basename(args.script))[0], "PRD_WORLD_SIZE": str(args.workers),
               "PRD_LAUNCH": f"ray-{uuid.uuid4().hex}"}
    tasks = {worker.remote([sys.executable, os.path.abspath(args.script), *args.arguments], {**common, "PRD_RANK": str(rank)}): rank
             for rank in range(args.workers)}
    failed = 0
    while tasks:
        (ended,), _ = ray.wait(list(tasks), num_returns=1)
        rank = tasks.pop(ended)
        try:
            ray.get(ended)
        except Exception as error:  # the others go on
            failed += 1
            print(f"rank {rank}: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
