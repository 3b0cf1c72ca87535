"""Which kernels a PTODSL source defines, read without running it."""

from __future__ import annotations

import random
import warnings
from textwrap import dedent

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ptocache.errors import SourceError
from ptocache.source import Kernel, find_kernels, has_kernel

VECTOR_ADD = '''\
from ptodsl import pto
import tilelang.contrib.ptodsl as tl

@pto.func
def helper(x: pto.i32):
  return x + 1

@pto.jit(name="main_kernel", kernel_kind="vector", target="a5", mode="explicit")
def main_kernel(A: pto.ptr(pto.f32, "gm"), B: pto.ptr(pto.f32, "gm"), n: pto.i32):
  """Add one."""
  pto.init_core()
  block = pto.cast(pto.get_block_idx(), pto.i32)
  buffer = pto.castptr(pto.const(0, dtype=pto.i64), pto.ptr(pto.ui8, "ub"))
  pto.mte_gm_ub(A, buffer, nburst=(1, 1024, 1024))
  pto.set_flag("MTE2", "V", event_id=0)
  pto.wait_flag("MTE2", "V", event_id=0)
  with pto.vecscope():
    for v in range(0, 4, 1):
      pto.vadd(buffer, float.fromhex('0x1.4p+0'), (v * 64) + 256)
  pto.mte_ub_gm(buffer, B, l2_cache="naci")
'''

HAND_WRITTEN = """\
from ptodsl import pto, scalar

@some.decorator
@pto.jit(
    name="softmax_kernel",
    target="a5",
)
@another(1)
def softmax(x: pto.ptr(pto.f32, "gm"), *, BLOCK: pto.constexpr = 64):
    @pto.simt
    def inner(): pass

@pto.jit
def bare(): ...
"""


def names(source: str) -> list[str]:
    return [kernel.name for kernel in find_kernels(dedent(source))]


def error(source: str) -> SourceError:
    with pytest.raises(SourceError) as caught:
        find_kernels(dedent(source))
    return caught.value


def kernel(prologue: str, decorator: str) -> str:
    return f"{prologue}\n@{decorator}\ndef k(): ...\n"


# What is a kernel.


def test_a_source_as_tilelang_writes_it_has_its_kernel_found():
    assert find_kernels(VECTOR_ADD) == [Kernel("main_kernel", "main_kernel", 9)]


def test_kernels_are_found_in_order_with_other_decorators_around_and_options_over_many_lines():
    assert find_kernels(HAND_WRITTEN) == [Kernel("softmax", "softmax_kernel", 9), Kernel("bare", "bare", 14)]


def test_the_order_is_that_of_the_definitions_and_not_of_the_names():
    source = "from ptodsl import pto\n" + "".join(f"@pto.jit\ndef {name}(): ...\n" for name in "zamb")
    assert names(source) == ["z", "a", "m", "b"]


def test_the_line_is_that_of_the_def_and_not_of_the_decorator():
    assert find_kernels("from ptodsl import pto\n\n@pto.jit(\n  target='a5',\n)\ndef k(): ...\n")[0].lineno == 6


@pytest.mark.parametrize(
    ("prologue", "decorator"),
    [
        ("from ptodsl import pto", "pto.jit"),
        ("from ptodsl import pto", "pto.jit()"),
        ("from ptodsl import pto", "pto.jit(target='a5')"),
        ("from ptodsl import pto as P", "P.jit"),
        ("import ptodsl.pto as pto", "pto.jit"),
        ("import ptodsl.pto as P", "P.jit(target='a5')"),
        ("import ptodsl", "ptodsl.pto.jit"),
        ("import ptodsl.pto", "ptodsl.pto.jit()"),
        ("import ptodsl as d", "d.pto.jit"),
        ("from ptodsl.pto import jit", "jit"),
        ("from ptodsl.pto import jit as J", "J(target='a5')"),
        ("from ptodsl import pto\njit = pto.jit", "jit"),
        ("from ptodsl import pto as P\njit: object = P.jit", "jit()"),
        ("from ptodsl import pto\nfirst = second = pto.jit", "first"),
        ("import ptodsl\nP = ptodsl.pto\njit = P.jit", "jit"),
        ("from ptodsl import *", "pto.jit"),
        ("try:\n  from ptodsl import pto as P\nexcept ImportError:\n  P = None", "P.jit"),
        ("if TYPE_CHECKING:\n  from ptodsl.pto import jit as J", "J"),
        ("if a:\n  pass\nelif b:\n  pass\nelse:\n  import ptodsl.pto as P", "P.jit"),
        ("with quiet():\n  from ptodsl import pto as P", "P.jit"),
        ("from ptodsl import pto\npto = pto", "pto.jit"),
        ("from numba import jit\nfrom ptodsl.pto import jit", "jit"),
    ],
)
def test_the_decorator_is_known_by_every_name_that_the_source_gives_it(prologue: str, decorator: str):
    assert names(kernel(prologue, decorator)) == ["k"]


@pytest.mark.parametrize(
    "source",
    [
        "",
        "\n\n# nothing\n",
        "x = 1\n",
        kernel("from ptodsl import pto", "pto.simt"),
        kernel("from ptodsl import pto", "pto.func"),
        kernel("from ptodsl import pto", "pto.tileop()"),
        kernel("from ptodsl import pto", "pto.jit(entry=False)"),
        kernel("from ptodsl import pto", "pto.jit(name='x', entry=False, target='a5')"),
        kernel("from numba import jit", "jit"),
        kernel("from numba import jit", "jit(nopython=True)"),
        kernel("import numba", "numba.jit"),
        kernel("import jax", "jax.jit"),
        kernel("from ptodsl.pto import jit\nfrom numba import jit", "jit"),
        kernel("from ptodsl.pto import jit\ndef jit(f): return f", "jit"),
        kernel("from ptodsl.pto import jit\njit = something()", "jit"),
        kernel("from ptodsl import pto", "pto.jit.other"),
        kernel("from ptodsl import pto", "pto.jit()(1)"),
        kernel("from ptodsl import pto", "pto.jit[0]"),
        kernel("from ptodsl import pto", "(pto.jit if a else b)"),
        "from ptodsl import pto\n@pto.jit\nclass K: ...\n",
        "from ptodsl import pto\ndef factory():\n  @pto.jit\n  def k(): ...\n  return k\n",
        "from ptodsl import pto\nclass C:\n  @pto.jit\n  def k(self): ...\n",
        "from ptodsl import pto\nif __name__ == '__main__':\n  @pto.jit\n  def k(): ...\n",
        "from ptodsl import pto\ndef k(): ...\nk = pto.jit(k)\n",
        '"""\nfrom ptodsl import pto\n@pto.jit\ndef k(): ...\n"""\n',
        "# @pto.jit\ndef k(): ...\n",
    ],
)
def test_what_is_no_kernel_is_not_taken_for_one(source: str):
    caught = error(source)
    assert "defines no kernel" in str(caught)
    assert "@pto.jit" in str(caught)
    assert caught.lineno is None


def test_a_helper_module_beside_a_kernel_is_left_out():
    source = """
        from ptodsl import pto
        @pto.jit(entry=False)
        def helper(): ...
        @pto.jit(entry=True)
        def k(): ...
    """
    assert names(source) == ["k"]


def test_kernels_in_the_main_block_do_not_clash_with_those_of_the_module():
    source = """
        from ptodsl import pto
        @pto.jit
        def k(): ...
        if __name__ == "__main__":
            @pto.jit
            def k(): ...
    """
    assert find_kernels(dedent(source)) == [Kernel("k", "k", 4)]


# What the device calls a kernel.


@pytest.mark.parametrize(
    ("options", "symbol"),
    [
        ("", "k"),
        ("target='a5'", "k"),
        ("name='other'", "other"),
        ("name='a' 'b'", "ab"),
        ("name=None", "k"),
        ("name=NAME", None),
        ("name=f'k_{n}'", None),
        ("name='a' + 'b'", None),
        ("name=5", None),
        ("**options", None),
        ("name='other', **options", "other"),
    ],
)
def test_the_symbol_is_the_name_option_or_the_python_name_or_unknown(options: str, symbol: str | None):
    source = kernel("from ptodsl import pto", f"pto.jit({options})")
    assert find_kernels(source) == [Kernel("k", symbol, 3)]


def test_two_kernels_with_one_device_name_are_refused_at_the_second():
    caught = error("""\
        from ptodsl import pto
        @pto.jit(name="same")
        def a(): ...
        @pto.jit(name="same")
        def b(): ...
    """)
    assert caught.lineno == 5
    assert "line 5" in str(caught)
    assert "'same'" in str(caught)
    assert "'a' on line 3" in str(caught)


def test_a_device_name_that_is_another_kernels_python_name_is_refused():
    caught = error("from ptodsl import pto\n@pto.jit\ndef a(): ...\n@pto.jit(name='a')\ndef b(): ...\n")
    assert caught.lineno == 5


def test_two_kernels_with_computed_names_are_left_to_the_frontend():
    source = "from ptodsl import pto\n@pto.jit(name=N)\ndef a(): ...\n@pto.jit(name=N)\ndef b(): ...\n"
    assert [kernel.symbol for kernel in find_kernels(source)] == [None, None]


# What must not be defined twice.

K = "from ptodsl import pto\n@pto.jit\ndef k(): ...\n"


@pytest.mark.parametrize(
    "again",
    [
        "@pto.jit\ndef k(): ...\n",
        "def k(): ...\n",
        "async def k(): ...\n",
        "class k: ...\n",
        "import k\n",
        "import k.part\n",
        "import other as k\n",
        "from other import k\n",
        "from other import x as k\n",
        "k = 1\n",
        "k: int = 1\n",
        "x = k = 1\n",
        "x, (k, y) = 1, (2, 3)\n",
        "[k] = [1]\n",
        "x, *k = 1, 2\n",
        "try:\n  from other import k\nexcept ImportError: pass\n",
    ],
)
def test_a_kernels_name_with_another_meaning_is_refused_where_it_gets_it(again: str):
    caught = error(K + "\n" + again)
    where = 5 + next(
        i for i, line in enumerate(again.splitlines()) if "k" in line and not line.startswith(("@", "try"))
    )
    assert caught.lineno == where
    assert f"line {where}" in str(caught)
    assert "'k'" in str(caught)


@pytest.mark.parametrize("first", ["def k(): ...", "class k: ...", "import k", "k = 1", "from other import k"])
def test_a_kernel_that_takes_over_a_name_is_refused(first: str):
    caught = error(f"from ptodsl import pto\n{first}\n@pto.jit\ndef k(): ...\n")
    assert caught.lineno == 4
    assert "line 2" in str(caught)


@pytest.mark.parametrize(
    "after",
    [
        "k = tl.finalize_mixed_kernel(k)",  # how TileLang marks a kernel that uses both kinds of core
        "k = wrap(k, other=[k])",
        "k: object",
        "k.attribute = 1",
        "k[0] = 1",
        "k(1)",
    ],
)
def test_a_kernel_may_be_wrapped_and_used(after: str):
    assert find_kernels(f"{K}{after}\n") == [Kernel("k", "k", 3)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (K, True),
        (f"{K}{K}", True),
        (f"{K}k = 1\n", True),
        ("from ptodsl import pto\n@pto.jit(entry=False)\ndef helper(): ...\n", False),
        ("from ptodsl import pto\n", False),
        (f"{K}def (", False),
        ("", False),
    ],
)
def test_a_kernel_with_a_fault_is_a_kernel(source: str, expected: bool):
    assert has_kernel(source) is expected


def test_helpers_may_be_defined_again():
    source = """
        from ptodsl import pto
        def helper(): ...
        def helper(): ...
        helper = helper
        class helper: ...
        import helper
        @pto.jit
        def k(): ...
    """
    assert names(source) == ["k"]


# What does not parse.


@pytest.mark.parametrize(
    ("source", "lineno"),
    [("def k(:\n", 1), ("x = 1\n\ny = = 2\n", 3), ("x = 1\n  y = 2\n", 2), ("x = '\n", 1), ("\nif 1:\n", 2)],
)
def test_a_syntax_error_tells_its_line(source: str, lineno: int):
    caught = error(source)
    assert caught.lineno == lineno
    assert f"line {lineno}: " in str(caught)
    assert "does not parse" in str(caught)


@pytest.mark.parametrize("source", [K + "\0", "x = '\0'\n", "x = '\ud800'\n", "\ufeff\ufeff" + K])
def test_characters_that_no_python_source_has_are_refused(source: str):
    assert "does not parse" in str(error(source))


@pytest.mark.parametrize(
    "source",
    [
        "(" * 50_000,
        "-" * 50_000 + "1",
        "1" + "+1" * 50_000,
        "lambda:" * 50_000 + "1",
        "a" + ".b" * 50_000,
        "a" + "[0]" * 50_000,
        "if 1: pass\n" + "elif 1: pass\n" * 20_000,
        "".join(f"{' ' * i}if 1:\n" for i in range(500)),
    ],
    ids=["brackets", "signs", "sums", "lambdas", "attributes", "subscripts", "elifs", "blocks"],
)
def test_a_source_nested_beyond_the_parser_is_an_error_and_not_a_crash(source: str):
    caught = error(source)  # a Python that does parse it finds no kernel
    assert "does not parse" in str(caught) or "defines no kernel" in str(caught)
    assert not str(caught).endswith(": ")


@pytest.mark.parametrize("length", [900, 1500, 2500])
def test_a_chain_of_attributes_that_python_still_parses_is_no_trouble(length: int):
    chain = "a" + ".b" * length
    try:
        assert names(f"{K}x = {chain}\n@{chain}\ndef other(): ...\n") == ["k"]
    except SourceError as refused:  # by a Python whose parser takes less
        assert "does not parse" in str(refused)  # noqa: PT017


def test_line_ends_tabs_and_form_feeds_are_pythons():
    assert find_kernels(HAND_WRITTEN.replace("\n", "\r\n")) == find_kernels(HAND_WRITTEN)
    assert find_kernels(HAND_WRITTEN.replace("\n", "\r")) == find_kernels(HAND_WRITTEN)
    assert find_kernels("from ptodsl import pto\n\x0c\n@pto.jit\ndef k():\n\tpass") == [Kernel("k", "k", 4)]


def test_names_are_unicode_in_the_normal_form_that_python_gives_attributes():
    assert find_kernels("from ptodsl import pto\n@pto.jit\ndef größe(): ...\n") == [Kernel("größe", "größe", 3)]
    assert names("from ptodsl import pto\n@pto.jit\ndef ﬁne(): ...\n") == ["fine"]


def test_a_coding_line_does_not_matter_as_the_source_is_text():
    assert names(f"# -*- coding: latin-1 -*-\n{K}") == ["k"]


# Whatever the text, the answer is kernels or a SourceError.

WORDS = """@ pto . jit ( ) name = 'x' None , entry False def k m : ... class import from ptodsl as * ** [ ] { } lambda
if else try except with return async await yield := 1 + \\ ; # " \' f'{ }' del global for in while""".split()  # noqa: SIM905
TOKENS = st.sampled_from([*WORDS, "\n", "\n ", "\t", '"""', "\\\n"])
DECORATORS = st.recursive(
    st.sampled_from(["pto", "jit", "pto.jit", "1", "None", "'x'", "..."]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([".jit", "()", "(1)", "[0]", "(name='a')", "(entry=0)", "(**x)"])).map(
            "".join
        ),
        inner.map("({})".format),
        st.tuples(inner, inner).map(lambda pair: "({} if 1 else {})".format(*pair)),
        inner.map("(y := {})".format),
        inner.map("(lambda: {})".format),
    ),
    max_leaves=6,
)


def answers(source: str) -> None:
    try:
        kernels = find_kernels(source)
    except SourceError as caught:
        assert str(caught)  # noqa: PT017
        assert caught.lineno is None or f"line {caught.lineno}" in str(caught)  # noqa: PT017 - either answer is right
    else:
        assert kernels
        assert len({kernel.name for kernel in kernels}) == len(kernels)


@given(st.lists(TOKENS, max_size=30).map(" ".join))
@example("@ pto . jit \n def k ( ) : ...")
def test_token_soup_gives_kernels_or_a_source_error(source: str):
    answers(source)
    answers(f"from ptodsl import pto\n{source}")


@given(DECORATORS)
def test_strange_decorators_give_kernels_or_a_source_error(decorator: str):
    answers(f"from ptodsl import pto\n@{decorator}\ndef k(): ...\n")


@given(st.sampled_from([VECTOR_ADD, HAND_WRITTEN, K]), st.randoms(use_true_random=False), st.integers(1, 8))
def test_damaged_sources_give_kernels_or_a_source_error(source: str, chance: random.Random, edits: int):
    text = list(source)
    for _ in range(edits):
        at = chance.randrange(len(text))
        edit = chance.choice(["delete", "insert", "swap", "cut"])
        if edit == "delete":
            del text[at : at + chance.randint(1, 10)]
        elif edit == "insert":
            text[at:at] = chance.choice(["\0", "\n", "(", "'", "@", "\\", " ", "é", "\ud800", "def k(): ...\n", "\r"])
        elif edit == "swap":
            other = chance.randrange(len(text))
            text[at], text[other] = text[other], text[at]
        else:
            del text[at:]
        text = text or [" "]
    answers("".join(text))


@given(st.text(max_size=200))
def test_any_text_gives_kernels_or_a_source_error(source: str):
    answers(source)


def test_a_warning_of_the_parser_is_no_reason_to_refuse():
    source = "from ptodsl import pto\n\nTEXT = '\\d'\n\n\n@pto.jit\ndef kernel():\n  pass\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [kernel.name for kernel in find_kernels(source)] == ["kernel"]
