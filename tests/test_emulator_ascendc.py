"""The emulated bisheng as a compiler of AscendC: what it reads, what it refuses, and the objects that it makes."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from ptocache.aibin import check_device_binary, kernel_symbols
from ptocache.emulator import write_install

# What TileLang generates, but for its length.
TEXT = """\
#include <tl_templates/ascend/common.h>
__simt_vf__ __launch_bounds__(1024) inline void add_kernel_simt_vf_0(__ubuf__ uint8_t* buf) {
  ((__ubuf__ float*)buf)[threadIdx.x + 2048] = ((__ubuf__ float*)buf)[threadIdx.x] + 1.0f;
}

extern "C" __global__ __vector__ void add_kernel(__gm__ float* A, __gm__ float* B, __gm__ float* C) {
  asc_init();
  asc_vf_call<add_kernel_simt_vf_0>(cce::dim3(1024), (__ubuf__ uint8_t *)0);
}
"""
COMMON = """\
#pragma once
#include <stdio.h>
#include "acl/acl.h"
#include "tl_templates/ascend/simd_inst.h"
"""
SIMD = '#pragma once\n#include <type_traits>\n#include "c_api/asc_simd.h"\n#if (__NPU_ARCH__ == 3510)\nint x;\n#endif\n'
KERNEL = 'extern "C" __global__ __vector__ void k() {}\n'

# As `tilelang.contrib.bisheng.compile_ascend` runs the two tools.
CODE = ("-O2", "-fPIC", "-std=c++20", "-mllvm", "-cce-aicore-dcpreload-args=false", "--npu-arch=dav-3510")
OPTIONS = (*CODE, "-Itemplates", "--cce-aicore-only")
LINK = ("-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file", "k.rel.o", "-o", "k.aibin")


@pytest.fixture(scope="module")
def install(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_install(tmp_path_factory.mktemp("ascendc") / "cann")


class Workshop:
    """A directory to compile in, which has the headers that generated texts include."""

    def __init__(self, folder: Path, install: Path) -> None:
        self.folder = folder
        self.install = install
        self.environ: dict[str, str] = {}
        self.write("templates/tl_templates/ascend/common.h", COMMON)
        self.write("templates/tl_templates/ascend/simd_inst.h", SIMD)

    def write(self, path: str, text: str) -> None:
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode("latin-1"))

    def run(self, tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.install / "bin" / tool), *arguments]
        environ = {**os.environ, **self.environ}
        return subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True, check=False)

    def compile(self, text: str, *options: str) -> bytes:
        """The object of a text that compiles."""
        self.write("k.asc", text)
        done = self.run("bisheng", *OPTIONS, *options, "k.asc", "-o", "k.rel.o")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        return (self.folder / "k.rel.o").read_bytes()

    def refuse(self, text: str, *options: str) -> str:
        """The diagnostics of a text that does not compile."""
        (self.folder / "k.rel.o").unlink(missing_ok=True)
        self.write("k.asc", text)
        done = self.run("bisheng", *OPTIONS, *options, "k.asc", "-o", "k.rel.o")
        assert (done.returncode, done.stdout) == (1, "")
        assert not (self.folder / "k.rel.o").exists()
        return done.stderr

    def binary(self, text: str, *options: str) -> bytes:
        """The device binary of a text."""
        self.compile(text, *options)
        done = self.run("ld.lld", *LINK)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        return (self.folder / "k.aibin").read_bytes()

    def dependencies(self, text: str, *options: str) -> list[str]:
        """What a dependency file says that an object depends on."""
        self.compile(text, *options, "-MF", "k.d")
        target, colon, files = (self.folder / "k.d").read_text().replace("\\\n", " ").partition(":")
        assert (target, colon) == ("k.rel.o", ":")
        return files.split()


@pytest.fixture
def workshop(tmp_path: Path, install: Path) -> Workshop:
    return Workshop(tmp_path, install)


# ---- what it makes


def test_a_generated_text_becomes_a_device_binary(workshop: Workshop) -> None:
    binary = workshop.binary(TEXT)
    check_device_binary(binary, ["add_kernel"])
    assert kernel_symbols(binary) == ["add_kernel"]
    assert b"ptocache emulated CANN 9.0.0" in binary


def test_kernels_of_all_kinds_become_a_device_binary(workshop: Workshop) -> None:
    kinds = {"a": "__vector__", "b": "__cube__", "c": "__mix__(1, 2)"}
    text = "".join(f'extern "C" __global__ {kind} void {name}() {{}}\n' for name, kind in kinds.items())
    binary = workshop.binary(text)
    check_device_binary(binary, list(kinds))
    assert kernel_symbols(binary) == ["a", "b", "c_mix_aic", "c_mix_aiv"]


def test_the_object_is_a_relocatable_one_of_the_device(workshop: Workshop) -> None:
    elf = ELFFile(io.BytesIO(workshop.compile(TEXT)))
    assert (elf["e_type"], elf["e_machine"], elf["e_flags"]) == ("ET_REL", 0x1029, 0x940000)
    symbols = [s for s in elf.get_section_by_name(".symtab").iter_symbols() if s.name]
    assert [(s.name, s["st_info"]["type"], s["st_info"]["bind"]) for s in symbols] == [
        ("add_kernel", "STT_FUNC", "STB_GLOBAL")
    ]
    assert elf.get_section_by_name("__CCE_KernelArgSize").data() == (24).to_bytes(4, "little")


def test_code_grows_with_the_text(workshop: Workshop) -> None:
    long = TEXT.replace("  asc_init();\n", "  asc_init();\n" * 1000)
    assert len(workshop.compile(TEXT)) < 32 << 10
    assert len(workshop.compile(long)) > 100 << 10


# Text in which what looks like a bracket or a quote is none.
AWKWARD = r"""
const char* s = "\"{" "//" u8"(" L"[" "/*"; char c = '"', d = '\'', e = u'{';
int n = 1'000'000 + 0xFF'FF; double x = 0x1.4p+0;
const char* r = R"({"'/*)" R"x([)" )x";
#define OPEN { /* a comment
over lines ( */ [
#define CONTINUED "{ \
(" [ // and \
a comment {
#pragma it's nothing
"""

# Definitions of kernels: (what it is, the text, its symbols)
DEFINITIONS = [
    ("vector", 'extern "C" __global__ __vector__ void k() {}', ["k"]),
    ("cube", 'extern "C" __global__ __cube__ void k(__gm__ float* A) {}', ["k"]),
    ("aicore", 'extern "C" __global__ __aicore__ void k(GM_ADDR x, GM_ADDR y) {}', ["k"]),
    ("plain", 'extern "C" __global__ void k(void) {}', ["k"]),
    ("mixed", 'extern "C" __global__ __mix__(1, 2) void k() {}', ["k_mix_aic", "k_mix_aiv"]),
    ("mixed, of cubes", 'extern "C" __global__ __mix__(1,0) void k() {}', ["k_mix_aic"]),
    ("mixed, of vectors", 'extern "C" __global__ __mix__(0, 1) void k() {}', ["k_mix_aiv"]),
    ("attribute before", 'extern "C" __attribute__((used)) __global__ __vector__ void k() {}', ["k"]),
    ("attribute in brackets", '[[maybe_unused]] extern "C" [[a::b(c)]] __global__ void k() {}', ["k"]),
    ("attribute behind", 'extern "C" __global__ __vector__ void __launch_bounds__(8) k(int a) {}', ["k"]),
    ("other order", 'extern "C" __mix__(1, 2) __global__ __attribute__((x)) void k() {}', ["k_mix_aic", "k_mix_aiv"]),
    ("over lines", 'extern "C"\n__global__ __vector__\nvoid\nk(\n  int a\n)\n{\n}\n', ["k"]),
    ("comments", 'extern /* ( */ "C" __global__ // {\n void k /* [ */ () {}', ["k"]),
    ("block", 'extern "C" {\nint x;\n__global__ __vector__ void k() {}\n}', ["k"]),
    ("block in a namespace", 'namespace n {\nextern "C" {\n__global__ void k() {}\n}\n}', ["k"]),
    ("two", 'extern "C" __global__ void a() {}\nextern "C" __global__ __mix__(1, 1) void b() {}',
     ["a", "b_mix_aic", "b_mix_aiv"]),
    ("declared first", 'extern "C" __global__ void k(int a);\nextern "C" __global__ void k(int a) {}', ["k"]),
    ("behind a template", "template <class T, int N> __global__ void t(T a) {}\n" + KERNEL, ["k"]),
    ("behind a function of C++", "__global__ __vector__ void cpp(int a) {}\n" + KERNEL, ["k"]),
    ("behind a macro's use", "REGISTER(k)\n" + KERNEL, ["k"]),
    ("in a branch", "#ifdef CUDA\nint x = {\n#else\nint y = {\n#endif\n0};\n#if A\n" + KERNEL + "#endif\n", ["k"]),
    ("in both branches", "#ifdef A\n" + KERNEL + "#else\n" + KERNEL + "#endif\n", ["k"]),
    ("awkward literals", KERNEL + AWKWARD, ["k"]),
    ("old line ends", ("#if 0\n{\n#endif\n#define A \\\n {\n" + KERNEL).replace("\n", "\r\n"), ["k"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "symbols"), [row[1:] for row in DEFINITIONS], ids=[row[0] for row in DEFINITIONS])
def test_kernels_are_found(text: str, symbols: list[str], workshop: Workshop) -> None:
    assert kernel_symbols(workshop.compile(text)) == symbols


@pytest.mark.parametrize("number", [0, 1, 2, 5])
def test_arguments_are_counted(number: int, workshop: Workshop) -> None:
    parameters = ", ".join(
        ["__gm__ float* a", "std::array<int, 4> b", "int (*f)(int, int)", "half c", "int d"][:number]
    )
    elf = ELFFile(io.BytesIO(workshop.compile(KERNEL.replace("k()", f"k({parameters})"))))
    assert elf.get_section_by_name("__CCE_KernelArgSize").data() == (8 * number).to_bytes(4, "little")


def test_a_kernel_may_be_in_a_header(workshop: Workshop) -> None:
    workshop.write("kernel.h", "#pragma once\n" + KERNEL)
    assert kernel_symbols(workshop.binary('#include "kernel.h"\n')) == ["k"]


# ---- what the object depends on


def test_each_input_changes_the_object(workshop: Workshop, tmp_path: Path) -> None:
    objects = [workshop.compile(TEXT)]
    for text in (TEXT.replace("1.0f", "2.0f"), TEXT.replace("add_kernel", "sum_kernel"), TEXT + "// a comment\n"):
        objects.append(workshop.compile(text))
    for options in (
        ["-DN=1"],
        ["-DN=2"],
        ["-UN"],
        ["-O3"],
        ["-std=c++17"],
        ["--npu-arch=dav-2201"],
        ["-mllvm", "-cce-aicore-stack-size=0x8000"],
        ["-mllvm", "-cce-aicore-stack-size=0x4000"],
        ["-DA", "-DB"],
        ["-DB", "-DA"],
        ["-fno-unheard-of"],
    ):
        objects.append(workshop.compile(TEXT, *options))
    for header in ("common.h", "simd_inst.h"):
        place = workshop.folder / "templates" / "tl_templates" / "ascend" / header
        place.write_text(place.read_text() + "int another;\n")
        objects.append(workshop.compile(TEXT))
    workshop.install = write_install(tmp_path / "other", "9.0.1")
    objects.append(workshop.compile(TEXT))
    assert len(set(objects)) == len(objects)


def test_a_changed_header_of_the_install_changes_the_object(workshop: Workshop, tmp_path: Path) -> None:
    workshop.install = write_install(tmp_path / "other")
    before = workshop.compile(TEXT)
    with (workshop.install / "include" / "acl" / "acl_rt.h").open("a") as header:
        header.write("int another;\n")
    assert workshop.compile(TEXT) != before


def test_a_header_that_is_not_included_changes_nothing(workshop: Workshop) -> None:
    before = workshop.compile(TEXT)
    workshop.write("templates/tl_templates/ascend/gemm.h", "int another;\n")
    assert workshop.compile(TEXT) == before


def test_no_place_and_no_time_is_in_the_object(workshop: Workshop, tmp_path: Path) -> None:
    first = workshop.compile(TEXT)
    assert os.fsencode(tmp_path) not in first
    elsewhere = Workshop(tmp_path / "else where", write_install(tmp_path / "a copy"))
    (elsewhere.folder / "templates").rename(elsewhere.folder / "moved")
    elsewhere.write("deep/er.asc", TEXT)
    places = ["-I", "gone", "-isystem", "moved", "-iquote", "x", "-L/x", "-ffile-prefix-map=/a=/b"]
    others = ["-c", "-MMD", "-MT", "x", "-v"]
    output = elsewhere.folder / "another name.o"
    elsewhere.environ["LANG"] = "C"
    text = str(elsewhere.folder / "deep" / "er.asc")
    done = elsewhere.run("bisheng", *others, *CODE, *places, "--cce-aicore-only", "-o", str(output), text)
    assert (done.returncode, done.stderr) == (0, "")
    assert output.read_bytes() == first
    assert sorted(path.name for path in elsewhere.folder.iterdir()) == [
        "another name.d", "another name.o", "deep", "moved",
    ]  # fmt: skip


def test_options_may_be_in_two_words_or_one(workshop: Workshop) -> None:
    one = workshop.compile(KERNEL, "-DN=1", "-Ix", "-isystemy")
    assert workshop.compile(KERNEL, "-D", "N=1", "-I", "x", "-isystem", "y") == one


# ---- where headers are found

# The places that are searched, in order: (name, the directory, options, variables)
PLACES = [
    ("beside", ".", [], {}),
    ("-iquote", "q", ["-iquote", "q"], {}),
    ("-I in one word", "i1", ["-Ii1"], {}),
    ("-I in two words", "i2", ["-I", "i2"], {}),
    ("CPATH", "p1", [], {"CPATH": "gone:p1:p2"}),
    ("CPATH, a later one", "p2", [], {}),
    ("-isystem", "s", ["-isystem", "s"], {}),
    ("C_INCLUDE_PATH", "c", [], {"C_INCLUDE_PATH": "c"}),
    ("CPLUS_INCLUDE_PATH", "cpp", [], {"CPLUS_INCLUDE_PATH": "cpp"}),
    ("-idirafter", "after", ["-idirafter", "after"], {}),
]


def test_headers_are_searched_in_order(workshop: Workshop) -> None:
    options = [option for _, _, places, _ in PLACES for option in places]
    for _, _, _, variables in PLACES:
        workshop.environ.update(variables)
    text = '#include "h.h"\n' + KERNEL
    for _, folder, _, _ in PLACES:
        workshop.write(f"{folder}/h.h", f"// {folder}\n")
    for _, folder, _, _ in PLACES:
        assert workshop.dependencies(text, "-MD", *options)[1] == os.path.normpath(f"{folder}/h.h")
        (workshop.folder / folder / "h.h").unlink()
    assert "'h.h' file not found" in workshop.refuse(text, *options)


def test_angle_brackets_look_neither_beside_the_text_nor_in_iquote(workshop: Workshop) -> None:
    for folder in (".", "q", "i"):
        workshop.write(f"{folder}/h.h", "")
    text = "#include <h.h>\n" + KERNEL
    assert "fatal error: 'h.h' file not found" in workshop.refuse(text, "-iquote", "q")
    assert workshop.dependencies(text, "-MD", "-iquote", "q", "-Ii") == ["k.asc", "i/h.h"]


def test_a_header_finds_what_is_beside_it(workshop: Workshop) -> None:
    workshop.write("a/one.h", '#include "b/two.h"\n')
    workshop.write("a/b/two.h", '#include "../three.h"\n')
    workshop.write("a/three.h", "")
    text = '#include "a/one.h"\n' + KERNEL
    assert workshop.dependencies(text, "-MD") == ["k.asc", "a/one.h", "a/b/two.h", "a/b/../three.h"]


def test_a_header_can_be_forced_and_named_by_a_macro(workshop: Workshop) -> None:
    workshop.write("forced.h", "")
    workshop.write("named.h", "")
    workshop.write("i/also.h", "")
    text = "#define OTHER <also.h>\n#define HEADER OTHER\n#include NAME\n# include HEADER // and that\n" + KERNEL
    options = ["-MD", "-Ii", "-include", "forced.h", '-DNAME="named.h"']
    assert workshop.dependencies(text, *options) == ["k.asc", "forced.h", "named.h", "i/also.h"]
    assert 'k.asc:1:10: error: expected "FILENAME" or <FILENAME>' in workshop.refuse("#include NAME\n" + KERNEL)
    assert "'gone.h' file not found" in workshop.refuse(KERNEL, "-include", "gone.h")


def test_include_next_goes_on_behind(workshop: Workshop) -> None:
    workshop.write("i/stdio.h", "#include_next <stdio.h>\n")
    workshop.write("s/stdio.h", "#include_next <stdio.h>\n")
    text = "#include <stdio.h>\n" + KERNEL
    assert workshop.dependencies(text, "-MD", "-Ii", "-isystem", "s") == ["k.asc", "i/stdio.h", "s/stdio.h"]


def test_standard_headers_are_built_in_and_those_of_cann_are_files(workshop: Workshop) -> None:
    names = ["cstdint", "stdint.h", "bit", "type_traits", "kernel_operator.h", "simt_api/cooperative_groups.h"]
    text = "".join(f"#include <{name}>\n" for name in names) + KERNEL
    expected = ["kernel_operator.h", "simt_api/cooperative_groups.h", "simt_api/asc_simt.h"]
    assert workshop.dependencies(text, "-MD") == ["k.asc", *(f"{workshop.install}/include/{name}" for name in expected)]


def test_a_file_is_entered_again_unless_it_is_guarded(workshop: Workshop) -> None:
    workshop.write("once.h", "// first\n#pragma once\n#include <cmath>\n")
    workshop.write("guard.h", '#ifndef G\n#define G\n#include "guard.h"\n#endif\n')
    workshop.write("guard2.h", '#if !defined(G2)\n#  define G2\n#include "guard2.h"\n#endif\n')
    workshop.write("import.h", '#import "import.h"\n')
    workshop.write("condition.h", '#if N\n#include "condition.h"\n#endif\n')
    names = ["once.h", "guard.h", "guard2.h", "import.h", "condition.h"]
    text = "".join(f'#include "{name}"\n' for name in names) + KERNEL
    assert workshop.dependencies(text, "-MD") == ["k.asc", *names]
    workshop.write("for_ever.h", '#include "for_ever.h"\n')
    message = workshop.refuse('#include "for_ever.h"\n' + KERNEL)
    assert "for_ever.h:1:10: fatal error: #include nested too deeply" in message
    workshop.write("again.h", "")
    assert "again.h: more than 5000 inclusions" in workshop.refuse('#include "again.h"\n' * 6000)


def test_both_branches_of_an_open_condition_count(workshop: Workshop) -> None:
    for name in ("a.h", "b.h", "c.h", "d.h", "m.h", "n.h"):
        workshop.write(name, "")
    text = """\
#ifdef A
#include "a.h"
#include "gone.h"
#error no A
#include A_MACRO
#define NAME "m.h"
don't
#elif defined(B)
#include "b.h"
#else
#include "c.h"
#define NAME "n.h"
#endif
#include NAME
#if 0
#include "gone.h"
#error dead
#if A
#else
#include "gone.h"
#endif
{ don't
#elif 1
#include "d.h"
#else
#include "gone.h"
#endif
"""
    expected = ["k.asc", "a.h", "b.h", "c.h", "m.h", "n.h", "d.h"]
    assert workshop.dependencies(text + KERNEL, "-MD") == expected


# ---- what it refuses

# Texts that do not compile: (what it is, the text, the place and the message, the column's text)
MALFORMED = [
    ("no header", '\n  #  include "x.h" // why\n' + KERNEL, "k.asc:2:14: fatal error: 'x.h' file not found", '"x.h"'),
    ("no template", "#include <tl_templates/x.h>\n", "k.asc:1:10: fatal error: 'tl_templates/x.h' file not", "<tl_"),
    ("no header of CANN", "#include <acl/x.h>\n", "k.asc:1:10: fatal error: 'acl/x.h' file not found", "<acl"),
    ("error directive", KERNEL + "#error \"don't\" 'do this\n", "k.asc:2:2: error: \"don't\" 'do this", "error"),
    ("no kernel", "int x;\n", "k.asc:1:1: error: no kernel", "int"),
    ("empty", "", "k.asc:1:1: error: no kernel", ""),
    ("only a declaration", 'extern "C" __global__ void k();', "k.asc:1:1: error: no kernel", "extern"),
    ("only a C++ kernel", "__global__ void k() {}", "k.asc:1:1: error: no kernel", "__global__"),
    ("in a comment", "/*\n" + KERNEL + "*/", "k.asc:1:1: error: no kernel", "/*"),
    ("in a string", 'const char* s = R"(' + KERNEL + ')";', "k.asc:1:1: error: no kernel", "const"),
    ("in a dead branch", "#if 0\n" + KERNEL + "#endif\n", "k.asc:1:1: error: no kernel", "#if"),
    ("no body", 'extern "C" __global__ void k()\nint x;', "k.asc:1:12: error: expected function body", "__global__"),
    ("no void", 'extern "C" __global__ int k() {}', "k.asc:1:12: error: a __global__ function must", "__global__"),
    ("no name", 'extern "C" __global__ void {}', "k.asc:1:12: error: a __global__ function must have a name", "__glo"),
    ("open brace", TEXT[:-2], "k.asc:6:101: error: expected '}' to match this '{'", "{"),
    ("brace too many", KERNEL + "}\n", "k.asc:2:1: error: extraneous closing brace ('}')", "}"),
    ("open parenthesis", KERNEL.replace("{}", "{\n  f(1;\n}"), "k.asc:3:1: error: expected ')'", "}"),
    ("wrong bracket", KERNEL.replace("{}", "{ a[(1]; }"), "k.asc:1:49: error: expected ')'", "];"),
    ("open string", KERNEL + 'const char* s = "abc;\n', "k.asc:2:17: error: missing terminating '\"' char", '"abc'),
    ("open character", KERNEL + "char c = 'a;\n", "k.asc:2:10: error: missing terminating ' character", "'a"),
    ("open comment", KERNEL + "int x; /* abc\n", "k.asc:2:8: error: unterminated /* comment", "/*"),
    ("open condition", "#if 1\n#ifdef A\n" + KERNEL + "#endif\n", "k.asc:1:1: error: unterminated conditional", "#if"),
    ("no condition", KERNEL + "#endif\n", "k.asc:2:1: error: #endif without #if", "#endif"),
    ("other without condition", KERNEL + " #else\n", "k.asc:2:2: error: #else without #if", "#else"),
    ("not UTF-8", KERNEL + "\t\xe9 }\n", "k.asc:2:4: error: extraneous closing brace", "}"),
    ("UTF-8", KERNEL + "\t/* \xc3\xa9 */ }\n", "k.asc:2:11: error: extraneous closing brace", "}"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message", "pointed"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED]
)
def test_a_malformed_text_is_refused(text: str, message: str, pointed: str, workshop: Workshop) -> None:
    first, source, caret, last = workshop.refuse(text).splitlines()
    assert first.startswith(message)
    assert source[len(caret) - 1 :].startswith(pointed)
    assert caret.endswith("^")
    assert last == "1 error generated."


def test_a_message_tells_how_a_header_came_in(workshop: Workshop) -> None:
    workshop.write("a.h", '\n#include "b.h"\n')
    workshop.write("b.h", "#include <x.h>\n")
    assert workshop.refuse('#include "a.h"\n').splitlines() == [
        "In file included from k.asc:1:",
        "In file included from ./a.h:2:",
        "./b.h:1:10: fatal error: 'x.h' file not found",
        "#include <x.h>",
        "         ^",
        "1 error generated.",
    ]


# Command lines that bisheng refuses: (what it is, the arguments, the diagnostic)
COMMAND_LINES = [
    ("no input", ["--cce-aicore-only", "-o", "k.o"], "no input files"),
    ("two inputs", ["--cce-aicore-only", "k.asc", "j.asc"], "expected one input file, found 2"),
    ("missing input", ["--cce-aicore-only", "gone.asc"], "'gone.asc': No such file or directory"),
    ("other input", ["--cce-aicore-only", "k.o"], "'k.o' is no AscendC text"),
    ("output without a file", ["--cce-aicore-only", "k.asc", "-o"], "argument to '-o' is missing"),
    ("option without a value", ["--cce-aicore-only", "k.asc", "-mllvm"], "argument to '-mllvm' is missing"),
    ("unwritable output", ["--cce-aicore-only", "k.asc", "-o", "no/k.o"], "cannot open output file 'no/k.o'"),
    ("unwritable dependencies", ["--cce-aicore-only", "k.asc", "-MD", "-MF", "no/k.d"], "output file 'no/k.d'"),
    ("unknown architecture", ["--cce-aicore-only", "--npu-arch=sm_90", "k.asc"], "invalid value 'sm_90'"),
    ("only preprocess", ["--cce-aicore-only", "-E", "k.asc"], "not emulated: -E"),
    ("for the host, an object", ["-O2", "-c", "k.asc", "-o", "k.o"], "not emulated: only `--cce-aicore-only`"),
    ("for the host, a library", ["-O2", "-shared", "k.asc", "-o", "k.so"], "not emulated: only `--cce-aicore-only`"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "diagnostic"), [row[1:] for row in COMMAND_LINES], ids=[row[0] for row in COMMAND_LINES]
)
def test_wrong_use_is_refused(arguments: list[str], diagnostic: str, workshop: Workshop) -> None:
    workshop.write("k.asc", KERNEL)
    done = workshop.run("bisheng", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("bisheng: error: ")
    assert diagnostic in done.stderr


def test_without_an_output_the_object_is_called_like_the_text(workshop: Workshop) -> None:
    workshop.write("src/k.asc", KERNEL)
    assert workshop.run("bisheng", "--cce-aicore-only", "src/k.asc").returncode == 0
    workshop.write("src/other", KERNEL)
    assert workshop.run("bisheng", "-x", "asc", "--cce-aicore-only", "src/other").returncode == 0
    assert {"k.o", "other.o"} <= {path.name for path in workshop.folder.iterdir()}


# ---- dependency files


def test_system_headers_are_left_out_of_mmd(workshop: Workshop) -> None:
    workshop.write("s/sys.h", '#include "beside.h"\n')
    workshop.write("s/beside.h", "")
    text = "#include <sys.h>\n" + TEXT
    ours = [f"templates/tl_templates/ascend/{name}" for name in ("common.h", "simd_inst.h")]
    every = workshop.dependencies(text, "-MD", "-isystem", "s")
    cann = [f"{workshop.install}/include/{name}" for name in ("acl/acl.h", "acl/acl_base.h", "acl/acl_rt.h")]
    assert every[:7] == ["k.asc", "s/sys.h", "s/beside.h", ours[0], *cann]
    assert every[7:] == [ours[1], f"{workshop.install}/include/c_api/asc_simd.h"]
    assert workshop.dependencies(text, "-MMD", "-isystem", "s") == ["k.asc", *ours]


def test_a_dependency_file_is_laid_out_as_clang_does(workshop: Workshop) -> None:
    long = "a_directory_with_a_rather_long_name/and_another_one_below_it/and_a_header_in_that.h"
    awkward = "sp ace/ha#sh/dol$lar/back\\ slash.h"
    for name in ("a.h", "b.h", long, awkward):
        workshop.write(name, "")
    text = f'#include "a.h"\n#include "b.h"\n#include "{long}"\n#include "{awkward}"\n#include "./a.h"\n' + KERNEL
    workshop.compile(text, "-MD")
    escaped = "sp\\ ace/ha\\#sh/dol$$lar/back\\\\\\ slash.h"
    body = f" k.asc a.h b.h \\\n  {long} \\\n  {escaped}\n"
    assert (workshop.folder / "k.rel.d").read_text() == "k.rel.o:" + body
    workshop.compile(text, "-MD", "-MF", "x y.d", "-MT", "some target", "-MQ", "$a b", "-MP")
    rules = "".join(f"{name}:\n" for name in ("a.h", "b.h", long, escaped))
    assert (workshop.folder / "x y.d").read_text() == "some target $$a\\ b:" + body + rules


def test_a_failure_leaves_no_dependency_file(workshop: Workshop) -> None:
    workshop.refuse("#include <x.h>\n", "-MD", "-MF", "k.d")
    assert not (workshop.folder / "k.d").exists()


# ---- the knobs


def test_the_two_runs_are_logged(workshop: Workshop) -> None:
    workshop.environ["PTOCACHE_EMULATOR_LOG"] = str(workshop.folder / "log")
    workshop.binary(TEXT)
    lines = [line.split(" ", 2) for line in (workshop.folder / "log").read_text().splitlines()]
    assert [(tool, arguments) for tool, _, arguments in lines] == [
        ("bisheng", " ".join([*OPTIONS, "k.asc", "-o", "k.rel.o"])),
        ("ld.lld", " ".join(LINK)),
    ]


def test_faults_strike_here_too(workshop: Workshop) -> None:
    expected = workshop.compile(TEXT)
    workshop.environ["PTOCACHE_EMULATOR_FAULT"] = "bisheng=truncate"
    assert workshop.compile(TEXT) == expected[: len(expected) // 2]
    done = workshop.run("ld.lld", *LINK)
    assert done.returncode == 1
    assert "k.rel.o: the section table is cut short" in done.stderr
    workshop.environ["PTOCACHE_EMULATOR_FAULT"] = "bisheng=exit:3"
    assert workshop.run("bisheng", *OPTIONS, "k.asc").returncode == 3
    workshop.environ["PTOCACHE_EMULATOR_FAULT"] = "bisheng=everything"
    assert workshop.run("bisheng", *OPTIONS, "k.asc").returncode == 2
