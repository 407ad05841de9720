#!/usr/bin/env python3
"""What prdsim predicts beside what is: four workers on four hosts with links of 1 Gbit/s, steps that sleep.
Not part of the tests. Usage: predicted_by_hand.py BIN_DIR [--engine ENGINE ...] [--mib MIB ...] [--rounds N]

A JSON line per run. `alone_ms`: a step of one worker in a job of one, which is what prdsim is given as [compute]; `measured` and
`predicted`: steps per second of a worker after the first 5, in 40 and in 400; `ratio`: measured / predicted. The link is given as what TCP has of it: 1448 of each
1514 bytes."""
import argparse
import json
import subprocess
import sys
import tempfile

import cluster
import hosts

WORKERS = 4
MB_PER_S = 125 * 1448 / 1514
SKIPPED, COUNTED, PREDICTED = 5, 40, 400  # steps
STEP_MS = {1: 50, 64: 500}


def table(engine):
    name, _, options = engine.partition(":")
    lines = "".join(f"{key} = {value}\n" for key, value in (one.split("=") for one in options.split(",") if one))
    return name, lines


def measured(bin_dir, at, engine, workers, mib, step_ms):
    name, options = table(engine)
    job = f'[[job]]\nname = "toy"\nengine = "{name}"\nworkers = {workers}\n[job.{name}]\n{options}'
    with cluster.Cluster(bin_dir, job, inside=at.enter(0), address=at.address(0)) as c:
        started = [c.worker(rank, steps=SKIPPED + COUNTED, step_ms=step_ms, size=mib << 18, inside=at.enter(rank)) for rank in range(workers)]
        for worker in started:
            worker.wait_for(lambda line: line.get("step") == SKIPPED + COUNTED - 1, "last step", 10 * COUNTED)
        times = [[when for line, when in zip(worker.lines, worker.came) if "step" in line] for worker in started]
    rates = [COUNTED / (of[SKIPPED + COUNTED - 1] - of[SKIPPED - 1]) for of in times]
    return sum(rates) / len(rates)


def virtual_s(bin_dir, engine, mib, alone_ms, steps):
    name, options = table(engine)
    text = (f"[cluster]\nworkers = {WORKERS}\nworkers_per_host = 1\nsteps = {steps}\nseconds = 10000.0\n"
            f'[compute]\nmodel = "constant"\nmean_ms = {alone_ms}\n'
            f"[reduce]\nbytes = {mib << 20}.0\nbandwidth_mb_per_s = {MB_PER_S}\n"
            f'[job]\nname = "sim"\nengine = "{name}"\n[job.{name}]\n{options}')  # fmt: skip
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as workload:
        workload.write(text)
        workload.flush()
        run = subprocess.run([f"{bin_dir}/prdsim", "run", workload.name, "--json"], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stderr)
    return json.loads(run.stdout)["seconds"]


def predicted(bin_dir, engine, mib, alone_ms):
    """Without the start and the end, which both runs have."""
    first, all_ = (virtual_s(bin_dir, engine, mib, alone_ms, steps) for steps in (SKIPPED, SKIPPED + PREDICTED))
    return PREDICTED / (all_ - first)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bin")
    parser.add_argument("--engine", nargs="+", default=["all-reduce", "p-reduce:group_size=2,overlap=true"],
                        help="NAME or NAME:KEY=VALUE,... (default: %(default)s)")
    parser.add_argument("--mib", nargs="+", type=int, choices=STEP_MS, default=list(STEP_MS), help="the model (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    if hosts.why_not():
        sys.exit(hosts.why_not())
    with hosts.Hosts(WORKERS, "1gbit") as at:
        for _ in range(args.rounds):
            for mib in args.mib:
                alone_ms = 1000 / measured(args.bin, at, "all-reduce", 1, mib, STEP_MS[mib])
                for engine in args.engine:
                    is_ = measured(args.bin, at, engine, WORKERS, mib, STEP_MS[mib])
                    told = predicted(args.bin, engine, mib, alone_ms)
                    print(json.dumps({"engine": engine, "mib": mib, "alone_ms": round(alone_ms, 1), "measured": round(is_, 3),
                                      "predicted": round(told, 3), "ratio": round(is_ / told, 3)}), flush=True)


if __name__ == "__main__":
    main()
