#!/usr/bin/env python3
"""What makes the model of a script: frozen parameters, moving averages, buffers, several optimizers, batches. Usage: model_test.py BIN_DIR [TEST ...]"""
import place
import contextlib
import copy
import hashlib
import io
import sys
import threading
import unittest

try:
    import torch
    import torch.nn.utils.prune
except ModuleNotFoundError:
    print("OK (skipped: there is no python3-torch here)")
    sys.exit(0)

import prd
import prd.torch
from prd.torch import parameters, state

torch.set_num_threads(1)
one_at_a_time = state.random_numbers  # PyTorch's random numbers are the process's


def make_model(seed=0):
    with one_at_a_time:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def draw(rank, steps, batch=8):
    generator = torch.Generator().manual_seed(100 + rank)
    inputs = torch.randn(steps, batch, 6, generator=generator)
    return list(zip(inputs, inputs.sum(-1, keepdim=True)))


def attach(c, rank, model, optimizer, name="toy", **options):
    session = prd.Session(controller=c.endpoint, job=name, rank=rank, timeout=60)
    return prd.torch.attach(model, optimizer, session=session, seed=False, **options)


def backward(model, batch):
    torch.nn.functional.mse_loss(model(batch[0]), batch[1]).backward()


def train(model, optimizer, batches):
    for batch in batches:
        optimizer.zero_grad()
        backward(model, batch)
        optimizer.step()


def digest(*modules):
    """Of all that a saved state_dict has."""
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for m in modules for t in m.state_dict().values())).hexdigest()


def freeze(module, frozen=True):
    for p in module.parameters():
        p.requires_grad_(not frozen)


class Model(unittest.TestCase):
    def test_parameters_are_unfrozen_and_frozen_in_mid_run(self):
        """Each worker at another step of its own, as where that goes by the job's epochs."""
        for engine in place.ENGINES:
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 3)) as c:
                def body(rank):
                    model = make_model()
                    freeze(model[0])
                    before = model[0].weight.detach().clone()
                    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.01)
                    worker = attach(c, rank, model, optimizer)
                    for i, batch in enumerate(draw(rank, 40)):
                        if i == 10 + rank:
                            freeze(model[0], False)
                        if i == 25 + rank:
                            freeze(model[3])
                        train(model, optimizer, [batch])
                    worker.finish()
                    self.assertGreater((model[0].weight - before).abs().max().item(), 0.01)
                    return digest(model)

                self.assertEqual(len(set(place.in_threads(3, body))), 1)

    def test_a_frozen_parameter_is_as_without_prd(self):
        def make(attached):
            model = make_model()
            freeze(model[0])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)
            worker = attached(model, optimizer)
            for i, batch in enumerate(draw(0, 12)):
                if i == 4:
                    freeze(model[0], False)
                if i == 8:
                    freeze(model)
                    freeze(model[3], False)
                optimizer.zero_grad(set_to_none=True)
                backward(model, batch)
                optimizer.step()
            if worker is not None:
                worker.finish()
            return digest(model)

        for engine in ("all-reduce", "p-reduce"):
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 1)) as c:
                self.assertEqual(make(lambda *both: attach(c, 0, *both)), make(lambda *_: None))

    def test_a_frozen_parameter_stays_where_gradients_are_reduced(self):
        for engine in ("all-reduce", "backup", "eager"):
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 2)) as c:
                def body(rank):
                    model = make_model()
                    model[0].weight.requires_grad_(False)
                    before = model[0].weight.detach().clone()
                    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, weight_decay=0.1)
                    worker = attach(c, rank, model, optimizer)
                    for batch in draw(rank, 10):
                        train(model, optimizer, [batch])
                        self.assertIsNone(model[0].weight.grad)
                        self.assertTrue(torch.equal(model[0].weight, before))
                    worker.finish()

                place.in_threads(2, body)

    def test_many_frozen_parameters_are_left_out_and_named_when_unfrozen(self):
        limit, parameters.FROZEN_BYTES = parameters.FROZEN_BYTES, 100
        try:
            with place.Cluster(place.job("all-reduce", 1, name="*")) as c:
                model = make_model()
                freeze(model[0])
                optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
                with contextlib.redirect_stderr(io.StringIO()) as said:
                    worker = attach(c, 0, model, optimizer)
                self.assertRegex(said.getvalue(), r"GiB of the optimizer's parameters are frozen.*attach\(frozen=True\)")
                self.assertEqual(len(worker._parameters), 4)
                train(model, optimizer, draw(0, 1))
                freeze(model[0], False)
                with self.assertRaisesRegex(prd.FailedPrecondition, r"0.weight, 0.bias: frozen at attach.*attach\(frozen=True\)"):
                    train(model, optimizer, draw(0, 1))
                worker.leave("enough")
                freeze(model[0])
                worker = attach(c, 0, model, torch.optim.SGD(model.parameters(), lr=0.01), name="other", frozen=True)
                self.assertEqual(len(worker._parameters), 6)
                worker.finish()
        finally:
            parameters.FROZEN_BYTES = limit

    def test_what_comes_into_the_model_later_is_named(self):
        def check(c, says, change):
            model = make_model()
            freeze(model[1])
            optimizer = torch.optim.SGD([*model[0].parameters(), *model[3].parameters()], lr=0.1)
            worker = attach(c, 0, model, optimizer)
            train(model, optimizer, draw(0, 2))
            change(model, optimizer)
            if says:
                with self.assertRaisesRegex(prd.FailedPrecondition, says):
                    train(model, optimizer, draw(0, 1))
            else:
                train(model, optimizer, draw(0, 2))
            worker.leave("enough")

        with place.Cluster(place.job("all-reduce", 1)) as c:
            check(c, r"frozen at attach, and not now.*give them to the optimizer before attach", lambda m, _: freeze(m[1], False))
            check(c, r"4\.weight, 4\.bias: came into the model after attach", lambda m, _: m.append(torch.nn.Linear(1, 1)))
            check(c, r"3\.weight, 3\.bias: came into the model after attach", lambda m, _: m.__setitem__(3, torch.nn.Linear(8, 1)))
            check(c, r"2\.extra: came into the model", lambda m, _: m[2].register_parameter("extra", torch.nn.Parameter(torch.ones(1))))
            check(c, r"add_param_group\?\): 1\.weight, 1\.bias\.", lambda m, o: o.add_param_group({"params": list(m[1].parameters())}))
            check(c, None, lambda m, _: torch.nn.utils.prune.l1_unstructured(m[0], "weight", 0.5))
            check(c, None, lambda m, _: m.__setitem__(2, torch.nn.Tanh()))

    def test_saved_models_are_equal_in_all_their_bytes(self):
        """Moving averages and counts, too."""
        for engine in place.ENGINES:
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 3)) as c:
                def body(rank):
                    model = make_model(seed=rank)
                    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
                    average = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda old, new, _: 0.9 * old + 0.1 * new)
                    by_hand = {name: p.detach().clone() for name, p in model.named_parameters()}
                    worker = attach(c, rank, model, optimizer, averaged=[average, by_hand])
                    for batch in draw(rank, 20 + 10 * rank):
                        train(model, optimizer, [batch])
                        average.update_parameters(model)
                        for name, p in model.named_parameters():
                            by_hand[name].lerp_(p.detach(), 0.1)
                    worker.finish()
                    self.assertGreater(average.n_averaged.item(), 0)
                    self.assertGreater((average.module[0].weight - model[0].weight).abs().max().item(), 0)
                    return digest(model, average), str([t.tolist() for t in by_hand.values()])

                self.assertEqual(len(set(place.in_threads(3, body))), 1)

    def test_who_joins_gets_the_moving_average(self):
        with place.Cluster(place.job("all-reduce", 1)) as c:
            joined, done = threading.Event(), threading.Event()

            def body(rank):
                if rank == 1:
                    joined.wait()
                model = make_model(seed=rank)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
                average = torch.optim.swa_utils.AveragedModel(model)
                worker = attach(c, rank, model, optimizer, averaged=average)
                if rank == 1:
                    counts = average.n_averaged.item(), model[1].num_batches_tracked.item()
                for i, batch in enumerate(draw(rank, 10 if rank == 0 else 3)):
                    train(model, optimizer, [batch])
                    average.update_parameters(model)
                    if rank == 0 and i == 5:
                        joined.set()
                        with worker.pause():
                            done.wait()
                if rank == 0:
                    worker.finish()
                    return digest(model, average)
                done.set()
                self.assertEqual(counts, (6, 6))
                worker.finish()
                return digest(model, average)

            self.assertEqual(len(set(place.in_threads(2, body))), 1)

    def test_what_cannot_be_averaged_is_named(self):
        with place.Cluster(place.job("all-reduce", 1)) as c:
            model = make_model()
            for wrong, says in ((["weights"], r"averaged\[0\]: found a str, needed is a module"), (torch.nn.Linear(2, 2, device="meta"), "averaged.*is on meta")):
                with self.assertRaisesRegex(ValueError, says):
                    attach(c, 0, model, torch.optim.SGD(model.parameters(), lr=0.1), averaged=wrong)

    def test_a_mask_is_not_averaged(self):
        """Infinity has no mean; and a change of it is no number."""
        for engine in [*place.ENGINES, "p-reduce with overlap"]:
            options = ("group_size = 2\noverlap = true",) if "overlap" in engine else ()
            with self.subTest(engine=engine), place.Cluster(place.job(engine.split()[0], 2, "", *options)) as c:
                def body(rank):
                    model = make_model()
                    model.register_buffer("mask", torch.triu(torch.full((6, 6), float("-inf")), diagonal=1))
                    worker = attach(c, rank, model, torch.optim.SGD(model.parameters(), lr=0.01))
                    train(model, worker.optimizer, draw(rank, 10))
                    worker.finish()
                    self.assertEqual(model.mask.isinf().sum(), 15)
                    return digest(model), all(p.isfinite().all() for p in model.parameters())

                found = place.in_threads(2, body)
                self.assertEqual(found[0], found[1])
                self.assertTrue(found[0][1])

    def test_buffers_of_other_kinds_are_compared(self):
        kinds = {
            "sparse": lambda x: torch.diag(x).to_sparse(),
            "csr": lambda x: torch.diag(x).to_sparse_csr(),
            "not coalesced": lambda x: torch.sparse_coo_tensor([[0, 0, 1]], torch.cat([x - 1, torch.ones(1)]), (2,)),
            "whole and sparse": lambda x: torch.diag(x).long().to_sparse(),
            "complex": lambda x: (x * 1j).conj(),
            "quantized": lambda x: torch.quantize_per_tensor(x, 0.5, 0, torch.quint8),
        }
        if hasattr(torch, "float8_e4m3fn"):
            kinds["float8"] = lambda x: x.to(torch.float8_e4m3fn)

        def make(kind, value):
            model = make_model()
            model.register_buffer("other", kinds[kind](torch.tensor([1.0, value])))
            return model, torch.optim.SGD(model.parameters(), lr=0.01)

        with place.Cluster(place.job("all-reduce", 1, name="*")) as c:
            for kind in kinds:
                with self.subTest(kind):
                    model, optimizer = make(kind, 2.0)
                    self.assertEqual(*(prd.torch._digest(of.other, "other") for of in (model, make(kind, 2.0)[0])))
                    worker = attach(c, 0, model, optimizer, name=kind)
                    with self.assertRaisesRegex(ValueError, "model_tag"):
                        attach(c, 1, *make(kind, 3.0), name=kind)
                    train(model, optimizer, draw(0, 1))
                    self.assertEqual(str(worker.average()["other"]), str(model.other))
                    worker.finish()
            model, optimizer = make_model(), None
            model.register_buffer("other", torch.ones(2).to_mkldnn())
            with self.assertRaisesRegex(ValueError, r"other: is a tensor of layout torch._mkldnn, .*attach\(buffers=False\)"):
                attach(c, 0, model, optimizer, name="no")

    def test_memory_that_two_tensors_share(self):
        """A buffer over parameters is those; a parameter over another one would be averaged twice."""
        with place.Cluster(place.job("p-reduce", 1, name="*")) as c:
            model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
            flat, at = torch.cat([p.detach().reshape(-1) for p in model.parameters()]), 0
            for p in model.parameters():
                p.data, at = flat[at : at + p.numel()].view(p.shape), at + p.numel()
            model.register_buffer("flat", flat)
            model.register_buffer("own", torch.zeros(3))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            worker = attach(c, 0, model, optimizer, name="flat")
            self.assertEqual([name for name, _ in worker._averaged.tensors()], ["own"])
            worker.finish()
            model, more = torch.nn.Sequential(torch.nn.Linear(3, 3)), torch.zeros(12)
            model.register_buffer("own", more[7:])
            model[0].weight.data = more[:9].view(3, 3)
            with self.assertRaisesRegex(prd.InvalidArgument, r"state\[\d+\] \(own\): found memory of parameters\[0\] \(0.weight\)"):
                attach(c, 0, model, torch.optim.SGD(model.parameters(), lr=0.01), name="part")
            model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
            model[1].weight.data = model[0].weight.data.t()
            with self.assertRaisesRegex(prd.InvalidArgument, r"found memory of parameters.*; layers that share a weight have one Parameter"):
                attach(c, 0, model, torch.optim.SGD(model.parameters(), lr=0.01), name="tied")

    def test_a_buffer_that_is_replaced_is_the_models(self):
        """`self.center = ...` in forward, as with DistributedDataParallel."""
        for engine in ("all-reduce", "p-reduce", "ssp"):
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 2)) as c:
                def body(rank):
                    model = make_model()
                    model.register_buffer("center", torch.zeros(6))
                    worker = attach(c, rank, model, torch.optim.SGD(model.parameters(), lr=0.01))
                    for batch in draw(rank, 10):
                        train(model, worker.optimizer, [batch])
                        model.center = model.center * 0.9 + batch[0].mean(0) * 0.1
                    worker.finish()
                    self.assertGreater(model.center.abs().sum(), 0)
                    return digest(model)

                self.assertEqual(len(set(place.in_threads(2, body))), 1)
        with place.Cluster(place.job("all-reduce", 1)) as c:
            model = make_model()
            model.register_buffer("center", torch.zeros(6))
            worker = attach(c, 0, model, torch.optim.SGD(model.parameters(), lr=0.01))
            model.center = torch.zeros(7)
            with self.assertRaisesRegex(prd.FailedPrecondition, r"center: was replaced since attach by a tensor of shape \(7,\), needed is one of shape \(6,\)"):
                train(model, worker.optimizer, draw(0, 1))

    def test_training_beside_the_job_is_noticed(self):
        """By an optimizer that was made since attach, as a second phase does; and by one that moves the parameters."""
        with place.Cluster(place.job("all-reduce", 1)) as c:
            model = make_model()
            worker = attach(c, 0, model, torch.optim.SGD(model.parameters(), lr=0.01))
            train(model, worker.optimizer, draw(0, 30))
            with contextlib.redirect_stderr(io.StringIO()) as err:
                train(model, torch.optim.SGD(model.parameters(), lr=0.001), draw(0, 30))
                worker.finish()
            self.assertIn("changed many times since the newest step of the job", err.getvalue())
            model = make_model()
            worker = attach(c, 0, model, torch.optim.SGD(model.parameters(), lr=0.01))
            with contextlib.redirect_stderr(io.StringIO()) as err:
                train(model, worker.optimizer, draw(0, 30))
            self.assertNotIn("changed many times", err.getvalue())
            model[0].weight.data = model[0].weight.data.clone()
            with self.assertRaisesRegex(prd.FailedPrecondition, "0.weight was moved since attach"):
                worker.finish()

    def test_average_has_all_workers_running_statistics(self):
        for engine in ("all-reduce", "p-reduce"):
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 2)) as c:
                together = threading.Barrier(2)

                def body(rank):
                    model = make_model()
                    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
                    average = torch.optim.swa_utils.AveragedModel(model)
                    worker = attach(c, rank, model, optimizer, averaged=average)
                    train(model, optimizer, draw(rank, 4))
                    average.update_parameters(model)
                    with worker.pause():
                        own = model[1].running_mean.clone()
                        together.wait()
                        means = worker.average(), worker.average(average)
                        together.wait()
                    worker.finish()
                    for mean, module in zip(means, (model, average)):
                        self.assertEqual(set(mean), set(module.state_dict()))
                    final = model.state_dict()
                    for name, value in means[0].items():
                        self.assertTrue(torch.allclose(value, final[name], atol=1e-6), name)
                    return own, [tensor.tolist() for mean in means for tensor in mean.values()]

                (one, means), (other, same) = place.in_threads(2, body)
                if engine == "all-reduce":
                    self.assertFalse(torch.allclose(one, other), "each worker has its own")
                    self.assertEqual(means, same)

    def test_several_optimizers_of_one_model(self):
        for engine in place.ENGINES:
            sparse = engine not in ("all-reduce", "backup", "eager")
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 2)) as c:
                def body(rank):
                    with one_at_a_time:
                        torch.manual_seed(rank)
                        model = torch.nn.Sequential(torch.nn.EmbeddingBag(20, 6, sparse=True), torch.nn.Linear(6, 1))
                    first = torch.optim.SparseAdam(list(model[0].parameters())) if sparse else torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.5)
                    second = torch.optim.Adam(model[1].parameters())
                    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 5) for optimizer in (first, second)]
                    worker = attach(c, rank, model, [first, second])
                    before = [p.detach().clone() for p in model.parameters()]
                    for i in range(10):
                        for optimizer in (first, second):
                            optimizer.zero_grad()
                        model(torch.tensor([[i, i + 1 + rank]])).sum().backward()
                        with self.assertRaisesRegex(prd.FailedPrecondition, r"several optimizers: worker\.step\(\)"):
                            first.step()
                        worker.step(samples=1)
                        for scheduler in schedulers:
                            scheduler.step()
                    self.assertTrue(all((p - b).abs().max() > 0 for p, b in zip(model.parameters(), before)))
                    self.assertEqual(worker.trained, (10, 10))
                    worker.finish()
                    return digest(model)

                self.assertEqual(len(set(place.in_threads(2, body))), 1)
        with place.Cluster(place.job("all-reduce", 1)) as c:
            model = make_model()
            with self.assertRaisesRegex(ValueError, "SparseAdam cannot train under engine all-reduce"):
                attach(c, 0, model, [torch.optim.SparseAdam(list(model[0].parameters())), torch.optim.SGD(model[1:].parameters(), lr=0.1)])

    def test_data_without_a_length_is_trained_once(self):
        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                return iter(torch.arange(20.0))

        with place.Cluster(place.job("p-reduce", 2, name="*")) as c, contextlib.redirect_stderr(io.StringIO()) as said:
            def body(rank, name, parts, samples):
                model = make_model()
                worker = attach(c, rank, model, torch.optim.SGD(model.parameters(), lr=0.01), name=name, samples=samples)
                loader = worker.shard(torch.utils.data.DataLoader(Stream(), batch_size=2), parts=parts)
                seen = []
                for batch in loader:
                    seen += batch.tolist()
                    backward(model, draw(rank, 1)[0])
                    worker.optimizer.step()
                trained = worker.trained
                worker.finish()
                return seen, trained

            (one, trained), (other, _) = place.in_threads(2, lambda rank: body(rank, "each", None, 0))
            self.assertEqual(one, [0, 1, 4, 5, 8, 9, 12, 13, 16, 17])
            self.assertEqual(sorted(one + other), list(range(20)))
            self.assertEqual(trained, (5, 10))
            self.assertEqual(said.getvalue().count("each of 2 workers trains one batch in 2"), 1)
            (one, trained), (other, _) = place.in_threads(2, lambda rank: body(rank, "own", False, 7))
            self.assertEqual((one, other), (list(range(20)),) * 2)
            self.assertEqual(trained, (10, 70), "what attach says counts")

    def test_a_zero_grad_is_of_its_own_optimizer(self):
        with place.Cluster(place.job("all-reduce", 1)) as c:
            model = make_model()
            optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (model[:2], model[2:])]
            worker = attach(c, 0, model, optimizers)
            backward(model, draw(0, 1)[0])
            worker.step()
            optimizers[0].zero_grad()
            self.assertEqual(model[0].weight.grad.abs().max(), 0)
            self.assertGreater(model[3].weight.grad.abs().max(), 0)
            worker.finish()


if __name__ == "__main__":
    unittest.main()
