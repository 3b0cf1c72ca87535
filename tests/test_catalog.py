"""Choosing entries: what matches, what goes with it, and what stays."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import KERNEL, numbered_kernel, run_ptocache
from test_sharing import FORK, as_user, command, key

from ptocache import CompileCache
from ptocache.errors import NotACacheError, SourceImportError
from ptocache.inputs import Input, encode_inputs
from ptocache.store.catalog import Selection, entries, facts_of, find_keys, keys_of, list_entries
from ptocache.store.entry import Entry, make_entry
from ptocache.store.local import LocalTier, pack_source
from ptocache.store.upkeep import _STORE_SECONDS, Usage, remove_chosen

DAY = 86400
OLD, NEW = "8.5.0-aa-bb", "9.0.0-cc-dd"


def made(number: int, kernel: str = "main_kernel", *, pto: bool = False, **more: Any) -> Entry:
    """An entry of an output of its own; what else is to be said of it by name."""
    facts = {"kind": "source", "kernels": [kernel], "arch": "a5", "toolchain": NEW}
    facts.update({name: more.pop(name) for name in list(more) if name in facts})
    aibin = number.to_bytes(4, "little") * more.pop("words", 1000)
    age, inputs = more.pop("age", 0), more.pop("inputs", b"")
    assert not more
    return make_entry(
        aibin,
        seconds=1.5,
        created=time.time() - age,
        facts={**facts, "pto": True} if pto else facts,
        inputs=b"" if pto else inputs,
    )


def put(tier: LocalTier, name: object, number: int, kernel: str = "main_kernel", **more: Any) -> None:
    """Store an entry as a compilation does: under a PTO key, which its output alone decides, and its source key."""
    if more.get("kind", "source") == "source":
        tier.put([key(f"pto {number}")], made(number, kernel, pto=True, **more))
    tier.put([key(name)], made(number, kernel, **more), pack_source(f"source {name}"))


def settle(tier: LocalTier) -> None:
    """Let it be an hour ago that all was stored: nothing is on its way."""
    with tier.index.transaction() as rows:
        for output, row in list(rows.all()):
            assert row is not None
            rows.change(output, row._replace(used=row.used - 3600))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def tier(directory: Path) -> Iterator[LocalTier]:
    tier = LocalTier(str(directory))
    yield tier
    tier.close()


def is_there(tier: LocalTier, name: object) -> bool:
    return LocalTier(tier.directory, readonly=True).get(key(name)) is not None


def use(tier: LocalTier, number: int, ago: float) -> None:
    path = tier.layout.output(made(number).action.sha256.hex())
    os.utime(path, (time.time() - ago, time.time() - ago))


def check_books(tier: LocalTier) -> None:
    """The index says what the files say, to the byte, and no file is left over."""
    assert tier.index.is_sound()
    with tier.index.transaction() as rows:
        known = dict(rows.all())
    names: set[str] = set()
    for output, row in known.items():
        assert row is not None
        assert row.size == tier.size_of(output, row.actions)
        names.update(row.actions)
    assert set(os.listdir(tier.layout.outputs)) == set(known)
    assert set(os.listdir(tier.layout.actions)) == names
    assert {path.name for path in Path(tier.layout.sources).glob("*")} <= names


class TestSelection:
    @pytest.mark.parametrize(
        ("selection", "is_meant"),
        [
            (Selection(), True),
            (Selection(kernel="main_*"), True),
            (Selection(kernel="MAIN_*"), False),
            (Selection(kernel="*other*"), False),
            (Selection(arch="a5"), True),
            (Selection(arch="a3"), False),
            (Selection(toolchain="9.0"), True),
            (Selection(toolchain="8"), False),
            (Selection(newer_than=2 * DAY), True),
            (Selection(newer_than=DAY / 2), False),
            (Selection(newer_than=0), False),
            (Selection(older_than=DAY / 2), True),
            (Selection(older_than=2 * DAY), False),
            (Selection(older_than=0), True),
            (Selection(unused_for=DAY / 4), True),
            (Selection(unused_for=DAY), False),
            (Selection(today={"source": OLD}), True),
            (Selection(today={"source": NEW}), False),
            (Selection(today={}), False),
            (Selection(kernel="main_*", arch="a5", older_than=DAY / 2, unused_for=1, today={"source": OLD}), True),
            (Selection(kernel="main_*", arch="a3"), False),
            (Selection(failures=True), False),
        ],
    )
    def test_all_of_it_has_to_match(self, selection: Selection, is_meant: bool) -> None:
        assert selection.matches(made(1, age=DAY).action, used=time.time() - DAY / 2) is is_meant

    def test_a_kind_whose_tools_are_not_known_is_never_stale(self) -> None:
        facts = facts_of(made(1, kind="ascendc").action)
        assert facts.is_stale({"source": OLD}) is None
        assert facts.is_stale({"ascendc": OLD}) is True

    @pytest.mark.parametrize("facts", [b"", b"{", b"[]", b"[" * 100_000, b'{"kernels": 1, "toolchain": null}'])
    def test_an_action_that_says_nothing_of_itself_is_meant_where_nothing_is_asked(self, facts: bytes) -> None:
        action = made(1, age=DAY).action._replace(facts=facts)
        assert Selection().matches(action)
        assert Selection(older_than=60).matches(action)
        for selection in (Selection(kernel="*x"), Selection(arch="a5"), Selection(today={"source": NEW})):
            assert not selection.matches(action)

    def test_a_kernel_whose_name_looks_like_the_mark_of_a_pto_key(self, tier: LocalTier) -> None:
        put(tier, 1, 1, '"pto": true')
        assert [name for name, _ in entries(tier)] == [key(1).name]


class TestEntries:
    def test_each_source_key_once_and_no_pto_key(self, tier: LocalTier) -> None:
        put(tier, "a", 1)
        put(tier, "b", 1)
        put(tier, "c", 2)
        assert {name for name, _ in entries(tier)} == {key(name).name for name in "abc"}

    def test_an_output_that_only_a_pto_key_leads_to_is_known_by_that(self, tier: LocalTier) -> None:
        put(tier, "a", 1)
        tier.put([key("pto 2")], made(2, pto=True))
        assert {name for name, _ in entries(tier)} == {key("a").name, key("pto 2").name}

    def test_what_is_listed(self, tier: LocalTier) -> None:
        put(tier, "a", 1, "attention", arch="a3", toolchain=OLD, age=DAY)
        use(tier, 1, 60)
        (row,) = list_entries(tier, Selection(), {}, {"source": NEW})
        assert row[:6] == (key("a").name, "source", ("attention",), "a3", OLD, True)
        assert (row.bytes, row.variants, row.uses, row.seconds) == (4000, 1, 0, 1.5)
        assert abs(time.time() - row.created - DAY) < 10
        assert abs(time.time() - row.used - 60) < 10

    def test_the_variants_of_a_key_are_one_row(self, tier: LocalTier) -> None:
        for number in (1, 2):
            put(tier, "a", number, inputs=encode_inputs((Input("variable", "X", str(number)),)))
        (row,) = list_entries(tier, Selection(), {}, {})
        assert (row.variants, row.bytes) == (2, 8000)

    def test_what_is_damaged_or_without_output_is_not_listed_and_not_touched(self, tier: LocalTier) -> None:
        for name in (1, 2, 3):
            put(tier, name, name)
        os.unlink(tier.layout.output(made(1).action.sha256.hex()))
        Path(tier.layout.action(key(2).name)).write_bytes(b"x")
        looking = LocalTier(tier.directory, readonly=True)
        listed = {row.key for row in list_entries(looking, Selection(), {}, {})}
        assert listed == {key(3).name, key("pto 2").name}
        assert os.path.exists(tier.layout.action(key(2).name))

    def test_keys_are_found_by_how_they_begin(self, tier: LocalTier) -> None:
        put(tier, 1, 1)
        name = key(1).name
        assert find_keys(tier, name[:6]) == find_keys(tier, name) == [name]
        assert find_keys(tier, f"{name}0") == []
        assert keys_of(tier, made(1).action.sha256.hex()) == [name, key("pto 1").name]


class TestRemoval:
    def test_what_matches_goes_with_all_that_leads_to_it(self, tier: LocalTier) -> None:
        put(tier, "a", 1, "attention_fwd")
        put(tier, "b", 2, "matmul")
        with tier.index.transaction() as rows:
            before = rows.bytes()
        removed = remove_chosen(tier, Selection(kernel="attention_*"))
        with tier.index.transaction() as rows:
            assert removed == Usage(1, before - rows.bytes())
        assert [is_there(tier, name) for name in ("a", "pto 1", "b", "pto 2")] == [False, False, True, True]
        check_books(tier)

    def test_of_an_output_that_two_keys_have_only_the_action_that_matches_goes(self, tier: LocalTier) -> None:
        put(tier, "old", 1, toolchain=OLD)
        put(tier, "new", 1, toolchain=NEW)
        settle(tier)
        assert remove_chosen(tier, Selection(toolchain="8")).entries == 1
        assert [is_there(tier, name) for name in ("old", "new", "pto 1")] == [False, True, True]
        assert not os.path.exists(tier.layout.source(key("old").name))
        check_books(tier)
        assert remove_chosen(tier, Selection(toolchain="9")).entries == 1
        assert os.listdir(tier.layout.outputs) == os.listdir(tier.layout.actions) == []
        check_books(tier)

    def test_what_is_left_is_counted_with_its_own_toolchain_and_keeps_its_place(self, tier: LocalTier) -> None:
        put(tier, "new", 1, toolchain=NEW)
        put(tier, "old", 1, toolchain=OLD)
        put(tier, "other", 2, toolchain=NEW)
        settle(tier)
        remove_chosen(tier, Selection(toolchain="8"))
        with tier.index.transaction() as rows:
            assert [group.name for group in rows.groups()] == [f"source a5 {NEW}"]
            assert next(output for output, _ in rows.all()) == made(1).action.sha256.hex()
        check_books(tier)

    def test_of_the_variants_of_a_key_only_those_that_match_go(self, tier: LocalTier) -> None:
        for number, age in ((1, DAY), (2, 0)):
            put(tier, "a", number, age=age, inputs=encode_inputs((Input("variable", "X", str(number)),)))
        assert remove_chosen(tier, Selection(older_than=3600)).entries == 1
        (action,) = tier.actions(key("a").name)
        assert action.sha256 == made(2).action.sha256
        assert tier.source(key("a").name) == "source a"
        assert os.listdir(tier.layout.outputs) == [made(2).action.sha256.hex()]

    def test_of_two_variants_with_one_output_the_other_still_leads_there(self, tier: LocalTier) -> None:
        for value, age in ((1, DAY), (2, 0)):
            put(tier, "a", 1, age=age, inputs=encode_inputs((Input("variable", "X", str(value)),)))
        settle(tier)
        remove_chosen(tier, Selection(older_than=3600))
        (action,) = tier.actions(key("a").name)
        assert time.time() - action.created < 3600
        assert is_there(tier, "pto 1")
        check_books(tier)

    def test_an_output_that_only_a_pto_key_leads_to_can_be_chosen(self, tier: LocalTier) -> None:
        tier.put([key("pto 1")], made(1, "lonely", pto=True))
        assert remove_chosen(tier, Selection(kernel="other")).entries == 0
        assert remove_chosen(tier, Selection(kernel="lonely")).entries == 1
        assert os.listdir(tier.layout.outputs) == []
        check_books(tier)

    def test_the_last_use_decides_at_the_moment_of_removal(self, tier: LocalTier) -> None:
        for number in (1, 2):
            put(tier, number, number)
            use(tier, number, 40 * DAY)
        tier.get(key(2))
        assert remove_chosen(tier, Selection(unused_for=30 * DAY)).entries == 1
        assert [is_there(tier, number) for number in (1, 2)] == [False, True]
        check_books(tier)

    def test_what_has_no_row_goes_too(self, tier: LocalTier) -> None:
        put(tier, 1, 1)
        with tier.index.transaction() as rows:
            rows.discard(made(1).action.sha256.hex())
        assert remove_chosen(tier, Selection(kernel="main_*")).entries == 1
        assert os.listdir(tier.layout.outputs) == []

    def test_a_store_that_is_on_its_way_is_waited_for(self, tier: LocalTier, monkeypatch: pytest.MonkeyPatch) -> None:
        put(tier, "old", 1, toolchain=OLD)
        put(tier, "new", 1, toolchain=NEW)
        waits: list[float] = []
        monkeypatch.setattr("ptocache.store.upkeep.time.sleep", waits.append)
        remove_chosen(tier, Selection(toolchain="8"))
        assert waits == [_STORE_SECONDS]
        assert [is_there(tier, name) for name in ("old", "new")] == [False, True]
        check_books(tier)
        settle(tier)
        remove_chosen(tier, Selection(toolchain="9"))
        assert waits == [_STORE_SECONDS]

    def test_a_foreign_directory_is_left_alone(self, directory: Path, tier: LocalTier) -> None:
        directory.mkdir()
        (directory / "thesis.tex").write_text("years of work")
        with pytest.raises(NotACacheError):
            remove_chosen(tier, Selection(kernel="*"))
        assert os.listdir(directory) == ["thesis.tex"]

    def test_where_there_is_no_directory_there_is_nothing_to_do(self, directory: Path, tier: LocalTier) -> None:
        assert remove_chosen(tier, Selection(kernel="*")) == Usage(0, 0)
        assert not directory.exists()

    def test_more_than_one_transaction_takes(self, tier: LocalTier) -> None:
        for number in range(600):
            tier.put([key(number)], made(number, f"kernel_{number % 2}", words=1))
        steps: list[tuple[int, int]] = []
        assert remove_chosen(tier, Selection(kernel="kernel_1"), lambda *step: steps.append(step)).entries == 300
        assert steps == [(256, 300), (300, 300)]
        check_books(tier)


def store_again_and_again(directory: str, until: float) -> None:
    """Store the same keys, some of which are chosen to be removed, and read them."""
    tier = LocalTier(directory)
    while time.time() < until:
        for number in range(6):
            for toolchain in (OLD, NEW):
                name, entry = f"{toolchain} {number}", made(number, toolchain=toolchain)
                tier.put([key(f"pto {number}")], made(number, pto=True, toolchain=toolchain))
                tier.put([key(name)], entry, b"")
                found = tier.get(key(name))
                assert found is None or found.aibin == entry.aibin
    tier.close()


class TestAmongOthers:
    def test_while_two_processes_store_and_read_the_same_keys(self, directory: Path, tier: LocalTier) -> None:
        until = time.time() + 3
        others = [FORK.Process(target=store_again_and_again, args=(str(directory), until)) for _ in range(2)]
        for other in others:
            other.start()
        removed = 0
        while time.time() < until:
            if directory.is_dir():
                removed += remove_chosen(tier, Selection(toolchain="8")).entries
        for other in others:
            other.join(60)
            assert other.exitcode == 0
        assert removed > 0
        remove_chosen(tier, Selection(toolchain="8"))
        assert [is_there(tier, f"{NEW} {number}") for number in range(6)] == [True] * 6
        assert [is_there(tier, f"{OLD} {number}") for number in range(6)] == [False] * 6
        assert tier.index.is_sound()
        remove_chosen(tier, Selection(toolchain="9"))
        assert os.listdir(tier.layout.outputs) == []

    def test_what_is_removed_under_a_reader_is_a_miss(self, tier: LocalTier) -> None:
        put(tier, 1, 1)
        reader = LocalTier(tier.directory)
        remove_chosen(tier, Selection(kernel="main_*"))
        assert reader.get(key(1)) is None
        put(reader, 1, 1)
        assert is_there(tier, 1)
        reader.close()

    def test_threads_of_one_process_store_meanwhile(self, tier: LocalTier) -> None:
        stop = threading.Event()
        problems: list[BaseException] = []

        def store() -> None:
            while not stop.is_set():
                with _noting(problems):
                    put(tier, "kept", 1, "kept")

        thread = threading.Thread(target=store)
        thread.start()
        for number in range(2, 12):
            put(tier, number, number)
            remove_chosen(tier, Selection(kernel="main_*"))
        stop.set()
        thread.join()
        assert problems == []
        assert is_there(tier, "kept")
        check_books(tier)


@contextlib.contextmanager
def _noting(problems: list[BaseException]) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a thread's would be lost
        problems.append(error)


# The commands.


def run(*arguments: str) -> tuple[int, str, str]:
    return as_user(None, lambda: command(*arguments))


def facts(*arguments: str) -> Any:
    status, out, err = run(*arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


@pytest.fixture
def filled(tier: LocalTier) -> LocalTier:
    """Four entries: two kernels, two archs, two toolchains, and one of AscendC."""
    put(tier, 1, 1, "attention", age=10 * DAY)
    put(tier, 2, 2, "attention", arch="a3")
    put(tier, 3, 3, "matmul", toolchain=OLD)
    put(tier, 4, 4, "matmul", kind="ascendc", toolchain="8.5.0-xx")
    use(tier, 2, 40 * DAY)
    settle(tier)
    tier.close()
    return tier


def left(tier: LocalTier) -> list[int]:
    # To read them would be to use them.
    return [number for number in range(1, 5) if os.path.exists(tier.layout.action(key(number).name))]


FILTERS = [
    (("--kernel", "att*"), [3, 4]),
    (("--kernel", "att*", "--arch", "a5"), [2, 3, 4]),
    (("--arch", "a5"), [2]),
    (("--toolchain", "8.5"), [1, 2]),
    (("--older-than", "7d"), [2, 3, 4]),
    (("--newer-than", "7d"), [1]),
    (("--unused-for", "30d"), [1, 3, 4]),
    (("--older-than", "7d", "--unused-for", "30d"), [1, 2, 3, 4]),
    (("--kernel", "*"), []),
]


class TestClear:
    @pytest.mark.parametrize(("filters", "stay"), FILTERS)
    def test_those_that_match_go(self, filled: LocalTier, filters: tuple[str, ...], stay: list[int]) -> None:
        listed = facts("clear", "--dry-run", *filters)
        assert {row["key"] for row in listed} == {key(number).name for number in range(1, 5) if number not in stay}
        assert left(filled) == [1, 2, 3, 4]
        cleared = facts("clear", "-y", *filters)
        assert list(cleared) == ["directory", "entries", "bytes"]
        assert cleared["entries"] == len(listed)
        assert bool(cleared["bytes"]) == bool(listed)
        assert left(filled) == stay
        check_books(filled)

    def test_the_dry_run_prints_the_lines_of_ls(self, filled: LocalTier) -> None:
        assert run("clear", "--dry-run", "--kernel", "att*") == run("ls", "--kernel", "att*")
        assert run("clear", "--dry-run") == run("ls")
        assert run("prune", "--dry-run", "--kernel", "att*") == run("ls", "--kernel", "att*")

    def test_a_dry_run_works_on_what_is_only_read(self, filled: LocalTier, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PTOCACHE_READONLY", "1")
        assert run("clear", "--dry-run")[1].count("\n") == 4
        status, out, err = run("clear", "-y", "--kernel", "*")
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert left(filled) == [1, 2, 3, 4]

    def test_people_read_what_went(self, filled: LocalTier, directory: Path) -> None:
        _, out, _ = run("clear", "-y", "--kernel", "att*")
        assert out.startswith("removed 2 entries, ")
        assert out.endswith(f" KiB, from {directory}\n")

    def test_without_a_toolchain_stale_is_one_line(self, filled: LocalTier, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nonexistent")
        for words in (("clear", "-y"), ("prune",), ("ls",)):
            status, out, err = run(*words, "--stale")
            assert (status, out, err.count("\n")) == (1, "", 1)
            assert "--stale: today's toolchain is not known" in err
        assert left(filled) == [1, 2, 3, 4]

    def test_what_another_toolchain_made_is_stale(self, filled: LocalTier, toolchain: Path) -> None:
        with CompileCache() as cache:
            cache.compile(KERNEL)
        assert facts("clear", "-y", "--stale")["entries"] == 3
        assert left(filled) == [4]
        with CompileCache() as cache:
            assert cache.compile(KERNEL).origin == "local"

    def test_what_was_cleared_is_compiled_again(self, toolchain: Path) -> None:
        with CompileCache() as cache:
            cache.compile(KERNEL)
            cache.compile(numbered_kernel(5).replace("main_kernel", "other"))
        assert facts("clear", "-y", "--kernel", "main_*")["entries"] == 1
        with CompileCache() as cache:
            assert cache.compile(KERNEL).origin == "compiled"
            assert cache.compile(numbered_kernel(5).replace("main_kernel", "other")).origin == "local"

    def test_a_changed_comment_keeps_what_both_sources_lead_to(self, toolchain: Path) -> None:
        with CompileCache() as cache:
            cache.compile(KERNEL)
            time.sleep(1.5)
            assert cache.compile(f"{KERNEL}# changed\n").via == "pto"
        assert facts("clear", "-y", "--older-than", "1")["entries"] == 1
        with CompileCache() as cache:
            assert cache.compile(f"{KERNEL}# changed\n").via == "source"
            assert cache.compile(KERNEL).via == "pto"

    def test_failures_go_where_they_are_named_and_stay_with_a_choice(self, toolchain: Path, directory: Path) -> None:
        bad = f"{KERNEL}\n1 / 0\n"
        with CompileCache() as cache:
            cache.compile(KERNEL)
            with pytest.raises(SourceImportError):
                cache.compile(bad)
        assert facts("clear", "-y", "--kernel", "*")["entries"] == 1
        assert len(list(directory.glob("failures/*/*"))) == 1
        with CompileCache() as cache:
            cache.compile(KERNEL)
        (failure,) = facts("clear", "--dry-run", "--failures")
        assert failure["tool"] == "frontend"
        cleared = facts("clear", "-y", "--failures")
        assert (cleared["failures"], cleared["bytes"] > 0) == (1, True)
        assert list(directory.glob("failures/*/*")) == []
        assert facts("clear", "-y", "--failures")["failures"] == 0
        assert len(facts("ls")) == 1

    def test_failures_of_a_foreign_directory_stay(self, directory: Path) -> None:
        (directory / "failures" / "0").mkdir(parents=True)
        (directory / "failures" / "0" / "mine.txt").write_text("mine")
        status, _, err = run("clear", "-y", "--failures")
        assert (status, err.count("\n")) == (1, 1)
        assert (directory / "failures" / "0" / "mine.txt").exists()

    @pytest.mark.parametrize("name", ["clear", "prune", "ls"])
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--kernel", ""), "--kernel: expected a text, found nothing"),
            (("--arch", " "), "--arch: expected a text"),
            (("--toolchain", ""), "--toolchain: expected a text"),
            (("--older-than", "soon"), "--older-than: expected a time"),
            (("--newer-than", ""), "--newer-than: expected a time"),
            (("--unused-for", "-1d"), "--unused-for"),
            (("--failures", "--kernel", "x"), "--failures goes with no other choice"),
            (("--failures", "--stale"), "--failures goes with no other choice"),
        ],
    )
    def test_wrong_use_is_one_line_and_removes_nothing(
        self, filled: LocalTier, name: str, words: tuple[str, ...], said: str
    ) -> None:
        status, out, err = run(name, *words)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert said in err
        assert left(filled) == [1, 2, 3, 4]


class TestPrune:
    def test_a_choice_goes_beside_its_usual_work(self, filled: LocalTier, directory: Path) -> None:
        (directory / "outputs" / "stray").write_bytes(b"x")
        status, out, err = run("prune", "--kernel", "att*")
        assert (status, err) == (0, "")
        assert "  2 entries that you chose\n" in out
        assert "  1 other file\n" in out
        assert left(filled) == [3, 4]
        check_books(filled)

    def test_without_a_choice_nothing_is_chosen(self, filled: LocalTier) -> None:
        assert facts("prune")["chosen"] == 0
        assert left(filled) == [1, 2, 3, 4]

    def test_json_counts_what_was_chosen(self, filled: LocalTier) -> None:
        pruned = facts("prune", "--older-than", "7d")
        assert (pruned["chosen"], pruned["expired"], pruned["bytes"] > 0) == (1, 0, True)

    def test_failures_can_be_chosen(self, toolchain: Path, directory: Path) -> None:
        with CompileCache() as cache, pytest.raises(SourceImportError):
            cache.compile(f"{KERNEL}\n1 / 0\n")
        assert facts("prune")["failures"] == 0
        assert facts("prune", "--failures")["failures"] == 1
        assert list(directory.glob("failures/*/*")) == []

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--dry-run",), "--dry-run lists what is chosen"),
            (("--size", "1GiB"), "--size is for --shared"),
            (("--shared", "--kernel", "x"), "only --older-than and --size"),
            (("--shared", "--stale"), "only --older-than and --size"),
            (("--shared", "--older-than", "1d", "--dry-run"), "only --older-than and --size"),
        ],
    )
    def test_wrong_use_is_one_line(self, filled: LocalTier, words: tuple[str, ...], said: str) -> None:
        status, out, err = run("prune", *words)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert said in err


class TestMoving:
    def test_an_archive_can_be_read_in_part(
        self, filled: LocalTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archive = str(tmp_path / "archive")
        assert facts("export", archive, "--unused-for", "30d")["moved"] == 2  # with its PTO key
        assert facts("export", archive)["moved"] == 7
        monkeypatch.setenv("PTOCACHE_DIR", str(tmp_path / "other"))
        assert facts("import", archive, "--arch", "a3")["moved"] == 2
        assert [row["arch"] for row in facts("ls")] == ["a3"]

    def test_the_help_of_each_names_the_filters(self) -> None:
        for name in ("push", "pull", "export", "import", "clear", "prune", "ls"):
            text = run_ptocache(name, "--help").stdout
            assert "--kernel GLOB" in text
            assert "--older-than AGE" in text
            assert ("--unused-for AGE" in text) == (name not in {"pull", "import"})
