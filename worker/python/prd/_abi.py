"""libprd.so as prd/prd.h describes it, by ctypes."""
import ctypes as c
import os

from prd import places

ABI_MAJOR, ABI_MINOR = 1, 7
DONE, APPLY, PENDING = 0, 1, 2


class Sized(c.Structure):
    """A struct that begins with its size."""

    def __init__(self, **fields):
        super().__init__(size=c.sizeof(self), **fields)


class Options(Sized):
    _fields_ = [
        ("size", c.c_uint32), ("rank", c.c_int32), ("world_size", c.c_int32), ("max_communicators", c.c_int32),
        ("controller", c.c_char_p), ("job", c.c_char_p), ("address", c.c_char_p), ("launch", c.c_char_p),
        ("curve_server_key", c.c_char_p), ("curve_public_key", c.c_char_p), ("curve_secret_key", c.c_char_p),
        ("timeout_ms", c.c_int64), ("start_timeout_ms", c.c_int64), ("reduce_timeout_ms", c.c_int64),
        ("goal_steps", c.c_int64), ("goal_samples", c.c_int64), ("check_tensors", c.c_uint32), ("queue_log", c.c_uint32),
        ("mesh_ports", c.c_char_p), ("announce_address", c.c_char_p),
        ("batch", c.c_int64), ("max_share", c.c_int64), ("accumulates", c.c_uint32), ("rows_on_host", c.c_uint32),
    ]


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("count", c.c_uint64), ("dtype", c.c_uint32), ("average", c.c_uint32)]


class Replica(Sized):
    _fields_ = [
        ("size", c.c_uint32), ("gradients_later", c.c_uint32), ("device", c.c_char_p), ("stream", c.c_void_p),
        ("parameters", c.POINTER(Tensor)), ("parameter_count", c.c_uint64),
        ("gradients", c.POINTER(Tensor)), ("gradient_count", c.c_uint64),
        ("state", c.POINTER(Tensor)), ("state_count", c.c_uint64),
        ("trained_steps", c.c_int64), ("trained_samples", c.c_int64),
        ("job_trained_steps", c.c_int64), ("job_trained_samples", c.c_int64), ("model_tag", c.c_char_p),
        ("state_in_apply", c.c_uint32), ("reserved", c.c_uint32),
    ]


class StepInput(Sized):
    _fields_ = [
        ("size", c.c_uint32), ("discard", c.c_uint32), ("samples", c.c_int64), ("stream", c.c_void_p),
        ("stream_given", c.c_uint32), ("reserved", c.c_uint32),
    ]


class StepResult(Sized):
    _fields_ = [
        ("size", c.c_uint32), ("done", c.c_uint32), ("steps", c.c_int64), ("iteration", c.c_int64), ("group", c.c_uint64),
        ("members", c.POINTER(c.c_int32)), ("weights", c.POINTER(c.c_double)), ("member_count", c.c_uint32),
        ("attempts", c.c_int32), ("adopted", c.c_uint32), ("included", c.c_uint32), ("rounds", c.c_int64),
        ("local_steps", c.c_uint64), ("reduced_bytes", c.c_uint64), ("sent_bytes", c.c_uint64),
        ("computed_ns", c.c_int64), ("waited_ns", c.c_int64), ("reduced_ns", c.c_int64), ("reason", c.c_char_p),
        ("partial", c.c_uint32), ("reserved", c.c_uint32),
    ]


class Progress(Sized):
    _fields_ = [
        ("size", c.c_uint32), ("workers", c.c_int32), ("steps", c.c_int64), ("samples", c.c_int64),
        ("goal_steps", c.c_int64), ("goal_samples", c.c_int64), ("own_steps", c.c_int64), ("own_samples", c.c_int64),
        ("done", c.c_uint32), ("reserved", c.c_uint32),
    ]


class BatchShare(Sized):
    _fields_ = [("size", c.c_uint32), ("reserved", c.c_uint32), ("step", c.c_int64), ("first", c.c_int64), ("samples", c.c_int64),
                ("batch", c.c_int64)]


class GroupTransports(Sized):
    _fields_ = [("size", c.c_uint32), ("reserved", c.c_uint32), ("collective", c.c_uint64), ("exchange", c.c_uint64),
                ("staged", c.c_uint64)]


class Memory(Sized):
    _fields_ = [("size", c.c_uint32), ("reserved", c.c_uint32), ("use", c.c_char_p), ("host", c.c_int64), ("host_peak", c.c_int64),
                ("device", c.c_int64), ("device_peak", c.c_int64)]


_SESSION = c.c_void_p
# What each function returns, and takes.
_FUNCTIONS = {
    "prd_abi": (c.c_uint32, []),
    "prd_code_name": (c.c_char_p, [c.c_int32]),
    "prd_options_from_environment": (c.c_int32, [c.POINTER(Options)]),
    "prd_open": (c.c_int32, [c.POINTER(Options), c.POINTER(_SESSION)]),
    "prd_close": (None, [_SESSION]),
    "prd_message": (c.c_char_p, [_SESSION]),
    "prd_attach": (c.c_int32, [_SESSION, c.POINTER(Replica)]),
    "prd_set_gradients": (c.c_int32, [_SESSION, c.POINTER(Tensor), c.c_uint64]),
    "prd_step": (c.c_int32, [_SESSION, c.POINTER(StepInput)]),
    "prd_pause": (c.c_int32, [_SESSION]),
    "prd_resume": (c.c_int32, [_SESSION]),
    "prd_average": (c.c_int32, [_SESSION, c.POINTER(Tensor), c.c_uint64]),
    "prd_mean": (c.c_int32, [_SESSION, c.POINTER(c.c_double), c.c_uint64]),
    "prd_finish": (c.c_int32, [_SESSION, c.c_int32]),
    "prd_leave": (c.c_int32, [_SESSION, c.c_char_p]),
    "prd_next": (c.c_int32, [_SESSION, c.c_int32]),
    "prd_applied": (c.c_int32, [_SESSION, c.c_char_p]),
    "prd_in_call": (c.c_int32, [_SESSION]),
    "prd_get_step_result": (c.c_int32, [_SESSION, c.POINTER(StepResult)]),
    "prd_get_mean": (c.c_int32, [_SESSION, c.POINTER(c.c_double), c.c_uint64]),
    "prd_log_line": (c.c_char_p, [_SESSION]),
    "prd_cancel": (None, [_SESSION]),
    "prd_leave_soon": (None, [_SESSION, c.c_char_p, c.c_int64]),
    "prd_tell_loss": (None, [_SESSION, c.c_double]),
    "prd_stop": (c.c_int32, [_SESSION, c.c_char_p]),
    "prd_clock": (c.c_double, [_SESSION]),
    "prd_interrupted": (c.c_int32, [_SESSION]),
    "prd_get_progress": (c.c_int32, [_SESSION, c.POINTER(Progress)]),
    "prd_get_share": (c.c_int32, [_SESSION, c.c_int32, c.POINTER(BatchShare)]),
    "prd_get_group_transports": (c.c_int32, [_SESSION, c.POINTER(GroupTransports)]),
    "prd_get_memory": (c.c_int32, [_SESSION, c.c_uint64, c.POINTER(Memory)]),
    "prd_rank": (c.c_int32, [_SESSION]),
    "prd_workers": (c.c_int32, [_SESSION]),
    "prd_iteration": (c.c_int64, [_SESSION]),
    "prd_engine": (c.c_char_p, [_SESSION]),
    "prd_needs_gradients": (c.c_int32, [_SESSION]),
}

_library = None


def _candidates():
    """Where libprd is looked for: the first that is there counts."""
    if "PRD_LIBRARY" in os.environ:
        return [os.environ["PRD_LIBRARY"]]
    found = places.library()
    return [found] * (found is not None) + ["libprd.so.0"]


def library():
    """The library, loaded when it is first asked for. ImportError says what is wrong with it."""
    global _library
    if _library is not None:
        return _library
    name = _candidates()[0]
    try:
        loaded = c.CDLL(name)  # RTLD_LOCAL; releases the GIL in every call
    except OSError as error:
        raise ImportError(
            f"prd needs libprd.so.0: {error}. Install it (cmake --install, or the package libprd0), "
            "or say where it is with PRD_LIBRARY=/path/to/libprd.so.0"
        ) from None
    if not hasattr(loaded, "prd_abi"):
        raise ImportError(f"{name} has no C interface: it is older than this package")
    loaded.prd_abi.restype = c.c_uint32
    major, minor = divmod(loaded.prd_abi(), 1 << 16)
    if major != ABI_MAJOR or minor < ABI_MINOR:
        raise ImportError(f"{name} has the C interface {major}.{minor}, and this package needs {ABI_MAJOR}.{ABI_MINOR}")
    for function, (returns, takes) in _FUNCTIONS.items():
        entry = getattr(loaded, function)
        entry.restype, entry.argtypes = returns, takes
    _library = loaded
    return _library
