"""Measures what a job promises on any machine, with real training. See --help."""
import argparse
import json
import os
import pathlib
import signal
import statistics
import sys

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1] / "job_lib"))
import figures
import memory
import peers
import processes
from arguments import folder, number
from training import SNAPSHOT, Training

EPILOG = """\
What is measured, on Fashion-MNIST, up to a goal in the job's steps or samples, so that no figure depends on how fast the
machine is (but how long the others waited, and the time of a round):
  stopped    four workers; one leaves (SIGTERM), or calls Finish, at a quarter of the run, or stays: the final accuracy,
             and what the others did after that
  end        engine eager (majority), eight workers whose delays shift, shards by label and alike: the final model beside
             the last five evaluations
  replicas   momentum, shards by label, rank 0 pauses to evaluate, one worker is killed and comes back: whether all
             replicas stay equal; and when it is told that they are not, if momentum is not given as state (toy_worker)
  turns      engine backup, three equal workers: how many rounds in a row there are without one of them
  step       two workers that do nothing but steps: what a step takes in C++, with prd.Session from Python, and with
             prd.torch, which take turns (--rounds); how many steps of 50 ms a second has under each; and python_us, the
             processor time of a step that is Python's own

  peers      the same model and loop under DistributedDataParallel, torchft, hivemind and prd's engines, with the Python of
             --python (what it cannot import is named): equal workers, one 5 times slower, one killed and started again,
             one that joins later, and no sleep at all: steps per second in all, what a step costs beside the loop alone,
             processor time of a step, the others' longest gap, how soon the newcomer trains, the loss on
             held-out samples after --samples
  memory     what a process takes beyond its model (an MLP of --mib), two workers, six steps: the loop alone, under
             DistributedDataParallel and under each engine. In models, of the worker that takes most: resident memory, the
             most that was resident, what Session::memory counts, what was swapped; and in seconds the first step, the
             median of later ones, the longest of those. --killed: one is then killed with SIGKILL and started again

Prints a JSON line per run. results.jsonl in tools/measure_lib has such lines; its README says what follows from them.
"""

ENGINES = {
    "all-reduce": [], "backup": ["backups = 1"], "eager": [], "esync": [], "p-reduce": ["group_size = 2"],
    "prague": ["group_size = 2"], "ad-psgd": [], "hop": [], "ssp": [],
}  # fmt: skip

PEERS = {
    "prd all-reduce": ("all-reduce", []), "prd p-reduce": ("p-reduce", []), "prd p-reduce, groups of 2": ("p-reduce", ["group_size = 2"]),
    "prd esync": ("esync", []), "prd ad-psgd": ("ad-psgd", []),
}  # fmt: skip

# Of memory: each engine, and what changes the rows that it keeps.
ROWS = {**{name: (name, table) for name, table in ENGINES.items()}, "p-reduce, overlap": ("p-reduce", ["group_size = 2", "overlap = true"])}


def trainer(training, rank, seed, *flags, **options):
    """prd-train's arguments."""
    options = {"seed": seed, "batch": 64, "log": training.log(rank), **options}
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)] + list(flags)


def accuracy(training):
    return training.printed(0, "test_accuracy")[-1]


def all_steps(training):
    return {rank: training.steps(rank) for rank in range(training.workers)}


def stopped(options, seed, engine, how):
    workers, goal, victim = 4, 240_000, 3
    quarter = goal // 64 // workers // 4
    with Training(options.bin, engine, workers, [f"goal_samples = {goal}"], ENGINES[engine]) as training:
        for rank in range(workers):
            arguments = trainer(training, rank, seed, "--evaluate", lr=0.4, lr_decay=200, step_ms=15)
            if how == "finishes" and rank == victim:
                arguments += ["--steps", quarter]
            training.start(rank, "prd-train", arguments)
        if how == "leaves":
            training.wait_for_steps(victim, quarter)
            training.children[victim].process.terminate()
        used_s = training.wait()
        steps = all_steps(training)
        result = {"accuracy": accuracy(training), "steps": [len(of) for of in steps.values()], "cpu_s": used_s}
        return result if how == "stays" else {**result, **figures.after(training.records(), steps, victim)}


def end(options, seed, shards):
    workers, goal = 8, 240_000
    with Training(options.bin, "eager", workers, [f"goal_samples = {goal}"], ['quorum = "majority"']) as training:
        for rank in range(workers):
            arguments = trainer(
                training, rank, seed, "--evaluate", model="cnn", shards=shards, lr=0.2, lr_decay=60, step_ms=12,
                inject="shifted:6:50", snapshot_dir=training.dir / "snapshots", snapshot_ms=100,
            )  # fmt: skip
            training.start(rank, "prd-train", arguments)
        used_s = training.wait()
        evaluations, final = training.evaluations("cnn", 1.6, 200)
        last = [e["accuracy"] for e in evaluations if e["live"] == workers][-5:]
        return {
            "accuracy": final["accuracy"],
            "last": last,
            "below_their_mean": round(100 * (statistics.mean(last) - final["accuracy"]), 2),
            "spread": round(100 * statistics.stdev(last), 2),
            "steps": [len(of) for of in all_steps(training).values()],
            "cpu_s": used_s,
        }


def start_of_replicas(training, rank, seed, velocity):
    if velocity == "state":
        arguments = trainer(
            training, rank, seed, "--evaluate", shards="labels", lr=0.02, momentum=0.9, step_ms=15, evaluate_every=200,
            snapshot_dir=training.dir / "snapshots", snapshot_ms=1000,
        )  # fmt: skip
        training.start(rank, "prd-train", arguments)
        return
    pauses = [] if rank else ["--pause-at", 100, "--pause-every", 200, "--pause-ms", 500]
    arguments = ["--velocity", velocity, "--step-ms", 15, "--steps", 100_000, *pauses]
    training.start(rank, "toy_worker", arguments, output=training.log(rank))


def replicas(options, seed, engine, velocity):
    workers, goal, victim = 4, 3000, 2
    # Given as state: compared often. Else as by default.
    keys = [f"goal_steps = {goal}"] + (["check_replicas_ms = 500"] if velocity == "state" else [])
    with Training(options.bin, engine, workers, keys, ENGINES[engine]) as training:
        for rank in range(workers):
            start_of_replicas(training, rank, seed, velocity)
        training.wait_for_steps(victim, 100)
        training.children[victim].process.kill()
        training.children[victim].process.wait()
        start_of_replicas(training, victim, seed, velocity)
        used_s = training.wait()
        records = training.records()
        left = [(r["rank"], r["why"]) for r in records if r["type"] == "worker_left"]
        told = figures.digests(records)
        result = {
            "pauses": left.count((0, "paused")),
            "kills": left.count((victim, "lost")),
            "compared": sum(len(of) > 1 for of in told.values()),
            "unequal": sum(len(set(of)) > 1 for of in told.values()),
            "warnings": training.prd.log.read_text().count("warning"),
            "cpu_s": used_s,
        }
        differ = next((r for r in records if r["type"] == "replicas_differ"), None)
        if differ:
            again_ns = [r["now_ns"] for r in records if r["type"] == "worker_joined" and r["rank"] == victim][-1]
            result["told_after_s"] = round((differ["now_ns"] - again_ns) / 1e9, 2)
            result["reason"] = differ["reason"]
        if velocity == "state":
            last = [[path for _, final, path in of if not final][-1] for of in training.snapshots().values()]
            result["models_before_finish"] = len({path.read_bytes()[SNAPSHOT.size :] for path in last})
            result["accuracy"] = accuracy(training)
        return result


def turns(options, seed):
    workers = 3
    with Training(options.bin, "backup", workers, ["goal_steps = 600"], ENGINES["backup"]) as training:
        for rank in range(workers):
            training.start(rank, "prd-train", trainer(training, rank, seed, lr=0.1, step_ms=60))
        used_s = training.wait()
        records = training.records()
    groups = figures.members(records)
    formed = [r["now_ns"] for r in records if r["type"] == "group_formed" and r["kind"] == "train"]
    return {
        "rounds": len(groups),
        "in": [sum(rank in ranks for ranks in groups) for rank in range(workers)],
        "longest_absence": [figures.longest_absence(groups, rank) for rank in range(workers)],
        "of_all": sum(len(ranks) == workers for ranks in groups),
        "ms_per_round": round((formed[-1] - formed[0]) / 1e6 / (len(formed) - 1), 1),
        "cpu_s": used_s,
    }


STEP_KINDS = ("cpp", "raw", "torch")


def step_of(options, kind, engine, tensors, elements, steps, step_ms):
    """What two workers that only make steps print: the means of their medians, and of their steps per second."""
    with Training(options.bin, engine, 2, (), ENGINES[engine]) as training:
        for rank in range(2):
            if kind == "cpp":
                arguments = ["step-process", "--tensors", tensors, "--elements", elements, "--steps", steps, "--step-ms", step_ms]
                training.start(rank, "prdbench", arguments)
            else:
                worker = pathlib.Path(__file__).resolve().parent / "step_worker.py"
                training.start(rank, "/usr/bin/python3", ["-B", worker, kind, tensors, elements, steps, step_ms])
        training.wait()
        names = ["median_us", "steps_per_s"] + ["python_us"] * (kind != "cpp")
        return [statistics.mean(training.printed(rank, name)[-1] for rank in range(2)) for name in names]


def step(options, seed, engine, tensors, elements, steps, step_ms):
    """Takes turns, so that what the machine does besides touches all kinds."""
    found = {kind: [] for kind in STEP_KINDS}
    for _ in range(options.rounds):
        for kind in STEP_KINDS:
            found[kind].append(step_of(options, kind, engine, tensors, elements, steps, step_ms))
    median_us, steps_per_s = ({kind: statistics.median(run[i] for run in runs) for kind, runs in found.items()} for i in range(2))
    return {
        "step_us": median_us,
        "more_ms": {kind: round((median_us[kind] - median_us["cpp"]) / 1000, 3) for kind in STEP_KINDS[1:]},
        "python_us": {kind: statistics.median(run[2] for run in found[kind]) for kind in STEP_KINDS[1:]},
        "steps_per_s": steps_per_s,
        "pace": {kind: round(steps_per_s[kind] / steps_per_s["cpp"], 4) for kind in STEP_KINDS[1:]},
        "load": os.getloadavg()[0],
    }


def cases(options):
    """Each as its function, and the function's further arguments by name."""
    if options.what == "stopped":
        hows = ("stays", "leaves", "finishes")
        return [(stopped, {"engine": engine, "how": how}) for engine in options.engines for how in hows]
    if options.what == "end":
        return [(end, {"shards": shards}) for shards in ("labels", "iid")]
    if options.what == "replicas":
        cases = [(engine, velocity) for velocity in ("state", "own") for engine in ("all-reduce", "backup")]
        return [(replicas, {"engine": engine, "velocity": velocity}) for engine, velocity in cases]
    if options.what == "step":
        sizes = [{"tensors": 1, "elements": 16_100}, {"tensors": 161, "elements": 100}, {"tensors": 1000, "elements": 100}]
        cases = [dict(engine=engine, **size, steps=500, step_ms=0) for engine in ("all-reduce", "p-reduce") for size in sizes]
        return [(step, case) for case in [*cases, {**cases[1], "steps": 100, "step_ms": 50}]]
    return [(turns, {})]


def main():
    parser = argparse.ArgumentParser(
        prog="tools/measure", description=__doc__.partition(".")[0] + ".", epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("what", choices=["stopped", "end", "replicas", "turns", "step", "peers", "memory"])
    add("--rounds", type=number(int, 1, 100), default=5, help="of step and peers: how often each kind is run (default: %(default)s)")
    add("--python", default="/usr/bin/python3", help="of peers and memory: the one that has PyTorch, and the peers (default: %(default)s)")
    add("--seconds", type=number(float, 1, 600), default=10, help="of peers: of each run (default: %(default)s)")
    add("--samples", type=number(int, 1, 10**9), default=20_000, help="of peers: at how many the loss is told (default: %(default)s)")
    add("--peer", nargs="+", default=[""], help="of peers: those with one of these in their name (default: all)")
    add("--case", nargs="+", default=[""], help="of peers and memory: the cases with one of these in their name (default: all)")
    add("--optimizers", choices=memory.OPTIMIZERS, nargs="+", default=memory.OPTIMIZERS, help="of memory (default: all)")
    add("--mib", type=number(int, 1, 1 << 20), default=190, help="of memory: of parameters, float32 (default: %(default)s)")
    add("--killed", action="store_true", help="of memory: a worker of each engine is killed, and comes back")
    add("--seeds", type=number(int, 1, 1000), nargs="+", default=[1], help="each case once with each (default: 1)")
    add("--engines", choices=list(ENGINES), nargs="+", default=list(ENGINES), help="of stopped (default: all)")
    add("--bin", type=folder, required=True, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what in ("peers", "memory"):
        options.prd = PEERS if options.what == "peers" else ROWS
        named = [("--peer", options.peer, ["alone", *peers.NEEDS, *PEERS])]
        named += [("--case", options.case, list(peers.CASES) if options.what == "peers" else [memory.ALONE, memory.DDP, *ROWS])]
        for flag, given, allowed in named:
            if not any(part in name for part in given for name in allowed):
                parser.error(f"{flag}: found {' '.join(given)}, needed is a part of one of: {', '.join(allowed)}")
        return {"peers": peers, "memory": memory}[options.what].measure(options)
    for seed in options.seeds:
        for function, arguments in cases(options):
            what = {"what": options.what, **arguments, "seed": seed}
            try:
                print(json.dumps({**what, **function(options, seed, **arguments)}), flush=True)
            except processes.ToolError as error:
                print(f"tools/measure: {what}: {error}", file=sys.stderr)
                return 1
    return 0


def interrupted(*_):
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupted)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("tools/measure: interrupted", file=sys.stderr)
        sys.exit(130)
