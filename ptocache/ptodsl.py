"""The recipe for PTODSL sources: our own pipeline, with the tools that the environment names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ptocache.digests import Digests
from ptocache.inputs import Checker, Variable
from ptocache.recipe import PTODSL, Identity, Recipe
from ptocache.request import CompileRequest
from ptocache.settings import Settings
from ptocache.stamp import Recheck, make_stamp
from ptocache.tools import TOOL_VARIABLES, Toolchain, import_roots, locate, tool_environ

if TYPE_CHECKING:
    from ptocache.pipeline import Stages


class _Known(NamedTuple):
    """A toolchain, and its identity."""

    tools: Toolchain
    identity: Identity


class Ptodsl:
    """Compiles PTODSL sources with the installed tools, or the emulated ones.

    Args:
        settings: which tools, and how long they may take.
        digests: which contents are known already.
    """

    def __init__(self, settings: Settings, digests: Digests) -> None:
        self._settings = settings
        self._digests = digests
        self._known = Recheck(self._look)
        self.recipe = Recipe(PTODSL, (), self.identify, self.start)

    def identify(self) -> Identity:
        """The toolchain's identity."""
        return self._known().identity

    def shell_lines(self, request: CompileRequest, source_path: str) -> list[str]:
        """The commands that compile a source file, as a shell takes them."""
        from ptocache.pipeline import shell_lines

        return shell_lines(self._known().tools, request, source_path)

    def start(self, request: CompileRequest, work: str, verbose: bool) -> Stages:
        """Begin a compilation."""
        from ptocache.pipeline import Run, Stages  # only a miss needs it
        from ptocache.source import find_kernels

        kernels = find_kernels(request.source)
        # The variables of now: those of the moment when the toolchain was identified may be a second old.
        run = Run(tool_environ(self._settings.toolchain), self._settings.compile_timeout, verbose)
        return Stages(run, self._known().tools, request, kernels, work, self._digests)

    def _look(self) -> _Known:
        tools = locate(tool_environ(self._settings.toolchain))
        checker = Checker(self._digests, import_roots(tools.environ), self._variable_of(tools))
        return _Known(tools, Identity(make_stamp(tools, self._digests), checker))

    def _variable_of(self, tools: Toolchain) -> Variable:
        """How to find the variables of a frontend process: this one's, but where the emulated install is named."""
        if self._settings.toolchain == "emulated":
            return lambda name: tools.environ.get(name) if name in TOOL_VARIABLES else os.environ.get(name)
        return os.environ.get
