"""Workers of prd as actors of Ray: python3 train.py -n 8 script.py [ARGUMENT ...]

Each actor runs the script in a process of its own. A worker that fails, or whose actor dies, is started again with its rank,
three times at most; the others go on, as no actor waits for another one. Where Ray takes a node away (it drains it, with a
deadline), the workers on it leave the job by that deadline, each with the step that it is in, and no group of the others
fails; they are started again where there is room, and this counts as no failure. PRD_CONTROLLER, and the keys if the daemon has
some, are passed on; the daemon must be reached by all nodes (tcp). Each worker has a place of --cpus and --gpus in a
placement group: where the cluster has too few, that is said, and after --wait seconds the launcher ends with 3. Tried with
Ray 2.60 (tests/python/ray_test.py).
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

RESTARTS = 3
MARGIN_S = 3  # before a deadline, to end in peace


@ray.remote(max_concurrency=2)
class Worker:
    def __init__(self):
        self._process = None

    def run(self, command, environment):
        self._process = subprocess.Popen(command, env={**os.environ, **environment}, stdin=subprocess.PIPE, text=True, preexec_fn=leave_with_parent)
        if code := self._process.wait():
            raise RuntimeError(f"the script ended with {code}")

    def leave(self, reason, grace):
        """As Session.leave_soon: python3 -m prd.notices tells the script's sessions."""
        try:
            self._process.stdin.write(f"{grace} {reason}\n")
            self._process.stdin.flush()
        except (AttributeError, BrokenPipeError):
            pass  # it has not begun, or is over

    def node(self):
        return ray.get_runtime_context().get_node_id()


def leave_with_parent():
    """In the script's process: where Ray's is ended, this worker leaves its job at the next boundary, and its rank is free."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def draining():
    """The nodes that Ray takes away, with the time when: Unix, ms; 0: not known. Of a Ray that does not tell, none.

    Ray Train asks the same way; there is no public one.
    """
    try:
        return ray._private.state.state.get_draining_nodes()
    except AttributeError:
        return {}


class Rank:
    """A worker of the job: its actor, and the one that comes after it."""

    def __init__(self, placed, command, environment):
        self._placed, self._command, self._environment = placed, command, environment
        self.restarts = RESTARTS
        self.start()

    def start(self):
        self.told = False
        self.actor = self._placed.remote()
        self._node = self.actor.node.remote()
        self.end = self.actor.run.remote(self._command, self._environment)

    def tell(self, nodes):
        """If its node is one of those that go: the worker is to leave."""
        if self.told or not nodes or not ray.wait([self._node], timeout=0)[0]:
            return
        try:
            deadline_ms = nodes.get(ray.get(self._node))
        except ray.exceptions.RayError:  # it is dead already
            return
        if deadline_ms is not None:
            self.told = True
            left_s = max(1, deadline_ms / 1000 - time.time() - MARGIN_S) if deadline_ms else 0
            self.actor.leave.remote("Ray drains its node", left_s)


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
    placed = Worker.options(num_cpus=args.cpus, num_gpus=args.gpus,
                            scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group=places))
    command = [sys.executable, "-m", "prd.notices", os.path.abspath(args.script), *args.arguments]
    ranks = [Rank(placed, command, {**common, "PRD_RANK": str(rank)}) for rank in range(args.workers)]
    running, failed = dict(enumerate(ranks)), 0
    while running:
        ended, _ = ray.wait([one.end for one in running.values()], timeout=1)
        for rank in [rank for rank, one in running.items() if one.end in ended]:
            one = running[rank]
            try:
                ray.get(one.end)
                del running[rank]
            except Exception as error:  # the others go on
                print(f"rank {rank}: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
                one.restarts -= not one.told
                if one.restarts < 0:
                    failed += 1
                    del running[rank]
                else:
                    one.start()
        nodes = draining()
        for one in running.values():
            one.tell(nodes)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
