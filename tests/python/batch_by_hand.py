#!/usr/bin/env python3
"""What a batch of the job saves where one worker is slow, by hand. Usage: batch_by_hand.py BIN_DIR [WORKERS [FACTOR [BATCH [MS]]]]

A script that sleeps MS for each sample, its slow worker FACTOR times as long, under all-reduce: steps per second with batches of
equal workers, and with a batch of the job; and what is possible. The four lines with a + are those of prd.
"""
import place
import os
import subprocess
import sys
import tempfile

SCRIPT = """
 import sys, time, torch
+import prd.torch
 torch.set_num_threads(1)
 torch.manual_seed(1)
 batch, per_worker, sleep_s, seconds = BATCH, PER_WORKER, SLEEP_S, SECONDS
 inputs = torch.randn(10_000, 64)
 data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
 loader = torch.utils.data.DataLoader(data, batch_size=per_worker, shuffle=True)
 model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
 optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
+worker = prd.torch.attach(model, optimizer, batch=batch)
+loader = worker.shard(loader)
 slow = FACTOR if worker.rank == 0 else 1
 begin, begun = None, 0
 while not worker.done:
     for x, y in loader:
         optimizer.zero_grad()
         torch.nn.functional.mse_loss(model(x), y).backward()
         time.sleep(len(x) * sleep_s * slow)
         optimizer.step()
         if begin is None and worker.session.iteration >= 20:
             begin, begun = time.monotonic(), worker.session.iteration
         if worker.rank == 0 and begin is not None and time.monotonic() > begin + seconds:
             worker.stop("measured")
 if worker.rank == 0:
     print((worker.session.iteration - begun) / (time.monotonic() - begin), len(x))
+worker.finish()
"""
FORKS = """
import os, runpy, sys, torch
sys.path.insert(0, os.environ["PYTHONPATH"])
children = []
for rank in range(int(sys.argv[2])):
    children.append(os.fork())
    if children[-1] == 0:
        os.environ["PRD_RANK"] = str(rank)
        runpy.run_path(sys.argv[1], run_name="__main__")
        sys.exit(0)
sys.exit(max(os.waitpid(child, 0)[1] != 0 for child in children))
"""


def measure(workers, factor, batch, ms, divided):
    """(steps per second, samples of the slow worker's newest batch)."""
    values = {"BATCH": batch if divided else None, "PER_WORKER": batch // workers, "SLEEP_S": ms / 1000, "FACTOR": factor, "SECONDS": 10}
    text = "\n".join(line[1:] for line in SCRIPT.splitlines())
    for name, value in values.items():
        text = text.replace(name, repr(value))
    with tempfile.TemporaryDirectory(prefix="prd-") as folder, place.Cluster(place.job("all-reduce", workers)) as c:
        with open(f"{folder}/train.py", "w") as file:
            file.write(text)
        done = subprocess.run([sys.executable, "-c", FORKS, f"{folder}/train.py", str(workers)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=place.environment(c, OMP_NUM_THREADS="1"))
        if done.returncode:
            sys.exit(done.stderr)
    rate, samples = done.stdout.split()
    return float(rate), int(samples)


def main():
    given = [float(x) for x in sys.argv[1:]]
    workers, factor, batch, ms = (int(x) if x == int(x) else x for x in given + [8, 5, 256, 2][len(given):])
    equal, _ = measure(workers, factor, batch, ms, False)
    divided, samples = measure(workers, factor, batch, ms, True)
    possible = factor * (workers - 1 + 1 / factor) / workers
    print(f"{workers} workers, one {factor} times slower, {batch} samples in a step, {ms} ms each: {equal:.2f} steps/s; with a batch of the job "
          f"{divided:.2f}, {divided / equal:.2f} times as many (possible: {possible:.2f}); the slow worker has {samples} of them, of {batch // workers}")


if __name__ == "__main__":
    main()
