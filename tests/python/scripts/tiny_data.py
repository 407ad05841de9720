"""Data for the scripts beside this file: small pictures, and a text."""
import torch

TEXT = "\n".join(f"{n} green bottles hanging on the wall, and if one green bottle should fall there are {n - 1}" for n in range(40, 0, -1))


class Pictures(torch.utils.data.Dataset):
    """Ten classes, each a picture with noise on it."""

    def __init__(self, size, channels=1, side=14, seed=0):
        generator = torch.Generator().manual_seed(1)
        classes = torch.rand(10, channels, side, side, generator=generator)
        generator.manual_seed(2 + seed)
        self.labels = torch.randint(10, (size,), generator=generator)
        self.images = (classes[self.labels] + 0.2 * torch.randn(size, channels, side, side, generator=generator)).clamp(0, 1)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]
