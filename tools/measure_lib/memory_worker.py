"""One worker of `tools/measure memory`: memory_worker.py JSON, with its settings.

Prints {"attached": seconds}; after so many steps {"steady": {...}}; and, where it goes on until the file `end` exists, then
{"ended": {...}}. Sizes are bytes of resident memory, of which none was the model's.
"""
import gc
import json
import os
import pathlib
import re
import statistics
import sys
import time

import torch
import torch.distributed

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}
LAYERS = 4


def status(key):
    """Of this process, in bytes: VmRSS, VmHWM (the most that was resident), VmSwap."""
    return int(re.search(key + r":\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) << 10


def told(before, times, worker):
    now = {"resident": status("VmRSS") - before, "most": status("VmHWM") - before, "swapped": status("VmSwap"), "steps": len(times)}
    if len(times) > 1:
        now.update(first_s=round(times[0], 3), step_s=round(statistics.median(times[1:]), 3), longest_s=round(max(times[1:]), 3))
    if worker is not None:
        held = worker.session.memory
        now.update(counted=held["all"].host, most_counted=held["all"].host_peak, uses={use: of.host for use, of in held.items() if use != "all" and of.host})
    return now


def main():
    settings = json.loads(sys.argv[1])
    folder = pathlib.Path(settings["folder"])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    width = int((settings["bytes"] / 4 / LAYERS) ** 0.5)
    model = net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(LAYERS)))
    optimizer = OPTIMIZERS[settings["optimizer"]](model.parameters())
    inputs = torch.randn(8, width)
    worker = None
    if settings["under"] == "prd":
        import prd.torch
    if settings["under"] == "DistributedDataParallel":
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=settings["rank"], world_size=2)
    gc.collect()
    before = status("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    begun = time.monotonic()
    if settings["under"] == "prd":
        worker = prd.torch.attach(model, optimizer)
    if settings["under"] == "DistributedDataParallel":
        net = torch.nn.parallel.DistributedDataParallel(model)
    print(json.dumps({"attached": round(time.monotonic() - begun, 3)}), flush=True)
    times = []
    while len(times) < settings["steps"] or settings["goes_on"] and not (folder / "end").exists():
        begun = time.monotonic()
        optimizer.zero_grad(set_to_none=True)
        net(inputs).square().mean().backward()
        optimizer.step()
        times.append(time.monotonic() - begun)
        if len(times) == settings["steps"]:
            print(json.dumps({"steady": {"parameters": sum(p.numel() * 4 for p in model.parameters()), **told(before, times, worker)}}), flush=True)
    print(json.dumps({"ended": told(before, times, worker)}), flush=True)
    if worker is not None:
        worker.leave("the measurement is over")
    sys.stdout.flush()
    os._exit(0)  # the other may be gone, for whom DistributedDataParallel would wait


if __name__ == "__main__":
    main()
