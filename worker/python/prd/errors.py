"""The errors of prd. Each is also the built-in exception that says most nearly the same."""
import contextlib
import re


class Error(Exception):
    """What a call of prd failed with. `code`: its name, as "unavailable"."""

    code = "internal error"


class InvalidArgument(Error, ValueError):
    """What the caller gave cannot be used; the same call fails again."""

    code = "invalid argument"


class NotFound(Error, LookupError):
    """There is no job of this name."""

    code = "not found"


class AlreadyExists(Error):
    """There is one of this name already."""

    code = "already exists"


class FailedPrecondition(Error, RuntimeError):
    """The call is not allowed now."""

    code = "failed precondition"


class Unavailable(Error, ConnectionError):
    """A peer, the controller or a device is away. The same call may succeed later."""

    code = "unavailable"


class DeadlineExceeded(Error, TimeoutError):
    """It took longer than its time limit."""

    code = "deadline exceeded"


class Aborted(Error):
    """A peer or the controller called it off, or `apply` failed."""

    code = "aborted"


class DataLoss(Error):
    """Bytes are damaged or wrong."""

    code = "data loss"


class ResourceExhausted(Error, MemoryError):
    """No memory, file descriptors or room for a worker is left."""

    code = "resource exhausted"


class Cancelled(Error):
    """Session.cancel was called."""

    code = "cancelled"


class Internal(Error):
    """A bug in prd, or an error of CUDA or NCCL."""


@contextlib.contextmanager
def in_words(names, more=lambda said: said):
    """Errors of the library name tensors by their place in these lists, by what is listed; a script's author knows them by name.

    more: what else is said, of the text.
    """
    try:
        yield
    except Error as error:
        text = str(error)
        kinds = "|".join(names)

        def named(found):
            of, at = names[found[1]], int(found[2])
            return f"{found[0]} ({of[at]})" if at < len(of) else found[0]

        said = more(re.sub(rf"\b({kinds})\[(\d+)\]", named, text))
        if said == text:
            raise
        raise type(error)(said) from None


# By code, from -1 on, as in prd/prd.h.
BY_CODE = [InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, Unavailable, DeadlineExceeded, Aborted, DataLoss,
           ResourceExhausted, Cancelled, Internal]
