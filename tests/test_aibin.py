"""Reading linked images, and checking device binaries."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import elf_images as elf
import pytest
from elf_images import Section, Symbol
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ptocache.aibin import (
    AICORE_SECTION,
    E_MACHINE_ASCEND,
    RECORD_MAGIC,
    RECORD_SECTION,
    RECORD_SIZE,
    check_device_binary,
    extract_aicore_binary,
    kernel_symbols,
)
from ptocache.errors import DeviceBinaryError, ImageError

AIBIN = b"the device binary"
ADD_SECTION = ["objcopy", "--set-section-flags", f"{AICORE_SECTION}=alloc,readonly,contents"]

Writer = Callable[[bytes], Path]
Tool = Callable[..., None]


@pytest.fixture
def written(tmp_path: Path) -> Writer:
    """Write bytes to a file called `lib.so`."""

    def write(image: bytes) -> Path:
        path = tmp_path / "lib.so"
        path.write_bytes(image)
        return path

    return write


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    """Run one of the system's build tools in the test's directory."""

    def run(*command: str) -> None:
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed")
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)

    (tmp_path / "aibin").write_bytes(AIBIN)
    (tmp_path / "host.c").write_text("int add_kernel(int x) { return x + 1; }\nint counter = 1;\n")
    return run


def image_with(*sections: Section, order: str = "<") -> bytes:
    return elf.elf64([Section(".text", b"\0" * 16), *sections], order=order)


def image_of(aibin: bytes = AIBIN, *records: bytes, order: str = "<") -> bytes:
    """An image with a device binary in section 2 and, where given, its records in section 3."""
    recorded = [Section(RECORD_SECTION, b"".join(records))] if records else []
    return image_with(Section(AICORE_SECTION, aibin), *recorded, order=order)


def refusal_of_image(path: Path) -> str:
    """The message of the refusal, which names the file."""
    with pytest.raises(ImageError) as caught:
        extract_aicore_binary(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message


def refusal_of_binary(aibin: bytes, *symbols: str) -> str:
    with pytest.raises(DeviceBinaryError) as caught:
        check_device_binary(aibin, symbols)
    return str(caught.value)


# ---- images made by the system's tools


def test_the_section_is_read_from_a_shared_image(tmp_path: Path, tool: Tool) -> None:
    tool("gcc", "-shared", "-fPIC", "host.c", "-o", "host.so")
    tool(*ADD_SECTION, "--add-section", f"{AICORE_SECTION}=aibin", "host.so", "lib.so")
    assert extract_aicore_binary(tmp_path / "lib.so") == AIBIN
    assert extract_aicore_binary(str(tmp_path / "lib.so")) == AIBIN


def test_the_section_is_read_from_an_image_that_the_linker_laid_out(tmp_path: Path, tool: Tool) -> None:
    (tmp_path / "fat.s").write_text(
        f'.section {AICORE_SECTION},"a"\n.balign 256\n.incbin "aibin"\n'
        f'.section {RECORD_SECTION},"a"\n.balign 8\n.ascii "EBUC"\n.zero 12\n.quad {len(AIBIN)}\n'
    )
    tool("as", "fat.s", "-o", "fat.o")
    tool("ld", "-shared", "fat.o", "-o", "lib.so")
    assert extract_aicore_binary(tmp_path / "lib.so") == AIBIN


def test_the_section_is_read_from_a_relocatable_object(tmp_path: Path, tool: Tool) -> None:
    tool("gcc", "-c", "host.c", "-o", "host.o")
    tool(*ADD_SECTION, "--add-section", f"{AICORE_SECTION}=aibin", "host.o", "fat.o")
    assert extract_aicore_binary(tmp_path / "fat.o") == AIBIN


def test_the_section_is_read_from_an_image_without_symbols(tmp_path: Path, tool: Tool) -> None:
    tool("gcc", "-shared", "-fPIC", "host.c", "-o", "host.so")
    tool(*ADD_SECTION, "--strip-all", "--add-section", f"{AICORE_SECTION}=aibin", "host.so", "lib.so")
    assert extract_aicore_binary(tmp_path / "lib.so") == AIBIN


def test_the_section_is_read_from_a_big_endian_object_that_objcopy_wrote(tmp_path: Path, tool: Tool) -> None:
    info = subprocess.run(["objcopy", "--info"], check=True, capture_output=True, text=True).stdout
    if "elf64-big" not in info:
        pytest.skip("this objcopy writes no big-endian ELF")
    rename = ["--rename-section", f".data={AICORE_SECTION}"]
    tool("objcopy", "-I", "binary", "-O", "elf64-big", *rename, "aibin", "big.o")
    assert extract_aicore_binary(tmp_path / "big.o") == AIBIN


def test_an_object_of_66000_sections_is_read_quickly(tmp_path: Path, tool: Tool) -> None:
    lines = [f'.section .text.f{index},"ax"\n.byte 1' for index in range(66_000)]
    lines.append(f'.section {AICORE_SECTION},"a"\n.incbin "aibin"')
    (tmp_path / "many.s").write_text("\n".join(lines) + "\n")
    tool("as", "many.s", "-o", "many.o")
    header = (tmp_path / "many.o").read_bytes()[: elf.HEADER_SIZE]
    assert (elf.header_field(header, "e_shnum"), elf.header_field(header, "e_shstrndx")) == (0, 0xFFFF)
    started = time.perf_counter()
    assert extract_aicore_binary(tmp_path / "many.o") == AIBIN
    assert time.perf_counter() - started < 1.0  # measured: 0.05 s


def assemble_copies(tmp_path: Path, tool: Tool, *copies: str) -> Path:
    (tmp_path / "copies.s").write_text(
        "".join(
            f'.section {AICORE_SECTION},"a",@progbits,unique,{number}\n.ascii "{copy}"\n'
            for number, copy in enumerate(copies)
        )
    )
    tool("as", "copies.s", "-o", "copies.o")
    return tmp_path / "copies.o"


def test_two_identical_sections_are_one_binary(tmp_path: Path, tool: Tool) -> None:
    assert extract_aicore_binary(assemble_copies(tmp_path, tool, "same", "same")) == b"same"


def test_an_image_with_two_different_sections_is_refused(tmp_path: Path, tool: Tool) -> None:
    message = refusal_of_image(assemble_copies(tmp_path, tool, "one", "one", "three"))
    assert "two that differ" in message
    assert "with 3 bytes" in message
    assert "with 5" in message


def test_an_image_without_the_section_is_refused_with_the_names_it_has(tmp_path: Path, tool: Tool) -> None:
    tool("gcc", "-shared", "-fPIC", "host.c", "-o", "lib.so")
    message = refusal_of_image(tmp_path / "lib.so")
    assert f"expected a section {AICORE_SECTION}, found only '" in message
    assert " more; link the fat object with bisheng --cce-fatobj-link" in message


# ---- other byte orders and machines, by hand


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders_are_read(written: Writer, order: str) -> None:
    image = image_of(AIBIN, elf.record(len(AIBIN), order=order), order=order)
    assert extract_aicore_binary(written(image)) == AIBIN


@pytest.mark.parametrize("machine", [0, elf.EM_X86_64, elf.EM_ASCEND, 0xFFFF])
def test_the_machine_of_an_image_does_not_matter(written: Writer, machine: int) -> None:
    assert extract_aicore_binary(written(elf.with_header(image_of(), e_machine=machine))) == AIBIN


@pytest.mark.parametrize("order", ["<", ">"])
def test_extended_numbering_is_followed_to_section_0(written: Writer, order: str) -> None:
    image = image_of(order=order)
    count, names = elf.header_field(image, "e_shnum"), elf.header_field(image, "e_shstrndx")
    image = elf.with_section(image, 0, sh_size=count, sh_link=names)
    assert extract_aicore_binary(written(elf.with_header(image, e_shnum=0, e_shstrndx=0xFFFF))) == AIBIN


def test_a_name_that_only_starts_or_ends_like_the_section_is_another_section(written: Writer) -> None:
    other = image_with(Section(AICORE_SECTION + "2", b"2"), Section("x" + AICORE_SECTION, b"x"))
    assert "found only '.text', '.aicore_binary2', 'x.aicore_binary', '.shstrtab'" in refusal_of_image(written(other))


def test_at_most_eight_names_are_listed_and_none_can_write_to_the_terminal(written: Writer) -> None:
    sections = [Section(f"\x1b[31m{index}") for index in range(20)]
    message = refusal_of_image(written(elf.elf64(sections)))
    assert "'\\x1b[31m7' and 13 more;" in message
    assert "\x1b" not in message


# ---- files that cannot be read


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    message = refusal_of_image(tmp_path / "missing.so")
    assert "No such file or directory; expected the image that bisheng linked" in message


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "expected a regular file, found a directory" in refusal_of_image(tmp_path)


def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "expected a regular file, found something else" in refusal_of_image(tmp_path / "pipe")


def test_a_file_that_must_not_be_read_is_refused(written: Writer) -> None:
    path = written(image_of())
    path.chmod(0)
    user = os.geteuid()
    if user == 0:  # root may read everything: be another user for a moment
        os.seteuid(65534)
    try:
        assert "Permission denied" in refusal_of_image(path)
    finally:
        os.seteuid(user)


def test_a_path_that_no_file_can_have_is_refused() -> None:
    assert "ValueError" in refusal_of_image(Path("lib\0.so"))


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        (10, "was cut short while it was read, in section 2 (.aicore_binary)"),
        (5064, "cannot be parsed as ELF"),
    ],
)
def test_a_file_that_shrinks_while_it_is_read_is_refused(
    written: Writer, monkeypatch: pytest.MonkeyPatch, lost: int, reason: str
) -> None:
    image = image_of()
    path = written(elf.with_section(image, 2, sh_offset=len(image), sh_size=5000) + bytes(5000))
    before = path.stat()

    def shrink(descriptor: int) -> os.stat_result:
        os.truncate(path, len(image) + 5000 - lost)
        return before

    monkeypatch.setattr("ptocache.aibin.os.fstat", shrink)
    assert reason in refusal_of_image(path)


# ---- files that are not ELF64


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "expected an ELF64 file, found an empty one"),
        (b"#!/bin/sh\n", "expected an ELF64 file, which starts 7f 45 4c 46, found 23 21 2f 62"),
        (b"!<arch>\n" + b"\0" * 100, "found 21 3c 61 72"),
        (b"\x7fEL", "is truncated: ends after 3 of the 64 bytes of its ELF header"),
        (image_of()[:63], "is truncated: ends after 63 of the 64 bytes"),
        (b"\x7fELF\x01\x01\x01" + bytes(45), "found ELF32"),
        (elf.with_byte(image_of(), 4, 9), "EI_CLASS 9"),
        (elf.with_byte(image_of(), 5, 0), "EI_DATA) of 1 or 2, found 0"),
        (elf.with_byte(image_of(), 6, 7), "EI_VERSION), found 7"),
    ],
)
def test_what_is_not_elf64_is_refused_with_what_it_is(written: Writer, content: bytes, reason: str) -> None:
    assert reason in refusal_of_image(written(content))


def test_a_32_bit_object_that_objcopy_wrote_is_refused(tmp_path: Path, tool: Tool) -> None:
    info = subprocess.run(["objcopy", "--info"], check=True, capture_output=True, text=True).stdout
    if "elf32-little" not in info:
        pytest.skip("this objcopy writes no 32-bit ELF")
    tool("objcopy", "-I", "binary", "-O", "elf32-little", "aibin", "lib.o")
    assert "expected an ELF64 file, found ELF32" in refusal_of_image(tmp_path / "lib.o")


# ---- damaged section tables


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"e_shoff": 0}, "expected a section table, found none (e_shoff is 0)"),
        ({"e_shoff": 2**64 - 1}, "the first entry of the section table takes bytes 18446744073709551615"),
        ({"e_shoff": 0x100000}, "the first entry of the section table takes bytes 1048576 to 1048640"),
        ({"e_shentsize": 40}, "entries of 64 bytes, found 40 (e_shentsize)"),
        ({"e_shnum": 0}, "found an empty section table"),
        ({"e_shnum": 60_000}, "the section table of 60000 entries takes bytes"),
        ({"e_shstrndx": 0}, "expected a string table in sections 1 to 3, found e_shstrndx 0"),
        ({"e_shstrndx": 4}, "expected a string table in sections 1 to 3, found e_shstrndx 4"),
        ({"e_shstrndx": 0xFFFF}, "expected a string table in sections 1 to 3, found e_shstrndx 0"),
        ({"e_shstrndx": 2}, "expected a string table in section 2 (e_shstrndx), found type SHT_PROGBITS"),
    ],
)
def test_a_damaged_elf_header_is_refused_with_the_field_at_fault(
    written: Writer, fields: dict[str, int], reason: str
) -> None:
    assert reason in refusal_of_image(written(elf.with_header(image_of(), **fields)))


def test_an_absurd_number_of_sections_is_refused_before_anything_is_allocated(written: Writer) -> None:
    image = elf.with_section(elf.with_header(image_of(), e_shnum=0), 0, sh_size=2**60)
    assert "the section table of 1152921504606846976 entries" in refusal_of_image(written(image))


def test_a_file_that_ends_inside_the_section_table_is_refused(written: Writer) -> None:
    assert "is truncated or damaged: the section table of 4 entries" in refusal_of_image(written(image_of()[:-1]))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"sh_size": 2**63}, "is truncated or damaged: section 2 (.aicore_binary) takes bytes"),
        ({"sh_offset": 2**64 - 1}, "is truncated or damaged: section 2 (.aicore_binary) takes bytes"),
        ({"sh_size": 0}, "expected a device binary in .aicore_binary, found it empty"),
        ({"sh_type": elf.SHT_NOBITS}, "found type SHT_NOBITS, which has none"),
        ({"sh_type": elf.SHT_NOBITS, "sh_size": 2**60}, "found type SHT_NOBITS, which has none"),
        ({"sh_type": 0}, "found type SHT_NULL, which has none"),
        (
            {"sh_flags": elf.SHF_COMPRESSED},
            "expected section 2 (.aicore_binary) as it is, found it compressed",
        ),
        ({"sh_name": 2**32 - 1}, "expected a section .aicore_binary, found only '.text', '.shstrtab'"),
    ],
)
def test_a_section_that_cannot_be_used_is_refused_with_the_reason(
    written: Writer, fields: dict[str, int], reason: str
) -> None:
    assert reason in refusal_of_image(written(elf.with_section(image_of(), 2, **fields)))


def test_a_string_table_out_of_bounds_is_refused(written: Writer) -> None:
    image = elf.with_section(image_of(), 3, sh_size=2**40)
    assert "section 3 (the string table of e_shstrndx) takes bytes" in refusal_of_image(written(image))


def test_an_image_without_any_section_name_is_refused(written: Writer) -> None:
    assert "found only none" in refusal_of_image(written(elf.with_section(image_of(), 3, sh_size=0)))


# ---- the linker's record


def test_the_constants_are_those_of_real_images() -> None:
    assert (E_MACHINE_ASCEND, RECORD_SIZE) == (0x1029, 24)
    assert RECORD_MAGIC.to_bytes(4, "little") == b"EBUC"


def test_a_record_that_agrees_is_accepted(written: Writer) -> None:
    assert extract_aicore_binary(written(image_of(AIBIN, elf.record(len(AIBIN))))) == AIBIN


def test_one_of_several_records_has_to_agree(written: Writer) -> None:
    records = [elf.record(1), elf.record(len(AIBIN)), elf.record(2)]
    assert extract_aicore_binary(written(image_of(AIBIN, *records))) == AIBIN


def test_several_record_sections_are_read_together(written: Writer) -> None:
    sections = [Section(RECORD_SECTION, elf.record(size)) for size in (1, len(AIBIN))]
    image = image_with(Section(AICORE_SECTION, AIBIN), *sections)
    assert extract_aicore_binary(written(image)) == AIBIN


def test_an_image_whose_records_disagree_is_refused_with_both_sizes(written: Writer) -> None:
    message = refusal_of_image(written(image_of(AIBIN, elf.record(1), elf.record(2))))
    assert "that .aicoreBinRec records, 1, 2 bytes, found 17; link it again" in message


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (b"", "hold records of 24 bytes, found 0 bytes"),
        (b"EBUC", "hold records of 24 bytes, found 4 bytes"),
        (elf.record(17) + b"\0", "hold records of 24 bytes, found 25 bytes"),
        (elf.record(17, magic=0), "start with 0x43554245, found 0x0"),
        (elf.record(17) + elf.record(17, magic=0x45425543), "start with 0x43554245, found 0x45425543"),
    ],
)
def test_a_malformed_record_section_is_refused(written: Writer, records: bytes, reason: str) -> None:
    image = image_with(Section(AICORE_SECTION, AIBIN), Section(RECORD_SECTION, records))
    assert reason in refusal_of_image(written(image))


def test_a_record_section_without_bytes_in_the_file_is_refused(written: Writer) -> None:
    image = elf.with_section(image_of(AIBIN, elf.record(17)), 3, sh_type=elf.SHT_NOBITS)
    assert f"expected section 3 ({RECORD_SECTION}) to have its bytes" in refusal_of_image(written(image))


# ---- device binaries


def test_a_device_binary_with_its_kernels_is_accepted() -> None:
    check_device_binary(elf.device_binary(["add_kernel", "mul_kernel"]), ["mul_kernel", "add_kernel"])


@pytest.mark.parametrize("suffix", ["_mix_aic", "_mix_aiv"])
def test_a_kernel_for_both_core_types_is_known_by_either_half(suffix: str) -> None:
    check_device_binary(elf.device_binary(["add_kernel" + suffix]), {"add_kernel"})


def test_without_wanted_kernels_any_function_will_do() -> None:
    check_device_binary(elf.device_binary(["anything"]), ())


def test_a_device_binary_without_program_headers_is_accepted() -> None:
    check_device_binary(elf.with_header(elf.device_binary(["k"]), e_phnum=0, e_phentsize=0), ["k"])


def test_an_executable_that_the_linker_wrote_is_accepted_once_its_machine_is_right(tmp_path: Path, tool: Tool) -> None:
    tool("gcc", "-c", "host.c", "-o", "host.o")
    tool("ld", "-e", "add_kernel", "host.o", "-o", "exe")
    executable = (tmp_path / "exe").read_bytes()
    host = elf.header_field(executable, "e_machine")
    assert f"expected machine 0x1029 (Ascend), found {host:#x} (EM_" in refusal_of_binary(executable)
    aibin = elf.with_header(executable, e_machine=E_MACHINE_ASCEND)
    check_device_binary(aibin, ["add_kernel"])
    assert kernel_symbols(aibin) == ["add_kernel"]
    assert "missing 'counter', found 'add_kernel'" in refusal_of_binary(aibin, "counter")
    tool("strip", "exe")
    stripped = elf.with_header((tmp_path / "exe").read_bytes(), e_machine=E_MACHINE_ASCEND)
    assert "expected a symbol table (.symtab), found none" in refusal_of_binary(stripped)


def test_what_was_extracted_from_a_linked_image_can_be_checked(tmp_path: Path, tool: Tool) -> None:
    (tmp_path / "aibin").write_bytes(elf.device_binary(["add_kernel"]))
    tool("gcc", "-shared", "-fPIC", "host.c", "-o", "host.so")
    tool(*ADD_SECTION, "--add-section", f"{AICORE_SECTION}=aibin", "host.so", "lib.so")
    check_device_binary(extract_aicore_binary(tmp_path / "lib.so"), ["add_kernel"])


@pytest.mark.parametrize(
    ("aibin", "reason"),
    [
        (b"", "found an empty one"),
        (b"not ELF at all", "found 6e 6f 74 20"),
        (elf.device_binary(["k"], order=">"), "expected a little-endian file (EI_DATA 1)"),
        (elf.device_binary(["k"], kind=elf.ET_REL), "expected an executable (ET_EXEC), found ET_REL"),
        (elf.device_binary(["k"], kind=elf.ET_DYN), "expected an executable (ET_EXEC), found ET_DYN"),
        (elf.device_binary(["k"], kind=0x1234), "expected an executable (ET_EXEC), found 0x1234"),
        (elf.device_binary(["k"], machine=elf.EM_X86_64), "0x1029 (Ascend), found 0x3e (EM_X86_64)"),
        (elf.device_binary(["k"], machine=elf.EM_AARCH64), "0x1029 (Ascend), found 0xb7 (EM_AARCH64)"),
        (elf.device_binary(["k"], machine=0x102A), "expected machine 0x1029 (Ascend), found 0x102a"),
        (elf.device_binary([]), "expected a kernel, found no defined FUNC symbol"),
        (elf.device_binary([Symbol("")]), "expected a kernel, found no defined FUNC symbol"),
        (elf.device_binary([Symbol("k", section=0)]), "expected a kernel, found no defined FUNC symbol"),
        (elf.device_binary([Symbol("k", elf.STT_OBJECT)]), "expected a kernel, found no defined FUNC symbol"),
    ],
)
def test_what_the_runtime_would_not_load_is_refused_with_the_reason(aibin: bytes, reason: str) -> None:
    message = refusal_of_binary(aibin)
    assert message.startswith("the device binary: ")
    assert reason in message


def test_missing_kernels_are_named_beside_the_functions_that_are_there() -> None:
    there = [f"k{number}" for number in range(10)]
    message = refusal_of_binary(elf.device_binary(there), "k3", "lost", "gone", "lost")
    assert "missing 'lost', 'gone', found 'k0', 'k1'" in message
    assert "'k7' and 2 more" in message
    assert "k8" not in message


@pytest.mark.parametrize("symbol", [Symbol("k", section=0), Symbol("k", elf.STT_OBJECT), Symbol("k_mix")])
def test_a_kernel_has_to_be_a_defined_function_of_its_own_name(symbol: Symbol | str) -> None:
    message = refusal_of_binary(elf.device_binary([symbol, "other"]), "k")
    assert "missing 'k'" in message


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"e_phoff": 2**63}, "the table of 1 program headers takes bytes"),
        ({"e_phnum": 0xFFFE}, "the table of 65534 program headers takes bytes"),
        ({"e_phentsize": 32}, "program headers of 56 bytes, found 32 (e_phentsize)"),
        ({"e_shnum": 0xFEFF}, "the section table of 65279 entries takes bytes"),
        ({"e_shoff": 0}, "expected a section table, found none"),
    ],
)
def test_a_device_binary_with_a_damaged_header_is_refused(fields: dict[str, int], reason: str) -> None:
    assert reason in refusal_of_binary(elf.with_header(elf.device_binary(["k"]), **fields))


def test_more_segments_than_the_header_can_count_are_counted_in_section_0() -> None:
    aibin = elf.with_header(elf.device_binary(["k"]), e_phnum=0xFFFF)
    check_device_binary(elf.with_section(aibin, 0, sh_info=1), ["k"])
    message = refusal_of_binary(elf.with_section(aibin, 0, sh_info=2**32 - 1))
    assert "the table of 4294967295 program headers takes bytes" in message


def test_a_segment_out_of_bounds_is_refused() -> None:
    aibin = bytearray(elf.device_binary(["k"]))
    struct.pack_into("<Q", aibin, elf.HEADER_SIZE + 32, 2**62)  # p_filesz
    assert "segment 0 takes bytes 0 to 4611686018427387904" in refusal_of_binary(bytes(aibin))


@pytest.mark.parametrize(
    ("index", "fields", "reason"),
    [
        (1, {"sh_size": 2**50}, "section 1 takes bytes"),
        (2, {"sh_entsize": 0}, "entries of 24 bytes, found 48 bytes with entries of 0 (sh_entsize)"),
        (2, {"sh_size": 47}, "entries of 24 bytes, found 47 bytes with entries of 24 (sh_entsize)"),
        (2, {"sh_flags": elf.SHF_COMPRESSED}, "expected section 2 (the symbol table) as it is"),
        (2, {"sh_link": 0}, "expected a string table in sections 1 to 4, found sh_link of section 2 0"),
        (
            2,
            {"sh_link": 2},
            "expected a string table in section 2 (sh_link of section 2), found type SHT_SYMTAB",
        ),
        (3, {"sh_size": 2}, "within the 2 bytes of its string table, found it at 1, without an end"),
        (3, {"sh_size": 0}, "within the 0 bytes of its string table, found it at 1, without an end"),
    ],
)
def test_a_device_binary_with_a_damaged_section_is_refused(index: int, fields: dict[str, int], reason: str) -> None:
    aibin = elf.with_section(elf.device_binary(["k"]), index, **fields)
    assert reason in refusal_of_binary(aibin)


def test_an_unused_program_header_may_hold_anything() -> None:
    aibin = bytearray(elf.device_binary(["k"]))
    struct.pack_into("<I28xQ", aibin, elf.HEADER_SIZE, 0, 2**62)  # p_type PT_NULL, p_filesz
    check_device_binary(bytes(aibin), ["k"])


def test_a_second_symbol_table_is_refused() -> None:
    aibin = elf.with_section(elf.device_binary(["k"]), 1, sh_type=elf.SHT_SYMTAB)
    assert "expected one symbol table, found 2" in refusal_of_binary(aibin)


def test_names_that_all_overlap_are_refused_before_they_fill_the_memory() -> None:
    names = b"n" * 200_000 + b"\0"
    table = b"".join(struct.pack("<IBBHQQ", start, 0x12, 0, 1, 0, 0) for start in range(4000))
    sections = [
        Section(".text", b"\0"),
        Section(".symtab", table, elf.SHT_SYMTAB, link=3, entsize=elf.SYMBOL_SIZE),
        Section(".strtab", names, elf.SHT_STRTAB),
    ]
    aibin = elf.elf64(sections, kind=elf.ET_EXEC, machine=elf.EM_ASCEND)
    assert "expected each symbol to have its own name, found names that overlap" in refusal_of_binary(aibin)


def test_many_symbols_may_share_one_name() -> None:
    names = ["local"] * 500
    assert kernel_symbols(elf.device_binary(names)) == names


def test_kernel_symbols_lists_the_defined_functions_in_table_order() -> None:
    symbols: list[Symbol | str] = [
        "zeta",
        Symbol("data", elf.STT_OBJECT),
        Symbol("undefined", section=0),
        "alpha",
        Symbol(""),
    ]
    assert kernel_symbols(elf.device_binary(symbols)) == ["zeta", "alpha"]


def test_kernel_symbols_refuses_what_it_cannot_read() -> None:
    with pytest.raises(DeviceBinaryError, match="found an empty one"):
        kernel_symbols(b"")


# ---- damage anywhere

IMAGE = image_of(AIBIN, elf.record(len(AIBIN)))
DEVICE_BINARY = elf.device_binary(["add_kernel", "mul_kernel_mix_aic"])
quickly = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """The content cut short somewhere, with one bit or one byte changed, or with a part overwritten."""
    offsets = st.integers(0, len(content) - 1)

    def overwrite(offset: int, junk: bytes) -> bytes:
        return (content[:offset] + junk + content[offset + len(junk) :])[: len(content)]

    return st.one_of(
        offsets.map(lambda size: content[:size]),
        st.builds(lambda at, bit: elf.with_byte(content, at, content[at] ^ 1 << bit), offsets, st.integers(0, 7)),
        st.builds(lambda at, value: elf.with_byte(content, at, value), offsets, st.integers(0, 255)),
        st.builds(overwrite, offsets, st.binary(min_size=1, max_size=64)),
    )


@quickly
@given(content=damaged(IMAGE) | st.binary(max_size=200))
def test_a_damaged_image_gives_bytes_or_an_image_error(written: Writer, content: bytes) -> None:
    with suppress(ImageError):
        assert isinstance(extract_aicore_binary(written(content)), bytes)


@quickly
@given(content=damaged(DEVICE_BINARY) | st.binary(max_size=200))
def test_a_damaged_device_binary_is_accepted_or_gives_a_device_binary_error(content: bytes) -> None:
    with suppress(DeviceBinaryError):
        check_device_binary(content, ["add_kernel", "mul_kernel"])
    with suppress(DeviceBinaryError):
        kernel_symbols(content)


def test_no_truncation_of_an_image_or_a_device_binary_is_accepted(written: Writer) -> None:
    for size in range(len(IMAGE)):
        refusal_of_image(written(IMAGE[:size]))
    for size in range(len(DEVICE_BINARY)):
        refusal_of_binary(DEVICE_BINARY[:size])
