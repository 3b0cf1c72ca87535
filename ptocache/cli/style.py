"""How output looks on a terminal, and plainly where it goes elsewhere."""

from __future__ import annotations

import os
from typing import TextIO


class Style:
    """The marks for one stream.

    Colours and weights are for terminals; `NO_COLOR` (https://no-color.org) and `TERM=dumb` turn them off. Letters
    beyond ASCII are for streams that can take them.

    Args:
        stream: where the text goes.
    """

    def __init__(self, stream: TextIO) -> None:
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        self._is_coloured = stream.isatty() and not plain
        try:
            "█░…".encode(getattr(stream, "encoding", None) or "ascii")
            self._full, self._empty, self.ellipsis = "█", "░", "…"
        except UnicodeEncodeError:
            self._full, self._empty, self.ellipsis = "#", ".", "~"

    def bold(self, text: str) -> str:
        """What stands out: headings, results."""
        return self._marked("1", text)

    def dim(self, text: str) -> str:
        """What may be overlooked."""
        return self._marked("2", text)

    def good(self, text: str) -> str:
        """What is as it should be."""
        return self._marked("32", text)

    def warn(self, text: str) -> str:
        """What could be better."""
        return self._marked("33", text)

    def bad(self, text: str) -> str:
        """What is wrong."""
        return self._marked("31", text)

    def bar(self, share: float, width: int, full_is_bad: bool = False) -> str:
        """A share, from 0 to 1, as a bar.

        Args:
            share: how much of it is full.
            width: how many letters it has.
            full_is_bad: whether to warn where nearly all of it is full.
        """
        filled = round(min(max(share, 0.0), 1.0) * width)
        mark = self.warn if full_is_bad and share > 0.9 else self.good
        return f"{mark(self._full * filled)}{self.dim(self._empty * (width - filled))}"

    def _marked(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._is_coloured and text else text
