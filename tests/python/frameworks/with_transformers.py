"""A worker of a job with Hugging Face's Trainer. Run by frameworks_test.py; worker/python/README.md has its lines."""
import os
import tempfile

import torch
import transformers

import prd.torch


class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(1000, 8, generator=torch.Generator().manual_seed(1))

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


class Attach(transformers.TrainerCallback):

    def on_train_begin(self, args, state, control, model, optimizer, **kwargs):
        self.worker = prd.torch.attach(model, getattr(optimizer, "optimizer", optimizer), samples=args.per_device_train_batch_size)

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = self.worker.last.done

    def on_train_end(self, args, state, control, **kwargs):
        self.worker.finish()


model, attach = Model(), Attach()
args = transformers.TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=20, learning_rate=0.02, max_steps=100000, lr_scheduler_type="constant",
                                      save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=int(os.environ.get("PRD_RANK", 0)))
transformers.Trainer(model, args, train_dataset=Data(), callbacks=[attach]).train()
print("weights", model.layer.weight.tolist())
