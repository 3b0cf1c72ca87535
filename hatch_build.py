"""Puts `ptocache.pth` beside the package in site-packages, for ordinary and for editable installs."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class StartupHook(BuildHookInterface):
    """The build hook that `pyproject.toml` names."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file to what the wheel includes."""
        kind = "force_include_editable" if version == "editable" else "force_include"
        build_data[kind]["ptocache.pth"] = "ptocache.pth"
