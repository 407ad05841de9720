#!/usr/bin/env python3
"""How long the others stand still when a worker is killed: kill -9 at random moments, and for each kill the longest time
between two steps of a survivor. Usage: death_by_hand.py BIN_DIR [--kills 20] [--workers 4] [--over ipc,tcp,curve]
[--engines all-reduce,...] [--grace 200] [--step-ms 50] [--restarts 0]

The killed one is started anew and trains again before the next kill. --restarts N: kills and starts the daemon so often
instead, and tells the longest time between two steps beside how long the daemon took until it listened."""
import argparse
import random
import statistics
import sys
import time

import cluster

ENGINES = {  # with what makes groups of more than the killed one wait
    "all-reduce": "", "p-reduce": "group_size = 3\n", "p-reduce-overlap": "group_size = 3\noverlap = true\n", "eager": "", "backup": "",
    "esync": "", "prague": "", "prague-overlap": "overlap = true\n", "prague-static": 'generator = "static"\n', "ad-psgd": "",
    "ad-psgd-overlap": "overlap = true\n", "hop": "", "ssp": "staleness = 1\n",
}  # fmt: skip


def make(options, engine, over):
    name = engine.removesuffix("-overlap").removesuffix("-static")
    job = (f'[[job]]\nname = "*"\nengine = "{name}"\nworkers = {options.workers}\ndeath_grace_ms = {options.grace}\n'
           f"[job.{name}]\n{ENGINES[engine]}")  # fmt: skip
    c = cluster.Cluster(options.bin, job, address="127.0.0.2" if over == "curve" else "127.0.0.1")
    if over == "ipc":
        c.config.write_text(c.config.read_text().replace(c.endpoint, f"ipc://{c.dir}/workers.sock"))
        c.endpoint = f"ipc://{c.dir}/workers.sock"
    return c


def start(c, options, rank):
    return c.worker(rank, steps=1_000_000, step_ms=options.step_ms, size=1000)


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
                victim = random.randrange(options.workers)
                workers[victim].kill()
                survivors = [w for i, w in enumerate(workers) if i != victim]
            for worker in survivors:
                trains(worker)
            now = time.monotonic()
            gaps.append(max(gap(w, killed, now) for w in survivors))
            if not options.restarts:
                workers[victim].close()
                c.workers.remove(workers[victim])
                workers[victim] = start(c, options, victim)
            for worker in workers:
                trains(worker)
    told = f"{engine:17} {over:6} {options.workers} workers  gap: median {statistics.median(gaps):.3f} s, most {max(gaps):.3f} s of {len(gaps)}"
    if listens:
        told += f"; the daemon listened after {statistics.median(listens):.3f} s, at most {max(listens):.3f} s"
    print(told, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--restarts", type=int, default=0)
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
                measure(options, engine, over)
            except AssertionError as error:
                print(f"{engine:17} {over:6} {options.workers} workers  FAILED: {error}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
