"""A worker whose training is nothing but steps, as `prdbench step-process` is: what a step costs from Python.

Usage: step_worker.py raw|torch TENSORS ELEMENTS STEPS STEP_MS. PRD_* say which worker of which job. Prints a JSON object.
"""
import json
import sys
import time


def raw(tensors, elements):
    """prd.Session: gives its step, and its end."""
    import numpy
    import prd

    session = prd.Session()
    session.attach(*([numpy.zeros(elements, numpy.float32) for _ in range(tensors)] for _ in range(2)), lambda: None)
    return lambda: session.step(samples=1), session.finish


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
    return optimizer.step, worker.finish


def main():
    kind = {"raw": raw, "torch": attached}[sys.argv[1]]
    tensors, elements, steps = map(int, sys.argv[2:5])
    step_s = float(sys.argv[5]) / 1000
    step, finish = kind(tensors, elements)
    in_step = []
    begun = time.perf_counter()
    for _ in range(steps):
        if step_s:
            time.sleep(step_s)
        before = time.perf_counter()
        step()
        in_step.append(time.perf_counter() - before)
    seconds = time.perf_counter() - begun
    in_step.sort()
    print(json.dumps({"median_us": round(in_step[steps // 2] * 1e6, 1), "p90_us": round(in_step[steps * 9 // 10] * 1e6, 1),
                      "steps_per_s": round(steps / seconds, 3)}), flush=True)
    finish()


if __name__ == "__main__":
    main()
