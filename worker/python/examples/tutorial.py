#!/usr/bin/env python3
"""A whole training script under prd: a schedule, evaluation, an average over time (EMA), checkpoints, resuming, and an early stop.

    python3 -m prd.run -n 4 --engine p-reduce worker/python/examples/tutorial.py --checkpoint tutorial.pt

Once more, it goes on where the checkpoint is. `python3 tutorial.py` trains alone. Each comment with a number is about prd; the
rest is a script as it is without prd.
"""
import argparse
import os

import torch
import prd.torch

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint", default="tutorial.pt")
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--patience", type=int, default=3, help="evaluations without a lower loss, after which training ends")
args = parser.parse_args()

torch.manual_seed(1)
inputs = torch.randn(6000, 16)
labels = (inputs[:, :8].prod(1).sign() * inputs[:, 8:].sum(1) + inputs.sum(1) > 0).long()
training, validation = torch.utils.data.random_split(torch.utils.data.TensorDataset(inputs, labels), [5000, 1000])
loader = torch.utils.data.DataLoader(training, batch_size=25, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

# 1. A checkpoint is loaded before attach. prd is told how far this worker and the job were.
saved = torch.load(args.checkpoint) if os.path.exists(args.checkpoint) else None
if saved is not None:
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
trained = {name: tuple(saved[name]) for name in ("trained", "job_trained")} if saved is not None else {}

# 2. From attach on, optimizer.step() is a step of the job. After shard, len(loader) is this worker's share of an epoch.
worker = prd.torch.attach(model, optimizer, **trained)
loader = worker.shard(loader)

# 3. The schedule goes by the job's clock: all workers have the same learning rate, however many steps each has made.
scheduler = worker.scheduler(torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=args.epochs * len(loader)))

# 4. Rank 0 evaluates and saves the average of all workers' models. Its own model is one of several while they train.
judged = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
ema = dict(saved["ema"]) if saved is not None else None
best, worse = (saved["best"], saved["worse"]) if saved is not None else (float("inf"), 0)


def evaluate(state):
    """Loss and accuracy of a model, over the validation data."""
    judged.load_state_dict(state)
    x, y = (torch.stack(column) for column in zip(*validation))
    with torch.no_grad():
        found = judged(x)
    return torch.nn.functional.cross_entropy(found, y).item(), (found.argmax(1) == y).float().mean().item()


# 5. The epochs are the job's: a fast worker makes more of one than a slow one. After a resume they go on where they were.
for epoch in worker.epochs(args.epochs):
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if worker.every(10):
            worker.tell_loss(loss)  # for prdctl serve
    if worker.rank != 0:
        continue
    # 6. In pause, the others do not wait for rank 0.
    with worker.pause():
        average = worker.average()
        ema = {name: 0.5 * ema[name] + 0.5 * tensor for name, tensor in average.items()} if ema else average
        loss, accuracy = evaluate(average)
        best, worse = min(best, loss), 0 if loss < best else worse + 1
        print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.3f}, lr {scheduler.get_last_lr()[0]:.5f}")
        torch.save({"model": average, "optimizer": optimizer.state_dict(), "ema": ema, "best": best, "worse": worse,
                    "trained": worker.trained, "job_trained": worker.job_trained}, args.checkpoint + ".new")
        os.replace(args.checkpoint + ".new", args.checkpoint)
    # 7. A break would end this worker alone. stop ends the job: all loops end, here and elsewhere.
    if worse >= args.patience:
        worker.stop(f"no lower loss in {args.patience} evaluations")

# 8. After finish all workers have one model.
worker.finish()
if worker.rank == 0:
    print("the end: loss {:.4f}, accuracy {:.3f}".format(*evaluate(model.state_dict())))
    if ema:
        print("average over time: loss {:.4f}, accuracy {:.3f}".format(*evaluate(ema)))
