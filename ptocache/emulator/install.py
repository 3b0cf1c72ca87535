"""Writes emulated CANN installs, keeps the one behind `--emulate`, and sets environments for them.

An install's files are the same bytes wherever it is written, but for the two that name the place, and no file has a
time in it: two hosts with the same emulator and version have the same toolchain stamp. A digest of the payload is in
the version files, so that another emulator is another CANN.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import PtocacheError, SettingsError

DEFAULT_CANN_VERSION = "9.0.0"

_VERSION = re.compile(r"[0-9]+(\.[0-9A-Za-z]+){1,4}([-+][0-9A-Za-z.]+)?", re.ASCII)
"""What CANN versions look like: 8.3.RC1, 9.0.0, 9.1.0-beta.1."""

_LAUNCHERS = {"ptoas": "ptoas", "bisheng": "bisheng", "ld.lld": "lld"}
"""The programs, and the module of `emulated_cann` that each runs."""

_MARK = b"\nemulated=true\n"
_PAYLOAD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "payload")

_private: list[Path] = []
"""The install of this process alone, where the user's cache directory cannot be written."""


def write_install(directory: str | os.PathLike[str], cann_version: str = DEFAULT_CANN_VERSION) -> Path:
    """Write an emulated install.

    A new install appears at once, complete. One that is there already is brought up to date file by file, each
    replaced atomically, so that a tool that starts meanwhile finds whole files.

    Args:
        directory: where; it may exist if it is empty, or an emulated install.
        cann_version: the version that it has. Another version compiles to other binaries.

    Returns:
        The absolute path of the install.

    Raises:
        SettingsError: the version is not one, or the directory holds something else.
        PtocacheError: the directory cannot be written.
    """
    root = os.path.abspath(os.fspath(directory))
    files = _files(_checked(cann_version), root)
    try:
        _place(root, files)
    except OSError as error:
        at = error.filename or root
        raise PtocacheError(
            f"cannot write an emulated CANN install to {root}: {at}: {error.strerror}; "
            "choose a directory that you can write"
        ) from error
    return Path(root)


def ensure_install(cann_version: str = DEFAULT_CANN_VERSION) -> Path:
    """The emulated install behind `--emulate`, written if it is not there or not as it should be.

    It is in the user's cache directory, apart from the cache of ptocache. Where that cannot be written, it is in a
    temporary directory of this process, which is removed at exit.

    Args:
        cann_version: as in `write_install`.

    Returns:
        The absolute path of the install.
    """
    payload = _payload()
    name = f"{_checked(cann_version)}-{_digest(payload)[:12]}"
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # as the XDG specification has it
        base = os.path.join(os.path.expanduser("~"), ".cache")
    root = os.path.join(base, "ptocache-emulator", name)
    if os.path.isabs(base):
        if _is_current(root, _files(cann_version, root, payload)):
            return Path(root)
        with contextlib.suppress(PtocacheError):
            return write_install(root, cann_version)
    return _private_install(cann_version)


def environment(root: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which an install is the toolchain.

    Args:
        root: the install.
        environ: the environment to start from; it is not changed.

    Returns:
        A copy with what `set_env.sh` exports, and without what would lead to another install.
    """
    place = os.fspath(root)
    changed = dict(environ)
    changed.pop("BISHENG_HOME", None)
    changed["ASCEND_HOME_PATH"] = changed["ASCEND_TOOLKIT_HOME"] = place
    changed["PTOAS_BIN"] = os.path.join(place, "bin", "ptoas")
    for variable, part in (("PATH", "bin"), ("PYTHONPATH", "python")):
        first = os.path.join(place, part)
        rest = [entry for entry in environ.get(variable, "").split(os.pathsep) if entry and entry != first]
        changed[variable] = os.pathsep.join([first, *rest])
    return changed


def _checked(cann_version: str) -> str:
    """A version, if it is one."""
    if len(cann_version) > 64 or not _VERSION.fullmatch(cann_version):
        raise SettingsError(f"not a CANN version: {cann_version!r}; expected one such as {DEFAULT_CANN_VERSION}")
    return cann_version


def _payload() -> dict[str, bytes]:
    """The emulator's own files, by their place in `payload`."""
    files = {}
    for folder, folders, names in os.walk(_PAYLOAD):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            if name.endswith((".py", ".sh", ".h")):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    files[os.path.relpath(path, _PAYLOAD)] = file.read()
    return files


def _digest(payload: Mapping[str, bytes]) -> str:
    """One name for all that the emulator is."""
    digest = hashlib.sha256()
    for path in sorted(payload):
        digest.update(b"%s\0%d\0%s" % (path.encode(), len(payload[path]), payload[path]))
    return digest.hexdigest()


def _files(version: str, root: str, payload: Mapping[str, bytes] | None = None) -> dict[str, bytes]:
    """All files of an install by their place in it. Only `set_env.sh` and `path=` depend on `root`."""
    payload = _payload() if payload is None else payload
    arch = "aarch64" if os.uname().machine in {"aarch64", "arm64"} else "x86_64"
    inner = f"V{version}.emulated.{_digest(payload)[:16]}"
    info = f"Version={version}\ninnerversion={inner}\nemulated=true\n".encode()
    toolkit = (
        f"package_name=Ascend-cann-toolkit\nversion={version}\ninnerversion={inner}\narch={arch}\nos=linux\npath={root}"
    ).encode("utf-8", "surrogateescape")
    files = {path: data for path, data in payload.items() if path.startswith(("lib/", "python/", "include/"))}
    launcher = payload["bin/launcher.sh"]
    for tool, module in _LAUNCHERS.items():
        text = launcher.replace(b"@TOOL@", tool.encode()).replace(b"@MODULE@", module.encode())
        files[f"bin/{tool}"] = text
    quoted = shlex.quote(root).encode("utf-8", "surrogateescape")
    files["set_env.sh"] = payload["set_env.sh"].replace(b"@ROOT@", quoted)
    files["version.info"] = files["compiler/version.info"] = info
    files["version.cfg"] = f"# version: 1.0\ntoolkit_running_version=[{version}:emulated]\n".encode()
    files[f"{arch}-linux/ascend_toolkit_install.info"] = toolkit + _MARK
    return files


def _mode(path: str) -> int:
    """The permissions of a file of an install, before the umask."""
    return 0o777 if path.startswith("bin/") else 0o666


def _is_current(root: str, files: Mapping[str, bytes]) -> bool:
    """Whether an install holds exactly these bytes, and its tools can be run."""
    try:
        for path, data in files.items():
            place = os.path.join(root, path)
            with open(place, "rb") as file:
                if file.read() != data:
                    return False
            if path.startswith("bin/") and not os.access(place, os.X_OK):
                return False
    except OSError:
        return False
    return True


def _place(root: str, files: Mapping[str, bytes]) -> None:
    """Put the files there: as a whole if nothing is there yet, else one by one."""
    os.makedirs(os.path.dirname(root), exist_ok=True)
    if not _is_vacant(root):
        _update(root, files)
        return
    import shutil  # 5 ms, and an install is rarely new

    scratch = f"{root}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    try:
        os.mkdir(scratch)
        _update(scratch, files)
        try:
            os.rename(scratch, root)
        except OSError:
            if _is_vacant(root):
                raise
            _update(root, files)  # another process was faster
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _is_vacant(root: str) -> bool:
    """Whether a new install can take this place.

    Raises:
        SettingsError: something is there that is not an emulated install.
    """
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return True
    except NotADirectoryError as error:
        raise SettingsError(f"{root} is a file; expected a directory for an emulated CANN install") from error
    if not names:
        return True
    for arch in ("aarch64", "x86_64"):
        with contextlib.suppress(OSError), open(f"{root}/{arch}-linux/ascend_toolkit_install.info", "rb") as file:
            if _MARK in file.read():
                return False
    raise SettingsError(
        f"{root} is not empty and holds no emulated CANN install (found {min(names)}); choose an empty directory"
    )


def _update(root: str, files: Mapping[str, bytes]) -> None:
    """Replace what differs, remove modules and headers that an older emulator had, and link the interpreter."""
    for path, data in files.items():
        place = os.path.join(root, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if not _same(place, data, _mode(path)):
            with _replacing(place) as scratch:
                descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _mode(path))
                with open(descriptor, "wb") as file:
                    file.write(data)
    folders = {path.rpartition("/")[0] for path in files}
    for folder in sorted(folder for folder in folders if folder.startswith(("lib/", "python/", "include"))):
        for name in os.listdir(os.path.join(root, folder)):
            if name.endswith((".py", ".h")) and f"{folder}/{name}" not in files:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(root, folder, name))
    interpreter = os.path.realpath(sys.executable)
    link = os.path.join(root, "python3")
    if not os.path.islink(link) or os.readlink(link) != interpreter:
        with _replacing(link) as scratch:
            os.symlink(interpreter, scratch)


def _same(place: str, data: bytes, mode: int) -> bool:
    """Whether a file has these bytes, and can be run if it should be."""
    try:
        with open(place, "rb") as file:
            runnable = bool(os.fstat(file.fileno()).st_mode & stat.S_IXUSR)
            return file.read() == data and runnable == bool(mode & stat.S_IXUSR)
    except OSError:
        return False


@contextlib.contextmanager
def _replacing(place: str) -> Iterator[str]:
    """A name to write to; it becomes `place` when all went well."""
    folder, name = os.path.split(place)
    scratch = os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        yield scratch
        os.replace(scratch, place)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(scratch)


def is_private(root: Path) -> bool:
    """Whether an install was made for this process alone, and is removed when it ends."""
    return root in _private


def remove_private() -> None:
    """Remove what was made for this process alone: before it becomes another program, which would not."""
    import shutil

    while _private:
        shutil.rmtree(_private.pop().parent, ignore_errors=True)


def _private_install(cann_version: str) -> Path:
    """An install for this process alone."""
    import atexit  # only where the usual place cannot be written
    import shutil
    import tempfile

    for root in _private:
        if _is_current(str(root), _files(cann_version, str(root))):
            return root
    folder = tempfile.mkdtemp(prefix="ptocache-emulator-")
    owner = os.getpid()

    def remove() -> None:
        """Remove the install, unless this is a forked child that does not own it."""
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    root = write_install(os.path.join(folder, cann_version), cann_version)
    _private.append(root)
    return root
