"""A classifier of small pictures: train and test once an epoch, Adadelta, a rate that falls by epochs."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR

from tiny_data import Pictures


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.dropout = nn.Dropout(0.1)
        self.hidden = nn.Linear(8 * 6 * 6, 32)
        self.out = nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        x = F.relu(self.hidden(self.dropout(torch.flatten(x, 1))))
        return F.log_softmax(self.out(x), dim=1)


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for index, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if index % args.log_interval == 0:
            print(f"epoch {epoch} [{index * len(data)}/{len(train_loader.dataset)}] loss {loss.item():.6f}")
            if args.dry_run:
                break


def test(model, device, test_loader):
    model.eval()
    loss, correct = 0, 0
    with torch.no_grad():
        for data, target in test_loader:
            output = model(data.to(device))
            loss += F.nll_loss(output, target.to(device), reduction="sum").item()
            correct += output.argmax(dim=1).eq(target).sum().item()
    print(f"test: {loss / len(test_loader.dataset):.4f}, {correct} of {len(test_loader.dataset)} right")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--test-batch-size", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=1)
    parser.add_argument("--save-model", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cpu")
    train_loader = torch.utils.data.DataLoader(Pictures(600), batch_size=args.batch_size, shuffle=True)
    test_loader = torch.utils.data.DataLoader(Pictures(100, seed=1), batch_size=args.test_batch_size)

    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()

    if args.save_model:
        torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
