"""prd under Hugging Face's Accelerate: a script's own loop, whose model and optimizer Accelerate has prepared.

    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    worker = prd.accelerate.attach(accelerator, model, optimizer, scheduler)
    loader = worker.shard(loader)                   # in place of accelerator.prepare(loader)
    ...                                             # the training loop as it was
    worker.finish()

prd.run starts the workers, so each process is one device to Accelerate, and is its main process: what one process alone is to
do, as saving, asks worker.rank == 0. Under torchrun, mpirun and `accelerate launch` Accelerate makes several processes one run of
its own, which is refused.
"""
import accelerate

import prd.torch
from prd import errors


class _Placed:
    """A loader's batches on a device."""

    def __init__(self, loader, device):
        self._loader, self._device = loader, device

    def __len__(self):
        return len(self._loader)

    def __iter__(self):
        return (accelerate.utils.send_to_device(batch, self._device) for batch in self._loader)


def take_scaler(optimizer):
    """After prd.torch.attach: an AcceleratedOptimizer with a scaler (fp16) calls the step that the optimizer had when it was prepared."""
    if getattr(optimizer, "scaler", None) is not None:
        optimizer._optimizer_original_step_method = optimizer.optimizer.step
        optimizer._optimizer_patched_step_method = accelerate.optimizer.patch_optimizer_step(optimizer, optimizer.optimizer.step)


def refuse_processes(name, found):
    """InvalidArgument, where Accelerate has found several processes."""
    if found > 1:
        raise errors.InvalidArgument(f"{name}: found {found} processes, allowed is one: torchrun, mpirun and `accelerate launch` make one run of Accelerate of "
                                     f"them, with its own synchronisation. Instead: python3 -m prd.run -n {found} script.py")


def _is_plain(scheduler, worker):
    """Whether Accelerate, with several processes, would make as many steps of it as there are processes."""
    if not isinstance(scheduler, accelerate.scheduler.AcceleratedScheduler) or not scheduler.step_with_optimizer:
        return False
    return not (scheduler.split_batches and worker.share.batch)  # the loader's batches are the job's


def attach(accelerator, model, optimizer, scheduler=None, **options):
    """prd.torch.attach of what accelerator.prepare returned. The scheduler goes by the job's clock; the loaders of the worker's
    shard bring batches to the accelerator's device. options: of prd.torch.attach.

    scheduler: what accelerator.prepare returned of one that was made with the length of the plain loader, as Accelerate wants it
    (in a job with a batch under split_batches=True: for as many steps as the job makes). One that was not prepared counts steps of
    the job's clock, as by worker.scheduler(scheduler).
    """
    if not isinstance(optimizer, accelerate.optimizer.AcceleratedOptimizer):
        raise errors.InvalidArgument(f"optimizer: found {type(optimizer).__name__}, needed is what accelerator.prepare(optimizer) returned: "
                                     "it replaces the optimizer's state, so attach comes after it")
    refuse_processes("accelerator", accelerator.num_processes)
    worker = prd.torch.attach(accelerator.unwrap_model(model), optimizer.optimizer, **options)
    take_scaler(optimizer)
    if scheduler is not None:
        worker.scheduler(getattr(scheduler, "scheduler", scheduler), plain=_is_plain(scheduler, worker))
    tick = worker._tick

    def first_tick(partial=False):
        worker._tick = tick
        tick(partial)
        if worker.rank == 0 and worker.workers > 1 and worker._loader is None and not worker._shares and accelerator._dataloaders:
            worker._say_once("whole", "trains without a loader of worker.shard: one that accelerator.prepare returned gives each worker all the data in an "
                             "epoch. loader = worker.shard(loader) in place of accelerator.prepare(loader)")

    worker._tick = first_tick
    shard = worker.shard
    worker.shard = lambda loader, **given: _Placed(shard(loader, **given), accelerator.device)
    return worker
