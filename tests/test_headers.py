"""The headers that a compilation read: how they are named, and when they are still the same."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ptocache.digests import Digests
from ptocache.headers import Headers, all_files, read_dependencies, split_directories
from ptocache.inputs import ABSENT, FILE, VARIABLE, Input, Inputs, Unstable, decode_inputs, encode_inputs


class TestDirectories:
    def test_they_are_taken_out_and_their_options_stay(self) -> None:
        options = ["-O2", "-I/a", "-DX=1", "-isystem", "/b", "-I", "/c", "-mllvm", "-x"]
        kept, directories = split_directories(options)
        assert kept == ["-O2", "-I", "-DX=1", "-isystem", "-I", "-mllvm", "-x"]
        assert directories == ["/a", "/c", "/b"]

    def test_they_are_in_the_order_in_which_clang_looks(self) -> None:
        options = ["-idirafter", "/last", "-isystem/system", "-I/first", "-iquote", "/quotes", "-I/second"]
        assert split_directories(options)[1] == ["/quotes", "/first", "/second", "/system", "/last"]

    def test_where_they_are_does_not_show_and_how_many_there_are_does(self) -> None:
        here = split_directories(["-I/home/a/tilelang/src", "-O2"])[0]
        there = split_directories(["-I", "/opt/tilelang/src", "-O2"])[0]
        assert here == there != split_directories(["-I/x", "-I/y", "-O2"])[0]

    @pytest.mark.parametrize("word", ["-include", "-isysroot", "-imacros", "-i", "-Dx=-I/a", "--include=x", "-L/a"])
    def test_other_options_are_left_alone(self, word: str) -> None:
        assert split_directories([word, "/value"]) == ([word, "/value"], [])

    def test_a_relative_one_is_where_the_compiler_looks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert split_directories(["-Iinclude", "-I.", "-I../x"])[1] == [
            str(tmp_path / "include"),
            str(tmp_path),
            str(tmp_path.parent / "x"),
        ]

    @pytest.mark.parametrize("options", [["-I"], ["-I", ""], ["-isystem"]])
    def test_an_option_without_a_value_names_none(self, options: list[str]) -> None:
        assert split_directories(options) == ([options[0]], [])

    def test_no_options(self) -> None:
        assert split_directories([]) == ([], [])


def quoted(name: str) -> str:
    """A file's name in a dependency file, as clang writes it (`PrintFilename` in DependencyFile.cpp)."""
    written = ""
    for position, character in enumerate(name):
        if character == "#":
            written += "\\"
        elif character == " ":
            before = name[:position]
            written += "\\" * (len(before) - len(before.rstrip("\\")) + 1)
        elif character == "$":
            written += "$"
        written += character
    return written


class TestDependencyFiles:
    def read(self, tmp_path: Path, text: str) -> list[str]:
        path = tmp_path / "kernel.d"
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        return read_dependencies(str(path))

    def test_the_source_is_left_out(self, tmp_path: Path) -> None:
        assert self.read(tmp_path, "k.o: /t/k.asc /a/x.h /b/y.h\n") == ["/a/x.h", "/b/y.h"]

    def test_a_source_alone(self, tmp_path: Path) -> None:
        assert self.read(tmp_path, "k.o: k.asc\n") == []

    def test_many_lines(self, tmp_path: Path) -> None:
        names = [f"/templates/{number}.h" for number in range(500)]
        assert self.read(tmp_path, "k.o: \\\n  k.asc" + "".join(f" \\\n  {name}" for name in names) + "\n") == names

    @pytest.mark.parametrize(
        ("written", "name"),
        [
            ("/a\\ b/c\\ d.h", "/a b/c d.h"),
            ("/a\\#b.h", "/a#b.h"),
            ("/a$$b.h", "/a$b.h"),
            ("/c:/x.h", "/c:/x.h"),
            ("/a:\\ b/x.h", "/a: b/x.h"),
            ("/a\\b.h", "/a\\b.h"),
            ("/a\\\\\\ b.h", "/a\\ b.h"),
            ("/ü/x.h", "/ü/x.h"),
            ("/\udcff.h", "/\udcff.h"),
            ("/a\u00a0b/x.h", "/a\u00a0b/x.h"),
            ("/a\u2003b/x.h", "/a\u2003b/x.h"),
            ("/a\x0bb/\x1cx.h", "/a\x0bb/\x1cx.h"),
        ],
    )
    def test_quoting(self, tmp_path: Path, written: str, name: str) -> None:
        assert self.read(tmp_path, f"k.o: k.asc {written} /z.h\n") == [name, "/z.h"]

    @given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r\t/")), max_size=4))
    @example(["a b", "\\ ", " #", "$ $"])
    def test_whatever_clang_writes_is_read(self, tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
        # A backslash at the end of a name cannot be told from one that quotes the space behind it.
        names = [f"/r/{word}.h" for word in words]
        text = "k.o: " + " \\\n  ".join(["/t/k.asc", *map(quoted, names)]) + "\n"
        assert self.read(tmp_path_factory.getbasetemp(), text) == names

    def test_a_target_with_colons_and_spaces(self, tmp_path: Path) -> None:
        assert self.read(tmp_path, "/t:1/a:\\ b/k.o: k.asc /x.h\n") == ["/x.h"]

    def test_relative_names_are_where_the_compiler_ran(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "sub").mkdir()
        assert self.read(tmp_path, "k.o: k.asc x.h ./sub/../y.h\n") == [str(tmp_path / "x.h"), str(tmp_path / "y.h")]

    @pytest.mark.parametrize("text", ["", "garbage", "\0\1\2", "a b c\n", "k.o\n"])
    def test_what_is_no_list_is_not_trusted(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(Unstable, match="not a list"):
            self.read(tmp_path, text)

    def test_a_missing_one_is_not_trusted(self, tmp_path: Path) -> None:
        with pytest.raises(Unstable, match="left no list"):
            read_dependencies(str(tmp_path / "nothing"))

    def test_a_directory_is_not_trusted(self, tmp_path: Path) -> None:
        with pytest.raises(Unstable, match="left no list"):
            read_dependencies(str(tmp_path))


class Tree:
    """Directories of headers below a place, which is where the compiler looks."""

    def __init__(self, place: Path, *directories: str) -> None:
        self.place = place
        self.directories = directories or ("a", "b")
        for name in self.directories:
            (place / name).mkdir(parents=True, exist_ok=True)

    @property
    def headers(self) -> Headers:
        """As another process would look at them."""
        return Headers([str(self.place / name) for name in self.directories], Digests())

    def write(self, name: str, text: str = "int x;\n") -> str:
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def inputs(self, *names: str) -> Inputs:
        """What a compilation read that begins now and took these files."""
        return self.headers.inputs([str(self.place / name) for name in names], begin())

    def unchanged(self, inputs: Inputs) -> bool:
        data = encode_inputs(inputs)
        is_unchanged = self.headers.unchanged(data)
        assert is_unchanged == (self.headers.changed(inputs) == [])
        return is_unchanged


def begin() -> int:
    """The time, when it is later than that of any file."""
    time.sleep(0.02)
    return time.time_ns()


def files(inputs: Inputs) -> list[str]:
    return [item.name for item in inputs if item.kind == FILE]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "here")


class TestNames:
    def test_a_name_is_below_the_directory_that_was_searched(self, tree: Tree) -> None:
        tree.write("a/x.h")
        tree.write("b/sub/y.h")
        assert files(tree.inputs("a/x.h", "b/sub/y.h")) == ["sub/y.h", "x.h"]

    def test_two_places_give_the_same_inputs(self, tree: Tree, tmp_path: Path) -> None:
        there = Tree(tmp_path / "else where/deeper", "a", "b")
        for place in (tree, there):
            place.write("a/x.h")
            place.write("b/y.h", "int y;\n")
        inputs = tree.inputs("a/x.h", "b/y.h")
        assert inputs == there.inputs("b/y.h", "a/x.h", "a/x.h")
        assert str(tmp_path) not in str(inputs)
        assert there.unchanged(inputs)

    def test_a_directory_is_no_other_one_that_begins_with_its_name(self, tmp_path: Path) -> None:
        tree = Tree(tmp_path, "inc", "include")
        tree.write("include/x.h")
        assert files(tree.inputs("include/x.h")) == ["x.h"]

    def test_slashes_at_the_end_do_not_matter(self, tmp_path: Path) -> None:
        (tmp_path / "x.h").write_text("")
        headers = Headers([f"{tmp_path}//", str(tmp_path)], Digests())
        assert files(headers.inputs([str(tmp_path / "x.h")], begin())) == ["x.h"]

    def test_one_in_no_directory_has_its_whole_path(self, tree: Tree) -> None:
        path = tree.write("elsewhere/x.h")
        inputs = tree.inputs("elsewhere/x.h")
        assert files(inputs) == [f"<root>{path}"]
        assert tree.unchanged(inputs)
        tree.write("elsewhere/x.h", "int y;\n")
        assert not tree.unchanged(inputs)

    def test_a_directory_in_a_directory_is_named_by_the_first(self, tmp_path: Path) -> None:
        tree = Tree(tmp_path, "a", "a/b")
        tree.write("a/b/x.h")
        inputs = tree.inputs("a/b/x.h")
        assert files(inputs) == ["b/x.h"]
        assert tree.unchanged(inputs)

    def test_no_headers_are_no_inputs(self, tree: Tree) -> None:
        assert tree.inputs() == ()
        assert tree.headers.unchanged(b"")

    def test_names_that_are_no_utf8(self, tmp_path: Path) -> None:
        tree = Tree(tmp_path, "a")
        (tmp_path / "a" / os.fsdecode(b"\xff.h")).write_text("")
        inputs = tree.inputs("a/" + os.fsdecode(b"\xff.h"))
        assert decode_inputs(encode_inputs(inputs)) == inputs
        assert tree.unchanged(inputs)


class TestChanges:
    @pytest.fixture
    def inputs(self, tree: Tree) -> Inputs:
        tree.write("b/x.h", "int x;\n")
        tree.write("b/sub/y.h", "int y;\n")
        return tree.inputs("b/x.h", "b/sub/y.h")

    def test_the_same_headers_are_unchanged(self, tree: Tree, inputs: Inputs) -> None:
        assert tree.unchanged(inputs)

    def test_a_changed_one_is_noticed_and_changed_back_it_is_the_same_again(self, tree: Tree, inputs: Inputs) -> None:
        tree.write("b/sub/y.h", "int z;\n")
        assert not tree.unchanged(inputs)
        assert files(tuple(tree.headers.changed(inputs))) == ["sub/y.h"]
        tree.write("b/sub/y.h", "int y;\n")
        assert tree.unchanged(inputs)

    def test_times_do_not_matter(self, tree: Tree, inputs: Inputs) -> None:
        os.utime(tree.place / "b/x.h", (0, 0))
        assert tree.unchanged(inputs)

    def test_one_that_is_gone_is_noticed(self, tree: Tree, inputs: Inputs) -> None:
        (tree.place / "b/x.h").unlink()
        assert not tree.unchanged(inputs)

    def test_one_that_becomes_a_directory_is_noticed(self, tree: Tree, inputs: Inputs) -> None:
        (tree.place / "b/x.h").unlink()
        (tree.place / "b/x.h").mkdir()
        assert not tree.unchanged(inputs)

    def test_one_that_appears_earlier_in_the_search_order_is_noticed(self, tree: Tree, inputs: Inputs) -> None:
        tree.write("a/x.h", "int other;\n")
        assert not tree.unchanged(inputs)

    @pytest.mark.parametrize(
        ("includes", "read", "appears"),
        [
            ('#include "x.h"', ["a/x.h"], "b/sub/x.h"),  # beside the file that asks is looked first
            ('  #  include "deep/x.h"', ["a/deep/x.h"], "b/sub/deep/x.h"),
            ("#include <x.h>", ["system/x.h"], "b/x.h"),
            ('#if __has_include("x.h")\n#include "x.h"\n#endif', [], "b/sub/x.h"),
            ("#if __has_include(<x.h>)\n#include <x.h>\n#endif", [], "a/x.h"),
        ],
    )
    def test_one_that_hides_what_a_header_asked_for_is_noticed(
        self, tree: Tree, includes: str, read: list[str], appears: str
    ) -> None:
        tree.write("b/sub/asks.h", f"#pragma once\n{includes}\n")
        for name in read:
            tree.write(name)
        inputs = tree.inputs("b/sub/asks.h", *read)
        assert tree.unchanged(inputs)
        tree.write(appears, "int other;\n")
        assert not tree.unchanged(inputs)
        (tree.place / appears).unlink()
        assert tree.unchanged(inputs)

    def test_one_that_appears_later_makes_no_difference(self, tmp_path: Path) -> None:
        tree = Tree(tmp_path, "a", "b")
        tree.write("a/x.h")
        inputs = tree.inputs("a/x.h")
        tree.write("b/x.h", "int other;\n")
        assert tree.unchanged(inputs)

    def test_a_move_to_another_directory_with_the_same_content_is_none(self, tree: Tree, inputs: Inputs) -> None:
        shutil.move(tree.place / "b/x.h", tree.place / "a/x.h")
        assert tree.unchanged(inputs)

    def test_directories_in_another_order_are_noticed(self, tree: Tree, tmp_path: Path) -> None:
        tree.write("a/x.h", "int a;\n")
        tree.write("b/x.h", "int b;\n")
        inputs = tree.inputs("a/x.h")
        assert tree.unchanged(inputs)
        assert not Tree(tree.place, "b", "a").unchanged(inputs)

    def test_the_last_version_of_one_that_is_written_at_once_counts(self, tree: Tree, inputs: Inputs) -> None:
        """Within a tick of the clock, with the same size: nothing but the content tells."""
        headers = tree.headers
        for text in ("int a;\n", "int b;\n") * 20:
            tree.write("b/x.h", text)
            assert not headers.unchanged(encode_inputs(inputs))
        tree.write("b/x.h", "int x;\n")
        assert headers.unchanged(encode_inputs(inputs))


class TestUnstable:
    def test_one_that_changes_while_the_compiler_runs(self, tree: Tree) -> None:
        path = tree.write("a/x.h")
        started = begin()
        time.sleep(0.02)
        tree.write("a/x.h", "int y;\n")
        with pytest.raises(Unstable, match=r"x\.h changed"):
            tree.headers.inputs([path], started)

    def test_one_that_is_replaced_by_an_older_file_while_the_compiler_runs(self, tree: Tree) -> None:
        path = tree.write("a/x.h")
        other = tree.write("old.h", "int y;\n")
        os.utime(other, (0, 0))
        started = begin()
        time.sleep(0.02)
        os.replace(other, path)
        with pytest.raises(Unstable, match=r"x\.h changed"):
            tree.headers.inputs([path], started)

    def test_one_that_goes_away(self, tree: Tree) -> None:
        path = tree.write("a/x.h")
        started = begin()
        os.unlink(path)
        with pytest.raises(Unstable, match="No such file"):
            tree.headers.inputs([path], started)

    def test_one_that_another_one_hides(self, tree: Tree) -> None:
        """The compiler took it all the same, as one does that looks beside the file that includes it first."""
        tree.write("a/x.h", "int a;\n")
        path = tree.write("b/x.h", "int b;\n")
        inputs = tree.headers.inputs([path], begin())
        assert files(inputs) == ["<1>/x.h"]
        tree.write("a/x.h", "int other;\n")
        assert tree.unchanged(inputs)
        tree.write("b/x.h", "int other;\n")
        assert not tree.unchanged(inputs)

    def test_a_directory(self, tree: Tree) -> None:
        with pytest.raises(Unstable):
            tree.inputs("a")

    def test_a_pipe(self, tree: Tree) -> None:
        os.mkfifo(tree.place / "a/pipe.h")
        with pytest.raises(Unstable):
            tree.inputs("a/pipe.h")

    @pytest.mark.parametrize("way", ["link/../x.h", "link/../sub/y.h"])
    def test_a_way_through_a_link_and_back(self, tree: Tree, tmp_path: Path, way: str) -> None:
        """What the compiler read by this name is beside the link's target, not beside the link."""
        tree.write("a/x.h", "int a;\n")
        tree.write("a/sub/y.h", "int a;\n")
        tree.write("real/x.h", "int real;\n")
        tree.write("real/sub/y.h", "int real;\n")
        (tree.place / "a/link").symlink_to(tree.place / "real/sub")
        (tmp_path / "kernel.d").write_text(f"k.o: k.asc {tree.place}/a/{way}\n")
        assert (tree.place / "a" / way).read_text() == "int real;\n"
        try:
            inputs = tree.headers.inputs(read_dependencies(str(tmp_path / "kernel.d")), begin())
        except Unstable:
            return
        for name in ("real/x.h", "real/sub/y.h"):
            tree.write(name, "int changed;\n")
        assert not tree.unchanged(inputs)


class TestFromAStore:
    """What a store says of inputs may be anything; it is only ever looked for, below the directories."""

    @pytest.mark.parametrize(
        "name",
        [
            "../secret.h",
            "sub/../../secret.h",
            "./x.h",
            "sub//x.h",
            "/etc/passwd",
            "",
            ".",
            "..",
            "x.h/",
            "x.h/..",
        ],
    )
    def test_a_name_that_leads_out_is_a_change(self, tree: Tree, name: str) -> None:
        tree.write("secret.h")
        tree.write("a/x.h")
        item = Input(FILE, name, Digests().of(str(tree.place / "secret.h")).hex())
        assert tree.headers.state(item) == "?"
        assert not tree.unchanged((item,))

    @pytest.mark.parametrize("name", ["x\0.h", "x" * 5000, "x/" * 5000 + "x", "\ud800.h", "no\n.h"])
    def test_a_name_that_no_file_has_is_a_change(self, tree: Tree, name: str) -> None:
        tree.write("a/x.h")
        item = Input(FILE, name, Digests().of(str(tree.place / "a/x.h")).hex())
        assert tree.headers.changed((item,)) == [item]

    def test_other_kinds_are_changes(self, tree: Tree) -> None:
        tree.write("a/x.h")
        digest = Digests().of(str(tree.place / "a/x.h")).hex()
        for kind in (VARIABLE, "", "FILE"):
            assert tree.headers.changed((Input(kind, "x.h", digest),)) != []
        assert tree.headers.changed((Input(ABSENT, "x.h", ""),)) != []  # it is there

    @pytest.mark.parametrize("data", [b"\xff\xfe", b"file\0x.h\0", b"file\0x.h\0d", b"what\0x.h\0d\0"])
    def test_bytes_that_are_no_inputs_are_a_change(self, tree: Tree, data: bytes) -> None:
        tree.write("a/x.h")
        assert not tree.headers.unchanged(data)

    @given(data=st.binary(max_size=64))
    def test_no_bytes_raise(self, data: bytes) -> None:
        assert Headers(["/nowhere"], Digests()).unchanged(data) in {True, False}


class TestAllFiles:
    def test_they_are_all_there_in_a_fixed_order(self, tree: Tree) -> None:
        names = ["a/z.h", "a/sub/deep/x.h", "a/b.hpp", "b/y", "b/.hidden.h"]
        for name in names:
            tree.write(name)
        found = list(all_files([str(tree.place / "a"), str(tree.place / "b")]))
        assert sorted(found) == sorted(str(tree.place / name) for name in names)
        assert found == list(all_files([str(tree.place / "a"), str(tree.place / "b")]))

    def test_a_directory_that_is_not_there_has_none(self, tree: Tree) -> None:
        assert list(all_files([str(tree.place / "nothing")])) == []
