"""prd for JAX: a pytree of arrays as the replica, and a step of an optimizer as optax has them.

    worker = prd.jax.attach(params, optimizer)
    compute = jax.jit(jax.value_and_grad(loss_of))
    for x, y in batches:
        loss, gradients = compute(worker.params, x, y)
        worker.step(gradients, samples=len(x))
    worker.finish()                     # worker.params are the average of all

JAX's arrays cannot be written, so prd has the replica in host memory: the parameters and the optimizer's state, and the
gradients where the engine reduces these. What is copied in a step: the new parameters and the new state to the host; under
engines that reduce gradients also the gradients, to the host and back; under the others the parameters back, twice.
"""
import contextlib
import random
import sys

import jax
import numpy

from prd import arrays, errors
from prd.session import given_up_on_error

_DTYPES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}
_FEW = 64  # whole numbers of a leaf of the optimizer's state


def attach(params, optimizer, state=None, *, session=None, trained=(0, 0), job_trained=(0, 0)):
    """Joins the job with these parameters, a pytree of arrays; they and the optimizer's state are the job's then. Returns a Worker.

    optimizer: has init(params) and update(gradients, state, params), which returns (updates, state), as optax's; jax.jit
    compiles it. One whose update needs more, as the loss, is refused. state: a checkpoint's; else init makes it. session: a prd.Session that is not attached; else one is made, by the
    environment.
    trained, job_trained: (steps, samples) of a checkpoint, as Worker.trained and Worker.job_trained were.
    """
    with given_up_on_error(session) as joins:
        return Worker(params, optimizer, optimizer.init(params) if state is None else state, joins, trained, job_trained)


def _named(tree):
    return [(jax.tree_util.keystr(path) or "params", leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _is_key(leaf):
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _whole(leaf):
    """Of a leaf that is a few whole numbers, or a random key, an array of these; else None."""
    if isinstance(leaf, jax.Array) and _is_key(leaf):
        leaf = jax.random.key_data(leaf)
    kinds = (jax.numpy.integer, jax.numpy.bool_)
    return leaf if leaf.size <= _FEW and any(jax.numpy.issubdtype(leaf.dtype, kind) for kind in kinds) else None


class _Copies:
    """Copies in host memory of the leaves of a tree that are arrays of floats. The others, as step counts, are whole numbers."""

    def __init__(self, tree, what, numbers_too):
        self.names = []
        self.held = []  # of each leaf: an array of the host, or None: a number
        for name, leaf in _named(tree):
            if not isinstance(leaf, jax.Array) and not isinstance(leaf, numpy.ndarray):
                raise errors.InvalidArgument(f"{what}{name}: found a {type(leaf).__name__}, needed is an array")
            if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
                raise errors.InvalidArgument(f"{what}{name}: is divided among processes; a replica is one process")
            whole = numbers_too and _whole(leaf) is not None
            if str(leaf.dtype) not in _DTYPES and not whole:
                few = f", random keys, and up to {_FEW} whole numbers" * numbers_too
                raise errors.InvalidArgument(f"{what}{name}: is {leaf.size} of {leaf.dtype}, allowed are {', '.join(_DTYPES)}{few}")
            self.names.append(what + name)
            self.held.append(None if whole else numpy.array(leaf, order="C"))

    def tensors(self):
        """What the session takes."""
        return [arrays.tensor(held, name, _DTYPES[str(held.dtype)]) for name, held in zip(self.names, self.held) if held is not None]

    def numbers(self, tree):
        """Of the leaves that are numbers."""
        of = [leaf for held, leaf in zip(self.held, jax.tree_util.tree_leaves(tree)) if held is None]
        return [int(number) for leaf in of for number in numpy.asarray(_whole(leaf)).ravel()]

    def write(self, tree):
        """Tree to host."""
        for held, leaf in zip(self.held, jax.tree_util.tree_leaves(tree)):
            if held is not None:
                numpy.copyto(held, numpy.asarray(leaf))

    def read(self, like, numbers=()):
        """A tree of the host's values, on the devices of this one."""
        numbers = iter(numbers)

        def taken(held, leaf):
            if held is None:
                were = _whole(leaf)
                values = numpy.array([next(numbers) for _ in range(were.size)], were.dtype).reshape(were.shape)
                if not isinstance(leaf, jax.Array):
                    return values
                made = jax.numpy.asarray(values)
                return jax.device_put(jax.random.wrap_key_data(made, impl=jax.random.key_impl(leaf)) if _is_key(leaf) else made, leaf.sharding)
            made = jax.numpy.array(held, copy=True)  # JAX would else go on with this memory, which prd writes
            return jax.device_put(made, leaf.sharding) if isinstance(leaf, jax.Array) else made

        leaves, kind = jax.tree_util.tree_flatten(like)
        return kind.unflatten([taken(held, leaf) for held, leaf in zip(self.held, leaves)])


class Worker:
    """One worker of a job. `params` and `state` are pytrees of arrays, new ones after each step.

    As a context manager it finishes, or leaves with the exception that comes out.
    """

    def __init__(self, params, optimizer, state, session, trained, job_trained):
        self._params, self._state, self.session = params, state, session
        self._seen = self._surely = True

        def update(gradients, state, params):
            updates, state = optimizer.update(gradients, state, params)
            return jax.tree_util.tree_map(lambda p, u: jax.numpy.asarray(p + u).astype(p.dtype), params, updates), state

        self._update = jax.jit(update)
        self._check_update(update)
        self._parameters, self._kept = _Copies(params, "", False), _Copies(state, "state", True)
        self._kind = jax.tree_util.tree_structure(params)
        self._given = self._gradients = None
        self._ended = self._said = False
        # The first says whose state this is: it is another one once another replica has replaced this one.
        self._numbers = numpy.zeros(1 + len(self._kept.numbers(state)))
        self._keep()
        tag = ";".join(f"{name}{held.shape}" for name, held in zip(self._parameters.names, self._parameters.held)) + f"|{self._kept.names}"
        kept = [tensor_name for tensor_name, held in zip(self._kept.names, self._kept.held) if held is not None]
        self._words = {"parameters": self._parameters.names, "gradients": self._parameters.names, "state": [*kept, "whole numbers"]}
        with self._calls():
            session.attach(self._parameters.tensors(), None, self._apply, state=[*self._kept.tensors(), arrays.tensor(self._numbers)],
                           trained=trained, job_trained=job_trained, model_tag=tag, gradients_later=True, state_in_apply=True)
        if session.needs_gradients:
            self._give_gradients()
        self._look()

    def step(self, gradients, samples=0):
        """One training step with these gradients, a tree as params. Returns a prd.StepResult."""
        if jax.tree_util.tree_structure(gradients) != self._kind:
            raise errors.InvalidArgument(f"gradients: found {jax.tree_util.tree_structure(gradients)}, needed is the tree of params, {self._kind}")
        for name, held, leaf in zip(self._parameters.names, self._parameters.held, jax.tree_util.tree_leaves(gradients)):
            if numpy.shape(leaf) != held.shape:
                raise errors.InvalidArgument(f"gradients{name}: found the shape {numpy.shape(leaf)}, needed is that of the parameter, {held.shape}")
        self.session.proceed()
        self._compare(samples)
        self._look()
        self._given = gradients
        if self._gradients is not None:
            self._gradients.write(gradients)
        with self._calls():
            try:
                result = self.session.step(samples)
            except errors.FailedPrecondition:
                if self._gradients is not None or not self.session.needs_gradients:
                    raise
                self._give_gradients()  # the job began anew, with another engine
                self._gradients.write(gradients)
                result = self.session.step(samples)
        self._surely = self._gradients is None or result.adopted
        self._look()
        return result

    def steps(self, total):
        """for it in worker.steps(total): total steps per worker, which the workers share as their speeds are. Yields the job's clock."""
        while not self.done and self.clock < total:
            yield int(self.clock)

    def key(self, key):
        """A random key of this worker's own, for its data."""
        return jax.random.fold_in(key, self.rank)

    @contextlib.contextmanager
    def pause(self):
        """In this block, the others go on as if this worker were not there. params may be others afterwards."""
        with self._calls(), self.session.pause():
            yield self

    def average(self):
        """The average of all live workers' params, a tree of new arrays, while training goes on."""
        into = _Copies(self.params, "", False)
        self.session.average(into.tensors())
        return into.read(self.params)

    def finish(self, wait=True):
        """Ends training: params are the average of all."""
        if not self._ended:
            with self._calls():
                self.session.finish(wait)
            self._ended = True

    def leave(self, reason):
        """Leaves the job, while the others go on."""
        if not self._ended:
            self._ended = True
            self.session.leave(reason)

    def stop(self, reason=""):
        """The job is done, for all workers: for early stopping."""
        self.session.stop(reason)

    def mean(self, values):
        """The mean of 1 to 64 numbers over the workers: all get the same list, and all call it equally often."""
        with self._calls():
            return self.session.mean(values)

    def tell_loss(self, loss):
        """The loss of a batch, for people who watch the job (prdctl serve). An array of JAX is waited for."""
        self.session.tell_loss(float(loss))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if error is None:
            self.finish()
        elif not self._ended:
            with contextlib.suppress(errors.Error):
                self.leave(f"{kind.__name__}: {error}")

    @property
    def params(self):
        """The parameters, a tree of arrays. While a call is in progress, which KeyboardInterrupt has left, those of before."""
        self._look()
        return self._params

    @property
    def state(self):
        """The optimizer's state."""
        self._look()
        return self._state

    rank = property(lambda self: self.session.rank, doc="This worker's number, from 0 on")
    workers = property(lambda self: self.session.workers, doc="How many workers the job started with")
    engine = property(lambda self: self.session.engine, doc="The name of the engine, as in prd.toml")
    last = property(lambda self: self.session.last, doc="prd.StepResult of the newest step")
    progress = property(lambda self: self.session.progress, doc="prd.Progress: steps and samples of the job, its goal, and this worker's own")
    clock = property(lambda self: self.session.clock, doc="How many steps a job of equal workers would have made")
    done = property(lambda self: self.session.progress.done or self.session.last.done, doc="Whether the job's goal is reached, or a worker stopped it")
    trained = property(lambda self: (self.progress.own_steps, self.progress.own_samples), doc="(steps, samples) of this worker, for a checkpoint")
    job_trained = property(lambda self: (self.progress.steps, self.progress.samples), doc="(steps, samples) of all workers, for a checkpoint")

    # ---- inside ----

    def _compare(self, samples):
        """Says, once, that a step has other samples than this worker's share of the job's batch."""
        share = 0 if self._said or not samples else self.session.share().samples
        if share not in (0, samples):
            self._said = True
            print(f"prd: rank {self.rank}: a step was told {samples} samples, and this worker's share of the job's batch is {share} now: "
                  "session.share() says which ones to compute", file=sys.stderr)

    def _give_gradients(self):
        self._gradients = _Copies(self.params, "gradient of ", False)
        self.session.set_gradients(self._gradients.tensors())

    def _apply(self):
        """The session's: with the replica as it is now in host memory."""
        self._take(self._gradients is None)
        gradients = self._given if self._gradients is None else self._gradients.read(self._params)
        self._params, self._state = self._update(gradients, self._state, self._params)
        self._parameters.write(self._params)
        self._kept.write(self._state)
        self._keep()

    def _keep(self):
        self._numbers[1:] = self._kept.numbers(self._state)
        self._numbers[0] = self._mark = float(random.getrandbits(52))

    @contextlib.contextmanager
    def _calls(self):
        """In this block the session is called: the replica may be another, at once or once an interrupted call has ended."""
        self._seen, self._surely = False, True
        with errors.in_words(self._words):
            try:
                yield
            finally:
                self._seen, self._surely = False, True  # a body may have looked

    def _look(self):
        """Takes what a call of the session has changed, unless one is in progress."""
        if not self._seen and not self.session.in_call:
            self._take(self._surely)
            self._seen = True

    def _take(self, surely):
        """The replica from host memory, where it may have changed: parameters by averages, all of it by another replica."""
        another = self._numbers[0] != self._mark
        if surely or another:
            self._params = self._parameters.read(self._params)
        if another:
            self._state = self._kept.read(self._state, [int(number) for number in self._numbers[1:]])
            self._mark = self._numbers[0]

    def _check_update(self, update):
        """That the optimizer can be called so, and gives what it was given, before the job counts on this worker."""
        try:
            made = jax.eval_shape(update, self._params, self._state, self._params)
        except TypeError as error:
            raise errors.InvalidArgument(f"optimizer: its update cannot be called with gradients, state and parameters alone: {error}") from error
        for what, before, after in (("parameters", self._params, made[0]), ("state", self._state, made[1])):
            kinds = [[(name, numpy.shape(leaf)) for name, leaf in _named(tree)] for tree in (before, after)]
            other = [(a, b) for a, b in zip(*kinds) if a != b]
            if other or len(kinds[0]) != len(kinds[1]):
                said = f"{other[0][0]} becomes {other[0][1]}" if other else f"{len(kinds[0])} arrays become {len(kinds[1])}"
                raise errors.InvalidArgument(f"optimizer: its update changes the kind of the {what}: {said}")
