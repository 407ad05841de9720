"""A LightningModule and its Trainer.

    python3 -m prd.run -n 3 --engine p-reduce --option group_size=2 with_lightning.py

What it cannot do: `python3 -c "help('prd.lightning')"`.
"""
import lightning.pytorch as pl
import torch

import prd.lightning


class Model(pl.LightningModule):
    def __init__(self, steps):
        super().__init__()
        self.layer, self.steps = torch.nn.Linear(8, 1), steps

    def training_step(self, batch, _):
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.log("loss", torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps, 0.002)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


EPOCHS, WORKERS = 10, 3
inputs = torch.randn(2000, 8, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=20, shuffle=True)
held_out = torch.utils.data.DataLoader(torch.utils.data.Subset(data, range(100)), batch_size=100)

job = prd.lightning.Callback(samples=20)
checkpoints = pl.callbacks.ModelCheckpoint("lightning-checkpoints", monitor="loss")
# A scheduler that Lightning steps after each batch counts the job's clock: a share of the steps of all epochs.
model = Model(EPOCHS * len(loader) // WORKERS)
trainer = pl.Trainer(max_epochs=EPOCHS, devices=1, callbacks=[job, checkpoints], logger=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(model, job.shard(loader), held_out)
print("weights", model.layer.weight.tolist(), "samples", job.worker.job_trained[1], "lr", model.lr_schedulers().get_last_lr()[0])
