"""What each number format costs and rounds here: python 09_which_format.py"""

import argparse
from time import perf_counter

import torch


def wait_for(device):
    if device.type != "cpu":
        torch.accelerator.synchronize()


def measure(a, b, dtype, steps):
    """Return a product's TFLOP/s, and its largest error over its largest entry."""
    x, y = a.to(dtype), b.to(dtype)
    for _ in range(3):  # warm-up
        product = x @ y
    wait_for(a.device)
    start = perf_counter()
    for _ in range(steps):
        product = x @ y
    wait_for(a.device)
    seconds = (perf_counter() - start) / steps
    exact = a.cpu().double() @ b.cpu().double()
    error = (product.cpu().double() - exact).abs().max() / exact.abs().max()
    return 2 * len(a) ** 3 / seconds / 1e12, error.item()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20, help="products to time")
options = parser.parse_args()
device = torch.accelerator.current_accelerator(check_available=True)
device = device or torch.device("cpu")
size = 256 if device.type == "cpu" else 4096  # use your own
a, b = torch.rand(2, size, size, device=device)

speeds = {}
print(
    f"{device}: products of {size} x {size}\n{'format':10}{'TFLOP/s':>9}{'error':>10}"
)
has_tf32 = device.type == "cuda" and torch.cuda.get_device_capability() >= (8, 0)
for name in ("float32", "TF32", "bfloat16", "float16"):
    if name == "TF32" and not has_tf32:
        continue
    torch.set_float32_matmul_precision("high" if name == "TF32" else "highest")
    dtype = torch.float32 if name == "TF32" else getattr(torch, name)
    speeds[name], error = measure(a, b, dtype, options.steps)
    print(f"{name:10}{speeds[name]:9.3g}{error:10.1e}")

if device.type == "cuda":
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    print("bfloat16 in hardware:", "yes" if native else "no, it is emulated")
best = max(speeds, key=speeds.get)
if speeds[best] < 1.2 * speeds["float32"]:
    best = "float32"
elif best == "float16" and speeds["bfloat16"] > 0.8 * speeds["float16"]:
    best = "bfloat16"  # nearly as fast, and it needs no loss scaling
scaled = ", with torch.amp.GradScaler" if best == "float16" else ""
print(f"Advice: compute large products in {best}{scaled}; keep the weights in float32")
