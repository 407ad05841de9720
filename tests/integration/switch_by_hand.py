#!/usr/bin/env python3
"""From every engine to every other one, on live jobs of 8 processes, each with a daemon of its own: 72 switches, in about
6 minutes. Not part of the tests. Usage: switch_by_hand.py BIN_DIR [--workers 8] [--from ENGINE] [--to ENGINE]

A line per pair: the longest call of a step at the switch (pause_s, against the longest step before it), and what is wrong.
Checked: each worker's steps follow each other without a hole, and each is applied once (under eager: in a round, and no
gradient is lost); all begin with one model; no group fails, nobody is lost; both runs' histories replay."""
import argparse
import json
import sys

import cluster

ENGINES = ["all-reduce", "p-reduce", "eager", "backup", "esync", "prague", "ad-psgd", "hop", "ssp"]
SETTINGS = {"backup": ["backups=0"]}  # with more it drops steps, as it should
STEPS = 40
STEP_MS = 25


def records(c, run):
    return [json.loads(line) for line in c.prdctl("export", run, offline=True).splitlines()]


def check_histories(c, wrong):
    for run in ("1", "2"):
        try:
            if json.loads(c.prdctl("replay", run, offline=True))["not_recorded"] != 0:
                wrong.append(f"run {run} ends in the middle")
        except AssertionError as error:
            wrong.append(f"replay of run {run}: {error}")
        kept = records(c, run)
        failed = [record for record in kept if record.get("type") == "group_ended" and not record["ok"]]
        left = [record for record in kept if record.get("type") == "worker_left"]
        lost = [record for record in left if record["why"] in ("lost", "failed", "evicted")]
        gradients = sum(record.get("gradients", 0) for record in left)
        if failed or lost or gradients:
            wrong.append(f"run {run}: {len(failed)} groups failed, {len(lost)} workers lost, {gradients} gradients lost")


def switch(bin_dir, engine, to, count, device):
    wrong = []
    job = f'[[job]]\nname = "toy"\nengine = "{engine}"\nworkers = {count}\nlease_ms = 20000\nheartbeat_ms = 200\n[job.backup]\nbackups = 0\n'
    with cluster.Cluster(bin_dir, job) as c:
        workers = [c.worker(rank, steps=STEPS, step_ms=STEP_MS, velocity="none" if device else "state", device=device) for rank in range(count)]
        for worker in workers:
            worker.wait_for(lambda line: line.get("step") == 5, "step 5")
        c.prdctl("switch", "toy", to, *SETTINGS.get(to, []))
        for worker in workers:
            worker.end()
        c.stop_daemon()
        pause = before = 0
        models = set()
        for rank, worker in enumerate(workers):
            steps = worker.steps()
            if [line["steps"] for line in steps] != list(range(1, STEPS + 1)):
                wrong.append(f"rank {rank} has {len(steps)} steps")
            if "eager" not in (engine, to) and steps[-1]["applied"] != STEPS:
                wrong.append(f"rank {rank} has applied {steps[-1]['applied']} steps")
            first = next((i for i, line in enumerate(steps) if line["engine"] == to), None)
            if first is None:
                wrong.append(f"rank {rank} has made no step under {to}")
                continue
            if not steps[first]["adopted"]:
                wrong.append(f"rank {rank} has taken no average")
            models.add(steps[first]["model"])
            pause = max(pause, steps[first]["waited_ms"])
            before = max([before] + [line["waited_ms"] for line in steps[:first]])
        if len(models) != 1 and not device and to != "ssp":  # under ssp a quicker worker's update may be read
            wrong.append(f"{len(models)} models at the start")
        check_histories(c, wrong)
    longest = (STEP_MS + before) / 1000
    if pause / 1000 > longest + 2:
        wrong.append("the pause is too long")
    print(json.dumps({"from": engine, "to": to, "pause_s": round(pause / 1000, 3), "longest_step_s": round(longest, 3), "wrong": wrong}), flush=True)
    return not wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bin")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--from", dest="engine", choices=ENGINES)
    parser.add_argument("--to", choices=ENGINES)
    parser.add_argument("--device", action="store_true", help="models are on the stand-in for a GPU")
    args = parser.parse_args()
    pairs = [(a, b) for a in ENGINES for b in ENGINES if a != b and args.engine in (None, a) and args.to in (None, b)]
    good = [switch(args.bin, a, b, args.workers, args.device) for a, b in pairs]
    print(f"{sum(good)} of {len(good)} switches are right")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
