"""Chapter 16's reinforcement learning: observers that play, an agent that learns.

Both sides of a call import it, so it is a file and not a cell of the notebook.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import torch
from torch import nn


class Agent:
    """The policy, its optimizer, and what each observer has reported."""

    def __init__(self, observers: int) -> None:
        self.policy = nn.Sequential(
            nn.Linear(4, 128),
            nn.Dropout(0.6),
            nn.ReLU(),
            nn.Linear(128, 2),
            nn.Softmax(-1),
        )
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=0.01)
        self.calls = [0] * observers
        self.probabilities: list[list[Any]] = [[] for _ in range(observers)]
        self.rewards: list[list[float]] = [[] for _ in range(observers)]

    def select_action(self, observer: int, state: Any) -> int:
        self.calls[observer] += 1
        probabilities = self.policy(torch.from_numpy(state))
        action = probabilities.multinomial(1)
        self.probabilities[observer].append(probabilities[action])
        return int(action)

    def report_reward(self, observer: int, reward: float) -> None:
        self.calls[observer] += 1
        self.rewards[observer].append(reward)

    def report_and_select(self, observer: int, reward: float, state: Any) -> int:
        self.rewards[observer].append(reward)
        return self.select_action(observer, state)

    def finish_episode(self, reset: bool = True) -> tuple[int, dict[str, Any]]:
        """Learn from the finished games; return their steps, loss and worst reward."""
        returns = add_up(self.rewards, reset)
        returns = (returns - returns.mean()) / (returns.std() + 1e-7)
        probabilities = torch.cat(list(itertools.chain(*self.probabilities)))
        loss = -(probabilities.log() * returns).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        worst = min(sum(rewards) for rewards in self.rewards)
        for notes in (*self.probabilities, *self.rewards):
            notes.clear()
        return len(returns), {"loss": loss.detach(), "worst": worst}


class Observer:
    """A game of CartPole; each step may take `wait` seconds more."""

    alive = 0

    def __init__(self, number: int = 0, wait: float = 0.0, seed: int = 0) -> None:
        self.number, self.wait = number, wait
        self.game = gymnasium.make("CartPole-v1")
        self.game.reset(seed=seed + number)  # the tutorial gives all the same seed
        Observer.alive += 1

    def __del__(self) -> None:
        Observer.alive -= 1

    def run_episode(self, agent: Any, calls: int = 1, limit: int = 500) -> None:
        """Play one game. `agent` is an Agent, or a reference to one elsewhere."""
        if hasattr(agent, "rpc_sync"):
            agent = agent.rpc_sync()
        state, _ = self.game.reset()
        action = agent.select_action(self.number, state)
        for step in range(1, limit + 1):
            state, reward, fell, late, _ = self.game.step(action)
            time.sleep(self.wait)
            if fell or late or step == limit:
                agent.report_reward(self.number, reward)
                return
            if calls == 1:
                action = agent.report_and_select(self.number, reward, state)
            else:
                agent.report_reward(self.number, reward)
                action = agent.select_action(self.number, state)


def add_up(
    episodes: list[list[float]], reset: bool = True, gamma: float = 0.99
) -> torch.Tensor:
    """Return each step's return: its reward and, counted less, all that came later."""
    returns, later = [], 0.0
    for rewards in reversed(episodes):
        if reset:
            later = 0.0  # the line that the tutorial lacks
        for reward in reversed(rewards):
            later = reward + gamma * later
            returns.append(later)
    return torch.tensor(returns[::-1])


def train(
    *, observers: int = 2, wait: float = 0.0, limit: int = 500, seed: int = 0
) -> Iterator[Any]:
    """Play and learn in one process: an experiment that yields after each round."""
    agent = Agent(observers)
    team = [Observer(number, wait, seed) for number in range(observers)]
    while True:
        for observer in team:
            observer.run_episode(agent, limit=limit)
        yield agent.finish_episode()


def first_rounds(loop: Iterator[Any]) -> list[Any]:
    """Return steps, losses and rewards of four rounds from one seed."""
    torch.manual_seed(0)
    return [next(loop) for _ in range(4)]


def step_game() -> Iterator[int]:
    """Step CartPole without an agent: an experiment."""
    game = gymnasium.make("CartPole-v1")
    while True:
        game.reset(seed=0)
        for action in (0, 1, 0, 1):  # keeps the pole up
            game.step(action)
        yield 4
