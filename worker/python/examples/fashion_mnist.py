#!/usr/bin/env python3
"""One worker that learns Fashion-MNIST with PyTorch: what prd-train is in C++, with its options, its snapshots and its log.

    python3 -m prd.run -n 4 --engine p-reduce --job-option 'goal_samples = 600000' worker/python/examples/fashion_mnist.py

All that concerns prd: attach, shard, and in the loop the job's clock, `interrupted` and the goal. The rest makes equal
devices unequal (--step-ms, --slow), or is for tools/demo to look at.
"""
import argparse
import gzip
import json
import pathlib
import struct
import time

import torch
from torch import nn

import prd.torch

SNAPSHOT = struct.Struct("<8sQiiqqqd")  # worker/examples/snapshot.cc


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0] + ".")
    add = parser.add_argument
    add("--data", type=pathlib.Path, default="/usr/share/datasets/fashion-mnist")
    add("--model", choices=["mlp", "cnn"], default="mlp")
    add("--shards", choices=["iid", "labels"], default="iid")
    add("--batch", type=int, default=128)
    add("--job-batch", type=int, metavar="SAMPLES", help="of a step of all workers together, divided as their speeds are; --step-ms is then of --batch samples")
    add("--lr", type=float, default=0.2)
    add("--lr-decay", type=float, default=0, metavar="STEPS", help="the rate is LR / (1 + s / STEPS), s: the job's steps per worker; 0 = constant")
    add("--seed", type=int, default=1)
    add("--step-ms", type=float, default=0, help="makes every step last this long")
    add("--slow", action="append", default=[], metavar="RANK:FACTOR", help="that worker's steps last FACTOR times --step-ms")
    add("--seconds", type=float, default=0, help="ends after this long, where the job has no goal")
    add("--snapshot-dir", type=pathlib.Path, help="leaves snapshots of the parameters here, for prd-evaluate")
    add("--snapshot-ms", type=int, default=500)
    add("--log", help="writes a JSON line per step to this file")
    return parser.parse_args()


def load(folder, shards):
    """Inputs and labels; sorted by label first, if workers are to have one or two classes each."""
    with gzip.open(folder / "train-images-idx3-ubyte.gz") as file:
        images = torch.frombuffer(bytearray(file.read()[16:]), dtype=torch.uint8).view(-1, 1, 28, 28).float()
    with gzip.open(folder / "train-labels-idx1-ubyte.gz") as file:
        labels = torch.frombuffer(bytearray(file.read()[8:]), dtype=torch.uint8).long()
    order = torch.argsort(labels, stable=True) if shards == "labels" else torch.arange(len(labels))
    return ((images - images.mean(0)) / 90)[order], labels[order]


def make(model):
    if model == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    return nn.Sequential(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(400, 10))


class Log:
    """As prd-train --log writes it."""

    def __init__(self, name, worker, start_ns, step_ns):
        self._worker = worker
        self._file = open(name, "w") if name else None
        self._write({"rank": worker.rank, "workers": worker.workers, "engine": worker.engine, "start_ns": start_ns, "step_ns": step_ns})
        self.flush()

    def _write(self, line):
        if self._file is not None:
            print(json.dumps({**line, "groups": self._worker.session.group_transports._asdict()}), file=self._file)

    def step(self, result, loss):
        self._write({
            "end_ns": time.monotonic_ns(), "iteration": result.iteration, "group": result.group, "members": len(result.members),
            "rounds": result.rounds, "included": result.included, "local_steps": result.local_steps,
            "compute_ns": round(result.computed * 1e9), "wait_ns": round(result.waited * 1e9), "reduce_ns": round(result.reduced * 1e9),
            "sent_bytes": result.sent_bytes, "attempts": result.attempts, "discarded": loss is None, "loss": loss,
        })

    def finished(self):
        self._write({"finished": True, "end_ns": time.monotonic_ns()})
        self.flush()

    def flush(self):
        if self._file is not None:
            self._file.flush()


class Snapshots:
    """As prd-train leaves them."""

    def __init__(self, folder, every_ms, worker):
        self._folder, self._every_ns, self._worker = folder, every_ms * 1_000_000, worker
        self._due_ns = 0
        self.updates = 0.0

    def write(self, now_ns, final=False, always=False):
        if self._folder is None or not (now_ns >= self._due_ns or final or always):
            return False
        values = torch.cat([p.detach().flatten() for p in self._worker.model.parameters()]).numpy().tobytes()
        steps, samples = self._worker.trained
        head = SNAPSHOT.pack(b"PRDSNAP1", len(values) // 4, self._worker.rank, final, now_ns, steps, samples, self.updates)
        path = self._folder / f"snapshot-{self._worker.rank}-{now_ns}.bin"
        part = path.with_suffix(".bin.part")
        part.write_bytes(head + values)
        part.rename(path)
        self._due_ns = now_ns + self._every_ns
        return True


def rest(worker, until_ns):
    """False if the step is better cut short."""
    while (left_ns := until_ns - time.monotonic_ns()) > 0:
        if worker.interrupted:
            return False
        time.sleep(min(left_ns / 1e9, 0.002))
    return True


def main():
    args = arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    inputs, labels = load(args.data, args.shards)
    model = make(args.model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    worker = prd.torch.attach(model, optimizer, batch=args.job_batch)
    # The indices of a batch are all that is collated; a picture at a time would take longer than to learn from it.
    loader = torch.utils.data.DataLoader(range(len(labels)), batch_size=args.batch, collate_fn=lambda batch: (inputs[batch], labels[batch]))
    loader = worker.shard(loader, parts=not args.job_batch)

    slow = {int(rank): float(factor) for rank, factor in (text.split(":") for text in args.slow)}
    step_ns = round(args.step_ms * slow.get(worker.rank, 1) * 1e6)
    start_ns = time.monotonic_ns()
    log, snapshots = Log(args.log, worker, start_ns, step_ns), Snapshots(args.snapshot_dir, args.snapshot_ms, worker)
    end_ns = start_ns + args.seconds * 1e9 if args.seconds else float("inf")
    while not worker.done and time.monotonic_ns() < end_ns:  # an epoch of the job
        for x, y in loader:
            now_ns = time.monotonic_ns()
            if now_ns >= end_ns:
                break
            if snapshots.write(now_ns):
                log.flush()
            for group in optimizer.param_groups:
                group["lr"] = args.lr / (1 + worker.clock / args.lr_decay) if args.lr_decay else args.lr
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            worker.tell_loss(loss)
            if rest(worker, now_ns + step_ns * len(x) // args.batch):
                optimizer.step()
                log.step(worker.last, loss.item())
            else:
                worker.discard()
                log.step(worker.last, None)
            snapshots.updates += worker.last.rounds / max(1, len(worker.last.members))
    snapshots.write(time.monotonic_ns(), always=True)
    worker.finish()
    snapshots.write(time.monotonic_ns(), final=True)
    log.finished()


if __name__ == "__main__":
    main()
