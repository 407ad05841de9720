"""A small residual network: batch normalisation, momentum, a loader with processes, meters, a checkpoint once an epoch."""
import argparse
import os
import random
import time
from enum import Enum

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from tiny_data import Pictures

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("-j", "--workers", default=1, type=int)
parser.add_argument("--epochs", default=3, type=int)
parser.add_argument("--start-epoch", default=0, type=int)
parser.add_argument("-b", "--batch-size", default=16, type=int)
parser.add_argument("--lr", default=0.05, type=float, dest="lr")
parser.add_argument("--momentum", default=0.9, type=float)
parser.add_argument("--wd", default=1e-4, type=float, dest="weight_decay")
parser.add_argument("-p", "--print-freq", default=1, type=int)
parser.add_argument("--resume", default="", type=str)
parser.add_argument("-e", "--evaluate", action="store_true")
parser.add_argument("--seed", default=None, type=int)
best_acc1 = 0


class Block(nn.Module):
    def __init__(self, planes, stride=1):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(planes, planes * stride, 3, stride, 1, bias=False), nn.BatchNorm2d(planes * stride), nn.ReLU(inplace=True),
            nn.Conv2d(planes * stride, planes * stride, 3, 1, 1, bias=False), nn.BatchNorm2d(planes * stride),
        )
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(planes, planes * stride, 1, stride, bias=False), nn.BatchNorm2d(planes * stride))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet():
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), Block(8), Block(8, 2), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(16, 10))


def main():
    args = parser.parse_args()
    if args.seed is not None:
        random.seed(args.seed)
        torch.manual_seed(args.seed)
    main_worker(args)


def main_worker(args):
    global best_acc1
    device = torch.device("cpu")
    model = resnet().to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)

    if args.resume and os.path.isfile(args.resume):
        checkpoint = torch.load(args.resume, map_location=device)
        args.start_epoch = checkpoint["epoch"]
        best_acc1 = checkpoint["best_acc1"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])

    train_sampler = None
    train_loader = torch.utils.data.DataLoader(Pictures(480, 3, 16), batch_size=args.batch_size, shuffle=(train_sampler is None),
                                               num_workers=args.workers, pin_memory=False, sampler=train_sampler)
    val_loader = torch.utils.data.DataLoader(Pictures(64, 3, 16, seed=1), batch_size=args.batch_size, shuffle=False, num_workers=0)

    if args.evaluate:
        validate(val_loader, model, criterion, device)
        return

    for epoch in range(args.start_epoch, args.epochs):
        train(train_loader, model, criterion, optimizer, epoch, device, args)
        acc1 = validate(val_loader, model, criterion, device)
        scheduler.step()
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        save_checkpoint({
            "epoch": epoch + 1, "state_dict": model.state_dict(), "best_acc1": best_acc1, "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
        }, is_best)


def train(train_loader, model, criterion, optimizer, epoch, device, args):
    batch_time, data_time = AverageMeter("Time", ":6.3f"), AverageMeter("Data", ":6.3f")
    losses, top1 = AverageMeter("Loss", ":.4e"), AverageMeter("Acc@1", ":6.2f")
    progress = ProgressMeter(len(train_loader), [batch_time, data_time, losses, top1], prefix=f"epoch {epoch}")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(train_loader):
        data_time.update(time.time() - end)
        images = images.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), images.size(0))
        top1.update(accuracy(output, target), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            progress.display(i + 1)
            print(f"loss {loss.item():.6f}")


def validate(val_loader, model, criterion, device):
    losses, top1 = AverageMeter("Loss", ":.4e", Summary.NONE), AverageMeter("Acc@1", ":6.2f")
    model.eval()
    with torch.no_grad():
        for images, target in val_loader:
            output = model(images.to(device))
            losses.update(criterion(output, target.to(device)).item(), images.size(0))
            top1.update(accuracy(output, target), images.size(0))
    print(f" * {top1.summary()}")
    return top1.avg


def save_checkpoint(state, is_best, filename="checkpoint.pth.tar"):
    torch.save(state, filename)
    if is_best:
        torch.save(state, "model_best.pth.tar")


class Summary(Enum):
    NONE = 0
    AVERAGE = 1


class AverageMeter:
    def __init__(self, name, fmt=":f", summary_type=Summary.AVERAGE):
        self.name, self.fmt, self.summary_type = name, fmt, summary_type
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        return ("{name} {val" + self.fmt + "} ({avg" + self.fmt + "})").format(**self.__dict__)

    def summary(self):
        return "" if self.summary_type is Summary.NONE else f"{self.name} {self.avg:.3f}"


class ProgressMeter:
    def __init__(self, num_batches, meters, prefix=""):
        self.num_batches, self.meters, self.prefix = num_batches, meters, prefix

    def display(self, batch):
        print("\t".join([f"{self.prefix}[{batch:3d}/{self.num_batches:3d}]", *map(str, self.meters)]))


def accuracy(output, target):
    with torch.no_grad():
        return output.argmax(1).eq(target).float().mean().item() * 100


if __name__ == "__main__":
    main()
