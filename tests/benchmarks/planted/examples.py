"""Loops modelled on two of PyTorch's public examples: MNIST and a language model.

Architectures and hyper-parameters are theirs (https://github.com/pytorch/examples,
mnist/main.py and word_language_model/main.py); the data are random, of the right shape.
"""

from __future__ import annotations

import io

import PIL.Image
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from .parts import whole_numbers


class Digits(Dataset):
    """Random images of MNIST's shape, made PIL images and transformed when read."""

    def __init__(self, transform):
        self.images = whole_numbers(256, 4096, 28, 28).byte()
        self.labels, self.transform = whole_numbers(10, 4096), transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = PIL.Image.fromarray(self.images[index].numpy())
        return self.transform(image), int(self.labels[index])


class DigitNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 32, 3)
        self.second = nn.Conv2d(32, 64, 3)
        self.drop_some, self.drop_half = nn.Dropout(0.25), nn.Dropout(0.5)
        self.hidden, self.out = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, images):
        states = F.relu(self.second(F.relu(self.first(images))))
        states = self.drop_some(F.max_pool2d(states, 2)).flatten(1)
        states = self.drop_half(F.relu(self.hidden(states)))
        return F.log_softmax(self.out(states), dim=1)


def mnist(*, batch_size=64):
    """Train a convolutional network on images of MNIST's shape."""
    normalize = transforms.Normalize((0.1307,), (0.3081,))
    pipeline = transforms.Compose([transforms.ToTensor(), normalize])
    loader = DataLoader(Digits(pipeline), batch_size, shuffle=True)
    model = DigitNetwork()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    log = io.StringIO()
    while True:
        model.train()
        for number, (images, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.nll_loss(model(images), labels)
            loss.backward()
            optimizer.step()
            if number % 10 == 0:
                print(f"{number}/{len(loader)} loss: {loss.item():.6f}", file=log)
            yield len(images)
        scheduler.step()


class LanguageModel(nn.Module):
    def __init__(self, words=10_000, width=200, layers=2, dropout=0.2):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, layers, dropout=dropout)
        self.decoder = nn.Linear(width, words)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, text, state):
        states, state = self.lstm(self.drop(self.encoder(text)), state)
        scores = self.decoder(self.drop(states))
        return F.log_softmax(scores.flatten(0, 1), dim=1), state

    def start(self, batch_size):
        shape = (self.lstm.num_layers, batch_size, self.lstm.hidden_size)
        return torch.zeros(shape), torch.zeros(shape)


def repackage_hidden(state):
    """Return the state without the history that led to it."""
    return tuple(tensor.detach() for tensor in state)


def word_language_model(*, batch_size=20, bptt=35, lr=20.0, clip=0.25):
    """Train a recurrent language model with an update written by hand."""
    text = whole_numbers(10_000, 4000 * 20)
    text = text[: len(text) // batch_size * batch_size]
    text = text.view(batch_size, -1).t().contiguous()
    model = LanguageModel()
    criterion = nn.NLLLoss()
    log, total = io.StringIO(), 0.0
    while True:
        model.train()
        state = model.start(batch_size)
        for number, start in enumerate(range(0, len(text) - 1 - bptt, bptt)):
            words = text[start : start + bptt]
            following = text[start + 1 : start + 1 + bptt].flatten()
            model.zero_grad()
            state = repackage_hidden(state)
            scores, state = model(words, state)
            loss = criterion(scores, following)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-lr)
            total += loss.item()
            if number % 200 == 0 and number > 0:
                print(f"{number} loss {total / 200:5.2f}", file=log)
                total = 0.0
            yield words.numel()
