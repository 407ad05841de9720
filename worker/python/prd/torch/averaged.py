"""What is averaged with the parameters: buffers, and modules and tensors that the script names."""
import torch

from prd import errors

_LARGEST = 1024  # elements of a buffer of whole numbers that goes with the replica: counters, not tables


def _holders(modules, others):
    """(name, dict, key, is a buffer) of each tensor: the dict has it now, whatever replaces it."""
    for prefix, module in modules:
        for path, part in module.named_modules(prefix=prefix):
            for is_buffer, held in ((False, part._parameters), (True, part._buffers)):
                for key, tensor in held.items():
                    if tensor is not None:
                        yield f"{path}.{key}" if path else key, held, key, is_buffer
    for prefix, tensors in others:
        for key, tensor in tensors.items():
            if torch.is_tensor(tensor):
                yield f"{prefix}.{key}" if prefix else key, tensors, key, True


def _spans(tensors):
    """Where these are in memory, those that follow each other put together."""
    spans = []
    for begin, end in sorted((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in tensors if t.numel()):
        if spans and begin <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], end)
        else:
            spans.append([begin, end])
    return spans


def _is_within(tensor, spans):
    """As one over all parameters is, whose values are theirs."""
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        return False
    begin = tensor.data_ptr()
    end = begin + tensor.numel() * tensor.element_size()
    return begin != end and any(first <= begin and end <= last for first, last in spans)


class Averaged:
    """Floating-point tensors as they are, and small buffers of whole numbers as one tensor of float64.

    A tensor that holds an infinity or no number, as masks do, has no mean: it is what workers have to have in common. So is one that
    is sparse, complex, quantized or of eight bits. Whole numbers stay each worker's own while it trains. Whoever copies a replica gets
    the peer's, and after `finish` they are the rounded mean.
    """

    def __init__(self, model, buffers, more, parameters, device, dtypes):
        """parameters: the job's. more: attach(averaged=...)."""
        more = [more] if torch.is_tensor(more) or isinstance(more, (torch.nn.Module, dict)) else list(more)
        modules, others = [("", model)] if buffers else [], []
        for i, one in enumerate(more):
            if isinstance(one, torch.nn.Module):
                modules.append((f"averaged[{i}]", one))
            elif isinstance(one, dict) or torch.is_tensor(one):
                others.append((f"averaged[{i}]", one) if isinstance(one, dict) else ("", {f"averaged[{i}]": one}))
            else:
                raise errors.InvalidArgument(f"averaged[{i}]: found a {type(one).__name__}, needed is a module, a tensor or a dict of tensors")
        self._floats, self._whole = [], []  # (name, tensor); (dict, key)
        self._places = []  # (name, dict, key, tensor) of floats
        self.fixed = []  # (name, tensor) of what workers have to have in common
        seen, spans = {id(p) for p in parameters}, _spans(parameters)
        of_model = {id(p) for p in model.parameters()}
        for name, held, key, is_buffer in _holders(modules, others):
            tensor = held[key]
            if id(tensor) in seen or (id(tensor) in of_model and not is_buffer):
                continue
            seen.add(id(tensor))
            if _is_within(tensor, spans):
                continue
            if tensor.device != device:
                if name.startswith("averaged["):
                    raise errors.InvalidArgument(f"{name}: is on {tensor.device}, needed is where the model is, {device}")
            elif tensor.layout != torch.strided or tensor.is_quantized or (tensor.dtype in dtypes and not torch.isfinite(tensor).all()):
                self.fixed.append((name, tensor))
            elif tensor.dtype in dtypes:
                self._floats.append((name, tensor))
                self._places.append((name, held, key, tensor))
            elif not tensor.is_floating_point() and not tensor.is_complex() and tensor.numel() <= _LARGEST:
                self._whole.append((held, key))
            else:
                self.fixed.append((name, tensor))
        with torch.no_grad():
            self._values = self._now().clone()
            self._told = self._values.clone()

    def tensors(self):
        """(name, tensor) of all, the whole numbers last."""
        return self._floats + [("buffers of whole numbers", self._values)] * bool(self._whole)

    def _now(self):
        if not self._whole:
            return torch.zeros(0, dtype=torch.float64, device="cpu")
        return torch.cat([held[key].detach().reshape(-1) for held, key in self._whole]).double()

    def keep(self):
        """Before a call: adds what the script has counted since, and takes over tensors that it has put in the place of others."""
        for name, held, key, tensor in self._places:
            now = held.get(key)
            if now is tensor:
                continue
            if not torch.is_tensor(now) or now.shape != tensor.shape:
                found = f"a tensor of shape {tuple(now.shape)}" if torch.is_tensor(now) else f"a {type(now).__name__}"
                raise errors.FailedPrecondition(f"{name}: was replaced since attach by {found}, needed is one of shape {tuple(tensor.shape)}")
            with torch.no_grad():
                held[key] = tensor.copy_(now)
        if self._whole:
            with torch.no_grad():
                now = self._now()
                self._values += now - self._told
                self._told = now

    def take(self):
        """Once the replica may have become another: the script goes on with its numbers."""
        if self._whole:
            self.keep()
            with torch.no_grad():
                for tensor, value in self._split(self._values):
                    tensor.copy_(value)
                self._told = self._now()

    def wholes(self, values):
        """Tensors of these values, by id of the buffers that they are of."""
        return {id(tensor): value.to(tensor.dtype) for tensor, value in self._split(values)} if self._whole else {}

    def _split(self, values):
        at, values = 0, values.nan_to_num().round()
        for tensor in (held[key] for held, key in self._whole):
            yield tensor, values[at : at + tensor.numel()].view(tensor.shape)
            at += tensor.numel()
