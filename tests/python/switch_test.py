#!/usr/bin/env python3
"""A PyTorch script whose job goes from engine to engine. Usage: switch_test.py BIN_DIR [TEST ...]"""
import place
import json
import re
import subprocess
import sys
import unittest

try:
    import torch  # noqa: F401
except ModuleNotFoundError:
    print("OK (skipped: there is no python3-torch here)")
    sys.exit(0)

# Trains until told on its standard input to end. It says when it has made five steps under an engine.
SCRIPT = """
import collections, select, sys, torch, zlib
import prd.torch
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
worker = prd.torch.attach(model, optimizer)
under, losses = collections.Counter(), []
while not select.select([sys.stdin], [], [], 0)[0]:
    optimizer.zero_grad()
    inputs = torch.randn(8, 6)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(-1, keepdim=True))
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    under[worker.engine] += 1
    if under[worker.engine] == 5:
        print("five steps under", worker.engine, flush=True)
worker.finish()
digest = 0
for tensor in model.state_dict().values():
    digest = zlib.crc32(tensor.numpy().tobytes(), digest)
print("finished", digest, len(losses) == worker.trained[0], sum(losses[-10:]) < sum(losses[:10]))
"""
ENGINES = ["p-reduce", "all-reduce", "hop"]  # the second alone reduces gradients


class Switch(unittest.TestCase):
    def test_a_pytorch_script_goes_through_three_engines(self):
        with place.Cluster(place.job(ENGINES[0], 2, "lease_ms = 60000")) as c:
            workers = []
            for rank in range(2):
                workers.append(subprocess.Popen([sys.executable, "-W", "error", "-c", SCRIPT], env=place.environment(c, rank),
                                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
                self.addCleanup(workers[-1].communicate)
                self.addCleanup(workers[-1].kill)
            for engine in ENGINES:
                if engine != ENGINES[0]:
                    c.prdctl("switch", "toy", engine)
                for worker in workers:
                    said = worker.stdout.readline()
                    self.assertEqual(said, f"five steps under {engine}\n", said or worker.communicate()[1])
            digests = set()
            for worker in workers:
                worker.stdin.write("end\n")
                worker.stdin.flush()
            for worker in workers:
                out, err = worker.communicate(timeout=90)
                self.assertEqual(worker.returncode, 0, err)
                end = re.fullmatch(r"finished (\d+) True True", out.strip())
                self.assertIsNotNone(end, out)
                digests.add(end[1])
            self.assertEqual(len(digests), 1, "one model")
            found = [(run["engine"], run["state"]) for run in json.loads(c.prdctl("jobs"))["runs"]]
            self.assertEqual(found, [("p-reduce", "switched"), ("all-reduce", "switched"), ("hop", "finished")])
            c.stop_daemon()
            for run in ("1", "2", "3"):
                self.assertEqual(json.loads(c.prdctl("replay", run, offline=True))["not_recorded"], 0)


if __name__ == "__main__":
    unittest.main()
