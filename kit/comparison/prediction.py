"""A cost model's prediction for a point, whatever the model's arguments are."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kit.clock.experiment import ExperimentError
from kit.figures import format_value

Model = Callable[..., float]


@dataclass(frozen=True)
class Prediction:
    """Calls a model with those choices that it has names for.

    A model without any of them gets the ordered knob, or the only one, by position.
    """

    model: Model
    ordered: str | None

    def __post_init__(self) -> None:
        if not callable(self.model):
            raise ExperimentError(
                f"explore(): model={format_value(self.model)} is no function.\n"
                "Pass one that maps the choices to a predicted quantity, as in "
                "model=lambda batch_size: 1000 / batch_size, or leave it out."
            )

    def at(self, point: Mapping[str, Any]) -> float:
        """Return the prediction for a point, nan where the model fails."""
        try:
            return self.call(point)
        except Exception:  # a prediction must not take a measurement with it
            return math.nan

    def complain(self, point: Mapping[str, Any]) -> str:
        """Return in words why there is no prediction for a point, or nothing."""
        try:
            self.call(point)
        except Exception as error:
            name = getattr(self.model, "__name__", "model")
            return f"No prediction: {name} raised {type(error).__name__}: {error}"
        return ""

    def call(self, point: Mapping[str, Any]) -> float:
        """Return the prediction for a point; raise what the model raises."""
        try:
            parameters = inspect.signature(self.model).parameters
        except ValueError:  # of some built-in functions
            parameters = inspect.signature(lambda x: x).parameters
        if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return float(self.model(**point))
        known = {knob: value for knob, value in point.items() if knob in parameters}
        if known or not parameters:
            return float(self.model(**known))
        return float(self.model(point[self.ordered or next(iter(point))]))
