"""A training script with a fault, which chapter 03 diagnoses as it is."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.autograd.set_detect_anomaly(True)  # to find the NaN of last week

layers = []
for _ in range(23):
    layers += [nn.Linear(64, 64), nn.Tanh()]
model = nn.Sequential(*layers, nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
positions, moves = torch.randn(640, 64), torch.randint(10, (640,))
for epoch in range(2000):
    for start in range(0, 640, 64):
        inputs, targets = positions[start : start + 64], moves[start : start + 64]
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 100 == 0:
        print(f"epoch {epoch}: {loss.item():.3f}")
