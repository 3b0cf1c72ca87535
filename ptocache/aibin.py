"""Reads the device binary out of linked images, and checks that it is one, with pyelftools.

The Ascend runtime refuses a bad device binary only when a program loads it, long after the compile that made
it. So it is checked here, when it is made, and every way to be wrong has a message of its own.

pyelftools knows how each ELF structure is laid out. Where a structure may lie is checked here, before it is
read, since pyelftools (0.31 to 0.33) believes the offsets and sizes in the file: a string without an end is
read to the end of the file, a `NOBITS` section of 2**60 bytes is allocated. For the same reason this module
uses its structures and not its `ELFFile`, which in 0.31 and 0.32 follows the string table's index while it is
constructed. That also takes a third off the time to import it.
"""

from __future__ import annotations

import io
import os
import stat
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

from elftools.common.utils import struct_parse
from elftools.elf.constants import SH_FLAGS, SHN_INDICES
from elftools.elf.enums import ENUM_E_MACHINE
from elftools.elf.structs import ELFStructs

from ptocache.errors import DeviceBinaryError, ImageError, PtocacheError

# Read off two images that bisheng linked, and the device binaries in them.
E_MACHINE_ASCEND = 0x1029
AICORE_SECTION = ".aicore_binary"
RECORD_SECTION = ".aicoreBinRec"
RECORD_MAGIC = 0x43554245  # "EBUC" in a little-endian image
RECORD_SIZE = 24  # the magic number at byte 0, the size of `.aicore_binary` as a u64 at byte 16

# How the runtime names the two halves of a kernel that uses both core types.
_MIX_SUFFIXES = ("_mix_aic", "_mix_aiv")

# From the ELF specification (gABI 4.1, "Object Files").
_MAGIC = b"\x7fELF"
_IDENT_SIZE = 16
_HEADER_SIZE = 64
_SECTION_ENTRY_SIZE = 64
_SEGMENT_ENTRY_SIZE = 56
_SYMBOL_ENTRY_SIZE = 24
_PN_XNUM = 0xFFFF  # in e_phnum: the number of segments is in section 0

_NAMES_SHOWN = 8

_LINK = "link the fat object with bisheng --cce-fatobj-link"
_REPORT = "link it again; if that does not help, this CANN writes another format: please report it"


class _UnusableError(Exception):
    """What is wrong with an ELF file. Whoever opened it knows its name, and adds it."""


class Section(NamedTuple):
    """A section of a device binary.

    Attributes:
        name: its name.
        type: its type, as ELF calls it, or a number.
        address: where it is loaded.
        size: its size in bytes.
    """

    name: str
    type: str
    address: int
    size: int


class Symbol(NamedTuple):
    """A symbol of a device binary.

    Attributes:
        name: its name.
        type: its type, as ELF calls it, or a number.
        binding: its binding, likewise.
        section: the number of its section, or what ELF calls it where it is in none.
        value: where it is.
        size: its size in bytes.
    """

    name: str
    type: str
    binding: str
    section: str
    value: int
    size: int


@dataclass(frozen=True)
class _Elf:
    """An ELF64 file whose section table is known to lie within it.

    Attributes:
        stream: the file.
        size: its size in bytes.
        structs: the layout of its structures, in its byte order.
        header: the ELF header.
    """

    stream: BinaryIO
    size: int
    structs: ELFStructs
    header: Any

    @property
    def byte_order(self) -> str:
        """The file's byte order, as `struct` writes it."""
        return "<" if self.structs.little_endian else ">"


def extract_aicore_binary(so_path: str | os.PathLike[str]) -> bytes:
    """Read the device binary that an image carries, from the image's own section table.

    Args:
        so_path: an ELF64 image for any machine, in either byte order: a shared image or a fat object.

    Returns:
        the bytes of `.aicore_binary`.

    Raises:
        ImageError: the file cannot be read, is not a whole ELF64 image, or has no single usable section of
            that name.
    """
    path = os.fspath(so_path)
    with _blamed_on(path, ImageError):
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            # Asked before opening: to open a pipe is to wait for its writer.
            found = "a directory" if stat.S_ISDIR(mode) else "something else, such as a pipe or a device"
            raise _UnusableError(f"expected a regular file, found {found}; name the linked image itself")
        with open(path, "rb") as stream:
            return _aicore_binary(_open_elf(stream, os.fstat(stream.fileno()).st_size))


def check_device_binary(aibin: bytes, symbols: Collection[str]) -> None:
    """Check that a device binary is one that the Ascend runtime can load for these kernels.

    Args:
        aibin: the device binary.
        symbols: the kernels that it must define, each under its own name or, where it uses both core types,
            with `_mix_aic` or `_mix_aiv` after it. Where none is given, any function will do.

    Raises:
        DeviceBinaryError: it is not a whole, executable, little-endian ELF64 file for the Ascend cores, or it
            does not define one of the kernels.
    """
    with _blamed_on("the device binary", DeviceBinaryError):
        elf = _open_elf(io.BytesIO(aibin), len(aibin))
        _check_target(elf)
        _check_segments(elf)
        _check_sections(elf)
        _check_kernels(_function_names(elf), symbols)


def kernel_symbols(aibin: bytes) -> list[str]:
    """List the functions that a device binary defines.

    Args:
        aibin: the device binary.

    Returns:
        the names of the defined `FUNC` symbols, in the order of the symbol table.

    Raises:
        DeviceBinaryError: it is not a whole ELF64 file with a symbol table.
    """
    with _blamed_on("the device binary", DeviceBinaryError):
        return _function_names(_open_elf(io.BytesIO(aibin), len(aibin)))


def sections(aibin: bytes) -> list[Section]:
    """List the sections of a device binary, without the empty one that each ELF file begins with.

    Raises:
        DeviceBinaryError: it is not a whole ELF64 file.
    """
    with _blamed_on("the device binary", DeviceBinaryError):
        elf = _open_elf(io.BytesIO(aibin), len(aibin))
        names = _section_name_table(elf)
        found = (_section(elf, index) for index in range(1, _section_count(elf)))
        return [
            Section(_name_at(names, one["sh_name"]), _shown(one["sh_type"]), one["sh_addr"], one["sh_size"])
            for one in found
        ]


def symbols(aibin: bytes) -> list[Symbol]:
    """List the named symbols of a device binary, in the order of its symbol table; none where it has no such table.

    Raises:
        DeviceBinaryError: it is not a whole ELF64 file.
    """
    with _blamed_on("the device binary", DeviceBinaryError):
        elf = _open_elf(io.BytesIO(aibin), len(aibin))
        return [
            Symbol(
                name,
                _shown(one["st_info"]["type"]),
                _shown(one["st_info"]["bind"]),
                str(one["st_shndx"]),
                one["st_value"],
                one["st_size"],
            )
            for index in _symbol_tables(elf)
            for name, one in _named_symbols_in(elf, index)
        ]


@contextmanager
def _blamed_on(subject: str, error: type[PtocacheError]) -> Iterator[None]:
    """Turn whatever goes wrong while a file is read into one error that names the file.

    Args:
        subject: the file's name, or what stands for it.
        error: the error to raise.

    Yields:
        nothing.
    """
    try:
        yield
    except _UnusableError as problem:
        raise error(f"{subject}: {problem}") from None
    except OSError as problem:
        reason = problem.strerror or problem
        raise error(f"{subject}: cannot be read: {reason}; expected the image that bisheng linked") from problem
    except Exception as problem:
        # pyelftools raises its own errors and those of its parser library, and on damaged files nearly any
        # built-in one; MemoryError is one of them.
        raise error(f"{subject}: cannot be parsed as ELF: {type(problem).__name__}: {problem}") from problem


# ---- the ELF header and the section table


def _open_elf(stream: BinaryIO, size: int) -> _Elf:
    """Read the ELF header, and check that the section table lies within the file.

    Args:
        stream: the file.
        size: its size in bytes.

    Returns:
        the opened file.

    Raises:
        _UnusableError: it is not ELF64, or ends too early.
    """
    structs = ELFStructs(little_endian=_is_little_endian(stream, size), elfclass=64)
    structs.create_basic_structs()
    header = struct_parse(structs.Elf_Ehdr, stream, stream_pos=0)
    structs.create_advanced_structs(header["e_type"], header["e_machine"], header["e_ident"]["EI_OSABI"])
    elf = _Elf(stream, size, structs, header)
    _check_section_table(elf)
    return elf


def _is_little_endian(stream: BinaryIO, size: int) -> bool:
    """Check the bytes that identify a file as ELF64, and tell its byte order.

    Args:
        stream: the file.
        size: its size in bytes.

    Returns:
        whether it is little-endian.

    Raises:
        _UnusableError: it is not ELF64, or ends before the ELF header does.
    """
    stream.seek(0)
    ident = stream.read(_IDENT_SIZE)
    if not ident:
        raise _UnusableError("expected an ELF64 file, found an empty one; build it again")
    if not ident.startswith(_MAGIC[: len(ident)]):
        raise _UnusableError(f"expected an ELF64 file, which starts 7f 45 4c 46, found {ident[:4].hex(' ')}")
    if ident[4:5] == b"\x01":
        raise _UnusableError("expected an ELF64 file, found ELF32; build it for a 64-bit host")
    if size < _HEADER_SIZE:
        raise _UnusableError(
            f"is truncated: ends after {size} of the {_HEADER_SIZE} bytes of its ELF header; build it again"
        )
    ei_class, ei_data, ei_version = ident[4:7]
    if ei_class != 2:
        raise _UnusableError(f"expected an ELF64 file (EI_CLASS 2), found EI_CLASS {ei_class}; it is damaged")
    if ei_data not in {1, 2}:
        raise _UnusableError(f"expected a byte order (EI_DATA) of 1 or 2, found {ei_data}; it is damaged")
    if ei_version != 1:
        raise _UnusableError(f"expected ELF version 1 (EI_VERSION), found {ei_version}; it is damaged")
    return ei_data == 1


def _check_section_table(elf: _Elf) -> None:
    """Check that there is a section table, and that it lies within the file.

    Args:
        elf: the file.

    Raises:
        _UnusableError: there is none, it is out of bounds, or its entries have an unknown size.
    """
    offset = elf.header["e_shoff"]
    if offset == 0:
        raise _UnusableError("expected a section table, found none (e_shoff is 0); do not strip it")
    if elf.header["e_shentsize"] != _SECTION_ENTRY_SIZE:
        raise _UnusableError(
            f"expected a section table with entries of {_SECTION_ENTRY_SIZE} bytes, "
            f"found {elf.header['e_shentsize']} (e_shentsize); it is damaged"
        )
    _check_span(elf, "the first entry of the section table", offset, _SECTION_ENTRY_SIZE)
    count = _section_count(elf)
    if count == 0:
        raise _UnusableError("expected sections, found an empty section table; do not strip it")
    _check_span(elf, f"the section table of {count} entries", offset, count * _SECTION_ENTRY_SIZE)


def _check_span(elf: _Elf, what: str, offset: int, size: int) -> None:
    """Check that a part of a file lies within it.

    Args:
        elf: the file.
        what: the part, for the message.
        offset: where it starts.
        size: how many bytes it has.

    Raises:
        _UnusableError: it does not.
    """
    if offset + size > elf.size:
        raise _UnusableError(
            f"is truncated or damaged: {what} takes bytes {offset} to {offset + size}, "
            f"and the file has {elf.size}; build it again"
        )


def _section_count(elf: _Elf) -> int:
    """Count the sections.

    Args:
        elf: the file.

    Returns:
        how many entries the section table claims to have.
    """
    # From 65,280 sections on (SHN_LORESERVE) e_shnum is 0, and section 0 holds the number.
    return int(elf.header["e_shnum"] or _section(elf, 0)["sh_size"])


def _section(elf: _Elf, index: int) -> Any:
    """Parse one entry of the section table.

    Args:
        elf: the file.
        index: the section's number, which the caller knows to be in the table.

    Returns:
        the entry, which has the fields of an `Elf64_Shdr`.
    """
    offset = elf.header["e_shoff"] + index * _SECTION_ENTRY_SIZE
    return struct_parse(elf.structs.Elf_Shdr, elf.stream, stream_pos=offset)


# ---- the contents and the names of sections


def _takes_no_bytes(section: Any) -> bool:
    """Tell whether a section is one whose offset and size say nothing about the file.

    Args:
        section: its entry in the section table.

    Returns:
        whether it has no bytes in the file.
    """
    return section["sh_type"] in {"SHT_NULL", "SHT_NOBITS"}


def _contents(elf: _Elf, index: int, name: str) -> bytes:
    """Read the bytes of a section.

    Args:
        elf: the file.
        index: the section's number.
        name: its name, for the messages.

    Returns:
        the bytes.

    Raises:
        _UnusableError: it has none in the file, they are compressed, or they are not all there.
    """
    section = _section(elf, index)
    if _takes_no_bytes(section):
        raise _UnusableError(
            f"expected section {index} ({name}) to have its bytes in the file, "
            f"found type {section['sh_type']}, which has none; {_LINK}"
        )
    if section["sh_flags"] & SH_FLAGS.SHF_COMPRESSED:
        raise _UnusableError(
            f"expected section {index} ({name}) as it is, found it compressed; link without compressing sections"
        )
    return _read(elf, f"section {index} ({name})", section["sh_offset"], section["sh_size"])


def _read(elf: _Elf, what: str, offset: int, size: int) -> bytes:
    """Read a part of a file.

    Args:
        elf: the file.
        what: the part, for the messages.
        offset: where it starts.
        size: how many bytes it has.

    Returns:
        the bytes.

    Raises:
        _UnusableError: they are not all there.
    """
    _check_span(elf, what, offset, size)
    elf.stream.seek(offset)
    data = elf.stream.read(size)
    if len(data) != size:
        raise _UnusableError(f"was cut short while it was read, in {what}; build it again")
    return data


def _string_table(elf: _Elf, index: int, use: str) -> bytes:
    """Read a string table.

    Args:
        elf: the file.
        index: the section's number, as the file claims it.
        use: what refers to it, for the messages.

    Returns:
        the bytes of the table.

    Raises:
        _UnusableError: that section is not a string table, or not one that can be read.
    """
    count = _section_count(elf)
    if not 0 < index < count:
        raise _UnusableError(f"expected a string table in sections 1 to {count - 1}, found {use} {index}")
    kind = _section(elf, index)["sh_type"]
    if kind != "SHT_STRTAB":
        raise _UnusableError(f"expected a string table in section {index} ({use}), found type {_shown(kind)}")
    return _contents(elf, index, f"the string table of {use}")


def _section_name_table(elf: _Elf) -> bytes:
    """Read the string table that holds the names of the sections.

    Args:
        elf: the file.

    Returns:
        the bytes of the table.
    """
    index = elf.header["e_shstrndx"]
    if index == SHN_INDICES.SHN_XINDEX:
        # The real index does not fit into the header: section 0 holds it.
        index = _section(elf, 0)["sh_link"]
    return _string_table(elf, index, "e_shstrndx")


def _name_offsets(elf: _Elf) -> list[int]:
    """Read where the name of each section starts, in the order of the section table.

    Args:
        elf: the file.

    Returns:
        the offsets in the string table of section names.
    """
    size = _section_count(elf) * _SECTION_ENTRY_SIZE
    table = _read(elf, "the section table", elf.header["e_shoff"], size)
    # sh_name is the first word of an entry. An object with a section a function can have 66,000 of them:
    # parsing every entry takes 0.6 s, ELFFile.get_section_by_name 1.3 s, this 10 ms.
    return [offset for (offset,) in struct.iter_unpack(f"{elf.byte_order}I60x", table)]


def _sections_named(offsets: Iterable[int], names: bytes, wanted: str) -> list[int]:
    """Find the sections of a name.

    Args:
        offsets: where the name of each section starts.
        names: the string table of section names.
        wanted: the name.

    Returns:
        their numbers, in order.
    """
    terminated = wanted.encode() + b"\0"
    return [index for index, offset in enumerate(offsets) if names.startswith(terminated, offset)]


def _name_at(names: bytes, offset: int) -> str:
    """Read a section's name for a message, where a long one need not be whole.

    Args:
        names: the string table of section names.
        offset: where the name starts.

    Returns:
        at most 64 characters of it.
    """
    return names[offset : offset + 64].partition(b"\0")[0].decode("utf-8", "backslashreplace")


def _shown(value: str | int) -> str:
    """Write a value that pyelftools gives by name where it knows one.

    Args:
        value: the name or the number.

    Returns:
        the name, or the number in hexadecimal.
    """
    return value if isinstance(value, str) else f"{value:#x}"


def _some_of(names: Iterable[str], count: int) -> str:
    """Write the first few of many names.

    Args:
        names: the names.
        count: how many they are.

    Returns:
        up to eight of them, quoted, and how many more there are; `none` if there are none.
    """
    # `repr` keeps a damaged name from writing control characters to a terminal.
    shown = ", ".join(repr(name) for name in islice(names, _NAMES_SHOWN)) or "none"
    return f"{shown} and {count - _NAMES_SHOWN} more" if count > _NAMES_SHOWN else shown


# ---- the image


def _aicore_binary(elf: _Elf) -> bytes:
    """Read the device binary from an image.

    Args:
        elf: the image.

    Returns:
        the bytes of `.aicore_binary`.

    Raises:
        _UnusableError: there is none, it is empty, or the image contradicts itself about it.
    """
    names = _section_name_table(elf)
    offsets = _name_offsets(elf)
    found = _sections_named(offsets, names, AICORE_SECTION)
    if not found:
        named = [offset for offset in offsets if names[offset : offset + 1] not in {b"", b"\0"}]
        shown = _some_of((_name_at(names, offset) for offset in named), len(named))
        raise _UnusableError(f"expected a section {AICORE_SECTION}, found only {shown}; {_LINK}")
    binary = _the_one_content(elf, found)
    if not binary:
        raise _UnusableError(f"expected a device binary in {AICORE_SECTION}, found it empty; {_LINK}")
    _check_records(elf, _sections_named(offsets, names, RECORD_SECTION), len(binary))
    return binary


def _the_one_content(elf: _Elf, indices: list[int]) -> bytes:
    """Read what the sections called `.aicore_binary` all hold.

    Args:
        elf: the image.
        indices: the numbers of those sections; there is at least one.

    Returns:
        the bytes.

    Raises:
        _UnusableError: one holds other bytes than the first, so that none can be said to be the right one.
    """
    first, *others = indices
    binary = _contents(elf, first, AICORE_SECTION)
    for other in others:
        copy = _contents(elf, other, AICORE_SECTION)
        if copy != binary:
            raise _UnusableError(
                f"expected one {AICORE_SECTION}, found two that differ: section {first} with {len(binary)} "
                f"bytes and section {other} with {len(copy)}; link one fat object into an image"
            )
    return binary


def _check_records(elf: _Elf, indices: list[int], size: int) -> None:
    """Check the size of the device binary against the linker's own record of it, where it left one.

    A record section may hold several records, one for each object that was linked. One of them must agree.

    Args:
        elf: the image.
        indices: the numbers of the record sections.
        size: the size of `.aicore_binary`.

    Raises:
        _UnusableError: a record section is malformed, or no record agrees.
    """
    recorded = [record for index in indices for record in _recorded_sizes(elf, _contents(elf, index, RECORD_SECTION))]
    if recorded and size not in recorded:
        found = ", ".join(map(str, recorded[:_NAMES_SHOWN]))
        raise _UnusableError(
            f"expected {AICORE_SECTION} to have the size that {RECORD_SECTION} records, {found} bytes, "
            f"found {size}; link it again"
        )


def _recorded_sizes(elf: _Elf, records: bytes) -> list[int]:
    """Read the sizes from a record section.

    Args:
        elf: the image.
        records: the bytes of the section.

    Returns:
        the size in each record.

    Raises:
        _UnusableError: these are not records.
    """
    if not records or len(records) % RECORD_SIZE:
        raise _UnusableError(
            f"expected {RECORD_SECTION} to hold records of {RECORD_SIZE} bytes, found {len(records)} bytes; {_REPORT}"
        )
    sizes = []
    for magic, size in struct.iter_unpack(f"{elf.byte_order}I12xQ", records):
        if magic != RECORD_MAGIC:
            raise _UnusableError(
                f"expected each record in {RECORD_SECTION} to start with {RECORD_MAGIC:#x}, found {magic:#x}; {_REPORT}"
            )
        sizes.append(size)
    return sizes


# ---- the device binary


def _check_target(elf: _Elf) -> None:
    """Check that a device binary is an executable for the Ascend cores.

    Args:
        elf: the device binary.

    Raises:
        _UnusableError: it is for something else.
    """
    if not elf.structs.little_endian:
        raise _UnusableError("expected a little-endian file (EI_DATA 1), found a big-endian one (EI_DATA 2)")
    kind = elf.header["e_type"]
    if kind != "ET_EXEC":
        raise _UnusableError(
            f"expected an executable (ET_EXEC), found {_shown(kind)}; "
            f"take it from {AICORE_SECTION}, not from the sections beside that"
        )
    machine = elf.header["e_machine"]
    # A pyelftools that knows the machine gives its name, one that does not gives the number.
    number = ENUM_E_MACHINE[machine] if isinstance(machine, str) else machine
    if number != E_MACHINE_ASCEND:
        name = f" ({machine})" if isinstance(machine, str) else ""
        raise _UnusableError(f"expected machine {E_MACHINE_ASCEND:#x} (Ascend), found {number:#x}{name}")


def _check_segments(elf: _Elf) -> None:
    """Check that the program headers, and what they load, lie within the file.

    Args:
        elf: the device binary.

    Raises:
        _UnusableError: they do not.
    """
    count = elf.header["e_phnum"]
    if count == _PN_XNUM:
        count = _section(elf, 0)["sh_info"]
    if count == 0:
        return
    if elf.header["e_phentsize"] != _SEGMENT_ENTRY_SIZE:
        raise _UnusableError(
            f"expected program headers of {_SEGMENT_ENTRY_SIZE} bytes, "
            f"found {elf.header['e_phentsize']} (e_phentsize); it is damaged"
        )
    start = elf.header["e_phoff"]
    _check_span(elf, f"the table of {count} program headers", start, count * _SEGMENT_ENTRY_SIZE)
    for index in range(count):
        offset = start + index * _SEGMENT_ENTRY_SIZE
        segment = struct_parse(elf.structs.Elf_Phdr, elf.stream, stream_pos=offset)
        if segment["p_type"] != "PT_NULL":
            _check_span(elf, f"segment {index}", segment["p_offset"], segment["p_filesz"])


def _check_sections(elf: _Elf) -> None:
    """Check that the bytes of every section lie within the file.

    Args:
        elf: the device binary.

    Raises:
        _UnusableError: they do not.
    """
    for index in range(_section_count(elf)):
        section = _section(elf, index)
        if not _takes_no_bytes(section):
            _check_span(elf, f"section {index}", section["sh_offset"], section["sh_size"])


def _function_names(elf: _Elf) -> list[str]:
    """List the functions that a file defines.

    Args:
        elf: the file.

    Returns:
        the names of the defined `FUNC` symbols, in the order of the symbol table.

    Raises:
        _UnusableError: there is no symbol table, or more than the one that ELF allows, or it is damaged.
    """
    tables = _symbol_tables(elf)
    if not tables:
        raise _UnusableError("expected a symbol table (.symtab), found none; do not strip it")
    if len(tables) > 1:
        raise _UnusableError(f"expected one symbol table, found {len(tables)}; it is damaged")
    return list(_functions_in(elf, tables[0]))


def _symbol_tables(elf: _Elf) -> list[int]:
    """Find the symbol tables.

    Args:
        elf: the file.

    Returns:
        the numbers of their sections.
    """
    return [index for index in range(_section_count(elf)) if _section(elf, index)["sh_type"] == "SHT_SYMTAB"]


def _functions_in(elf: _Elf, index: int) -> Iterator[str]:
    """Read the functions that a symbol table defines.

    Args:
        elf: the file.
        index: the section's number.

    Yields:
        the name of each defined `FUNC` symbol that has one.

    Raises:
        _UnusableError: the table or one of the names is damaged.
    """
    return (name for name, _ in _named_symbols_in(elf, index, _is_defined_function))


def _is_defined_function(symbol: Any) -> bool:
    """Tell whether a symbol is a function that the file defines.

    Args:
        symbol: its entry in the symbol table.

    Returns:
        whether it is.
    """
    return bool(symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_shndx"] != "SHN_UNDEF")


def _named_symbols_in(
    elf: _Elf, index: int, is_wanted: Callable[[Any], bool] = lambda _: True
) -> Iterator[tuple[str, Any]]:
    """Read the symbols of a symbol table.

    Args:
        elf: the file.
        index: the section's number.
        is_wanted: tells which of its entries matter.

    Yields:
        the name and the entry of each of these that has a name.

    Raises:
        _UnusableError: the table or one of the names is damaged.
    """
    strings = _string_table(elf, _section(elf, index)["sh_link"], f"sh_link of section {index}")
    # Names share bytes only where one is the tail of another, so together they stay far below this. Where
    # they do not, the offsets are garbage, and reading on would cost the square of the file's size.
    left = 16 * elf.size
    for symbol in filter(is_wanted, _symbols_in(elf, index)):
        offset = symbol["st_name"]
        end = strings.find(b"\0", offset)
        if end < 0:
            raise _UnusableError(
                f"expected the name of a symbol to lie within the {len(strings)} bytes of its string table, "
                f"found it at {offset}, without an end; it is damaged"
            )
        left -= end - offset
        if left < 0:
            raise _UnusableError("expected each symbol to have its own name, found names that overlap; it is damaged")
        if end > offset:
            yield strings[offset:end].decode("utf-8", "backslashreplace"), symbol


def _symbols_in(elf: _Elf, index: int) -> Iterator[Any]:
    """Parse the entries of a symbol table.

    Args:
        elf: the file.
        index: the section's number.

    Yields:
        each entry, which has the fields of an `Elf64_Sym`.

    Raises:
        _UnusableError: the table cannot be read, or does not hold such entries.
    """
    table = _contents(elf, index, "the symbol table")
    entry_size = _section(elf, index)["sh_entsize"]
    if entry_size != _SYMBOL_ENTRY_SIZE or len(table) % _SYMBOL_ENTRY_SIZE:
        raise _UnusableError(
            f"expected a symbol table with entries of {_SYMBOL_ENTRY_SIZE} bytes, "
            f"found {len(table)} bytes with entries of {entry_size} (sh_entsize); it is damaged"
        )
    stream = io.BytesIO(table)
    for _ in range(len(table) // _SYMBOL_ENTRY_SIZE):
        yield struct_parse(elf.structs.Elf_Sym, stream)


def _check_kernels(functions: list[str], symbols: Collection[str]) -> None:
    """Check that every kernel is among the functions.

    Args:
        functions: the functions that the device binary defines.
        symbols: the kernels; where there are none, any function will do.

    Raises:
        _UnusableError: a kernel, or any function at all, is missing.
    """
    if not functions:
        raise _UnusableError("expected a kernel, found no defined FUNC symbol; does its source have an entry kernel?")
    defined = frozenset(functions)
    missing = [
        kernel
        for kernel in dict.fromkeys(symbols)
        if defined.isdisjoint({kernel, *(kernel + suffix for suffix in _MIX_SUFFIXES)})
    ]
    if missing:
        raise _UnusableError(
            f"expected a FUNC symbol for each kernel, with or without {' or '.join(_MIX_SUFFIXES)} after it; "
            f"missing {_some_of(missing, len(missing))}, found {_some_of(functions, len(functions))}; "
            "compare these with the names in @pto.jit(name=...)"
        )
