"""Workers of prd as tasks of Ray: python3 train.py -n 8 script.py [ARGUMENT ...]

Each task runs the script in a process of its own. A worker that dies, or leaves because Ray ends its task or its node
(SIGTERM), is started again with its rank, three times at most (max_retries, retry_exceptions); the others go on, as no task waits
for another one. PRD_CONTROLLER, and the keys if the daemon has some, are passed on; the daemon must be reached by all nodes
(tcp). Each worker has a place of --cpus and --gpus in a placement group: where the cluster has too few, that is said, and
after --wait seconds the launcher ends with 3. Tried with Ray 2.60 (tests/python/ray_test.py).
"""
import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
import uuid

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote(max_retries=3, retry_exceptions=True)
def worker(command, environment):
    subprocess.run(command, env={**os.environ, **environment}, check=True, preexec_fn=leave_with_parent)


def leave_with_parent():
    """In the script's process: where Ray's is ended, this worker leaves its job at the next boundary, and its rank is free."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def reserve(args):
    """A placement group with room for all workers; None: there is none."""
    of_one = {"CPU": args.cpus, "GPU": args.gpus}
    of_one = {name: amount for name, amount in of_one.items() if amount}
    group = ray.util.placement_group([of_one] * args.workers)
    ended = time.monotonic() + args.wait
    told = False
    while not group.wait(min(5, max(0, ended - time.monotonic()))):
        has = ray.cluster_resources()
        short = ", ".join(f"{amount * args.workers:g} {name} of {has.get(name, 0):g}" for name, amount in of_one.items())
        if time.monotonic() >= ended:
            print(f"{args.workers} workers have no room: needed are {short} that the cluster has, and some may be taken", file=sys.stderr)
            return None
        if not told:
            told = True
            print(f"waiting for room for {args.workers} workers: needed are {short} that the cluster has, and some may be taken", file=sys.stderr)
    return group


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--workers", type=int, required=True)
    parser.add_argument("--job", default=os.environ.get("PRD_JOB"), help="default: the script's name")
    parser.add_argument("--cpus", type=float, default=1, help="of each worker (default: 1)")
    parser.add_argument("--gpus", type=float, default=0, help="of each worker (default: 0)")
    parser.add_argument("--wait", type=float, default=600, help="seconds until the cluster has room for all (default: 600)")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    ray.init()  # the cluster of RAY_ADDRESS, or one of this host
    places = reserve(args)
    if places is None:
        return 3
    common = {name: value for name, value in os.environ.items() if name.startswith("PRD_")}
    common |= {"PRD_JOB": args.job or os.path.splitext(os.path.basename(args.script))[0], "PRD_WORLD_SIZE": str(args.workers),
               "PRD_LAUNCH": f"ray-{uuid.uuid4().hex}"}
    placed = worker.options(num_cpus=args.cpus, num_gpus=args.gpus,
                            scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group=places))
    tasks = {placed.remote([sys.executable, os.path.abspath(args.script), *args.arguments], {**common, "PRD_RANK": str(rank)}): rank
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
