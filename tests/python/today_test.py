#!/usr/bin/env python3
"""prd.torch with what PyTorch 2 brought, and what stands around it. Usage: today_test.py BIN_DIR [TEST ...]"""
import place
import contextlib
import copy
import pathlib
import tempfile
import threading
import unittest
from unittest import mock

import safetensors.torch
import schedulefree
import torch
import torch.distributed.tensor
from torch.distributed import checkpoint
from torch.distributed.checkpoint import state_dict
from torchdata.stateful_dataloader import StatefulDataLoader

import prd
import prd.torch

torch.set_num_threads(1)
torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)  # the first one imports much, on one thread
WORKERS, STEPS, BATCH = 2, 30, 16
GRAPHS = []  # that were compiled
BOTH = {"all-reduce": "", "p-reduce": "group_size = 2"}
ONE = {"all-reduce": ""}  # where it takes long


class Model(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(6, 16, **options), torch.nn.BatchNorm1d(16, **options), torch.nn.Linear(16, 1, **options)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


def counted(graph, _):
    """A compiler that leaves the graph as it is."""
    GRAPHS.append(graph)
    return graph


def adam(model, **options):
    return torch.optim.Adam(model.parameters(), lr=0.02, **options)


def draw(rank, steps=STEPS):
    inputs = torch.randn(steps, BATCH, 6, generator=torch.Generator().manual_seed(100 + rank))
    return zip(inputs, inputs.sum(-1, keepdim=True))


def loss_of(model, x, y):
    return torch.nn.functional.mse_loss(model(x), y)


def train(model, optimizer, rank, steps=STEPS):
    """A loop that knows nothing of prd. Returns the losses."""
    losses = []
    for x, y in draw(rank, steps):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def tensors(model):
    return [t.detach() for t in model.state_dict().values() if torch.is_tensor(t)]


def equal(one, other):
    return all(map(torch.equal, tensors(one), tensors(other)))


class Today(unittest.TestCase):
    def attach(self, c, rank, model, optimizer, **options):
        return prd.torch.attach(model, optimizer, session=prd.Session(controller=c.endpoint, job="toy", rank=rank, timeout=60), seed=False, **options)

    def under(self, body, engines=BOTH, at_end=lambda models: None):
        """body(c, rank, model) trains the model, which is the same at first, and returns the losses. All end equal, with falling losses."""
        for engine, options in engines.items():
            with self.subTest(engine=engine), place.Cluster(place.job(engine, WORKERS, "", options)) as c:
                torch.manual_seed(3)
                model = Model()
                models = [copy.deepcopy(model) for _ in range(WORKERS)]
                for losses in place.in_threads(WORKERS, lambda rank: body(c, rank, models[rank])):
                    self.assertLess(sum(losses[-5:]), 0.5 * sum(losses[:5]), losses)
                self.assertTrue(equal(*models), "replicas are equal in bits")
                at_end(models)

    # ---- torch.compile ----

    def compiled(self, engines=BOTH, **bodies):
        def at_end(_):
            self.assertTrue(GRAPHS)
            del GRAPHS[:]
            torch.compiler.reset()

        for name, body in bodies.items():
            with self.subTest(compiled=name):
                self.under(body, engines, at_end)

    def test_a_compiled_model(self):
        """Compiled before attach, after it, or in place: the parameters are those of the model that was compiled."""
        def before(c, rank, model):
            compiled = torch.compile(model, backend=counted)
            optimizer = adam(compiled)
            with self.attach(c, rank, compiled, optimizer):
                return train(compiled, optimizer, rank)

        def after(c, rank, model):
            optimizer = adam(model)
            with self.attach(c, rank, model, optimizer):
                return train(torch.compile(model, backend=counted), optimizer, rank)

        def in_place(c, rank, model):
            model.compile(backend=counted)
            optimizer = adam(model)
            with self.attach(c, rank, model, optimizer):
                return train(model, optimizer, rank)

        self.compiled(ONE, before=before, after=after, in_place=in_place)

    def test_a_compiled_step(self):
        """The optimizer's step alone, compiled before attach or after it, and the whole step of the loop."""
        def before(c, rank, model):
            optimizer = adam(model)
            optimizer.step = torch.compile(optimizer.step, backend=counted)
            with self.attach(c, rank, model, optimizer):
                return train(model, optimizer, rank)

        def after(c, rank, model):
            optimizer = adam(model)
            with self.attach(c, rank, model, optimizer):
                optimizer.step = torch.compile(optimizer.step, backend=counted)
                return train(model, optimizer, rank)

        self.compiled(before=before, after=after, whole=lambda *given: self.train_compiled(*given, backend=counted))

    def train_compiled(self, c, rank, model, **options):
        optimizer = adam(model)
        with self.attach(c, rank, model, optimizer):
            @torch.compile(**options)
            def step(x, y):
                optimizer.zero_grad()
                loss = loss_of(model, x, y)
                loss.backward()
                optimizer.step()
                return loss

            return [step(x, y).item() for x, y in draw(rank)]

    def test_inductor(self):
        with tempfile.TemporaryDirectory(prefix="prd-test-") as folder, mock.patch.dict(
                "os.environ", TORCHINDUCTOR_CACHE_DIR=folder, TORCHINDUCTOR_COMPILE_THREADS="1"):
            self.under(self.train_compiled, ONE)
            self.assertTrue(list(pathlib.Path(folder).rglob("*.so")), "C++ was compiled")

    # ---- optimizers ----

    def optimizers(self, **made):
        """Each with the loop as it is."""
        for name, make in made.items():
            def body(c, rank, model):
                optimizer = make(model)
                with self.attach(c, rank, model, optimizer):
                    return train(model, optimizer, rank)

            with self.subTest(optimizer=name):
                self.under(body)

    def test_fused_and_foreach_optimizers(self):
        self.optimizers(fused=lambda model: adam(model, fused=True), foreach=lambda model: adam(model, foreach=True),
                        fused_sgd=lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True))

    def test_muon(self):
        """It takes matrices alone; a second optimizer has the rest."""
        def body(c, rank, model):
            matrices = [p for p in model.parameters() if p.ndim == 2]
            both = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2], lr=0.02)]
            with self.attach(c, rank, model, both) as worker:
                losses = []
                for x, y in draw(rank, 2 * STEPS):
                    for optimizer in both:
                        optimizer.zero_grad()
                    loss = loss_of(model, x, y)
                    loss.backward()
                    worker.step()
                    losses.append(loss.item())
                return losses

        self.under(body)

    def test_schedule_free(self):
        """Its optimizer trains at one point and evaluates at another: eval() comes in a pause, and before finish."""
        def body(c, rank, model):
            optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.02)
            optimizer.train()
            with self.attach(c, rank, model, optimizer) as worker:
                losses = train(model, optimizer, rank)
                with worker.pause():
                    optimizer.eval()
                    optimizer.train()
                losses += train(model, optimizer, rank)
                optimizer.eval()
            return losses

        self.under(body)

    def test_hooks_of_the_optimizers_step(self):
        """Those before a step are called before it synchronises, on the gradients of this worker; those after it, once it has."""
        seen = {rank: [] for rank in range(WORKERS)}

        def body(c, rank, model):
            optimizer = adam(model)
            optimizer.register_step_pre_hook(lambda *_: seen[rank].append("before"))
            optimizer.register_step_post_hook(lambda *_: seen[rank].append("after"))
            with self.attach(c, rank, model, optimizer):
                losses = train(model, optimizer, rank)
                optimizer.register_step_post_hook(lambda *_: seen[rank].append("late"))
                return losses + train(model, optimizer, rank, 3)

        def at_end(_):
            for calls in seen.values():
                self.assertEqual(calls, ["before", "after"] * STEPS + ["before", "after", "late"] * 3)
                calls.clear()

        self.under(body, at_end=at_end)

    # ---- models ----

    def test_autocast_and_its_scaler(self):
        """In bfloat16, and with a scaler that skips a step of worker 1: the others go on without it."""
        skipped = []

        def body(c, rank, model):
            optimizer, scaler = adam(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
            with self.attach(c, rank, model, optimizer):
                losses = []
                for i, (x, y) in enumerate(draw(rank)):
                    optimizer.zero_grad()
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = loss_of(model, x, y.bfloat16()).float()
                    scaler.scale(loss * float("inf") if rank == 1 and i == 3 else loss).backward()
                    scaler.step(optimizer)
                    before = scaler.get_scale()
                    scaler.update()
                    if scaler.get_scale() < before:
                        skipped.append((rank, i))
                    losses.append(loss.item())
                return losses

        def at_end(_):
            self.assertEqual(skipped, [(1, 3)])
            skipped.clear()

        self.under(body, at_end=at_end)

    def test_a_model_that_began_on_the_meta_device(self):
        """Its parameters get memory before attach; before that it is refused by name."""
        def body(c, rank, _):
            model = models[rank] = Model(device="meta")
            with self.assertRaisesRegex(prd.InvalidArgument, "first.weight.*meta"):
                self.attach(c, rank, model, adam(model))
            model = models[rank] = model.to_empty(device="cpu")
            torch.manual_seed(rank)  # rank 0's is the job's
            for module in model.children():
                module.reset_parameters()
            optimizer = adam(model)
            with self.attach(c, rank, model, optimizer):
                return train(model, optimizer, rank)

        models = [None] * WORKERS
        self.under(body, at_end=lambda _: self.assertTrue(equal(*models)))

    def test_a_default_device(self):
        """What prd makes for itself is on the model's device, whatever the default is: here one without memory."""
        def body(c, rank, model):
            optimizer, data = adam(model), list(draw(rank))
            with torch.device("meta"):
                worker = self.attach(c, rank, model, optimizer)
                losses = []
                for x, y in data:
                    optimizer.zero_grad()
                    loss = loss_of(model, x, y)
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                self.assertEqual({t.device.type for t in worker.average().values()}, {"cpu"})
                worker.finish()
            return losses

        self.under(body)

    def test_divided_parameters_are_refused_by_name(self):
        """A DTensor has its elements in several processes."""
        model = torch.nn.Linear(6, 1)
        with tempfile.TemporaryDirectory(prefix="prd-test-") as folder, place.Cluster(place.job("all-reduce", 1)) as c:
            torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
            try:
                mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
                model = torch.distributed.tensor.distribute_module(model, mesh)
                with self.assertRaisesRegex(prd.InvalidArgument, "^weight: is a DTensor, .* a replica is one process"):
                    self.attach(c, 0, model, adam(model))
            finally:
                torch.distributed.destroy_process_group()

    # ---- checkpoints and data ----

    def resumes(self, save, load):
        """A job of two is saved by rank 0 and goes on from there: as the one that was never interrupted, all bits."""
        def train_on(c, rank, model, optimizer, first, last, **options):
            with self.attach(c, rank, model, optimizer, **options) as worker:
                for x, y in list(draw(rank))[first:last]:
                    optimizer.zero_grad()
                    loss_of(model, x, y).backward()
                    optimizer.step()
            return worker

        def body(rank):
            whole, half = copy.deepcopy(model), copy.deepcopy(model)
            with contextlib.ExitStack() as stack:
                clusters = given[rank]
                train_on(clusters[0], rank, whole, adam(whole), 0, STEPS)
                optimizer = adam(half)
                worker = train_on(clusters[1], rank, half, optimizer, 0, 10)
                if rank == 0:
                    save(half, optimizer, pathlib.Path(folder))
                    saved.set()
                self.assertTrue(saved.wait(60))
                again = Model()
                optimizer = adam(again)
                load(again, optimizer, pathlib.Path(folder))
                train_on(clusters[2], rank, again, optimizer, 10, STEPS, trained=worker.trained, job_trained=worker.job_trained)
                return whole, again

        torch.manual_seed(3)
        model, saved = Model(), threading.Event()
        with tempfile.TemporaryDirectory(prefix="prd-test-") as folder, contextlib.ExitStack() as stack:
            clusters = [stack.enter_context(place.Cluster(place.job("all-reduce", WORKERS))) for _ in range(3)]
            given = [clusters] * WORKERS
            ends = place.in_threads(WORKERS, body)
        for whole, again in ends:
            for one, other in zip(whole.parameters(), again.parameters()):
                self.assertTrue(torch.equal(one, other))

    def test_distributed_checkpoint(self):
        """torch.distributed.checkpoint with the state dicts of its own, without a process group."""
        def states(model, optimizer):
            model_state, optimizer_state = state_dict.get_state_dict(model, optimizer)
            return {"model": model_state, "optimizer": optimizer_state}

        def save(model, optimizer, folder):
            checkpoint.save(states(model, optimizer), checkpoint_id=folder / "saved", no_dist=True)

        def load(model, optimizer, folder):
            state = states(model, optimizer)
            checkpoint.load(state, checkpoint_id=folder / "saved", no_dist=True)
            state_dict.set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

        self.resumes(save, load)

    def test_state_dicts_in_mid_run(self):
        """get_state_dict makes a step of an optimizer that has neither state nor gradients: that is not lost in silence."""
        def body(c, rank, model):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            with self.attach(c, rank, model, optimizer) as worker:
                losses = train(model, optimizer, rank)
                with worker.pause():
                    saved, _ = state_dict.get_state_dict(model, optimizer)
                    self.assertEqual(saved.keys(), model.state_dict().keys())
                    optimizer.zero_grad()
                    if not worker.session.needs_gradients:
                        with self.assertRaisesRegex(prd.FailedPrecondition, "paused"):
                            state_dict.get_state_dict(model, optimizer)
                        optimizer.param_groups[0]["lr"] = 0.01
                return losses + train(model, optimizer, rank)

        self.under(body)

    def test_safetensors(self):
        def save(model, optimizer, folder):
            safetensors.torch.save_model(model, folder / "model.safetensors")
            torch.save(optimizer.state_dict(), folder / "optimizer.pt")

        def load(model, optimizer, folder):
            safetensors.torch.load_model(model, folder / "model.safetensors")
            optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))

        self.resumes(save, load)

    def test_a_loader_with_a_state(self):
        """torchdata's StatefulDataLoader."""
        inputs = torch.randn(40 * BATCH, 6, generator=torch.Generator().manual_seed(1))
        data = torch.utils.data.TensorDataset(inputs, inputs.sum(-1, keepdim=True))

        def body(c, rank, model):
            optimizer = adam(model)
            with self.attach(c, rank, model, optimizer) as worker:
                loader = worker.shard(StatefulDataLoader(data, BATCH, shuffle=True))
                losses = []
                for _ in range(3):
                    for x, y in loader:
                        optimizer.zero_grad()
                        loss = loss_of(model, x, y)
                        loss.backward()
                        optimizer.step()
                        losses.append(loss.item())
                self.assertGreaterEqual(worker.job_trained[1], 3 * len(data))
                return losses

        self.under(body)


if __name__ == "__main__":
    unittest.main()
