"""What is asked for, and the keys that name it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys

import pytest
import xxhash
from hypothesis import assume, given
from hypothesis import strategies as st

import ptocache
from ptocache.errors import SettingsError, SourceError
from ptocache.request import (
    ARCHS,
    DEFAULT_BACKEND,
    SCHEMA,
    CompileRequest,
    Key,
    encode,
    make_key,
    make_request,
    pto_parts,
    source_parts,
    split_flags,
)

SOURCE = "from ptodsl import pto\n\n@pto.jit\ndef größe(): ...\n"
REQUEST = make_request(SOURCE, "a5", ["-O3", "--x=1"])
STAMP = "cann 9.1.0 · ptoas 0.1"

PARTS = st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), st.binary(max_size=6)))


# The encoding.


@given(PARTS, PARTS)
def test_different_parts_never_give_the_same_bytes(one: list[tuple[str, bytes]], other: list[tuple[str, bytes]]):
    assert (encode(one) == encode(other)) == (one == other)


@given(PARTS, st.data())
def test_bytes_moved_over_a_boundary_give_other_bytes(parts: list[tuple[str, bytes]], data: st.DataObject):
    """What separators would confuse: the end of one part taken for the beginning of the next."""
    assume(parts)
    at = data.draw(st.integers(0, len(parts) - 1))
    name, value = parts[at]
    cut = data.draw(st.integers(0, len(value)))
    split = [*parts[:at], (name, value[:cut]), ("", value[cut:]), *parts[at + 1 :]]
    nested = [*parts[:at], (name, encode([("", value)])), *parts[at + 1 :]]
    assert len({encode(parts), encode(split), encode(nested), encode(parts[:at])}) == 4


@given(PARTS)
def test_the_encoding_can_be_read_back(parts: list[tuple[str, bytes]]):
    """The strongest form of the above: a decoder exists."""
    data = encode(parts)
    assert data[:12] == SCHEMA.to_bytes(4, "little") + bytes(8)
    data, decoded = data[12:], []
    while data:
        name_length, value_length = int.from_bytes(data[:4], "little"), int.from_bytes(data[4:12], "little")
        name, data = data[12 : 12 + name_length], data[12 + name_length :]
        value, data = data[:value_length], data[value_length:]
        decoded.append((name.decode(), value))
    assert decoded == parts


def test_a_key_is_two_hashes_of_the_same_bytes():
    parts = source_parts(REQUEST, STAMP)
    assert make_key(parts) == Key(xxhash.xxh3_128_hexdigest(encode(parts)), hashlib.sha256(encode(parts)).digest())


# What makes a key another one.


@given(st.data())
def test_one_changed_bit_of_source_or_stamp_or_flag_changes_both_hashes(data: st.DataObject):
    def flip(text: str) -> str:
        at = data.draw(st.integers(0, len(text) - 1))
        changed = chr(ord(text[at]) ^ (1 << data.draw(st.integers(0, 6))))
        return text[:at] + changed + text[at + 1 :]

    key = make_key(source_parts(REQUEST, STAMP))
    others = [
        make_key(source_parts(REQUEST._replace(source=flip(SOURCE)), STAMP)),
        make_key(source_parts(REQUEST._replace(flags=(flip("-O3"), *REQUEST.flags[1:])), STAMP)),
        make_key(source_parts(REQUEST, flip(STAMP))),
    ]
    for other in others:
        assert other.name != key.name
        assert other.check != key.check


def test_every_part_of_a_request_is_in_both_its_keys():
    others = [
        (REQUEST, STAMP),
        (REQUEST._replace(arch="a3"), STAMP),
        (REQUEST._replace(flags=(*REQUEST.flags, "-g")), STAMP),
        (REQUEST._replace(flags=REQUEST.flags[1:]), STAMP),
        (REQUEST._replace(flags=REQUEST.flags[::-1]), STAMP),
        (REQUEST._replace(flags=("-O3--x=1", *REQUEST.flags[2:])), STAMP),
        (REQUEST._replace(flags=("-O3 --x=1", *REQUEST.flags[2:])), STAMP),
        (REQUEST, STAMP + " "),
        (REQUEST, ""),
    ]
    source_keys = {make_key(source_parts(request, stamp)) for request, stamp in others}
    pto_keys = {make_key(pto_parts("module {}", request, stamp)) for request, stamp in others}
    assert len(source_keys | pto_keys) == 2 * len(others)


def test_the_pto_key_is_of_the_lowered_text_and_not_of_the_source():
    other = REQUEST._replace(source="x = 1\n")
    assert pto_parts("module {}", REQUEST, STAMP) == pto_parts("module {}", other, STAMP)
    assert pto_parts("module {}", REQUEST, STAMP) != pto_parts("module {} ", REQUEST, STAMP)


def test_a_text_as_source_and_as_lowered_text_has_two_keys():
    assert make_key(source_parts(REQUEST, STAMP)) != make_key(pto_parts(SOURCE, REQUEST, STAMP))


def test_line_ends_are_part_of_the_source():
    assert make_key(source_parts(REQUEST, STAMP)) != make_key(
        source_parts(REQUEST._replace(source=SOURCE.replace("\n", "\r\n")), STAMP)
    )


# Keys travel.

ELSEWHERE = """
import sys
from ptocache.request import make_key, make_request, pto_parts, source_parts
request = make_request(sys.argv[1], "a5", ["-O3", "--x=1"])
for key in (make_key(source_parts(request, sys.argv[2])), make_key(pto_parts("module {}", request, sys.argv[2]))):
    print(key.name, key.check.hex())
"""

HERE = [
    f"{key.name} {key.check.hex()}"
    for key in (make_key(source_parts(REQUEST, STAMP)), make_key(pto_parts("module {}", REQUEST, STAMP)))
]


def keys_elsewhere(python: str, **environ: str) -> list[str]:
    command = [python, "-X", "utf8", "-c", ELSEWHERE, SOURCE, STAMP]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_keys_are_the_same_in_every_process(seed: str):
    assert keys_elsewhere(sys.executable, PYTHONHASHSEED=seed) == HERE


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_keys_are_the_same_in_every_python(version: str):
    python = shutil.which(f"python{version}")
    root = os.path.dirname(ptocache.__path__[0])
    probe = [python or sys.executable, "-c", "import sys, xxhash; print(sys.version_info[:2])"]
    found = subprocess.run(probe, capture_output=True, text=True, check=False)
    if python is None or found.returncode:
        pytest.skip(f"there is no Python {version} with xxhash on PATH")
    assert keys_elsewhere(python, PYTHONPATH=root) == HERE


def test_the_keys_of_this_schema_stay_what_they_are():
    """What a fleet has stored must be found by the next release: raise SCHEMA if this has to change."""
    assert SCHEMA == 1
    assert HERE[0].split()[0] == "8141c30bd6f8cb2e07d6028327a8c461"
    assert HERE[1].split()[0] == "cd22bc061fed18a1917a9d9739d22457"


# The canonical form of a request.


@pytest.mark.parametrize("arch", ["a5", " A5\n", "a5 ", "A5"])
def test_case_and_space_of_the_arch_do_not_matter(arch: str):
    assert make_request(SOURCE, arch, []) == make_request(SOURCE, "a5", [])


@pytest.mark.parametrize("arch", ARCHS)
def test_every_arch_is_taken(arch: str):
    assert make_request(SOURCE, arch, []).arch == arch


@pytest.mark.parametrize("arch", ["", " ", "a4", "a 5", "a5,a3", "ascend910", "a5\0", "\u04305"])
def test_an_unknown_arch_is_refused(arch: str):
    with pytest.raises(SettingsError, match="expected one of a5, a3, a2") as caught:
        make_request(SOURCE, arch, [])
    assert repr(arch) in str(caught.value)
    assert "PTO_ARCH" in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], [DEFAULT_BACKEND]),
        ("", [DEFAULT_BACKEND]),
        ("  ", [DEFAULT_BACKEND]),
        (["-O3"], ["-O3", DEFAULT_BACKEND]),
        ("-O3 --x='a b'", ["-O3", "--x=a b", DEFAULT_BACKEND]),
        ("-O3 # no comment", ["-O3", "#", "no", "comment", DEFAULT_BACKEND]),
        (("-b", "-a", "-b"), ["-b", "-a", "-b", DEFAULT_BACKEND]),
        (["--pto-backend=emitc"], ["--pto-backend=emitc"]),
        ("--pto-backend emitc -g", ["--pto-backend=emitc", "-g"]),
        (["--pto-backends=no"], ["--pto-backends=no", DEFAULT_BACKEND]),
        (["", "-g"], ["", "-g", DEFAULT_BACKEND]),
        (["--path=caf\udce9"], ["--path=caf\udce9", DEFAULT_BACKEND]),
    ],
)
def test_flags_are_words_in_order_with_the_default_back_end_where_none_is_named(
    flags: str | list[str], words: list[str]
):
    assert make_request(SOURCE, "a5", flags) == CompileRequest(SOURCE, "a5", tuple(words))


def test_the_words_of_a_text_and_a_list_are_one_request():
    assert make_request(SOURCE, "a5", "-O3 --x=1") == REQUEST


@pytest.mark.parametrize("text", ["'", '"-O3', "-O3 \\"])
def test_flags_that_do_not_split_are_refused(text: str):
    with pytest.raises(SettingsError, match="does not split into words") as caught:
        make_request(SOURCE, "a5", text)
    assert repr(text) in str(caught.value)
    with pytest.raises(SettingsError, match="PTO_FLAGS"):
        split_flags(text)


@pytest.mark.parametrize("flag", ["a\0b", 3, None, b"-O3", "\ud800", "-x=\udfff"])
def test_a_flag_that_no_command_line_can_carry_is_refused(flag: object):
    with pytest.raises(SettingsError, match="expected ptoas flags") as caught:
        make_request(SOURCE, "a5", ["-O3", flag])  # type: ignore[list-item]
    assert repr(flag) in str(caught.value)


def test_flags_that_came_as_other_bytes_than_utf8_count_as_those_bytes():
    keys = {
        make_key(source_parts(make_request(SOURCE, "a5", [flag]), STAMP)) for flag in ("caf\udce9", "café", "caf\udce8")
    }
    assert len(keys) == 3


def test_a_source_with_a_lone_surrogate_is_refused_with_its_line():
    with pytest.raises(SourceError, match=r"line 3: .* UTF-8") as caught:
        make_request("x = 1\n\ny = '\udc80'\n", "a5", [])
    assert caught.value.lineno == 3


@given(st.text(max_size=30), st.lists(st.text(max_size=5), max_size=3))
def test_every_request_that_is_accepted_has_keys(source: str, flags: list[str]):
    try:
        request = make_request(source, "a5", flags)
    except (SourceError, SettingsError):
        assume(False)
    assert len(make_key(source_parts(request, STAMP)).name) == 32
    assert make_request(*request) == request
