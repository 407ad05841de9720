"""Arrays of other libraries as the tensors that prd takes."""
import collections.abc
import ctypes
import sys
from typing import Any, NamedTuple

DTYPES = {"f32": (0, 4), "f64": (1, 8), "f16": (2, 2), "bf16": (3, 2)}  # prd.h's number, bytes
_TYPESTR = {"<f4": "f32", "<f8": "f64", "<f2": "f16"}
_FORMATS = {"f": "<f4", "d": "<f8", "e": "<f2"}  # of the buffer protocol


class Tensor(NamedTuple):
    """A dense block of elements: what any array becomes, and what a caller gives who has none of the interfaces."""

    pointer: int
    count: int
    dtype: str  # "f32", "f64", "f16" or "bf16"
    on_gpu: bool = False
    order: str = ""  # how the elements lie, where that is not C order
    owner: Any = None  # kept alive as long as the tensor is in use


def order_of(shape, strides, size):
    """"" for C order, the strides of another dense order, None if elements lie apart."""
    if strides is None or 0 in shape:
        return ""
    axes = [(stride, extent) for stride, extent in zip(strides, shape) if extent != 1]
    at = size
    for stride, extent in sorted(axes):
        if stride != at:
            return None
        at *= extent
    return "" if axes == sorted(axes, reverse=True) else str([stride for stride, _ in axes])


def _has_interface(array):
    return hasattr(array, "__array_interface__") or hasattr(array, "__cuda_array_interface__")


def _buffer(array):
    """A memoryview, or None."""
    try:
        return memoryview(array)
    except TypeError:
        return None


def _of_buffer(view, name):
    """What __array_interface__ would say of it, and what keeps the memory there."""
    if view.readonly:
        raise ValueError(f"{name}: is read-only")
    if not view.c_contiguous:
        raise ValueError(f"{name}: its elements lie apart (strides {view.strides}), needed is a dense block in C order")
    memory = (ctypes.c_char * view.nbytes).from_buffer(view)
    typestr = _FORMATS.get(view.format.lstrip("@=<"), f"<{view.format[-1:]}{view.itemsize}")
    return {"data": (ctypes.addressof(memory), False), "shape": view.shape, "typestr": typestr}, memory


def tensor(array, name="array", dtype=None):
    """The Tensor of an array with __array_interface__ or __cuda_array_interface__ (numpy, CuPy, Numba), or of the buffer protocol
    (array.array, ctypes, memoryview), whose length is then fixed for as long as it is in use.

    `dtype`: of arrays whose library does not name it, "bf16". ValueError says what is wrong with it, by `name`.
    """
    if isinstance(array, Tensor):
        return array
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, numpy.generic):  # its interface is of a copy
        raise ValueError(f"{name}: found a number of numpy, {array!r}, needed is an array, which has a place of its own")
    on_gpu = hasattr(array, "__cuda_array_interface__")
    found = getattr(array, "__cuda_array_interface__" if on_gpu else "__array_interface__", None)
    if found is None:
        view = _buffer(array)
        if view is None:
            raise ValueError(f"{name}: a {type(array).__name__} has neither __array_interface__ nor __cuda_array_interface__, nor a buffer")
        found, array = _of_buffer(view, name)
    dtype = dtype or _TYPESTR.get(found["typestr"])
    if dtype not in DTYPES or int(found["typestr"][2:]) != DTYPES[dtype][1]:
        raise ValueError(f"{name}: its elements are {found['typestr']}, allowed are float32, float64, float16 and bfloat16 of this machine")
    pointer, read_only = found["data"]
    if read_only:
        raise ValueError(f"{name}: is read-only")
    order = order_of(found["shape"], found.get("strides"), DTYPES[dtype][1])
    if order is None:
        raise ValueError(f"{name}: its elements lie apart (strides {found['strides']}), needed is a dense block")
    count = 1
    for extent in found["shape"]:
        count *= extent
    return Tensor(pointer or 0, count, dtype, on_gpu, order, array)


def tensors(arrays, name):
    """The same of a sequence; a single array is a sequence of one."""
    if isinstance(arrays, Tensor) or _has_interface(arrays) or _buffer(arrays) is not None:
        arrays = [arrays]
    if not isinstance(arrays, collections.abc.Iterable):
        raise ValueError(f"{name}: found a {type(arrays).__name__}, needed are arrays")
    return [tensor(array, f"{name}[{i}]") for i, array in enumerate(arrays)]
