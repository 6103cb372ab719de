"""The drawing of chapter 10: which format each part of a step has."""

from __future__ import annotations

from kit.figures import Drawing


def draw_mixed_step() -> Drawing:
    """Draw one training step in mixed precision, with the places of the scaler."""
    drawing = Drawing(
        "Dark boxes have 16 bits: the copies, and the products with them",
        columns=12,
        rows=4.6,
        alt=(
            "A circle of boxes. Weights in float32 are cast to 16-bit copies, which"
            " the forward pass multiplies with the inputs; it ends in a loss in "
            "float32. From there backward in 16 bits to gradients in float32, and "
            "to the update, which changes the weights. With float16 the scaler "
            "multiplies the loss, divides the gradients, and skips an update with "
            "infinite gradients"
        ),
    )
    drawing.box(0, 0.2, 2.4, 1.2, "weights\nfloat32")
    drawing.arrow((2.4, 0.8), (3.2, 0.8), "cast")
    drawing.box(3.2, 0.2, 2.4, 1.2, "copies\n16 bits", "measured")
    drawing.arrow((5.6, 0.8), (6.4, 0.8))
    drawing.box(6.4, 0.2, 2.4, 1.2, "forward\n16 bits", "measured")
    drawing.arrow((8.8, 0.8), (9.6, 0.8))
    drawing.box(9.6, 0.2, 2.4, 1.2, "loss\nfloat32")
    drawing.arrow((10.8, 1.4), (10.8, 1.85))
    drawing.box(9.0, 1.85, 3.0, 0.7, "float16: × scale", "zone")
    drawing.arrow((10.8, 2.55), (10.8, 3.0))
    drawing.box(9.6, 3.0, 2.4, 1.2, "backward\n16 bits", "measured")
    drawing.arrow((9.6, 3.6), (7.9, 3.6), "cast")
    drawing.box(5.5, 3.0, 2.4, 1.2, "gradients\nfloat32")
    drawing.arrow((5.5, 3.6), (2.4, 3.6))
    drawing.box(2.7, 1.85, 4.6, 0.7, "float16: ÷ scale, skip if infinite", "zone")
    drawing.arrow((4.0, 2.55), (4.0, 3.6))
    drawing.box(0, 3.0, 2.4, 1.2, "update\nfloat32")
    drawing.arrow((1.2, 3.0), (1.2, 1.4))
    return drawing
