"""A worker of a job with Accelerate. Run by frameworks_test.py; worker/python/README.md has its lines."""
import accelerate
import torch

import prd.torch

inputs = torch.randn(1000, 8, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=20, shuffle=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
accelerator = accelerate.Accelerator(cpu=True)
model, optimizer = accelerator.prepare(model, optimizer)
worker = prd.torch.attach(model, optimizer.optimizer)
loader = worker.shard(loader)
for epoch in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
worker.finish()
print("weights", model.weight.tolist())
