"""Finds headers where clang would.

`#include "x"` looks in the directory of the file that says so, then where `-iquote`, `-I` and `CPATH` lead, then where
`-isystem`, `C_INCLUDE_PATH` and `CPLUS_INCLUDE_PATH` lead, then in the `include` directory of the install, then where
`-idirafter` leads. `#include <x>` leaves out the first two.

The headers of the C and C++ standard libraries are built in: they are found where no directory has them, and are no
files. The install has stand-ins for those of CANN's headers that TileLang and common kernels ask for, and no others.
"""

from __future__ import annotations

import os

from .install import ROOT

INCLUDE = os.path.join(ROOT, "include")
"""Where the install has its headers. They are the system's, as are those that `-isystem` and its like lead to."""

_OF_C = """
    assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdbool
    stddef stdint stdio stdlib string tgmath time uchar wchar wctype
"""
_OF_C_ALONE = "stdatomic.h stdnoreturn.h threads.h"
_OF_CPP = """
    algorithm any array atomic barrier bit bitset charconv chrono codecvt compare complex concepts condition_variable
    coroutine deque exception execution expected filesystem format forward_list fstream functional future generator
    initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map mdspan memory
    memory_resource mutex new numbers numeric optional ostream print queue random ranges ratio regex scoped_allocator
    semaphore set shared_mutex source_location span sstream stack stdexcept stdfloat stop_token streambuf string
    string_view strstream syncstream system_error thread tuple type_traits typeindex typeinfo unordered_map
    unordered_set utility valarray variant vector version
"""
STANDARD = frozenset(
    [
        *(f"{name}.h" for name in _OF_C.split()),
        *(f"c{name}" for name in _OF_C.split()),
        *_OF_C_ALONE.split(),
        *_OF_CPP.split(),
    ]
)
"""The headers of the standard libraries."""


class Found:
    """A header that was found: its path, whether it is one of the system's, and where in the chain it was, or -1."""

    __slots__ = ("number", "path", "system")

    def __init__(self, path: str, *, system: bool, number: int = -1) -> None:
        self.path = path
        self.system = system
        self.number = number


class Search:
    """Where headers are looked for.

    Attributes:
        quoted: the directories for names in quotes only.
        chain: the directories for all names, each with whether its headers are the system's.
    """

    def __init__(self, quoted: list[str], angled: list[str], system: list[str], after: list[str]) -> None:
        """Put the directories in order: those that options name, in between those of the environment.

        Args:
            quoted: from `-iquote`.
            angled: from `-I`.
            system: from `-isystem`.
            after: from `-idirafter`.
        """
        self.quoted = quoted
        system = [*system, *_listed("C_INCLUDE_PATH"), *_listed("CPLUS_INCLUDE_PATH"), INCLUDE, *after]
        self.chain = [(place, False) for place in [*angled, *_listed("CPATH")]]
        self.chain += [(place, True) for place in system]

    def find(self, name: str, asks: Found, *, quotes: bool, after: int = -1) -> Found | None:
        """Look for a header.

        Args:
            name: as it was written.
            asks: the file that it was written in. What lies beside a header of the system is one too.
            quotes: whether it was written in quotes.
            after: the place in the chain behind which to look; all of them if it is -1.
        """
        beside: list[str] = []
        if os.path.isabs(name):
            beside = [""]
        elif quotes and after < 0:
            beside = [os.path.dirname(asks.path) or ".", *self.quoted]
        for place in beside:
            path = os.path.join(place, name)
            if os.path.isfile(path):
                return Found(path, system=asks.system)
        for number, (place, system) in enumerate(self.chain):
            path = os.path.join(place, name)
            if number > after and os.path.isfile(path):
                return Found(path, system=system, number=number)
        return None


def _listed(variable: str) -> list[str]:
    """The directories in an environment variable; an empty one is the current one, as with clang."""
    value = os.environ.get(variable)
    return [place or "." for place in value.split(os.pathsep)] if value else []
