#!/usr/bin/env python3
"""Frameworks over PyTorch: the examples, and jobs that are saved, resumed and stopped. Usage: frameworks_test.py BIN_DIR [TEST ...]"""
import place
import contextlib
import io
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

import prd


class Frameworks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="prd-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = dict(os.environ, PYTHONPATH=str(place.PACKAGE), PRD_DAEMON=str(place.BIN / "prd"), TMPDIR=folder.name, OMP_NUM_THREADS="1")
        self.environment.pop("PRD_CONTROLLER", None)

    def train(self, workers, script, *arguments):
        """What it prints, without the ranks; lines that begin alike are equal on all workers."""
        done = subprocess.run([sys.executable, "-m", "prd.run", "-n", str(workers), "--engine", "p-reduce", "--option", "group_size=2", script, *arguments],
                              env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def example(self, name, saved, workers=2):
        out = self.train(workers, place.PACKAGE / f"examples/with_{name}.py")
        weights = re.findall(r"weights \[\[(.*)\]\]", out)
        self.assertEqual((len(weights), len(set(weights))), (workers, 1), out)
        self.assertLess(max(abs(float(weight) - 1) for weight in weights[0].split(",")), 0.1)
        for samples, rate in re.findall(r"samples (\d+) lr (\S+)", out):
            # Ten epochs of the job, and what was in progress; a worker of a loaded machine hears late how far the job is.
            self.assertTrue(20_000 <= int(samples) <= 21_000, out)
            self.assertLess(float(rate), 0.003, out)  # the cosine's end, by the job's clock
        self.assertTrue(list(self.folder.glob(saved)), list(self.folder.rglob("*")))

    def in_job(self, extra="", **environment):
        """From here on this process is the only worker of a job. Such a one knows all that it counts."""
        c = place.Cluster(place.job("all-reduce", 1, extra))
        c.__enter__()
        self.addCleanup(c.__exit__)
        given = unittest.mock.patch.dict(os.environ, place.environment(c, 0, **environment))
        given.start()
        self.addCleanup(given.stop)

    def test_accelerate(self):
        self.example("accelerate", "accelerate-model/model.safetensors")

    def test_lightning(self):
        self.example("lightning", "lightning-checkpoints/*.ckpt", workers=3)  # as its schedule has it

    def test_transformers(self):
        self.example("transformers", "transformers-model/model.safetensors")

    def saves_resumes_and_stops(self, name, checkpoints):
        """Of two workers, rank 0 alone saves; the next job goes on from there, until one finds that it is enough, which ends both."""
        def train(*arguments):
            out = self.train(2, place.ROOT / f"tests/python/frameworks/{name}_program.py", *arguments)
            ends = re.findall(r"end \(\d+, (\d+)\) (.*)", out)
            self.assertEqual((len(ends), len({model for _, model in ends})), (2, 1), out)
            return int(ends[0][0])

        few = 1000  # samples more, of batches that were in progress: half an epoch at most
        self.assertLess(train("2") - 2000, few)
        saved = sorted(self.folder.glob(checkpoints))
        self.assertEqual(len(saved), 1, saved)
        self.assertLess(abs(train("1000", str(saved[0])) - 4000), few)

    def test_lightning_saves_resumes_and_stops(self):
        self.saves_resumes_and_stops("lightning", "saved/last.ckpt")

    def test_transformers_saves_resumes_and_stops(self):
        self.saves_resumes_and_stops("transformers", "saved/checkpoint-*")

    def test_a_scaler_steps_through_prd(self):
        import accelerate
        import prd.accelerate
        import torch

        self.in_job()
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        accelerator = accelerate.Accelerator(cpu=True)
        accelerator.scaler = torch.amp.GradScaler("cpu")  # as fp16 makes one on a GPU
        plain = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, 8)
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, plain)
        with unittest.mock.patch.object(prd.torch.Worker, "scheduler") as taken:
            worker = prd.accelerate.attach(accelerator, model, optimizer, scheduler, samples=8)
        taken.assert_called_once_with(plain, plain=True)
        for given, divides, batch, expected in ((plain, False, 0, False), (scheduler, False, 20, True), (scheduler, True, 0, True), (scheduler, True, 20, False)):
            scheduler.split_batches = divides
            job = types.SimpleNamespace(share=types.SimpleNamespace(batch=batch))
            self.assertEqual(prd.accelerate._is_plain(given, job), expected)
        accelerator.prepare(torch.utils.data.DataLoader(range(8)))
        said = io.StringIO()
        for i in range(5):
            optimizer.zero_grad()
            accelerator.backward(model(torch.ones(8, 4)).mean() * (float("inf") if i == 2 else 1))
            with contextlib.redirect_stderr(said), unittest.mock.patch.object(prd.torch.Worker, "workers", 2):
                optimizer.step()
            self.assertEqual(optimizer.step_was_skipped, i == 2)
        self.assertEqual(worker.trained, (4, 32))
        self.assertEqual(said.getvalue().count("trains without a loader of worker.shard"), 1)
        worker.finish()

    def test_a_program_that_ends_in_a_pause_says_nothing_more(self):
        import torch
        import prd.torch

        self.in_job()
        model = torch.nn.Linear(4, 1)
        worker = prd.torch.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), samples=8)
        pause = worker.pause()
        pause.__enter__()
        worker.session._handle.end("its program ended")  # as at exit
        with unittest.mock.patch.object(sys, "unraisablehook") as ignored:
            del pause
        self.assertEqual(ignored.call_args_list, [])

    def arguments(self, **more):
        """Of a Trainer; three batches of 10 and one of 5 are an epoch of `trainer`'s data."""
        import transformers

        return transformers.TrainingArguments(str(self.folder / "out"), **{**dict(
            num_train_epochs=2, per_device_train_batch_size=10, learning_rate=0.05, lr_scheduler_type="constant", save_strategy="no", report_to=[],
            use_cpu=True, disable_tqdm=True), **more})

    @staticmethod
    def trainer(args, *callbacks, samples=35, kind=None, make=None):
        """make: of a model, the optimizer and the scheduler that the Trainer is given."""
        import torch
        import transformers

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)

            def forward(self, x):
                return {"loss": torch.nn.functional.mse_loss(self.layer(x), x.sum(1, keepdim=True))}

        class Limit(transformers.TrainerCallback):
            def on_step_begin(self, args, state, control, **kwargs):
                assert state.global_step < 100, "training does not end"

        data = [{"x": row} for row in torch.randn(samples, 4)]
        model = Model()
        return (kind or transformers.Trainer)(model, args, train_dataset=data, callbacks=[*callbacks, Limit()],
                                              optimizers=make(model) if make else (None, None))

    def test_a_scaler_of_a_trainer_steps_through_prd(self):
        import prd.transformers
        import torch
        import transformers

        class Scaled(transformers.Trainer):
            def create_accelerator_and_postprocess(self):
                super().create_accelerator_and_postprocess()
                self.accelerator.scaler = torch.amp.GradScaler("cpu")

        self.in_job()
        job = prd.transformers.Callback()
        self.trainer(self.arguments(), job, kind=Scaled).train()
        self.assertEqual(job.worker.trained[0], 8)

    def test_training_arguments_are_used_again(self):
        import prd.transformers
        import torch

        def train(trainer, job):
            trainer.train()
            return job.worker.trained[0]

        self.in_job()
        args = self.arguments(num_train_epochs=1, save_strategy="epoch")
        jobs = [prd.transformers.Callback() for _ in range(3)]
        trainers = [self.trainer(args, job) for job in jobs[:2]]
        self.assertEqual([train(*both) for both in zip(trainers, jobs)], [4, 4])
        self.assertEqual(args.max_steps, -1)
        saved = self.folder / "out/checkpoint-4"
        self.assertEqual(torch.load(saved / "training_args.bin", weights_only=False).max_steps, -1)
        self.assertEqual(json.loads((saved / "trainer_state.json").read_text())["max_steps"], 4)
        self.assertEqual([train(self.trainer(args, jobs[2]), jobs[2]), train(trainers[0], jobs[0])], [4, 4])
        args = self.arguments(max_steps=3)
        again = self.trainer(args, jobs[0])
        self.assertEqual([train(again, jobs[0]), train(self.trainer(args, jobs[1]), jobs[1])], [3, 3])
        with self.assertRaisesRegex(prd.FailedPrecondition, "max_steps: 3 of the job's are of a Trainer's first training.*make a new Trainer"):
            again.train()

    def test_a_trainer_trains_its_epochs_and_tells_what_it_computed(self):
        import prd.transformers

        self.in_job()
        trained = []
        # Batches of 10, 10, 10 and 5; and of 10, 10 and 10.
        for given, samples in (({}, 35), (dict(gradient_accumulation_steps=3), 35), (dict(dataloader_drop_last=True), 35), (dict(gradient_accumulation_steps=2), 30)):
            job = prd.transformers.Callback()
            told = []

            def step(session, samples=0, _step=prd.Session.step, **options):
                told.append(samples)
                return _step(session, samples, **options)

            with unittest.mock.patch.object(prd.Session, "step", step):
                self.trainer(self.arguments(**given), job, samples=samples).train()
            trained.append(told)
        self.assertEqual(trained, [2 * [10, 10, 10, 5], 2 * [30, 5], 2 * [10, 10, 10], 2 * [20, 10]])

    def test_a_trainer_makes_all_steps_of_a_batch(self):
        import prd.transformers

        self.in_job("batch = 20")
        job = prd.transformers.Callback()
        trainer = self.trainer(self.arguments(save_strategy="steps"), job, samples=40)
        trainer.train()
        self.assertEqual((job.worker.trained, trainer.state.global_step), ((4, 80), 8))  # each of two batches of 10
        self.assertTrue((self.folder / "out/checkpoint-8").exists())

    def test_each_worker_of_a_trainer_has_an_order_of_its_own(self):
        import accelerate
        import prd.transformers
        import torch

        def drawn(rank, **given):
            trainer = self.trainer(self.arguments(**given))
            loader = trainer.get_train_dataloader()
            self.assertIsNone(prd.transformers._part(loader, rank, 2))
            loader = accelerate.skip_first_batches(loader, 1)  # as of a checkpoint
            loader.set_epoch(0)
            return [index for batch in loader.batch_sampler for index in batch]

        torch.manual_seed(1)
        for given in (dict(), dict(data_seed=3), dict(accelerator_config={"use_seedable_sampler": False})):
            orders = [drawn(rank, **given) for rank in (0, 1, 1)]
            self.assertEqual((orders[1], len(set(orders[1]))), (orders[2], 25), given)
            self.assertNotEqual(orders[0], orders[1], given)
        alone = self.trainer(self.arguments(data_seed=3)).get_train_dataloader()
        self.assertEqual([index for batch in alone.batch_sampler for index in batch][10:], drawn(0, data_seed=3))
        begins = [drawn(rank, train_sampling_strategy="sequential")[::10] for rank in (0, 1)]
        self.assertEqual(begins, [[20, 30, 15], [30, 25, 5]])  # in turn, and then what the other has, from its end
        own = torch.utils.data.DataLoader(range(8), sampler=iter(range(8)))
        self.assertIs(prd.transformers._part(own, 1, 2), own.sampler)

    def test_a_trainer_alone_trains_as_it_did_without_prd(self):
        import prd.transformers
        import torch

        def train(*callbacks, **given):
            torch.manual_seed(1)
            trainer = self.trainer(self.arguments(**given), *callbacks)
            torch.manual_seed(2)
            trainer.train()
            return trainer.model.layer.weight.tolist()

        with unittest.mock.patch("prd.torch.is_alone", return_value=True):
            for given in ({}, dict(train_sampling_strategy="sequential", lr_scheduler_type="cosine", warmup_steps=2, max_grad_norm=0.1)):
                self.assertEqual(train(prd.transformers.Callback(), **given), train(**given))

    def test_a_schedule_of_the_script_stays_as_it_is(self):
        import prd.transformers
        import torch
        import transformers

        def falls(optimizer):
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** step)

        class Overrides(transformers.Trainer):
            def create_scheduler(self, num_training_steps, optimizer=None):
                self.lr_scheduler = falls(optimizer or self.optimizer)
                return self.lr_scheduler

        def both(model):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            return optimizer, falls(optimizer)

        self.in_job()
        for options, given, plain, end in (
                (dict(make=both), {}, True, 0.05 / 2**8), (dict(make=both), dict(max_steps=3), False, 0.05 / 2**3),
                (dict(kind=Overrides), {}, True, 0.05 / 2**8), ({}, {}, False, 0), ({}, dict(lr_scheduler_type="constant"), False, 0.05)):
            trainer = self.trainer(self.arguments(**{"lr_scheduler_type": "linear", **given}), prd.transformers.Callback(), **options)
            with unittest.mock.patch.object(prd.torch.Worker, "scheduler", autospec=True, side_effect=prd.torch.Worker.scheduler) as scheduler:
                trainer.train()
            self.assertEqual((scheduler.call_args.kwargs["plain"], trainer.optimizer.param_groups[0]["lr"]), (plain, end), (options, given))

    def test_a_callback_pauses_unless_told_not_to(self):
        import prd.transformers

        for job, pauses in ((prd.transformers.Callback(), True), (prd.transformers.Callback(pause=False), False)):
            job.worker = unittest.mock.MagicMock(rank=1, done=False)
            control = types.SimpleNamespace(should_evaluate=True, should_save=True)
            job._saves(control)
            self.assertEqual((job.paused, control.should_save, job.worker.pause.called), (pauses, False, pauses))

    def test_a_trainer_clips_what_is_applied(self):
        import prd.transformers
        import torch
        import transformers

        class Sees(transformers.TrainerCallback):
            def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
                seen.append((norm(model) < 0.11, args.max_grad_norm, pickle.loads(pickle.dumps(args)).max_grad_norm > 0))

        def norm(model):
            return torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])

        self.in_job()
        seen, applied = [], []
        args = self.arguments(max_grad_norm=0.1, num_train_epochs=1)
        job = prd.transformers.Callback(before_apply=lambda: applied.append(float(norm(trainer.model))))
        trainer = self.trainer(args, job, Sees())
        trainer.train()
        self.assertEqual((seen, args.max_grad_norm > 0), (4 * [(False, 0.1, True)], True))
        self.assertEqual((len(applied), max(applied) < 0.11), (4, True))

    def test_what_a_trainer_cannot_have_is_named(self):
        import prd.transformers
        import torch
        import transformers

        class Endless(torch.utils.data.IterableDataset):
            def __iter__(self):
                yield {"x": torch.ones(4)}

        with self.assertRaisesRegex(prd.InvalidArgument, "load_best_model_at_end: .*own replica.* Instead: .*best_model_checkpoint"):
            prd.transformers.Callback().on_init_end(self.arguments(load_best_model_at_end=True), None, None)
        args = self.arguments()
        with unittest.mock.patch.object(transformers.TrainingArguments, "world_size", 2):
            with self.assertRaisesRegex(prd.InvalidArgument, "args: found 2 processes, .*torchrun.*prd.run -n 2"):
                prd.transformers.Callback().on_init_end(args, None, None)
        job = prd.transformers.Callback()
        trainer = self.trainer(self.arguments(max_steps=3), job)
        trainer.train_dataset = Endless()
        with self.assertRaisesRegex(prd.InvalidArgument, "train_dataset: found Endless, which has no length, needed .* Instead: prd.torch.attach"):
            trainer.train()
        self.assertIsNone(job.worker)

    def test_a_callback_that_comes_too_late_is_named(self):
        import prd.transformers

        job = prd.transformers.Callback()
        trainer = self.trainer(self.arguments())
        trainer.add_callback(job)
        with self.assertRaisesRegex(prd.InvalidArgument, r"not by add_callback: transformers.Trainer\(..., callbacks=\["):
            trainer.train()
        self.assertIsNone(job.worker)

    @staticmethod
    def lightning(samples=40):
        """A module, a loader of its batches of 10, and what makes a trainer with these callbacks."""
        import lightning.pytorch as pl
        import torch

        class Model(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)
                self.computed = 0

            def training_step(self, batch, _):
                self.computed += len(batch[0])
                return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[0].sum(1, keepdim=True))

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.05)

        def trainer(*callbacks, **more):
            return pl.Trainer(accelerator="cpu", devices=1, callbacks=[*callbacks], logger=False, enable_progress_bar=False, enable_model_summary=False,
                              enable_checkpointing=False, **{"max_epochs": 2, **more})

        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(samples, 4)), batch_size=10, shuffle=True)
        return Model(), loader, trainer

    def test_each_fit_of_lightning_joins_the_job(self):
        import prd.lightning

        self.in_job()
        model, loader, trainer = self.lightning()
        job = prd.lightning.Callback()
        passes, first = job.shard(loader), trainer(job)
        first.fit(model, passes)
        workers = [job.worker]
        first.fit_loop.max_epochs = 3  # one more
        first.fit(model, passes)
        workers.append(job.worker)
        trainer(job).fit(self.lightning()[0], passes)
        workers.append(job.worker)
        self.assertEqual([worker.trained for worker in workers], [(8, 80), (4, 40), (8, 80)])
        self.assertEqual([worker.job_trained for worker in workers], [(8, 80), (4, 40), (8, 80)])

    def test_a_step_of_lightning_has_the_samples_it_computed(self):
        import prd.lightning

        self.in_job()
        for accumulated, steps in ((1, [10, 10, 10, 10]), (2, [20, 20])):
            model, loader, trainer = self.lightning()
            job, told = prd.lightning.Callback(), []

            def step(session, samples=0, _step=prd.Session.step, **options):
                told.append((model.computed, samples))
                model.computed = 0
                return _step(session, samples, **options)

            with unittest.mock.patch.object(prd.Session, "step", step):
                trainer(job, accumulate_grad_batches=accumulated).fit(model, job.shard(loader))
            self.assertEqual(told, 2 * [(size, size) for size in steps])

    def test_estimated_batches_of_lightning_are_those_of_one_process(self):
        import prd.lightning
        import torch

        asked = []

        def configure_optimizers(model):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            asked.append(torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=model.trainer.estimated_stepping_batches))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": asked[-1], "interval": "step"}}

        def fit(trainer, model, loader):
            model.configure_optimizers = configure_optimizers.__get__(model)
            with unittest.mock.patch.object(prd.torch.Worker, "scheduler", autospec=True, side_effect=prd.torch.Worker.scheduler) as scheduler:
                trainer.fit(model, loader)
            return scheduler.call_args

        self.in_job()
        model, loader, trainer = self.lightning()
        fit(trainer(accumulate_grad_batches=2), model, loader)
        job = prd.lightning.Callback()
        for _ in range(2):
            passes = job.shard(loader)
            called = fit(trainer(job, accumulate_grad_batches=2), model, passes)
            self.assertEqual((called.args[1], called.kwargs), (asked[-1], {"plain": True}))
            self.assertEqual([(one.total_steps, one.last_epoch) for one in (asked[0], asked[-1])], [(4, 4), (4, 3)])
            self.assertEqual(job.worker.trained, (4, 80))
            with self.assertRaisesRegex(TypeError, "no length"):
                len(passes)

    def test_estimated_batches_of_lightning_in_a_job_with_a_batch(self):
        import prd.lightning

        self.in_job("batch = 20")
        model, loader, trainer = self.lightning()
        configure = model.configure_optimizers
        model.configure_optimizers = lambda: model.trainer.estimated_stepping_batches and configure()
        job = prd.lightning.Callback()
        with self.assertRaisesRegex(prd.InvalidArgument, "estimated_stepping_batches: .* the job has a batch of 20 samples"):
            trainer(job).fit(model, job.shard(loader))


if __name__ == "__main__":
    unittest.main()
