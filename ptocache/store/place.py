"""Where the local tier may live: in a directory that is ours alone, or shared on purpose, on a local file system.

A cache hands out device binaries. Whoever can write to its directory chooses what they are, so a directory of
somebody else's, or one that others can write to, is used only if `PTOCACHE_UMASK` says that it is shared. SQLite and
file locks are sound within one host: on a network file system the cache moves to a local directory.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import NamedTuple

import xxhash

#: File systems that several hosts may have mounted, or whose locks and memory maps a program of their own answers
#: for, by the names that Linux gives them: what coreutils calls remote, and the cluster file systems.
# fmt: off
_NETWORK = frozenset(
    (
        "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "fhgfs", "gfs", "gfs2", "glusterfs", "gpfs", "ibrix",
        "kafs", "lustre", "ncp", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb2",
        "smb3", "smbfs", "snfs", "vboxsf", "virtiofs", "vmhgfs", "vxfs", "wekafs",
    )
)

# fmt: on

#: FUSE file systems are a program's, and most of them are on a network; these are known to be local.
_LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs", "fuse.ntfs-3g", "fuse.exfat"})

#: Where a cache goes that cannot stay where it was to be: the first that is there and local. /var/tmp is kept longer.
_LOCAL_DIRECTORIES = ("/var/tmp", "/tmp")  # noqa: S108 - a directory of our own is made there, and checked


class Place(NamedTuple):
    """Where a cache is, and why.

    Attributes:
        directory: the cache directory.
        refused: why it is not used; empty where it is.
        moved_from: the directory that was asked for, where that is on a network file system; else empty.
        filesystem: the name of the file system that was asked for, such as `ext4`; empty where it is not known.
    """

    directory: str
    refused: str = ""
    moved_from: str = ""
    filesystem: str = ""


def find_place(directory: str, umask: int | None = None) -> Place:
    """Find out where a cache may be.

    Args:
        directory: the directory that was asked for; it need not exist.
        umask: what `PTOCACHE_UMASK` says, `None` where it says nothing.

    Returns:
        The directory to use, or the reason why it is not used.
    """
    kind = filesystem_of(directory)
    if not is_network(kind):
        return Place(directory, refusal(directory, umask), "", kind)
    for base in _LOCAL_DIRECTORIES:
        if os.access(base, os.W_OK | os.X_OK) and not is_network(filesystem_of(base)):
            moved = f"{base}/ptocache-{os.getuid()}/{xxhash.xxh3_64_hexdigest(os.fsencode(directory))}"
            return Place(moved, refusal(moved, None), directory, kind)
    return Place(
        directory, f"{directory} is on a network file system ({kind}), and there is no local directory", "", kind
    )


def refusal(directory: str, umask: int | None) -> str:
    """Why a directory is not used; empty where it can be, or is still to be made."""
    if umask == 0o077:  # shared with nobody
        umask = None
    # One below a directory that everybody can write to is as safe as the first one on the way to it.
    for base in _LOCAL_DIRECTORIES:
        ours = f"{base}/ptocache-{os.getuid()}"
        if directory.startswith(f"{ours}/"):
            if os.path.islink(ours):
                return f"{ours} is a link, which anybody could have made: remove it, or set PTOCACHE_DIR"
            if reason := _distrust(ours, None):
                return reason
    return _distrust(directory, umask)


def _distrust(path: str, umask: int | None) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return ""
    if not stat.S_ISDIR(status.st_mode):
        return ""  # whoever is to write there will say so
    allowed = 0 if umask is None else 0o777 & ~umask
    advice = "Set PTOCACHE_UMASK if it is meant to be shared (002: its group may write, 022: others may read), or "
    if umask is None and status.st_uid not in {os.geteuid(), 0}:
        return (
            f"{path} belongs to the user with number {status.st_uid}, and not to this one ({os.geteuid()}). "
            f"{advice}PTOCACHE_DIR to another directory."
        )
    open_to = status.st_mode & 0o022 & ~allowed
    if open_to:
        who = "everybody" if open_to & stat.S_IWOTH else "its group"
        return f"{path} can be written to by {who}. {advice}take the permission away: chmod go-w {path}"
    return ""


def is_network(kind: str) -> bool:
    """Whether a file system of this name is one that SQLite and file locks are not sound on."""
    return kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)


def filesystem_of(path: str) -> str:
    """The name of the file system that a path is on, or would be on, as the kernel gives it.

    The kernel's list of mounts has the file system's type, as `statfs` has, with a name where that has one number
    for all of FUSE; and reading it takes a tenth of the time of importing `ctypes`, which Python needs for `statfs`.

    Returns:
        For example `ext4`, `nfs4` or `fuse.sshfs`; empty where that cannot be found out.
    """
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            lines = file.read().decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    while _is_missing(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    real, device = os.path.realpath(path), ""
    with contextlib.suppress(OSError):  # it does not answer: it is on what is mounted there
        number = os.stat(real).st_dev
        device = f"{os.major(number)}:{os.minor(number)}"
    best, best_length = "", -1
    for line in lines:
        # "36 35 98:0 /root /mount/point rw,noatime master:1 - ext4 /dev/root rw"; see proc(5)
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        with contextlib.suppress(IndexError):
            kind = after.split(" ")[0]
            if fields[2] == device:
                return kind
            # A subvolume of btrfs has a device number that is in no list; what is mounted above it tells.
            point = _unescaped(fields[4]).rstrip("/")
            if (real == point or real.startswith(f"{point}/")) and len(point) >= best_length:
                best, best_length = kind, len(point)
    return best


def _is_missing(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def _unescaped(point: str) -> str:
    """A mount point as it is, whatever is in its name."""
    for code, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        point = point.replace(code, character)
    return point
