"""Find a batch size: python 06_find_batch_size.py [--steps N] [--model resnet50]"""

import argparse
from time import perf_counter

import torch
from torch import nn
from torchvision.models import resnet50

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=10, help="timed steps of each size")
parser.add_argument("--most", type=int, default=4096, help="samples, at most")
parser.add_argument("--model", choices=["lenet", "resnet50"])
arguments = parser.parse_args()
on_gpu = torch.cuda.is_available()
device = torch.device("cuda" if on_gpu else "cpu")
free = torch.cuda.mem_get_info()[0] if on_gpu else float("inf")

if (arguments.model or ("resnet50" if on_gpu else "lenet")) == "resnet50":
    first, shape = 32, (3, 224, 224)
    net = resnet50(weights=None)  # weights=ResNet50_Weights.DEFAULT: trained ones
else:
    first, shape = 8, (1, 28, 28)
    convolutions = [nn.Conv2d(1, 6, 5), nn.ReLU(), nn.AvgPool2d(2)]
    convolutions += [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()]
    net = nn.Sequential(*convolutions, nn.Linear(256, 84), nn.ReLU(), nn.Linear(84, 10))
net.to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


def train(batch_size, steps):
    images = torch.randn(batch_size, *shape, device=device)  # your batch
    labels = torch.randint(10, (batch_size,), device=device)
    start = perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    if on_gpu:
        torch.cuda.synchronize()
    return perf_counter() - start


# The finder
batch_size, enough, rate = first, None, 0.0
while batch_size <= arguments.most:
    try:
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        train(batch_size, steps=2)  # the first makes the optimizer's state
        seconds = min(train(batch_size, arguments.steps) for _ in range(10))
    except torch.OutOfMemoryError:
        break
    before, rate = rate, arguments.steps * batch_size / seconds
    peak = torch.cuda.max_memory_reserved()  # 0 without a GPU
    used = f", {peak / 1e9:.2f} GB" if on_gpu else ""
    print(f"{batch_size:5} images: {rate:8,.0f} a second{used}")
    if rate < 1.05 * before or peak > 0.9 * free:
        break  # twice the batch gains less than 5 %, or less than a tenth stays free
    enough, batch_size = batch_size, 2 * batch_size
print("enough:", enough)
