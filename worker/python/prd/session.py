"""A worker of a job: prd::Session for Python."""
import _thread
import atexit
import contextlib
import ctypes
import math
import operator
import os
import signal
import sys
import threading
import weakref

from prd import _abi, arrays, errors, terminate
from prd.results import BatchShare, GroupTransports, MemoryHeld, Progress, StepResult

_SLICE_MS = 100  # a wait goes on in such slices, between which Python looks for signals


def _options(given):
    """prd_options: the environment's, and over them those that are given."""
    options = _abi.Options()
    library = _abi.library()
    _check(library, None, library.prd_options_from_environment(options))
    for name, value in given.items():
        if value is None:
            continue
        if name in ("timeout", "start_timeout", "reduce_timeout"):
            name, value = name + "_ms", _milliseconds(name, value)
        setattr(options, name, _as_field(name, value, _FIELDS[name]))
    return options


_FIELDS = dict(_abi.Options._fields_)


def _milliseconds(name, seconds):
    """Rounded up: 0 has a meaning of its own."""
    try:
        return math.ceil(seconds * 1000)
    except (TypeError, ValueError, OverflowError):
        raise errors.InvalidArgument(f"{name}: found {seconds!r}, needed are seconds, 0 for none") from None


def _as_field(name, value, kind):
    """What a field of prd.h's structs can hold. ctypes takes a number for a pointer, and leaves bits out."""
    if kind is ctypes.c_char_p:
        if not isinstance(value, str) or "\0" in value:
            raise errors.InvalidArgument(f"{name}: found {value!r}, needed is text")
        return value.encode()
    try:
        whole = operator.index(value)
    except TypeError:
        raise errors.InvalidArgument(f"{name}: found {value!r}, needed is a whole number") from None
    if kind(whole).value != whole:
        raise errors.InvalidArgument(f"{name}: found {whole}, which is too large or below 0")
    return whole


def rank_of_environment():
    """The rank that PRD_RANK or a launcher's variables give; -1: the controller will."""
    return _options({}).rank


def _check(library, handle, code):
    if code < 0:
        text = library.prd_message(handle).decode(errors="replace")
        raise (errors.BY_CODE[-code - 1] if -code <= len(errors.BY_CODE) else errors.Error)(text)
    return code


class _Handle:
    """The library's session. Outlives Session until its end: by close, when Session is no more, or at the program's end."""

    open = set()  # those without an end
    notice = None  # leave_soon's, for those that are opened later

    def __init__(self, options):
        self.library = _abi.library()
        self.pid = os.getpid()
        self.session = ctypes.c_void_p()
        self.in_job = False  # it is for leave, or finish, to end that
        self.ending = threading.Lock()
        _check(self.library, None, self.library.prd_open(options, ctypes.byref(self.session)))
        self.open.add(self)
        if self.notice:
            self.leave_soon(*self.notice)

    def leave_soon(self, reason, grace):
        if self.ending.acquire(blocking=False):  # else it ends already, perhaps below a signal's handler
            try:
                if self.session and os.getpid() == self.pid:
                    self.library.prd_leave_soon(self.session, reason.encode(), _milliseconds("grace", grace))
            finally:
                self.ending.release()

    def end(self, reason):
        if os.getpid() != self.pid:
            return
        with self.ending:  # whoever comes second waits for the first
            session, self.session = self.session, None
            if not session:
                return
            if self.in_job and self.library.prd_leave(session, reason.encode()) >= 0:
                while self.library.prd_next(session, -1) == _abi.PENDING:
                    pass
            self.library.prd_close(session)
            self.open.discard(self)

    def end_at_last(self):
        if self.in_job and self.session and os.getpid() == self.pid:
            print("prd: the session was left without finish: its work since the last average is lost to the job", file=sys.stderr)
        self.end("its program ended without finish")

    def end_apart(self):
        """For the garbage collector, which runs inside of anything: PyTorch may hold a lock of its own. To end a session takes time
        without the GIL, and a thread that has the GIL then and waits for that lock would wait for ever."""
        if self.session and os.getpid() == self.pid:
            _thread.start_new_thread(self.end_at_last, ())


@atexit.register
def _end_all():
    for handle in list(_Handle.open):
        handle.end_at_last()


def leave_soon(reason, grace=0):
    """All sessions of this process leave their jobs, as by Session.leave_soon, and so do those that are opened later. Any thread."""
    _Handle.notice = (reason, grace)
    for handle in list(_Handle.open):
        handle.leave_soon(reason, grace)


class _SignalsWait:
    """In a with statement, SIGINT waits until its end: half an `apply` would make the replica another model.

    A second SIGINT does not wait.
    """

    def __enter__(self):
        self.came = None
        self.before = None
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):
                self.before = before
                signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number, frame):
        if self.came is not None:
            self.before(number, frame)
        self.came = (number, frame)

    def __exit__(self, *_):
        if self.before is None:
            return
        signal.signal(signal.SIGINT, self.before)
        if self.came is not None:
            self.before(*self.came)


class Session:
    """One worker of a job. Options that are not given are the environment's (PRD_JOB, PRD_RANK and so on).

    Threads: one at a time, but for interrupted, progress, share, group_transports, memory, clock, stop, leave_soon, tell_loss and cancel. Ctrl-C
    during a call raises KeyboardInterrupt in the call, which stays in progress: `proceed`, or whatever is called next,
    brings it to its end first. Until then the gradients are the call's. As a context manager, the session ends with the
    block: an exception that leaves the block becomes the reason why the worker leaves the job.
    """

    def __init__(self, *, job=None, controller=None, rank=None, world_size=None, address=None, launch=None, timeout=None,
                 start_timeout=None, reduce_timeout=None, max_communicators=None, goal_steps=None, goal_samples=None,
                 check_tensors=None, curve_server_key=None, curve_public_key=None, curve_secret_key=None, mesh_ports=None, announce_address=None,
                 batch=None, max_share=None, accumulates=None, rows_on_host=None, log=None):
        """Times are in seconds. `log`: called with each line that tells whom a call waits for; stderr unless given.

        batch: samples of one step of all workers together, which `share` divides. max_share: the most that this worker computes at
        once. accumulates: the training loop goes on with a step that is `partial`. rows_on_host: what the library keeps
        beside a model on a GPU is in host memory, as far as it can be.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "log")}
        if log is not None and not callable(log):
            raise errors.InvalidArgument(f"log: found {log!r}, needed is a function that takes a line")
        process = sys.modules.get("multiprocessing.process")
        if process is not None and getattr(process.current_process(), "_inheriting", False):
            raise errors.FailedPrecondition(
                "a child process imports the main program again, and would join the job a second time: "
                'put what the program does under if __name__ == "__main__":'
            )
        options = _options(given)
        options.queue_log = log is not None
        self._log = log
        self._max_share = options.max_share
        self._apply = None
        self._trains = False  # attached, and not to finish
        self._applies = False
        self._at_hand = None  # of the call in progress: what it is, and what is to be done once it has ended
        self._late = None  # what that was, and its result, of a call that KeyboardInterrupt has left; until another begins
        self._paused = self._finished = False
        self._to_resume = False  # the block of the pause is over, or has never begun
        self._tensors = []  # keeps their memory in place
        self._handle = _Handle(options)
        self._library = self._handle.library
        self._finalizer = weakref.finalize(self, self._handle.end_apart)
        self._finalizer.atexit = False

    # ---- calls ----

    def attach(self, parameters, gradients=None, apply=None, *, state=(), averaged_state=(), device=None, stream=None,
               trained=(0, 0), job_trained=(0, 0), model_tag="", gradients_later=False,
               state_in_apply=False):
        """Joins the job with this replica. Then the parameters are the job's.

        parameters, gradients, state, averaged_state: arrays, or sequences of them. `apply()` applies the gradients to the
        parameters: the optimizer's step. `state` goes with copies of the replica, `averaged_state` is averaged besides.
        `device`: "cuda:1", where arrays on a GPU are not on the first one. trained, job_trained: (steps, samples) of a
        checkpoint. `model_tag`: text that all workers of a job have in common. `state_in_apply`: `state` changes in
        `apply` alone, so that peers may copy it at any time.
        """
        if not callable(apply):
            raise errors.InvalidArgument("apply: found none, needed is the function that applies the gradients")
        lists = {
            "parameters": arrays.tensors(parameters, "parameters"),
            "gradients": arrays.tensors(gradients if gradients is not None else (), "gradients"),
            "state": arrays.tensors(state, "state"),
            "averaged_state": arrays.tensors(averaged_state, "averaged_state"),
        }
        both = lists["parameters"] + lists["gradients"] + lists["state"] + lists["averaged_state"]
        if device is None and any(t.on_gpu for t in both):
            device = "cuda"
        orders = [t.order for t in both]
        if any(orders):
            model_tag = f"{model_tag}|{orders}"
        replica = _abi.Replica(
            gradients_later=gradients_later, device=_as_field("device", device or "", ctypes.c_char_p), stream=stream,
            **{name: _as_field(name, value, ctypes.c_int64) for name, value in
               zip(("trained_steps", "trained_samples", "job_trained_steps", "job_trained_samples"), (*trained, *job_trained))},
            model_tag=_as_field("model_tag", model_tag, ctypes.c_char_p), state_in_apply=state_in_apply,
        )
        replica.parameters, replica.parameter_count = _array(lists["parameters"])
        replica.gradients, replica.gradient_count = _array(lists["gradients"])
        replica.state, replica.state_count = _array(lists["state"], lists["averaged_state"])

        def begin(session):
            code = self._library.prd_attach(session, replica)
            if code >= 0:
                self._apply = apply
                self._tensors += both
            return code

        def then():
            self._handle.in_job = self._trains = True

        self.proceed()
        terminate.watch(self)
        self._call(begin, ("attach", [(t.pointer, t.count, t.dtype) for t in both]), then)

    def set_gradients(self, gradients):
        """Gives the gradients, or others. After attach(gradients_later=True), where needs_gradients says so."""
        found = arrays.tensors(gradients, "gradients")
        self._tensors += found
        self._call(lambda session: self._library.prd_set_gradients(session, *_array(found)))

    def step(self, samples=0, *, discard=False, stream=None):
        """One training step: runs apply, and synchronises as the engine wants. Returns a StepResult."""
        samples = _as_field("samples", samples, ctypes.c_int64)
        given = _abi.StepInput(samples=samples, discard=discard, stream=stream, stream_given=stream is not None)
        self._call(lambda session: self._library.prd_step(session, given))
        return self.last

    @contextlib.contextmanager
    def pause(self):
        """In this block, the others go on as if this worker were not there: to evaluate is no slow step."""
        def then():
            self._paused = True

        try:
            self._call(lambda session: self._library.prd_pause(session), "pause", then)
        except errors.Error:
            raise
        except BaseException:
            self._to_resume = True
            raise
        try:
            yield self
        finally:
            self._to_resume = True
            if self._handle.session:  # the program may end in the pause
                self.proceed()

    def average(self, into):
        """The average of all live workers' parameters, to arrays as the parameters are, with those of averaged_state after them or
        without. The replica stays as it is."""
        found = arrays.tensors(into, "into")
        self._call(lambda session: self._library.prd_average(session, *_array(found)))

    def mean(self, values):
        """The mean of 1 to 64 numbers over the workers, element by element: all who call it get the same list.

        The k-th call of each worker is one round, which waits for every live worker that trains or pauses; meanwhile this
        one pauses, and the others train on. The parameters may be replaced, as after a pause.
        """
        values = [float(value) for value in values]
        array = ctypes.c_double * len(values)

        def then():
            mean = array()
            self._check(self._library.prd_get_mean(self._session(), mean, len(values)))
            return list(mean)

        return self._call(lambda session: self._library.prd_mean(session, array(*values), len(values)), ("mean", values), then)

    def finish(self, wait=True):
        """Ends training: waits for all live workers; then the parameters are the final average. Once more: nothing."""
        def begin(session):
            code = self._library.prd_finish(session, wait)
            self._trains = self._trains and code < 0
            return code

        def then():
            self._finished = True
            self._handle.in_job = False
            terminate.forget(self)

        self.proceed()
        if not self._finished:
            self._call(begin, "finish", then)

    def leave(self, reason):
        """Leaves the job without the average, while the others go on. A call in progress is given up."""
        self._refuse_in_apply()
        session = self._session()
        self._check(self._library.prd_leave(session, _as_field("reason", reason, ctypes.c_char_p)))
        self._handle.in_job = self._trains = self._paused = self._to_resume = False
        self._at_hand = self._late = None
        terminate.forget(self)
        self._go_on()

    def proceed(self):
        """Brings a call to its end that KeyboardInterrupt has left in progress. Without one it does nothing."""
        self._refuse_in_apply()
        self._go_on()
        if self._to_resume:
            if self._paused:
                self._begin(lambda session: self._library.prd_resume(session), "resume", self._has_resumed)
            self._to_resume = False

    def tell_loss(self, loss):
        """The loss of a batch, a number or an array of one, for people who watch the job (prdctl serve). Any thread."""
        if self._handle.session:
            self._library.prd_tell_loss(self._handle.session, float(loss))

    def stop(self, reason=""):
        """The job is done, for all workers, as if its goal were reached: for early stopping. Does not wait. Any thread."""
        self._check(self._library.prd_stop(self._session(), _as_field("reason", reason, ctypes.c_char_p)), None)

    def leave_soon(self, reason, grace=0):
        """Leaves the job at the next boundary: once the step that is computed, or in progress, has ended. Any thread.

        The call in which it has left raises Aborted, and so does every later one but leave. After `grace` seconds, unless
        0, it leaves even in the midst of a call.
        """
        self._handle.leave_soon(reason, grace)

    def cancel(self):
        """Ends the call in progress, and every later one but leave, with Cancelled. Any thread."""
        if self._handle.session:
            self._library.prd_cancel(self._handle.session)

    def close(self):
        """Leaves the job, unless that is over, and frees what the session has. The arrays are the caller's again."""
        self._refuse_in_apply()
        self._finalizer.detach()
        self._trains = self._paused = self._to_resume = False
        terminate.forget(self)
        self._handle.end("its session was closed")
        self._tensors.clear()
        self._apply = None

    def __reduce__(self):
        raise TypeError("a prd.Session is its process's own, and cannot be pickled")

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if error is not None and (self._handle.in_job or self._at_hand) and self._handle.session:
            with contextlib.suppress(errors.Error):
                self.leave(f"{kind.__name__}: {error}")
        self.close()

    # ---- what is known ----

    @property
    def in_call(self):
        """Whether a call is in progress, which KeyboardInterrupt has left."""
        return bool(self._handle.session) and bool(self._library.prd_in_call(self._handle.session))

    @property
    def last(self):
        """What the newest step did."""
        r = _abi.StepResult()
        self._check(self._library.prd_get_step_result(self._session(), r))
        return StepResult(
            r.steps, bool(r.done), r.iteration, r.group, tuple(r.members[: r.member_count]),
            tuple(r.weights[: r.member_count]), r.attempts, bool(r.adopted), bool(r.included), r.rounds, r.local_steps,
            r.reduced_bytes, r.sent_bytes, r.computed_ns / 1e9, r.waited_ns / 1e9, r.reduced_ns / 1e9,
            (r.reason or b"").decode(errors="replace"), bool(r.partial),
        )

    @property
    def progress(self):
        """How far the whole job is: a Progress. Any thread."""
        p = _abi.Progress()
        self._check(self._library.prd_get_progress(self._session(), p), None)
        return Progress(p.steps, p.samples, p.workers, p.goal_steps, p.goal_samples, bool(p.done), p.own_steps, p.own_samples)

    def share(self, ahead=0):
        """Which samples to compute next, in a job with a batch: a BatchShare. Any thread.

        A worker's share follows its speed, and the shares of a step sum to the batch. `ahead`: the share of a step that far after
        the next one, for loaders that draw early; then shares change so many steps later.
        """
        s = _abi.BatchShare()
        self._check(self._library.prd_get_share(self._session(), ahead, s), None)
        return BatchShare(s.step, s.first, s.samples, s.batch)

    @property
    def clock(self):
        """How many steps a job of equal workers would have made: progress.steps / workers; 0 before attach."""
        return self._library.prd_clock(self._session())

    @property
    def group_transports(self):
        """How the groups of this worker were reduced so far: a GroupTransports. Any thread."""
        t = _abi.GroupTransports()
        self._check(self._library.prd_get_group_transports(self._session(), t), None)
        return GroupTransports(t.collective, t.exchange, t.staged)

    @property
    def memory(self):
        """What the library holds, by what it is for: a MemoryHeld for "all" and for each use (worker/README.md, Memory). Any thread."""
        found, m = {}, _abi.Memory()
        while self._library.prd_get_memory(self._session(), len(found), m) >= 0:
            found[m.use.decode()] = MemoryHeld(m.host, m.host_peak, m.device, m.device_peak)
        return found

    @property
    def interrupted(self):
        """Whether the step being computed is better cut short: its result would not be used, or others wait for it."""
        return bool(self._library.prd_interrupted(self._session()))

    @property
    def rank(self):
        """The number of this worker in its job, from 0; the controller gives one where the environment does not."""
        return self._library.prd_rank(self._session())

    @property
    def workers(self):
        """How many workers the job has started with."""
        return self._library.prd_workers(self._session())

    @property
    def iteration(self):
        """The replica's position in the job, in the engine's unit, as StepResult.iteration."""
        return self._library.prd_iteration(self._session())

    @property
    def engine(self):
        """The name of the engine that the job runs under, as in prd.toml."""
        return self._library.prd_engine(self._session()).decode()

    @property
    def needs_gradients(self):
        """Whether the job reduces gradients, or looks at them."""
        return bool(self._library.prd_needs_gradients(self._session()))

    # ---- inside ----

    def _session(self):
        if not self._handle.session:
            raise errors.FailedPrecondition("the session is closed")
        return self._handle.session

    def _check(self, code, handle=0):
        try:
            return _check(self._library, self._handle.session if handle == 0 else handle, code)
        except errors.Aborted:
            terminate.raise_if_told(self)
            raise

    def _refuse_in_apply(self):
        if self._applies:
            raise errors.FailedPrecondition("a call of the session in apply, which is part of one: calls come between steps")

    def _call(self, begin, what=None, then=None):
        """One call, to its end; returns what `then` gives. If KeyboardInterrupt leaves it, and it is made again before any other is, it is the same."""
        self.proceed()
        late, self._late = self._late, None
        if late is None or late[0] != what:
            self._begin(begin, what, then)
            late, self._late = self._late, None
        return late and late[1]

    def _begin(self, begin, what, then):
        with _SignalsWait() if then else contextlib.nullcontext():
            self._check(begin(self._session()))
            self._at_hand = (what, then)
        self._go_on()

    def _go_on(self):
        """Brings the call in progress to its end, if there is one. What `then` gives is `_late`."""
        library, session = self._library, self._session()
        while library.prd_in_call(session):
            with _SignalsWait() if self._at_hand and self._at_hand[1] else contextlib.nullcontext():
                next_ = library.prd_next(session, _SLICE_MS)
                if next_ not in (_abi.APPLY, _abi.PENDING):
                    self._ends(next_)
            if next_ == _abi.APPLY:
                self._run_apply(session)
            self._drain()
            self._check(next_)
        if self._at_hand:
            self._ends(0)  # it had ended as it began

    def _ends(self, code):
        (what, then), self._at_hand = self._at_hand or (None, None), None
        if code >= 0 and then:
            self._late = (what, then())

    def _has_resumed(self):
        self._paused = False

    def _run_apply(self, session):
        with _SignalsWait():
            try:
                self._applies = True
                try:
                    self._apply()
                finally:
                    self._applies = False
            except BaseException as error:
                self._handle.in_job = False
                self._at_hand = None
                self._library.prd_applied(session, f"raised {type(error).__name__}: {error}".encode(errors="replace"))
                while self._library.prd_next(session, -1) == _abi.PENDING:  # it leaves, which takes a second at most
                    pass
                raise
            self._check(self._library.prd_applied(session, None))

    def _drain(self):
        if self._log is None:
            return
        while (line := self._library.prd_log_line(self._handle.session)) is not None:
            self._log(line.decode(errors="replace"))


@contextlib.contextmanager
def given_up_on_error(session, make=Session):
    """This session, or else a new one, for a block that attaches it. The new one is closed if the block fails: nobody else could."""
    if session is not None:
        yield session
        return
    made = make()
    try:
        yield made
    except BaseException:
        made.close()
        raise


def _array(*lists):
    """A C array of the tensors, and their number. Those of the second list are averaged."""
    all_ = [
        _abi.Tensor(t.pointer, t.count, arrays.DTYPES[t.dtype][0], average) for average, list_ in enumerate(lists) for t in list_
    ]
    return (_abi.Tensor * len(all_))(*all_), len(all_)
