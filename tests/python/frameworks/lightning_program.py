"""A worker under Lightning that saves, resumes or stops early. Run by frameworks_test.py: lightning_program.py EPOCHS [CHECKPOINT]"""
import sys

import lightning.pytorch as pl
import torch

import prd.lightning


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, _):
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def validation_step(self, batch, _):
        """The others go on meanwhile; but for the one before training, which Lightning calls a sanity check."""
        assert job.worker is None or job.paused or job.worker.done, "training waits for this"

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


class Stop(pl.Callback):
    """One worker alone finds after its second epoch here that it is enough."""
    ends = 0

    def on_train_epoch_end(self, trainer, _):
        self.ends += 1
        if job.worker.rank == 1 and self.ends == 2:
            trainer.should_stop = True


epochs, checkpoint = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
inputs = torch.randn(1000, 8, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
job = prd.lightning.Callback(samples=20)
callbacks = [job, pl.callbacks.ModelCheckpoint("saved", save_last=True), Stop()]
model = Model()
trainer = pl.Trainer(max_epochs=epochs, accelerator="cpu", devices=1, callbacks=callbacks, logger=False, enable_progress_bar=False, enable_model_summary=False)
held_out = torch.utils.data.DataLoader(torch.utils.data.Subset(data, range(20)), batch_size=20)
trainer.fit(model, job.shard(torch.utils.data.DataLoader(data, batch_size=20, shuffle=True)), held_out, ckpt_path=checkpoint)
print(f"end {job.worker.job_trained} {model.layer.weight.tolist()}")
