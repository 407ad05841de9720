"""A worker whose training is nothing but steps, as `prdbench step-process` is: what a step costs from Python.

Usage: step_worker.py raw|torch TENSORS ELEMENTS STEPS STEP_MS. PRD_* say which worker of which job. Prints a JSON object.
"""
import json
import sys
import time


def raw(tensors, elements):
    """prd.Session: gives its step, its end, and itself."""
    import numpy
    import prd

    session = prd.Session()
    session.attach(*([numpy.zeros(elements, numpy.float32) for _ in range(tensors)] for _ in range(2)), lambda: None)
    return lambda: session.step(samples=1), session.finish, session


def attached(tensors, elements):
    """prd.torch, with an optimizer that does nothing: the same."""
    import torch
    import prd.torch

    class Nothing(torch.optim.Optimizer):
        def step(self):
            pass

    torch.set_num_threads(1)
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(elements)) for _ in range(tensors))
    optimizer = Nothing(model.parameters(), {})
    worker = prd.torch.attach(model, optimizer, samples=1)
    return optimizer.step, worker.finish, worker.session


class Library:
    """Counts the processor time in the library's functions."""

    def __init__(self, library):
        self._library = library
        self.used = 0.0

    def __getattr__(self, name):
        function = getattr(self._library, name)

        def timed(*arguments):
            before = time.thread_time()
            try:
                return function(*arguments)
            finally:
                self.used += time.thread_time() - before

        setattr(self, name, timed)
        return timed


def python_us(step, session, steps):
    """The median of the processor time that a step takes outside the library: what it costs more than in C++, however busy the
    machine is."""
    plain, session._library = session._library, Library(session._library)
    outside = []
    for _ in range(steps):
        before = time.thread_time() - session._library.used
        step()
        outside.append(time.thread_time() - session._library.used - before)
    session._library = plain
    return round(sorted(outside)[steps // 2] * 1e6, 1)


def main():
    kind = {"raw": raw, "torch": attached}[sys.argv[1]]
    tensors, elements, steps = map(int, sys.argv[2:5])
    step_s = float(sys.argv[5]) / 1000
    step, finish, session = kind(tensors, elements)
    in_step = []
    begun = time.perf_counter()
    for _ in range(steps):
        computed = time.perf_counter() + step_s
        while time.perf_counter() < computed:
            pass
        before = time.perf_counter()
        step()
        in_step.append(time.perf_counter() - before)
    seconds = time.perf_counter() - begun
    in_step.sort()
    print(json.dumps({"median_us": round(in_step[steps // 2] * 1e6, 1), "p90_us": round(in_step[steps * 9 // 10] * 1e6, 1),
                      "steps_per_s": round(steps / seconds, 3), "python_us": python_us(step, session, steps)}), flush=True)
    finish()


if __name__ == "__main__":
    main()
