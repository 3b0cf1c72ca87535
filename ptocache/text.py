"""Numbers as people read them."""

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


def plural(count: int, word: str) -> str:
    """A count with its noun: `1 entry`, `2 entries`."""
    if count == 1:
        return f"1 {word}"
    return f"{count} {word[:-1] + 'ies' if word.endswith('y') else word + 's'}"
