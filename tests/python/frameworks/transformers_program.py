"""A worker under Hugging Face's Trainer that saves, resumes or stops early. Run by frameworks_test.py: transformers_program.py EPOCHS [CHECKPOINT]"""
import sys

import torch
import transformers

import prd.transformers


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
        assert self.training or job.paused or job.worker.done, "training waits for this"
        y = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(y, labels), "logits": y}


class Stop(transformers.TrainerCallback):
    """One worker alone finds after its second epoch here that it is enough."""
    ends = 0

    def on_epoch_end(self, args, state, control, **kwargs):
        assert state.is_world_process_zero == state.is_local_process_zero == (job.worker.rank == 0)
        self.ends += 1
        if job.worker.rank == 1 and self.ends == 2:
            control.should_training_stop = True


epochs, checkpoint = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
model, job = Model(), prd.transformers.Callback()
args = transformers.TrainingArguments("saved", num_train_epochs=epochs, per_device_train_batch_size=20, learning_rate=0.02, lr_scheduler_type="constant",
                                      save_strategy="epoch", eval_strategy="epoch", save_total_limit=1, report_to=[], use_cpu=True, disable_tqdm=True)
trainer = transformers.Trainer(model, args, train_dataset=Data(), eval_dataset=Data(), callbacks=[job, Stop()])
trainer.train(resume_from_checkpoint=checkpoint)
print(f"end {job.worker.job_trained} {model.layer.weight.tolist()}")
