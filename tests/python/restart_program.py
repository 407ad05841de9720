#!/usr/bin/env python3
"""Trains two models, one with Adam and one with Adadelta, up to the iteration that a file names once it is there: the same for all,
since who made one more step of both would wait in the second for those who wait in the first's end. Prints a line per step: the
job, the iteration, and a digest of the parameters and of all that the optimizer keeps.

Usage: restart_program.py STOP_FILE RANK; PRD_* say where the daemon is.
"""
import os
import sys
import time
import zlib

import torch

import prd
import prd.torch


def digest(model, optimizer):
    found = 0
    for p in model.parameters():
        for _, value in [("", p), *sorted(optimizer.state[p].items())]:
            value = value.detach().numpy().tobytes() if torch.is_tensor(value) else repr(value).encode()
            found = zlib.crc32(value, found)
    return found


def last(stop):
    return int(open(stop).read()) if os.path.exists(stop) else float("inf")


def main():
    stop, rank = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    jobs = {}
    for name, kind in (("adam", torch.optim.Adam), ("adadelta", torch.optim.Adadelta)):
        torch.manual_seed(rank)
        model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        optimizer = kind(model.parameters(), lr=0.01)
        jobs[name] = model, optimizer, prd.torch.attach(model, optimizer, session=prd.Session(job=name, rank=rank), samples=8)
    while jobs["adam"][2].session.iteration < last(stop):
        for name, (model, optimizer, worker) in jobs.items():
            inputs = torch.randn(8, 6)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), inputs.sum(-1, keepdim=True)).backward()
            optimizer.step()
            print(name, worker.session.iteration, digest(model, optimizer), flush=True)
        time.sleep(0.005)
    for _, _, worker in jobs.values():
        worker.finish()


if __name__ == "__main__":
    main()
