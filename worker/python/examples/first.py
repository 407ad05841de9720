#!/usr/bin/env python3
"""A PyTorch script with prd's four lines, which are marked. Under prd with several workers:

    python3 -m prd.run -n 4 --engine p-reduce worker/python/examples/first.py

python3 first.py trains alone, as the script without these lines does.
"""
import torch
import prd.torch  # prd
inputs = torch.randn(2000, 8, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=20, shuffle=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
worker = prd.torch.attach(model, optimizer)  # prd: joins the job; optimizer.step() synchronises from here on
loader = worker.shard(loader)  # prd: this worker's own order; an epoch is the job's
for epoch in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
worker.finish()  # prd: every model is the average of all
print("weights", model.weight.tolist())
