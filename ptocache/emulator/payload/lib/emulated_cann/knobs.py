"""The knobs that tests turn: a log of tool runs, slow tools and faulty tools.

They are environment variables, and part of no cache key:

- `PTOCACHE_EMULATOR_LOG=FILE` appends one line a tool run: the tool, its process id, its arguments;
- `PTOCACHE_EMULATOR_DELAY=ptoas=2,bisheng=0.5` makes a tool sleep before it works, in seconds;
- `PTOCACHE_EMULATOR_FAULT=ptoas=exit:1,ld.lld=truncate` makes a tool fail. A tool may have several faults.

This file is used twice: by the tools, as a module of their package, and by the `ptodsl` package, which loads it
by its path. So it imports nothing from the project, and only small modules from the standard library.
"""

from __future__ import annotations

import os
import signal
import sys
import time

TOOLS = ("frontend", "ptoas", "bisheng", "ld.lld")

LOG = "PTOCACHE_EMULATOR_LOG"
DELAY = "PTOCACHE_EMULATOR_DELAY"
FAULT = "PTOCACHE_EMULATOR_FAULT"

FAULTS_WITH_NUMBER = ("exit", "signal")
FAULTS_OF_OUTPUT = ("truncate", "empty", "missing")
FAULTS = (*FAULTS_WITH_NUMBER, "hang", "noise", *FAULTS_OF_OUTPUT)

NOISE_BYTES = 4 << 20
"""What `noise` writes to each of stdout and stderr: far more than a pipe holds (64 KiB on Linux)."""


class KnobError(ValueError):
    """A knob has a value that cannot be used; the message names the variable."""


def delays(value: str) -> dict[str, float]:
    """Read a delay knob.

    >>> delays("ptoas=2, bisheng=0.5")
    {'ptoas': 2.0, 'bisheng': 0.5}
    """
    parsed = {}
    for tool, text in _pairs(DELAY, value):
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < float("inf"):
            raise KnobError(f"{DELAY}: {tool}={text}: expected a number of seconds, such as {tool}=0.5")
        parsed[tool] = seconds
    return parsed


def faults(value: str) -> dict[str, list[tuple[str, int]]]:
    """Read a fault knob: for each tool its faults, in order, each a kind and a number (0 where it has none).

    >>> faults("ptoas=exit:3,ld.lld=truncate")
    {'ptoas': [('exit', 3)], 'ld.lld': [('truncate', 0)]}
    """
    parsed: dict[str, list[tuple[str, int]]] = {}
    for tool, text in _pairs(FAULT, value):
        kind, colon, number = text.partition(":")
        if kind not in FAULTS:
            raise KnobError(f"{FAULT}: {tool}={text}: unknown fault; expected one of {', '.join(FAULTS)}")
        if bool(colon) != (kind in FAULTS_WITH_NUMBER) or (colon and not number.isdecimal()):
            raise KnobError(f"{FAULT}: {tool}={text}: `exit` and `signal` take a number, as in exit:1, others none")
        parsed.setdefault(tool, []).append((kind, int(number or 0)))
    return parsed


def begin(tool: str, arguments: list[str]) -> str:
    """Log the run of a tool, then delay it and make it fail as the knobs say.

    Args:
        tool: one of `TOOLS`.
        arguments: its command line without the program.

    Returns:
        The fault that the output is to have, one of `FAULTS_OF_OUTPUT`, or an empty string. `damage` makes it.

    Raises:
        KnobError: a knob is malformed.
    """
    environ = os.environ
    seconds = delays(environ[DELAY]).get(tool, 0) if DELAY in environ else 0
    wanted = faults(environ[FAULT]).get(tool, []) if FAULT in environ else []
    if environ.get(LOG):
        _append(environ[LOG], tool, arguments)
    if seconds:
        time.sleep(seconds)
    of_output = ""
    for kind, number in wanted:
        if kind == "exit":
            _leave(number)
        elif kind == "signal":
            os.kill(os.getpid(), number)
        elif kind == "hang":
            while True:
                signal.pause()
        elif kind == "noise":
            _noise(tool)
        else:
            of_output = kind
    return of_output


def damage(fault: str, data: bytes) -> bytes | None:
    """What a tool with an output fault writes instead of `data`; `None` where it writes nothing at all."""
    if fault == "missing":
        return None
    if fault == "empty":
        return b""
    return data[: len(data) // 2] if fault == "truncate" else data


def _pairs(variable: str, value: str) -> list[tuple[str, str]]:
    """Split `tool=value,tool=value`, and check the tools."""
    pairs = []
    for item in filter(None, (part.strip() for part in value.split(","))):
        tool, equals, text = (part.strip() for part in item.partition("="))
        if not equals or tool not in TOOLS:
            raise KnobError(f"{variable}: {item!r}: expected TOOL=VALUE, with a TOOL of {', '.join(TOOLS)}")
        pairs.append((tool, text))
    return pairs


def _append(path: str, tool: str, arguments: list[str]) -> None:
    """Append one line in one write, so that the lines of tools that run at once do not mix."""
    import shlex

    words = " ".join([tool, str(os.getpid()), *map(shlex.quote, arguments)])
    line = words.replace("\r", "\\r").replace("\n", "\\n") + "\n"
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        os.write(log, os.fsencode(line))
    finally:
        os.close(log)


def _leave(status: int) -> None:
    """End the process at once, as a crash would: no handlers run."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _noise(tool: str) -> None:
    """Write much to both streams, in turn, so that a caller that reads one after the other would stop."""
    line = f"{tool}: remark: this line is noise, which a fault knob asked for\n".encode()
    block = line * (65536 // len(line))
    for _ in range(NOISE_BYTES // len(block) + 1):
        for stream in (1, 2):
            left = block
            while left:
                left = left[os.write(stream, left) :]
