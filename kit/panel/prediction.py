"""A cost model's prediction for a point, whatever the model's arguments are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kit.comparison import predict
from kit.experiment import ExperimentError
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
            return predict(self.model, point, self.ordered)
        except Exception:  # a prediction must not take a measurement with it
            return math.nan

    def complain(self, point: Mapping[str, Any]) -> str:
        """Return in words why there is no prediction for a point, or nothing."""
        try:
            predict(self.model, point, self.ordered)
        except Exception as error:
            name = getattr(self.model, "__name__", "model")
            return f"No prediction: {name} raised {type(error).__name__}: {error}"
        return ""
