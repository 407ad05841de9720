"""Hugging Face's Trainer.

    python3 -m prd.run -n 3 --engine p-reduce --option group_size=2 with_transformers.py

What it cannot do: `python3 -c "help('prd.transformers')"`.
"""
import torch
import transformers

import prd.transformers


class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(2000, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.x[i].sum(0, keepdim=True)}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x, labels):
        y = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(y, labels), "logits": y}


model, job = Model(), prd.transformers.Callback()
args = transformers.TrainingArguments("transformers-checkpoints", num_train_epochs=10, per_device_train_batch_size=20, learning_rate=0.05,
                                      lr_scheduler_type="cosine", save_strategy="epoch", save_total_limit=1, report_to=[], disable_tqdm=True)
trainer = transformers.Trainer(model, args, train_dataset=Data(), callbacks=[job])
trainer.train()
if job.worker.rank == 0:
    trainer.save_model("transformers-model")
print("weights", model.layer.weight.tolist(), "samples", job.worker.job_trained[1], "lr", trainer.lr_scheduler.get_last_lr()[0])
