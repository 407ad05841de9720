"""Data loaders whose epochs are the job's."""
import itertools
import math
import sys

import torch

from prd import errors


class _Endless(torch.utils.data.Sampler):
    """Permutations of range(size), one after another: of all of it, or of this worker's part."""

    def __init__(self, size, seed, rank, part=None, parts=1):
        self._seed, self._rank = seed, rank
        self._first, self._size = (0, size) if part is None else (part * size // parts, (part + 1) * size // parts - part * size // parts)

    def __iter__(self):
        generator = torch.Generator("cpu")
        generator.manual_seed((self._seed * 1_000_003 + self._rank) % (1 << 63))
        while True:
            yield from (self._first + index for index in torch.randperm(self._size, generator=generator, device="cpu").tolist())


def batch_samples(batch):
    """The first dimension of the first tensor in there; 0 if there is none."""
    if torch.is_tensor(batch):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for part in batch:
            found = batch_samples(part)
            if found:
                return found
    return 0


class ShardedLoader:
    """A DataLoader's batches without an end; each pass over this ends when the job has trained the data once more.

    The k-th pass of a worker ends with the k-th epoch of the job since the job's start, or since its checkpoint, and has one
    batch at least: that is all of a pass whose epoch is over before. What a pass does not take of the prefetched batches,
    the next one does.
    """

    def __init__(self, worker, loader, parts, samples):
        if not (samples is None or callable(samples) or (isinstance(samples, int) and samples > 0)):
            raise errors.InvalidArgument(f"samples: found {samples!r}, allowed is a number of 1 or more, or a function of the batch")
        self._worker, self._loader, self._parts = worker, loader, parts
        self._samples_of, self._size = samples, 0  # of every batch, where that is known
        self.samples = None if isinstance(loader.dataset, torch.utils.data.IterableDataset) else len(loader.dataset)
        self._stream = None
        self._passes = worker._start[1] // self.samples if self.samples else 0
        plain = (torch.utils.data.RandomSampler, torch.utils.data.SequentialSampler)
        if self.samples and loader.batch_size is not None and type(loader.sampler) in plain:
            self._loader = self._own_order(loader, parts)
            self._size = loader.batch_size

    def _own_order(self, loader, parts):
        worker = self._worker
        part = worker.rank % worker.workers if parts else None
        sampler = _Endless(self.samples, worker.seed, worker.rank, part, worker.workers)
        options = {name: getattr(loader, name) for name in ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn",
                                                            "multiprocessing_context", "generator")}
        if loader.num_workers > 0:
            options["prefetch_factor"] = loader.prefetch_factor
        return torch.utils.data.DataLoader(loader.dataset, batch_size=loader.batch_size, sampler=sampler, **options)

    def __len__(self):
        """Batches of this worker in an epoch, if all workers were equally fast: steps of the job's clock."""
        batches = self.samples / self._loader.batch_size if self._loader.batch_size else len(self._loader)
        return max(1, math.ceil(batches / max(self._worker.workers, 1)))

    def begin(self, epoch):
        """The next pass is of this epoch of the job, counted from 0."""
        self._passes = epoch

    def __iter__(self):
        self._worker._shares = True
        if not self.samples:
            return self._counted(self._of_stream(), None)
        self._passes += 1
        return self._counted(self._endless(), self._passes * self.samples)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def _of_stream(self):
        """This worker's batches of data without a length: all workers read the same stream, unless `parts` is False."""
        worker = self._worker
        if self._parts is False or worker.workers < 2:
            return iter(self._loader)
        if self._parts is None and worker.rank == 0:
            self._parts = True
            print(f"prd: the data has no length: each of {worker.workers} workers trains one batch in {worker.workers} of it. Where the data set "
                  "gives each worker data of its own already: shard(loader, parts=False)", file=sys.stderr)
        return itertools.islice(iter(self._loader), worker.rank % worker.workers, None, worker.workers)

    def _endless(self):
        while True:
            if self._stream is None:
                self._stream = iter(self._loader)
            batch = next(self._stream, None)
            if batch is None:
                self._stream = None
                continue
            yield batch

    def _in_batch(self, batch):
        """How many samples the batch has."""
        if self._samples_of is not None:
            return self._samples_of(batch) if callable(self._samples_of) else self._samples_of
        if self._size:
            return self._size
        size, most = batch_samples(batch), self._loader.batch_size  # the last batch may have fewer
        return most if most and not 0 < size <= most else size

    def _counted(self, batches, end):
        worker = self._worker
        made = 0
        while made == 0 or (not worker.done and (end is None or worker._clock.read()[1] + worker._pending < end)):
            if made == 0 and end is not None and (worker.done or worker._clock.read()[1] >= end):
                worker._say_once("over", f"an epoch was over before this worker's pass began, which has one batch for it: {self._why()}. "
                                 "To leave such epochs out: for epoch in worker.epochs(...):")
            batch = next(batches, None)
            if batch is None:
                return
            made += 1
            worker._pending += self._in_batch(batch)
            yield batch

    def _why(self):
        return "the job is done" if self._worker.done else "it is slow, or has joined late"
