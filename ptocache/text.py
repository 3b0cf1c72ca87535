"""Numbers and foreign texts as people read them."""

from __future__ import annotations


def bytes_text(size: float) -> str:
    """A size in bytes, in the largest unit that leaves at least one: `17.2 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def seconds_text(seconds: float) -> str:
    """A length of time in seconds, with three digits that matter: `0.8 ms`, `2.31 s`, `4 min 10 s`, `3 h 5 min`."""
    if seconds < 0.1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def short_bytes(size: float) -> str:
    """The same as `bytes_text` in at most six letters, for a column: `17.2K`."""
    for unit in ("B", "K", "M", "G"):
        if size < 999.95:
            return f"{size:.0f}B" if unit == "B" else f"{size:.1f}{unit}"
        size /= 1024
    return f"{size:.1f}T"


def short_seconds(seconds: float) -> str:
    """A length of time in at most four letters, for a column: `38s`, `5m`, `3h`, `40d`, `3y`."""
    for most, length, unit in ((60, 1, "s"), (3600, 60, "m"), (86400, 3600, "h"), (365 * 86400, 86400, "d")):
        if seconds < most:
            return f"{max(seconds, 0) // length:.0f}{unit}"
    return f"{seconds // (365 * 86400):.0f}y"


def printable(text: str, kept: str = "") -> str:
    """A foreign text whose control characters do nothing to a terminal: they are written as escapes.

    Args:
        text: the text.
        kept: those that stay, such as line breaks.
    """
    import re  # numbers do not need it

    # And those that turn the direction of writing, with which a line can be made to look like another one.
    return re.sub(
        f"[^{kept} -~\\xa0-\U0010ffff]|[\u200e\u200f\u202a-\u202e\u2066-\u2069]",
        lambda found: repr(found[0])[1:-1],
        text,
    )


def plural(count: int, word: str) -> str:
    """A count with its noun: `1 entry`, `2 entries`, `2 keys`."""
    if count == 1:
        return f"1 {word}"
    return f"{count} {word[:-1] + 'ies' if word.endswith('y') and word[-2] not in 'aeiou' else word + 's'}"
