"""The job's time in a script: loops and learning rate schedules that count as a job of equal workers would."""
import collections
import contextlib
import copyreg
import gc
import sys
import threading

import torch

from prd import errors

_SCHEDULERS = tuple({kind for kind in (getattr(torch.optim.lr_scheduler, name, None) for name in ("LRScheduler", "_LRScheduler")) if kind})
_WAIT_S = 2  # between two looks at what the others do while this worker waits in finish

# What all workers have of the lowest rank: where the job began (`clock` -1: not told), and the seed of its data's order. `parted`, 0 or 1:
# whether some step since had not its whole batch.
START = collections.namedtuple("START", "samples seed parted clock steps")


class JobClock:
    """(steps, samples) of the job: what this worker has been told, and its own since then. Never too much, and never falls."""

    def __init__(self, session):
        self._session = session
        self._told = self._own = self._most = (0, 0)

    def read(self):
        """(steps, samples), now."""
        progress = self._session.progress
        told, own = (progress.steps, progress.samples), (progress.own_steps, progress.own_samples)
        if told != self._told:
            self._told, self._own = told, own
        self._most = tuple(max(most, told + own - then) for most, told, own, then in zip(self._most, self._told, own, self._own))
        return self._most


def mark_stepped(optimizer):
    """Schedulers ask whether the optimizer's step has run, which is not so where another replica has replaced this one."""
    if getattr(optimizer, "_step_count", 1) < 1:
        optimizer._step_count = 1
    optimizer._opt_called = True  # PyTorch 2.4 and later


def _inner(scheduler):
    """(at which step it begins, scheduler) of those that it is made of."""
    found = getattr(scheduler, "_schedulers", ())
    return list(zip([0, *scheduler._milestones] if hasattr(scheduler, "_milestones") else [0] * len(found), found))


def _position(scheduler):
    """How many steps it has made; None: it does not say."""
    found = getattr(scheduler, "last_epoch", None)
    if found is None and _inner(scheduler):  # ChainedScheduler
        return _position(_inner(scheduler)[0][1])
    return found


def _last(scheduler):
    """The last position that it has; infinity if there is none."""
    return min([getattr(scheduler, "total_steps", float("inf")) - 1, *(begin + _last(one) for begin, one in _inner(scheduler))])


def _length(scheduler):
    """How many steps it was made for; 0: it does not say."""
    own = getattr(scheduler, "total_steps", 0) or getattr(scheduler, "T_max", 0)
    return own or max((begin + _length(one) for begin, one in _inner(scheduler) if _length(one)), default=0)


def _schedulers_of(optimizer):
    """All that there are, but those inside others."""
    # Not gc.get_objects: it would hold all tensors for a moment, and older PyTorch lets one go while the backward of another thread drops it.
    holders = gc.get_referrers(optimizer)
    holders += gc.get_referrers(*[one for one in holders if type(one) is dict])
    found = {id(one): one for one in holders if issubclass(type(one), _SCHEDULERS) and getattr(one, "optimizer", None) is optimizer}.values()
    inside = {id(inner) for one in found for _, inner in _inner(one)}
    return [one for one in found if id(one) not in inside]


def _steps_so(scheduler, step):
    """Gives it this method. As a class, since its __dict__ is what it saves; a copy, or a file, has the plain one."""
    kind = type(scheduler)

    def reduce(self, _):
        return copyreg._reconstructor, (kind, object, None), self.__dict__

    scheduler.__class__ = type(kind.__name__, (kind,), {"step": step, "__reduce_ex__": reduce, "__doc__": kind.__doc__})


class JobTime:
    """What a Worker has of the job's time. Its `_tick` is called after each step."""

    def _start_time(self):
        self._clock = JobClock(self.session)
        start = START(*self._order.tolist())
        self._began = int(start.steps), int(start.samples)  # what the job had trained when it began
        self._parted = self._said_parted = bool(start.parted)
        batch, workers = self.share.batch, max(self.workers, 1)
        self._base = round(start.clock * workers) if start.clock >= 0 else self._began[1] * workers // batch if batch else self._began[0]
        self._most = 0
        self._first, self._first_own = self._ticks(), self.session.progress.own_steps
        self._now, self._before = self._first, None  # ticks after this worker's newest step, and before it
        self._scheduled = []  # (scheduler, whether its length is no number of the clock's steps)
        self._shares = False  # a loop ends as the job does
        self._said, self._name = set(), f"rank {self.rank}"

    def _tick(self, partial=False):
        if partial:  # no step yet
            self._before = self._now
            return
        self._look_whether_parted(self.share)
        self._before, self._now = self._now, self._ticks()
        own, equal = self.session.progress.own_steps - self._first_own, (self._now - self._first) / max(self.workers, 1)
        if own >= 20 and equal >= 10 and not 0.75 < own / equal < 1.25:
            self._notice_unequal()

    # ---- what is known ----

    def _look_whether_parted(self, share):
        """After a step. While each step of the job has had its whole batch, all workers know the job's samples alike, by its steps.

        Else they are those that workers have told: an engine has dropped what came too late, or has divided no batch.
        """
        if self.session.last.adopted:  # others may be ahead
            self._said_parted = bool(START(*self._order.tolist()).parted)
            self._parted = self._parted or self._said_parted
        elif not share.batch or (self._clock.read()[1] - self._began[1]) // share.batch != share.step - 1:
            self._parted = True

    def _note_parted(self):
        """In `apply`, where what workers copy may change: who joins later is told by it."""
        if self._parted and not self._said_parted:
            self._said_parted = True
            self._order[START._fields.index("parted")] = 1

    def _ticks(self):
        """What the clock counts: as many for each step of a job of equal workers as the job started with. Never falls."""
        share, workers, (steps, samples) = self.share, max(self.workers, 1), self._clock.read()
        if not share.batch:
            made = steps - self._began[0]
        elif not self._parted:
            made = (share.step - 1) * workers
        else:
            made = (samples - self._began[1]) * workers // share.batch
        self._most = max(self._most, self._base + made)
        return self._most

    @property
    def clock(self):
        """How many steps a job of equal workers would have made: steps of all / workers that the job started with.

        In a job with a batch of its own these are whole steps, however many workers there are: samples of all / batch.
        """
        return self._ticks() / max(self.workers, 1)

    @property
    def epoch(self):
        """How often the job has trained the data of the newest loader."""
        if self._loader is None or not self._loader.samples:
            raise errors.FailedPrecondition("epoch: shard(loader) comes first, of data that has a length")
        return self._job_samples() // self._loader.samples

    def _job_samples(self):
        """Samples of the job so far; exact where its batch is divided."""
        exact = None if self._loader is None else self._loader.position()
        return self._clock.read()[1] if exact is None else exact

    @property
    def done(self):
        """Whether the job is done, because its goal is reached or a worker stopped it: `while not worker.done:`.

        Known before the first step, too.
        """
        return self.session.progress.done or self.session.last.done

    def every(self, n):
        """True once each time the job's clock passes a multiple of n, and at 0: to log, evaluate or save in the loop.

        The answer is of this worker's newest step, the same until its next one: ask in each iteration.
        """
        if n < 1:
            raise errors.InvalidArgument(f"n: found {n}, allowed is 1 or more")
        length = n * max(self.workers, 1)
        if self._before is None:
            return self._now % length < max(self.workers, 1)
        return self._now // length > self._before // length

    # ---- loops ----

    def steps(self, total):
        """for it in worker.steps(total): a loop of total steps per worker, which the workers share as their speeds are.

        Yields the job's clock, and ends when the job has made total * workers steps, or is done. A fast worker sees a number
        several times, a slow one skips some: see `every`. A step is one of the optimizer.
        """
        self._shares = True
        self._check_lengths(total)
        workers = max(self.workers, 1)
        self._now = self._ticks()
        if self._now >= total * workers and not self.done:
            self._say_once("nothing", f"no step is left: the job's clock is at {self.clock:g} of {total}, by attach(job_trained=..., clock=...)")
        while not self.done and self._ticks() < total * workers:
            yield self._now // workers

    def epochs(self, total):
        """for epoch in worker.epochs(total): the epochs of the job, from the one that it is in; inside, a pass over shard(loader).

        A worker that joins late, or is slower than an epoch, leaves out what is over. Ends when the job has trained the data
        of the newest loader `total` times, or is done.
        """
        epoch = self.epoch  # or says what is missing
        self._check_lengths(total * len(self._loader))
        while epoch < total and not self.done:
            self._loader.begin(epoch)
            yield epoch
            epoch = max(epoch + 1, self.epoch)

    # ---- schedules ----

    def scheduler(self, scheduler, *, plain=False, epochs=False):
        """A scheduler that the script steps after each optimizer.step() goes by the job's clock from now on; returns it.

        Its step() makes as many steps as the clock is ahead, so that all workers have the same learning rate, and none beyond
        total_steps. It is made for `epochs * len(loader)` steps, with the loader that shard returned, or for the total of
        `steps`. plain: it was made with the length of the plain loader, as for one process, which is `workers` times as many.
        epochs: the script steps it once an epoch; it goes by the job's epochs, of which `epochs` may leave out some. Of a
        ReduceLROnPlateau only what step(metrics) is given changes: to the workers' mean, as `mean` makes it.
        """
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            return self._plateau(scheduler)
        if _position(scheduler) is None:
            raise errors.InvalidArgument(f"scheduler: found {type(scheduler).__name__}, which has no last_epoch")
        worker, kind = self, type(scheduler)
        per = 1 if plain else max(self.workers, 1)

        def now():
            return worker.epoch if epochs else worker._now // per

        # One whose checkpoint was loaded, in a job that counts from 0.
        ahead = max(0, _position(scheduler) - now())

        def step(self, epoch=None):
            if epoch is not None:
                return kind.step(self, epoch)
            if worker._ended:
                return kind.step(self)
            due = min(now() + ahead, _last(self))
            while (before := _position(self)) < due:
                kind.step(self)
                if _position(self) <= before:
                    return None

        _steps_so(scheduler, step)
        self._scheduled.append((scheduler, plain or epochs))
        if self._now and self.optimizer is not None:
            mark_stepped(self.optimizer)
        scheduler.step()
        return scheduler

    def _plateau(self, scheduler):
        worker, kind = self, type(scheduler)

        def step(self, metrics, *args, **kwargs):
            return kind.step(self, float(metrics) if worker._ended else worker.mean(float(metrics)), *args, **kwargs)

        _steps_so(scheduler, step)
        self._scheduled.append((scheduler, True))
        return scheduler

    # ---- what workers tell each other ----

    def stop(self, reason=""):
        """The job is done, for all workers, as if its goal were reached: for early stopping. Loops end at their next step."""
        self.session.stop(reason)

    def mean(self, x):
        """The mean of x over the workers: a number, a list of at most 64 numbers, or a tensor of one dimension or none."""
        if torch.is_tensor(x):
            if x.dim() > 1:
                raise errors.InvalidArgument(f"x: found a tensor of {x.dim()} dimensions, allowed is one, or none")
            found = self.session.mean([float(value) for value in x.detach().reshape(-1).tolist()])
            return torch.tensor(found, device=x.device, dtype=x.dtype if x.is_floating_point() else torch.float32).view(x.shape)
        if isinstance(x, (list, tuple)):
            return self.session.mean([float(value) for value in x])
        return self.session.mean([float(x)])[0]

    # ---- what is noticed ----

    def _say_once(self, about, text):
        if about not in self._said:
            self._said.add(about)
            print(f"prd: {self._name}: {text}", file=sys.stderr)

    def _loose(self):
        """Schedulers of the optimizer that do not go by the job's clock."""
        if self.optimizer is None:
            return []
        ours = {id(one) for one, _ in self._scheduled}
        return [one for one in _schedulers_of(self.optimizer) if id(one) not in ours and _position(one) is not None]

    def _counts_steps(self, scheduler):
        """Whether the script steps it with the optimizer, it seems: by all steps of this worker, or those since attach."""
        own = self.session.progress.own_steps
        return min(abs(_position(scheduler) - count) for count in (own, own - self._first_own)) <= 2

    def _notice_unequal(self):
        if "unequal" in self._said or self.optimizer is None:
            return
        self._said.add("unequal")
        for one in self._loose():
            if self._counts_steps(one):
                self._say_once("scheduler", f"{type(one).__name__} counts this worker's steps, {_position(one)}, and the job's clock is at "
                               f"{self._now // self.workers}: workers are unequal, and so are their learning rates. "
                               "To go by the clock: scheduler = worker.scheduler(scheduler)")

    def _check_lengths(self, total):
        """That schedules of a known length end when the job does, `total` by its clock."""
        for one, plain in self._scheduled + [(one, None) for one in self._loose()]:
            length = _length(one) if self.workers > 1 and not plain else 0
            if length >= 1.5 * total and 0.8 < length / total / self.workers < 1.25:
                self._say_plain(one, f"is made for {length} steps, and the job ends when its clock is at {total}")

    def _check_ends(self):
        for one, plain in self._scheduled + [(one, None) for one in self._loose() if self._counts_steps(one)]:
            at, length = _position(one), _length(one) if self.workers > 1 and not plain else 0
            if at >= 20 and length >= 1.5 * at and 0.8 < length / at / self.workers < 1.25:
                self._say_plain(one, f"is made for {length} steps, and training ends at its step {at}")

    def _say_plain(self, scheduler, what):
        self._say_once("length", f"{type(scheduler).__name__} {what}. len(loader) is a worker's share of an epoch once shard has returned the "
                       "loader. To go on with the length from before: scheduler = worker.scheduler(scheduler, plain=True)")

    @contextlib.contextmanager
    def _finishing(self):
        """Says, once, if the others train on for long while this worker waits in finish."""
        self._check_ends()
        if self._shares or self.workers < 2:
            yield
            return
        ended = threading.Event()
        arguments = (ended, self.workers, self.session.progress.steps, self.session.progress.own_steps - self._first_own)
        thread = threading.Thread(target=self._watch, args=arguments, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _watch(self, ended, workers, steps, own):
        while not ended.wait(_WAIT_S):
            now = self.session.progress.steps
            if now - steps > workers:  # more than those that were in progress
                self._say_once("finish", f"waits in finish after {own} steps of its own, and the others train on ({now - steps} steps so far). To "
                               "share the steps of a loop as the workers' speeds are: for it in worker.steps(max_iters):")
                return
