"""prd under Hugging Face's Trainer: a callback. The TrainingArguments stay as they are for one process.

    trainer = transformers.Trainer(model, args, train_dataset=data, callbacks=[prd.transformers.Callback()])
    trainer.train()

Each worker draws an order of its own. `num_train_epochs` and `max_steps` are the job's: an epoch ends when the job has trained
the data once, a step counts as one of the job's clock, and so does the schedule of the learning rate. Where one worker stops
(EarlyStoppingCallback), all do. Rank 0 alone writes checkpoints; train(resume_from_checkpoint=...) of all workers goes on from
there. The others do not wait for an evaluation, or for a checkpoint.

In a job with a batch, the Trainer's batches stay as large as they are, and a step of the job takes as many as a worker's share needs;
the Trainer's steps before that apply nothing.

What it cannot do: several devices of a Trainer, `load_best_model_at_end` (each worker has its own best), data without a
length, `max_steps` in a second `train()` of one Trainer, and a `data_seed`, which would give all workers one order. What a script
writes after train, as save_model, asks callback.worker.rank == 0. An interval in steps (`eval_steps`, `save_steps`,
`logging_steps`) counts this worker's own.
"""
import math
import os

import torch
import transformers

import prd.accelerate
import prd.torch
from prd import errors, session


class _Many(int):
    """Steps, that the Trainer ends at no number of its own, in place of those that were `given`, which copies and files have."""

    def __new__(cls, given):
        made = super().__new__(cls, 1 << 40)
        made.given = getattr(given, "given", given)  # of a Trainer that has not trained
        return made

    def __reduce__(self):
        return int, (self.given,)


class Callback(transformers.TrainerCallback):
    """Makes a Trainer a worker of a job, from the start of training to its end. `worker` is the prd.torch.Worker meanwhile, and after."""

    def __init__(self, **options):
        """options: of prd.torch.attach."""
        self.worker = None
        self._options = options
        self._pause = self._args = None

    paused = property(lambda self: self._pause is not None, doc="Whether the others go on without this worker, which evaluates or saves")

    def on_init_end(self, args, state, control, **kwargs):
        for name, found, allowed in (("load_best_model_at_end", args.load_best_model_at_end, False), ("data_seed", args.data_seed, None)):
            if found != allowed:
                raise errors.InvalidArgument(f"{name}: found {found}, allowed is {allowed} with prd.transformers")
        if args.world_size > 1 or args.n_gpu > 1:
            raise errors.InvalidArgument(f"args: {max(args.world_size, args.n_gpu)} devices, allowed is one: prd.run or a launcher starts the "
                                         "workers, each with a GPU of its own (prd.run --env 0:CUDA_VISIBLE_DEVICES=0 --env 1:CUDA_VISIBLE_DEVICES=1)")
        self._args = args
        args.max_steps = _Many(args.max_steps)
        # Of this the order of the data is drawn. A worker that is not told its rank before attach takes any.
        rank = session.rank_of_environment()
        torch.manual_seed(args.seed + rank * 0x9E3779B9 if rank >= 0 else int.from_bytes(os.urandom(7), "little"))

    def on_train_begin(self, args, state, control, model, optimizer, lr_scheduler, train_dataloader, **kwargs):
        if self._args is not args:
            raise errors.InvalidArgument("callbacks: prd.transformers.Callback is given to a Trainer when that is made, and not by add_callback: "
                                         "transformers.Trainer(..., callbacks=[prd.transformers.Callback()])")
        if isinstance(args.max_steps, _Many):
            args.max_steps = args.max_steps.given  # the Trainer has read it
        elif args.max_steps > 0:
            raise errors.FailedPrecondition(f"max_steps: {args.max_steps} of the job's are of a Trainer's first training, and not where another one with "
                                            "the same TrainingArguments has trained since it was made: make a new Trainer")
        self._trainers = state.max_steps
        accumulated = args.gradient_accumulation_steps
        batches = math.ceil(len(train_dataloader) / accumulated)  # of the data, as steps
        if state.global_step:
            done = state.epoch
            options = {"trained": (state.global_step, state.global_step * args.train_batch_size * accumulated),
                       "job_trained": (round(done * batches), round(done * len(train_dataloader.dataset)))}
        else:
            options = {}
        whole = args.train_batch_size * accumulated
        lacks = len(train_dataloader) * args.train_batch_size - len(train_dataloader.dataset)  # in the last batch
        rest = whole - (batches * accumulated - len(train_dataloader)) * args.train_batch_size - (lacks if 0 < lacks < args.train_batch_size else 0)
        self._samples = None if "samples" in self._options else (batches, whole, rest)
        self._next = state.global_step % batches if not args.ignore_data_skip else 0  # of the steps of this pass over the data
        self._begun = False
        options = {"samples": whole, **options, **self._options}
        inner = getattr(optimizer, "optimizer", optimizer)
        self.worker = prd.torch.attach(model, inner, **options)
        prd.accelerate.take_scaler(optimizer)
        self._per_epoch = batches / max(self.worker.workers, 1)  # the job's clock
        if self.worker.share.batch:
            self._per_epoch = len(train_dataloader.dataset) / self.worker.share.batch
        self._steps = args.max_steps
        if self._steps <= 0:
            self._steps = max(1, math.ceil(args.num_train_epochs * self._per_epoch))
        scheduler = getattr(lr_scheduler, "scheduler", lr_scheduler)
        if not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            # The Trainer has made it for its own number of steps.
            made = transformers.get_scheduler(args.lr_scheduler_type, inner, args.get_warmup_steps(self._steps), self._steps, args.lr_scheduler_kwargs)
            at = scheduler.last_epoch
            scheduler.__dict__.update({name: value for name, value in vars(made).items() if name != "last_epoch"}, last_epoch=at)
        self.worker.scheduler(scheduler)
        self._epoch = math.floor(self.worker.clock / self._per_epoch)
        state.max_steps = self._steps

    def on_step_begin(self, args, state, control, **kwargs):
        self._resume()
        if self._samples is not None:
            batches, whole, rest = self._samples
            self._next += 1
            self.worker._samples = whole if self._next < batches else rest
        state.max_steps = state.global_step + max(1, math.ceil(self._steps - self.worker.clock))  # for this worker to end at
        if self.worker.share.batch:
            state.max_steps += 1  # this one may apply nothing yet

    def on_step_end(self, args, state, control, **kwargs):
        clock = self.worker.clock
        state.epoch = clock / self._per_epoch
        if clock >= self._steps or self.worker.done:
            control.should_training_stop = True
            control.should_save = control.should_save or args.save_strategy == "steps"
        elif math.floor(state.epoch) > self._epoch:
            control.should_epoch_stop = True
        self._saves(control)

    def on_epoch_end(self, args, state, control, **kwargs):
        self._epoch = max(self._epoch, math.floor(self.worker.clock / self._per_epoch))
        self._saves(control)
        if control.should_save:
            state.max_steps = state.global_step  # for the checkpoint
        else:
            self.on_save(args, state, control)

    def on_save(self, args, state, control, **kwargs):
        if control.should_training_stop:
            state.max_steps = self._trainers  # what the Trainer divides by to tell samples per second

    def on_epoch_begin(self, args, state, control, **kwargs):
        self._resume()
        if self._begun:
            self._next = 0
        self._begun = True

    def on_train_end(self, args, state, control, **kwargs):
        self._resume()
        state.max_steps = state.global_step
        if self.worker.clock < self._steps - 1 and not self.worker.done:
            self.worker.stop("the Trainer of one worker was stopped")
        self.worker.finish()

    def _saves(self, control):
        if self.worker.rank > 0:
            control.should_save = False
        if (control.should_evaluate or control.should_save) and self._pause is None and not self.worker.done:
            self._pause = self.worker.pause()
            self._pause.__enter__()

    def _resume(self):
        if self._pause is not None:
            pause, self._pause = self._pause, None
            pause.__exit__(None, None, None)
