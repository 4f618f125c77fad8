"""Patterns of paths and names, with the meaning that they have in Hadoop and so in Spark.

    *  ?            any characters, any one character; of one name, never a slash
    [ab] [a-c]      one of these; [^ab] and [!ab] one of all others
    {a,b}           either; may be nested, and may hold slashes
    \\*              the character itself

A path is a pattern as soon as it has one of `{}[]*?\\`, whether or not something of that very name exists. A path with
slashes inside braces is first expanded into several, which loses the backslashes inside these braces, as in Hadoop.

A name is compared through a regular expression. Hadoop's is of RE2 and this one of Python; they differ in what a
backslash before a letter or digit means, so that is an error where the name has other patterns beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_SPECIAL = frozenset("{}[]*?\\")


def is_pattern(path: str) -> bool:
    return not _SPECIAL.isdisjoint(path)


def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern of a name; ValueError when it is none."""
    parts, in_set, groups, escaped = list[str](), False, 0, ""
    characters = iter(enumerate(pattern))
    for at, c in characters:
        if c == "\\":
            _, c = next(characters, (at, ""))
            if not c:
                raise ValueError(f"the pattern '{pattern}' ends in a backslash that escapes nothing")
            escaped = c if c.isalnum() else escaped
            parts.append(re.escape(c))
        elif c == "[":
            if in_set:
                raise ValueError(f"the pattern '{pattern}' has a [ inside [ ]")
            in_set = True
            parts.append(c)
        elif c == "]":
            in_set = False
            parts.append(c)
        elif c == "!" and in_set and pattern[at - 1] == "[":
            parts.append("^")
        elif c == "^":
            parts.append(c if in_set else r"\^")
        elif c == "{":
            groups += 1
            parts.append("(?:")
        elif c == "}" and groups:
            groups -= 1
            parts.append(")")
        elif c == "," and groups:
            parts.append("|")
        elif c in "*?":
            parts.append(".*" if c == "*" else ".")
        else:
            parts.append(c if c == "-" else re.escape(c))  # a set may be open that Hadoop takes for closed: []-a]
    if in_set or groups:
        raise ValueError(f"the pattern '{pattern}' has a {'[' if in_set else '{'} that is not closed")
    if escaped:
        raise ValueError(f"the pattern '{pattern}' has a backslash before '{escaped}': remove it")
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error as e:
        raise ValueError(f"'{pattern}' is no pattern: {e}") from e


def literal(name: str) -> str | None:
    """The name that a pattern without wildcards stands for; None for one with them."""
    parts, characters = list[str](), iter(name)
    for c in characters:
        if c in "*?[{":
            return None
        if c == "\\":
            c = next(characters, "")
            if not c:
                raise ValueError(f"the pattern '{name}' ends in a backslash that escapes nothing")
        parts.append(c)
    return "".join(parts)


def expanded(path: str) -> Iterator[str]:
    """The patterns without slashes inside braces that a path stands for; ValueError when it ends in an escape."""
    found = _outer_braces_with_slash(path)
    if found is None:
        yield path
        return
    start, end = found
    for choice in _choices(path[start + 1 : end]):
        yield from expanded(path[:start] + choice + path[end + 1 :])


def _outer_braces_with_slash(path: str) -> tuple[int, int] | None:
    depth = start = 0
    slash = False
    characters = iter(enumerate(path))
    for at, c in characters:
        if c == "\\":
            if next(characters, None) is None:
                raise ValueError(f"the pattern '{path}' ends in a backslash that escapes nothing")
        elif c == "{":
            start, slash = (start, slash) if depth else (at, False)
            depth += 1
        elif c == "}" and depth:
            depth -= 1
            if not depth and slash:
                return start, at
        elif c == "/" and depth:
            slash = True
    return None


def _choices(inside: str) -> list[str]:
    """What stands between the commas of a pair of braces."""
    choices, depth = [""], 0
    characters = iter(inside)
    for c in characters:
        if c == "\\":
            choices[-1] += next(characters, "")
            continue
        depth += {"{": 1, "}": -1}.get(c, 0)
        if c == "," and not depth:
            choices.append("")
        else:
            choices[-1] += c
    return choices
