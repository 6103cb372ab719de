"""A progress bar of whatever takes long: tqdm's, silent in quick mode."""

from __future__ import annotations

from typing import Any

from kit.mode import is_quick, is_static

#: What is done sooner shows no bar.
_SILENT_SECONDS = 2.0


class Progress:
    """How far a measurement is; use it as a context manager.

    `doing` says what goes on now, `so_far` what was found. Nothing is drawn in quick
    mode, or where a notebook is to be stored (KIT_STATIC=1).
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.doing = ""
        self.so_far = ""
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if is_quick() or is_static():
            return self
        from tqdm.auto import tqdm

        # Its monitor is a thread, which a measurement would take for the experiment's.
        tqdm.monitor_interval = 0
        self._bar = tqdm(
            total=100,
            desc=self.title,
            leave=False,
            delay=_SILENT_SECONDS,
            bar_format="{desc} {percentage:.0f}% |{bar}| {postfix}",
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.n = self._bar.total  # else a notebook keeps it, in red
            self._bar.close()

    def show(self, share: float) -> None:
        """Draw how much is done, 0 to 1, while nothing is timed."""
        if self._bar is None:
            return
        words = [word for word in (self.doing, self.so_far) if word]
        self._bar.set_postfix_str(", ".join(words), refresh=False)
        percent = round(100 * min(max(share, 0.0), 1.0))
        self._bar.update(percent - self._bar.n)
