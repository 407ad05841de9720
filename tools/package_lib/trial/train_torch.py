"""The three lines of worker/python/README.md."""
import torch

import prd.torch

torch.manual_seed(1)
x = torch.randn(512, 8)
y = x @ torch.arange(8.0).reshape(8, 1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
worker = prd.torch.attach(model, optimizer)
loader = worker.shard(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True))
for epoch in range(30):
    for inputs, outputs in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), outputs).backward()
        optimizer.step()
worker.finish()
loss = torch.nn.functional.mse_loss(model(x), y).item()
print(f"torch {torch.__version__}, {worker.engine}: rank {worker.rank}, loss {loss:.4f}")
raise SystemExit(loss > 1)
