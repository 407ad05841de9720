#!/usr/bin/env python3
"""Jobs with a batch, in PyTorch scripts. Usage: batch_test.py BIN_DIR [TEST ...]"""
import place
import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

try:
    import torch
except ModuleNotFoundError:
    print("OK (skipped: there is no python3-torch here)")
    sys.exit(0)

import prd
import prd.torch
from prd.torch.divided import JobOrder

torch.set_num_threads(1)
SIZE, BATCH, SEED = 50, 24, 7

# Rank 2 computes slowly, and dies in mid-step in its sixth step; rank 3 comes late, and ends the job after some steps of its own.
# Each writes what its parameters are after each step. One process has imported PyTorch for all.
PROGRAM = """
import json, os, pathlib, signal, sys, time
sys.path.insert(0, os.environ["TESTS"])
sys.argv = ["program", os.environ["BIN"]]
from batch_test import *

FOLDER = pathlib.Path(os.environ["FOLDER"])

def steps_of(rank):
    log = FOLDER / f"log-{rank}"
    return log.read_text().count("\\n") if log.exists() else 0

def work(rank):
    while rank == 3 and steps_of(0) < 9:
        time.sleep(0.01)
    os.environ["PRD_RANK"] = str(rank)
    torch.manual_seed(SEED)
    model, optimizer = make()
    worker = prd.torch.attach(model, optimizer, batch=BATCH, max_share=9)
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, shuffle=True, num_workers=int(os.environ["LOADERS"]))
    loader = worker.shard(loader)
    with open(FOLDER / f"log-{rank}", "w") as log:
        for _ in worker.epochs(1000):
            for x, _ in loader:
                optimizer.zero_grad()
                loss_of(model, x).backward()
                time.sleep(len(x) * (0.002 if rank == 2 else 0.0002))
                if rank == 2 and worker.session.iteration == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.step()
                if not worker.last.partial:
                    print(json.dumps([worker.session.iteration, parameters_of(model)]), file=log, flush=True)
                if rank == 3 and worker.last.steps == 6:
                    worker.stop("it came late")
    worker.finish()

if __name__ == "__main__":
    alone([[0]])  # which imports more
    children = []
    for rank in range(4):
        children.append(os.fork())
        if children[-1] == 0:
            work(rank)
            sys.exit(0)
    print([os.waitpid(child, 0)[1] for child in children])
"""


class Numbers(torch.utils.data.Dataset):
    """(features, index)"""

    def __len__(self):
        return SIZE

    def __getitem__(self, i):
        return torch.tensor([1.0, i / SIZE, (i * 7 % SIZE) / SIZE], dtype=torch.float64), i


def make():
    model = torch.nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.1, -0.2, 0.3]]))
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model, x):
    return torch.nn.functional.mse_loss(model(x), x[:, 1:2] ** 2)


def parameters_of(model):
    return model.weight.detach().view(-1).tolist()


def alone(batches):
    """What one process makes of whole batches of indices: its parameters after each."""
    model, optimizer = make()
    found = []
    for indices in batches:
        optimizer.zero_grad()
        loss_of(model, torch.stack([Numbers()[i][0] for i in indices])).backward()
        optimizer.step()
        found.append(parameters_of(model))
    return found


def batches_of_job(steps, batch=BATCH):
    order = JobOrder(SIZE, 0, SEED, None)
    return [order.take(prd.BatchShare(step, 0, batch, batch)) for step in range(1, steps + 1)]


def attach(c, rank, model, optimizer, batch=BATCH, max_share=None, **options):
    session = prd.Session(controller=c.endpoint, job="toy", rank=rank, timeout=60, batch=batch, max_share=max_share, accumulates=True)
    return prd.torch.attach(model, optimizer, session=session, seed=False, **options)


def loader_of(data=None, **options):
    return torch.utils.data.DataLoader(Numbers() if data is None else data, **{"batch_size": 8, "shuffle": True, **options})


class Stream(torch.utils.data.IterableDataset):
    """Numbers, in their order; of several processes each has its part."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        part, parts = (info.id, info.num_workers) if info else (0, 1)
        return iter([Numbers()[i] for i in range(part, SIZE, parts)])


class Pairs:
    """What a collate function of one's own makes."""

    def __init__(self, samples):
        self.x, self.indices = torch.stack([x for x, _ in samples]), [i for _, i in samples]


class Batch(unittest.TestCase):
    def assertClose(self, found, expected):
        self.assertTrue(torch.allclose(torch.tensor(found, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0),
                        (found, expected))

    def train(self, c, workers, loader, passes=1, batch=BATCH, max_share=None, pair=tuple, **shard):
        """[(model, [(step, indices, samples told of the pass), ...])] by rank."""
        torch.manual_seed(SEED)

        def body(rank):
            model, optimizer = make()
            worker = attach(c, rank, model, optimizer, batch, max_share)
            mine = worker.shard(loader(), **shard)
            seen = []
            for _ in range(passes):
                for given in mine:
                    x, indices = pair(given)
                    optimizer.zero_grad()
                    loss_of(model, x).backward()
                    seen.append((worker.share.step, [int(i) for i in indices]))
                    time.sleep(0.0005 * len(x) * (rank == 0))
                    optimizer.step()
            worker.finish()
            worker.session.close()
            return model, seen

        return place.in_threads(workers, body)

    def steps_of(self, results):
        """The indices of each step's batch, sorted."""
        found = {}
        for _, seen in results:
            for step, indices in seen:
                found.setdefault(step, []).extend(indices)
        return [sorted(found[step]) for step in sorted(found)]

    def check_a_worker_dies_and_another_comes(self, loaders):
        with tempfile.TemporaryDirectory(prefix="prd-test-") as name, place.Cluster(place.job("all-reduce", 3)) as c:
            folder = pathlib.Path(name)
            (folder / "program.py").write_text(PROGRAM)
            more = {"LOADERS": str(loaders), "FOLDER": name, "TESTS": str(pathlib.Path(__file__).parent), "BIN": str(place.BIN), "OMP_NUM_THREADS": "1"}
            workers = subprocess.Popen([sys.executable, folder / "program.py"], env=place.environment(c, **more), stdout=subprocess.PIPE, text=True,
                                       start_new_session=True)
            try:
                said, _ = workers.communicate(timeout=90)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(workers.pid, signal.SIGKILL)
            self.assertEqual(said, "[0, 0, 9, 0]\n")
            steps = [dict(json.loads(line) for line in (folder / f"log-{rank}").read_text().splitlines()) for rank in range(4)]
            expected = alone(batches_of_job(max(steps[0])))
            self.assertEqual((list(steps[0]), len(steps[2])), (list(range(1, len(expected) + 1)), 5))
            self.assertEqual((list(steps[1]), list(steps[3])), (list(steps[0]), list(steps[0])[-len(steps[3]):]))
            self.assertGreaterEqual(len(steps[3]), 6)
            for log in steps:
                for step, parameters in log.items():
                    self.assertClose(parameters, expected[step - 1])

    def test_a_worker_dies_and_another_comes(self):
        self.check_a_worker_dies_and_another_comes(0)

    def test_a_worker_dies_and_another_comes_where_loaders_draw_ahead(self):
        self.check_a_worker_dies_and_another_comes(2)

    def test_an_epoch_has_each_sample_once(self):
        with place.Cluster(place.job("all-reduce", 3, "batch = 25")) as c:  # the script tells none
            results = self.train(c, 3, loader_of, passes=2, batch=None)
        steps = self.steps_of(results)
        self.assertEqual([sorted(sum(steps[:2], [])), sorted(sum(steps[2:], []))], [list(range(SIZE))] * 2)
        self.assertEqual(steps, [sorted(batch) for batch in batches_of_job(4, 25)])
        for model, _ in results:
            self.assertClose(parameters_of(model), alone(batches_of_job(4, 25))[-1])

    def test_several_passes_are_one(self):
        torch.manual_seed(SEED)
        with place.Cluster(place.job("all-reduce", 2)) as c:
            def body(rank):
                model, optimizer = make()
                norms = []
                worker = attach(c, rank, model, optimizer, max_share=(5, 0)[rank] or 3, before_apply=lambda: norms.append(1))
                loader = worker.shard(loader_of(num_workers=rank))
                self.assertEqual(len(loader), 3)
                scheduler = worker.scheduler(torch.optim.lr_scheduler.StepLR(optimizer, 1000))
                passes = whole = 0
                for _ in range(3):
                    for x, _ in loader:
                        self.assertLessEqual(len(x), (5, 3)[rank])
                        optimizer.zero_grad()
                        loss_of(model, x).backward()
                        optimizer.step()
                        scheduler.step()
                        passes += 1
                        whole += worker.every(1)
                self.assertEqual((whole, worker.trained[0], len(norms), scheduler.last_epoch), (7, 7, 7, 7))
                self.assertGreater(passes, 14)
                self.assertEqual([p.grad.shape for p in model.parameters()], [(1, 3)])
                self.assertFalse(worker._passes.open)
                worker.finish()
                worker.session.close()
                return parameters_of(model)

            for parameters in place.in_threads(2, body):
                self.assertClose(parameters, alone(batches_of_job(7))[-1])

    def test_a_clock_counts_whole_steps(self):
        """However many workers make them; also in a job that goes on from a checkpoint of another one."""
        with place.Cluster(place.job("all-reduce", 3)) as c:
            def body(rank):
                model, optimizer = make()
                worker = attach(c, rank, model, optimizer, job_trained=(99, 10 * BATCH))
                loader = worker.shard(loader_of())
                scheduler = worker.scheduler(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)))
                seen = []
                for it in worker.steps(30):
                    seen.append((it, scheduler.last_epoch))
                    if rank == 2 and len(seen) == 5:
                        worker.leave("it is to be seen what the others count")
                        break
                    optimizer.zero_grad()
                    loss_of(model, next(iter(loader))[0]).backward()
                    optimizer.step()
                    scheduler.step()
                if rank < 2:
                    self.assertEqual((worker.clock, worker.session.iteration), (30, 20))
                    worker.finish()
                worker.session.close()
                return sorted(set(seen))  # a step may take several passes, once a worker has left

            whole, also, left = place.in_threads(3, body)
            self.assertEqual(whole, [(it, it) for it in range(10, 30)])
            self.assertEqual((also, left), (whole, whole[:5]))

    def test_a_gradient_that_comes_too_late_does_not_count(self):
        with place.Cluster(place.job("backup", 3)) as c:
            def body(rank):
                model, optimizer = make()
                worker = attach(c, rank, model, optimizer)
                loader = worker.shard(loader_of())
                for _ in worker.epochs(4):
                    for x, _ in loader:
                        optimizer.zero_grad()
                        loss_of(model, x).backward()
                        time.sleep(0.02 if rank == 2 else 0)
                        optimizer.step()
                worker.finish()
                found = worker.job_trained[1], worker.trained[1], worker.session.iteration
                worker.session.close()
                return found

            results = place.in_threads(3, body)
            trained = sum(own for _, own, _ in results)
            self.assertGreater(max(iteration for _, _, iteration in results) * BATCH, trained, "nothing was dropped")
            for job, _, _ in results:
                self.assertLessEqual(job, trained)

    def test_a_job_that_is_switched_counts_what_was_trained(self):
        """An engine that divides no batch has its own steps, and the one after it goes on from their number."""
        with place.Cluster(place.job("all-reduce", 2) + '[[job]]\nname = "other"\nengine = "ad-psgd"\n') as c:
            engines, asked = ["all-reduce", "ad-psgd", "all-reduce"], set()

            def body(rank):
                model, optimizer = make()
                worker = attach(c, rank, model, optimizer)
                loader = worker.shard(loader_of())
                seen, own = [], 0
                while worker.engine != engines[-1] or len(seen) < 3 or own < 4:
                    if not seen or seen[-1] != worker.engine:
                        seen.append(worker.engine)
                        own = 0
                    optimizer.zero_grad()
                    loss_of(model, next(iter(loader))[0]).backward()
                    time.sleep(0.002 if rank == 0 else 0.02)
                    optimizer.step()
                    own += 1
                    if rank == 0 and own == (40 if len(seen) == 2 else 10) and len(seen) < 3 and len(seen) not in asked:
                        asked.add(len(seen))
                        c.prdctl("switch", "toy", engines[len(seen)])
                worker.stop("all of it was seen")
                worker.finish()
                found = worker.job_trained[1], worker.progress.samples, worker.clock
                worker.session.close()
                return found

            for job, told, clock in place.in_threads(2, body):
                self.assertEqual(job, told)
                self.assertLess(abs(clock - told / BATCH), 2, "ad-psgd's steps are not whole ones")

    def test_a_worker_pauses_in_mid_step(self):
        torch.manual_seed(SEED)
        with place.Cluster(place.job("all-reduce", 3)) as c:
            def body(rank):
                model, optimizer = make()
                worker = attach(c, rank, model, optimizer, max_share=5)
                loader = worker.shard(loader_of(num_workers=2 * (rank == 1)))
                passes = 0
                for _ in worker.epochs(12):
                    for x, _ in loader:
                        optimizer.zero_grad()
                        loss_of(model, x).backward()
                        passes += 1
                        if rank == 0 and passes % 7 == 0:
                            with worker.pause():
                                time.sleep(0.02)  # the others go on, or do not
                        optimizer.step()
                samples = worker.job_trained[1], worker.trained[1]
                worker.finish()
                worker.session.close()
                return parameters_of(model), samples

            results = place.in_threads(3, body)
            self.assertEqual(sum(own for _, (_, own) in results), 25 * BATCH)
            for parameters, (samples, _) in results:
                self.assertEqual(samples, 25 * BATCH)
                self.assertClose(parameters, alone(batches_of_job(25))[-1])

    def test_loaders_of_ones_own(self):
        sampler = torch.utils.data.WeightedRandomSampler([1.0] * SIZE, SIZE)
        kinds = {
            "collate_fn": (lambda: loader_of(collate_fn=Pairs), {"pair": lambda pairs: (pairs.x, pairs.indices)}),
            "sampler": (lambda: loader_of(sampler=sampler, shuffle=False), {}),
            "parts": (loader_of, {"parts": True}),
            "batch sampler": (lambda: torch.utils.data.DataLoader(Numbers(), batch_sampler=[[0, 1, 2], [3, 4]]), {}),
            "undivided": (loader_of, {"divided": False}),
        }
        for kind, (loader, options) in kinds.items():
            with self.subTest(kind), place.Cluster(place.job("all-reduce", 2)) as c:
                results = self.train(c, 2, loader, **options)
                steps = self.steps_of(results)
                self.assertEqual(parameters_of(results[0][0]), parameters_of(results[1][0]))
                if kind == "collate_fn":
                    self.assertEqual(steps, [sorted(batch) for batch in batches_of_job(3)])
                elif kind in ("sampler", "parts"):
                    self.assertEqual([len(step) for step in steps], [BATCH] * 3)
                    self.assertTrue(kind == "sampler" or all(i // 25 == rank for rank in range(2) for _, indices in results[rank][1] for i in indices))
                else:
                    self.assertTrue(all(len(step) >= BATCH for step in steps[:-1]), steps)
                # What the gradients weigh, whatever the batches were.
                whole = {}
                for _, seen in results:
                    for step, indices in seen:
                        whole.setdefault(step, []).extend(indices)
                self.assertClose(parameters_of(results[0][0]), alone([whole[step] for step in sorted(whole)])[-1])

    def test_data_without_a_length(self):
        for loaders in (0, 2):
            with self.subTest(loaders), place.Cluster(place.job("all-reduce", 2)) as c:
                results = self.train(c, 2, lambda: loader_of(Stream(), shuffle=False, num_workers=loaders))
                steps = self.steps_of(results)
                self.assertEqual([len(step) for step in steps], [BATCH] * 2)
                self.assertEqual(len(set(sum(steps, []))), 2 * BATCH)
                if loaders == 0:
                    self.assertEqual(steps, [list(range(BATCH)), list(range(BATCH, 2 * BATCH))])

    def test_engines_that_divide_and_that_do_not(self):
        for engine in ("eager", "backup", "p-reduce"):
            with self.subTest(engine), place.Cluster(place.job(engine, 2)) as c:
                results = self.train(c, 2, loader_of, passes=2, max_share=10)
                self.assertEqual(parameters_of(results[0][0]), parameters_of(results[1][0]))
                sizes = {len(indices) for _, seen in results for _, indices in seen}
                self.assertLessEqual(max(sizes), 10)

    def test_alone(self):
        session = prd.torch.AloneSession(batch=10, max_share=4)
        model, optimizer = make()
        worker = prd.torch.attach(model, optimizer, session=session)
        found = []
        for _ in range(2):
            made = []
            while True:
                share = worker.share
                self.assertEqual((share.first, share.batch), (len(made), 10))
                made += range(share.first, share.first + share.samples)
                optimizer.zero_grad()
                loss_of(model, torch.stack([Numbers()[i][0] for i in made[-share.samples:]])).backward()
                optimizer.step()
                if not worker.last.partial:
                    break
            found.append(len(made))
        self.assertEqual((found, worker.trained), ([10, 10], (2, 20)))
        self.assertClose(parameters_of(model), alone([range(10)] * 2)[-1])

    def test_half_precision_adds_up_in_full(self):
        from prd.torch.passes import Passes
        passes, total = Passes(), torch.zeros(3)
        for i in range(1, 101):
            gradient = torch.full((3,), 0.1 * i, dtype=torch.bfloat16)
            total += gradient.float() * i
            passes.bring([gradient, None], i, 1)
            passes.end(i < 100)
        self.assertTrue(torch.equal(gradient, (total / 5050).bfloat16()), (gradient, total / 5050))
        self.assertFalse(passes.open)

    def test_misuse_is_named(self):
        model, optimizer = make()
        with self.assertRaisesRegex(prd.InvalidArgument, "a session that is given has its own"):
            prd.torch.attach(model, optimizer, session=prd.torch.AloneSession(), batch=8)

    def test_another_batch_than_the_jobs_is_said(self):
        with place.Cluster(place.job("all-reduce", 1, "batch = 60")) as c:
            for batch, said in ((30, "prd: rank 0: batch=30 of attach is not used: the job has a batch of 60 samples\n"), (60, "")):
                model, optimizer = make()
                with unittest.mock.patch.dict(os.environ, place.environment(c, 0)), contextlib.redirect_stderr(io.StringIO()) as err:
                    prd.torch.attach(model, optimizer, batch=batch, seed=False).finish()
                self.assertEqual(err.getvalue(), said)

    def test_why_an_epoch_is_over_is_said(self):
        with place.Cluster(place.job("all-reduce", 1)) as c, contextlib.redirect_stderr(io.StringIO()) as err:
            model, optimizer = make()
            worker = attach(c, 0, model, optimizer, batch=3 * SIZE)
            loader = worker.shard(loader_of())
            for _ in range(2):
                for x, _ in loader:
                    optimizer.zero_grad()
                    loss_of(model, x).backward()
                    optimizer.step()
            worker.finish()
        self.assertIn(f"one batch for it: a step of all workers has {3 * SIZE} samples, and the data {SIZE}. ", err.getvalue())


if __name__ == "__main__":
    unittest.main()
