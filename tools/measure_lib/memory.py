"""What a PyTorch process takes beyond its model: the loop alone, under DistributedDataParallel, and under prd's engines."""
import json
import pathlib
import sys
import time

import processes
from training import Training

FOLDER = pathlib.Path(__file__).resolve().parent
WORKERS, STEPS, VICTIM = 2, 6, 1
STEPS_BETWEEN_S, LONGEST_S = 0.1, 900
OPTIMIZERS = ("sgd", "momentum", "adamw")
ALONE, DDP = "alone", "DistributedDataParallel"


def wait_for(training, ranks, name, counts):
    """Until these workers have printed that so often."""
    deadline = time.monotonic() + LONGEST_S
    while any(len(training.printed(rank, name)) < count for rank, count in zip(ranks, counts)):
        for rank in ranks:
            child = training.children[rank]
            if not child.running() and len(training.printed(rank, name)) < counts[ranks.index(rank)]:
                raise processes.ToolError(child.how_it_ended())
        if time.monotonic() > deadline:
            raise processes.ToolError(f"not all workers have told of '{name}' within {LONGEST_S} s")
        time.sleep(STEPS_BETWEEN_S)


def models(of, size):
    """The sizes among these figures in models, the worst worker's; and its times."""
    sizes = ("resident", "most", "counted", "most_counted", "swapped")
    found = {name: round(max(one[name] for one in of) / size, 2) for name in sizes if name in of[0]}
    for one in of:
        for use, held in one.get("uses", {}).items():
            uses = found.setdefault("uses", {})
            uses[use] = max(uses.get(use, 0), round(held / size, 2))
    found.update({name: max(one[name] for one in of) for name in ("first_s", "step_s", "longest_s") if name in of[0]})
    return found


def run(options, case, optimizer):
    """One of them, as a JSON object."""
    engine, table = options.prd.get(case) or next(iter(options.prd.values()))  # of a daemon that nobody else asks
    killed = options.killed
    ranks = list(range(1 if case == ALONE else WORKERS))
    with Training(options.bin, engine, WORKERS, (), table) as training:

        def start(rank):
            settings = dict(under="prd" if case in options.prd else case, optimizer=optimizer, bytes=options.mib << 20, rank=rank, folder=str(training.dir), steps=STEPS, goes_on=killed)
            training.start(rank, options.python, ["-B", FOLDER / "memory_worker.py", json.dumps(settings)])

        for rank in ranks:
            start(rank)
        wait_for(training, ranks, "steady", [1] * len(ranks))
        steady = [training.printed(rank, "steady")[0] for rank in ranks]
        size = steady[0]["parameters"]
        found = {"mib": size >> 20, "attach_s": max(training.printed(rank, "attached")[0] for rank in ranks), **models(steady, size)}
        if killed:
            victim = training.children[VICTIM].process
            victim.kill()
            victim.wait()
            start(VICTIM)
            wait_for(training, [VICTIM], "steady", [2])
            (training.dir / "end").touch()
            wait_for(training, ranks, "ended", [1] * len(ranks))
            found["newcomer"] = {"attach_s": training.printed(VICTIM, "attached")[1], **models([training.printed(VICTIM, "ended")[0]], size)}
            found["survivor"] = models([training.printed(0, "ended")[0]], size)
        return found


def measure(options):
    """All cases with all optimizers: a JSON line for each.

    options.prd: (engine, lines of its table) by the name of the case.
    """
    for optimizer in options.optimizers:
        for case in [*([] if options.killed else [ALONE, DDP]), *options.prd]:
            if not any(part in case for part in options.case):
                continue
            what = {"what": "memory", "optimizer": optimizer, "case": case, **({"killed": True} if options.killed else {})}
            try:
                print(json.dumps({**what, **run(options, case, optimizer)}), flush=True)
            except processes.ToolError as error:
                print(f"tools/measure: {what}: {error}", file=sys.stderr)
                return 1
    return 0
