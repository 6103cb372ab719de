"""Name shapes in photos: python 00_train_photos.py FOLDER BATCH_SIZE EPOCHS"""

import sys
from time import perf_counter

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

to_small = v2.Compose(
    [v2.PILToTensor(), v2.Resize(64), v2.ToDtype(torch.float32, scale=True)]
)


def make_net(classes):
    layers = []
    for inputs, outputs in [(3, 32), (32, 64), (64, 128), (128, 256)]:
        conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *pool, nn.Linear(256, classes))


def train_step(net, optimizer, images, labels):
    loss = F.cross_entropy(net(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def wait_for_device():
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def main(folder, batch_size, epochs):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    photos = ImageFolder(folder, to_small)
    decoded = [photos[index] for index in range(len(photos))]
    loader = DataLoader(decoded, batch_size, shuffle=True)
    net = make_net(len(photos.classes)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    for epoch in range(epochs):
        wait_for_device()
        start = perf_counter()
        for images, labels in loader:
            loss = train_step(net, optimizer, images.to(device), labels.to(device))
        wait_for_device()
        speed = len(photos) / (perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {speed:.0f} photos a second")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
