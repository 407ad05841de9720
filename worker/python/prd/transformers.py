"""prd under Hugging Face's Trainer: a callback. The TrainingArguments stay as they are for one process.

    trainer = transformers.Trainer(model, args, train_dataset=data, callbacks=[prd.transformers.Callback()])
    trainer.train()

Each worker trains in an order of its own, by the seed of the data (`data_seed`, `seed`) and its rank; with
`train_sampling_strategy="sequential"` they take the batches in turn, as torchrun's processes do. `num_train_epochs` and
`max_steps` are the job's: an epoch ends when the job has trained the data once, a step counts as one of the job's clock, and so
does the schedule of the learning rate. A scheduler that the script gives (`optimizers=`, create_scheduler) stays as it is, made
for as many steps as one process makes in `num_train_epochs`, or for `max_steps`. Where one worker stops (EarlyStoppingCallback),
all do. Rank 0 alone writes checkpoints; train(resume_from_checkpoint=...) of all workers goes on from there. `max_grad_norm`
clips what is applied: the gradient of all workers together where the engine reduces gradients. `grad_norm` in the log is this
worker's own.

While a worker evaluates or saves it is paused, and the others train on: its steps are then theirs, so results depend on timing.
Callback(pause=False): the others wait for it where the engine makes them, as all-reduce does; then results are the same each time.

In a job with a batch, the Trainer's batches stay as large as they are, and a step of the job takes as many as a worker's share needs;
the Trainer's steps before that apply nothing.

What it cannot do: several devices of a Trainer, `load_best_model_at_end` (each worker has its own best), data without a
length, and `max_steps` in a second `train()` of one Trainer. An interval in steps (`eval_steps`, `save_steps`, `logging_steps`)
counts this worker's own.

`state.is_world_process_zero` is true on rank 0 alone, from this callback's on_train_begin on, so rank 0 alone has a progress bar and
prints its losses. Each worker's own are: `trainer.is_world_process_zero()`, `args.process_index` and so what a script writes after
train, as save_model (it asks callback.worker.rank == 0), warnings (`log_level`), and what `report_to` starts, which begins before
this callback. In its place: report_to="none" and callbacks=[prd.transformers.Callback(), TensorBoardCallback()].

A checkpoint has rank 0's replica. Under engines that average models the last one is not yet the average of all, which the model is
once train has returned: save_model then. `average_tokens_across_devices` has no effect: a worker's gradient weighs by its samples,
not by their tokens.
"""
import functools
import math

import torch
import transformers

import prd.accelerate
import prd.torch
from prd import errors
from prd.torch import clock


class _Many(int):
    """Steps, that the Trainer ends at no number of its own, in place of those that were `given`, which copies and files have."""

    def __new__(cls, given):
        made = super().__new__(cls, 1 << 40)
        made.given = getattr(given, "given", given)  # of a Trainer that has not trained
        return made

    def __reduce__(self):
        return int, (self.given,)


class _Elsewhere(float):
    """A max_grad_norm by which not the Trainer clips, which asks whether it is above 0. Copies and files have the plain number."""

    def __gt__(self, other):
        return False

    def __reduce__(self):
        return float, (float(self),)


class _InTurn(torch.utils.data.Sampler):
    """The data in order, of which all workers together take batch after batch. A worker that has trained its own ones goes on with those
    of the others, the last one first: these are most likely to be left."""

    def __init__(self, size, batch, rank, workers):
        self._size, self._batch, self._rank, self._workers = size, batch, rank, workers

    def __len__(self):
        return self._size

    def __iter__(self):
        begins = range(0, self._size, self._batch)
        for part in range(self._workers):
            of = begins[(self._rank + part) % self._workers::self._workers]
            for begin in reversed(of) if part else of:
                yield from range(begin, min(begin + self._batch, self._size))


def _mixed(seed, rank):
    return (seed + rank * 0x9E3779B97F4A7C15) % (1 << 63) if rank > 0 else seed


def _part(loader, rank, workers, own=True):
    """Gives this worker's loader an order of its own. Returns a sampler that all workers have alike in spite of it, or None.

    own: also where the sampler is one of the script's.
    """
    batches = loader.sampler if isinstance(loader.sampler, torch.utils.data.BatchSampler) else loader.batch_sampler
    sampler = getattr(batches, "sampler", loader.sampler if batches is None else batches)  # what is iterated; the loader may name another one
    random = isinstance(sampler, torch.utils.data.RandomSampler)
    if type(sampler) is torch.utils.data.SequentialSampler and batches is not None:
        batches.sampler = _InTurn(len(sampler), batches.batch_size, rank % workers, workers)
    elif getattr(sampler, "num_replicas", 1) > 1 or not (own or random):
        return None  # the script's
    elif isinstance(getattr(sampler, "initial_seed", None), int):  # accelerate's, which adds the epoch
        sampler.initial_seed = _mixed(sampler.initial_seed, rank)
    elif hasattr(sampler, "generator"):
        if rank > 0:
            generator = sampler.generator
            sampler.generator = torch.Generator("cpu" if generator is None else generator.device)
            sampler.generator.manual_seed(_mixed(torch.initial_seed() if generator is None else generator.initial_seed(), rank))
    elif isinstance(getattr(sampler, "seed", None), int):
        sampler.seed = _mixed(sampler.seed, rank)
    else:
        return sampler
    return None


def _of_trainer(args, optimizer, steps):
    """The schedule that a Trainer makes for so many steps: of a stand-in, since to make one sets the optimizer's learning rate."""
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": float(group.get("initial_lr", group["lr"]))} for group in optimizer.param_groups]
    stand_in = torch.optim.SGD(groups, float(optimizer.defaults.get("lr", 0)))
    return transformers.get_scheduler(args.lr_scheduler_type, stand_in, args.get_warmup_steps(steps), steps, args.lr_scheduler_kwargs)


def _rates(scheduler):
    """Of a LambdaLR: what its functions are, to compare them; else None."""
    if type(scheduler) is not torch.optim.lr_scheduler.LambdaLR:
        return None
    return [(rate.func, rate.args, rate.keywords) if isinstance(rate, functools.partial) else rate for rate in scheduler.lr_lambdas]


class Callback(transformers.TrainerCallback):
    """Makes a Trainer a worker of a job, from the start of training to its end. `worker` is the prd.torch.Worker meanwhile, and after."""

    def __init__(self, *, pause=True, **options):
        """options: of prd.torch.attach. pause: whether the others train on while this worker evaluates or saves. With False they wait
        where the engine makes them, and what is trained depends less on timing: not at all where each step waits for all.
        """
        self.worker = None
        self._pauses = pause
        self._options = options
        self._pause = self._args = self._saving = None

    paused = property(lambda self: self._pause is not None, doc="Whether the others go on without this worker, which evaluates or saves")

    def on_init_end(self, args, state, control, lr_scheduler=None, **kwargs):
        if args.load_best_model_at_end:
            raise errors.InvalidArgument("load_best_model_at_end: found True, allowed is False with prd.transformers: each worker evaluates its own replica, "
                                         "in its own time, so workers would end with different models. Instead: metric_for_best_model, and after train "
                                         "rank 0 loads trainer.state.best_model_checkpoint")
        prd.accelerate.refuse_processes("args", args.world_size)
        if args.n_gpu > 1:
            raise errors.InvalidArgument(f"args: found {args.n_gpu} GPUs, allowed is one for each worker: "
                                         "prd.run --env 0:CUDA_VISIBLE_DEVICES=0 --env 1:CUDA_VISIBLE_DEVICES=1")
        self._args, self._scheduler = args, lr_scheduler  # given to the Trainer, if it is not None
        args.max_steps = _Many(args.max_steps)

    def on_train_begin(self, args, state, control, model, optimizer, lr_scheduler, train_dataloader, **kwargs):
        if self._args is not args:
            raise errors.InvalidArgument("callbacks: prd.transformers.Callback is given to a Trainer when that is made, and not by add_callback: "
                                         "transformers.Trainer(..., callbacks=[prd.transformers.Callback()])")
        data = train_dataloader.dataset
        if isinstance(data, torch.utils.data.IterableDataset) or not hasattr(data, "__len__"):
            raise errors.InvalidArgument(f"train_dataset: found {type(data).__name__}, which has no length, needed is one with __len__ and __getitem__: epochs are "
                                         "the job's, in samples. Instead: prd.torch.attach and worker.shard in a loop of your own, where such data is divided")
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
        clips = args.max_grad_norm is not None and float(args.max_grad_norm) > 0 and not prd.torch.is_alone()
        options = {"samples": whole, **options, **self._options}
        if clips:
            options["before_apply"] = self._clipping(model, float(args.max_grad_norm))
        inner = getattr(optimizer, "optimizer", optimizer)
        self.worker = prd.torch.attach(model, inner, **options)
        if clips:
            args.max_grad_norm = _Elsewhere(args.max_grad_norm)
        prd.accelerate.take_scaler(optimizer)
        if self.worker.rank > 0 and args.save_strategy == "best":
            self._saving, args.save_strategy = args.save_strategy, transformers.trainer_utils.SaveStrategy.NO
        state.is_world_process_zero = state.is_local_process_zero = self.worker.rank == 0
        if self.worker.workers > 1 or self.worker.rank > 0:
            self._give_order(train_dataloader)
        self._per_epoch = batches / max(self.worker.workers, 1)  # the job's clock
        if self.worker.share.batch:
            self._per_epoch = len(train_dataloader.dataset) / self.worker.share.batch
        self._steps = args.max_steps
        if self._steps <= 0:
            self._steps = max(1, math.ceil(args.num_train_epochs * self._per_epoch))
        self._schedule(getattr(lr_scheduler, "scheduler", lr_scheduler), inner)
        self._epoch = math.floor(self.worker.clock / self._per_epoch)
        state.max_steps = self._steps

    def _clipping(self, model, most):
        """What the Trainer does before the optimizer's step, of the gradient that is applied: of all workers' together where the engine
        reduces gradients, as torchrun's processes have it, else of this worker's."""
        then = self._options.get("before_apply")

        def clip():
            torch.nn.utils.clip_grad_norm_(model.parameters(), most)
            if then is not None:
                then()

        return clip

    def _give_order(self, loader):
        worker = self.worker
        alike = _part(loader, worker.rank, max(worker.workers, 1), self._options.get("seed", True))
        if alike is not None and worker.rank == 0:
            worker._say_once("sampler", f"the Trainer's loader has a {type(alike).__name__}, with neither a generator nor a seed to give each worker an "
                             "order of its own: where it does not draw by torch's random numbers, all workers train the same samples at the same time")

    def _schedule(self, scheduler, optimizer):
        """The schedule goes by the job's clock. One that the Trainer has made for its own number of steps becomes as long as the job."""
        rates = None if scheduler is self._scheduler else _rates(scheduler)
        given = rates is None or rates != _rates(_of_trainer(self._args, optimizer, self._trainers))
        if not given:
            scheduler.lr_lambdas = _of_trainer(self._args, optimizer, self._steps).lr_lambdas
            for group, rate, base in zip(optimizer.param_groups, scheduler.lr_lambdas, scheduler.base_lrs):
                due = float(base) * rate(scheduler.last_epoch)
                if torch.is_tensor(group["lr"]):
                    group["lr"].fill_(due)
                else:
                    group["lr"] = due
        if isinstance(scheduler, (*clock._SCHEDULERS, torch.optim.lr_scheduler.ReduceLROnPlateau)):
            # The script's is as long as all epochs of one process, or as max_steps.
            self.worker.scheduler(scheduler, plain=given and self._args.max_steps <= 0)

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
        now = self.worker.clock
        state.epoch = now / self._per_epoch
        if now >= self._steps or self.worker.done:
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
        args.max_grad_norm = args.max_grad_norm and float(args.max_grad_norm)
        if self._saving is not None:
            args.save_strategy, self._saving = self._saving, None
        self.worker.finish()

    def _saves(self, control):
        if self.worker.rank > 0:
            control.should_save = False
        if self._pauses and (control.should_evaluate or control.should_save) and self._pause is None and not self.worker.done:
            self._pause = self.worker.pause()
            self._pause.__enter__()

    def _resume(self):
        if self._pause is not None:
            pause, self._pause = self._pause, None
            pause.__exit__(None, None, None)
