"""Train in bfloat16, on a GPU that has it: python 10_train_bf16.py --steps 500"""

import argparse
from time import perf_counter

import torch
from torch import nn
from torch.nn import functional as F

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
WIDTH, BATCH = (256, 64) if device.type == "cpu" else (4096, 4096)


def make_batch():
    """Make waves, and the same waves with noise: put your data here."""
    frequency, phase = 6 * torch.rand(2, BATCH, 1, device=device)
    clean = torch.sin(frequency * torch.linspace(0, 6, 256, device=device) + phase)
    return clean + 0.5 * torch.randn_like(clean), clean


def train_step(net, optimizer, inputs, targets):
    with torch.autocast(device.type, torch.bfloat16):
        loss = F.mse_loss(net(inputs), targets)
    optimizer.zero_grad()
    loss.backward()  # outside the block
    nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)
    optimizer.step()
    return loss.detach()


@torch.inference_mode()
def evaluate(net, inputs, targets):
    with torch.autocast(device.type, torch.bfloat16):
        return F.mse_loss(net(inputs), targets).item()


def main(steps):
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
        raise SystemExit("This GPU has no bfloat16 hardware: take 10_train_fp16.py.")
    torch.set_float32_matmul_precision("high")  # TF32: faster products in float32
    layers = [nn.Linear(256, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU()]
    net = nn.Sequential(*layers, nn.Linear(WIDTH, 256)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    for step in range(2 + steps):  # the first two warm up
        loss = train_step(net, optimizer, *make_batch())
        if step < 2 or step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}")  # .item() waits
        if step == 1:
            start = perf_counter()
    print(f"step {step}: loss {loss.item():.3f}")
    print(f"{steps * BATCH / (perf_counter() - start):.0f} samples/s on {device}")
    print(f"loss on new data: {evaluate(net, *make_batch()):.3f}")
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, "checkpoint.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    main(parser.parse_args().steps)
