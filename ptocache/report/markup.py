"""HTML that cannot be broken by what is put into it: text is escaped unless it is HTML already."""

from __future__ import annotations

import html

#: Elements without an end tag.
_VOID = frozenset({"br", "col", "meta"})

#: As much of a name is shown; the longest sensible one is shorter.
_LONGEST_NAME = 160


class Html(str):
    """Text that is HTML. Whatever is made of it with `+` or `%` is plain text again, and escaped where it is used."""

    __slots__ = ()


def join(*parts: object) -> Html:
    """These parts one after the other; `None` is left out."""
    return Html("".join(_escape(part) for part in parts if part is not None))


def element(name: str, *children: object, **attributes: object) -> Html:
    """An element of HTML or SVG.

    Args:
        name: its name.
        children: what is in it; `None` is left out.
        attributes: by their names, with `_` for `-` and one at the end where the name is a word of Python's. `None`
            and `False` leave one out, `True` leaves its value out.
    """
    words = [name]
    for attribute, value in attributes.items():
        if value is None or value is False:
            continue
        written = attribute.rstrip("_").replace("_", "-")
        words.append(written if value is True else f'{written}="{_escape(str(value))}"')
    end = "" if name in _VOID else f"</{name}>"
    return Html(f"<{' '.join(words)}>{join(*children)}{end}")


def foreign(text: str) -> Html:
    """A name that is not ours, shown as it is: it is kept apart from the text around it, and not too long."""
    shown = text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"
    return element("bdi", shown)


def _escape(value: object) -> str:
    if isinstance(value, Html):
        return value
    # What cannot be seen could reorder or hide what is around it, and some of it is no valid HTML.
    text = "".join(letter if letter.isprintable() else _spelled(letter) for letter in str(value))
    return html.escape(text)


def _spelled(letter: str) -> str:
    return letter.encode("unicode_escape").decode()
