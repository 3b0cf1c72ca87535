"""ELF files for the tests: a small writer, and patches by field name for files that anyone wrote.

The images that matter most come from the system's own assembler and linker. This writer is for what those
cannot make everywhere: other machines, other byte orders and files that are damaged in one chosen place.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

HEADER_SIZE = 64
SECTION_SIZE = 64
SEGMENT_SIZE = 56
SYMBOL_SIZE = 24

SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_NOBITS = 1, 2, 3, 8
SHF_ALLOC, SHF_COMPRESSED = 0x2, 0x800
ET_REL, ET_EXEC, ET_DYN = 1, 2, 3
EM_X86_64, EM_AARCH64, EM_ASCEND = 0x3E, 0xB7, 0x1029
STT_OBJECT, STT_FUNC = 1, 2

# The offset and the `struct` code of each field.
HEADER_FIELDS = {
    "e_type": (16, "H"),
    "e_machine": (18, "H"),
    "e_phoff": (32, "Q"),
    "e_shoff": (40, "Q"),
    "e_phentsize": (54, "H"),
    "e_phnum": (56, "H"),
    "e_shentsize": (58, "H"),
    "e_shnum": (60, "H"),
    "e_shstrndx": (62, "H"),
}
SECTION_FIELDS = {
    "sh_name": (0, "I"),
    "sh_type": (4, "I"),
    "sh_flags": (8, "Q"),
    "sh_offset": (24, "Q"),
    "sh_size": (32, "Q"),
    "sh_link": (40, "I"),
    "sh_info": (44, "I"),
    "sh_entsize": (56, "Q"),
}


@dataclass(frozen=True)
class Section:
    """A section to write, as its entry in the section table describes it."""

    name: str
    data: bytes = b""
    kind: int = SHT_PROGBITS
    link: int = 0
    entsize: int = 0


@dataclass(frozen=True)
class Symbol:
    """A symbol to write; `section` 0 leaves it undefined."""

    name: str
    kind: int = STT_FUNC
    section: int = 1


def elf64(sections: Sequence[Section], *, order: str = "<", kind: int = ET_DYN, machine: int = EM_AARCH64) -> bytes:
    """Write an ELF64 file: header, one program header over all of it, contents, names, section table."""
    listed = [Section("", kind=0), *sections, Section(".shstrtab", kind=SHT_STRTAB)]
    names, name_offsets = strings([section.name for section in listed])
    listed[-1] = Section(".shstrtab", names, SHT_STRTAB)
    body, entries = b"", b""
    for section, name in zip(listed, name_offsets, strict=True):
        offset = HEADER_SIZE + SEGMENT_SIZE + len(body)
        entries += struct.pack(
            order + "IIQQQQIIQQ",
            *(
                name,
                section.kind,
                SHF_ALLOC,
                0,
                offset,
                len(section.data),
                section.link,
                0,
                1,
                section.entsize,
            ),
        )
        body += section.data
    table = HEADER_SIZE + SEGMENT_SIZE + len(body)
    header = struct.pack(
        order + "4sBBB9xHHIQQQIHHHHHH",
        *(b"\x7fELF", 2, 1 if order == "<" else 2, 1, kind, machine, 1, 0, HEADER_SIZE, table, 0),
        *(HEADER_SIZE, SEGMENT_SIZE, 1, SECTION_SIZE, len(listed), len(listed) - 1),
    )
    segment = struct.pack(order + "IIQQQQQQ", 1, 5, 0, 0, 0, table, table, 1)
    return header + segment + body + entries


def strings(names: Sequence[str]) -> tuple[bytes, list[int]]:
    """Write a string table, and tell where each name starts in it."""
    table, offsets = b"\0", []
    for name in names:
        offsets.append(len(table) if name else 0)
        table += name.encode() + b"\0" if name else b""
    return table, offsets


def device_binary(
    symbols: Sequence[Symbol | str], *, order: str = "<", kind: int = ET_EXEC, machine: int = EM_ASCEND
) -> bytes:
    """Write a device binary with these symbols; a plain name stands for a defined function."""
    listed = [symbol if isinstance(symbol, Symbol) else Symbol(symbol) for symbol in symbols]
    names, name_offsets = strings([symbol.name for symbol in listed])
    table = bytes(SYMBOL_SIZE) + b"".join(
        struct.pack(order + "IBBHQQ", name, 1 << 4 | symbol.kind, 0, symbol.section, 0, 4)
        for symbol, name in zip(listed, name_offsets, strict=True)
    )
    sections = [
        Section(".text", b"\x01\x02\x03\x04" * 8),
        Section(".symtab", table, SHT_SYMTAB, link=3, entsize=SYMBOL_SIZE),
        Section(".strtab", names, SHT_STRTAB),
    ]
    return elf64(sections, order=order, kind=kind, machine=machine)


def record(size: int, *, magic: int = 0x43554245, order: str = "<") -> bytes:
    """Write one record of `.aicoreBinRec`."""
    return struct.pack(order + "I12xQ", magic, size)


def with_header(image: bytes, **fields: int) -> bytes:
    """Change fields of the ELF header, by name."""
    return _patched(image, 0, HEADER_FIELDS, fields)


def with_section(image: bytes, index: int, **fields: int) -> bytes:
    """Change fields of a section's entry, by name."""
    return _patched(image, header_field(image, "e_shoff") + index * SECTION_SIZE, SECTION_FIELDS, fields)


def with_byte(image: bytes, offset: int, value: int) -> bytes:
    """Change one byte."""
    return image[:offset] + bytes([value]) + image[offset + 1 :]


def header_field(image: bytes, field: str) -> int:
    """Read a field of the ELF header, by name."""
    offset, code = HEADER_FIELDS[field]
    (value,) = struct.unpack_from(_order(image) + code, image, offset)
    return int(value)


def section_field(image: bytes, index: int, field: str) -> int:
    """Read a field of a section's entry, by name."""
    offset, code = SECTION_FIELDS[field]
    base = header_field(image, "e_shoff") + index * SECTION_SIZE
    (value,) = struct.unpack_from(_order(image) + code, image, base + offset)
    return int(value)


def _patched(image: bytes, base: int, layout: dict[str, tuple[int, str]], fields: dict[str, int]) -> bytes:
    patched = bytearray(image)
    for field, value in fields.items():
        offset, code = layout[field]
        struct.pack_into(_order(image) + code, patched, base + offset, value)
    return bytes(patched)


def _order(image: bytes) -> str:
    return "<" if image[5] == 1 else ">"
