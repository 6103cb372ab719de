"""Doors for bits and messages, which leave."""

from kit.figures.html import describe
from kit.figures.style import alone

__all__ = ["alone", "describe"]
