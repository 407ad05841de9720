#!/usr/bin/env python3
"""What a broken link costs: four workers on four hosts with steps of 50 ms, and the link between ranks 1 and 2 cut for 14 s.
Not part of the tests. Usage: cut_link_by_hand.py BIN_DIR [--engine ENGINE ...]

A JSON line per engine. Steps per second of each rank: `before` the cut (10 s), `during` (from two leases after it on) and
`after` the repair (its first 2 s); `kept`: the least of during / before of ranks 1 and 2; `longest_gap_s` between two steps;
`named_s`: from the cut until the daemon names the link."""
import argparse
import json
import sys
import time

import cluster
import hosts

LEASE_S = 2
STEP_MS = 50
BEFORE_S, CUT_S, AFTER_S = 10, 14, 6


def rate(times, begin, end):
    return round(sum(begin <= at < end for at in times) / (end - begin), 2)


def named(c):
    """The daemon knows that the link is broken."""
    return any((link["a"], link["b"]) == (1, 2) for link in json.loads(c.prdctl("links"))["links"])


def measure(bin_dir, engine):
    name, _, options = engine.partition(":")
    table = "".join(f"{key} = {value}\n" for key, value in (one.split("=") for one in options.split(",") if one))
    job = (f'[[job]]\nname = "toy"\nengine = "{name}"\nworkers = 4\nlease_ms = {LEASE_S * 1000}\nheartbeat_ms = 500\n'
           f"[job.{name}]\n{table}")  # fmt: skip
    steps = int(1.5 * (BEFORE_S + CUT_S + AFTER_S) * 1000 / STEP_MS)
    with hosts.Hosts(4, "1gbit") as at, \
            cluster.Cluster(bin_dir, job, inside=at.enter(0), address=at.address(0)) as c:  # fmt: skip
        workers = [c.worker(rank, steps=steps, step_ms=STEP_MS, size=10_000, inside=at.enter(rank)) for rank in range(4)]
        for worker in workers:
            worker.wait_for(lambda line: line.get("step") == 5, "step 5")
        time.sleep(BEFORE_S)
        cut = time.monotonic()
        at.cut(1, 2)
        known = None
        while time.monotonic() < cut + CUT_S:
            if known is None and named(c):
                known = round(time.monotonic() - cut, 2)
            time.sleep(0.2)
        at.mend(1, 2)
        mended = time.monotonic()
        time.sleep(AFTER_S)
        times = [[when for line, when in zip(worker.lines, worker.came) if "step" in line] for worker in workers]
    rates = {"before": (cut - BEFORE_S, cut), "during": (cut + 2 * LEASE_S, mended), "after": (mended, mended + 2)}
    result = {"engine": engine, **{key: [rate(of, *span) for of in times] for key, span in rates.items()}}
    result["kept"] = round(min(result["during"][rank] / result["before"][rank] for rank in (1, 2)), 3)
    result["longest_gap_s"] = round(max(b - a for of in times for a, b in zip(of, of[1:])), 2)
    result["named_s"] = known
    print(json.dumps(result), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bin")
    parser.add_argument("--engine", action="append", help="NAME or NAME:KEY=VALUE,... (default: p-reduce:group_size=2, all-reduce)")
    args = parser.parse_args()
    if hosts.why_not():
        sys.exit(hosts.why_not())
    for engine in args.engine or ["p-reduce:group_size=2", "all-reduce"]:
        measure(args.bin, engine)


if __name__ == "__main__":
    main()
