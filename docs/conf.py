"""How the documentation is built: `sphinx-build -W --keep-going -b html docs docs/_build`.

Two pages of the reference are written from the code at the start of each build and are not checked in:
`settings_page` and `commands_page` make them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from unittest import mock

import ptocache
from ptocache.cli import COMMANDS, EXIT_STATUSES, make_parser
from ptocache.settings import SETTINGS

project = "ptocache"
author = "the ptocache developers"
version = release = ptocache.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"ptocache {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False

myst_heading_anchors = 3

default_role = "literal"  # what the docstrings have in single backquotes is code
autodoc_typehints = "signature"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True


def settings_page() -> str:
    """The page of settings, from `SETTINGS`."""
    lines = [
        "# Settings",
        "",
        "A setting comes from the environment, else from the configuration file, else it is the default. The file is",
        "`$XDG_CONFIG_HOME/ptocache/config.toml`, without that variable `~/.config/ptocache/config.toml`. In it a",
        'setting has the name without `PTOCACHE_`, in small letters: `size_limit = "20GiB"`. A name that is unknown or',
        "a value that cannot be used is an error that names the line or the variable.",
        "",
        "`ptocache doctor` shows those that are not the defaults, and where each comes from.",
    ]
    for setting in SETTINGS:
        text = re.sub(r"\[docs/[\w.]+\]\(docs/", "[](../", setting.help)  # a link from here, named as the page is
        default = f" Default: `{setting.default}`." if setting.default else ""
        if not default and "Default:" not in text:
            default = " Default: empty."
        lines += ["", f"## {setting.variable}", "", text, "", f"In the file: `{setting.field}`.{default}"]
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """The page of commands: what `--help` prints for each."""
    lines = [
        "# Commands",
        "",
        "Each command prints this with `--help`. Where it prints facts, `--json` prints them as one JSON object.",
        "",
        "## Exit status",
        "",
        "| status | when |",
        "| --- | --- |",
        *(f"| {status} | {text} |" for status, text in EXIT_STATUSES.items()),
    ]
    with mock.patch.dict(os.environ, COLUMNS="96", NO_COLOR="1"):
        for name, text in COMMANDS.items():
            shown = make_parser(name).format_help().rstrip()
            lines += ["", f"## ptocache {name}", "", f"{text[0].upper()}{text[1:]}.", "", "```text", shown, "```"]
    return "\n".join(lines) + "\n"


#: The pages that a build writes, by their names below this directory.
GENERATED = {"reference/settings.md": settings_page, "reference/commands.md": commands_page}


def write_pages(app: Any) -> None:
    """Write the pages of `GENERATED`, where they are not as they should be already."""
    for name, make in GENERATED.items():
        path = Path(app.srcdir, name)
        page = make()
        if not path.exists() or path.read_text() != page:
            path.write_text(page)


def setup(app: Any) -> dict[str, bool]:
    """What Sphinx calls when it has read this file."""
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True}
