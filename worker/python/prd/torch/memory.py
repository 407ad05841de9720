"""Zeros that the system provides when they are first touched."""
import mmap

import torch

_AT_ONCE = 1 << 20  # bytes; less is made at once


def zeros(count, dtype, device):
    """A tensor of `count` zeros. In host memory its pages are made where a loop alone would make them: in its first step."""
    size = torch.empty(0, dtype=dtype).element_size() * count
    if torch.device(device).type != "cpu" or size < _AT_ONCE:
        return torch.zeros(count, dtype=dtype, device=device)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype, count=count)


def zeros_like(tensor):
    """Zeros of the tensor's shape, strides, dtype and device."""
    strides = torch.empty_like(tensor, device="meta", memory_format=torch.preserve_format).stride()
    return zeros(tensor.numel(), tensor.dtype, tensor.device).as_strided(tensor.shape, strides)
