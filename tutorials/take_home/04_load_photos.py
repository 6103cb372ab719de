"""Train on photos, loaded well: python 04_load_photos.py [FOLDER] [--steps 40]"""

import argparse
import tempfile
from itertools import count, repeat
from pathlib import Path
from time import perf_counter

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2 import functional as v2


class Photos(Dataset):
    def __init__(self, folder):  # one folder in it for each class
        self.paths = sorted(Path(folder).glob("[!.]*/*.jpg"))
        self.classes = sorted({path.parent.name for path in self.paths})

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        with Image.open(path) as file:
            file.draft("RGB", (64, 64))  # decode hardly more pixels than needed
            image = v2.resize(v2.pil_to_tensor(file.convert("RGB")), [64, 64])
        return image, self.classes.index(path.parent.name)  # bytes, not floats


def draw_photos(folder, number=64):  # something to try it with
    for i in range(number):
        path = Path(folder, f"class{i % 2}", f"{i}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        colors = torch.rand(3, 20, 20) / (1 + i % 2)
        v2.to_pil_image(v2.resize(colors, [400, 400])).save(path)


def train(batches, steps):  # returns seconds a step, waits for the device included
    start = perf_counter()
    for _ in range(steps):
        images, labels = next(batches)
        images = images.to(device, non_blocking=True).float() / 255
        labels = labels.to(device, non_blocking=True)
        loss = nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.2f}")  # waits for the device
    return (perf_counter() - start) / steps


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    temporary = tempfile.TemporaryDirectory()
    if not arguments.folder:
        draw_photos(temporary.name)
    photos = Photos(arguments.folder or temporary.name)
    workers = 2
    torch.set_num_threads(max(1, torch.get_num_threads() - workers))  # cores for them
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(
        photos,
        batch_size=min(16, len(photos)),
        shuffle=True,
        drop_last=True,  # all batches have one shape
        generator=torch.Generator().manual_seed(0),  # the order and workers' seeds
        num_workers=workers,  # try 2, 4 … up to the cores; more if photos are far
        persistent_workers=workers > 0,  # no new start in each epoch
        prefetch_factor=2 if workers else None,  # more if some batches take longer
        pin_memory=device == "cuda",  # by a thread, so that non_blocking can work
        timeout=120 if workers else 0,  # an error in place of a hang
    )
    layers = [nn.Conv2d(3, 32, 5, stride=2), nn.ReLU(), nn.AvgPool2d(7), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(512, len(photos.classes))).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batches = (batch for epoch in count() for batch in loader)
    train(batches, 1 + 2 * workers)  # loaded ahead, or a first step: not timed
    seconds = train(batches, arguments.steps)
    alone = train(repeat(next(batches)), arguments.steps)  # one batch: nothing to load
    waiting = max(0.0, seconds - alone)
    print(f"a step: {1000 * seconds:.1f} ms, loading: {1000 * waiting:.1f} ms of it")
    print(f"{loader.batch_size / seconds:.0f} photos a second")
    temporary.cleanup()
