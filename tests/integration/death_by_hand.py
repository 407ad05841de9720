#!/usr/bin/env python3
"""How long the others stand still when a worker is killed: kill -9 at random moments, and for each kill the longest time
between two steps of a survivor. Usage: death_by_hand.py BIN_DIR [--kills 20] [--workers 4] [--over ipc,tcp,curve,hosts]
[--engines all-reduce,...] [--grace 200] [--step-ms 50] [--restarts 0] [--breaks 0] [--at-once 1] [--reset-s 0]

The killed one is started anew and trains again before the next kill. --at-once N: so many die in one instant. --restarts N:
kills and starts the daemon so often instead, and tells the longest time between two steps beside how long the daemon took until it
listened. --breaks N: instead, the kernel ends so many TCP connections, of workers to the daemon and among themselves (`ss -K`: needs
root); nobody may be taken for ended, copy a model or lose a step. --over hosts: each worker and the daemon in a network namespace of
its own, with keys, so that workers have TCP connections among themselves (needs root). --over pids: over tcp, each worker in a pid
namespace of its own, as in a container, where its number is 1 (needs root). --reset-s S, over hosts: the killed one's host is reset. Its
link is cut first, so that nothing tells of the death, and after S seconds its kernel is back and knows of no connection."""
import argparse
import contextlib
import json
import random
import re
import statistics
import subprocess
import sys
import time

import cluster
import hosts

ENGINES = {  # with what makes groups of more than the killed one wait
    "all-reduce": "", "p-reduce": "group_size = 3\n", "p-reduce-overlap": "group_size = 3\noverlap = true\n", "eager": "", "backup": "",
    "esync": "", "prague": "", "prague-overlap": "overlap = true\n", "prague-static": 'generator = "static"\n', "ad-psgd": "",
    "ad-psgd-overlap": "overlap = true\n", "hop": "", "ssp": "staleness = 1\n",
}  # fmt: skip


@contextlib.contextmanager
def make(options, engine, over):
    name = engine.removesuffix("-overlap").removesuffix("-static")
    job = (f'[[job]]\nname = "*"\nengine = "{name}"\nworkers = {options.workers}\ndeath_grace_ms = {options.grace}\n'
           f"[job.{name}]\n{ENGINES[engine]}")  # fmt: skip
    with contextlib.ExitStack() as stack:
        spaces = stack.enter_context(hosts.Hosts(options.workers + 1, "1gbit")) if over == "hosts" else None
        address = spaces.address(0) if spaces else "127.0.0.2" if over == "curve" else "127.0.0.1"
        c = cluster.Cluster(options.bin, job, address=address, inside=spaces.enter(0) if spaces else ())
        c.spaces, c.pids = spaces, over == "pids"
        if over == "ipc":
            c.config.write_text(c.config.read_text().replace(c.endpoint, f"ipc://{c.dir}/workers.sock"))
            c.endpoint = f"ipc://{c.dir}/workers.sock"
        yield stack.enter_context(c)


def inside(c, rank):
    return c.spaces.enter(rank + 1) if c.spaces else ("unshare", "--pid", "--fork", "--kill-child") if c.pids else ()


def reset(c, worker, rank, seconds):
    """As if the worker's host lost its power, and were up again after so long."""
    switch, space, port = c.spaces.spaces[0], c.spaces.spaces[rank + 2], f"port{rank + 1}"
    switch.run(f"ip link set {port} down")
    worker.process.kill()
    worker.process.wait()
    space.run("ss -Kta")
    time.sleep(seconds)
    switch.run(f"ip link set {port} up")


def start(c, options, rank):
    return c.worker(rank, steps=1_000_000, step_ms=options.step_ms, size=1000, inside=inside(c, rank))


def trains(worker, more=3):
    """Waits until it has made so many more steps."""
    seen = len(worker.steps())
    cluster.wait_until(lambda: len(worker.steps()) >= seen + more or worker.process.poll() is not None, "steps")
    if worker.process.poll() is not None:
        raise AssertionError(f"a worker ended: {worker.lines[-1:]}")


def gap(worker, since, until):
    """The longest time between two of its lines, from the last one before `since` on."""
    times = [t for t in list(worker.came) if t <= until]
    first = max((i for i, t in enumerate(times) if t <= since), default=0)
    times = times[first:] + [until]
    return max(b - a for a, b in zip(times, times[1:]))


def connections(c):
    """TCP connections of this cluster's workers, as (rank, local port, remote port): those to the daemon, and others."""
    of_daemon, others = [], []
    for rank, worker in enumerate(c.workers):
        ss = subprocess.run([*inside(c, rank), "ss", "-tnpHO", "state", "established"], capture_output=True, text=True, check=True)
        for line in ss.stdout.splitlines():
            if f"pid={worker.process.pid}," in line:
                local, remote = re.findall(r":(\d+)\s", line)[:2]
                (of_daemon if remote == c.endpoint.rsplit(":", 1)[1] else others).append((rank, local, remote))
    return of_daemon, others


def break_connections(options, engine, over):
    lost = {"process_ended": 0, "worker_left": 0, "adopt_ordered": 0, "lease_expired": 0}
    broken = [0, 0]
    with make(options, engine, over) as c:
        workers = [start(c, options, rank) for rank in range(options.workers)]
        for worker in workers:
            trains(worker)
        before = len(exported(c, lost))
        while sum(broken) < options.breaks:
            of_both = connections(c)
            kind = random.randrange(2) if all(of_both) else 0 if of_both[0] else 1
            if not of_both[kind]:
                time.sleep(0.01)
                continue
            rank, local, remote = random.choice(of_both[kind])
            done = subprocess.run([*inside(c, rank), "ss", "-KtH", f"( sport = :{local} and dport = :{remote} )"],
                                  capture_output=True, text=True, check=False)  # fmt: skip
            broken[kind] += bool(done.stdout.strip())
            time.sleep(random.uniform(0, 0.1))
        for worker in workers:
            trains(worker, 10)
        for record in exported(c, lost)[before:]:
            lost[record["type"]] += 1
        steps = [[line["step"] for line in worker.steps()] for worker in workers]
        missing = sum(any(b != a + 1 for a, b in zip(of, of[1:])) for of in steps)
        again = sum(line["attempts"] > 1 for worker in workers for line in worker.steps())
    print(f"{engine:17} {over:6} {options.workers} workers  broken: {broken[0]} to the daemon, {broken[1]} among workers; {lost}; workers with a "
          f"step missing: {missing}; steps in all {sum(map(len, steps))}, tried again {again}", flush=True)  # fmt: skip


def exported(c, kinds):
    return [r for r in (json.loads(line) for line in c.prdctl("export").splitlines()) if r["type"] in kinds]


def measure(options, engine, over):
    gaps, listens = [], []
    with make(options, engine, over) as c:
        workers = [start(c, options, rank) for rank in range(options.workers)]
        for worker in workers:
            trains(worker)
        for _ in range(options.restarts or options.kills):
            time.sleep(random.uniform(0, 3 * options.step_ms / 1000))
            killed = time.monotonic()
            if options.restarts:
                c.kill_daemon()
                time.sleep(options.away)
                begin = time.monotonic()
                c.start_daemon()
                listens.append(time.monotonic() - begin)
                survivors = workers
            else:
                victims = random.sample(range(options.workers), options.at_once)
                for victim in victims:
                    if options.reset_s:
                        reset(c, workers[victim], victim, options.reset_s)
                    else:
                        workers[victim].process.kill()
                survivors = [w for i, w in enumerate(workers) if i not in victims]
            for worker in survivors:
                trains(worker)
            now = time.monotonic()
            gaps.append(max(gap(w, killed, now) for w in survivors))
            if not options.restarts:
                for victim in victims:
                    workers[victim].close()
                    c.workers.remove(workers[victim])
                    workers[victim] = start(c, options, victim)
            for worker in workers:
                trains(worker)
    told = f"{engine:17} {over:6} {options.workers} workers  gap: median {statistics.median(gaps):.3f} s, most {max(gaps):.3f} s of {len(gaps)}"
    told += f", {options.at_once} at once" if options.at_once > 1 else ""
    if listens:
        told += f"; the daemon listened after {statistics.median(listens):.3f} s, at most {max(listens):.3f} s"
    print(told, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--breaks", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--reset-s", type=float, default=0)
    parser.add_argument("--away", type=float, default=0, help="seconds between a daemon's end and its start")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--grace", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=50)
    parser.add_argument("--over", default="ipc,tcp,curve")
    parser.add_argument("--engines", default="all-reduce")
    options = parser.parse_args()
    for engine in options.engines.split(",") if options.engines != "all" else list(ENGINES):
        for over in options.over.split(","):
            try:
                (break_connections if options.breaks else measure)(options, engine, over)
            except AssertionError as error:
                print(f"{engine:17} {over:6} {options.workers} workers  FAILED: {error}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
