#!/usr/bin/env python3
"""pytorch/examples' mnist, vae and imagenet and nanoGPT's train.py, as they are upstream but for at most five lines.

Not among the tests, since their sources are not in the tree; needs torchvision and dataset-fashion-mnist:
  tests/python/upstream_by_hand.py BIN_DIR EXAMPLES_CHECKOUT NANOGPT_CHECKOUT [SCRIPT ...]
Each script trains with three workers under every engine, with and without overlap; with PRD_COMPILE=1 each compiles its model.
Prints a line per run, and fails if a worker does, if the loss does not fall, or if replicas differ after finish.
"""
import place
import gzip
import os
import pathlib
import pickle
import re
import shutil
import struct
import sys
import tempfile
import time
import types

import numpy
import PIL.Image
import torch

import prd.torch
import scripts_test

DATASET = pathlib.Path("/usr/share/datasets/fashion-mnist")
WORKERS = 3
ATTACH = "worker = prd.torch.attach(model, optimizer)"
SHARD = "train_loader = worker.shard(train_loader)"
# Per script: its arguments, and each added line behind the line that it follows, or in place of one: (line, line, True).
SCRIPTS = {
    "mnist": (
        ["--epochs", "2", "--batch-size", "32", "--lr", "0.5"],
        [("import torch", "import prd.torch"), ("    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)", "    " + ATTACH),
         ("    " + ATTACH, "    " + SHARD), ("        scheduler.step()", "    worker.finish()")],
    ),
    "vae": (
        ["--epochs", "3", "--batch-size", "32"],
        [("import torch", "import prd.torch"), ("optimizer = optim.Adam(model.parameters(), lr=1e-3)", ATTACH), (ATTACH, SHARD),
         ("                       'results/sample_' + str(epoch) + '.png')", "    worker.finish()")],
    ),
    "imagenet": (
        ["data", "--arch", "resnet18", "--workers", "1", "--epochs", "2", "--batch-size", "4", "--lr", "0.01", "--print-freq", "1"],
        [("import torch", "import prd.torch"),
         ("    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)", "    " + ATTACH),
         ("        num_workers=args.workers, pin_memory=True, sampler=train_sampler)", "    " + SHARD),
         ("            }, is_best)", "    worker.finish()")],
    ),
    "nanogpt": (
        "--dataset=text --device=cpu --dtype=float32 --compile=False --eval_interval=20 --eval_iters=2 --batch_size=8 --block_size=32 "
        "--n_layer=2 --n_head=2 --n_embd=64 --max_iters=50 --lr_decay_iters=50 --warmup_iters=5 --learning_rate=1e-2 "
        "--gradient_accumulation_steps=2".split(),
        [("import torch", "import prd.torch"), ("checkpoint = None # free up memory",
         "worker = prd.torch.attach(model, optimizer, samples=batch_size * gradient_accumulation_steps)"),
         ("while True:", "for iter_num in worker.steps(max_iters):", True),
         ("    if iter_num % eval_interval == 0 and master_process:", "    if worker.every(eval_interval) and master_process:", True),
         ("    if iter_num > max_iters:\n        break", "worker.finish()")],
    ),
}  # fmt: skip


def patched(text, added):
    """With the lines added or changed."""
    for after, line, *instead in added:
        at = text.index(f"\n{after}\n") + 1
        rest = at + len(after) + 1
        text = text[: at if instead else rest] + line + "\n" + text[rest:]
    return text


def pictures():
    """Fashion-MNIST under the names that torchvision gives MNIST, the first of each part."""
    folder = pathlib.Path("../data/MNIST/raw")
    folder.mkdir(parents=True)
    for part, count in (("train", 1536), ("t10k", 256)):
        for kind, header in (("images-idx3", 16), ("labels-idx1", 8)):
            with gzip.open(DATASET / f"{part}-{kind}-ubyte.gz") as source:
                head = source.read(header)
                rest = source.read(count * (784 if header == 16 else 1))
            (folder / f"{part}-{kind}-ubyte").write_bytes(head[:4] + struct.pack(">I", count) + head[8:] + rest)
    pathlib.Path("results").mkdir()


def folders_of_pictures():
    """Two classes that a few steps can tell apart."""
    generator = numpy.random.default_rng(1)
    for part, count in (("train", 30), ("val", 4)):
        for label, colour in enumerate([(200, 60, 60), (60, 60, 200)]):
            folder = pathlib.Path("data", part, str(label))
            folder.mkdir(parents=True)
            for i in range(count):
                noise = generator.integers(-50, 50, (64, 64, 3))
                PIL.Image.fromarray((noise + colour).astype(numpy.uint8)).save(folder / f"{i}.png")


def text():
    folder = pathlib.Path("data/text")
    folder.mkdir(parents=True)
    source = (place.ROOT / "README.md").read_text()
    letters = sorted(set(source))
    numbers = numpy.array([letters.index(letter) for letter in source], dtype=numpy.uint16)
    at = len(numbers) * 9 // 10
    numbers[:at].tofile(folder / "train.bin")
    numbers[at:].tofile(folder / "val.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(letters)}))


DATA = {"mnist": pictures, "vae": pictures, "imagenet": folders_of_pictures, "nanogpt": text}


def run(name, source, engine, options):
    """What is wrong, or nothing; and the loss of the first and the last prints."""
    script, (arguments, added) = ("train.py" if name == "nanogpt" else "main.py"), SCRIPTS[name]
    with tempfile.TemporaryDirectory(prefix="prd-test-") as top, place.Cluster(place.job(engine, WORKERS, "", options)) as c:
        children = []
        for rank in range(WORKERS):
            folder = pathlib.Path(top, f"rank{rank}", "run")
            shutil.copytree(source, folder, ignore=shutil.ignore_patterns(".git", "data", "results"))
            plain = (folder / script).read_text()
            (folder / script).write_text(patched(plain, added))
            here = os.getcwd()
            os.chdir(folder)
            DATA[name]()
            os.chdir(here)
            children.append((folder, scripts_test.start(folder, script, place.environment(c, rank), arguments, strict=False)))
        for folder, child in children:
            if os.waitpid(child, 0)[1] != 0:
                return f"{folder}: {(folder.parent / 'err').read_text()[-2000:]}", None
        printed = [(folder.parent / "out").read_text() for folder, _ in children]
    ends = [re.search(r"finished (\d+) (\d+)\n", text) for text in printed]
    if len({end[1] for end in ends}) != 1:
        return "replicas differ", None
    busiest = printed[max(range(WORKERS), key=lambda rank: int(ends[rank][2]))]
    losses = [float(loss) for loss in re.findall(r"(?:Epoch: .*?|iter .*?)[Ll]oss:? +(\d+\.\d+(?:e[+-]\d+)?)", busiest)]
    if len(losses) < 4:
        return f"few losses: {losses}", None
    count = min(3, len(losses) // 2)
    first, last = sum(losses[:count]) / count, sum(losses[-count:]) / count
    return (None if last < 0.98 * first else f"the loss does not fall: {losses}"), (first, last)


def main():
    if not hasattr(torch, "accelerator"):  # what PyTorch has since 2.6
        torch.accelerator = types.SimpleNamespace(is_available=lambda: False)
    examples, nanogpt = (pathlib.Path(argument) for argument in sys.argv[1:3])
    failed = 0
    for name in sys.argv[3:] or SCRIPTS:
        for engine, options in scripts_test.SETTINGS:
            began = time.monotonic()
            wrong, losses = run(name, nanogpt if name == "nanogpt" else examples / name, engine, options)
            failed += wrong is not None
            ran = f"{len(SCRIPTS[name][1])} lines added or changed, {time.monotonic() - began:.0f} s"
            said = f"FAILED: {wrong}" if wrong else f"loss {losses[0]:.3f} -> {losses[1]:.3f}, replicas equal"
            print(f"{name}, {engine}{' (' + options.replace(chr(10), ', ') + ')' if options else ''}: {said}; {ran}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
