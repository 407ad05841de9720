"""A loop of one's own with Hugging Face's Accelerate.

    python3 -m prd.run -n 3 --engine p-reduce --option group_size=2 with_accelerate.py

What it cannot do: `accelerate launch`, for prd starts the workers; accelerator.save_state and the like are rank 0's to call.
"""
import accelerate
import torch

import prd.accelerate

EPOCHS = 10

inputs = torch.randn(2000, 8, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=20, shuffle=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

accelerator = accelerate.Accelerator()
model, optimizer = accelerator.prepare(model, optimizer)
worker = prd.accelerate.attach(accelerator, model, optimizer)
loader = worker.shard(loader)
# Made for the loader's length, which is of this worker's share now, and stepped by the job's clock.
scheduler = worker.scheduler(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.optimizer, EPOCHS * len(loader), 0.002))
for epoch in worker.epochs(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
    worker.tell_loss(loss)
worker.finish()
if worker.rank == 0:
    accelerator.save_model(model, "accelerate-model")
print("weights", model.weight.tolist(), "samples", worker.job_trained[1], "lr", scheduler.get_last_lr()[0])
