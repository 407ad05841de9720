#!/usr/bin/env python3
"""How long scripts take whose loops and learning rates are the job's, by engine, where one worker of three is slow.

Not among the tests, because it measures times: tests/python/time_by_hand.py BIN_DIR [SCRIPT ...]. Each step sleeps 150 ms, of rank 2
five times as long. Prints a JSON line per case: the time from the common start to the end of finish, that as a
ratio to all-reduce's, samples and steps of the job, each worker's steps, and by how many steps the learning rate was at most off the
plain script's at the job's clock. Fails if a ratio is over 0.6, or a learning rate off by more than one step.
"""
import place
import json
import math
import os
import pathlib
import sys
import time

import torch

import prd.torch
import scripts_test

WORKERS, SLEEP_S, FACTOR = 3, 0.15, 5
ENGINES = [("all-reduce", ""), ("p-reduce", "group_size = 2"), ("esync", ""), ("ad-psgd", "")]
ONE_CYCLE = """
import torch
import prd.torch
torch.manual_seed(1)
inputs = torch.randn(960, 8)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=20, shuffle=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
worker = prd.torch.attach(model, optimizer)
loader = worker.shard(loader)
scheduler = worker.scheduler(torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=4, steps_per_epoch=len(loader)))
for epoch in worker.epochs(4):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        scheduler.step()
worker.finish()
"""


def plain_one_cycle():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
    scheduler, found = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=64), []
    for _ in range(64):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def plain_nanogpt():
    """get_lr of the script, with its numbers."""
    return [1e-2 * (it + 1) / 6 if it < 5 else 1e-3 + 0.5 * (1 + math.cos(math.pi * (it - 5) / 55)) * 9e-3 for it in range(60)]


# Each script: its arguments, how often a step calls backward, and the learning rate of each step without prd.
SCRIPTS = {"nanogpt": ([], 2, plain_nanogpt()), "imagenet": (["--epochs", "6"], 1, [0.05] * 60), "onecycle": ([], 1, plain_one_cycle())}


def record():
    """Gradients take their time, and each worker leaves a file of what it has done."""
    backward, init, step, finish = torch.Tensor.backward, prd.torch.Worker.__init__, prd.torch.Worker.step, prd.torch.Worker.finish

    def slow_backward(*args, **kwargs):
        time.sleep(SLEEP_S / int(os.environ["CALLS"]) * (FACTOR if os.environ["PRD_RANK"] == str(WORKERS - 1) else 1))
        return backward(*args, **kwargs)

    def timed_init(worker, *args):
        init(worker, *args)
        worker.rates, worker.began = [], time.monotonic()

    def noted_step(worker, *args, **kwargs):
        worker.rates.append((worker._now, worker.optimizer.param_groups[0]["lr"]))
        return step(worker, *args, **kwargs)

    def noted_finish(worker):
        finish(worker)
        took = time.monotonic() - worker.began
        pathlib.Path("../record.json").write_text(json.dumps({"s": took, "job": worker.job_trained, "rates": worker.rates}))

    torch.Tensor.backward, prd.torch.Worker.__init__, prd.torch.Worker.step, prd.torch.Worker.finish = (
        slow_backward, timed_init, noted_step, noted_finish)


def off(rate, at, plain):
    """By how many steps."""
    last = len(plain) - 1
    return min(abs(step - min(at, last)) for step in range(len(plain)) if math.isclose(plain[step], rate, rel_tol=1e-9))


def run(name, engine, options):
    arguments, calls, plain = SCRIPTS[name]
    with place.Cluster(place.job(engine, WORKERS, "", options)) as c:
        children = []
        for rank in range(WORKERS):
            folder = c.dir / f"rank{rank}/run"
            folder.mkdir(parents=True)
            if name == "onecycle":
                (folder / "onecycle.py").write_text(ONE_CYCLE)
            else:
                scripts_test.patched(folder, name)
            children.append((folder, scripts_test.start(folder, f"{name}.py", place.environment(c, rank, CALLS=str(calls)), arguments)))
        for folder, child in children:
            if os.waitpid(child, 0)[1] != 0:
                sys.exit((folder.parent / "err").read_text()[-2000:])
        found = [json.loads((folder.parent / "record.json").read_text()) for folder, _ in children]
    return {
        "script": name, "engine": engine, "seconds": round(max(one["s"] for one in found), 2), "job_steps": max(one["job"][0] for one in found),
        "job_samples": max(one["job"][1] for one in found), "steps": [len(one["rates"]) for one in found],
        "rate_off_by": max(off(rate, at // WORKERS, plain) for one in found for at, rate in one["rates"]),
    }


def main():
    record()
    failed = False
    for name in sys.argv[1:] or SCRIPTS:
        whole = None
        for engine, options in ENGINES:
            found = run(name, engine, options)
            whole = whole or found["seconds"]
            found["ratio"] = round(found["seconds"] / whole, 3)
            failed |= found["rate_off_by"] > 1 or (engine != "all-reduce" and found["ratio"] > 0.6)
            print(json.dumps(found), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
