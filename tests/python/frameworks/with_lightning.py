"""A worker of a job with Lightning. Run by frameworks_test.py; worker/python/README.md has its lines."""
import lightning
import torch

import prd.torch


class Passes:
    """Without a length, for which Lightning would end a pass: it ends with the job's epoch."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, _):
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        self.worker = prd.torch.attach(self, optimizer)
        return optimizer

    def train_dataloader(self):
        inputs = torch.randn(1000, 8, generator=torch.Generator().manual_seed(1))
        data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
        return Passes(self.worker.shard(torch.utils.data.DataLoader(data, batch_size=20, shuffle=True)))

    def on_train_end(self):
        self.worker.finish()


model = Model()
lightning.Trainer(max_epochs=10, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False).fit(model)
print("weights", model.layer.weight.tolist())
