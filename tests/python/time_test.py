#!/usr/bin/env python3
"""The job's time in PyTorch scripts: loops, epochs and learning rates. Usage: time_test.py BIN_DIR [TEST ...]"""
import place
import contextlib
import copy
import io
import pickle
import sys
import threading
import time
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

torch.set_num_threads(1)
rates = torch.optim.lr_scheduler
UNEQUAL = place.job("p-reduce", 3, "", "group_size = 2")


def make(rate=0.01):
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def attach(c, rank, model, optimizer, name="toy", seed=False, **options):
    return prd.torch.attach(model, optimizer, session=prd.Session(controller=c.endpoint, job=name, rank=rank, timeout=60), seed=seed, **options)


def step(model, optimizer, rank=0, slow=0.005, factor=5, slow_rank=2):
    """A training step; the slow worker's lasts `factor` times as long."""
    time.sleep(slow * (factor if rank == slow_rank else 1))
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def data(samples=120, batch=10):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(samples, 4)), batch_size=batch, shuffle=True)


def curve(build, steps):
    """The learning rate of each step, in a script without prd."""
    _, optimizer = make()
    scheduler, found = build(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


SCHEDULES = {
    "one cycle": lambda o: rates.OneCycleLR(o, 0.1, total_steps=40),
    "warm-up": lambda o: rates.LambdaLR(o, lambda step: min((step + 1) / 10, 1 - step / 60)),
    "sequential": lambda o: rates.SequentialLR(o, [rates.LinearLR(o, 0.1, total_iters=8), rates.CosineAnnealingLR(o, 32)], [8]),
    "chained": lambda o: rates.ChainedScheduler([rates.ConstantLR(o, 0.5, 10), rates.ExponentialLR(o, 0.98)]),
    "restarts": lambda o: rates.CosineAnnealingWarmRestarts(o, 10),
}


class Time(unittest.TestCase):
    def setUp(self):
        self.err = self.enterContext(contextlib.redirect_stderr(io.StringIO()))

    def said(self, *words):
        """The lines on stderr with all these words."""
        return [line for line in self.err.getvalue().splitlines() if all(word in line for word in words)]

    def test_workers_share_the_steps_of_a_loop(self):
        for engine, options in [("p-reduce", "group_size = 2"), ("all-reduce", ""), ("ad-psgd", "overlap = true"), ("ssp", "staleness = -1")]:
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 3, "", options)) as c:
                def body(rank):
                    model, optimizer = make()
                    worker = attach(c, rank, model, optimizer)
                    seen, passed = [], 0
                    for it in worker.steps(40):
                        self.assertIsInstance(it, int)
                        seen.append(it)
                        passed += worker.every(10)
                        self.assertEqual(worker.every(10), worker.every(10), "any number of times between two steps")
                        step(model, optimizer, rank)
                    worker.finish()
                    return seen, passed

                found = place.in_threads(3, body)
                counts = [len(seen) for seen, _ in found]
                if engine == "all-reduce":
                    self.assertEqual([seen for seen, _ in found], [list(range(40))] * 3)
                    self.assertEqual([passed for _, passed in found], [4] * 3)
                else:
                    # Each may be in its last step when the others end, and have heard of them last a heartbeat ago.
                    self.assertGreaterEqual(sum(counts), 120)
                    self.assertGreater(min(counts[:2]), counts[2])
                for seen, passed in found:
                    self.assertEqual(seen, sorted(seen))
                    self.assertLess(seen[-1], 40)
                    self.assertLessEqual(passed, 4)
                self.assertEqual(min(seen[0] for seen, _ in found), 0)

    def test_a_job_of_another_size_goes_on_at_the_checkpoints_clock(self):
        """4 workers had made 100 steps each, of 110. Without the clock 2 workers are at 200, and nothing is left."""
        for options, steps, at in (({"clock": 100.25}, 10, 100), ({}, 0, 200)):
            with self.subTest(**options), place.Cluster(place.job("all-reduce", 2)) as c:
                def body(rank):
                    model, optimizer = make()
                    worker = attach(c, rank, model, optimizer, job_trained=(401, 4010), **options)
                    scheduler = worker.scheduler(rates.LambdaLR(optimizer, lambda step: 1 + step))
                    self.assertEqual(worker._now // 2, at)
                    self.assertEqual(scheduler.last_epoch, at)
                    seen = []
                    for it in worker.steps(110):
                        self.assertTrue(not seen or worker.every(1))
                        seen.append(it)
                        step(model, optimizer, rank, slow=0)
                        scheduler.step()
                    worker.finish()
                    self.assertEqual(scheduler.last_epoch, at + len(seen))
                    self.assertEqual(worker.job_trained[0], 401 + 2 * steps)
                    return seen

                for seen in place.in_threads(2, body):
                    self.assertEqual(seen, list(range(100, 110))[:steps])
                self.assertEqual(len(self.said("no step is left: the job's clock is at 200.5 of 110")), 0 if steps else 2)

    def test_a_loop_goes_on_where_the_job_is(self):
        """A resumed job, and a worker that joins it later."""
        with place.Cluster(place.job("all-reduce", 1)) as c:
            joined, seen = threading.Event(), [[], []]

            def body(rank):
                model, optimizer = make()
                if rank == 1:
                    joined.wait(60)
                worker = attach(c, rank, model, optimizer, **({} if rank else {"job_trained": (30, 0)}))
                scheduler = worker.scheduler(rates.LambdaLR(optimizer, lambda step: 1 + step))
                self.assertAlmostEqual(optimizer.param_groups[0]["lr"], 0.01 * (1 + worker._now), msg="it has caught up")
                for it in worker.steps(300):
                    seen[rank].append(it)
                    self.assertLess(abs(optimizer.param_groups[0]["lr"] / 0.01 - 1 - it), 1.5)
                    step(model, optimizer, rank, slow=0.002)
                    scheduler.step()
                    if rank == 0 and it == 50:
                        joined.set()
                worker.finish()

            with warnings.catch_warnings():
                warnings.simplefilter("error")
                place.in_threads(2, body)
            self.assertEqual(seen[0][0], 30)
            self.assertGreater(seen[1][0], 50)
            self.assertGreaterEqual(len(seen[0]) + len(seen[1]), 270)
            self.assertLess(len(seen[0]) + len(seen[1]), 275)

    def test_a_loop_ends_with_the_jobs_goal(self):
        with place.Cluster(place.job("all-reduce", 1, "goal_steps = 12")) as c:
            model, optimizer = make()
            worker = attach(c, 0, model, optimizer)
            self.assertIs(worker.done, False, "before the first step, too")
            self.assertEqual(worker.last.steps, 0)
            loader = worker.shard(data())
            made = 0
            for _ in worker.steps(8):
                step(model, optimizer)
                made += 1
            while not worker.done:
                for _ in loader:
                    step(model, optimizer)
                    made += 1
            self.assertEqual(made, 12)
            self.assertEqual(list(worker.steps(100)), [])
            self.assertEqual(list(worker.epochs(100)), [])
            worker.finish()

    def test_schedules_go_by_the_jobs_clock(self):
        """Each worker's learning rate is the plain script's at the job's clock, in every step; equal workers' bit by bit."""
        for engine, options in (("all-reduce", ""), ("p-reduce", "group_size = 2")):
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 3, "", options)) as c:
                def body(rank):
                    found = []
                    model, optimizer = make()
                    scheduler = None
                    worker = attach(c, rank, model, optimizer)
                    made = {name: make() for name in SCHEDULES}  # each with an optimizer of its own
                    schedulers = {}
                    for name, (_, other) in made.items():
                        other.step()
                        schedulers[name] = worker.scheduler(SCHEDULES[name](other))
                    for it in worker.steps(40):
                        found.append((it, {name: made[name][1].param_groups[0]["lr"] for name in made}))
                        step(model, optimizer, rank)
                        for scheduler in schedulers.values():
                            scheduler.step()
                    for _ in range(3):
                        scheduler.step()  # and never raises
                        schedulers["one cycle"].step()
                    worker.finish()
                    return found

                plain = {name: curve(build, 40) for name, build in SCHEDULES.items()}
                for found in place.in_threads(3, body):
                    self.assertGreater(len(found), 4)
                    for it, by_name in found:
                        for name, rate in by_name.items():
                            if engine == "all-reduce":
                                self.assertEqual(rate, plain[name][it], (name, it))
                            else:
                                self.assertAlmostEqual(rate, plain[name][it], 12, (name, it))

    def test_a_scheduler_stays_what_it_was(self):
        with place.Cluster(place.job("all-reduce", 1)) as c:
            model, optimizer = make()
            worker = attach(c, 0, model, optimizer)
            plain = rates.OneCycleLR(optimizer, 0.1, total_steps=10)
            scheduler = worker.scheduler(plain)
            self.assertIs(scheduler, plain)
            self.assertIsInstance(scheduler, rates.OneCycleLR)
            for _ in range(14):  # the plain one raises
                step(model, optimizer, slow=0)
                scheduler.step()
            self.assertEqual(scheduler.last_epoch, 9)
            state = pickle.loads(pickle.dumps(scheduler.state_dict()))
            self.assertEqual(state["last_epoch"], 9)
            self.assertEqual(type(copy.copy(scheduler)), rates.OneCycleLR)
            # A checkpoint of the scheduler in a job that counts from 0, because job_trained was not given.
            later = rates.StepLR(optimizer, 1000)
            later.load_state_dict(dict(later.state_dict(), last_epoch=500))
            later = worker.scheduler(later)
            step(model, optimizer, slow=0)
            later.step()
            self.assertEqual(later.last_epoch, 501)
            with self.assertRaisesRegex(ValueError, "scheduler: found int, which has no last_epoch"):
                worker.scheduler(3)
            worker.finish()

    def test_a_length_from_before_shard(self):
        """plain=True: the schedule of the script as it is without prd ends with the job."""
        with place.Cluster(UNEQUAL) as c:
            def body(rank):
                model, optimizer = make()
                loader = data()
                scheduler = rates.OneCycleLR(optimizer, 0.1, epochs=4, steps_per_epoch=len(loader))
                worker = attach(c, rank, model, optimizer)
                loader = worker.shard(loader)
                scheduler = worker.scheduler(scheduler, plain=True)
                for _ in worker.epochs(4):
                    for _ in loader:
                        at = worker._now
                        found = optimizer.param_groups[0]["lr"]
                        self.assertAlmostEqual(found, plain[min(at, 47)], 12)
                        step(model, optimizer, rank)
                        scheduler.step()
                worker.finish()
                return worker.job_trained[0]

            plain = curve(lambda o: rates.OneCycleLR(o, 0.1, total_steps=48), 48)
            self.assertGreaterEqual(min(place.in_threads(3, body)), 48)
            self.assertEqual(self.said("plain=True"), [])

    def test_a_wrong_length_is_noticed(self):
        """A schedule made with the length from before; half of one that counts epochs is no mistake."""
        for loop, per_step, words in (("range", False, ""), ("epochs", True, "the job ends when its clock is at 132"), ("range", True, "training ends at")):
            with self.subTest(loop=loop, per_step=per_step), place.Cluster(place.job("all-reduce", 2)) as c:
                def body(rank):
                    model, optimizer = make()
                    loader = data()
                    scheduler = rates.OneCycleLR(optimizer, 0.1, total_steps=22 * len(loader)) if per_step else rates.CosineAnnealingLR(optimizer, 44)
                    worker = attach(c, rank, model, optimizer)
                    loader = worker.shard(loader)
                    for _ in worker.epochs(22) if loop == "epochs" else range(22):
                        for _ in loader:
                            step(model, optimizer, slow=0)
                            if per_step:
                                scheduler.step()
                        if not per_step:
                            scheduler.step()
                    worker.finish()

                place.in_threads(2, body)
                said = self.said("rank 0: OneCycleLR is made for 264 steps", words, "scheduler = worker.scheduler(scheduler, plain=True)")
                self.assertEqual(len(said), int(per_step))
                self.assertEqual(self.said("CosineAnnealingLR"), [])

    def test_a_scheduler_of_unequal_workers_steps_is_noticed(self):
        for engine, options in (("p-reduce", "group_size = 2"), ("all-reduce", "")):
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 3, "", options)) as c:
                def body(rank):
                    model, optimizer = make()
                    worker = attach(c, rank, model, optimizer)
                    per_step, per_epoch = rates.LambdaLR(optimizer, lambda step: 1), rates.StepLR(optimizer, 10)
                    for _ in worker.steps(60):
                        step(model, optimizer, rank, factor=10)
                        per_step.step()
                    per_epoch.step()
                    worker.finish()

                before = len(self.said())
                place.in_threads(3, body)
                lines = [line for line in self.said()[before:] if "worker.scheduler(scheduler)" in line]
                if engine == "all-reduce":
                    self.assertEqual(lines, [], "equal steps do no harm")
                else:
                    self.assertGreater(len(lines), 0)
                    self.assertLessEqual(len(lines), 3, "once a worker")
                    self.assertIn("LambdaLR counts this worker's steps", lines[0])

    def test_a_loop_of_equal_steps_of_unequal_workers_is_noticed(self):
        for factor in (60, 1):
            with self.subTest(factor=factor), place.Cluster(UNEQUAL) as c:
                def body(rank):
                    model, optimizer = make()
                    worker = attach(c, rank, model, optimizer)
                    for _ in range(80):
                        step(model, optimizer, rank, slow=0.001, factor=factor)
                    worker.finish()

                before = len(self.said("waits in finish after"))
                place.in_threads(3, body)
                lines = self.said("waits in finish after 80 steps", "for it in worker.steps(max_iters):")[before:]
                self.assertEqual(len(lines), 2 if factor > 1 else 0, "the fast ones, once")

    def test_no_pass_is_empty(self):
        """A worker that is slower than an epoch, in a loop that divides by the number of its batches."""
        with place.Cluster(UNEQUAL) as c:
            def body(rank):
                model, optimizer = make()
                worker = attach(c, rank, model, optimizer)
                loader = worker.shard(data(samples=40))
                counts = []
                for _ in range(6):
                    count = 0
                    for _ in loader:
                        step(model, optimizer, rank, factor=40)
                        count += 1
                    counts.append(count)
                total = worker.progress.samples
                worker.finish()
                return counts, total

            found = place.in_threads(3, body)
            for counts, _ in found:
                self.assertEqual(len(counts), 6)
                self.assertGreater(min(counts), 0)
            self.assertGreaterEqual(sum(sum(counts) for counts, _ in found), 24)
            self.assertLessEqual(sum(sum(counts) for counts, _ in found), 24 + 6 + 2, "6 epochs, and what the slow worker has in those that are over")
            self.assertEqual(len(self.said("rank 2", "an epoch was over", "for epoch in worker.epochs(...):")), 1)

    def test_epochs_are_those_of_the_job(self):
        """A late worker begins where the job is, and a slow one leaves out what is over."""
        with place.Cluster(place.job("ssp", 1, "", "staleness = -1")) as c:
            joins, joined, ahead, epochs = threading.Event(), threading.Event(), threading.Event(), [[], []]

            def body(rank):
                if rank == 1:
                    joins.wait()
                model, optimizer = make()
                worker = attach(c, rank, model, optimizer)
                loader = worker.shard(data())
                scheduler = worker.scheduler(rates.LambdaLR(optimizer, lambda epoch: 1 + epoch), epochs=True)
                if rank == 1:
                    joined.set()
                for epoch in worker.epochs(12):
                    self.assertAlmostEqual(optimizer.param_groups[0]["lr"], 0.01 * (1 + epoch))
                    if rank == 0 and epoch == 4:
                        joins.set()
                        joined.wait(60)
                    if rank == 0 and epoch == 9:
                        ahead.set()
                    count = 0
                    for _ in loader:
                        if rank == 1:
                            ahead.wait(60)
                        step(model, optimizer, rank, slow=0.002)
                        count += 1
                    self.assertGreater(count, 0)
                    epochs[rank].append(epoch)
                    scheduler.step()
                samples = worker.progress.samples
                worker.finish()
                return samples

            samples = place.in_threads(2, body)
            self.assertEqual(epochs[0], list(range(12)))
            self.assertEqual(epochs[1][0], 4)
            self.assertGreaterEqual(epochs[1][1], 9)
            self.assertEqual(epochs[1], sorted(set(epochs[1])))
            self.assertGreaterEqual(samples[0], 12 * 120)
            self.assertLessEqual(max(samples), 12 * 120 + 20)
            self.assertEqual(self.said("an epoch was over"), [])

    def test_a_plateau_is_the_jobs(self):
        """Workers whose losses differ keep one learning rate. Of the session's `mean` there is a stand-in."""
        told, barrier = {}, threading.Barrier(2)

        def mean(session, values):
            told[session.rank] = values
            barrier.wait(60)
            found = [sum(both) / 2 for both in zip(*told.values())]
            barrier.wait(60)
            return found

        with mock.patch.object(prd.Session, "mean", mean, create=True), place.Cluster(place.job("p-reduce", 2)) as c:
            def body(rank):
                model, optimizer = make()
                worker = attach(c, rank, model, optimizer)
                scheduler = worker.scheduler(rates.ReduceLROnPlateau(optimizer, patience=1, factor=0.5))
                self.assertIsInstance(scheduler, rates.ReduceLROnPlateau)
                found = []
                for i in range(6):
                    scheduler.step(10 - i if rank else torch.tensor(10.0))
                    found.append(optimizer.param_groups[0]["lr"])
                self.assertNotIn("step", scheduler.state_dict())
                values = [worker.mean(rank), worker.mean([rank, 2]), worker.mean(torch.tensor(rank * 4.0)), worker.mean(torch.tensor([rank, 1]))]
                self.assertEqual([values[0], values[1], values[2].item(), values[3].tolist()], [0.5, [0.5, 2], 2, [0.5, 1]])
                self.assertEqual((values[2].shape, values[3].shape), ((), (2,)))
                with self.assertRaisesRegex(ValueError, "x: found a tensor of 2 dimensions"):
                    worker.mean(torch.ones(2, 2))
                worker.finish()
                return found

            found = place.in_threads(2, body)
            self.assertEqual(found, [[0.01] * 6] * 2, "rank 0's alone would fall")

    def test_a_worker_stops_the_job(self):
        """All loops end, of the other worker, too. Of the session's `stop` there is a stand-in."""
        reasons = []
        progress = prd.Session.progress.fget

        def stopped(session):
            return progress(session)._replace(done=bool(reasons))

        stop = mock.patch.object(prd.Session, "stop", lambda _, reason: reasons.append(reason), create=True)
        with stop, mock.patch.object(prd.Session, "progress", property(stopped)), place.Cluster(place.job("all-reduce", 2)) as c:
            def body(rank):
                model, optimizer = make()
                worker = attach(c, rank, model, optimizer)
                loader = worker.shard(data())
                epochs = 0
                for epoch in worker.epochs(1000):
                    epochs += 1
                    for _ in loader:
                        step(model, optimizer)
                    if rank == 1 and epoch == 2:
                        worker.stop("no better")
                self.assertIs(worker.done, True)
                self.assertEqual(list(worker.steps(10**6)), [])
                passed = [sum(1 for _ in loader) for _ in range(2)]
                self.assertEqual(passed, [1, 1], "a loop over range() can divide by the number of its batches")
                worker.finish()
                return epochs

            found = place.in_threads(2, body)
            self.assertEqual(reasons, ["no better"])
            self.assertEqual(found[1], 3)
            self.assertIn(found[0], (3, 4))
            self.assertEqual(len(self.said("the job is done", "worker.epochs(...)")), 2)

    def test_a_pass_without_a_step_is_no_epoch(self):
        """A look at a batch, accuracy on the training data, and a loader for each stage; also where the job's batch is divided."""
        for extra in ("", "batch = 10"):
            with self.subTest(extra), place.Cluster(place.job("all-reduce", 1, extra)) as c:
                model, optimizer = make()
                worker = attach(c, 0, model, optimizer)

                def train(loader):
                    made = 0
                    for _ in loader:
                        step(model, optimizer, slow=0)
                        made += 1
                    return made

                loader = worker.shard(data())
                self.assertEqual(len(next(iter(loader))[0]), 10)
                made = []
                for _ in range(3):
                    made.append(train(loader))
                    self.assertEqual(sum(len(x) for x, in loader), 120)
                made += [train(worker.shard(data(samples))) for samples in (60, 240)]
                broken_off = worker.shard(data())
                next(iter(broken_off))
                step(model, optimizer, slow=0)
                made.append(train(worker.shard(data(30))))
                self.assertEqual(made, [12, 12, 12, 6, 24, 3])
                self.assertEqual(worker.trained, (70, 700))
                worker.finish()

    def test_epochs_that_are_over_count_without_a_step(self):
        """A worker is late, and makes a step of four batches: of an epoch that is over it has one batch, and no step."""
        with place.Cluster(place.job("all-reduce", 1)) as c:
            model, optimizer = make()
            worker = attach(c, 0, model, optimizer, samples=10)
            loader, made = worker.shard(data()), []
            for _ in range(36):  # as others would
                step(model, optimizer, slow=0)
            for _ in range(4):
                made.append(0)
                for _ in loader:
                    made[-1] += 1
                    if made[-1] % 4 == 0:
                        step(model, optimizer, slow=0)
            self.assertEqual(made[:3], [1, 1, 1])
            self.assertGreater(made[3], 4)
            worker.finish()

    def test_loaders_beside_each_other(self):
        """Batches of both are in one step; and one that is for evaluation does not count."""
        with place.Cluster(place.job("all-reduce", 1)) as c:
            model, optimizer = make()
            worker = attach(c, 0, model, optimizer)
            labeled, others = worker.shard(data(60)), worker.shard(data(120, 20))
            self.assertTrue(self.said("a second loader is sharded"))
            for _ in range(3):
                made = 0
                for _ in zip(labeled, others):
                    step(model, optimizer, slow=0)
                    made += 1
                self.assertEqual(made, 6)
            self.assertEqual(worker.trained, (18, 180))
            for _ in others:
                pass
            for _ in labeled:
                step(model, optimizer, slow=0)
            self.assertEqual(worker.trained, (24, 240))
            worker.finish()

    def test_an_epoch_is_what_the_sampler_draws(self):
        with place.Cluster(place.job("all-reduce", 1)) as c:
            model, optimizer = make()
            worker = attach(c, 0, model, optimizer)
            given, loading = torch.utils.data.TensorDataset(torch.ones(120, 4)), torch.utils.data
            for sampler in (loading.SubsetRandomSampler(range(30)), loading.WeightedRandomSampler(torch.ones(120), 30),
                            loading.RandomSampler(given, replacement=True, num_samples=30)):  # fmt: skip
                loader = worker.shard(loading.DataLoader(given, batch_size=10, sampler=sampler))
                self.assertEqual(len(loader), 3)
                self.assertEqual(sum(step(model, optimizer, slow=0) is None for _ in loader), 3, sampler)
            part = loading.BatchSampler(loading.SubsetRandomSampler(range(30)), 10, False)
            made = [torch.ones(8, 4) for _ in range(3)]
            for given_loader in (loading.DataLoader(given, batch_sampler=part), loading.DataLoader(made, batch_size=None),
                                 loading.DataLoader(made, batch_size=None, shuffle=True)):  # fmt: skip
                loader, samples = worker.shard(given_loader), 24 if given_loader.batch_sampler is None else 30
                self.assertEqual(len(loader), 3)
                self.assertEqual(sum(step(model, optimizer, slow=0) is None for _ in loader), 3)
                self.assertEqual((loader.samples, prd.torch.alone.PlainLoader(worker, given_loader).samples), (samples, samples))

            class Stream(loading.IterableDataset):
                def __iter__(self):
                    return iter(made)

                def __len__(self):
                    return len(made)

            self.assertEqual(len(worker.shard(loading.DataLoader(Stream(), batch_size=1))), 3)
            nameless = loading.DataLoader({"a": torch.ones(8, 4)}, batch_size=None, sampler=["a"])
            with self.assertRaisesRegex(ValueError, r"dataset\[0\], which tells how many samples each has, ends with KeyError.*shard\(loader, samples="):
                worker.shard(nameless)

            class Doubling(loading.DataLoader):
                def __iter__(self):
                    return (2 * x for x, in super().__iter__())

            self.assertEqual(next(iter(worker.shard(Doubling(given, batch_size=10, shuffle=True)))).unique().tolist(), [2])
            few = loading.DataLoader(given, batch_size=40, sampler=loading.SubsetRandomSampler(range(30)), drop_last=True)
            with self.assertRaisesRegex(ValueError, "a pass has no batch"):
                next(iter(worker.shard(few)))
            batches = loading.BatchSampler(loading.SequentialSampler(given), 10, False)
            opaque = loading.DataLoader(given, batch_sampler=batches, collate_fn=lambda batch: object())
            with self.assertRaisesRegex(ValueError, r"a batch is a object, which does not say how many samples.*shard\(loader, samples="):
                next(iter(worker.shard(opaque)))
            self.assertIsNotNone(next(iter(worker.shard(opaque, samples=10))))
            worker.finish()

    def test_samplers_seeded_alike_draw_different_samples(self):
        given, loading = torch.utils.data.TensorDataset(torch.arange(1000.0)), torch.utils.data

        def first(c, rank, seed):
            sampler = loading.RandomSampler(given, generator=torch.Generator().manual_seed(7), num_samples=900)
            batches = loading.BatchSampler(loading.RandomSampler(given, generator=torch.Generator().manual_seed(7)), 8, False)
            worker = attach(c, rank, *make(), name=f"seed-{seed}", seed=seed)
            loaders = (loading.DataLoader(given, batch_size=8, sampler=sampler), loading.DataLoader(given, batch_sampler=batches))
            drawn = [next(iter(worker.shard(loader)))[0].tolist() for loader in loaders]
            worker.leave("it has seen enough")
            return drawn

        with place.Cluster(place.job("all-reduce", 2, name="seed-*")) as c:
            for seed in (True, False):
                drawn = place.in_threads(2, lambda rank, seed=seed: first(c, rank, seed))
                self.assertEqual([one == other for one, other in zip(*drawn)], 2 * [not seed])

    def test_what_a_batch_counts(self):
        """Batches whose first dimension is no sample: (time, batch, features)."""
        with place.Cluster(place.job("all-reduce", 1)) as c:
            model, optimizer = make()
            worker = attach(c, 0, model, optimizer)
            sequences = torch.utils.data.TensorDataset(torch.ones(60, 7, 4))

            def loader(**options):
                return torch.utils.data.DataLoader(sequences, collate_fn=lambda batch: torch.stack([one for one, in batch], 1), **options)

            sampler = torch.utils.data.WeightedRandomSampler(torch.ones(60), 60)
            batches = torch.utils.data.BatchSampler(sampler, 20, False)
            for given, options, count in (
                (loader(batch_size=30), {}, 2), (loader(batch_size=5, sampler=sampler), {}, 12), (loader(batch_sampler=batches), {"samples": 20}, 3),
                (loader(batch_sampler=batches), {"samples": lambda batch: batch.shape[1] // 2}, 6),
            ):
                before = worker.trained[1]
                sharded = worker.shard(given, **options)
                batch_count = 0
                for _ in sharded:
                    step(model, optimizer, slow=0)
                    batch_count += 1
                self.assertEqual((batch_count, worker.trained[1] - before), (count, 60))
            self.assertEqual(len(worker.shard(loader(batch_sampler=batches))), 3)
            with self.assertRaisesRegex(ValueError, "samples: found 0, allowed is a number of 1 or more"):
                worker.shard(data(), samples=0)
            with self.assertRaisesRegex(ValueError, "n: found 0"):
                worker.every(0)
            worker.finish()

    def test_a_step_has_the_samples_of_its_batches(self):
        """Of a loop that accumulates, of one that draws a batch ahead, and of one that makes a step more after each pass."""
        with place.Cluster(place.job("all-reduce", 1)) as c:
            model, optimizer = make()
            worker = attach(c, 0, model, optimizer)
            sizes, told = [40, 30, 20, 10], []

            def take():
                before = worker.trained[1]
                step(model, optimizer, slow=0)
                told.append(worker.trained[1] - before)

            def passes(body, count=2):
                told.clear()
                given = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(100)), batch_sampler=torch.arange(100).split(sizes))
                loader = worker.shard(given, samples=lambda batch: len(batch[0]))
                for _ in range(count):
                    body(iter(loader))
                return list(told)

            def accumulates(batches):
                for i, _ in enumerate(batches):
                    if i % 2:
                        take()

            def draws_ahead(batches):
                next(batches)
                for _ in batches:
                    take()
                take()

            def takes_one_more(batches):
                for _ in batches:
                    take()
                take()

            self.assertEqual(passes(accumulates), [70, 30, 70, 30])
            self.assertEqual(passes(takes_one_more), 2 * [40, 30, 20, 10, 0])
            # Until the first pass has ended this seems to accumulate; the second one is shorter by what was counted twice.
            self.assertEqual(passes(draws_ahead, 3), [70, 20, 10, 10] + [40, 30, 20] + [10, 40, 30, 20])
            worker.finish()


if __name__ == "__main__":
    unittest.main()
