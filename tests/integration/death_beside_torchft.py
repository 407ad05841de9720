#!/usr/bin/env python3
"""The gap after a death, beside torchft's: the same PyTorch script under both, one of the workers killed (kill -9) at a random moment,
and for each kill the longest time between two steps of a survivor. Usage: death_beside_torchft.py BIN_DIR PYTHON [--kills 10]
[--workers 4] [--step-ms 50]. PYTHON: of a virtual environment with torch and torchft (0.2.0 is known to work).

torchft runs at its defaults (three kills: survivors may wait for Gloo's timeout, a minute), and at settings that favour the gap: the
lighthouse waits 100 ms for who is late (join_timeout), looks every 10 ms, and takes a replica for dead after 300 ms without a
heartbeat, of which 20 ms are between two; a reduction may take 1 s. prd runs at its defaults, and with death_grace_ms = 50. Gradients are averaged by
Manager.allreduce: torchft's DistributedDataParallel ends its process by an assertion when a reduction fails (ddp.py, _comm_hook). The
killed one is started anew and trains again before the next kill. What the workers write goes to death_beside_torchft.err."""
import argparse
import os
import pathlib
import random
import statistics
import subprocess
import sys
import threading
import time

import cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAST = ["--join_timeout_ms", "100", "--quorum_tick_ms", "10", "--heartbeat_timeout_ms", "300"]


def train(peer, rank, step_ms, fast):
    """One worker: prints a line after each step."""
    from datetime import timedelta

    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs, labels = torch.randn(512, 64), torch.randint(0, 10, (512,))
    average = None
    if peer == "prd":
        import prd.torch

        prd.torch.attach(model, optimizer)
    else:
        import torch.distributed
        import torchft

        store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

        def load(state):
            model.load_state_dict(state["model"])
            optimizer.optim.load_state_dict(state["optimizer"])

        manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=1 if fast else 60)), min_replica_size=1, load_state_dict=load, replica_id=f"worker_{rank}",
            state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.optim.state_dict()}, rank=0, world_size=1,
            store_addr="localhost", store_port=store.port, heartbeat_interval=timedelta(milliseconds=20 if fast else 100))  # fmt: skip
        optimizer = torchft.Optimizer(manager, optimizer)

        def average():
            flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
            manager.allreduce(flat).wait()
            for parameter, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
                parameter.grad.copy_(part.view_as(parameter))

    step = 0
    while True:
        batch = torch.randint(0, 512, (32,))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
        time.sleep(step_ms / 1000)
        loss.backward()
        if average is not None:
            average()
        optimizer.step()
        step += 1
        print(step, flush=True)


class Worker:
    def __init__(self, options, peer, rank, env, log, fast=False):
        command = [options.python, __file__, "--train", peer, "--rank", str(rank), "--step-ms", str(options.step_ms)]
        command += ["--fast"] if fast else []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
        self.came = []
        threading.Thread(target=lambda: [self.came.append(time.monotonic()) for _ in self.process.stdout], daemon=True).start()

    def trains(self, more=5, within=180):
        """Waits until it has made so many more steps."""
        seen, end = len(self.came), time.monotonic() + within
        while len(self.came) < seen + more:
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"a worker {'has ended' if self.process.poll() is not None else 'makes no steps'}; see death_beside_torchft.err")
            time.sleep(0.01)

    def gap(self, since, until):
        times = [t for t in list(self.came) if t <= until]
        first = max((i for i, t in enumerate(times) if t <= since), default=0)
        times = times[first:] + [until]
        return max(b - a for a, b in zip(times, times[1:]))


def measure(options, name, start, kills=None):
    workers = [start(rank) for rank in range(options.workers)]
    gaps = []
    try:
        for worker in workers:
            worker.trains()
        for _ in range(kills or options.kills):
            time.sleep(random.uniform(0, 3 * options.step_ms / 1000))
            victim = random.randrange(options.workers)
            killed = time.monotonic()
            workers[victim].process.kill()
            survivors = [w for i, w in enumerate(workers) if i != victim]
            for worker in survivors:
                worker.trains()
            gaps.append(max(w.gap(killed, time.monotonic()) for w in survivors))
            workers[victim].process.wait()
            workers[victim] = start(victim)
            for worker in workers:
                worker.trains(10)
        told = f"median {statistics.median(gaps):.3f} s, most {max(gaps):.3f} s of {len(gaps)}"
    except AssertionError as error:
        told = f"FAILED after {len(gaps)} kills: {error}; {[round(g, 2) for g in gaps]}"
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
    print(f"{name:40} {options.workers} workers  gap: {told}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    if "--train" not in sys.argv:
        parser.add_argument("bin", type=pathlib.Path)
        parser.add_argument("python", help="of a virtual environment with torch and torchft")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--fast", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--step-ms", type=float, default=50)
    options = parser.parse_args()
    if options.train:
        return train(options.train, options.rank, options.step_ms, options.fast)
    usual = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT / "worker/python"), PRD_LIBRARY=str(options.bin.resolve().parent / "worker/libprd.so.0"))
    log = open("death_beside_torchft.err", "w")
    for engine, more in (("all-reduce", ""), ("p-reduce", ""), ("all-reduce", "death_grace_ms = 50\n")):
        job = f'[[job]]\nname = "*"\nengine = "{engine}"\nworkers = {options.workers}\n{more}'
        with cluster.Cluster(options.bin, job, address="127.0.0.1") as c:
            env = dict(usual, PRD_CONTROLLER=c.endpoint, PRD_JOB="toy", **c.keys)
            measure(options, f"prd {engine}, {more.strip() or 'defaults'}", lambda rank, env=env: Worker(options, "prd", rank, dict(env, PRD_RANK=str(rank)), log))
    lighthouse = str(pathlib.Path(options.python).parent / "torchft_lighthouse")
    for fast in (True, False):
        port = cluster.free_port()
        server = subprocess.Popen([lighthouse, "--min_replicas", "1", "--bind", f"[::]:{port}", *(FAST if fast else [])], stdout=log, stderr=log)
        env = dict(usual, TORCHFT_LIGHTHOUSE=f"http://localhost:{port}")
        try:
            measure(options, f"torchft, {'fast settings' if fast else 'defaults'}",
                    lambda rank, env=env, quick=fast: Worker(options, "torchft", rank, env, log, quick), None if fast else 3)  # fmt: skip
        finally:
            server.kill()
            server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
