"""prd for PyTorch: the user's own model and optimizer go on, and optimizer.step() synchronises.

    worker = prd.torch.attach(model, optimizer)
    train_loader = worker.shard(train_loader)
    ...                                             # the training loop as it was
    worker.finish()
"""
import contextlib
import functools
import inspect
import random
import re
import sys
import types
import zlib

import torch

from prd import arrays, errors
from prd.session import Session, given_up_on_error
from prd.torch.alone import AloneSession, PlainLoader, is_alone
from prd.torch.averaged import Averaged
from prd.torch.clock import START, JobTime, mark_stepped
from prd.torch.data import Drawn, ShardedLoader
from prd.torch.memory import zeros
from prd.torch.parameters import Frozen, Parameters
from prd.torch.passes import Passes
from prd.torch.state import OptimizerState, random_numbers

_DTYPES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}


def attach(model, optimizer=None, *, session=None, samples=0, buffers=True, before_apply=None, seed=True, trained=(0, 0),
           job_trained=(0, 0), clock=None, averaged=(), frozen=None, batch=None, max_share=None):
    """Joins the job with this model; the parameters, the buffers and the optimizer's state are then the job's.

    From then on optimizer.step() is a step of the job. Without an optimizer, Worker.step is; and so it is of a list of
    optimizers, all of which it steps. Where nothing names a job (PRD_JOB, PRD_CONTROLLER, a launcher's variables) and no
    daemon listens on this host, the process trains alone, and says so.

    session: a prd.Session that is not attached; else one is made, by the environment. samples: of each step; 0: as
    the loader of Worker.shard says. buffers: whether floating-point buffers (running statistics) are averaged with the
    parameters. before_apply: called before the optimizer's own step, on the gradients of all where the engine reduces
    these: to clip them as one process would. seed: whether workers draw different random numbers from here on.
    trained, job_trained, clock: of a checkpoint, as those of the Worker were; without `clock` a job of another number of workers
    has another one than the checkpoint had, unless it has a batch. averaged: further modules, tensors or dicts of tensors that
    are averaged with the parameters: a moving average of the model. frozen: whether frozen parameters of the optimizer are
    averaged, so that the script may unfreeze them; as long as they are few unless given.
    batch: samples of one step of all workers together, which are divided as the workers' speeds are; else the job's config, or
    PRD_BATCH, may say one. max_share: the most samples that this worker computes at once; a step may take several passes then.
    """
    if session is not None and (batch is not None or max_share is not None):
        raise errors.InvalidArgument("batch, max_share: a session that is given has its own: prd.Session(batch=..., max_share=..., accumulates=True)")

    def make():
        return AloneSession(batch, max_share) if is_alone() else Session(batch=batch, max_share=max_share, accumulates=True)

    if clock is not None and not 0 <= clock < float("inf"):
        raise errors.InvalidArgument(f"clock: found {clock}, allowed is 0 or more")
    with given_up_on_error(session, make) as joins:
        worker = Worker(model, optimizer, joins, samples, buffers, before_apply, seed, trained, job_trained, averaged, frozen, clock)
    share = worker.share
    has = share.batch or share.samples * worker.workers  # not to the sample where the engine divides none
    if batch and has and abs(has - batch) >= (1 if share.batch else worker.workers):
        worker._say_once("batch", f"batch={batch} of attach is not used: the job has a batch of {has} samples")
    return worker


def _taken(tensor, name):
    """The prd.Tensor of a torch.Tensor. ValueError says by name why there is none."""
    if tensor.is_meta:
        raise errors.InvalidArgument(f"{name}: is on the meta device, where tensors have no memory; attach comes after model.to_empty(device=...) and "
                                     "the model's own initialisation")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise errors.InvalidArgument(f"{name}: is not an ordinary dense tensor ({tensor.layout})")
    if tensor.numel() and not tensor.data_ptr():
        raise errors.InvalidArgument(f"{name}: is a {type(tensor).__name__}, which has no memory of its own in this process; a replica is one "
                                     "process, so parameters that FSDP or tensor parallelism has divided cannot be averaged yet")
    if tensor.dtype not in _DTYPES:
        raise errors.InvalidArgument(f"{name}: is {tensor.dtype}, allowed are float32, float64, float16 and bfloat16")
    size = tensor.element_size()
    order = arrays.order_of(tuple(tensor.shape), tuple(step * size for step in tensor.stride()), size)
    if order is None:
        raise errors.InvalidArgument(f"{name}: its elements lie apart or on each other (strides {tuple(tensor.stride())})")
    return arrays.Tensor(tensor.data_ptr(), tensor.numel(), _DTYPES[tensor.dtype], tensor.is_cuda, order, tensor)


def _digest(tensor, name):
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()
        parts = (tensor.indices(), tensor.values())
    elif tensor.layout == torch.sparse_csr:
        parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout == torch.strided:
        parts = (tensor,)
    else:
        raise errors.InvalidArgument(f"{name}: is a tensor of layout {tensor.layout}, which cannot be compared between workers; attach(buffers=False) leaves buffers out")
    found = 0
    for part in parts:
        if part.numel():
            part = part.detach().resolve_conj().contiguous().cpu()
            found = zlib.crc32(part.view(-1).view(torch.uint8).numpy().tobytes(), found)
    return found


def _runs_its_closure(optimizer):
    """Whether its step computes the gradients itself, as L-BFGS does, for it cannot be without the closure."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return isinstance(optimizer, torch.optim.LBFGS) or (closure is not None and closure.default is closure.empty)


class Worker(JobTime):
    """One worker of a job, with its model. As a context manager it finishes, or leaves with the exception that comes out."""

    def __init__(self, model, optimizer, session, samples, buffers, before_apply, seed, trained, job_trained, averaged=(),
                 frozen=None, clock=None):
        self.model, self.optimizer, self.session = model, optimizer, session
        self._before_apply = before_apply
        self._samples, self._pending, self._drawn = samples, 0, Drawn()  # samples of the step at hand, and of batches for it, or for later ones
        self._ended = False
        self._loader = self._counts = None  # sharded last, and of which `_pending` is
        self._start = job_trained
        self._passes = Passes()
        self._unseen = False  # a step of the session whose result nobody has looked at
        self._of_step = 0  # of which the batch is that the loader has given; 0: of any
        self._void = None  # what stands for the newest step's result
        self._flat, self._views = [], []
        self._written = None  # how often PyTorch had written the gradients' buffers when the newest step ended
        self._changed = 0  # and the parameters
        self._graph_zeroes = False  # whether a CUDA graph zeroes them
        optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [] if optimizer is None else [optimizer]
        self._optimizers = optimizers
        self._of = Parameters(model, optimizers, frozen, _DTYPES)
        self._parameters, self._names = self._of.tensors, self._of.names
        self._inner = [one.step for one in optimizers]
        self._apply_once, self._arguments = None, ((), {})  # of the optimizer's own step
        self._ran_closure, self._returned = False, None
        self._in_step = False  # and so all .grad are views
        taken = [_taken(p.detach(), name) for name, p in zip(self._names, self._parameters)]
        devices = {p.device for p in self._parameters}
        if len(devices) != 1 or next(iter(devices)).type not in ("cpu", "cuda"):
            raise errors.InvalidArgument(f"the model is on {', '.join(sorted(map(str, devices)))}: needed is the CPU, or one GPU")
        self._device = devices.pop()
        names = {id(p): name for name, p in zip(self._names, self._parameters)}
        alone = isinstance(session, AloneSession)  # nobody copies the replica, and the state stays what the optimizer makes
        self._states = [] if alone else [OptimizerState(one, names, self._device, _DTYPES) for one in optimizers]
        self._averaged = Averaged(model, buffers, averaged, self._parameters, self._device, _DTYPES)
        fixed = [f"{name}={_digest(p, name)}" for name, p in [*self._of.fixed, *self._averaged.fixed]]
        tag = ";".join(f"{name}{tuple(p.shape)}" for name, p in zip(self._names, self._parameters)) + "|" + ";".join(fixed)
        self._order = self._where_it_begins(job_trained, clock)
        kept = [*(of for one in self._states for of in one.tensors()), ("the order of the data", self._order)]
        self._state_names = [name for name, _ in [*kept, *self._averaged.tensors()]]
        tag += "".join("|" + one.tag() for one in self._states)
        with self._in_words():
            session.attach(
                taken, None, self._apply, state=[_taken(t, name) for name, t in kept],
                averaged_state=[_taken(t, name) for name, t in self._averaged.tensors()],
                device="" if self._device.type == "cpu" else f"cuda:{self._device.index or 0}", stream=self._stream(),
                trained=trained, job_trained=job_trained, model_tag=tag, gradients_later=True, state_in_apply=True,
            )
        self._watched = [(name, t, t.data_ptr()) for name, t in [*zip(self._names, self._parameters), *self._averaged.tensors()]]
        if session.needs_gradients:
            self._give_gradients()
        self._start_time()
        self._may_be_another = False
        self._look(True)
        self._changed = self._changes()
        self._say_own()
        if self._of.said and session.rank == 0:
            print(f"prd: {self._of.said}", file=sys.stderr)
        self._seeds = seed  # whether it draws other random numbers than the others
        if seed and session.rank > 0:
            own = (self.seed + session.rank * 0x9E3779B97F4A7C15) % (1 << 63)
            with random_numbers:
                torch.manual_seed(own)
            random.seed(own)
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed(own % (1 << 32))
            print(f"prd: rank {session.rank} draws random numbers of its own from here on (attach(seed=False) keeps the script's)",
                  file=sys.stderr)
        for one, inner in zip(optimizers, self._inner):
            self._take_over(one, inner)

    # ---- training ----

    def step(self, apply=None, *, closure=None, samples=None):
        """A step of the job, of a program without an optimizer: `apply()` updates the parameters by their gradients."""
        return self._make_step(apply, ((closure,) if closure is not None else (), {}), samples)

    def _make_step(self, apply, arguments, samples=None, ran_closure=False):
        if self._ended:
            raise errors.FailedPrecondition("the worker has finished, or left the job")
        if self._is_capturing():
            raise errors.FailedPrecondition("a step of the job was called while a CUDA graph is captured: a graph cannot hold what it exchanges with "
                                            "other workers. Capture the forward and the backward pass, and call optimizer.step() after each replay")
        self._proceed()
        self._void = None
        if self._of_step and self.session.share().step != self._of_step:
            return self._leave_out()
        self._look(self._may_be_another)
        self._check()
        self._averaged.keep()
        if self._views:
            self._bring_gradients()
        self._apply_once, self._arguments, self._ran_closure, self._returned = apply, arguments, ran_closure, None
        drawn = self._drawn.of_step(self._pending)
        if samples is None:
            samples = self._samples or drawn
        self._pending = self._of_step = 0
        self._may_be_another = True  # an interrupt leaves it so
        self._in_step = True
        try:
            with self._in_words():
                result = self._step(samples)
        except errors.Error:
            self._unseen = False  # it was no step
            raise
        finally:
            self._in_step = False
        self._may_be_another = self._unseen = False
        self._passes.end(result.partial)
        self._look(result.adopted)
        self._written = [flat._version for flat in self._flat]
        self._changed = self._changes()
        self._tick(result.partial)
        for optimizer in self._optimizers:
            mark_stepped(optimizer)
        return result

    def _step(self, samples):
        self._bring_passes(samples)
        try:
            return self.session.step(samples, stream=self._stream())
        except errors.FailedPrecondition:
            if self._views or not self.session.needs_gradients:
                raise
        self._give_gradients()  # the job began anew, with another engine
        self._bring_gradients()
        self._bring_passes(samples)
        return self.session.step(samples, stream=self._stream())

    def _bring_passes(self, samples):
        share = self.session.share()
        if share.batch:
            gradients = self._flat if self._views else [p.grad for p in self._parameters]
            self._passes.bring(gradients, samples or share.samples, share.step)
            self._unseen = True

    def _leave_out(self):
        """The batch was of a step that the job has made without this worker, in a pause, say. Nothing is applied."""
        self._passes.drop()
        self._pending = self._of_step = 0
        self._void = self.session.last._replace(partial=True, included=False)
        self._tick(True)
        return self._void

    def _proceed(self):
        """Brings a step to its end that was interrupted. Until then it has the gradients."""
        self.session.proceed()
        if self._unseen:
            self._unseen = False
            self._passes.end(self.session.last.partial)

    def discard(self):
        """Ends a step that was cut short (`interrupted`): its gradients do not count."""
        self._proceed()
        self._passes.drop()
        self._drawn.of_step(self._pending)
        self._void, self._pending, self._of_step = None, 0, 0
        self._may_be_another = True
        self.session.step(discard=True, stream=self._stream())
        self._tick()

    def shard(self, loader, *, parts=None, samples=None, divided=True):
        """The same data as an endless stream in this worker's own order; an epoch ends when the job has trained it.

        Its len is how many batches of an epoch are this worker's if all are equally fast: steps of the job's clock. A pass has
        one batch at least. parts: of this worker's part of the data alone. samples: of a batch, a number or a function of the
        batch; else it is the loader's batch_size. Of loaders with a sampler of their own only the end of an epoch changes. Of
        data without a length a worker gets its every n-th batch, with parts=False all. In a job with a batch, batches are as large as
        this worker's share, and the order is one for all workers (worker/python/README.md); divided=False: they stay the loader's, and
        a step takes as many as the share needs.
        """
        kind = PlainLoader if isinstance(self.session, AloneSession) else ShardedLoader
        if self._loader is not None and self.rank == 0 and self._loader.is_new():
            self._say_once("loaders", "a second loader is sharded, and no pass over the first one has begun: epochs are those of the newest. "
                           "A loader for evaluation stays as it is, without shard")
        self._loader = kind(self, loader, parts, samples, divided)
        return self._loader

    def pause(self):
        """with worker.pause(): evaluates or saves, while the others go on as if this worker were not there."""
        self._may_be_another = True
        self._averaged.keep()
        return self.session.pause()

    def average(self, module=None):
        """The state_dict of the average of all live workers' models, or of a module of attach(averaged=...), while training goes on."""
        self._averaged.keep()
        both = [*zip(self._names, self._parameters), *self._averaged.tensors()]
        into = [torch.empty_like(t, requires_grad=False, memory_format=torch.preserve_format) for _, t in both]
        self.session.average([_taken(t, name) for (name, _), t in zip(both, into)])
        mean = {id(tensor): t for (_, tensor), t in zip(both, into)}
        mean.update(self._averaged.wholes(into[-1]))
        found = {}
        for name, tensor in (self.model if module is None else module).state_dict(keep_vars=True).items():
            found[name] = mean[id(tensor)] if id(tensor) in mean else tensor.detach().clone() if torch.is_tensor(tensor) else tensor
        return found

    def finish(self, wait=True):
        """Ends training: every model becomes the average of all."""
        if not self._ended:
            self._check()
            self._check_changes()
            self._averaged.keep()
            with self._finishing():
                self.session.finish(wait)
            self._look(True)
            self._ended = True

    def leave(self, reason):
        """Leaves the job, while the others go on."""
        if not self._ended:
            self._ended = True
            self.session.leave(reason)

    def tell_loss(self, loss):
        """The loss of a batch, a number or a tensor, for people who watch the job (prdctl serve).

        A tensor on a GPU is read back, which waits for the GPU: tell it where the script prints it anyway.
        """
        self.session.tell_loss(loss.detach() if torch.is_tensor(loss) else loss)

    def leave_soon(self, reason, grace=0):
        """Leaves the job at the next boundary, as Session.leave_soon. Any thread."""
        self.session.leave_soon(reason, grace)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if error is None:
            self.finish()
        elif not self._ended:
            if kind is SystemExit and not error.code:  # Python says nothing of it
                print(f"prd: rank {self.rank} leaves the job without finish, by SystemExit", file=sys.stderr)
            with contextlib.suppress(errors.Error):
                self.leave(f"{kind.__name__}: {error}")

    # ---- what is known ----

    rank = property(lambda self: self.session.rank, doc="This worker's number, from 0 on")
    workers = property(lambda self: self.session.workers, doc="How many workers the job started with; progress.workers are there now")
    engine = property(lambda self: self.session.engine, doc="The name of the engine, as in prd.toml")
    interrupted = property(lambda self: self.session.interrupted, doc="Whether the step being computed is better cut short: then `discard`")
    last = property(lambda self: self._void or self.session.last, doc="prd.StepResult of the newest step; before the first one, of zeros")
    progress = property(lambda self: self.session.progress, doc="prd.Progress: steps and samples of the job, its goal, and this worker's own")

    @property
    def share(self):
        """prd.BatchShare: which samples of the job's batch to compute next. `session.share(ahead)` is that of a step to come."""
        return self.session.share()

    @property
    def trained(self):
        """(steps, samples) of this worker, for a checkpoint."""
        return self.progress.own_steps, self.progress.own_samples

    @property
    def job_trained(self):
        """(steps, samples) of all workers, for a checkpoint."""
        exact = None if self._loader is None else self._loader.position()
        return self.progress.steps, self.progress.samples if exact is None else exact

    # ---- inside ----

    def _where_it_begins(self, job_trained, clock):
        self.seed = torch.initial_seed()
        start = START(job_trained[1], self.seed % (1 << 52), 0, -1 if clock is None else clock, job_trained[0])
        return torch.tensor(start, dtype=torch.float64, device=self._device)

    def _in_words(self):
        def more(said):
            if re.search(r"\bparameters\[.*: found memory of parameters\[", said):
                said += "; layers that share a weight have one Parameter: second.weight = first.weight"
            if said.startswith("the model differs"):
                said += ("; for PyTorch that is: names, shapes and layouts of the parameters, values of frozen parameters, buffers, "
                         "and the kind of the optimizer")
            return said

        return errors.in_words({"parameters": self._names, "gradients": self._names, "state": self._state_names}, more)

    def _stream(self):
        return None if self._device.type == "cpu" else torch.cuda.current_stream(self._device).cuda_stream

    def _give_gradients(self):
        """One flat buffer for each dtype. The parameters' .grad are views of it from now on."""
        for kind in (type(one).__name__ for one in self._optimizers if isinstance(one, torch.optim.SparseAdam) or _runs_its_closure(one)):
            self.session.leave(f"{kind} cannot train under engine {self.engine}")
            raise errors.InvalidArgument(f"{kind} cannot train under engine {self.engine}: that, or the job's on_nonfinite = \"drop\", needs dense gradients "
                                         "before the optimizer's step")
        self._written = None
        self._flat, self._views = [], [None] * len(self._parameters)
        for dtype in dict.fromkeys(p.dtype for p in self._parameters):
            these = [i for i, p in enumerate(self._parameters) if p.dtype == dtype]
            flat = zeros(sum(self._parameters[i].numel() for i in these), dtype, self._device)
            at = 0
            for i in these:
                p = self._parameters[i]
                self._views[i] = flat.as_strided(p.shape, p.stride(), at)
                at += p.numel()
            self._flat.append(flat)
        for state in self._states:
            state.take_dense()
        self._frozen = Frozen(self._parameters, self._views)
        self.session.set_gradients([_taken(view, f"gradient of {name}") for name, view in zip(self._names, self._views)])

    def _is_capturing(self):
        return self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _check_replay(self):
        """A backward pass that a CUDA graph replays adds to the gradients without PyTorch's knowledge, unless the graph zeroes them."""
        if self._device.type != "cuda" or self._graph_zeroes or self._written != [flat._version for flat in self._flat]:
            return
        if all(p.grad is view for p, view in zip(self._parameters, self._views) if p.requires_grad):
            raise errors.FailedPrecondition(
                f"no gradient was computed since the step before, but for a CUDA graph that may have been replayed. Under engine {self.engine} a graph of "
                "the backward pass must hold optimizer.zero_grad(), before the backward pass; else its gradients add up")

    def _bring_gradients(self):
        self._check_replay()
        with torch.no_grad():
            self._frozen.begin()
            for p, view in zip(self._parameters, self._views):
                grad = p.grad
                if grad is view or not p.requires_grad:
                    continue
                if grad is None:
                    view.zero_()
                elif grad.is_sparse:
                    view.zero_().add_(grad)
                else:
                    view.copy_(grad)
                p.grad = view

    def _zero_gradients(self, optimizer):
        self._proceed()
        self._graph_zeroes = self._graph_zeroes or self._is_capturing()
        its = None if len(self._optimizers) == 1 else {id(p) for group in optimizer.param_groups for p in group["params"]}
        with torch.no_grad():
            for zeroed in self._flat if its is None else [view for p, view in zip(self._parameters, self._views) if id(p) in its]:
                zeroed.zero_()
        for p, view in zip(self._parameters, self._views):
            if its is None or id(p) in its:
                p.grad = view if p.requires_grad else None

    def _check(self):
        """That the tensors are where they were, and the optimizer's."""
        self._of.check()
        for name, tensor, pointer in self._watched:
            if tensor.data_ptr() != pointer:
                raise errors.FailedPrecondition(
                    f"{name} was moved since attach (model.to, .half(), .data = ..., flatten_parameters?): attach comes after that"
                )
        if any(state.is_replaced() for state in self._states):
            raise errors.FailedPrecondition(
                "the optimizer's state was replaced since attach (optimizer.load_state_dict?): attach comes after loading"
            )

    def _counts_batches_of(self, loader):
        """Of several loaders whose batches are in one step, the first one says how many samples it has."""
        if not self._pending and not self._drawn.samples:
            self._counts = loader
        return self._counts is loader

    def _forget_drawn(self):
        """Batches were drawn for something else than training."""
        self._pending = 0
        self._drawn.clear()

    def _changes(self):
        return sum(p._version for p in self._parameters)

    def _check_changes(self):
        """Says so where something else than steps of the job seems to have trained the model since the newest one."""
        if self._changes() - self._changed >= 20 * max(1, len(self._parameters)):
            self._say_once("changes", "the parameters were changed many times since the newest step of the job, which the others have no part in: "
                           "by another optimizer than that of attach, or by a method of it that is not its step?")

    def _look(self, surely=False):
        """Takes the optimizer's state over where the replica has become another. On a GPU, where that is to wait, only if so."""
        if surely or self._device.type == "cpu":
            for state in self._states:
                state.take()
        if surely:
            self._averaged.take()

    def _apply(self):
        self._look()
        self._note_parted()
        if not self._in_step:
            for p, view in zip(self._parameters, self._views):
                p.grad = view  # the script may have set it to None since
        if self._views:
            with torch.no_grad():
                self._frozen.end()
        if self._before_apply is not None:
            self._before_apply()
        if self._apply_once is not None:
            self._apply_once()
        else:
            for state in self._states:
                state.begin()
            for one, inner in zip(self._optimizers, self._inner):
                self._returned = self._step_of(one, inner)
            for state in self._states:
                state.keep()
            self._say_own()

    def _step_of(self, optimizer, inner):
        arguments, options = self._arguments
        try:
            return inner(*arguments, **options)
        except Exception as error:
            if not self._ran_closure:
                raise
            raise errors.FailedPrecondition(f"{type(optimizer).__name__}.step failed without its closure, which prd runs once before, unless the step cannot "
                                            f"be called without one: step(self, closure). {type(error).__name__}: {error}") from error

    def _say_own(self):
        for i, (one, state) in enumerate(zip(self._optimizers, self._states)):
            if state.own and self.rank == 0:
                self._say_once(f"own {i}", f"what {type(one).__name__} keeps for {state.own[0]}{' and others' * (len(state.own) > 1)} stays each worker's own: "
                               "whoever copies a model does not get it")

    def _take_over(self, optimizer, inner):
        """optimizer.step and zero_grad are this worker's; a bound method, as schedulers want it."""
        worker = self
        as_without = isinstance(self.session, AloneSession) and not self.share.batch
        runs_its_closure = as_without or _runs_its_closure(optimizer)

        def step(self, closure=None, *args, **kwargs):
            given = () if closure is None and not args else (closure, *args)
            if worker._ended:
                return inner(*given, **kwargs)
            if len(worker._optimizers) > 1:
                raise errors.FailedPrecondition("the model has several optimizers: worker.step() is a step of all of them")
            if runs_its_closure or not callable(closure):
                worker._make_step(None, (given, kwargs))
                returned, worker._returned = worker._returned, None
                return returned
            with torch.enable_grad():
                loss = closure()
            worker._make_step(None, ((None, *args) if args else (), kwargs), ran_closure=True)
            return loss

        functools.update_wrapper(step, getattr(inner, "__func__", inner))
        if getattr(inner, "_with_counter", False):
            step._with_counter = True
        optimizer.step = types.MethodType(step, optimizer)
        optimizer._step_supports_amp_scaling = False  # GradScaler unscales before it calls step
        zero_inner = optimizer.zero_grad

        def zero_grad(self, *args, **kwargs):
            if worker._ended or not worker._views:
                return zero_inner(*args, **kwargs)
            worker._zero_gradients(self)

        optimizer.zero_grad = types.MethodType(zero_grad, optimizer)
