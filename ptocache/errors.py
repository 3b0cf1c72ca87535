"""The errors that ptocache raises, one small tree.

Each message names the file or the command, says what was expected and what was found, and gives the next
step. All of them are `RuntimeError`, as the errors of `tilelang.contrib.pto_toolchain` are, so that a caller
written for that module keeps working.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence


class PtocacheError(RuntimeError):
    """The base of every error that ptocache raises on purpose."""


class SettingsError(PtocacheError):
    """A setting or an argument has a value that cannot be used."""


class SourceError(PtocacheError):
    """A PTODSL source cannot be compiled as it stands.

    Attributes:
        lineno: the line in the source, counted from 1, or `None` where no single line is at fault.
    """

    def __init__(self, message: str, lineno: int | None = None) -> None:
        super().__init__(message)
        self.lineno = lineno


class ToolNotFoundError(PtocacheError):
    """A tool that the pipeline needs is not installed, or not where the environment says."""


class ToolError(PtocacheError):
    """A tool was run and did not do its work.

    Attributes:
        tool: the stage's name: `frontend`, `ptoas`, `bisheng`, or `ascendc` for the compiler of AscendC text.
        command: the command line, as a list of words.
        returncode: the exit status; negative for a signal, as in `subprocess`; `None` if it was stopped.
        stdout: all that the tool wrote there.
        stderr: all that the tool wrote there.
        summary: what went wrong, without the tool's own words.
        remembered: whether this is an earlier failure of the same compilation, and no tool was run now.
        note: for one that is remembered, the line that says so.
        original: the text of the error that another program than ptocache raised; empty where there was none.
    """

    remembered = False
    note = ""
    original = ""

    def __init__(
        self,
        summary: str,
        *,
        tool: str,
        command: Sequence[str],
        returncode: int | None,
        stdout: str = "",
        stderr: str = "",
    ) -> None:
        self.summary = summary
        self.tool = tool
        self.command = list(command)
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr
        import shlex  # with `signal` below, what a hit does not need

        parts = [summary, f"command: {shlex.join(self.command)}"] if command else [summary]
        for name, text in (("stderr", stderr), ("stdout", stdout)):
            if text.strip():
                parts.append(f"{name}:\n{text.rstrip()}")
        super().__init__("\n".join(parts))


class ToolTimeoutError(ToolError):
    """A tool ran for longer than `PTOCACHE_COMPILE_TIMEOUT` and was ended, with all that it had started."""


class FrontendUnavailableError(ToolError):
    """The PTODSL frontend (the `ptodsl` package) could not be imported."""


class SourceImportError(ToolError):
    """The PTODSL source raised while it was imported."""


class LoweringError(ToolError):
    """The source was imported, and the frontend failed to lower its kernels to MLIR."""


class ImageError(PtocacheError):
    """A linked image carries no usable `.aicore_binary` section."""


class DeviceBinaryError(PtocacheError):
    """A device binary is not one that the Ascend runtime would load for these kernels."""


class NotACacheError(PtocacheError):
    """A directory that was to be cleared or checked is not a cache of ptocache's."""


class CacheIndexError(PtocacheError):
    """The index of the cache directory cannot be used now."""


class RefusedDirectoryError(PtocacheError):
    """The cache directory is not used, as somebody else could write to it, or as it is on a network file system."""


@contextlib.contextmanager
def explained(kind: type[PtocacheError], what: str) -> Iterator[None]:
    """Turn an `OSError` of the block into an error of the project's own.

    Args:
        kind: the error to raise.
        what: what went wrong, with the path in it; the system's reason is added.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}") from error


def describe_exit(returncode: int) -> str:
    """Say how a process ended.

    Args:
        returncode: as `subprocess` gives it: the exit status, or the negative number of a signal.

    Returns:
        `exit status 1` or `killed by SIGSEGV`.
    """
    if returncode >= 0:
        return f"exit status {returncode}"
    import signal

    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"
