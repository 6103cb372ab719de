"""Train on photos, fast: python 19_train_fast.py [FOLDER] [--steps 200] [--compile]"""

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
to_small = v2.Compose([v2.PILToTensor(), v2.Resize(32), v2.CenterCrop(32)])


def draw_photos(folder, number=256):  # something to try it with
    for i in range(number):
        path = Path(folder, "bright" if i % 2 else "dark", f"{i}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = torch.rand(3, 256, 256) * 0.7 + 0.3 * (i % 2)
        v2.functional.to_pil_image(noise).save(path)


def decode_once(folder):  # kept as bytes on the device
    loader = DataLoader(ImageFolder(folder, to_small), 64, num_workers=2)  # or more
    images, labels = zip(*loader, strict=True)
    return torch.cat(images).to(device), torch.cat(labels).to(device)


def make_net(classes):
    layers = []
    for inputs, outputs in pairwise([3, 32, 64, 128, 256]):
        conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, classes)]
    return nn.Sequential(*layers)


def main(folder, steps, compiled, batch=64):
    images, labels = decode_once(folder)
    order = torch.randperm(len(labels), device=device)
    held_out, training = order[::4], order[torch.arange(len(order)) % 4 > 0]
    net = make_net(int(labels.max()) + 1).to(device, memory_format=torch.channels_last)
    model = torch.compile(net, disable=not compiled)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.004, fused=True)
    bits_16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # by the processor
    if device.type == "cuda":
        bits_16 = torch.cuda.is_bf16_supported(including_emulation=False)
    total, start = torch.zeros((), device=device), perf_counter()
    for step in range(1, steps + 1):
        chosen = training[torch.randint(len(training), (batch,), device=device)]
        inputs = (images[chosen] / 255).to(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=bits_16):
            loss = nn.functional.cross_entropy(model(inputs), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()  # stays on the device
        if step % 50 == 0 or step == steps:
            loss = total.item() / step  # .item() waits for the device
            rate = step * batch / (perf_counter() - start)
            print(f"step {step}: mean loss {loss:.3f}, {rate:,.0f} photos a second")
    with torch.inference_mode():
        right = net.eval()(images[held_out] / 255).argmax(1) == labels[held_out]
    print(f"right on held-out photos: {right.float().mean().item():.0%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--compile", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if not given.folder:
            draw_photos(temporary)
        main(given.folder or temporary, given.steps, given.compile)
