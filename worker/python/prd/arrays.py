"""Arrays of other libraries as the tensors that prd takes."""
from typing import Any, NamedTuple

DTYPES = {"f32": (0, 4), "f64": (1, 8), "f16": (2, 2), "bf16": (3, 2)}  # prd.h's number, bytes
_TYPESTR = {"<f4": "f32", "<f8": "f64", "<f2": "f16"}


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


def tensor(array, name="array", dtype=None):
    """The Tensor of an array with __array_interface__ or __cuda_array_interface__ (numpy, CuPy, Numba).

    `dtype`: of arrays whose library does not name it, "bf16". ValueError says what is wrong with it, by `name`.
    """
    if isinstance(array, Tensor):
        return array
    on_gpu = hasattr(array, "__cuda_array_interface__")
    found = getattr(array, "__cuda_array_interface__" if on_gpu else "__array_interface__", None)
    if found is None:
        raise ValueError(f"{name}: a {type(array).__name__} has neither __array_interface__ nor __cuda_array_interface__")
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
    if hasattr(arrays, "__array_interface__") or hasattr(arrays, "__cuda_array_interface__") or isinstance(arrays, Tensor):
        arrays = [arrays]
    return [tensor(array, f"{name}[{i}]") for i, array in enumerate(arrays)]
