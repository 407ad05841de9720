#!/usr/bin/env python3
"""prd.torch with a real daemon, workers as threads. Usage: torch_test.py BIN_DIR [TEST ...]"""
import place
import contextlib
import copy
import inspect
import io
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock
import warnings

try:
    import torch
except ModuleNotFoundError:
    print("OK (skipped: there is no python3-torch here)")
    sys.exit(0)

import prd
import prd.torch
from prd.torch import average, state

torch.set_num_threads(1)
AMP = torch.amp if hasattr(torch.amp, "GradScaler") else torch.cuda.amp
OVERLAPS = {"p-reduce": "group_size = 2\noverlap = true", "ad-psgd": "overlap = true"}


one_at_a_time = state.random_numbers  # PyTorch's random numbers are the process's


def make_model(seed=0, frozen=False):
    with one_at_a_time:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    if frozen:
        model[0].weight.requires_grad = False
    return model


class Divided(torch.Tensor):
    """As DTensor: one tensor to a program, and its elements are elsewhere."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return cls.of(torch.ones(1, 6))

    @classmethod
    def of(cls, like):
        return torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype)


def divided():
    model = torch.nn.Linear(6, 1)
    model.weight = torch.nn.Parameter(Divided.of(torch.ones(1, 6)))
    return model


def draw(rank, steps, batch=8):
    """Inputs and targets that a linear model fits; each worker's own."""
    generator = torch.Generator().manual_seed(100 + rank)
    inputs = torch.randn(steps, batch, 6, generator=generator)
    return inputs, inputs.sum(-1, keepdim=True)


def bits(model):
    return b"".join(t.detach().numpy().tobytes() for t in model.state_dict().values() if t.is_floating_point())


def attach(c, rank, model, optimizer, name="toy", **options):
    session = prd.Session(controller=c.endpoint, job=name, rank=rank, timeout=60)
    return prd.torch.attach(model, optimizer, session=session, seed=False, **options)


def train(model, optimizer, inputs, targets, set_to_none=False, clip=None, accumulate=1):
    losses = []
    for i, (x, y) in enumerate(zip(inputs, targets)):
        if i % accumulate == 0:
            optimizer.zero_grad(set_to_none=set_to_none if i % 2 else not set_to_none)
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        losses.append(loss.item())
        if (i + 1) % accumulate == 0:
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    return losses


class Scaler(AMP.GradScaler):
    """PyTorch's own on the CPU, which counts the steps that it skips."""

    def __init__(self):
        super().__init__("cpu", init_scale=1024.0, growth_interval=1_000_000)
        self.skipped = 0

    def update(self):
        before = self.get_scale()
        super().update()
        self.skipped += self.get_scale() < before


class OldScaler(torch.cuda.amp.GradScaler):
    """The same where PyTorch has one for GPUs alone (before 2.3): its own, but for what it does on GPUs."""

    def __init__(self):
        with mock.patch("torch.cuda.amp.grad_scaler.amp_definitely_not_available", lambda: False):
            super().__init__(init_scale=1024.0)
        self.skipped = 0

    def scale(self, loss):
        if self._scale is None:
            self._lazy_init_scale_growth_tracker(loss.device)
        return loss * self._scale

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, _):
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            p.grad.mul_(inv_scale)
            found_inf.add_(not p.grad.isfinite().all())
        self.skipped += bool(found_inf)
        return {inv_scale.device: found_inf}

    def update(self):
        self._per_optimizer_states.clear()


class Torch(unittest.TestCase):
    def test_every_engine_trains_and_all_end_as_one_model(self):
        for engine, options in [*place.ENGINES.items(), *OVERLAPS.items()]:
            with self.subTest(engine=engine, options=options), place.Cluster(place.job(engine, 3, "", options)) as c:
                models = [make_model(seed=rank) for rank in range(3)]
                fallen = []

                def body(rank):
                    model = models[rank]
                    optimizer = torch.optim.Adam([{"params": model[:2].parameters()}, {"params": model[2:].parameters(), "lr": 0.02}], lr=0.01)
                    before = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5) if rank == 0 else None
                    worker = attach(c, rank, model, optimizer)
                    scheduler = before or torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5)
                    pointers = [p.data_ptr() for p in model.parameters()]
                    losses = train(model, optimizer, *draw(rank, 120), clip=5.0)
                    scheduler.step()
                    fallen.append(sum(losses[-10:]) < sum(losses[:10]))
                    if not worker.session.needs_gradients:
                        self.assertEqual(worker._flat, [])
                    worker.finish()
                    self.assertEqual(pointers, [p.data_ptr() for p in model.parameters()])
                    self.assertEqual((worker.rank, worker.engine), (rank, engine))
                    end = bits(model)
                    optimizer.zero_grad()
                    optimizer.step()  # the script's own from here on
                    return end

                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    ends = place.in_threads(3, body)
                self.assertEqual(len(set(ends)), 1)
                self.assertEqual(fallen, [True] * 3, "the loss falls")

    def compare_with_ddp(self, workers):
        """{case: (equal bits, relative difference)}; see ddp_program.py."""
        jobs = place.job("all-reduce", workers, name="*")
        with place.Cluster(jobs) as c:
            programs = [
                subprocess.Popen([sys.executable, place.ROOT / "tests/python/ddp_program.py", c.dir / "rendezvous", str(rank), str(workers)],
                                 env=place.environment(c, rank), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for rank in range(workers)
            ]
            ends = [program.communicate(timeout=120) for program in programs]
            for program, (_, err) in zip(programs, ends):
                self.assertEqual(program.returncode, 0, err)
            lines = [line.split() for line in ends[0][0].splitlines()]
            return {name: (equal == "True", float(difference)) for name, equal, difference in lines}

    def test_all_reduce_of_two_equals_ddp_in_bits(self):
        found = self.compare_with_ddp(2)
        self.assertEqual(found, {name: (True, 0.0) for name in ("momentum", "adam", "accumulate", "clip")})

    def test_all_reduce_of_four_is_ddp_to_a_millionth(self):
        found = self.compare_with_ddp(4)
        self.assertEqual(len(found), 4)
        self.assertLess(max(difference for _, difference in found.values()), 1e-6, found)

    def test_an_epoch_is_the_jobs(self):
        with place.Cluster(place.job("p-reduce", 2)) as c:
            counts = [[], []]

            def body(rank):
                torch.manual_seed(5)
                model = make_model()
                inputs, targets = draw(0, 1, 120)
                loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs[0], targets[0]), batch_size=10, shuffle=True)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
                worker = attach(c, rank, model, optimizer)
                loader = worker.shard(loader)
                self.assertEqual((len(loader), loader.samples, loader.batch_size), (6, 120, 10))
                self.assertEqual(worker.epoch, 0)
                for _ in range(5):
                    batches = list(train_pass(model, optimizer, loader))
                    counts[rank].append(len(batches))
                self.assertGreaterEqual(worker.epoch, 5)
                self.assertGreaterEqual(worker.clock, 29)
                self.assertEqual(worker.trained[1], 10 * worker.trained[0])
                worker.finish()

            def train_pass(model, optimizer, loader):
                for x, y in loader:
                    optimizer.zero_grad()
                    torch.nn.functional.mse_loss(model(x), y).backward()
                    optimizer.step()
                    yield x

            place.in_threads(2, body)
            together = sum(map(sum, counts))
            self.assertGreaterEqual(together, 60)
            self.assertLess(together, 120, "and not five passes of each")

    def test_a_job_resumes_from_a_checkpoint(self):
        inputs, targets = draw(0, 1, 120)
        data = torch.utils.data.TensorDataset(inputs[0], targets[0])

        def passes(c, number, checkpoint=None):
            model = make_model()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            counts = {}
            if checkpoint is not None:
                model.load_state_dict(checkpoint["model"])
                optimizer.load_state_dict(checkpoint["optimizer"])
                counts = {name: checkpoint[name] for name in ("trained", "job_trained")}
            worker = attach(c, 0, model, optimizer, **counts)
            loader = worker.shard(torch.utils.data.DataLoader(data, batch_size=10, shuffle=True))
            before = worker.epoch
            for _ in range(number):
                for x, y in loader:
                    train(model, optimizer, [x], [y])
            saved = {"model": worker.average(), "optimizer": optimizer.state_dict(), "trained": worker.trained, "job_trained": worker.job_trained}
            after = worker.epoch
            worker.finish()
            worker.session.close()
            return copy.deepcopy(saved), before, after

        with place.Cluster(place.job("all-reduce", 1)) as c:
            checkpoint, before, after = passes(c, 2)
            self.assertEqual((before, after, checkpoint["trained"]), (0, 2, (24, 240)))
            again, before, after = passes(c, 1, checkpoint)
            self.assertEqual((before, after), (2, 3))
            self.assertEqual((again["trained"], again["job_trained"]), ((36, 360), (36, 360)))
            self.assertEqual(again["optimizer"]["state"][0]["step"].item(), 36, "Adam's own count goes on, too")

    def test_state_reaches_who_joins_later(self):
        """Momentum and running statistics are copied with the model, so that equal replicas stay equal."""
        with place.Cluster(place.job("all-reduce", 1)) as c:
            models, optimizers = [make_model(seed=rank) for rank in range(2)], []
            joined, left = threading.Event(), threading.Event()
            for model in models:
                optimizers.append(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))

            def body(rank):
                if rank == 1:
                    joined.wait()
                worker = attach(c, rank, models[rank], optimizers[rank])
                inputs, targets = draw(rank, 400)
                if rank == 0:
                    train(models[0], optimizers[0], inputs[:5], targets[:5])
                    joined.set()
                    for i in range(5, 400):
                        train(models[0], optimizers[0], inputs[i : i + 1], targets[i : i + 1])
                        if left.is_set():
                            break
                    worker.finish()
                    return
                self.assertGreater(optimizers[1].state[models[1][0].weight]["momentum_buffer"].abs().sum().item(), 0)
                train(models[1], optimizers[1], inputs[:3], targets[:3])
                left.set()
                worker.finish()

            place.in_threads(2, body)
            self.assertEqual(bits(models[0]), bits(models[1]))

    def test_what_else_a_script_does_with_its_optimizer(self):
        with place.Cluster(place.job("all-reduce", 1)) as c:
            model = make_model()
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            worker = attach(c, 0, model, optimizer)
            inputs, targets = draw(0, 6)
            train(model, optimizer, inputs[:2], targets[:2])
            self.assertIsInstance(optimizer, torch.optim.AdamW)
            again = pickle.loads(pickle.dumps(optimizer))
            self.assertNotIn("step", vars(again))
            self.assertNotIn("step", vars(copy.deepcopy(optimizer)))
            buffer = io.BytesIO()
            torch.save({"model": model, "optimizer": optimizer.state_dict()}, buffer)
            scaler = AMP.GradScaler(enabled=False)
            optimizer.zero_grad()
            scaler.scale(torch.nn.functional.mse_loss(model(inputs[2]), targets[2])).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            calls = []

            def closure():
                calls.append(1)
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(inputs[3]), targets[3])
                loss.backward()
                return loss

            self.assertGreater(optimizer.step(closure).item(), 0)
            self.assertEqual(len(calls), 1)
            with worker.pause():
                model.eval()
                model(inputs[4])
            mean = worker.average()
            self.assertEqual(set(mean), set(model.state_dict()))
            self.assertTrue(all(torch.equal(mean[name], value) for name, value in model.state_dict().items()))
            before = bits(model)
            worker.discard()
            self.assertEqual(bits(model), before)
            self.assertEqual(worker.last.steps, 4)
            for _ in range(2):
                model.zero_grad()
                for p in model.parameters():
                    p.grad = None
                optimizer.step()
            worker.finish()

    def test_a_scaler_skips_steps_and_the_others_go_on(self):
        def body(c, rank, name, scaler, bad_step=None):
            model = make_model()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
            worker = attach(c, rank, model, optimizer, name=name)
            for i, (x, y) in enumerate(zip(*draw(rank, 8))):
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(x), y) * (float("inf") if i == bad_step else 1)
                if scaler is None:
                    loss.backward()
                    optimizer.step()
                    continue
                scaler.scale(loss).backward()
                if i % 2:
                    scaler.unscale_(optimizer)  # else `step` does
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
                scaler.step(optimizer)
                scaler.update()
            steps = worker.trained[0]
            worker.finish()
            return bits(model), steps

        kind = OldScaler if AMP is torch.cuda.amp else Scaler
        for engine in ("all-reduce", "p-reduce"):
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 2, name="*")) as c:
                scalers = [kind(), kind()]
                plain = place.in_threads(2, lambda rank: body(c, rank, "plain", None))
                scaled = place.in_threads(2, lambda rank: body(c, rank, "scaled", scalers[rank]))
                self.assertEqual([scaler.skipped for scaler in scalers], [0, 0])
                if engine == "all-reduce":  # p-reduce's groups depend on who is when ready
                    self.assertEqual(plain, scaled)
                skips = place.in_threads(2, lambda rank: body(c, rank, "skips", scalers[rank], bad_step=3 if rank else None))
                self.assertEqual([scaler.skipped for scaler in scalers], [0, 1])
                self.assertEqual([steps for _, steps in skips], [8, 7])
                self.assertEqual(skips[0][0], skips[1][0])

    def test_lbfgs_trains_where_models_are_averaged(self):
        class Own(torch.optim.LBFGS):
            pass

        with place.Cluster(place.job("p-reduce", 2)) as c:
            def body(rank):
                model = make_model(seed=rank)
                optimizer = Own(model.parameters(), lr=0.1, max_iter=4)
                worker = attach(c, rank, model, optimizer)
                losses = []
                for x, y in zip(*draw(rank, 10, 30)):
                    def closure():
                        optimizer.zero_grad()
                        loss = torch.nn.functional.mse_loss(model(x), y)
                        loss.backward()
                        losses.append(loss.item())
                        return loss

                    before = len(losses)
                    self.assertEqual(optimizer.step(closure).item(), losses[before])
                self.assertEqual(worker.trained[0], 10)
                self.assertGreater(len(losses), 20, "its step runs the closure several times")
                self.assertLess(losses[-1], losses[0])
                worker.finish()
                return bits(model)

            self.assertEqual(len(set(place.in_threads(2, body))), 1)

    def test_an_optimizers_step_has_its_arguments(self):
        class Scaled(torch.optim.SGD):
            def step(self, closure=None, scale=1.0):
                loss = closure() if closure is not None else None
                for group in self.param_groups:
                    for p in group["params"]:
                        p.grad.mul_(scale)
                super().step()
                return loss

        class Twice(torch.optim.SGD):  # as SAM
            def step(self, closure=None):
                assert closure is not None, "needs it"
                closure()
                super().step()
                return closure()

        def make(kind, attached, *arguments, **options):
            model = make_model()
            optimizer = kind(model.parameters(), lr=0.01)
            x, y = (batches[0] for batches in draw(0, 1))

            def closure():
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
                return loss

            worker = attached(model, optimizer)
            loss = optimizer.step(closure, *arguments, **options).item()
            if worker is not None:
                worker.finish()
            return loss, bits(model)

        def alone(*both):
            return prd.torch.attach(*both, session=prd.torch.AloneSession())

        for kind, arguments, options in ((Scaled, (3.0,), {}), (Scaled, (), {"scale": 3.0}), (Twice, (), {})):
            plain = make(kind, lambda *_: None, *arguments, **options)
            self.assertEqual(make(kind, alone, *arguments, **options), plain)
            for engine in ("all-reduce", "p-reduce") if kind is Scaled else ():
                with self.subTest(arguments=arguments, engine=engine), place.Cluster(place.job(engine, 1)) as c:
                    self.assertEqual(make(kind, lambda *both: attach(c, 0, *both), *arguments, **options), plain)
        with place.Cluster(place.job("p-reduce", 1)) as c:
            with self.assertRaisesRegex(prd.FailedPrecondition, "Twice.step failed without its closure, .*AssertionError: needs it"):
                make(Twice, lambda *both: attach(c, 0, *both))

    def test_schedulers_of_steps_and_of_losses(self):
        def train_with(optimizer, schedulers, model):
            rates = []
            for x, y in zip(*draw(0, 6)):
                train(model, optimizer, [x], [y])
                for scheduler in schedulers:
                    scheduler.step(*([1.0] if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else []))
                rates.append([group["lr"] for group in optimizer.param_groups])
            return rates

        def make(attached):
            model = make_model()
            optimizer = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[1:].parameters(), "lr": 0.02}], lr=0.01, momentum=0.9)
            early = [torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.1, 0.2], total_steps=10)]
            worker = attached(model, optimizer)
            late = [torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)]
            rates = train_with(optimizer, early + late, model)
            if worker is not None:
                worker.finish()
            return rates, bits(model)

        with place.Cluster(place.job("all-reduce", 1)) as c, warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertEqual(make(lambda model, optimizer: attach(c, 0, model, optimizer)), make(lambda *_: None))

    def test_sparse_gradients(self):
        """Become dense where gradients are reduced, and stay as they are under the others: the same training."""
        def make(attached, kind=torch.optim.SGD, **options):
            torch.manual_seed(0)
            model = torch.nn.Embedding(20, 4, sparse=True)
            optimizer = kind(model.parameters(), lr=0.1, **options)
            worker = attached(model, optimizer)
            for i in range(5):
                optimizer.zero_grad(set_to_none=i % 2 == 0)
                model(torch.tensor([i, i + 1, i])).square().sum().backward()
                optimizer.step()
            if worker is not None:
                worker.finish()
            return model.weight.detach()

        for engine in ("all-reduce", "p-reduce"):
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 1, name="*")) as c:
                self.assertTrue(torch.allclose(make(lambda *both: attach(c, 0, *both, name="sgd")), make(lambda *_: None)))
                options = dict(kind=torch.optim.SGD, momentum=0.9, nesterov=True)
                with contextlib.redirect_stderr(io.StringIO()) as said:
                    ours = make(lambda *both: attach(c, 0, *both, name="momentum"), **options)
                self.assertTrue(torch.allclose(ours, make(lambda *_: None, **options)))
                self.assertEqual(said.getvalue().count("what SGD keeps for weight stays each worker's own"), int(engine == "p-reduce"))
                if engine == "p-reduce":
                    ours = make(lambda *both: attach(c, 0, *both, name="adam"), torch.optim.SparseAdam)
                    self.assertTrue(torch.equal(ours, make(lambda *_: None, torch.optim.SparseAdam)))
                else:
                    with self.assertRaisesRegex(ValueError, "SparseAdam cannot train"):
                        make(lambda *both: attach(c, 0, *both, name="adam"), torch.optim.SparseAdam)

    def test_a_script_without_an_optimizer(self):
        with place.Cluster(place.job("all-reduce", 2)) as c:
            models = [make_model(seed=rank) for rank in range(2)]

            def body(rank):
                worker = attach(c, rank, models[rank], None)

                def update():
                    for p in models[rank].parameters():
                        p.data.add_(p.grad, alpha=-0.01)

                for x, y in zip(*draw(rank, 5)):
                    models[rank].zero_grad()
                    torch.nn.functional.mse_loss(models[rank](x), y).backward()
                    worker.step(update, samples=8)
                self.assertEqual(worker.trained, (5, 40))
                worker.finish()

            place.in_threads(2, body)
            self.assertEqual(bits(models[0]), bits(models[1]))

    def test_other_layouts_tied_and_frozen_parameters(self):
        class Tied(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.one, self.two = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4)
                self.two.weight = self.one.weight
                self.conv = torch.nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
                self.frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)

        with place.Cluster(place.job("all-reduce", 1)) as c:
            model = Tied()
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            worker = attach(c, 0, model, optimizer)
            self.assertEqual(len(worker._parameters), 5, "a frozen one may be unfrozen later")
            self.assertEqual(worker._views[3].stride(), model.conv.weight.stride())
            before = model.conv.weight.detach().clone()
            (model.two(model.one(torch.ones(1, 4))).sum() + model.conv(torch.ones(1, 2, 4, 4)).sum()).backward()
            gradient = model.conv.weight.grad.clone()
            optimizer.step()
            self.assertTrue(torch.equal(model.conv.weight, before - gradient))
            with self.assertRaisesRegex(ValueError, "model_tag.*for PyTorch that is: names, shapes and layouts"):
                other = Tied()
                other.conv = torch.nn.Conv2d(2, 3, 2)
                attach(c, 1, other, torch.optim.SGD(other.parameters(), lr=1.0))
            with self.assertRaisesRegex(ValueError, "model_tag"):
                other = Tied()
                other.frozen.data[0] = 2
                attach(c, 1, other, torch.optim.SGD([p for p in other.parameters() if p.requires_grad], lr=1.0))
            worker.finish()

    def test_misuse_is_named(self):
        def misuse(c, says, change, make=make_model, optimize=lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)):
            model = make()
            optimizer = optimize(model)
            with self.assertRaisesRegex(prd.Error, says):
                worker = attach(c, 0, model, optimizer)
                try:
                    train(model, optimizer, *draw(0, 1))
                    change(model, optimizer)
                    train(model, optimizer, *draw(0, 1))
                finally:
                    worker.leave("enough")

        with place.Cluster(place.job("all-reduce", 1)) as c:
            def move(model, _):
                model[3].weight.data = model[3].weight.data.clone()

            def load(_, optimizer):
                optimizer.load_state_dict(optimizer.state_dict())

            misuse(c, "3.weight was moved since attach", move)
            misuse(c, "load_state_dict", load)
            misuse(c, "add_param_group", lambda m, o: o.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]}))
            misuse(c, "0.bias.*the optimizer does not have", None, optimize=lambda m: torch.optim.SGD(list(m.parameters())[2:] + [m[0].weight], lr=0.1))
            misuse(c, "weight: is torch.complex64", None, make=lambda: torch.nn.Linear(6, 1, dtype=torch.complex64))
            misuse(c, "weight: is a Divided, which has no memory of its own", None, make=divided)
            for kind in (torch.optim.LBFGS, type("Own", (torch.optim.LBFGS,), {})):
                misuse(c, f"{kind.__name__} cannot train under engine all-reduce", None, optimize=lambda m: kind(m.parameters()))

    def test_gradients_of_a_replayed_cuda_graph_are_not_added_up(self):
        class ACudaDevice:  # to the worker alone; a replay writes memory that PyTorch does not see written
            type, index = "cuda", 0

        capturing = mock.patch("torch.cuda.is_current_stream_capturing", lambda: on[0])
        on = [False]
        with capturing, mock.patch.object(prd.torch.Worker, "_stream", lambda self: None), place.Cluster(place.job("all-reduce", 1)) as c:
            model = make_model()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            worker = attach(c, 0, model, optimizer)
            worker._device = ACudaDevice
            x, y = (batches[0] for batches in draw(0, 1))
            for _ in range(3):
                train(model, optimizer, [x], [y])
            with self.assertRaisesRegex(prd.FailedPrecondition, "must hold optimizer.zero_grad"):
                optimizer.step()
            before = [p.detach().clone() for p in model.parameters()]
            on[0] = True
            with self.assertRaisesRegex(prd.FailedPrecondition, "while a CUDA graph is captured"):
                optimizer.step()
            optimizer.zero_grad()  # into the graph
            on[0] = False
            self.assertTrue(all(torch.equal(p, was) for p, was in zip(model.parameters(), before)))
            for _ in range(3):
                optimizer.step()
            self.assertEqual(worker.trained[0], 6)
            worker.finish()

    def test_a_gradient_that_is_not_finite_is_named(self):
        for engine in ("all-reduce", "p-reduce"):
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 1, 'on_nonfinite = "stop"')) as c:
                model = make_model()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                attach(c, 0, model, optimizer)
                model[3].weight.register_hook(lambda gradient: gradient * float("nan"))
                with self.assertRaisesRegex(prd.FailedPrecondition, r"\[4\] \(3.weight\) has a value that is not finite, in step 1"):
                    train(model, optimizer, *draw(0, 1))

    def test_two_optimizers_are_two_jobs_of_one_process(self):
        with place.Cluster(place.job("all-reduce", 2, name="gan/*")) as c:
            ends = []

            def body(rank):
                models = [make_model(seed=rank), make_model(seed=rank + 5)]
                optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in models]
                workers = [attach(c, rank, *pair, name=f"gan/{name}") for name, *pair in zip("dg", models, optimizers)]
                for x, y in zip(*draw(rank, 5)):
                    for model, optimizer in zip(models, optimizers):
                        train(model, optimizer, [x], [y])
                for worker in workers:
                    worker.finish()
                ends.append([bits(model) for model in models])

            place.in_threads(2, body)
            self.assertEqual(ends[0], ends[1])
            self.assertNotEqual(ends[0][0], ends[0][1])

    def average(self, *arguments):
        """What the tool ends with: None, or a line, with which the exit code is 1."""
        with mock.patch.object(sys, "argv", ["average", *map(str, arguments)]):
            try:
                return average.main()
            except SystemExit as ended:
                return ended.code

    def test_models_of_files_are_averaged(self):
        with tempfile.TemporaryDirectory() as folder:
            files = [pathlib.Path(folder, f"{i}.pt") for i in range(2)]
            models = [make_model(seed) for seed in range(2)]
            for i, (file, model) in enumerate(zip(files, models)):
                model.register_buffer("phase", torch.tensor([1j * i, 1.0]))
                model.register_buffer("edges", torch.eye(2).to_sparse())
                torch.save({"model": model.state_dict(), "epoch": i}, file)
            mean = pathlib.Path(folder, "mean.pt")
            self.assertIsNone(self.average(*files, "--key", "model", "-o", mean))
            found = torch.load(mean)
            self.assertTrue(torch.allclose(found["0.weight"], (models[0][0].weight + models[1][0].weight) / 2))
            self.assertEqual(found["phase"].tolist(), [0.5j, 1])
            self.assertTrue(torch.equal(found["edges"].to_dense(), torch.eye(2)))

            cut, empty, missing = (pathlib.Path(folder, name) for name in ("cut.pt", "empty.pt", "missing.pt"))
            cut.write_bytes(files[0].read_bytes()[:500])
            empty.touch()
            for arguments, says in (
                ((missing, "-o", mean), "No such file or directory: .*missing.pt"),
                ((empty, "-o", mean), "empty.pt is no whole file of torch.save: "),
                ((cut, "-o", mean), "cut.pt is no whole file of torch.save: "),
                ((files[0], "-o", mean), "0.pt: is no state_dict, because model is a [A-Za-z]*; a state_dict in it is named by --key"),
                ((files[0], "-o", mean, "--key", "net"), "0.pt, --key net: there is none; there are model, epoch"),
                ((files[0], "-o", mean, "--key", "epoch"), "0.pt, --key epoch: found a int, needed is a state_dict"),
                ((files[0], "-o", missing / "mean.pt", "--key", "model"), "missing.pt"),
            ):
                said = self.average(*arguments)
                self.assertRegex(said, f"^prd.torch.average: .*{says}")
                self.assertEqual(len(said.splitlines()), 1)

    def test_a_loss_is_told_as_it_came_from_the_model(self):
        """With its graph, of which PyTorch 2.13 warns."""
        with place.Cluster(place.job("all-reduce", 1)) as c:
            model = make_model()
            with attach(c, 0, model, torch.optim.SGD(model.parameters(), lr=0.01)) as worker, warnings.catch_warnings():
                warnings.simplefilter("error")
                worker.tell_loss(model(torch.ones(4, 6)).sum())

    def test_the_private_names_of_pytorch_that_prd_uses(self):
        """All of them, so that it is this test that fails when PyTorch renames one."""
        module = torch.nn.BatchNorm1d(2)
        for held in (module._parameters, module._buffers, module._modules):
            self.assertIsInstance(held, dict)
        self.assertIn("_step_supports_amp_scaling", inspect.getsource(AMP.GradScaler.step))
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        ends = [torch.optim.lr_scheduler.StepLR(optimizer, 1) for _ in range(2)]
        mark = next((name for name in ("_wrapped_by_lr_sched", "_with_counter") if hasattr(optimizer.step, name)), None)  # 2.4 and later; before
        self.assertIsNotNone(mark, vars(optimizer.step))
        optimizer.step()
        count = {"_wrapped_by_lr_sched": "_opt_called", "_with_counter": "_step_count"}[mark]
        self.assertEqual(getattr(optimizer, count, None), 1)
        several = torch.optim.lr_scheduler.SequentialLR(optimizer, ends, milestones=[3])
        self.assertEqual((several._milestones, several._schedulers), ([3], ends))

    def test_a_file_with_a_program_is_not_averaged(self):
        class Program:
            def __init__(self, made):
                self.made = made

            def __reduce__(self):
                return open, (self.made, "w")

        with tempfile.TemporaryDirectory() as folder:
            good, bad, made, mean = (str(pathlib.Path(folder, name)) for name in ("good.pt", "bad.pt", "made", "mean.pt"))
            torch.save({"w": torch.ones(2)}, good)
            torch.save({"w": torch.ones(2), "more": Program(made)}, bad)
            ended = subprocess.run([sys.executable, "-m", "prd.torch.average", good, bad, "-o", mean], env=dict(os.environ, PYTHONPATH=str(place.PACKAGE)), capture_output=True, text=True)
            self.assertNotEqual(ended.returncode, 0)
            self.assertFalse(pathlib.Path(made).exists(), "the program in the file has run")
            self.assertIn("bad.pt holds more than tensors", ended.stderr)
            self.assertFalse(pathlib.Path(mean).exists())


if __name__ == "__main__":
    unittest.main()
