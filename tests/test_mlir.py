"""Locations in the lowered text: they are no part of the PTO key, and for the tools they make no difference."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import EXAMPLES, ToolLog
from hypothesis import given
from hypothesis import strategies as st

from ptocache import CompileCache, pto_toolchain
from ptocache.mlir import text_for_key

#: What MLIR prints as locations: (name, the location with the space before it)
LOCATIONS = {
    "file": ' loc("k.py":3:1)',
    "range": ' loc("k.py":3:1 to :9)',
    "alias": " loc(#loc3)",
    "unknown": " loc(unknown)",
    "name": ' loc("add"(#loc1))',
    "fused": ' loc(fused<"why">["a.py":1:2, callsite("f"("b.py":3:4) at "c.py":5:6)])',
    "callsite": ' loc(callsite("a" at "b":1:2))',
    "parentheses in strings": ' loc("a)b((":1:2)',
    "quotes in strings": ' loc("say \\"(\\" twice\\\\":1:2)',
    "comment marks in strings": ' loc("//k.py":1:2)',
    "empty": " loc()",
    "behind a tab": '\tloc("k.py":1:1)',
}

PLAIN = """\
module attributes {pto.target_arch = "a5"} {
  func.func @f(%arg0: i32, %arg1: !pto.ptr<f32, gm>) attributes {pto.aicore} {
    %0 = "pto.cast"(%arg0) {arg1 = i32} : (i32) -> i32
    scf.for %arg2 = %0 to %0 step %0 : i32 {
      "pto.store"(%0, %arg1) : (i32, !pto.ptr<f32, gm>) -> ()
    }
    return
  }
}
"""


@pytest.mark.parametrize("location", LOCATIONS.values(), ids=LOCATIONS)
def test_a_location_behind_an_operation_is_left_out(location: str) -> None:
    text = "".join(
        f"{line}{location}\n" if line.endswith((")", "i32", "return", "}")) else f"{line}\n"
        for line in PLAIN.splitlines()
    )
    assert text.count(location) == 6
    assert text_for_key(text, []) == PLAIN


@pytest.mark.parametrize("location", LOCATIONS.values(), ids=LOCATIONS)
def test_a_location_of_a_block_argument_is_left_out(location: str) -> None:
    text = f"^bb0(%arg0: i32{location}, %arg1: !pto.ptr<f32, gm>{location}):\n  return\n"
    assert text_for_key(text, []) == "^bb0(%arg0: i32, %arg1: !pto.ptr<f32, gm>):\n  return\n"


def test_the_aliases_of_locations_are_left_out_wherever_they_are() -> None:
    aliases = [
        "#loc = loc(unknown)\n",
        '#loc1 = loc("k.py":3:1)\n',
        "#loc12 = loc(fused[#loc1, #loc])\n",
        "#loc_f=loc(#loc)\n",
    ]
    located = PLAIN.replace("return\n", "return loc(#loc12)\n")
    assert located != PLAIN
    for text in (aliases[0] + located + "".join(aliases[1:]), "".join(aliases) + located, located + "".join(aliases)):
        assert text_for_key(text, []) == PLAIN


def test_an_alias_at_the_end_needs_no_line_break() -> None:
    assert text_for_key(f"{PLAIN}#loc = loc(unknown)", []) == PLAIN


#: What has the letters of a location and is none.
NOT_LOCATIONS = [
    "call @alloc(%0) : () -> ()\n",
    "call @loc(%0) : () -> ()\n",
    "memref.alloc() : memref<1xi32>\n",
    "my.loc(%0)\n",
    '%loc = "my.loc"(%0) : (i32) -> i32\n',
    "$loc(1)\n!loc(2)\n#loc(3)\n%loc(4)\n",
    "^loc(%arg0: i32):\n",
    "a-loc(1)\n",
    "_loc(1)\nloca(1)\nloc_(1)\nlocation(1)\n",
    'attributes {name = "loc(x)"}\n',
    'attributes {name = "say \\" loc(x)"}\n',
    'attributes {name = "\\\\", other = "loc(x)"}\n',
    "return // loc(x)\n",
    '// " loc(1)\nreturn // " loc(2)\n',
    "loc\n(unknown)\n",
    '#loc = "no location"\n',
]


@pytest.mark.parametrize("text", NOT_LOCATIONS)
def test_what_only_looks_like_a_location_stays(text: str) -> None:
    assert text_for_key(text, []) == text
    assert text_for_key(f"return loc(unknown)\n{text}", []) == f"return\n{text}"


@pytest.mark.parametrize(
    "text",
    [
        '"pto.f"() {where = loc("k.py":1:1)} : () -> ()\n',
        '"pto.f"() {places = [loc("k.py":1:1), loc(unknown)]} : () -> ()\n',
        '"pto.f"() {where = #pto.place<loc(unknown)>} : () -> ()\n',
        '"pto.f"() {where = #loc1} : () -> ()\n#loc1 = loc("k.py":1:1)\n',
    ],
)
def test_a_location_that_an_attribute_has_as_its_value_stays(text: str) -> None:
    assert text_for_key(text, []) == text


@pytest.mark.parametrize(
    "text",
    [
        "return loc(\n",
        'return loc("k.py":1:1\n',
        'return loc("k.py:1:1)\n',
        'return loc("k.py":1:1)\n"pto.f\n',
        'return loc(callsite("a" at "b":1:2)\n',
        'return loc(unknown)\nreturn loc("\\")\n',
        "#loc = loc(fused[\n",
    ],
)
def test_text_that_is_not_balanced_stays_as_it_is(text: str) -> None:
    assert text_for_key(text, []) == text


def test_a_quote_in_one_line_does_not_hide_what_is_in_the_next() -> None:
    """Or text that ptoas refuses would have the key of text that it takes."""
    bad = 'return "\nreturn loc(unknown)\n'
    assert text_for_key(bad, []) == bad


@pytest.mark.parametrize(
    "flag",
    ["-g", "-g0", "-g2", "--g", "-ggdb3", "-gdwarf-4", "-gline-tables-only", "--debug-info", "--debug", "-debug-only=x",
     "--mlir-print-debuginfo", "--emit-dwarf", "--lineinfo", "-line-info", "--keep-locations", "--source-map",
     "--bisheng-flags=-O2 -g", "--cce-opts='-g'", "--x=-g,-O2"],
)  # fmt: skip
def test_where_a_flag_asks_for_debug_information_locations_count(flag: str) -> None:
    text = PLAIN.replace("return\n", 'return loc("k.py":3:1)\n')
    assert text_for_key(text, ["--pto-backend=vpto", flag]) == text


@pytest.mark.parametrize(
    "flag", ["-O2", "--pto-level=level3", "--enable-graph", "--global-sync", "--x=a-g", "-v", "--big", "x-g"]
)
def test_other_flags_do_not_make_locations_count(flag: str) -> None:
    text = PLAIN.replace("return\n", 'return loc("k.py":3:1)\n')
    assert text_for_key(text, ["--pto-backend=vpto", flag]) == PLAIN


def test_a_text_with_many_locations_takes_one_pass() -> None:
    """A megabyte of them: anything quadratic would run into the time limit of the tests."""
    line = '    "pto.store"(%0, %arg1) : (i32, i32) -> ()'
    text = "".join(f'{line} loc("k.py":{number}:1)\n' for number in range(20_000))
    assert text_for_key(text, []) == f"{line}\n" * 20_000


# Properties.

#: Pieces of MLIR, and of what is none, from which a location cannot arise: none of them ends in a bare `loc`.
PIECES = [
    "%0",
    ' = "pto.f"',
    "(",
    ")",
    "{",
    "}",
    "<",
    ">",
    '"',
    '\\"',
    "//",
    "\n",
    " ",
    "#loc",
    "@alloc",
    "loc ",
    "^bb0",
    ":",
    "é",
    "\t",
    "=",
]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_text_without_locations_never_changes(text: str) -> None:
    assert text_for_key(text, []) == text


@given(st.text())
def test_any_text_without_the_letters_never_changes(text: str) -> None:
    text = text.replace("loc(", "")
    if "loc(" not in text:
        assert text_for_key(text, []) == text


#: A string as it stands in MLIR, whatever is in it.
STRINGS = st.text(st.characters(codec="utf-8", exclude_characters='"\\\n'), max_size=8).map(lambda text: f'"{text}"')
PLACES = st.builds(
    "{}:{}:{}".format, STRINGS | st.sampled_from(['"(("', '"\\")"', '"//"']), st.integers(0, 99), st.integers(0, 99)
)
SOME_LOCATIONS = st.recursive(
    PLACES | st.sampled_from(["unknown", "#loc", "#loc7"]),
    lambda inner: st.one_of(
        st.builds("callsite({} at {})".format, inner, inner),
        st.builds("fused[{}]".format, st.lists(inner, min_size=1, max_size=3).map(", ".join)),
        st.builds("fused<{}>[{}]".format, STRINGS, inner),
        st.builds("{}({})".format, STRINGS, inner),
    ),
    max_leaves=5,
)


@given(st.data())
def test_locations_at_the_ends_of_operations_never_change_the_result(data: st.DataObject) -> None:
    lines = PLAIN.splitlines()
    ends = [number for number, line in enumerate(lines) if not line.endswith("{")]
    located = data.draw(st.dictionaries(st.sampled_from(ends), SOME_LOCATIONS, min_size=1))
    text = "".join(f"{line} loc({located[n]})\n" if n in located else f"{line}\n" for n, line in enumerate(lines))
    aliases = data.draw(st.lists(st.builds("#loc{} = loc({})\n".format, st.integers(1, 9), SOME_LOCATIONS), max_size=3))
    assert text_for_key(text + "".join(aliases), []) == PLAIN


# The tools.


def add_locations(text: str, path: str) -> str:
    """Locations behind all operations, as a tracer writes them, and aliases."""
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        ends = line.strip() and not line.endswith(("{", ":", ","))
        lines.append(f'{line} loc("{path}":{number}:3)' if ends else line)
    return "#loc = loc(unknown)\n" + "\n".join(lines) + f'\n#loc1 = loc(callsite("f"(#loc) at "{path}":1:1))\n'


@pytest.mark.usefixtures("toolchain")
@pytest.mark.parametrize("name", ["vector_add", "simt_saxpy", "three_kernels"])
def test_the_emulated_ptoas_makes_the_same_of_a_text_with_and_without_locations(name: str, tmp_path: Path) -> None:
    source = (EXAMPLES / f"{name}.py").read_text()
    plain, located = tmp_path / "plain.pto", tmp_path / "located.pto"
    names = pto_toolchain.parse_pto_kernel_names(source)
    pto_toolchain.compile_ptodsl_to_pto(source, names, str(tmp_path / "k.py"), str(plain))
    located.write_text(add_locations(plain.read_text(), "/somewhere/k.py"))
    assert located.read_text().count("loc(") > 10
    for path in (plain, located):
        pto_toolchain.run_ptoas(str(path), str(path.with_suffix(".o")), "a5", ["--pto-backend=vpto"])
    assert plain.with_suffix(".o").read_bytes() == located.with_suffix(".o").read_bytes()
    assert text_for_key(located.read_text(), []) == text_for_key(plain.read_text(), []) == plain.read_text()


@pytest.fixture
def locating(toolchain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An install whose frontend writes locations: the path of the source, and lines that a comment moves."""
    home = tmp_path / "cann"
    shutil.copytree(toolchain, home, symlinks=True)
    with (home / "python" / "ptodsl" / "__init__.py").open("a") as file:
        file.write("""

def _locate():
  import inspect, sys
  from . import _kernels
  for kind in vars(_kernels).values():
    if isinstance(kind, type) and "mlir_text" in vars(kind):
      def mlir_text(self, *args, _original=kind.mlir_text, **kwargs):
        lines = _original(self, *args, **kwargs).splitlines()
        with open(sys.argv[1]) as source:
          moved = len(source.read().splitlines())
        ends = [line.strip() and not line.endswith("{") and "loc(" not in line for line in lines]
        return "".join(
          f'{line} loc("{sys.argv[1]}":{moved}:{n})\\n' if end else f"{line}\\n"
          for n, (line, end) in enumerate(zip(lines, ends))
        )
      kind.mlir_text = mlir_text


_locate()
""")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
    monkeypatch.setenv("PTOAS_BIN", str(home / "bin" / "ptoas"))
    monkeypatch.setenv("PYTHONPATH", str(home / "python"))
    return home


@pytest.mark.parametrize("name", ["vector_add", "three_kernels"])
def test_a_comment_in_an_example_runs_the_frontend_alone_though_all_locations_move(
    name: str, locating: Path, tool_log: ToolLog, tmp_path: Path
) -> None:
    source = (EXAMPLES / f"{name}.py").read_text()
    commented = source.replace("\n", "\n# a comment\n", 1)
    texts = []
    for text in (source, commented):
        names = pto_toolchain.parse_pto_kernel_names(text)
        pto_toolchain.compile_ptodsl_to_pto(text, names, str(tmp_path / "k.py"), str(tmp_path / "k.pto"))
        texts.append((tmp_path / "k.pto").read_text())
    assert texts[0] != texts[1], "the locations do not move, so this test would prove nothing"
    tool_log.path.unlink()

    with CompileCache() as cache:
        first = cache.compile(source)
        second = cache.compile(commented)
    assert (first.origin, second.via) == ("compiled", "pto")
    assert first.aibin == second.aibin
    assert [tool_log.count(tool) for tool in ("frontend", "ptoas", "bisheng")] == [2, 1, 1]


def test_with_a_debug_flag_moved_locations_are_compiled_again(locating: Path, tool_log: ToolLog) -> None:
    source = (EXAMPLES / "vector_add.py").read_text()
    with CompileCache() as cache:
        results = [cache.compile(text, flags=["-g"]) for text in (source, f"# a comment\n{source}", source)]
    assert [result.via for result in results] == [None, None, "source"]
    assert tool_log.count("ptoas") == 2


@pytest.mark.usefixtures("toolchain")
@pytest.mark.parametrize("example", ["vector_add", "handwritten_softmax"])
def test_a_comment_added_to_an_example_is_a_hit_of_the_lowered_text(example: str, tool_log: ToolLog) -> None:
    source = (EXAMPLES / f"{example}.py").read_text()
    with CompileCache() as cache:
        cache.compile(source)
    with CompileCache() as cache:
        result = cache.compile(f"{source}\n# a comment\n")
    assert (result.origin, result.via) == ("local", "pto")
    assert [tool_log.count(tool) for tool in ("frontend", "ptoas", "bisheng")] == [2, 1, 1]
