"""Batches of a worker's share of the job's batch (prd.BatchShare), of a DataLoader's data."""
import collections
import itertools

import torch

from prd import errors
from prd.results import BatchShare

_OPTIONS = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator")


def like(loader, dataset=None, **options):
    """A DataLoader that differs from this one in these options alone."""
    for name in _OPTIONS:
        options.setdefault(name, getattr(loader, name))
    if options["num_workers"] > 0:
        options.setdefault("prefetch_factor", loader.prefetch_factor)
    options.setdefault("collate_fn", loader.collate_fn)
    return torch.utils.data.DataLoader(loader.dataset if dataset is None else dataset, **options)


class JobOrder:
    """One order of the data for all workers of a job: permutations without an end, each drawn by its number."""

    def __init__(self, size, start, seed, own):
        """own: an OwnOrder, for pieces of no batch of the job."""
        self._size, self._start, self._seed, self._own = size, start, seed, own
        self._drawn = {}  # the newest two permutations, by number

    def take(self, piece):
        """Which samples of the data these are."""
        if not piece.batch:
            return self._own.take(piece)
        first = self._start + (piece.step - 1) * piece.batch + piece.first
        return [self._at(at) for at in range(first, first + piece.samples)]

    def _at(self, position):
        number, at = divmod(position, self._size)
        if number not in self._drawn:
            generator = torch.Generator("cpu")
            generator.manual_seed((self._seed * 1_000_003 + number) % (1 << 63))
            self._drawn = {n: order for n, order in self._drawn.items() if n == number - 1}
            self._drawn[number] = torch.randperm(self._size, generator=generator, device="cpu").tolist()
        return self._drawn[number][at]


class OwnOrder:
    """What a sampler gives, again and again: as many as each piece has."""

    def __init__(self, sampler):
        self._indices = self._endless(sampler)

    @staticmethod
    def _endless(sampler):
        while True:
            empty = True
            for index in sampler:
                empty = False
                yield index
            if empty:
                raise errors.InvalidArgument(f"sampler: {type(sampler).__name__} gives no sample")

    def take(self, piece):
        """The next samples."""
        return list(itertools.islice(self._indices, piece.samples))


class _Draws:
    """The batch sampler of a loader. Loaders with processes of their own draw ahead of what is trained."""

    def __init__(self, worker, order, ahead):
        self._worker, self._order, self._ahead = worker, order, ahead
        self.drawn = collections.deque()  # pieces of batches that the loader has not given yet
        self._left = None  # of a share whose first pass is drawn: (step, first, samples)

    def __iter__(self):
        while True:
            piece = self._next()
            self.drawn.append(piece)
            yield self._order.take(piece)

    def _next(self):
        session = self._worker.session
        now = session.share()
        if not self._ahead or not now.batch:
            return now
        if not self.drawn:
            whole = session.share(1)  # as this one is, most likely; the rest of it is fetched apart if not
            cut = now.samples == session._max_share and whole.first == now.first
            return self._pass_of(now.step, now.first, max(whole.samples, now.samples) if cut else now.samples, now.batch)
        if self._left is not None:
            return self._pass_of(*self._left, now.batch)
        step = max(self.drawn[-1].step + 1, now.step + 1)
        share = session.share(step - now.step)
        return self._pass_of(share.step, share.first, share.samples, share.batch)

    def _pass_of(self, step, first, samples, batch):
        most = self._worker.session._max_share or samples
        self._left = (step, first + most, samples - most) if samples > most else None
        return BatchShare(step, first, min(most, samples), batch)


class Divided:
    """Batches of map-style data. `next` gives one, and how many samples it has."""

    def __init__(self, worker, loader, order):
        self._worker, self._order = worker, order
        self._draws = _Draws(worker, order, loader.num_workers > 0)
        self._loader = like(loader, batch_sampler=self._draws)
        self._stream = None

    def next(self, share):
        """The batch of this share."""
        drawn = self._draws.drawn
        if drawn and (bool(drawn[0].batch) != bool(share.batch) or drawn[-1].step < share.step):
            self._stream = None  # the replica is elsewhere
            drawn.clear()
        while drawn and share.batch and self._is_void(drawn[0], share):
            next(self._stream)  # and with it one more is drawn
            drawn.popleft()
        if drawn and share.batch and drawn[0].step > share.step:
            return self._fetch(share), share.samples
        if self._stream is None:
            self._stream = iter(self._loader)
        batch = next(self._stream)
        return batch, drawn.popleft().samples

    @staticmethod
    def _is_void(piece, share):
        """Whether a piece that was drawn is of no use: the job has gone on without it, or shares have changed at once."""
        return piece.step < share.step or (piece.step == share.step and (piece.first, piece.samples) != (share.first, share.samples))

    def _fetch(self, share):
        """In this process, since the loader's have drawn later ones: samples that others have lost, or that are wanted again."""
        data, indices = self._loader.dataset, self._order.take(share)
        many = getattr(data, "__getitems__", None)
        return self._loader.collate_fn(many(indices) if many is not None else [data[index] for index in indices])


class DividedStream:
    """Batches of data without a length, in one pass over it. All workers read the same; `own`: each reads data of its own."""

    def __init__(self, worker, loader, own):
        self._own, self._collate = own, loader.collate_fn
        lists = like(loader, batch_size=loader.batch_size, collate_fn=list)
        self._samples = itertools.chain.from_iterable(iter(lists))
        self._step = worker.share.step - 1  # whose batch was read: here, the one before the pass
        self._batch = []

    def next(self, share):
        """The batch of this share, and how many samples it has; None at the data's end."""
        if self._own or not share.batch:
            return self._gather(list(itertools.islice(self._samples, share.samples)))
        while self._step < share.step:
            self._batch = list(itertools.islice(self._samples, share.batch))
            self._step += 1
            if len(self._batch) < share.batch:  # all workers leave out the rest of it
                return None
        return self._gather(self._batch[share.first:share.first + share.samples])

    def _gather(self, samples):
        return (self._collate(samples), len(samples)) if samples else None
