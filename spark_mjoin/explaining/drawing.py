"""Plain text: the join graph, tables, and numbers as people read them.

The graph is drawn with one line per input and one column per key, so that it grows by a line and a column at a time and
ten inputs are still readable whatever their shape is:

                k1   k2
    orders      o          an o: the input has the key
                |
    payments    o    o     a line down a column: the inputs at its ends, and at every o on the way, are equal in it
                     |
    refunds          o
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from spark_mjoin.mjoin.rendering import render
from spark_mjoin.model import InputSpec, JoinSpec
from spark_mjoin.redaction import public_value

INDENT = "  "
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_NUMBER = re.compile(r"\??|[\d.,]+(e[+-]?\d+)?%?( (bytes|[KMGT]iB|s|min|h)( a row| of .*| without a limit)?)?")


def graph(spec: JoinSpec) -> list[str]:
    """The inputs and the keys that connect them."""
    aliases = [i.alias for i in spec.inputs]
    names = [key_name(c) for c in range(len(spec.classes))]
    members = [[i for i in range(len(aliases)) if c in spec.classes_of(i)] for c in range(len(names))]
    first = max(map(len, aliases)) + 4
    cell = max(map(len, names)) + 3

    def line(label: str, marks: Sequence[str], remark: str = "") -> str:
        columns = "".join(mark.ljust(cell) for mark in marks)
        return f"{INDENT}{label.ljust(first)}{columns}{remark}".rstrip()

    lines = [line("", names)]
    for i, input in enumerate(spec.inputs):
        if i:
            lines.append(line("", ["|" if m[0] < i <= m[-1] else "" for m in members]))
        marks = ["o" if i in m else "|" if m[0] < i < m[-1] else "" for m in members]
        lines.append(line(input.alias, marks, _described(spec, input)))
    return lines


def keys(spec: JoinSpec) -> list[str]:
    """What each key of the graph consists of."""
    aliases = [i.alias for i in spec.inputs]
    lines = []
    for c, domain in enumerate(spec.classes):
        sides = [
            render(input.stored[dict(input.keys)[c]].expr, aliases) for input in spec.inputs if c in dict(input.keys)
        ]
        lines.append(f"{INDENT}{key_name(c)}: {' = '.join(sides)}  ({domain.kind})")
    return lines


def conditions(spec: JoinSpec) -> list[str]:
    """Filters of one input, and conditions over several."""
    aliases = [i.alias for i in spec.inputs]
    lines = [
        f"{INDENT}filter of {i.alias}, before a row is stored: {render(i.filter, aliases)}"
        for i in spec.inputs
        if i.filter is not None
    ]
    for residual in spec.residuals:
        over = ", ".join(aliases[i] for i in sorted(residual.inputs))
        lines.append(f"{INDENT}condition, once {over} have met: {render(residual.expr, aliases)}")
    return lines


def key_name(key_class: int) -> str:
    return f"k{key_class + 1}"


def _described(spec: JoinSpec, input: InputSpec) -> str:
    source = spec.sources[input.source]
    path = {n.lower(): v for n, v in source.options}.get("path")
    alias = "" if source.alias == input.alias.lower() else f"{source.alias}: "
    return f"{alias}{source.format}{f' {public_value(path)}' if path else ''}"


# --- tables and numbers --------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns under their heads; a column that has nothing but numbers stands on the right."""
    if not rows:
        return []
    every = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[n]) for row in every) for n in range(len(head))]
    numbers = [all(_NUMBER.fullmatch(row[n]) for row in rows) for n in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = (c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, numbers, strict=True))
        return (INDENT + "  ".join(cells)).rstrip()

    return [line(row) for row in every]


def count(value: float) -> str:
    """A number of rows, or anything else that is counted."""
    if value and value < 10:
        return f"{value:.2g}"
    return f"{value:,.0f}" if value < 1e15 else f"{value:.2e}"


def share(value: float) -> str:
    """A probability."""
    return f"{value:.3g}"


def size(value: float) -> str:
    """Bytes."""
    unit = 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.0f} {_UNITS[unit]}" if unit == 0 or value >= 100 else f"{value:.1f} {_UNITS[unit]}"


def seconds(value: float) -> str:
    """A span of time in its largest unit that gives a round number."""
    for unit, length in (("h", 3600), ("min", 60)):
        if value >= length and value % length == 0:
            return f"{value / length:g} {unit}"
    return f"{value:.3g} s"


def about(value: float) -> str:
    """A span of time in a unit in which it is neither long nor short."""
    unit, length = next(((u, n) for u, n in (("days", 86400), ("h", 3600), ("min", 60)) if value >= 2 * n), ("s", 1))
    return f"{value / length:.3g} {unit}"


def titled(title: str, *parts: Sequence[str]) -> list[str]:
    """A section; parts are set apart by an empty line."""
    out = [title]
    for part in parts:
        if part:
            out += ["", *part] if len(out) > 1 else list(part)
    return [*out, ""]
