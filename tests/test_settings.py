"""What ptocache was told to do, and by whom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptocache.errors import SettingsError
from ptocache.settings import (
    SETTINGS,
    Keys,
    Settings,
    config_path,
    default_directory,
    parse_age,
    parse_bool,
    parse_seconds,
    parse_size,
    parse_umask,
)
from ptocache.store.engines import EngineUrl

KEY = "k" * 16


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with a home of its own, and nothing else."""
    return {"HOME": str(tmp_path)}


def configure(environ: dict[str, str], text: str | bytes) -> Path:
    path = Path(config_path(environ))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refused(environ: dict[str, str], **overrides: object) -> str:
    with pytest.raises(SettingsError) as caught:
        Settings.load(environ, **overrides)
    return str(caught.value)


# Where a value comes from.


def test_with_nothing_said_every_setting_has_its_default(environ: dict[str, str], tmp_path: Path):
    assert Settings.load(environ) == Settings(
        dir=f"{tmp_path}/.cache/ptocache",
        size_limit=5 * 2**30,
        max_age=0.0,
        umask=None,
        disable=False,
        readonly=False,
        lock_timeout=600.0,
        compile_timeout=600.0,
        toolchain="",
        recompile=False,
        verify=False,
        failure_ttl=600.0,
        keep_temps=False,
        request_log="",
        log="",
        summary=False,
        shared=(),
        shared_timeout=5.0,
        lease_seconds=15.0,
        signing_key=Keys(),
        signing_key_file=Keys(),
    )


VALUES: list[tuple[str, str, Any, str, Any, object, Any]] = [
    # field, in the configuration file, its value, in the environment, its value, as an argument, its value
    ("dir", '"/a"', "/a", "/b", "/b", Path("/c"), "/c"),
    ("size_limit", '"1MB"', 10**6, "1KiB", 1024, 7, 7),
    ("size_limit", "12", 12, "1.5kb", 1500, "2GB", 2 * 10**9),
    ("max_age", '"30d"', 30 * 86400.0, "12h", 12 * 3600.0, 7, 7.0),
    ("umask", '"002"', 0o002, "027", 0o027, "77", 0o077),
    ("umask", '"007"', 0o007, "0", 0, 0o022, 0o022),
    ("disable", "true", True, "0", False, True, True),
    ("readonly", "true", True, "off", False, "yes", True),
    ("lock_timeout", "1.5", 1.5, "2m", 120.0, 3, 3.0),
    ("compile_timeout", '"1h"', 3600.0, "5", 5.0, 0.25, 0.25),
    ("request_log", '"/a"', "/a", "/b", "/b", Path("/c"), "/c"),
    ("toolchain", '"emulated"', "emulated", " Emulated ", "emulated", "", ""),
    ("recompile", "true", True, "0", False, "on", True),
    ("verify", "true", True, "0", False, "on", True),
    ("failure_ttl", '"1h"', 3600.0, "0", 0.0, 7, 7.0),
    ("keep_temps", '"on"', True, "no", False, 1, True),
    ("log", '"debug"', "debug", "INFO", "info", "error", "error"),
    ("summary", "true", True, "0", False, "on", True),
    (
        "shared",
        '"file:///a"',
        (EngineUrl("file:///a"),),
        " file:///b#readonly  file:///c ",
        (EngineUrl("file:///b", True), EngineUrl("file:///c")),
        (EngineUrl("file:///d", True),),
        (EngineUrl("file:///d", True),),
    ),
    ("shared_timeout", "2", 2.0, "1m", 60.0, 0.5, 0.5),
    ("lease_seconds", "2", 2.0, "1m", 60.0, 0.5, 0.5),
    (
        "signing_key",
        f'"{KEY}"',
        Keys([b"k" * 16]),
        f"{KEY}2 {KEY}",
        Keys([b"k" * 16 + b"2", b"k" * 16]),
        KEY,
        (b"k" * 16,),
    ),
]


@pytest.mark.parametrize(("field", "text", "configured", "variable", "set_", "argument", "given_"), VALUES)
def test_an_argument_wins_over_the_environment_and_that_over_the_file(
    environ: dict[str, str],
    field: str,
    text: str,
    configured: Any,
    variable: str,
    set_: Any,
    argument: object,
    given_: Any,
):
    configure(environ, f"{field} = {text}\n")
    assert getattr(Settings.load(environ), field) == configured
    environ[f"PTOCACHE_{field.upper()}"] = variable
    assert getattr(Settings.load(environ), field) == set_
    assert getattr(Settings.load(environ, **{field: argument}), field) == given_


def test_every_setting_is_tried_above():
    tried = {row[0] for row in VALUES} | {"signing_key_file"}
    assert tried == set(Settings._fields) == {setting.field for setting in SETTINGS}


@pytest.mark.parametrize("text", [" ", "\n", " \t "])
def test_a_key_of_nothing_is_refused(environ: dict[str, str], text: str):
    """Two variables that are not set, with a space between them, must not turn signing off."""
    environ["PTOCACHE_SIGNING_KEY"] = text
    with pytest.raises(SettingsError, match="only white space"):
        Settings.load(environ)


def test_a_key_file_may_begin_with_a_byte_order_mark_and_may_not_be_huge(environ: dict[str, str], tmp_path: Path):
    file = tmp_path / "keys"
    environ["PTOCACHE_SIGNING_KEY_FILE"] = str(file)
    file.write_text("\ufeff" + "a" * 20, encoding="utf-8")
    assert Settings.load(environ).signing_keys == (b"a" * 20,)
    file.write_text("\n".join(["a" * 70] * 1000))
    with pytest.raises(SettingsError, match="too large"):
        Settings.load(environ)


def test_keys_come_from_a_file_too_and_are_not_shown(environ: dict[str, str], tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("a" * 20 + "\n" + "b" * 20 + "\n")
    environ["PTOCACHE_SIGNING_KEY_FILE"] = str(file)
    environ["PTOCACHE_SIGNING_KEY"] = "c" * 20
    settings = Settings.load(environ)
    assert settings.signing_keys == (b"c" * 20, b"a" * 20, b"b" * 20)
    assert not any(letter * 4 in repr(settings) for letter in "abc")
    assert Settings.load(environ, signing_key_file=settings.signing_key_file).signing_keys == settings.signing_keys
    assert Settings.load(environ, signing_key_file=file).signing_keys == settings.signing_keys


@pytest.mark.parametrize("text", ["", "short\n", b"\xff" * 20, None])
def test_a_key_file_without_a_key_is_refused(environ: dict[str, str], tmp_path: Path, text: str | bytes | None):
    file = tmp_path / "keys"
    if text is not None:
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    environ["PTOCACHE_SIGNING_KEY_FILE"] = str(file)
    message = refused(environ)
    assert message.startswith("PTOCACHE_SIGNING_KEY_FILE: ")
    assert "short\n" not in message


def test_a_key_that_could_be_guessed_is_refused_and_not_shown(environ: dict[str, str]):
    environ["PTOCACHE_SIGNING_KEY"] = "k" * 16 + " secret"
    message = refused(environ)
    assert "openssl rand -hex 32" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("bogus://x", "redis://host:6379/0"),
        ("redis:///0", "no host"),
        ("redis://:word@/0", "no host"),
        ("file://host/path", "absolute path"),
        ("file:///", "absolute path"),
        ("http://host:port/x", "not a URL"),
        ("file:///a#other", "#readonly"),
        ("s3:bucket", "s3://bucket/prefix"),
        ("/mnt/nfs", "file:///mnt/nfs"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(environ: dict[str, str], url: str, why: str):
    environ["PTOCACHE_SHARED"] = f"file:///a {url}"
    message = refused(environ)
    assert message.startswith("PTOCACHE_SHARED: ")
    assert why in message
    assert "word" not in message


@pytest.mark.parametrize("field", Settings._fields)
def test_an_empty_variable_is_as_good_as_none(environ: dict[str, str], field: str):
    variable = f"PTOCACHE_{field.upper()}"
    assert Settings.load({**environ, variable: ""}) == Settings.load(environ)
    texts = {row[0]: row[1] for row in VALUES}
    configure(environ, "\n".join(f"{name} = {text}" for name, text in texts.items()))
    assert Settings.load({**environ, variable: ""}) == Settings.load(environ)


def test_the_process_environment_is_read_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PTOCACHE_SIZE_LIMIT", "77")
    assert Settings.load().size_limit == 77


@pytest.mark.parametrize("umask", ["", "0", "002", "022", "027", "077"])
def test_settings_can_be_made_again_from_themselves(environ: dict[str, str], umask: str):
    settings = Settings.load(
        environ, size_limit="1.5GiB", max_age="1.5h", umask=umask, compile_timeout=1e-05, log="debug", keep_temps=True
    )
    assert Settings.load(environ, **settings._asdict()) == settings


def test_an_unknown_argument_is_refused(environ: dict[str, str]):
    message = refused(environ, siez_limit=3)
    assert "'siez_limit'" in message
    assert "size_limit" in message


# How a value is written.


@pytest.mark.parametrize("text", ["1", "true", "True", "YES", "on", " 1 "])
def test_a_switch_that_is_on(text: str):
    assert parse_bool(text) is True


@pytest.mark.parametrize("text", ["0", "false", "FALSE", "no", "Off", "\t0\n"])
def test_a_switch_that_is_off(text: str):
    assert parse_bool(text) is False


@pytest.mark.parametrize("text", ["", " ", "2", "-1", "y", "n", "tru", "1.0", "enabled", "None"])
def test_no_switch(text: str):
    with pytest.raises(ValueError, match="expected 1 or 0") as caught:
        parse_bool(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", 2**20),
        ("12B", 12),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("500MB", 500 * 10**6),
        ("500 mb", 500 * 10**6),
        (" 5GiB ", 5 * 2**30),
        ("2GB", 2 * 10**9),
        ("1TiB", 2**40),
        ("3tb", 3 * 10**12),
        ("0.5GiB", 2**29),
        (".5KiB", 512),
        ("1e6", 10**6),
        ("9007199254740993", 2**53 + 1),  # a whole number is not rounded to what a float holds
        (str(2**62), 2**62),
    ],
)
def test_a_size(text: str, size: int):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "GiB", "5G", "5Gi", "5 XB", "-1", "-1GiB", "1 2", "5GiB5", "nan", "inf", "-inf", "1e400", "0x10"),
        *("9" * 30, "9" * 5000, "8388608TiB", str(2**63), "5%", "five", "²", "1,5GiB", "None"),
    ],
)
def test_no_size(text: str):
    with pytest.raises(ValueError, match="expected a size such as 5GiB") as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("0", 0), ("600", 600), ("0.5", 0.5), ("90s", 90), ("10m", 600), ("2h", 7200), ("7d", 604800)),
        *(("24D", 2073600), (" 1.5 h ", 5400), ("1e-3", 0.001), ("2073600", 2073600)),
    ],
)
def test_a_time(text: str, seconds: float):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "-1",
        "-0.1s",
        "1ms",
        "10 min",
        "1w",
        "25d",
        "2073601",
        "nan",
        "inf",
        "1e400",
        "ten",
        "1h30m",
        "9" * 5000,
    ],
)
def test_no_time(text: str):
    with pytest.raises(ValueError, match="expected a time of up to 24d") as caught:
        parse_seconds(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("30d", 30 * 86400), ("12h", 43200), ("0.5d", 43200), ("36500d", 36500 * 86400), (" 90 S ", 90)],
)
def test_an_age(text: str, seconds: float):
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "-1d", "36501d", "1w", "30 days", "nan", "inf", "1e400", "old"])
def test_no_age(text: str):
    with pytest.raises(ValueError, match="expected a time of up to 36500d such as 30d or 12h") as caught:
        parse_age(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "umask"),
    [("", None), ("0", 0), ("000", 0), ("2", 2), ("002", 2), ("0022", 0o22), ("0o27", 0o27), ("077", 0o77)],
)
def test_a_umask(text: str, umask: int | None):
    assert parse_umask(text) == umask


@pytest.mark.parametrize("text", ["8", "028", "-2", "100", "0777", "700", "u=rwx", "0x12", "2.0", "two", "9" * 5000])
def test_no_umask(text: str):
    with pytest.raises(ValueError, match="in octal, such as 002") as caught:
        parse_umask(text)
    assert repr(text) in str(caught.value)


def test_a_number_for_the_umask_in_the_file_is_its_value_or_refused(environ: dict[str, str]):
    """TOML has octal numbers: what is written as one must not be taken for another mask."""
    for text, mask in (("0o002", 0o002), ("0o027", 0o027), ("0o022", 0o022), ("'027'", 0o027)):
        configure(environ, f"umask = {text}\n")
        try:
            assert Settings.load(environ).umask == mask
        except SettingsError as error:
            assert "octal" in str(error)  # noqa: PT017 - either answer is right


@given(st.text(max_size=12) | st.from_regex(r"[0-9.e+_-]{0,6} ?[a-z]{0,3}", fullmatch=True))
def test_any_text_is_a_value_in_range_or_refused_with_what_was_found(text: str):
    for parse, limit in ((parse_size, 2**63), (parse_seconds, 24 * 86400 + 1), (parse_age, 36500 * 86400 + 1)):
        try:
            assert 0 <= parse(text) < limit
        except ValueError as caught:
            assert repr(text) in str(caught)  # noqa: PT017 - either answer is right


REFUSED = [
    ("dir", "a\0b", "a path"),
    ("size_limit", "lots", "a size such as 5GiB"),
    ("max_age", "old", "a time of up to 36500d"),
    ("umask", "rwx", "what others may not do"),
    ("umask", "0777", "what others may not do"),
    ("disable", "maybe", "1 or 0"),
    ("readonly", "2", "1 or 0"),
    ("lock_timeout", "-1", "a time"),
    ("compile_timeout", "never", "a time"),
    ("compile_timeout", "0", "a time above 0"),
    ("toolchain", "real", "one of nothing, emulated"),
    ("keep_temps", "x", "1 or 0"),
    ("log", "loud", "one of nothing, debug, info, warning, error"),
]


@pytest.mark.parametrize(("field", "text", "expected"), REFUSED)
def test_a_refusal_names_the_variable_or_the_file_or_the_argument(
    environ: dict[str, str], field: str, text: str, expected: str
):
    variable = f"PTOCACHE_{field.upper()}"
    message = refused({**environ, variable: text})
    assert message.startswith(f"{variable}: expected {expected}")
    assert repr(text) in message
    assert refused(environ, **{field: text}).startswith(f"{field}=: expected {expected}")
    path = configure(environ, f"{field} = '{text}'\n" if "\0" not in text else f'{field} = "a\\u0000b"\n')
    assert refused(environ).startswith(f"{field} in {path}: expected {expected}")


@pytest.mark.parametrize("value", ['["/a"]', "{a = 1}", "2026-01-01", "[]"])
@pytest.mark.parametrize("field", Settings._fields)
def test_a_value_of_another_kind_in_the_file_is_refused(environ: dict[str, str], field: str, value: str):
    if field in {"shared", "signing_key"} and value.startswith("["):
        value = "[1]"  # texts in a list are what they are
    path = configure(environ, f"{field} = {value}\n")
    assert refused(environ).startswith(f"{field} in {path}: expected text or a number, found a value of the type ")


def test_several_keys_and_engines_may_be_a_list(environ: dict[str, str]):
    configure(environ, f'signing_key = ["{"a" * 20}", "{"b" * 20}"]\nshared = ["file:///a", "file:///b#readonly"]\n')
    settings = Settings.load(environ)
    assert settings.signing_keys == (b"a" * 20, b"b" * 20)
    assert [(url.url, url.readonly) for url in settings.shared] == [("file:///a", False), ("file:///b", True)]
    assert Settings.load(environ, shared=settings.shared) == settings


@pytest.mark.parametrize("field", ["shared", "signing_key"])
@pytest.mark.parametrize("value", [["hunter2", 1], b"hunter2", {"hunter2": 1}])
def test_what_cannot_be_used_is_not_shown_where_it_is_a_secret(
    environ: dict[str, str], tmp_path: Path, field: str, value: object
):
    assert "hunter2" not in refused(environ, **{field: value})
    assert "hunter2" not in refused({**environ, "PTOCACHE_SIGNING_KEY_FILE": "hunter2-and-more-letters"})


@pytest.mark.parametrize("value", [None, b"/a", ["/a"], object])
def test_an_argument_of_another_kind_is_refused(environ: dict[str, str], value: object):
    assert refused(environ, dir=value).startswith("dir=: expected text or a number, found ")


def test_a_bad_value_that_is_overruled_does_not_matter(environ: dict[str, str]):
    configure(environ, "size_limit = 'lots'\n")
    assert Settings.load({**environ, "PTOCACHE_SIZE_LIMIT": "9"}).size_limit == 9
    assert Settings.load({**environ, "PTOCACHE_SIZE_LIMIT": "many"}, size_limit=8).size_limit == 8


# The configuration file.


def test_the_file_is_below_the_configuration_home(environ: dict[str, str], tmp_path: Path):
    assert config_path(environ) == f"{tmp_path}/.config/ptocache/config.toml"
    assert config_path({**environ, "XDG_CONFIG_HOME": ""}) == f"{tmp_path}/.config/ptocache/config.toml"
    assert config_path({**environ, "XDG_CONFIG_HOME": "/etc/x"}) == "/etc/x/ptocache/config.toml"


def test_an_unknown_key_in_the_file_is_refused(environ: dict[str, str]):
    path = configure(environ, "siez_limit = 3\n")
    message = refused(environ)
    assert message.startswith(f"{path}: unknown setting 'siez_limit'")
    assert "size_limit" in message


@pytest.mark.parametrize("text", [b"size_limit = \n", b"size_limit", b"disable = True\n", b"log = 'caf\xe9'\n", b"\0"])
def test_a_file_that_is_not_toml_is_refused(environ: dict[str, str], text: bytes):
    path = configure(environ, text)
    assert refused(environ).startswith(f"{path}: the configuration file is not TOML: ")


def test_an_empty_file_says_nothing(environ: dict[str, str]):
    expected = Settings.load(environ)
    configure(environ, "# nothing\n")
    assert Settings.load(environ) == expected


def test_a_pipe_is_refused_and_not_waited_for(environ: dict[str, str]):
    path = Path(config_path(environ))
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert refused(environ) == f"{path}: the configuration file cannot be read: not a regular file"


def test_a_file_that_cannot_be_read_is_refused(environ: dict[str, str]):
    path = Path(config_path(environ))
    path.mkdir(parents=True)
    assert refused(environ).startswith(f"{path}: the configuration file cannot be read: Is a directory")


def test_a_file_where_the_configuration_directory_would_be_is_none(environ: dict[str, str], tmp_path: Path):
    (tmp_path / ".config").write_text("")
    assert Settings.load(environ).size_limit == 5 * 2**30


def test_without_tomllib_tomli_reads_the_file(environ: dict[str, str]):
    """As on Python 3.10, which has none."""
    pytest.importorskip("tomli")
    configure(environ, "size_limit = '3KiB'\n")
    script = (
        "import sys; sys.modules['tomllib'] = None\n"
        "from ptocache.settings import Settings\n"
        "print(Settings.load().size_limit, 'tomli' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3072", "True"]


# Directories and times.


def test_relative_directories_become_absolute(environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert Settings.load(environ, dir="here/../there/").dir == f"{tmp_path}/there"
    assert Settings.load({**environ, "PTOCACHE_DIR": "."}).dir == str(tmp_path)
    assert default_directory({**environ, "XDG_CACHE_HOME": "relative"}) == f"{tmp_path}/relative/ptocache"


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Settings.load(dir="~/kernels").dir == f"{tmp_path}/kernels"


def test_the_cache_is_below_the_cache_home(environ: dict[str, str], tmp_path: Path):
    assert default_directory(environ) == f"{tmp_path}/.cache/ptocache"
    assert Settings.load({**environ, "XDG_CACHE_HOME": "/big"}).dir == "/big/ptocache"
    assert Settings.load({**environ, "XDG_CACHE_HOME": ""}).dir == f"{tmp_path}/.cache/ptocache"


def test_without_a_home_the_cache_is_below_a_directory_of_this_users_own(monkeypatch: pytest.MonkeyPatch):
    """As for a container's numeric user, who has no entry in the password file."""
    script = (
        "import os, pwd\n"
        "from ptocache.settings import Settings\n"
        "if os.getuid() == 0: os.setuid(54321)\n"
        "try: print(pwd.getpwuid(os.getuid()).pw_dir)\n"
        "except KeyError: print(f'/tmp/ptocache-{os.getuid()}')\n"
        "print(Settings.load({}).dir)"
    )
    done = subprocess.run([sys.executable, "-c", script], env={}, capture_output=True, text=True, check=True)
    home, directory = done.stdout.splitlines()
    assert directory == f"{home}/.cache/ptocache"
    assert os.path.isabs(directory)


def test_waiting_for_another_compiler_takes_as_long_as_compiling_may(environ: dict[str, str]):
    assert Settings.load(environ, compile_timeout="20m").lock_timeout == 1200
    assert Settings.load(environ, compile_timeout="20m", lock_timeout="5").lock_timeout == 5
    assert Settings.load(environ, lock_timeout="0").lock_timeout == 0
    configure(environ, "lock_timeout = ''\ncompile_timeout = 7\n")
    assert Settings.load(environ).lock_timeout == 7
