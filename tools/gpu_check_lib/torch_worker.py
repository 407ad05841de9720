"""What torch_check.py runs in each worker: torch_worker.py CASE DEVICE [QUICK]. Prints JSON lines."""
import hashlib
import json
import os
import signal
import sys
import time

import torch

import prd
import prd.torch

DEVICE = torch.device(sys.argv[2])
QUICK = "quick" in sys.argv[3:]
ON_GPU = DEVICE.type == "cuda"


def say(**line):
    print(json.dumps(line), flush=True)


def digest(model):
    """Of all bytes of what `finish` makes equal."""
    tensors = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
    return hashlib.sha256(b"".join(t.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors)).hexdigest()[:16]


def problem():
    """A learnable set of data, and a model with running statistics."""
    torch.manual_seed(1)
    inputs = torch.randn(4096, 32)
    targets = torch.tanh(inputs @ torch.randn(32, 8)).sum(1, keepdim=True)
    model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.BatchNorm1d(256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(DEVICE)
    return torch.utils.data.TensorDataset(inputs, targets), model


def loss_of(model, data):
    with torch.no_grad():
        return torch.nn.functional.mse_loss(model(data.tensors[0].to(DEVICE)), data.tensors[1].to(DEVICE)).item()


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-3, **({"fused": True} if ON_GPU else {}))


def engine():
    """Trains until the job's goal, and says what came of it. Rank 2 dies on the way where PRD_CHECK_DIES says so."""
    data, model = problem()
    optimizer = optimizer_of(model)
    first = loss_of(model, data)
    worker = prd.torch.attach(model, optimizer)
    loader = worker.shard(torch.utils.data.DataLoader(data, batch_size=64, shuffle=True))
    steps = 0
    while not worker.done:
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x.to(DEVICE)), y.to(DEVICE)).backward()
            time.sleep(0.01)
            if "PRD_CHECK_DIES" in os.environ and worker.rank == 2 and steps == 40:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            steps += 1
    transports = worker.session.group_transports._asdict()
    worker.finish()
    say(rank=worker.rank, engine=worker.engine, steps=steps, first=first, last=loss_of(model, data), model=digest(model), groups=transports)


def exact():
    """Two workers under all-reduce are one process that averages both gradients: float64, momentum, on a stream of the caller's."""
    torch.manual_seed(1)
    inputs = torch.randn(64, 16, dtype=torch.float64, device=DEVICE)
    targets = inputs.sin().sum(1, keepdim=True)

    def made():
        torch.manual_seed(2)
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).double().to(DEVICE)
        return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def loss(model, rank):
        return torch.nn.functional.mse_loss(model(inputs[rank::2]), targets[rank::2])

    reference, alone = made()
    for _ in range(50):
        alone.zero_grad()
        ((loss(reference, 0) + loss(reference, 1)) / 2).backward()
        alone.step()
    model, optimizer = made()
    stream = torch.cuda.Stream(DEVICE) if ON_GPU else None
    if ON_GPU:
        torch.cuda.synchronize(DEVICE)
    with torch.cuda.stream(stream) if ON_GPU else torch.enable_grad():
        worker = prd.torch.attach(model, optimizer)
        for _ in range(50):
            optimizer.zero_grad()
            loss(model, worker.rank).backward()
            optimizer.step()
        transports = worker.session.group_transports._asdict()
        worker.finish()
    if ON_GPU:
        torch.cuda.synchronize(DEVICE)
    worst = max((a - b).abs().max().item() for a, b in zip(model.parameters(), reference.parameters()))
    say(rank=worker.rank, worst=worst, groups=transports)


def graph():
    """A CUDA graph of the forward and the backward pass, as PyTorch's manual has it, with its documented zero_grad before."""
    data, model = problem()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    first = loss_of(model, data)
    worker = prd.torch.attach(model, optimizer)
    x, y = (t[worker.rank * 64 : worker.rank * 64 + 64].to(DEVICE) for t in data.tensors)
    side = torch.cuda.Stream(DEVICE)
    side.wait_stream(torch.cuda.current_stream(DEVICE))
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.mse_loss(model(x), y).backward()
    torch.cuda.current_stream(DEVICE).wait_stream(side)
    refused = []
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    except Exception as error:
        refused.append(f"{type(error).__name__}: {error}")
    torch.cuda.synchronize(DEVICE)
    captured, said = torch.cuda.CUDAGraph(), ""
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(captured):
        torch.nn.functional.mse_loss(model(x), y).backward()
    norms = []
    for i in range(100):
        at = (i * 2 + worker.rank) * 64 % 4096
        x.copy_(data.tensors[0][at : at + 64])
        y.copy_(data.tensors[1][at : at + 64])
        captured.replay()
        try:
            optimizer.step()
        except prd.FailedPrecondition as error:
            said = str(error)
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x), y).backward()
        if i in (0, 99):
            norms.append(sum(p.grad.norm().item() ** 2 for p in model.parameters()) ** 0.5)
    worker.finish()
    say(rank=worker.rank, engine=worker.engine, first=first, last=loss_of(model, data), model=digest(model), step_refused=refused,
        without_zero_grad=said, norms=norms)


def memory(alone=False):
    """What a worker takes on the device beyond its parameters, in models, after some steps; and what time these take."""
    width = 1024 if QUICK else 4096
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4))).to(DEVICE)
    model_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    optimizer = optimizer_of(model)
    x = torch.randn(16, width, device=DEVICE)
    before = used(True)
    began = time.monotonic()
    worker = None if alone else prd.torch.attach(model, optimizer)
    attached = time.monotonic() - began
    times = []
    for _ in range(13):
        began = time.monotonic()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if ON_GPU:
            torch.cuda.synchronize(DEVICE)
        times.append(time.monotonic() - began)
    beyond = {key: round((now - before[key]) / model_bytes, 3) for key, now in used(False).items()}
    if worker is not None:
        worker.finish()
    say(models=beyond, model_mib=model_bytes >> 20, attach_s=round(attached, 3), first_step_s=round(times[0], 4),
        step_s=round(sorted(times[1:])[6], 5))


def used(first):
    """Bytes of this process's on the device: of PyTorch's tensors, at most and now, and as the driver counts, which has the library's."""
    if not ON_GPU:
        return {}
    import gc

    if first:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(DEVICE)
    torch.cuda.synchronize(DEVICE)
    found = {"torch": torch.cuda.memory_allocated(DEVICE), "torch_peak": torch.cuda.max_memory_allocated(DEVICE),
             "torch_reserved": torch.cuda.memory_reserved(DEVICE)}
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(DEVICE.index or 0)
        by_pid = {one.pid: one.usedGpuMemory for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        found["driver"] = by_pid[os.getpid()]
    except Exception:  # a driver that does not tell, or another view of processes
        free, total = torch.cuda.mem_get_info(DEVICE)
        found["device"] = total - free
    return found


CASES = {"engine": engine, "exact": exact, "graph": graph, "memory": memory, "memory-alone": lambda: memory(True)}
CASES[sys.argv[1]]()
