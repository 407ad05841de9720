"""Training without a daemon: a script with the lines of prd runs by itself, as one process always did."""
import contextlib
import errno
import math
import os
import socket
import sys
import time

import torch

from prd import errors
from prd.results import BatchShare, GroupTransports, MemoryHeld, Progress, StepResult
from prd.torch.data import batch_samples, drawn

# Any of these says that the process is meant to be a worker of a job.
_OF_A_JOB = ("PRD_CONTROLLER", "PRD_JOB", "PRD_RANK", "PRD_WORLD_SIZE", "PRD_LAUNCH", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "SLURM_PROCID",
             "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE")


def _default_sockets():
    """Where a daemon of this host listens, if its config names no other place: prd.toml, `listen`."""
    user = os.geteuid()
    folders = ["/run/prd", *(f"{folder}/prd" for folder in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{user}") if folder), f"/tmp/prd-{user}"]
    return [f"{folder}/workers" for folder in folders]


def _listens(path):
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED)  # else it may be there: the session finds out
        return True


def is_alone():
    """Whether nothing says of what job this process is, and no daemon listens where workers look by themselves."""
    return not any(os.environ.get(name) for name in _OF_A_JOB) and not any(map(_listens, _default_sockets()))


def _samples(name):
    """The number of samples in this variable of the environment; 0: none."""
    value = os.environ.get(name) or "0"
    if not value.isascii() or not value.isdigit():
        raise errors.InvalidArgument(f"{name}: found {value!r}, allowed is 0 (none) or more samples")
    return int(value)


class AloneSession:
    """What prd.Session does, for the only worker of no job: each step applies, and there is nobody to wait for."""

    rank, workers, engine, needs_gradients, interrupted, in_call = 0, 1, "alone", False, False, False
    group_transports = GroupTransports(0, 0, 0)
    memory = {"all": MemoryHeld(0, 0, 0, 0)}

    def __init__(self, batch=None, max_share=None):
        self._batch = _samples("PRD_BATCH") if batch is None else batch
        self._max_share = _samples("PRD_MAX_SHARE") if max_share is None else max_share
        self._made = 0  # samples of a step that is not whole
        self._apply = None
        self._tensors = []
        self._own, self._job = [0, 0], [0, 0]  # steps and samples; of the job: a checkpoint's, too
        self._done = self._ended = False
        self._last = StepResult(0, False, 0, 0, (), (), 0, False, False, 0, 0, 0, 0, 0.0, 0.0, 0.0, "")
        self._since = time.perf_counter()
        print("prd: trains alone, as neither PRD_CONTROLLER nor PRD_JOB is set and no daemon listens on this host "
              "(python3 -m prd.run --help: how to start workers)", file=sys.stderr)

    def attach(self, parameters, gradients=None, apply=None, *, averaged_state=(), trained=(0, 0), job_trained=(0, 0), **_):
        """Notes what is trained."""
        self._apply, self._tensors = apply, [*parameters, *averaged_state]
        self._own, self._job = list(trained), list(job_trained)

    def step(self, samples=0, *, discard=False, stream=None):
        """Applies. Returns a StepResult."""
        if self._apply is None or self._ended:
            raise errors.FailedPrecondition("the session has ended" if self._ended else "attach comes first")
        computed = time.perf_counter() - self._since
        self._made = 0 if discard else self._made + (samples or self.share().samples)
        partial = not discard and self._made < self._batch
        if not discard and not partial:
            self._apply()
            for trained in (self._own, self._job):
                trained[0] += 1
                trained[1] += self._made
            self._made = 0
        steps = self._own[0]
        self._last = StepResult(steps, self._done, steps, 0, (0,), (1.0,), 1, False, not discard and not partial, 0, 1, 0, 0, computed, 0.0, 0.0,
                                "trains alone", partial)
        self._since = time.perf_counter()
        return self._last

    def set_gradients(self, gradients):
        """Nobody else has any."""

    @contextlib.contextmanager
    def pause(self):
        """Nobody waits."""
        yield self
        self._since = time.perf_counter()

    def average(self, into):
        """This worker's own parameters are the average."""
        for to, tensor in zip(into, self._tensors):
            to.owner.copy_(tensor.owner)

    def mean(self, values):
        """These are the mean."""
        return [float(value) for value in values]

    def stop(self, reason=""):
        """Ends the job: `done` is true from here on."""
        self._done = True

    def finish(self, wait=True):
        """Ends training."""
        self._ended = True

    def leave(self, reason):
        """Ends training."""
        self._ended = True

    def leave_soon(self, reason, grace=0):
        """There is no job to leave."""

    def tell_loss(self, loss):
        """Nobody watches."""

    def proceed(self):
        """No call is ever left in progress."""

    cancel = proceed

    def close(self):
        """Ends training."""
        self._ended = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def last(self):
        """What the newest step did."""
        return self._last

    @property
    def progress(self):
        """How far training is."""
        return Progress(*self._job, 1, 0, 0, self._done, *self._own)

    @property
    def iteration(self):
        """The steps so far."""
        return self._own[0]

    def share(self, ahead=0):
        """All of the batch is this worker's."""
        first = 0 if ahead else self._made
        samples = max(0, self._batch - first)
        return BatchShare(self._own[0] + 1 + ahead, first, min(samples, self._max_share or samples), self._batch)

    @property
    def clock(self):
        """How many steps the job has made."""
        return float(self._job[0])


class PlainLoader:
    """A DataLoader of a worker that trains alone: its batches, order and epochs are the loader's own."""

    def __init__(self, worker, loader, parts=False, samples=None, divided=True):
        self._worker, self._loader, self._samples_of = worker, loader, samples
        self._of_pass = None  # the steps when the newest pass began
        self.samples = None if isinstance(loader.dataset, torch.utils.data.IterableDataset) else drawn(loader, samples)
        if self.samples and loader.batch_size is not None:
            self.samples = min(len(loader.sampler), len(loader) * loader.batch_size)  # a sampler or drop_last may leave some out

    def __len__(self):
        """Steps in an epoch: its batches, if no batch of the job was given."""
        batch = self._worker.session.share().batch
        return max(1, math.ceil(self.samples / batch)) if batch and self.samples else len(self._loader)

    def position(self):
        """The progress says it."""
        return None

    def begin(self, epoch):
        """The next pass is of this epoch: as any other."""

    def is_new(self):
        """Whether no pass has begun."""
        return self._of_pass is None

    def __iter__(self):
        worker, own = self._worker, self._worker.progress.own_steps
        if self._of_pass == own or worker._counts is not self:
            worker._forget_drawn()
        self._of_pass = own
        for batch in self._loader:
            if worker.progress.done:
                return
            of = self._samples_of
            if worker._counts_batches_of(self):
                worker._drawn.add(batch_samples(batch) if of is None else of(batch) if callable(of) else of)
            yield batch
        worker._drawn.end()

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)
