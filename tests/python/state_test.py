#!/usr/bin/env python3
"""What optimizers keep, as state of the replica. Usage: state_test.py BIN_DIR [TEST ...]"""
import place
import collections
import copy
import pathlib
import resource
import subprocess
import sys
import threading
import unittest
import unittest.mock

try:
    import torch
except ModuleNotFoundError:
    print("OK (skipped: there is no python3-torch here)")
    sys.exit(0)

import prd.torch
from prd.torch import _DTYPES
from prd.torch import state as state_of_torch
from prd.torch.alone import AloneSession
from prd.torch.memory import zeros_like
from prd.torch.state import OptimizerState

torch.set_num_threads(1)
OPTIMIZERS = {
    "SGD": {}, "SGD with momentum": dict(momentum=0.9, nesterov=True), "SGD with dampening": dict(momentum=0.9, dampening=0.1),
    "Adam": dict(amsgrad=True), "AdamW": {}, "Adadelta": {}, "Adagrad": {}, "Adamax": {}, "ASGD": {}, "NAdam": {}, "RAdam": {},
    "RMSprop": dict(momentum=0.9, centered=True), "Rprop": {},
}


class Own(torch.optim.Optimizer):
    """As of a package of its own: a step is `update` of each parameter and its state."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, dict(lr=lr))

    @torch.no_grad()
    def step(self):
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            self.update(p, self.state[p])


class Drifts(Own):
    """Draws random numbers, replaces its tensors in each step, and keeps a number, a flag and a name."""

    def update(self, p, state):
        state["mean"] = 0.9 * state.get("mean", torch.ones_like(p)) + p.grad + 0.01 * torch.randn_like(p)
        state["seen"] = state.get("seen", 0.5) + 1
        state["fresh"], state["name"], state["nothing"] = not state.get("fresh", False), "drift", None
        p.sub_(state["mean"], alpha=0.01 * state["seen"])


class Rows(Own):
    """Keeps a number for each row."""

    def update(self, p, state):
        rows = state.setdefault("rows", torch.zeros(len(p)))
        rows += p.grad.reshape(len(p), -1).square().mean(1)
        p.sub_(p.grad, alpha=0.01)


class Begins(Own):
    """Keeps where it began."""

    def update(self, p, state):
        p.sub_(p.grad + p - state.setdefault("began", p.clone()), alpha=0.01)


def make(name, seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    if name == "Drifts":
        return model, Drifts(model.parameters(), 0.01)
    return model, getattr(torch.optim, name.split()[0])(model.parameters(), lr=0.01, **OPTIMIZERS[name])


def step(model, optimizer, seed):
    torch.manual_seed(seed)
    optimizer.zero_grad()
    model(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()


def state_of(model, optimizer):
    return OptimizerState(optimizer, {id(p): name for name, p in model.named_parameters()}, torch.device("cpu"), _DTYPES)


def kept(model, optimizer):
    """All of it in a form that can be compared."""
    return [
        [p.tolist(), sorted((key, value.tolist() if torch.is_tensor(value) else value) for key, value in optimizer.state[p].items())]
        for p in model.parameters()
    ]


class State(unittest.TestCase):
    def test_the_first_step_is_what_it_would_be_without(self):
        for name in [*OPTIMIZERS, "Drifts"]:
            with self.subTest(name):
                plain, ours = make(name), make(name)
                seed = torch.initial_seed()
                before = torch.random.get_rng_state()
                state = state_of(*ours)
                self.assertEqual(state.own, [])
                self.assertTrue(torch.equal(before, torch.random.get_rng_state()) and seed == torch.initial_seed())
                pointers = [tensor.data_ptr() for _, tensor in state.tensors()]
                for i in range(4):
                    for pair in (plain, ours):
                        step(*pair, i)
                    state.keep()
                    self.assertEqual(kept(*plain), kept(*ours))
                self.assertEqual(pointers, [tensor.data_ptr() for _, tensor in state.tensors()])
                live = {v.data_ptr() for of in ours[1].state.values() for v in of.values() if torch.is_tensor(v)}
                self.assertLessEqual(live, set(pointers), "what is copied is what the optimizer uses")

    def test_large_parameters_are_not_copied_to_find_out(self):
        """The optimizer is tried on smaller ones, with the same result, unless it keeps something of another shape."""
        names = [*OPTIMIZERS, "Drifts", "Rows", "Begins"] + ["Adafactor"] * hasattr(torch.optim, "Adafactor")
        for name in names:
            with self.subTest(name):
                model = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(shape)) for shape in ((300, 200), (64, 48, 3, 3), (50000,), (3, 2))])
                if issubclass(own := globals().get(name, object), Own):
                    optimizer = own(model.parameters(), 0.01)
                else:
                    optimizer = getattr(torch.optim, name.split()[0])(model.parameters(), lr=0.01, **OPTIMIZERS.get(name, {}))
                tried, copied = [], state_of_torch._step_of_a_copy
                def note(optimizer, group, parameter, *rest):
                    tried.append(parameter.numel())
                    return copied(optimizer, group, parameter, *rest)
                described = []
                for smaller in (state_of_torch._smaller, lambda parameter: None):
                    optimizer.state.clear()
                    with unittest.mock.patch.object(state_of_torch, "_step_of_a_copy", note), unittest.mock.patch.object(state_of_torch, "_smaller", smaller):
                        found = state_of(model, optimizer)
                    described.append(([(key, t.shape, t.stride(), t.dtype) for key, t in found.tensors()], found.tag(), found.own,
                                      [sorted(optimizer.state[p]) for p in model.parameters()]))
                    if not described[1:]:
                        self.assertEqual(max(tried) > 30000, name in ("Rows", "Adafactor"), tried)
                self.assertEqual(*described)
                self.assertEqual(max(tried), 60000)

    def test_zeros_take_no_memory_before_they_are_touched(self):
        def resident():
            return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)

        for like in (torch.ones(0), torch.ones(2, 3), torch.ones(1 << 20), torch.ones(4, 64, 64, 128, dtype=torch.bfloat16).to(memory_format=torch.channels_last),
                     torch.ones(()).expand(1000, 1000)):
            expected, found = torch.zeros_like(like, memory_format=torch.preserve_format), zeros_like(like)
            self.assertEqual((found.shape, found.stride(), found.dtype), (expected.shape, expected.stride(), expected.dtype))
            self.assertTrue(torch.equal(expected, found))
        model = torch.nn.Linear(4096, 4096)  # 64 MiB
        optimizer = torch.optim.AdamW(model.parameters())
        before = resident()
        state = state_of(model, optimizer)
        self.assertLess(resident() - before, 32)
        for _, tensor in state.tensors():
            tensor.add_(1)
        self.assertGreater(resident() - before, 96)

    def test_whoever_copies_goes_on_with_it(self):
        for name in [*OPTIMIZERS, "Drifts"]:
            for late in (False, True):
                with self.subTest(name, late=late):
                    source, other = make(name), make(name, seed=1)
                    states = [state_of(*source), state_of(*other)]
                    self.assertEqual(*([(n, t.shape) for n, t in state.tensors()] for state in states))
                    self.assertEqual(states[0].tag(), states[1].tag())
                    for i in range(3):
                        step(*source, i)
                        states[0].keep()
                    if late:
                        step(*other, 7)
                        states[1].keep()
                    for (_, to), (_, come) in zip(states[1].tensors(), states[0].tensors()):
                        to.copy_(come)
                    other[0].load_state_dict(source[0].state_dict())
                    states[1].take()
                    for i in range(3, 6):
                        step(*source, i)
                        step(*other, i)
                        for state in states:
                            state.keep()
                        self.assertEqual(kept(*source), kept(*other))

    def test_a_loaded_state_is_the_state(self):
        for name in [*OPTIMIZERS, "Drifts"]:
            with self.subTest(name):
                source, loaded, fresh = make(name), make(name), make(name, seed=1)
                for i in range(3):
                    step(*source, i)
                for model, optimizer in (loaded,):
                    model.load_state_dict(source[0].state_dict())
                    optimizer.load_state_dict(copy.deepcopy(source[1].state_dict()))
                states = [state_of(*loaded), state_of(*fresh)]
                for (_, to), (_, come) in zip(states[1].tensors(), states[0].tensors()):
                    to.copy_(come)
                fresh[0].load_state_dict(source[0].state_dict())
                states[1].take()
                for pair in (source, loaded, fresh):
                    step(*pair, 5)
                self.assertEqual(kept(*source), kept(*loaded))
                self.assertEqual(kept(*source), kept(*fresh))

    def test_sparse_gradients_make_state_too(self):
        model = torch.nn.Embedding(20, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(model.parameters())
        state = state_of(model, optimizer)
        self.assertEqual((state.own, [name for name, _ in state.tensors()][:2]), ([], ["exp_avg of weight", "exp_avg_sq of weight"]))

    def test_sparse_momentum_is_as_without_prd(self):
        """Alone, and where it stays the worker's own; also where it was loaded, and where a gradient comes late."""
        def make(options, loaded=None):
            torch.manual_seed(0)
            model = torch.nn.Embedding(20, 4, sparse=True)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)
            if loaded:
                optimizer.load_state_dict(copy.deepcopy(loaded))
            return model, optimizer

        def train(model, optimizer, steps):
            for i in range(steps):
                optimizer.zero_grad(set_to_none=True)
                model(torch.tensor([i, i + 1, i])).square().sum().backward()
                optimizer.step()
            return model.weight.tolist(), optimizer.state[model.weight]["momentum_buffer"].to_dense().tolist()

        for options in ({}, dict(nesterov=True), dict(dampening=0.1)):
            loaded = make(options)
            train(*loaded, 2)
            for given in (None, loaded[1].state_dict()):
                with self.subTest(options=options, loaded=given is not None):
                    plain = train(*make(options, given), 5)
                    alone = make(options, given)
                    prd.torch.attach(*alone, session=AloneSession())
                    self.assertEqual(train(*alone, 5), plain)
                    model, optimizer = make(options, given)
                    state = state_of(model, optimizer)
                    self.assertEqual([name for name, _ in state.tensors()][0], "momentum_buffer of weight", "as of a worker that has loaded none")
                    state.begin()
                    optimizer.step()  # without a gradient
                    state.keep()
                    step = optimizer.step

                    def step_and_keep():
                        state.begin()
                        step()
                        state.keep()

                    optimizer.step = step_and_keep
                    self.assertEqual(train(model, optimizer, 5), plain)
                    self.assertEqual(state.own, ["weight"])
                    state.take_dense()  # the engine is another now
                    model.weight.grad = torch.ones(20, 4)
                    optimizer.step()
                    self.assertEqual((state.own, state.tensors()[0][1].tolist()), ([], model.weight.grad.tolist()))

    def test_a_state_that_was_not_there_is_not_there(self):
        """Of a parameter without a gradient; and of a worker that has stepped and becomes the copy of one that has not."""
        model, optimizer = make("NAdam")
        other = make("NAdam")
        states = [state_of(model, optimizer), state_of(*other)]
        step(*other, 0)
        states[1].keep()
        self.assertGreater(len(other[1].state), 0)
        for (_, to), (_, come) in zip(states[1].tensors(), states[0].tensors()):
            to.copy_(come)
        states[1].take()
        self.assertEqual(len(other[1].state), 0)
        model[0].weight.requires_grad_(False)
        step(model, optimizer, 0)
        states[0].keep()
        self.assertNotIn(model[0].weight, optimizer.state)
        self.assertIn(model[1].weight, optimizer.state)

    def test_what_cannot_be_known_stays_the_workers_own(self):
        model, _ = make("SGD")
        lists = torch.optim.LBFGS(model.parameters())
        self.assertEqual(state_of(model, lists).own[0], "0.weight")
        self.assertEqual(state_of(model, lists).tensors(), [])
        integers = Drifts(model.parameters(), 0.01)
        step(model, integers, 0)
        integers.state[model[0].weight]["counts"] = torch.zeros(3, dtype=torch.int64)
        self.assertEqual(state_of(model, integers).own, [], "what the optimizer makes is what counts")

    def test_a_killed_worker_comes_back_with_the_others_state(self):
        with place.Cluster(place.job("all-reduce", 3, "check_replicas_ms = 200", name="*")) as c:
            stop = c.dir / "stop"
            found = collections.defaultdict(set)  # digests by job and iteration
            steps = collections.Counter()
            changed = threading.Condition()

            def read(program, who):
                for line in program.stdout:
                    job, iteration, digest = line.split()
                    with changed:
                        found[job, int(iteration)].add(digest)
                        steps[who] += 1
                        changed.notify_all()

            def start(rank, who):
                program = subprocess.Popen(
                    [sys.executable, place.ROOT / "tests/python/restart_program.py", stop, str(rank)],
                    env=place.environment(c, rank), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )
                reader = threading.Thread(target=read, args=(program, who))
                reader.start()
                return program, reader

            def wait_for(who, count):
                with changed:
                    self.assertTrue(changed.wait_for(lambda: steps[who] >= count, 90), f"{who} has made {steps[who]} steps")

            programs = [start(rank, rank) for rank in range(3)]
            try:
                wait_for(2, 20)
                programs[2][0].kill()
                programs.append(start(2, "again"))
                wait_for("again", 40)
            finally:
                with changed:
                    newest = max((iteration for _, iteration in found), default=0)
                (c.dir / "stop.new").write_text(str(newest + 20))
                (c.dir / "stop.new").rename(stop)
            for program, reader in programs:
                reader.join()
                _, err = program.communicate(timeout=90)
                if program is not programs[2][0]:
                    self.assertEqual(program.returncode, 0, err)
            self.assertEqual({key: digests for key, digests in found.items() if len(digests) > 1}, {})
            self.assertEqual({job for job, _ in found}, {"adam", "adadelta"})
            self.assertNotIn("has other parameters", (c.dir / "prd.log").read_text())


if __name__ == "__main__":
    unittest.main()
