"""Every setting, once: its name, its default, how it is read and what it does.

A value comes from the environment, else from the configuration file, else it is the default. The table in the
README is made from `SETTINGS`, and a test keeps the two the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ptocache.errors import SettingsError

if TYPE_CHECKING:
    from ptocache.store.engines import EngineUrl

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}

#: Half of what HMAC-SHA256 makes of it, and more than anybody can guess where it is random.
_SHORTEST_KEY = 16
_LARGEST_KEY_FILE = 64 << 10

_TIME_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Settings(NamedTuple):
    """What ptocache was told to do. See `SETTINGS` for the meaning of each field."""

    dir: str
    size_limit: int
    max_age: float
    umask: int | None
    disable: bool
    readonly: bool
    lock_timeout: float
    compile_timeout: float
    toolchain: str
    recompile: bool
    verify: bool
    failure_ttl: float
    keep_temps: bool
    log: str
    summary: bool
    request_log: str
    shared: tuple[EngineUrl, ...]
    shared_timeout: float
    lease_seconds: float
    signing_key: Keys
    signing_key_file: Keys

    @property
    def signing_keys(self) -> tuple[bytes, ...]:
        """The secrets that sign objects of the shared tier; the first one signs, all are believed."""
        return (*self.signing_key, *self.signing_key_file)

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **overrides: object) -> Settings:
        """Read the settings.

        Args:
            environ: the environment to read; `os.environ` by default.
            **overrides: fields that are set here and not looked up, for example `dir="/tmp/cache"`. A value
                may be text, as one would write it in the environment, or already of the field's type.

        Returns:
            The settings in force.

        Raises:
            SettingsError: a value cannot be used; the message names where it came from.
        """
        environ = os.environ if environ is None else environ
        values = {found.setting.field: found.value for found in in_force(environ, **overrides)}
        if not values["dir"]:
            values["dir"] = default_directory(environ)
        if values["lock_timeout"] is None:
            values["lock_timeout"] = values["compile_timeout"]
        return cls(**values)


class InForce(NamedTuple):
    """A setting as it is in force.

    Attributes:
        setting: which.
        value: its value.
        text: the same as text; what is secret is not shown.
        where: where it comes from: an environment variable, a line of the configuration file, or the default.
    """

    setting: Setting
    value: Any
    text: str
    where: str


def in_force(environ: Mapping[str, str], **overrides: object) -> list[InForce]:
    """All settings, and where each comes from.

    Args:
        environ: the environment to read.
        **overrides: fields that are set here and not looked up.

    Raises:
        SettingsError: a value cannot be used; the message names where it came from.
    """
    unknown = sorted(set(overrides) - {setting.field for setting in SETTINGS})
    if unknown:
        raise SettingsError(f"unknown setting {unknown[0]!r}: known are {', '.join(Settings._fields)}")
    path = config_path(environ)
    configured = _read_config(path) if path else {}
    found = []
    for setting in SETTINGS:
        if setting.field in overrides:
            given, where = overrides[setting.field], f"{setting.field}="
        elif environ.get(setting.variable):
            given, where = environ[setting.variable], setting.variable
        elif setting.field in configured:
            given, where = configured[setting.field], f"{setting.field} in {path}"
        else:
            given, where = setting.default, "the default"
        try:
            text = "" if isinstance(given, Keys) else _as_text(given, setting)
            value = given if isinstance(given, Keys) else setting.parse(text)
        except ValueError as error:
            raise SettingsError(f"{where}: {error}") from None
        found.append(InForce(setting, value, _shown(value, text), where))
    return found


def _shown(value: object, text: str) -> str:
    """A setting's text without what is secret in it."""
    if isinstance(value, Keys):
        return repr(value) if value else ""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return text


class Keys(tuple[bytes, ...]):
    """Secrets, which are not shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} secret>" if self else "()"


class Setting(NamedTuple):
    """One row of the table of settings.

    Attributes:
        field: the name in `Settings`, and the key in the configuration file.
        default: the value where nothing else is said, as text; empty where the help tells what it is.
        parse: turns the text into the value; raises `ValueError` with a message that says what was expected.
        help: what the setting does, for the README and for people.
    """

    field: str
    default: str
    parse: Callable[[str], Any]
    help: str

    @property
    def variable(self) -> str:
        """The environment variable: `PTOCACHE_` and the field's name in capitals."""
        return f"PTOCACHE_{self.field.upper()}"


def _as_text(value: object, setting: Setting) -> str:
    if value is None and setting.parse in {parse_umask, _parse_optional_seconds}:
        return ""
    if setting.parse is parse_umask and isinstance(value, int):
        return f"{value:o}"
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, tuple | list) and setting.field in {"shared", "signing_key"}:
        words = [word if isinstance(word, str) else getattr(word, "text", None) for word in value]
        if all(isinstance(word, str) for word in words):
            return " ".join(map(str, words))
    raise ValueError(f"expected text or a number, found a value of the type {type(value).__name__}")


def parse_bool(text: str) -> bool:
    """Read a switch: `1`, `true`, `yes`, `on` or `0`, `false`, `no`, `off`; raises `ValueError`."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"expected 1 or 0, found {text!r}")


def parse_size(text: str) -> int:
    """Read a size in bytes: `1048576`, `500MB` (powers of 1000), `5GiB` (powers of 1024), 0 for no limit.

    Raises:
        ValueError: the text is no size, or a negative one.
    """
    number, unit = _split_unit(text)
    try:
        size = float(number) * _SIZE_UNITS[unit]
        if not 0 <= size < 2**63:
            raise ValueError
        return int(number) * _SIZE_UNITS[unit] if number.isdigit() else int(size)
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"expected a size such as 5GiB, 500MB or 1048576, found {text!r}") from None


def parse_seconds(text: str) -> float:
    """Read a length of time in seconds: `600`, `0.5`, `90s`, `10m`, `2h`, `7d`; raises `ValueError`."""
    # A day short of what poll() and lock waits can count in milliseconds as a C int.
    return _parse_time(text, 24, "600, 90s or 10m")


def parse_age(text: str) -> float:
    """Read an age in seconds: `30d`, `12h`, 0 for any age; raises `ValueError`."""
    return _parse_time(text, 36500, "30d or 12h")


def _parse_time(text: str, days: int, examples: str) -> float:
    number, unit = _split_unit(text)
    try:
        seconds = float(number) * _TIME_UNITS[unit]
        if not 0 <= seconds <= days * 86400:
            raise ValueError
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"expected a time of up to {days}d such as {examples}, found {text!r}") from None
    return seconds


def parse_umask(text: str) -> int | None:
    """Read a file mode creation mask, in octal: `002`, `027`; `None` for an empty text.

    Raises:
        ValueError: the text is no mask, or one that would shut its own user out.
    """
    if not text:
        return None
    try:
        mask = int(text, 8)
        if not 0 <= mask <= 0o077:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"expected what others may not do, in octal, such as 002 (the group may write), 022 or 077, found {text!r}"
        ) from None
    return mask


def _split_unit(text: str) -> tuple[str, str]:
    word = text.strip().lower()
    number = word.rstrip("abcdefghijklmnopqrstuvwxyz ")
    return number.strip(), word[len(number) :].strip()


def _parse_positive_seconds(text: str) -> float:
    seconds = parse_seconds(text)
    if seconds == 0:
        raise ValueError(f"expected a time above 0, found {text!r}")
    return seconds


def _parse_optional_seconds(text: str) -> float | None:
    return parse_seconds(text) if text else None


def _parse_path(text: str) -> str:
    if "\0" in text:
        raise ValueError(f"expected a path, found {text!r}")
    try:
        return os.path.abspath(os.path.expanduser(text)) if text else ""
    except FileNotFoundError:
        raise ValueError(f"expected an absolute path, as the working directory is gone; found {text!r}") from None


def _parse_shared(text: str) -> tuple[EngineUrl, ...]:
    if not text.split():
        return ()
    from ptocache.store.engines import parse_urls  # only whoever shares pays for it

    return parse_urls(text)


def parse_keys(text: str) -> Keys:
    """Read signing keys, separated by white space; raises `ValueError`, which does not show them."""
    keys = text.split()
    if any(len(key) < _SHORTEST_KEY for key in keys):
        raise ValueError(
            f"expected keys of at least {_SHORTEST_KEY} characters, such as `openssl rand -hex 32` prints; "
            "one is shorter"
        )
    if text and not keys:  # a variable that was put together of nothing must not turn signing off
        raise ValueError("expected a key, found only white space")
    return Keys(key.encode("utf-8", "surrogateescape") for key in keys)


def _parse_key_file(text: str) -> Keys:
    if not text:
        return Keys()
    try:
        with open(os.path.expanduser(text), encoding="utf-8-sig") as file:
            content = file.read(_LARGEST_KEY_FILE + 1)
        if len(content) > _LARGEST_KEY_FILE:
            raise ValueError(f"the file {text!r} is too large for one with keys")
        keys = parse_keys(content) if content.strip() else Keys()
    except (OSError, UnicodeDecodeError) as error:
        # Who mistakes this setting for the other one has put the key itself there.
        name = repr(text) if os.sep in text else "that it names"
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"the file {name} cannot be read: {reason}") from None
    if not keys:
        raise ValueError(f"there is no key in the file {text!r}")
    return keys


def _parse_choice(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in choices:
            expected = ", ".join(choice or "nothing" for choice in choices)
            raise ValueError(f"expected one of {expected}, found {text!r}")
        return word

    return parse


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "dir",
        "",
        _parse_path,
        "Where the cache lives. Default: `ptocache` in the user's cache directory, `$XDG_CACHE_HOME` or `~/.cache`.",
    ),
    Setting(
        "size_limit",
        "5GiB",
        parse_size,
        "How large the cache may grow, in bytes or as `500MB`, `5GiB`. `0`: no limit.",
    ),
    Setting(
        "max_age",
        "0",
        parse_age,
        "How long what nobody uses is kept, in seconds or as `30d`. `0`: until its room is needed.",
    ),
    Setting(
        "umask",
        "",
        parse_umask,
        "Set it to share the cache directory with others: what they may not do with its files, in octal, such as "
        "`002` for a group that works together. Default: the directory is private, and one that somebody else owns "
        "or can write to is not used.",
    ),
    Setting(
        "disable",
        "0",
        parse_bool,
        "`1`: compile every time; the cache is neither read nor written.",
    ),
    Setting(
        "readonly",
        "0",
        parse_bool,
        "`1`: use what is stored, store nothing new and change nothing in the directory.",
    ),
    Setting(
        "lock_timeout",
        "",
        _parse_optional_seconds,
        "How long to wait, in seconds or as `10m`, while another process compiles the same kernel; "
        "then compile it here too. Default: the compile timeout.",
    ),
    Setting(
        "compile_timeout",
        "600",
        _parse_positive_seconds,
        "How long one tool of the pipeline may run, in seconds or as `10m`, before it is ended.",
    ),
    Setting(
        "toolchain",
        "",
        _parse_choice("", "emulated"),
        "`emulated`: compile with the emulated CANN install. Empty: with the installed tools.",
    ),
    Setting(
        "recompile",
        "0",
        parse_bool,
        "`1`: use nothing that is stored; compile, and store the result in its place.",
    ),
    Setting(
        "verify",
        "0",
        parse_bool,
        "`1`: compile on a hit too and compare. A difference is logged, and the fresh result is used and stored.",
    ),
    Setting(
        "failure_ttl",
        "10m",
        parse_seconds,
        "How long a source that ptoas or the frontend rejected is answered with the same error at once. "
        "`0`: not at all.",
    ),
    Setting(
        "keep_temps",
        "0",
        parse_bool,
        "`1`: keep the directory in which a kernel was compiled, and log where it is.",
    ),
    Setting(
        "log",
        "",
        _parse_choice("", "debug", "info", "warning", "error"),
        "`debug`, `info`, `warning` or `error`: write the log to standard error from that level on. "
        "Empty: leave it to the program's own logging.",
    ),
    Setting(
        "summary",
        "0",
        parse_bool,
        "`1`: when the process ends, log how many kernels it asked for, where they came from, and the time saved.",
    ),
    Setting(
        "request_log",
        "",
        _parse_path,
        "A file to which each process adds what it asked for, each source once, for `ptocache warm --from-log`. It has "
        "the sources. Empty: none.",
    ),
    Setting(
        "shared",
        "",
        _parse_shared,
        "URLs of what hosts share, separated by spaces, asked in this order: `file:///path`, `redis://host/0`, "
        "`s3://bucket/prefix`, `gs://…`, `az://…`, `https://host/path`. `#readonly` at the end of one: never store "
        "there. See [docs/fleets.md](docs/fleets.md).",
    ),
    Setting(
        "shared_timeout",
        "5",
        _parse_positive_seconds,
        "How long a kernel waits for one of these, in seconds. One that fails twice in a row is left alone.",
    ),
    Setting(
        "lease_seconds",
        "15",
        _parse_positive_seconds,
        "With Redis: how long the others of a fleet wait for a host that died while it compiled their kernel.",
    ),
    Setting(
        "signing_key",
        "",
        parse_keys,
        "Secrets of at least 16 characters, separated by spaces. The first signs what is shared; what none of them has "
        "signed is not used.",
    ),
    Setting(
        "signing_key_file",
        "",
        _parse_key_file,
        "A file with such secrets, one a line.",
    ),
)


def config_path(environ: Mapping[str, str] | None = None) -> str:
    """Where the configuration file would be: `$XDG_CONFIG_HOME/ptocache/config.toml`, else below `~/.config`.

    Without a home directory there is none: whoever came first could have written one below /tmp.
    """
    environ = os.environ if environ is None else environ
    home = _home(environ)
    base = environ.get("XDG_CONFIG_HOME") or (os.path.join(home, ".config") if home else "")
    return os.path.join(base, "ptocache", "config.toml") if base else ""


def default_directory(environ: Mapping[str, str] | None = None) -> str:
    """Where the cache lives if nothing else is said, as an absolute path."""
    environ = os.environ if environ is None else environ
    # Without a home (a container's numeric user): below /tmp, where it is used only if it is this user's own.
    home = _home(environ) or f"/tmp/ptocache-{os.getuid()}"  # noqa: S108 - see `ptocache.store.place`
    base = environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return os.path.join(os.path.abspath(base), "ptocache")


def _home(environ: Mapping[str, str]) -> str:
    home = environ.get("HOME") or os.path.expanduser("~")
    return home if os.path.isabs(home) else ""


def _read_config(path: str) -> dict[str, object]:
    try:
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            # A pipe would keep every command waiting for its writer.
            raise SettingsError(f"{path}: the configuration file cannot be read: not a regular file")
        with open(path, "rb") as file:
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise SettingsError(f"{path}: the configuration file cannot be read: {error.strerror}") from error
    try:
        import tomllib  # only a user with such a file pays for it
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    try:
        configured: dict[str, object] = tomllib.loads(text.decode())
    except ValueError as error:
        raise SettingsError(f"{path}: the configuration file is not TOML: {error}") from error
    unknown = sorted(set(configured) - set(Settings._fields))
    if unknown:
        known = ", ".join(Settings._fields)
        raise SettingsError(f"{path}: unknown setting {unknown[0]!r}: known are {known}")
    return configured
