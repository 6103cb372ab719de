"""Chapter 04's data sets, which worker processes must import, and its step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import sleep
from warnings import filterwarnings

import numpy as np
import PIL.Image
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision.transforms.v2 import functional as v2

# Imported here, or every worker would do it again when it opens its first photo.
PIL.Image.preinit()
# PyTorch warns of more workers than cores; the chapter tries that on purpose.
filterwarnings("ignore", message="This DataLoader will create")


class Photos(Dataset):
    """Small pictures of the photos in a folder with a folder for each class.

    `seconds_away` is how much longer each photo takes to come, as from a store over a
    network. `draft` lets the decoder make photos small, `uint8` leaves them as bytes.
    """

    def __init__(
        self,
        folder: str | Path,
        seconds_away: float = 0.0,
        draft: bool = False,
        uint8: bool = False,
    ) -> None:
        self.paths = sorted(Path(folder).glob("[!.]*/*.jpg"))
        self.classes = sorted({path.parent.name for path in self.paths})
        self.seconds_away, self.draft, self.uint8 = seconds_away, draft, uint8

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index):
        sleep(self.seconds_away)
        path = self.paths[index]
        with PIL.Image.open(path) as file:
            if self.draft:
                file.draft("RGB", (64, 64))
            image = v2.resize(v2.pil_to_tensor(file.convert("RGB")), 64)
        if not self.uint8:
            image = v2.to_dtype(image, torch.float32, scale=True)
        return image, self.classes.index(path.parent.name)


def make_step(device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a step that trains a small network on a batch, and returns the loss."""
    net = nn.Sequential(
        nn.Conv2d(3, 32, 5, stride=2),
        nn.ReLU(),
        nn.AvgPool2d(7),
        nn.Flatten(),
        nn.Linear(512, 10),
    )
    net.to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(images: Tensor, labels: Tensor) -> Tensor:
        images = images.to(device)
        labels = labels.to(device)
        if images.dtype == torch.uint8:
            images = images / 255
        loss = nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


class Uneven(Dataset):
    """Batches that only wait: 4 ms each, and every seventh one 60 ms."""

    def __len__(self) -> int:
        return 7000

    def __getitem__(self, index: int) -> int:
        sleep(0.060 if index % 7 == 0 else 0.004)
        return index


class Dice(Dataset):
    """Four random numbers of PyTorch, and as many of NumPy."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, int]:
        return torch.randint(100, ()).item(), np.random.randint(100)
