"""Every code block of the README and of the documentation that can run is run, and shows what one gets.

The rule, for fenced blocks in `console`, `python`, `sh` or `bash`: they run in their order, those of a page in one
shell, in a home directory of the page's own, with the emulated toolchain and with the repository's examples at hand.

- A `console` block has commands after `$ ` (and `> ` for the lines that belong to one) and, below each, all that it
  prints. Times, digests and dates may differ, `...` stands for anything, and the home directory is /home/you. A command
  has to succeed, unless the next one is `echo $?`.
- A `python` block is a program of its own. It has to succeed, and so has each command of an `sh` or `bash` block.
- `<!-- not run: REASON -->` on the line before leaves one out, `<!-- needs: MODULE -->` where that is not installed.
- `<!-- file: NAME -->` before a block of any language has it written to that file, and not run.

Sybil and its like find such blocks too, but run each for itself, and none knows a shell: what is left of them is the
parser, and that is markdown-it's.
"""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from markdown_it import MarkdownIt
from servers import RedisServer

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
RUNNABLE = {"console", "python", "sh", "bash"}
MARK = "\x1e"  # "record separator": between what the commands print


class Block(NamedTuple):
    line: int
    language: str
    text: str
    notes: dict[str, str]


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, each with the comments right before it."""
    found = []
    notes: dict[str, str] = {}
    for token in MarkdownIt().parse(text):
        if token.type == "fence":
            found.append(Block(token.map[0] + 1 if token.map else 0, token.info.strip(), token.content, notes))
        if token.type == "html_block":
            comments = re.findall(r"<!-- ([\w ]+?)(?:: (.*?))? -->", token.content)
            notes = notes | dict(comments)
        else:
            notes = {}
    return found


class Step(NamedTuple):
    line: int
    script: str
    shown: str | None = None  # what the page says that it prints, where it says so
    may_fail: bool = False


def steps(block: Block) -> list[Step]:
    """What is run for a block, as text for a shell."""
    if "file" in block.notes:
        return [Step(block.line, f"cat > {shlex.quote(block.notes['file'])} <<'END OF FILE'\n{block.text}END OF FILE")]
    if block.language == "python":
        file = f"$PROGRAMS/line_{block.line}.py"  # a file, as some libraries read their caller's source
        return [Step(block.line, f'cat > "{file}" <<\'END OF FILE\'\n{block.text}END OF FILE\npython3 "{file}"')]
    if block.language != "console":
        return [Step(block.line, f"set -e\n{block.text}set +e")]
    found: list[Step] = []
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if line.startswith("$ "):
            if found and line == "$ echo $?":
                found[-1] = found[-1]._replace(may_fail=True)
            found.append(Step(number, line[2:], ""))
        else:
            assert found, f"line {number}: a console block begins with a command"
            *_, last = found
            if line.startswith("> ") and not last.shown:
                found[-1] = last._replace(script=f"{last.script}\n{line[2:]}")
            else:
                found[-1] = last._replace(shown=f"{last.shown}{line}\n")
    return found


def plain(text: str) -> str:
    """What was printed, without what differs from run to run and from machine to machine."""
    for pattern, word in (
        (r"\b[0-9a-f]{16,64}\b", "DIGEST"),
        (r"\d{4}-\d\d-\d\d(?: \d\d:\d\d(?::\d\d)?)?", "TIME"),
        (r" *\b\d+(?:\.\d+)? (?:ms|s)\b", " SECONDS"),
        (r"cpython 3\.\d+", "cpython 3"),
        (r"x86_64|aarch64", "MACHINE"),
    ):
        text = re.sub(pattern, word, text)
    return text


def run(script: str, home: Path, places: dict[str, str], environ: dict[str, str]) -> list[tuple[str, int]]:
    """What each step prints, and its exit status; a name of a page stands for a place of the test's."""
    for name, place in places.items():
        script = script.replace(name, place)
    (home / "page.sh").write_text(script)
    done = subprocess.run(
        ["bash", home / "page.sh"],
        cwd=home / "ptocache",
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=240,
        check=False,
    )
    output = done.stdout.decode()
    for name, place in places.items():
        output = output.replace(place, name)
    output = output.replace(str(home), "/home/you")
    parts = re.split(rf"{MARK}(\d+)\n", output)
    results = [(printed, int(status)) for printed, status in zip(parts[0:-1:2], parts[1::2], strict=True)]
    return results if not parts[-1] and not done.returncode else [*results, (parts[-1], done.returncode)]


def environment(page: str, home: Path) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if name != "PTOCACHE_DIR"}
    commands = home / "bin"
    programs = home / "programs"
    for directory in (home, commands, programs, home / "ptocache"):
        directory.mkdir()
    for name, arguments in (("ptocache", "-m ptocache"), ("python", ""), ("python3", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
        (commands / name).chmod(0o755)
    (home / "ptocache" / "examples").symlink_to(ROOT / "examples")
    environ |= {
        "HOME": str(home),
        "PATH": f"{commands}:{environ['PATH']}",
        "PROGRAMS": str(programs),
        "COLUMNS": "100",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }
    if "PTOCACHE_TOOLCHAIN=emulated" not in page:  # where a page does not choose it by itself
        environ["PTOCACHE_TOOLCHAIN"] = "emulated"
    return environ


def check(page: str, tmp_path: Path) -> set[str]:
    """Run a page's blocks and compare; the modules that some of them need and that are not installed."""
    todo: list[Step] = []
    missing: set[str] = set()
    for block in blocks(page):
        if "needs" in block.notes and importlib.util.find_spec(block.notes["needs"]) is None:
            missing.add(block.notes["needs"])
        elif "not run" not in block.notes and (block.language in RUNNABLE or "file" in block.notes):
            todo += steps(block)
    home = tmp_path / "you"
    environ = environment(page, home)
    script = "".join(f"{step.script}\n(s=$?; printf '\\036%d\\n' $s; exit $s)\n" for step in todo)
    places = {"/mnt/nfs": str(tmp_path / "nfs"), "/run/secrets": str(tmp_path / "secrets")}
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "ptocache").write_text("a-secret-that-only-this-fleet-knows")
    with ExitStack() as stack:
        if "cache.example:6379" in script:
            places["cache.example:6379"] = stack.enter_context(RedisServer(tmp_path / "redis")).address
        results = run(script, home, places, environ)
    checker = doctest.OutputChecker()
    for step, (printed, status) in zip(todo, results, strict=False):
        where = f"line {step.line}: {step.script}"
        assert status == 0 or step.may_fail, f"{where}\nexit status {status}\n{printed}"
        if step.shown is not None:
            want, got = plain(step.shown), plain(f"{printed.rstrip()}\n" if printed.strip() else "")
            assert checker.check_output(want, got, doctest.ELLIPSIS), f"{where}\nshown:\n{want}\nprinted:\n{got}"
    assert len(results) == len(todo), results[len(todo) :]
    return missing


@pytest.mark.parametrize("name", PAGES)
def test_its_blocks_run_and_show_what_one_gets(name: str, tmp_path: Path) -> None:
    missing = check((ROOT / name).read_text(), tmp_path)
    if missing:
        pytest.skip(f"not installed: {', '.join(sorted(missing))}; the page's other blocks run")


@pytest.mark.parametrize("name", PAGES)
def test_what_is_not_run_has_a_reason(name: str) -> None:
    for block in blocks((ROOT / name).read_text()):
        assert set(block.notes) <= {"not run", "needs", "file", "main-job", "tests", "end"}, block
        assert all(block.notes.get(note, "-") for note in ("not run", "needs", "file")), block
        assert block.language, f"{name}:{block.line}: say which language it is"


@pytest.mark.parametrize(
    "page",
    [
        "```console\n$ echo a\nb\n```",
        "```console\n$ echo a\n```",
        "```console\n$ true\na\n```",
        "```console\n$ echo a\na\n$ (exit 3)\n```",
        "```console\n$ echo kernel compiled in 2 s\nkernel compiled in 2 s, saved\n```",
        "```sh\nfalse\ntrue\n```",
        "```bash\nexit 0\n```\n\n```bash\ntrue\n```",
        "```python\nraise SystemExit(1)\n```",
        "- in a list\n\n  ```sh\n  no-such-command\n  ```",
        "<!-- not run: no reason for the next but one -->\n\ntext\n\n```sh\nfalse\n```",
    ],
)
def test_a_page_with_something_else_in_it_fails(page: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check(page, tmp_path)


@pytest.mark.parametrize(
    "page",
    [
        "```console\n$ echo a; echo b; echo c\na\n...\nc\n$ true\n$ (exit 3)\n$ echo $?\n3\n```",
        "```console\n$ printf '%s' 'took 0.5 s, 0123456789abcdef'\ntook 12 ms, fedcba9876543210\n```",
        "```console\n$ for x in 1 2; do\n>   echo $x >&2\n> done\n1\n2\n$ echo ~\n/home/you\n```",
        "```sh\nexport A=1\ncd ..\n```\n\n```python\nimport os\nassert os.environ['A'] == '1'\n```",
        "<!-- file: a.txt -->\n```text\n$HOME\n```\n\n```console\n$ cat a.txt\n$HOME\n```",
        "<!-- not run: it fails -->\n```sh\nfalse\n```\n\n<!-- needs: no_such_module -->\n```sh\nfalse\n```",
        "```text\nfalse\n```",
    ],
)
def test_a_page_that_is_true_passes(page: str, tmp_path: Path) -> None:
    check(page, tmp_path)
