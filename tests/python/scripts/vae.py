"""A variational autoencoder: the whole program at the top level of the file, Adam."""
import argparse

import torch
from torch import nn, optim
from torch.nn import functional as F

from tiny_data import Pictures

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--batch-size", type=int, default=20)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--log-interval", type=int, default=1)
args = parser.parse_args()
torch.manual_seed(args.seed)
device = torch.device("cpu")

train_loader = torch.utils.data.DataLoader(Pictures(600), batch_size=args.batch_size, shuffle=True)
test_loader = torch.utils.data.DataLoader(Pictures(100, seed=1), batch_size=args.batch_size, shuffle=False)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(196, 64)
        self.mean = nn.Linear(64, 8)
        self.logvar = nn.Linear(64, 8)
        self.fc3 = nn.Linear(8, 64)
        self.fc4 = nn.Linear(64, 196)

    def encode(self, x):
        hidden = F.relu(self.fc1(x))
        return self.mean(hidden), self.logvar(hidden)

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mean, logvar = self.encode(x.view(-1, 196))
        return self.decode(mean + torch.randn_like(mean) * torch.exp(0.5 * logvar)), mean, logvar


model = VAE().to(device)
optimizer = optim.Adam(model.parameters(), lr=3e-3)


def loss_function(reconstructed, x, mean, logvar):
    difference = F.binary_cross_entropy(reconstructed, x.view(-1, 196), reduction="sum")
    return difference - 0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())


def train(epoch):
    model.train()
    train_loss = 0
    for index, (data, _) in enumerate(train_loader):
        data = data.to(device)
        optimizer.zero_grad()
        reconstructed, mean, logvar = model(data)
        loss = loss_function(reconstructed, data, mean, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
        if index % args.log_interval == 0:
            print(f"epoch {epoch} [{index * len(data)}/{len(train_loader.dataset)}] loss {loss.item() / len(data):.6f}")
    print(f"epoch {epoch}: {train_loss / len(train_loader.dataset):.4f} on average")


def test(epoch):
    model.eval()
    total = 0
    with torch.no_grad():
        for data, _ in test_loader:
            reconstructed, mean, logvar = model(data.to(device))
            total += loss_function(reconstructed, data, mean, logvar).item()
    print(f"epoch {epoch}: test {total / len(test_loader.dataset):.4f}")


if __name__ == "__main__":
    for epoch in range(1, args.epochs + 1):
        train(epoch)
        test(epoch)
        with torch.no_grad():
            sample = model.decode(torch.randn(4, 8).to(device)).cpu()
            torch.save(sample.view(4, 1, 14, 14), f"sample_{epoch}.pt")
