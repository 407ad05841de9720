#!/usr/bin/env python3
"""Trains the same models by DistributedDataParallel over Gloo and by prd's all-reduce, and prints how far they differ.

Usage: ddp_program.py RENDEZVOUS_FILE RANK WORKERS; PRD_* say where the daemon is. Prints a line per case: its name, whether
the bits are equal, and the largest relative difference.
"""
import contextlib
import copy
import sys

import torch
import torch.distributed as dist

import prd
import prd.torch

BATCH = 8
CASES = {
    "momentum": dict(optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01)),
    "adam": dict(optimizer=lambda p: torch.optim.Adam(p, lr=0.01)),
    "accumulate": dict(optimizer=lambda p: torch.optim.SGD(p, lr=0.05), accumulate=4),
    "clip": dict(optimizer=lambda p: torch.optim.SGD(p, lr=0.05), clip=0.3),
}


def train(model, optimizer, rank, accumulate=1, clip=None, no_sync=contextlib.nullcontext):
    generator = torch.Generator().manual_seed(100 + rank)
    for i in range(40):
        inputs = torch.randn(BATCH, 6, generator=generator)
        if i % accumulate == 0:
            optimizer.zero_grad(set_to_none=i % 8 == 0)
        last = (i + 1) % accumulate == 0
        with contextlib.nullcontext() if last else no_sync():
            torch.nn.functional.mse_loss(model(inputs), inputs.sum(-1, keepdim=True)).backward()
        if last:
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()


def main():
    rank, workers = int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=workers)
    for name, case in CASES.items():
        torch.manual_seed(1)
        plain = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        theirs, ours = copy.deepcopy(plain), copy.deepcopy(plain)
        ddp = torch.nn.parallel.DistributedDataParallel(theirs)
        train(ddp, case["optimizer"](ddp.parameters()), rank, case.get("accumulate", 1), case.get("clip"), ddp.no_sync)
        optimizer, clip = case["optimizer"](ours.parameters()), case.get("clip")
        worker = prd.torch.attach(
            ours, optimizer, session=prd.Session(job=name, rank=rank), samples=BATCH, seed=False,
            before_apply=None if clip is None else lambda: torch.nn.utils.clip_grad_norm_(ours.parameters(), clip),
        )
        train(ours, optimizer, rank, case.get("accumulate", 1))
        worker.finish()
        pairs = list(zip(theirs.parameters(), ours.parameters()))
        difference = max(((a - b).abs().max() / a.abs().max()).item() for a, b in pairs)
        print(name, all(torch.equal(a, b) for a, b in pairs), difference, flush=True)


if __name__ == "__main__":
    main()
