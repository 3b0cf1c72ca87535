"""The emulated ptoas, bisheng and ld.lld: what they accept, what they refuse, and the files that they make."""

from __future__ import annotations

import ctypes
import io
import os
import platform
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection, SymbolTableSection

from ptocache.emulator import write_install

TEXT = """\
module attributes {pto.target_arch = "a5"} {
  func.func @k(%arg0: !pto.ptr<f32, gm>, %arg1: i32) attributes {pto.aicore} {
    %0 = arith.constant 5 : i32
    %1:2 = "pto.make_mask"(%0) {arg0 = f32} : (i32) -> (!pto.mask<b32>, i32)
    %2 = scf.for %arg2 = %0 to %arg1 step %0 iter_args(%arg3 = %1#1) -> (i32) : i32 {
      "pto.vecscope"() ({
        %3 = "pto.vlds"(%arg0, %arg2) {dist = "NORM", n = [1, #pto.operand<1>]} : (!pto.ptr<f32, gm>, i32) -> f32
      }) : () -> ()
      scf.yield %arg3 : i32
    }
    scf.if %2 {
      "pto.barrier"() {pipe = #pto.Pipe.ALL} : () -> ()
    } else {
      "pto.barrier"() : () -> ()
    }
    return
  }
}
"""
HOST = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64", "arm64": "EM_AARCH64"}.get(platform.machine(), "EM_X86_64")


@pytest.fixture(scope="module")
def install(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_install(tmp_path_factory.mktemp("tools") / "cann")


def run(program: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(program), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def assemble(install: Path, folder: Path, text: str = TEXT, *flags: str, arch: str = "a5") -> bytes:
    """The fat object of a text."""
    (folder / "k.pto").write_text(text)
    done = run(install / "bin" / "ptoas", f"--pto-arch={arch}", *flags, "k.pto", "-o", "k.o", cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return (folder / "k.o").read_bytes()


def compile_(install: Path, folder: Path, text: str = TEXT, *flags: str, arch: str = "a5") -> bytes:
    """The device binary of a text; the fat object and the image are left in the folder."""
    assemble(install, folder, text, *flags, arch=arch)
    link = ("-fPIC", "-shared", "--cce-fatobj-link", "k.o", "-o", "lib.so")
    done = run(install / "bin" / "bisheng", *link, cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return contents((folder / "lib.so").read_bytes(), ".aicore_binary")


def contents(data: bytes, section: str) -> bytes:
    found = ELFFile(io.BytesIO(data)).get_section_by_name(section)
    assert found is not None, f"no section {section}"
    return bytes(found.data())


# Texts that ptoas refuses: (what it is, what to replace in TEXT, by what, the diagnostic)
MALFORMED = [
    ("two types for one value", "-> (i32) : i32 {", "-> (i32, i32) : i32 {", "scf.for carries 1 values"),
    ("another type is carried", "-> (i32) : i32 {", "-> (f32) : i32 {", "use of %1#1 as f32"),
    ("undeclared", 'make_mask"(%0)', 'make_mask"(%9)', "k.pto:4:28: error: use of undeclared SSA value name '%9'"),
    ("value of an inner region", "scf.if %2", "scf.if %3", "k.pto:11:12: error: use of undeclared SSA value name '%3'"),
    ("value of itself", "%0 = arith.constant 5", '%0 = "pto.f"(%0)', "use of undeclared SSA value name '%0'"),
    ("redefinition", "%1:2 =", "%0:2 =", "k.pto:4:5: error: redefinition of SSA value '%0'"),
    ("redefined argument", "iter_args(%arg3", "iter_args(%arg1", "redefinition of SSA value '%arg1'"),
    ("result that is not there", "%1#1", "%1#2", "'%1' has only 2 results"),
    ("too many results", "%1:2 =", "%1:3 =", '"pto.make_mask" has 2 results, and 3 are named'),
    ("too few operands", "make_mask\"(%0)", "make_mask\"()", '"pto.make_mask" has 0 operands, and its signature 1'),
    ("other type", "(i32) -> (!pto.mask", "(i64) -> (!pto.mask", "use of %0 as i64, but it was defined as i32"),
    ("open region", "    return\n  }\n}\n", "    return\n", "expected '}' to close this region"),
    ("one brace too many", "    return\n  }\n}\n", "    return\n  }\n}\n}\n", "'func.func', found '}'"),
    ("open string", '"NORM"', '"NORM', "error: unterminated string"),
    ("stray character", "%0 = arith", "%0 = ` arith", "unexpected character '`'"),
    ("unbalanced bracket", "-> (i32) : i32 {", "-> (i32] : i32 {", "expected ')', found ']'"),
    ("open list", "[1, #pto.operand<1>]", "[1, #pto.operand<1>", "expected ','"),
    ("duplicate attribute", "n = [1", 'dist = "X", n = [1', "duplicate attribute 'dist'"),
    ("no signature", '{pipe = #pto.Pipe.ALL} : () -> ()', "{pipe = #pto.Pipe.ALL}", "expected ':'"),
    ("no type", "%arg1: i32)", "%arg1: )", "expected a type, found ')'"),
    ("unknown dialect", '"pto.barrier"() {', '"cuda.barrier"() {', "unregistered operation 'cuda.barrier'"),
    ("not an operation", "    return\n", "    return\n    42\n", "expected an operation, found '42'"),
    ("no kernel", " attributes {pto.aicore}", "", "k.pto:1:1: error: no kernel"),
    ("call of nothing", "    return\n", "    func.call @g() : () -> ()\n    return\n", "'g' does not reference"),
    ("generic call of nothing", '"pto.barrier"() :', '"func.call"() {callee = @g} :', "'g' does not reference"),
    ("cut in the middle", TEXT[300:], "", "error: "),
    ("prose", TEXT, "This is no MLIR\n", "k.pto:1:1: error: expected 'module' or 'func.func', found 'This'"),
    ("empty", TEXT, "", "k.pto:1:1: error: no kernel"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "diagnostic"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED]
)
def test_ptoas_refuses_malformed_text(old: str, new: str, diagnostic: str, install: Path, tmp_path: Path) -> None:
    assert TEXT.count(old) >= 1
    (tmp_path / "k.pto").write_text(TEXT.replace(old, new, 1))
    done = run(install / "bin" / "ptoas", "--pto-arch=a5", "k.pto", "-o", "k.o", cwd=tmp_path)
    assert done.returncode == 1
    assert diagnostic in done.stderr
    assert done.stderr.startswith("k.pto:")
    assert done.stderr.endswith("^\n")
    assert not (tmp_path / "k.o").exists()


def test_a_diagnostic_shows_the_line_and_points_at_the_column(install: Path, tmp_path: Path) -> None:
    (tmp_path / "k.pto").write_text(TEXT.replace('"pto.make_mask"(%0)', '"pto.make_mask"(%9)'))
    done = run(install / "bin" / "ptoas", "--pto-arch=a5", "k.pto", "-o", "k.o", cwd=tmp_path)
    first, source, caret = done.stderr.splitlines()
    assert first == "k.pto:4:28: error: use of undeclared SSA value name '%9'"
    assert source[len(caret) - 1 :].startswith("%9")


# Texts that ptoas takes: (what it is, the text)
WELL_FORMED = [
    ("no module", "func.func @k() attributes {pto.aicore} { return }"),
    ("module with a name", "module @m { func.func @k() attributes {pto.aicore} { return } }"),
    ("modules in a module", "module { module { func.func @k() attributes {pto.aicore} { return } } }"),
    ("aliases", "#x = #pto.Pipe.ALL\n!t = i32\nmodule { func.func @k(%a: !t) attributes {pto.aicore} { return } }"),
    ("declaration", "module { func.func private @g(i32)\n func.func @k() attributes {pto.aicore} { return } }"),
    (
        "custom forms",
        "func.func @k(%a: i32) attributes {pto.aicore} {\n pto.f %a, %a {x = 1}\n %1 = pto.g %a : i32\n return\n}",
    ),
    ("blocks", "func.func @k() attributes {pto.aicore} {\n^bb0:\n cf.br ^bb1\n^bb1:\n return\n}"),
    ("two regions", 'func.func @k() attributes {pto.aicore} {\n "pto.f"() ({\n}, {\n}) : () -> ()\n return\n}'),
    ("properties", 'func.func @k() attributes {pto.aicore} {\n "pto.f"() <{x = 1 : i64}> {y} : () -> ()\n return\n}'),
]


@pytest.mark.parametrize("text", [row[1] for row in WELL_FORMED], ids=[row[0] for row in WELL_FORMED])
def test_ptoas_takes_well_formed_text(text: str, install: Path, tmp_path: Path) -> None:
    assert compile_(install, tmp_path, text)


# Command lines that ptoas refuses: (what it is, the arguments, the diagnostic)
COMMAND_LINES = [
    ("no input", ["--pto-arch=a5", "-o", "k.o"], "no input file"),
    ("no output", ["--pto-arch=a5", "k.pto"], "no output file"),
    ("output without a file", ["--pto-arch=a5", "k.pto", "-o"], "requires a value"),
    ("two inputs", ["--pto-arch=a5", "k.pto", "l.pto", "-o", "k.o"], "Too many positional arguments"),
    ("missing input", ["--pto-arch=a5", "gone.pto", "-o", "k.o"], "'gone.pto': No such file or directory"),
    ("unknown arch", ["--pto-arch=a9", "k.pto", "-o", "k.o"], "unknown architecture 'a9'"),
    ("no arch", ["k.pto", "-o", "k.o"], "no architecture"),
    ("other back end", ["--pto-arch=a5", "--pto-backend=emitc", "k.pto", "-o", "k.o"], "back end 'emitc'"),
    ("unwritable output", ["--pto-arch=a5", "k.pto", "-o", "no/such/k.o"], "cannot open output file 'no/such/k.o'"),
    ("not UTF-8", ["--pto-arch=a5", "latin.pto", "-o", "k.o"], "latin.pto: error: byte 3 is not UTF-8"),
]


@pytest.mark.parametrize(
    ("arguments", "diagnostic"), [row[1:] for row in COMMAND_LINES], ids=[x[0] for x in COMMAND_LINES]
)
def test_ptoas_refuses_wrong_use(arguments: list[str], diagnostic: str, install: Path, tmp_path: Path) -> None:
    (tmp_path / "k.pto").write_text(TEXT)
    (tmp_path / "latin.pto").write_bytes(b"// \xe9")
    done = run(install / "bin" / "ptoas", *arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert diagnostic in done.stderr


def test_options_come_in_any_order(install: Path, tmp_path: Path) -> None:
    expected = assemble(install, tmp_path, TEXT, "--pto-backend=vpto")
    for order in (["-o", "k.o", "--pto-backend", "vpto", "k.pto", "--pto-arch", "a5"],):
        (tmp_path / "k.o").unlink()
        assert run(install / "bin" / "ptoas", *order, cwd=tmp_path).returncode == 0
        assert (tmp_path / "k.o").read_bytes() == expected


@pytest.mark.parametrize("tool", ["ptoas", "bisheng", "ld.lld"])
def test_tools_tell_their_version(tool: str, install: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTOCACHE_EMULATOR_LOG", str(tmp_path / "log"))
    done = run(install / "bin" / tool, "--version", cwd=tmp_path)
    assert done.returncode == 0
    assert "emulated" in done.stdout
    assert not (tmp_path / "log").exists()


def test_comments_blank_lines_and_locations_change_nothing(install: Path, tmp_path: Path) -> None:
    decorated = "// first\n\n" + TEXT.replace(" : () -> ()\n", ' : () -> () loc("k.py":3:4)\n').replace("    ", "\t")
    decorated = "#loc = loc(unknown)\n" + decorated.replace("return", "return  // the end")
    assert compile_(install, tmp_path, decorated) == compile_(install, tmp_path)


def test_each_input_changes_the_binary(install: Path, tmp_path: Path) -> None:
    other = write_install(tmp_path / "other", "9.0.1")
    binaries = [
        compile_(install, tmp_path),
        compile_(install, tmp_path, TEXT.replace("constant 5", "constant 6")),
        compile_(install, tmp_path, TEXT.replace("NORM", "BRC")),
        compile_(install, tmp_path, TEXT.replace("@k", "@j")),
        compile_(install, tmp_path, TEXT, arch="a3"),
        compile_(install, tmp_path, TEXT, "--pto-backend=vpto"),
        compile_(install, tmp_path, TEXT, "--one", "--two"),
        compile_(install, tmp_path, TEXT, "--two", "--one"),
        compile_(install, tmp_path, TEXT, "--onetwo"),
        compile_(other, tmp_path),
    ]
    assert len(set(binaries)) == len(binaries)


def test_nothing_else_changes_the_files(install: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = [(compile_(install, tmp_path), (tmp_path / name).read_bytes()) for name in ("k.o", "lib.so")]
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    copied = write_install(tmp_path / "a copy")
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    monkeypatch.setenv("LANG", "C")
    second = [(compile_(copied, elsewhere), (elsewhere / name).read_bytes()) for name in ("k.o", "lib.so")]
    assert first == second
    assert sorted(path.name for path in elsewhere.iterdir()) == ["k.o", "k.pto", "lib.so"]


def test_the_image_is_as_bisheng_links_it(install: Path, tmp_path: Path) -> None:
    binary = compile_(install, tmp_path)
    elf = ELFFile(io.BytesIO((tmp_path / "lib.so").read_bytes()))
    assert (elf["e_type"], elf["e_machine"], elf["e_shnum"]) == ("ET_DYN", HOST, 31)
    section = elf.get_section_by_name(".aicore_binary")
    header = (section["sh_type"], section["sh_flags"], section["sh_addralign"], section["sh_size"])
    assert header == ("SHT_PROGBITS", 2, 256, len(binary))
    record = elf.get_section_by_name(".aicoreBinRec").data()
    assert len(record) == 24
    assert record[:4] == b"EBUC"
    assert struct.unpack_from("<Q", record, 16) == (len(binary),)
    relocatable = ELFFile(io.BytesIO(elf.get_section_by_name("__aicore_rel_binary").data()))
    assert (relocatable["e_type"], relocatable["e_machine"]) == ("ET_REL", 0x1029)
    assert b"emulated CANN 9.0.0" in elf.get_section_by_name(".comment").data()


def test_the_image_is_a_library_of_the_host(install: Path, tmp_path: Path) -> None:
    compile_(install, tmp_path)
    library = ctypes.CDLL(str(tmp_path / "lib.so"))
    start = ctypes.c_char.in_dll(library, "__aicore_binary_start")
    assert ctypes.string_at(ctypes.addressof(start), 4) == b"\x7fELF"


def test_the_device_binary_is_as_ld_lld_links_it(install: Path, tmp_path: Path) -> None:
    binary = compile_(install, tmp_path, TEXT.replace("{pto.aicore}", "{pto.aicore, pto.mixed}"))
    assert binary[:7] == b"\x7fELF\x02\x01\x01"
    elf = ELFFile(io.BytesIO(binary))
    header = (elf["e_type"], elf["e_machine"], elf["e_flags"], elf["e_entry"], elf["e_phnum"])
    assert header == ("ET_EXEC", 0x1029, 0x940000, 0, 3)
    assert [section.name for section in elf.iter_sections()] == [
        "",
        ".text",
        "__CCE_KernelMetaData",
        ".ascend.stack.size.record",
        "__CCE_KernelArgSize",
        ".ascend.meta.k_mix_aic",
        ".ascend.meta.k_mix_aiv",
        ".comment",
        ".symtab",
        ".shstrtab",
        ".strtab",
    ]
    assert b"ptocache emulated CANN 9.0.0" in elf.get_section_by_name(".comment").data()
    for section in elf.iter_sections():
        if isinstance(section, NoteSection):
            assert [note["n_name"] for note in section.iter_notes()] == ["ascend"]


def test_kernels_are_symbols_of_the_device_binary(install: Path, tmp_path: Path) -> None:
    mixed = TEXT.replace("@k", "@m").replace("{pto.aicore}", "{pto.aicore, pto.mixed}")
    helper = "func.func private @h() { return }\n"
    elf = ELFFile(io.BytesIO(compile_(install, tmp_path, TEXT + mixed + helper)))
    table = elf.get_section_by_name(".symtab")
    assert isinstance(table, SymbolTableSection)
    found = {
        symbol.name: (symbol["st_info"]["type"], symbol["st_info"]["bind"], symbol["st_size"])
        for symbol in table.iter_symbols()
        if symbol.name
    }
    assert set(found) == {"k", "m_mix_aic", "m_mix_aiv"}
    assert all(kind[:2] == ("STT_FUNC", "STB_GLOBAL") for kind in found.values())
    assert sum(size for _, _, size in found.values()) == elf.get_section_by_name(".text")["sh_size"]


def test_code_grows_with_the_program(install: Path, tmp_path: Path) -> None:
    small = compile_(install, tmp_path)
    assert 8 << 10 < len(small) < 32 << 10
    large = TEXT.replace("    return", '    "pto.f"() : () -> ()\n' * 2000 + "    return")
    assert len(compile_(install, tmp_path, large)) > 200 << 10


@pytest.mark.skipif(shutil.which("readelf") is None, reason="binutils' readelf is not installed")
@pytest.mark.parametrize(
    "text", [TEXT, TEXT.replace("{pto.aicore}", "{pto.aicore, pto.mixed}")], ids=["plain", "mixed"]
)
def test_readelf_has_no_complaint(text: str, install: Path, tmp_path: Path) -> None:
    (tmp_path / "k.aibin").write_bytes(compile_(install, tmp_path, text))
    (tmp_path / "k.rel.o").write_bytes(contents((tmp_path / "lib.so").read_bytes(), "__aicore_rel_binary"))
    for name in ("k.o", "lib.so", "k.aibin", "k.rel.o"):
        done = subprocess.run(
            ["readelf", "-a", "-W", name], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), name
        assert "Warning" not in done.stdout


# Inputs that bisheng refuses: (what it is, what becomes of the fat object, the diagnostic)
NOT_FAT = [
    ("no ELF", lambda fat: b"hello", "not an ELF64 little-endian file"),
    ("empty", lambda fat: b"", "not an ELF64 little-endian file"),
    ("first half", lambda fat: fat[: len(fat) // 2], "cut short"),
    ("without its end", lambda fat: fat[:-100], "cut short"),
    (
        "renamed section",
        lambda fat: fat.replace(b"__aicore_rel_binary\0", b"__aicore_xxx_binary\0"),
        "no device object",
    ),
    ("wrong record", lambda fat: fat.replace(b"EBUC", b"EBUD"), ".aicoreBinRec does not describe"),
    (
        "damaged device object",
        lambda fat: fat.replace(b"\x29\x10\x01\0\0\0", b"\x28\x10\x01\0\0\0"),
        "not a relocatable device",
    ),
]


@pytest.mark.parametrize(("damage", "diagnostic"), [row[1:] for row in NOT_FAT], ids=[row[0] for row in NOT_FAT])
def test_bisheng_refuses_what_is_no_fat_object(damage, diagnostic: str, install: Path, tmp_path: Path) -> None:
    fat = assemble(install, tmp_path)
    assert damage(fat) != fat
    (tmp_path / "k.o").write_bytes(damage(fat))
    link = ("-fPIC", "-shared", "--cce-fatobj-link", "k.o", "-o", "lib.so")
    done = run(install / "bin" / "bisheng", *link, cwd=tmp_path)
    assert done.returncode == 1
    assert diagnostic in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["k.o", "k.pto"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["-shared", "k.o", "-o", "lib.so"],
        ["-c", "k.cpp", "-o", "k.o"],
        ["-shared", "--cce-fatobj-link", "-o", "lib.so"],
        ["-shared", "--cce-fatobj-link", "k.o", "l.o", "-o", "lib.so"],
        ["-shared", "--cce-fatobj-link", "k.o"],
        ["-shared", "--cce-fatobj-link", "gone.o", "-o", "lib.so"],
    ],
)
def test_bisheng_refuses_what_is_not_emulated(arguments: list[str], install: Path, tmp_path: Path) -> None:
    assemble(install, tmp_path)
    done = run(install / "bin" / "bisheng", *arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("bisheng: error: ")


@pytest.mark.parametrize(
    "arguments", [["k.o", "-o", "x"], ["-m", "aicorelinux", "-o", "x"], ["-m", "aicorelinux", "k.pto", "-o", "x"]]
)
def test_the_linker_refuses_wrong_use(arguments: list[str], install: Path, tmp_path: Path) -> None:
    assemble(install, tmp_path)
    done = run(install / "bin" / "ld.lld", *arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("ld.lld: error: ")
