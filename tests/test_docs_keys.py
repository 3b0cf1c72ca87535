"""docs/keys.md stays true: its tests exist, its variables are the code's, its log line is what is written.

What its console block shows is compared by `test_docs_examples.py`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ptocache.stamp import TOOL_INPUT_PREFIXES, TOOL_INPUTS
from ptocache.store.entry import VARIANTS
from ptocache.store.local import FAILURES_LIMIT

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "keys.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def rows(text: str) -> list[list[str]]:
    """The cells of a section's tables, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    rules = [number for number, row in enumerate(cells) if set("".join(row)) <= set("- |")]
    return [row for number, row in enumerate(cells) if number not in rules and number + 1 not in rules]


def test_each_row_of_the_table_has_a_test_that_exists() -> None:
    tests = {
        name
        for path in (ROOT / "tests").glob("test_*.py")
        for name in re.findall(r"^\s*def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }
    table = rows(section("What is in a key, and what is not"))
    assert len(table) >= 18
    for row in table:
        assert len(row) == 4
        found = re.fullmatch(r"`(test_\w+)`", row[3])
        assert found is not None, row
        assert found[1] in tests, row


def test_every_variable_of_the_tools_is_in_it_and_no_other() -> None:
    (table,) = re.findall(r"\| variable \| why \|\n(.*?)\n\n", section("The stamp"), re.DOTALL)
    names = [name for line in table.splitlines()[1:] for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(names) == sorted(TOOL_INPUTS)
    for prefix in TOOL_INPUT_PREFIXES:
        assert f"`{prefix}…`" in table


def test_its_numbers_are_the_codes() -> None:
    assert f"several ({VARIANTS}) such actions" in PAGE
    assert f"{FAILURES_LIMIT >> 20} MiB at most" in PAGE


def test_its_links_and_settings_lead_somewhere() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "(docs/keys.md)" in readme
    for name in re.findall(r"PTOCACHE_[A-Z_]+", PAGE):
        assert f"| `{name}` |" in readme


@pytest.mark.usefixtures("toolchain")
def test_its_python_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "None version=9.0.0\n"


def test_its_line_of_the_log_is_of_the_form_that_is_written() -> None:
    """`test_explain.py` pins the form by compiling."""
    (line,) = re.findall(r"```text\n(.*)\n```", PAGE)
    assert re.fullmatch(
        r"ptocache: DEBUG: miss [0-9a-f]{32}: of the stored compilations [0-9a-f]{32} \(vector_add\) is nearest; "
        r"different: arch",
        line,
    )
