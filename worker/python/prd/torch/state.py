"""What an optimizer keeps from one step to the next, as state of the replica: whoever copies a replica gets it with it."""
import collections
import ctypes
import math
import threading

import torch

from prd.torch.memory import zeros_like

_NUMBERS = (bool, int, float)
_TRIED = 1 << 14  # elements of what an optimizer is tried on
# Threads that ask PyTorch for the state of its random numbers at the same time may wait for each other for ever: it holds a lock of its own there,
# and Python may switch threads meanwhile (PyTorch 1.13).
random_numbers = threading.Lock()


def _is_number(value, device):
    """Whether it goes as a number. A tensor of one element elsewhere does: Adam keeps its step counts on the CPU."""
    if torch.is_tensor(value):
        return value.numel() == 1 and (value.device != device or not value.is_floating_point())
    return isinstance(value, _NUMBERS)


def _gradient(parameter):
    """Some gradient for it that is nowhere 0."""
    values = torch.linspace(0.5, 1.5, parameter.numel(), device=parameter.device).to(parameter.dtype)
    return torch.empty_like(parameter, memory_format=torch.preserve_format).copy_(values.view(parameter.shape))


def _step_of_a_copy(optimizer, group, parameter, state, sparse):
    """What the optimizer's step makes of a copy of the parameter, and of `state`. Raises what that step raises."""
    copy = torch.nn.Parameter(parameter.detach().clone(memory_format=torch.preserve_format))
    copy.grad = _gradient(copy).to_sparse() if sparse else _gradient(copy)
    stand_in = object.__new__(type(optimizer))
    stand_in.__dict__.update(vars(optimizer), param_groups=[dict(group, params=[copy])], state=collections.defaultdict(dict))
    for name, value in vars(optimizer).items():
        if name in ("step", "zero_grad"):  # schedulers' and ours
            del stand_in.__dict__[name]
        elif name.endswith("_hooks"):
            stand_in.__dict__[name] = type(value)()
    if state is not None:
        stand_in.state[copy] = state
    stand_in.step()
    return copy.detach(), dict(stand_in.state.get(copy) or {})


def _zeros(made):
    return {
        key: torch.zeros_like(value) if torch.is_tensor(value) else type(value)(0) if isinstance(value, _NUMBERS) else value
        for key, value in made.items()
    }


def _equal(one, other):
    if torch.is_tensor(one) and torch.is_tensor(other):
        return torch.equal(one, other)
    return type(one) is type(other) and one == other


def _smaller(parameter):
    """A tensor of fewer elements to try the optimizer on; None: the parameter is small enough.

    Those of its dimensions that are shorter differ, so that state of another order of dimensions shows. Not too few elements:
    bitsandbytes keeps other state for less than 4,096. And no zeros, as state that begins as a copy of the parameter is no zeros.
    """
    shape, left = list(parameter.shape), _TRIED
    for k, i in enumerate(sorted(range(len(shape)), key=shape.__getitem__)):
        side = math.ceil(left ** (1 / (len(shape) - k)))
        shape[i] = min(shape[i], side + i)
        left = max(1, left // max(1, shape[i]))
    if not parameter.is_contiguous() or 2 * math.prod(shape) > parameter.numel():
        return None
    return _gradient(torch.empty(shape, dtype=parameter.dtype, device=parameter.device)).neg_()


def _made_at_first_step(optimizer, group, parameter):
    """What state the first step makes; and whether a step makes the same of zeros, which then are the state before it.

    None: that cannot be known. Of a large parameter it is found out on a smaller one, if all that is kept is of its shape, or a number.
    """
    small = _smaller(parameter)
    if small is None:
        return _tried(optimizer, group, parameter)
    made, of_zeros = _tried(optimizer, group, small)
    if made is None:
        return made, of_zeros
    grown = {}
    for key, value in made.items():
        if torch.is_tensor(value) and value.numel() > 1:
            if value.shape != small.shape or not value.is_contiguous():
                return _tried(optimizer, group, parameter)
            value = torch.zeros((), dtype=value.dtype, device=value.device).expand(parameter.shape)
        grown[key] = value
    return grown, of_zeros


def _tried(optimizer, group, parameter):
    """_made_at_first_step, on copies of this one."""
    for sparse in (False, True):
        try:
            after, made = _step_of_a_copy(optimizer, group, parameter, None, sparse)
            again, of_zeros = _step_of_a_copy(optimizer, group, parameter, _zeros(made), sparse) if made else (after, made)
        except Exception:  # its step needs sparse gradients; or a closure, or state that its constructor made
            continue
        return made, torch.equal(after, again) and made.keys() == of_zeros.keys() and all(_equal(made[key], of_zeros[key]) for key in made)
    return None, False


class _Parameter:
    """One parameter's state: tensors by key, numbers in the vector of all numbers from `first` + 1 on, and what never changes.

    At `first` itself is whether there is any.
    """

    def __init__(self, parameter, name, made, first, device, dtypes):
        self.parameter, self.name, self.first, self.keys = parameter, name, first, list(made)
        self.numbers = {key: value for key, value in made.items() if _is_number(value, device)}
        self.tensors = {
            key: zeros_like(value) for key, value in made.items()
            if key not in self.numbers and torch.is_tensor(value) and value.device == device and value.dtype in dtypes
        }
        self.constants = {key: value for key, value in made.items() if value is None or isinstance(value, str)}
        self.is_whole = len(self.numbers) + len(self.tensors) + len(self.constants) == len(made)

    def state(self, numbers):
        """As a dict of the optimizer's, with these values of the numbers."""
        found = {**self.tensors, **self.constants}
        for (key, kind), value in zip(self.numbers.items(), numbers):
            if torch.is_tensor(kind):
                found[key] = torch.full_like(kind, value)
            else:
                found[key] = type(kind)(value if isinstance(kind, float) else round(value))
        return {key: found[key] for key in self.keys}


class OptimizerState:
    """Keeps it in memory that stays where it is.

    An optimizer makes the state of a parameter in that parameter's first step. What it will make is found out before, by
    steps of a copy of the parameter.
    """

    def __init__(self, optimizer, names, device, dtypes):
        """names: of the parameters to look at, by id; dtypes: of the tensors that can be taken."""
        self._optimizer, self._state = optimizer, optimizer.state
        self._parameters = []
        self._zeros = []  # of these, those whose first gradient is to come, and whose state is zeros until then
        self.own = []  # names of the parameters whose state stays each worker's own
        count = 0
        with random_numbers, torch.random.fork_rng(devices=[]):
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if id(p) not in names:
                        continue
                    live = self._state.get(p)
                    made, of_zeros = _made_at_first_step(optimizer, group, p)
                    one = _Parameter(p, names[id(p)], live or {} if made is None else made, count, device, dtypes)
                    if not one.keys and made is not None:
                        continue
                    if not one.keys or not one.is_whole:
                        self.own.append(one.name)
                        continue
                    self._parameters.append(one)
                    count += 1 + len(one.numbers)
                    if of_zeros and not live:
                        self._state[p] = one.state([0] * len(one.numbers))
                        self._zeros.append(one)
        self._kept = list(self._parameters)  # those whose state is not this worker's own
        self._values = [0.0] * count
        self._facts = torch.zeros(count, dtype=torch.float64, device=device)
        self._told = self._facts.clone()
        # The bytes of both: torch.equal takes 25 us, and they are compared three times in a step.
        self._bytes = [(ctypes.c_char * (8 * count)).from_address(t.data_ptr()) for t in (self._facts, self._told)] if device.type == "cpu" else None
        self.keep()

    def tensors(self):
        """(name, tensor) of all that goes with a copy of the replica."""
        found = [(f"{key} of {one.name}", one.tensors[key]) for one in self._parameters for key in sorted(one.tensors)]
        return found + [("numbers of the optimizer's state", self._facts)] * bool(self._values)

    def tag(self):
        """What workers have to have in common of it, beside the tensors."""
        return type(self._optimizer).__name__ + ",".join(dict.fromkeys(key for one in self._parameters for key in one.keys))

    def is_replaced(self):
        """Whether it is another object now, as load_state_dict makes it."""
        return self._optimizer.state is not self._state

    def begin(self):
        """Before the optimizer's own step: zeros as a dense gradient needs them give way to what it makes of a sparse one."""
        for one in self._zeros:
            grad = one.parameter.grad
            if grad is not None and grad.is_sparse and not any(self._values[one.first + 1 : one.first + 1 + len(one.numbers)]):
                if not any(tensor.count_nonzero() for tensor in one.tensors.values()):
                    self._state.pop(one.parameter, None)
        self._zeros = [one for one in self._zeros if one.parameter.grad is None]

    def keep(self):
        """After the optimizer's own step: what is new of its state, or elsewhere, is brought to its place. Sparse tensors stay this worker's own."""
        changed, values, sparse = False, self._values, []
        with torch.no_grad():
            for one in self._kept:
                live = self._state.get(one.parameter)
                if not live:
                    continue
                for key, tensor in one.tensors.items():
                    now = live.get(key)
                    if now is not tensor and torch.is_tensor(now) and now.shape == tensor.shape:
                        if now.layout != torch.strided:
                            sparse.append(one)
                            break
                        live[key] = tensor.copy_(now)
                at = one.first
                if not values[at]:
                    values[at], changed = 1.0, True
                for key in one.numbers:
                    at += 1
                    number = float(live.get(key, 0))
                    if values[at] != number:
                        values[at], changed = number, True
            if changed:
                self._told.copy_(torch.tensor(values, dtype=torch.float64, device="cpu"))
                self._facts.copy_(self._told)
        if sparse:
            self.own += [one.name for one in sparse]
            self._kept = [one for one in self._kept if one not in sparse]

    def take_dense(self):
        """Gradients are dense from here on: what was this worker's own because they were sparse begins anew, as everybody's."""
        for one in self._parameters:
            if one not in self._kept:
                self._state.pop(one.parameter, None)
                self.own.remove(one.name)
        self._kept = list(self._parameters)

    def _is_told(self):
        if self._bytes is None:
            return torch.equal(self._facts, self._told)
        facts, told = self._bytes
        return facts.raw == told.raw

    def take(self):
        """Once the replica may have become a copy of another: the optimizer goes on with the state that came with it."""
        if not self._values or self._is_told():
            return
        self._told.copy_(self._facts)
        values = self._values = self._facts.tolist()
        for one in self._kept:
            at = one.first
            if values[at] > 0:
                values[at] = 1.0
                self._state[one.parameter].update(one.state(values[at + 1 : at + 1 + len(one.numbers)]))
            else:
                self._state.pop(one.parameter, None)
