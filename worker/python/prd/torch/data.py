"""Data loaders whose epochs are the job's."""
import math

import torch


class _Endless(torch.utils.data.Sampler):
    """Permutations of range(size), one after another: of all of it, or of this worker's part."""

    def __init__(self, size, seed, rank, part=None, parts=1):
        self._seed, self._rank = seed, rank
        self._first, self._size = (0, size) if part is None else (part * size // parts, (part + 1) * size // parts - part * size // parts)

    def __iter__(self):
        generator = torch.Generator()
        generator.manual_seed((self._seed * 1_000_003 + self._rank) % (1 << 63))
        while True:
            yield from (self._first + index for index in torch.randperm(self._size, generator=generator).tolist())


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

    The k-th pass of a worker ends with the k-th epoch of the job since the job's start, or since its checkpoint: a worker
    that joins later has empty passes first. What a pass does not take of the prefetched batches, the next one does.
    """

    def __init__(self, worker, loader, parts):
        self._worker, self._loader = worker, loader
        self.samples = None if isinstance(loader.dataset, torch.utils.data.IterableDataset) else len(loader.dataset)
        self._stream = None
        self._passes = worker._start[1] // self.samples if self.samples else 0
        plain = (torch.utils.data.RandomSampler, torch.utils.data.SequentialSampler)
        if self.samples and loader.batch_size is not None and type(loader.sampler) in plain:
            self._loader = self._own_order(loader, parts)

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
        """Batches of this worker in an epoch, if all workers were equally fast."""
        return max(1, math.ceil(self.samples / (self._loader.batch_size or 1) / max(self._worker.workers, 1)))

    def __iter__(self):
        self._passes += 1
        if not self.samples:
            return self._counted(iter(self._loader), None)
        return self._counted(self._endless(), self._passes * self.samples)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def _endless(self):
        while True:
            if self._stream is None:
                self._stream = iter(self._loader)
            batch = next(self._stream, None)
            if batch is None:
                self._stream = None
                continue
            yield batch

    def _counted(self, batches, end):
        worker = self._worker
        while end is None or worker.progress.samples + worker._pending < end:
            batch = next(batches, None) if not worker.progress.done else None
            if batch is None:
                return
            worker._pending += batch_samples(batch)
            yield batch
