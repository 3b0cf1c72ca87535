"""What the front end has to know of one kind of compilation: data, and two functions.

One function says what the tools are, the other begins a compilation. The front end does the rest, the same for all
kinds: keys, tiers, the lease, what is remembered, what is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ptocache.inputs import Input, Inputs
from ptocache.request import CompileRequest
from ptocache.stamp import Stamp


class Stages(Protocol):
    """One compilation, in two parts: between them a cache may know what the first one made."""

    @property
    def kernels(self) -> Sequence[str]:
        """The names of the kernels that are compiled, as far as they are known."""

    def lower(self) -> str | None:
        """Do the first part.

        Returns:
            The text that the second part works on, without what makes no difference to it; `None` where there is
            no such text, and all is left to the second part.

        Raises:
            ToolError: the request cannot be compiled.
        """

    def build(self) -> bytes:
        """Do the second part and return the device binary, checked; raises `PtocacheError`."""

    def inputs(self) -> Inputs:
        """What was read beside the source; raises `Unstable` where that has no name, so that nothing is stored."""

    def stamp(self) -> Stamp:
        """The tools that did it, as they are now; raises `ToolNotFoundError`."""

    def check(self, aibin: bytes) -> None:
        """See that a device binary that another source was compiled to is one for this one's kernels too.

        Raises:
            DeviceBinaryError: it is not.
        """


class Checker(Protocol):
    """Tells whether what an earlier compilation read is the same now."""

    def unchanged(self, data: bytes) -> bool:
        """Whether encoded inputs are all the same now."""

    def changed(self, inputs: Inputs) -> list[Input]:
        """Those of the inputs that are not the same now."""

    def state(self, item: Input) -> str:
        """The digest that an input has now."""


class Identity(NamedTuple):
    """The tools at one moment.

    Attributes:
        stamp: what decides about the result.
        checker: tells whether what they read beside a source is the same now.
    """

    stamp: Stamp
    checker: Checker


#: The kind whose sources are PTODSL modules, and whose tools can be looked at without TileLang.
PTODSL = "source"


class Recipe(NamedTuple):
    """One kind of compilation.

    Attributes:
        kind: its name, a part of every key.
        extra: further parts of every key: names and values.
        identify: looks at the tools; raises `ToolNotFoundError`.
        start: begins the compilation of a request; it is given a directory for its files, and whether to log
            each tool's command, time and output. Raises `SourceError`.
    """

    kind: str
    extra: tuple[tuple[str, str], ...]
    identify: Callable[[], Identity]
    start: Callable[[CompileRequest, str, bool], Stages]
