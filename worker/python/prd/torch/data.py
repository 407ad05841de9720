"""Data loaders whose epochs are the job's."""
import collections
import itertools
import math
import sys

import torch

from prd import errors
from prd.torch.divided import Divided, DividedStream, JobOrder, OwnOrder, like


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


class Drawn:
    """Sizes of the batches that a loader has given, and no step has had yet.

    The next step has all of them, as where a script accumulates. But where a step of a pass comes after the last batch has had its
    own, the script draws one ahead: from then on the newest batch is of the step after the next.
    """

    def __init__(self):
        self.by_turns = False  # who trains says by `take` whose turn it is
        self._sizes, self._newest = collections.deque(), 0
        self._given = self._steps = 0  # of this pass
        self._keeps = self._ended = False

    samples = property(lambda self: sum(self._sizes), doc="Of all these batches")

    def add(self, samples):
        """A batch was given."""
        if self._ended:
            self._given = self._steps = 0
        self._sizes.append(samples)
        self._newest, self._ended = samples, False
        self._given += 1

    def end(self):
        """The pass has ended."""
        self._ended = True

    def take(self):
        """The oldest batch is the next step's."""
        return self._sizes.popleft() if self._sizes else 0

    def of_step(self, taken):
        """Samples of a step, of which so many are taken already."""
        self._steps += 1
        if self.by_turns or taken:
            return taken
        if not self._sizes and self._ended and self._steps <= self._given:
            self._keeps = True
            return self._newest
        keep = 1 if self._keeps and not self._ended and len(self._sizes) > 1 else 0
        return sum(self.take() for _ in range(len(self._sizes) - keep))

    def clear(self):
        """They were for something else than a step."""
        self._sizes.clear()
        self._given = self._steps = 0


def _sampler_of(loader):
    """What draws the items of the data set, for its batch sampler if it has one."""
    return loader.sampler if loader.batch_size is not None else getattr(loader.batch_sampler, "sampler", loader.sampler)


def _items(loader):
    """How many items of the data set a pass of the loader draws; of a part of a DistributedSampler, all parts."""
    sampler = _sampler_of(loader)
    if not hasattr(sampler, "__len__"):
        return len(loader.dataset)
    return len(sampler) * getattr(sampler, "num_replicas", 1) or len(loader.dataset)


def drawn(loader, samples=None):
    """How many samples a pass of the loader draws. Where the data set makes the batches, its first one tells how many each has.

    `samples`: of a batch, as of shard.
    """
    if loader.batch_size is not None or loader.batch_sampler is not None:
        return _items(loader)
    if samples is None or callable(samples):
        try:
            with torch.random.fork_rng(devices=[]):
                batch = loader.collate_fn(loader.dataset[0])
        except Exception as error:
            raise errors.InvalidArgument(f"loader: the data set makes the batches, and its first one, dataset[0], which tells how many samples each has, "
                                         f"ends with {type(error).__name__}: {error}; or say it: shard(loader, samples=...)") from error
        samples = samples(batch) if samples else batch_samples(batch)
    return _items(loader) * max(1, samples)


def _is_whole(loader):
    """Whether a pass draws each sample once, and does nothing else with it."""
    sampler, kind = loader.sampler, type(loader)
    return (type(sampler) in (torch.utils.data.RandomSampler, torch.utils.data.SequentialSampler) and not getattr(sampler, "replacement", False)
            and _items(loader) == len(loader.dataset) and kind.__iter__ is torch.utils.data.DataLoader.__iter__)


def _part(loader, rank):
    """Workers whose sampler has a generator of its own, seeded alike, do not draw the same."""
    sampler = _sampler_of(loader)
    generator = getattr(sampler, "generator", None)
    if rank > 0 and isinstance(generator, torch.Generator):
        sampler.generator = torch.Generator(generator.device)
        sampler.generator.manual_seed((generator.initial_seed() * 1_000_003 + rank) % (1 << 63))


class ShardedLoader:
    """A DataLoader's batches without an end; each pass over this ends when the job has trained the data once more.

    The k-th pass of a worker ends with the k-th epoch of the job since the job's start, or since its checkpoint, and has one
    batch at least: that is all of a pass whose epoch is over before. What a pass does not take of the prefetched batches,
    the next one does. A pass in which this worker made no step, and whose epoch is not over, was for something else than
    training: it does not count, nor does what it drew. The passes of another loader begin where those of the one before it have ended.
    """

    def __init__(self, worker, loader, parts, samples, divided):
        if not (samples is None or callable(samples) or (isinstance(samples, int) and samples > 0)):
            raise errors.InvalidArgument(f"samples: found {samples!r}, allowed is a number of 1 or more, or a function of the batch")
        self._worker, self._loader, self._parts = worker, loader, parts
        self._samples_of, self._size = samples, 0  # of every batch, where that is known
        self.samples = None if isinstance(loader.dataset, torch.utils.data.IterableDataset) else drawn(loader, samples)
        self._batches_of = loader  # whose length is that of a pass
        self._stream = None
        self._of_pass = None  # this worker's steps when the newest pass began
        self._divided, self._own_batches = None, not divided or loader.batch_size is None  # in a job with a batch
        self._start, seed = (int(x) for x in worker._order.tolist()[:2])
        self._passes, self._base = worker._start[1] // self.samples if self.samples else 0, 0
        if worker._loader is not None and self.samples:
            self._passes, self._base = 0, worker._loader.end()
        order = None
        if self.samples and (loader.batch_size is not None or loader.batch_sampler is None) and _is_whole(loader):
            part = worker.rank % worker.workers if parts else None
            sampler = _Endless(_items(loader), worker.seed, worker.rank, part, worker.workers)
            self._loader = like(loader, batch_size=loader.batch_size, sampler=sampler)
            self._size = loader.batch_size or 0
            order = OwnOrder(sampler) if parts else JobOrder(self.samples, self._start, seed, OwnOrder(sampler))
        elif self.samples:
            if worker._seeds:
                _part(loader, worker.rank)
            order = OwnOrder(loader.sampler)
        if self.samples and loader.batch_size is not None:
            self._divided = Divided(worker, loader, order)
        self._say_of_order(loader)
        self._say_of_batch(loader)

    def _say_of_order(self, loader):
        worker, sampler = self._worker, _sampler_of(loader)
        own = self.samples and loader.batch_size is None and loader.batch_sampler is not None
        if own and type(sampler) is torch.utils.data.SequentialSampler and hasattr(loader.batch_sampler, "sampler") and worker.rank == 0 and worker.workers > 1:
            print(f"prd: the loader's batch sampler gives each of {worker.workers} workers the same batches in one order; with a RandomSampler in it, "
                  "each has an order of its own", file=sys.stderr)

    def _say_of_batch(self, loader):
        worker, share = self._worker, self._worker.share
        if not share.samples or worker.rank > 0:
            return
        job = f"the job's batch of {share.batch} samples"
        if not share.batch:
            print(f"prd: engine {worker.engine} divides no batch: each worker has {share.samples} samples in a step of its own", file=sys.stderr)
        elif self._own_batches:
            print(f"prd: the loader's batches stay as they are: of {job}, a worker computes its share in as many as that needs", file=sys.stderr)
        elif loader.batch_size * worker.workers != share.batch:
            print(f"prd: {job} is divided as the workers' speeds are: batch_size={loader.batch_size} of the loader is not used", file=sys.stderr)

    def __len__(self):
        """Batches of this worker in an epoch, if all workers were equally fast: steps of the job's clock."""
        share, samples = self._worker.share, self.samples or len(self._loader.dataset)
        if share.samples and not self._own_batches:
            return max(1, math.ceil(samples / (share.batch or share.samples * max(self._worker.workers, 1))))
        batches = samples / self._loader.batch_size if self._loader.batch_size else len(self._batches_of)
        return max(1, math.ceil(batches / max(self._worker.workers, 1)))

    def begin(self, epoch):
        """The next pass is of this epoch of the job, counted from 0."""
        self._passes, self._base, self._of_pass = epoch, 0, None

    def is_new(self):
        """Whether no pass has begun."""
        return self._of_pass is None

    def end(self):
        """Samples of the job when the newest pass has ended, or now if it was broken off."""
        now = self._worker._job_samples()
        return min(self._base + self._passes * self.samples, now) if self.samples else now

    def __iter__(self):
        self._worker._shares = True
        if not self.samples:
            return self._counted(self._of_stream(), None)
        worker, own = self._worker, self._worker.session.progress.own_steps
        again = self._of_pass == own and worker._job_samples() < self._base + self._passes * self.samples
        if again or worker._counts is not self:
            worker._forget_drawn()
        self._passes += not again
        self._of_pass = own
        return self._counted(self._endless(), self._base + self._passes * self.samples)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def _of_stream(self):
        """This worker's batches of data without a length: all workers read the same stream, unless `parts` is False."""
        worker = self._worker
        if worker.share.samples and not self._own_batches:
            return self._of_divided_stream()
        batches = ((batch, None) for batch in self._loader)
        if self._parts is False or worker.workers < 2:
            return batches
        if self._parts is None and worker.rank == 0:
            self._parts = True
            print(f"prd: the data has no length: each of {worker.workers} workers trains one batch in {worker.workers} of it. Where the data set "
                  "gives each worker data of its own already: shard(loader, parts=False)", file=sys.stderr)
        return itertools.islice(batches, worker.rank % worker.workers, None, worker.workers)

    def _of_divided_stream(self):
        """Of the stream that all workers read, the samples of this worker's shares."""
        stream = DividedStream(self._worker, self._loader, self._parts is False)
        while (found := stream.next(self._worker.share)) is not None:
            yield found

    def position(self):
        """Samples of the job before the next step, which all workers know alike where each step's batch is divided; else None."""
        share = self._worker.share
        divides = share.batch and self._divided is not None and not self._own_batches and not self._worker._parted
        return self._start + (share.step - 1) * share.batch if divides else None

    def _trained(self):
        """Samples of the job and of this worker's step at hand."""
        exact = self.position()
        return self._worker._clock.read()[1] + self._worker._pending + self._worker._drawn.samples if exact is None else exact

    def _endless(self):
        """(batch, its samples if they are known)."""
        empty = False
        while True:
            share = self._worker.share
            if share.samples and self._divided is not None and not self._own_batches:
                yield self._divided.next(share)
                continue
            if self._stream is None:
                self._stream = iter(self._loader)
            batch = next(self._stream, None)
            if batch is None and empty:
                raise errors.InvalidArgument("loader: a pass has no batch (has its sampler fewer samples than a batch, and drop_last=True?)")
            empty = batch is None
            if empty:
                self._stream = None
            else:
                yield batch, None

    def _in_batch(self, batch, known):
        """How many samples the batch has."""
        if known is not None:
            return self._samples_of(batch) if callable(self._samples_of) else known
        if self._samples_of is not None:
            return self._samples_of(batch) if callable(self._samples_of) else self._samples_of
        if self._size:
            return self._size
        size, most = batch_samples(batch), self._loader.batch_size  # the last batch may have fewer
        if self.samples and not size and not most:
            raise errors.InvalidArgument(f"loader: a batch is a {type(batch).__name__}, which does not say how many samples it has, and epochs are "
                                         "counted in samples: shard(loader, samples=...), a number or a function of the batch")
        return most if most and not 0 < size <= most else size

    def _counted(self, batches, end):
        worker = self._worker
        made, again, own = 0, 0, None  # again: batches without a step in between
        while made == 0 or (not worker.done and (end is None or self._trained() < end)):
            if made == 0 and end is not None and (worker.done or worker._job_samples() >= end):
                worker._say_once("over", f"an epoch was over before this worker's pass began, which has one batch for it: {self._why()}. "
                                 "To leave such epochs out: for epoch in worker.epochs(...):")
            share = worker.share
            batch, known = next(batches, (None, None))
            if batch is None:
                break
            made += 1
            if known is None:
                if worker._counts_batches_of(self):
                    worker._drawn.add(self._in_batch(batch, None))
            else:
                if worker._pending:
                    now = worker.session.progress.own_steps
                    again, own = again + 1 if own == now else 1, now
                    if end is not None and again >= len(self):
                        return  # an epoch's batches: the pass is for something else
                    worker._say_once("again", "a batch was taken, and no step made: the next one has the same samples, which the job's step "
                                     "needs still. Where the script accumulates, or draws ahead: shard(loader, divided=False)")
                worker._pending = self._in_batch(batch, known)
                worker._of_step = share.step
            yield batch
        worker._drawn.end()

    def _why(self):
        if self._worker.done:
            return "the job is done"
        step = self._worker.share.batch or (self._loader.batch_size or 0) * self._worker.workers
        if step > self.samples:
            return f"a step of all workers has {step} samples, and the data {self.samples}"
        return "it is slow, or has joined late"
