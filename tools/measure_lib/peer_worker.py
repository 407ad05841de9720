"""One worker of `tools/measure peers`: the same model and loop under prd and its peers. peer_worker.py JSON, with its settings.

Prints `begins TIME` before the first of the peer's lines, and `ready TIME` once it could begin; waits for the file `go`; then `s TIME` after each step that counts, `x TIME` after one whose
work was thrown away, `e TIME LOSS` where rank 0 evaluates; and at the end `cpu SECONDS`, of these steps. Times are time.monotonic's.
"""
import contextlib
import datetime
import json
import os
import pathlib
import sys
import time

import torch

BATCH = 32
SIZES = {"small": (64, 1024, 10), "wide": (512, 2400, 1900, 10), "tensors": (64,) + (16,) * 79 + (10,),
         "more tensors": (64,) + (16,) * 499 + (10,)}  # layers; parameters: 0.1, 5.8, 0.02, 0.1 million


def make_model(size):
    torch.manual_seed(1)
    layers = []
    for inputs, outputs in zip(SIZES[size], SIZES[size][1:]):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def draw(size, samples, seed):
    """Labels that a fixed linear teacher gives."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, SIZES[size][0], generator=generator)
    teacher = torch.randn(SIZES[size][0], 10, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs @ teacher).argmax(1)


class Alone:
    """The loop by itself. Of each peer: the lines that a script needs besides its loop are those of __init__ and end."""

    def __init__(self, settings, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def step(self):
        """Whether the step's work counts."""
        self.optimizer.step()
        return True

    def end(self):
        pass


class Prd(Alone):
    def __init__(self, settings, model, optimizer):
        super().__init__(settings, model, optimizer)
        import prd.torch
        self.worker = prd.torch.attach(model, optimizer, samples=BATCH)

    def end(self):
        self.worker.leave("the measurement is over")


class Ddp(Alone):
    def __init__(self, settings, model, optimizer):
        import torch.distributed
        torch.distributed.init_process_group("gloo", init_method=f"file://{settings['folder']}/rendezvous", rank=settings["rank"],
                                             world_size=settings["workers"])
        super().__init__(settings, torch.nn.parallel.DistributedDataParallel(model), optimizer)


class Torchft(Alone):
    """As its README has it, with a TCPStore of each replica's own, for there is no torchrun."""

    def __init__(self, settings, model, optimizer, **more):
        import torch.distributed
        import torchft
        self.torchft = torchft
        self.store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

        def load(state):
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])

        self.manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=datetime.timedelta(seconds=10)), min_replica_size=1, load_state_dict=load,
            state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, replica_id=f"worker_{settings['rank']}",
            rank=0, world_size=1, store_addr="localhost", store_port=self.store.port, **more)  # fmt: skip
        self.wrap(settings, model, optimizer)

    def wrap(self, settings, model, optimizer):
        super().__init__(settings, self.torchft.DistributedDataParallel(self.manager, model), self.torchft.Optimizer(self.manager, optimizer))

    def step(self):
        before = self.manager.current_step()
        self.optimizer.step()
        return self.manager.current_step() > before


class Diloco(Torchft):
    """Local steps, and an outer optimizer over what they changed, once in 20."""

    def __init__(self, settings, model, optimizer):
        super().__init__(settings, model, optimizer, use_async_quorum=False)

    def wrap(self, settings, model, optimizer):
        from torchft.local_sgd import DiLoCo
        Alone.__init__(self, settings, model, optimizer)
        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        self.context = DiLoCo(self.manager, [model], optimizer, outer, sync_every=20)
        self.context.__enter__()

    def step(self):
        self.optimizer.step()
        return True


class Hivemind(Alone):
    """Local updates, averaged once an epoch of 20 steps a worker."""

    def __init__(self, settings, model, optimizer):
        import hivemind
        place = pathlib.Path(settings["folder"]) / "dht"
        first = settings["rank"] == 0 and not place.exists()
        while not first and not place.exists():
            time.sleep(0.05)
        dht = hivemind.DHT(start=True, initial_peers=[] if first else place.read_text().split())
        if first:
            (place.parent / "dht.new").write_text("\n".join(map(str, dht.get_visible_maddrs())))
            (place.parent / "dht.new").rename(place)
        super().__init__(settings, model, hivemind.Optimizer(
            dht=dht, run_id="toy", batch_size_per_step=BATCH, target_batch_size=20 * BATCH * settings["workers"], optimizer=optimizer, use_local_updates=True,
            matchmaking_time=1.0, averaging_timeout=10.0))  # fmt: skip
        self.dht = dht

    def end(self):
        self.optimizer.shutdown()
        self.dht.shutdown()


PEERS = {"alone": Alone, "DistributedDataParallel": Ddp, "torchft DDP": Torchft, "torchft DiLoCo": Diloco, "hivemind": Hivemind}


def main():
    settings = json.loads(sys.argv[1])
    size, rank, folder = settings["size"], settings["rank"], pathlib.Path(settings["folder"])
    torch.set_num_threads(1)
    model = make_model(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs, labels = draw(size, 4096, 10 + rank)
    held_out = draw(size, 1024, 1)
    print(f"begins {time.monotonic()}", flush=True)
    peer = PEERS.get(settings["peer"], Prd)(settings, model, optimizer)
    order = torch.Generator().manual_seed(rank)
    print(f"ready {time.monotonic()}", flush=True)
    while not (folder / "go").exists():
        time.sleep(0.005)
    ends = float((folder / "go").read_text())
    evaluated, used = 0.0, time.process_time()
    with contextlib.suppress(BrokenPipeError):
        while time.monotonic() < ends:
            batch = torch.randint(0, len(inputs), (BATCH,), generator=order)
            peer.optimizer.zero_grad()
            torch.nn.functional.cross_entropy(peer.model(inputs[batch]), labels[batch]).backward()
            time.sleep(settings["sleep_ms"] / 1000)
            counts = peer.step()
            now = time.monotonic()
            print(f"{'s' if counts else 'x'} {now}", flush=True)
            if settings["evaluates"] and rank == 0 and now - evaluated > 0.5:
                evaluated = now
                with torch.no_grad():
                    print(f"e {now} {torch.nn.functional.cross_entropy(model(held_out[0]), held_out[1]).item()}", flush=True)
        print(f"cpu {time.process_time() - used}", flush=True)
        peer.end()
    sys.stdout.flush()
    os._exit(0)  # the others may be gone, for whom a peer's own end would wait


if __name__ == "__main__":
    main()
