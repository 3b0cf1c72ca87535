"""The README stays true: its table of settings is the code's, its code runs, its commands are those of CI."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ptocache.cli import COMMANDS
from ptocache.settings import SETTINGS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_table_of_settings_is_the_codes() -> None:
    rows = ["| variable | default | what it does |", "| --- | --- | --- |"]
    for setting in SETTINGS:
        default = f"`{setting.default}`" if setting.default else ""
        rows.append(f"| `{setting.variable}` | {default} | {setting.help} |")
    expected = "\n".join(rows)
    found = re.search(r"<!-- settings -->\n(.*?)\n?<!-- end -->", README, re.DOTALL)
    assert found is not None
    assert found[1] == expected, f"put this into README.md:\n{expected}"


@pytest.mark.usefixtures("toolchain")
def test_its_python_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 2
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "compiled" in result.stdout


def test_every_command_is_in_it() -> None:
    for name in COMMANDS:
        assert f"`ptocache {name}" in README


def test_its_two_commands_are_found_by_ci() -> None:
    for marker in ("main-job", "tests"):
        assert re.search(rf"<!-- {marker} -->\n```sh\n.+\n```\n<!-- end -->", README)
