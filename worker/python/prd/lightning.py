"""prd under Lightning: a callback, and what it makes of the loader.

    job = prd.lightning.Callback()
    trainer = lightning.Trainer(max_epochs=10, devices=1, callbacks=[job])
    trainer.fit(model, job.shard(loader))

Epochs are the job's: `max_epochs` counts them. Schedulers that Lightning steps after each batch go by the job's clock, and a
ReduceLROnPlateau by the workers' mean. Where one worker stops (EarlyStopping), all do. Rank 0 alone writes checkpoints; in
them is how far the job was, and `fit(ckpt_path=...)` of all workers goes on there. The others do not wait for a validation.

In a job with a batch, batches stay as large as the loader's: Lightning draws one ahead. Optimizer steps of which a share still needs
more apply nothing.

`trainer.estimated_stepping_batches` in `configure_optimizers` is the number for one process. Where it is asked for, schedulers count
the steps of all workers; not in a job with a batch.

What it cannot do: several devices of a trainer, several optimizers of a module, StochasticWeightAveraging, which needs a loader of
fixed length, and Lightning's `max_steps`, which counts each worker's own steps: Callback(max_steps=N) ends training when the job's
clock is at N.
"""
try:
    import lightning.pytorch as pl
    from lightning.fabric.plugins import CheckpointIO
except ModuleNotFoundError:  # its other name
    import pytorch_lightning as pl
    from lightning_fabric.plugins import CheckpointIO

import prd.torch
from prd import errors


class _Passes:
    """A loader without a length, for which Lightning would end a pass: it ends with the job's epoch."""

    def __init__(self, job, loader, options):
        self._job, self._loader, self._options = job, loader, options
        self._worker = self._sharded = None

    def __iter__(self):  # lazily: Lightning asks for an iterator before the optimizer's state is loaded
        self._job.attach()
        if self._worker is not self._job.worker:
            self._worker = self._job.worker
            self._worker._drawn.by_turns = True  # Lightning draws one ahead
            self._sharded = self._worker.shard(self._loader, **{"divided": False, **self._options})
        yield from self._sharded

    def __len__(self):
        """The plain loader's, for estimated_stepping_batches, and nothing else."""
        if self._job._sized is None:
            raise TypeError("the loader has no length: a pass ends with the job's epoch")
        self._job._sized = True
        return len(self._loader)


class _NoCheckpoints(CheckpointIO):
    """Of the workers whose checkpoints rank 0 writes."""

    def __init__(self, reads):
        self.reads = reads

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        pass

    def load_checkpoint(self, *arguments, **options):
        return self.reads.load_checkpoint(*arguments, **options)

    def remove_checkpoint(self, path):
        pass


class Callback(pl.Callback):
    """Makes a trainer a worker of a job, from the start of training to its end. `worker` is the prd.torch.Worker meanwhile, and after.

    Another `fit`, of this trainer or another one, joins the job anew.
    """

    def __init__(self, *, max_steps=None, **options):
        """max_steps: of the job's clock. options: of prd.torch.attach."""
        self.worker = None
        self._max_steps, self._options = max_steps, options
        self._of, self._loaded, self._pause = None, {}, None
        self._sized = None  # whether Lightning has asked for the plain loader's length; None: it may not now
        self._plain = False  # and so schedules are of this length

    def shard(self, loader, **options):
        """The loader that fit trains on. options: of prd.torch.Worker.shard."""
        return _Passes(self, loader, options)

    def setup(self, trainer, pl_module, stage):
        """Before configure_optimizers: there Lightning may ask how long the loader is."""
        self._sized = False if stage == "fit" else None

    def on_fit_start(self, trainer, pl_module):
        self._of = trainer, pl_module
        self._plain, self._sized = self._sized, None
        if self._plain:
            trainer.fit_loop._combined_loader = None  # Lightning makes it anew, without a length
        if self.worker is not None and self.worker._ended:
            self.worker = None  # of the fit before

    paused = property(lambda self: self._pause is not None, doc="Whether the others go on without this worker, which validates")

    def on_train_start(self, trainer, pl_module):
        self.attach()

    def attach(self):
        """Joins the job, if it has not yet: when training starts, or with the first batch that Lightning prefetches before that."""
        if self.worker is not None:
            return
        trainer, pl_module = self._of
        if trainer.world_size > 1:
            raise errors.InvalidArgument(f"trainer: it has {trainer.world_size} devices, needed is devices=1: prd.run or a launcher starts the workers")
        if trainer.max_steps != -1:
            raise errors.InvalidArgument(f"trainer: found max_steps={trainer.max_steps}, which counts this worker's own steps; prd.lightning.Callback("
                                         f"max_steps={trainer.max_steps}) counts the job's")
        if len(trainer.optimizers) != 1:
            raise errors.InvalidArgument(f"the module has {len(trainer.optimizers)} optimizers, allowed is 1; several: prd.torch.attach in a loop of your own")
        loaded, self._loaded = self._loaded, {}
        self.worker = prd.torch.attach(pl_module, trainer.optimizers[0], **{**loaded, **self._options})
        if self._plain and self.worker.share.batch:
            raise errors.InvalidArgument(f"trainer.estimated_stepping_batches: is of the loader's batches, and the job has a batch of {self.worker.share.batch} "
                                         "samples; a schedule is as long as the samples of all epochs, divided by that")
        for config in trainer.lr_scheduler_configs:
            if config.interval == "step" or config.reduce_on_plateau:
                self.worker.scheduler(config.scheduler, plain=self._plain)
        if isinstance(trainer.strategy.checkpoint_io, _NoCheckpoints):  # of the fit before
            trainer.strategy.checkpoint_io = trainer.strategy.checkpoint_io.reads
        if self.worker.rank > 0:
            trainer.strategy.checkpoint_io = _NoCheckpoints(trainer.strategy.checkpoint_io)

    def on_train_batch_start(self, *_):
        self.worker._pending += self.worker._drawn.take()

    def on_train_batch_end(self, trainer, *_):
        if self.worker.done or (self._max_steps is not None and self.worker.clock >= self._max_steps):
            trainer.should_stop = True

    def on_validation_start(self, trainer, _):
        if trainer.state.fn == "fit" and self.worker is not None and not self.worker.done:  # not before training, nor after it
            self._pause = self.worker.pause()
            self._pause.__enter__()

    def on_validation_end(self, *_):
        if self._pause is not None:
            pause, self._pause = self._pause, None
            pause.__exit__(None, None, None)

    def on_train_end(self, trainer, _):
        ended = self._max_steps is not None and self.worker.clock >= self._max_steps
        if trainer.should_stop and not ended and not self.worker.done:
            self.worker.stop("the trainer of one worker was stopped")
        self.worker.finish()

    def on_exception(self, trainer, _, exception):
        if self.worker is not None:
            self.worker.leave(f"{type(exception).__name__}: {exception}")

    def state_dict(self):
        worker = self.worker
        return {} if worker is None else {"trained": worker.trained, "job_trained": worker.job_trained, "clock": worker.clock}

    def load_state_dict(self, state):
        self._loaded = {name: counts if name == "clock" else tuple(counts) for name, counts in state.items()}
