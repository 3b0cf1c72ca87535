"""The documentation holds together: its links lead somewhere, all of it is in the site, and the site builds."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

import ptocache
from ptocache import pto_toolchain
from ptocache.cli import COMMANDS, EXIT_STATUSES
from ptocache.settings import SETTINGS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def conf() -> ModuleType:
    """What builds the site."""
    spec = importlib.util.spec_from_file_location("conf", DOCS / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages() -> list[Path]:
    """All pages that are checked in."""
    generated = {DOCS / "reference" / "settings.md", DOCS / "reference" / "commands.md"}
    found = [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.glob("*.md"), *DOCS.glob("reference/*.md")]
    return sorted({*found} - generated)


def tokens(text: str) -> Iterator[Token]:
    for token in MarkdownIt().enable("table").parse(text):
        yield token
        yield from token.children or ()


def links(text: str) -> list[str]:
    """Where the links and the pictures of a page lead."""
    targets = [token.attrGet("href") or token.attrGet("src") for token in tokens(text)]
    return [str(target) for target in targets if target]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and myst-parser make them."""
    found = list(tokens(text))
    titles = [after.content for token, after in itertools.pairwise(found) if token.type == "heading_open"]
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_its_links_lead_to_what_is_checked_in(page: Path, conf: ModuleType) -> None:
    """So they work where the pages are read without being built, too."""
    generated = {(DOCS / name).resolve() for name in conf.GENERATED}
    text = page.read_text()
    for link in links(text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert target not in generated, link
        assert not anchor or anchor in anchors(target.read_text()), link


def test_every_page_is_in_the_site(conf: ModuleType) -> None:
    index = (DOCS / "index.md").read_text()
    listed = {name for tree in re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL) for name in tree.split()}
    names = {str(page.relative_to(DOCS).with_suffix("")) for page in pages() if page.is_relative_to(DOCS)}
    names |= {name.removesuffix(".md") for name in conf.GENERATED}
    assert names - {"index"} <= listed


def test_every_page_is_named_by_the_index_and_the_guides_by_the_readme() -> None:
    index = links((DOCS / "index.md").read_text())
    for page in DOCS.glob("*.md"):
        assert page.name in {*index, "index.md", "changelog.md"}
    readme = links((ROOT / "README.md").read_text())
    for name in ("keys", "storage", "fleets", "tilelang"):
        assert f"docs/{name}.md" in readme


def test_the_reference_has_every_setting_every_command_and_every_exit_status(conf: ModuleType) -> None:
    settings = conf.settings_page()
    for setting in SETTINGS:
        assert f"\n## {setting.variable}\n" in settings
    assert "](docs/" not in settings
    commands = conf.commands_page()
    for name in COMMANDS:
        assert f"\n## ptocache {name}\n" in commands
        assert f"\nusage: ptocache {name}" in commands
    for status, text in EXIT_STATUSES.items():
        assert f"| {status} | {text} |" in commands


def test_the_reference_has_every_public_name() -> None:
    page = (DOCS / "reference" / "api.md").read_text()
    names = re.findall(r"^\.\. (?:auto|py:)\w+:: ([\w.]+)$", page, re.MULTILINE)
    for name in {*ptocache.__all__} - {"__version__"}:
        assert f"ptocache.{name}" in names
    for name in pto_toolchain.__all__:
        assert name in names


def test_every_test_that_is_named_exists() -> None:
    texts = {path.name: path.read_text() for path in (ROOT / "tests").glob("test_*.py")}
    defined = {name for text in texts.values() for name in re.findall(r"^\s*def (test_\w+)\(", text, re.MULTILINE)}
    for page in pages():
        for name in re.findall(r"`(test_\w+)`", page.read_text()):
            assert name in defined, f"{page.name}: {name}"


def test_no_setting_is_named_that_there_is_not() -> None:
    variables = {setting.variable for setting in SETTINGS} | {"PTOCACHE_INSTALL"}
    for page in pages():
        for name in re.findall(r"\bPTOCACHE_[A-Z_]*[A-Z]\b", page.read_text()):
            assert name in variables, f"{page.name}: {name}"


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("sphinx", "myst_parser", "furo"))),
    reason="the extra docs is not installed; .ci/run builds the site",
)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    options = ("-q", "-W", "--keep-going", "-b", "html", "-d", str(tmp_path / "doctrees"))
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(DOCS), str(tmp_path / "site")],
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "PTOCACHE_SIZE_LIMIT" in (tmp_path / "site" / "reference" / "settings.html").read_text()
    assert "CompileResult" in (tmp_path / "site" / "reference" / "api.html").read_text()
