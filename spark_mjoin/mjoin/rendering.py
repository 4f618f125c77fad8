"""Expressions as SQL, for errors, explanations and fingerprints: two that differ are never written in the same way."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spark_mjoin.mjoin.casts import DAY_INTERVAL, kind, type_name
from spark_mjoin.model import Call, Cast, Col, Expr, Lit

_INFIX = {"=", "<>", "<", "<=", ">", ">=", "<=>", "+", "-", "*", "/", "div", "%"}


def identifier(name: str) -> str:
    """A name as SQL has it: in backticks where it is not plain, so that nothing else is written in the same way."""
    plain = re.fullmatch(r"[^\W\d]\w*", name) and name.lower() not in ("null", "true", "false")
    return name if plain else "`" + name.replace("`", "``") + "`"


def qualified(alias: str, column: str) -> str:
    """A column of an input: no other column, of this or another one, is written in the same way."""
    return f"{identifier(alias)}.{identifier(column)}"


def render(expr: Expr, aliases: Sequence[str] | None = None, quoted: bool = True) -> str:
    """The expression as SQL, columns qualified when `aliases` are given.

    With `quoted` off, names and string literals are bare: so Spark names a column that has no alias.
    """

    def sub(e: Expr) -> str:
        return render(e, aliases, quoted)

    if isinstance(expr, Col):
        if not quoted:
            return expr.name if aliases is None else f"{aliases[expr.input]}.{expr.name}"
        return identifier(expr.name) if aliases is None else qualified(aliases[expr.input], expr.name)
    if isinstance(expr, Lit):
        return _literal_text(expr, quoted)
    if isinstance(expr, Cast):
        return f"CAST({sub(expr.arg)} AS {type_name(expr.type)})"
    name, args = expr.function, expr.args
    if name == "<>" and not quoted:
        return f"(NOT ({sub(args[0])} = {sub(args[1])}))"
    if name in _INFIX:
        return f"({sub(args[0])} {name} {sub(args[1])})"
    if name in ("and", "or"):
        return "(" + f" {name.upper()} ".join(map(sub, args)) + ")"
    if name == "not" and isinstance(args[0], Call) and args[0].function == "is null":
        return f"({sub(args[0].args[0])} IS NOT NULL)"
    if name in ("not", "negate"):
        return f"({'NOT' if name == 'not' else '-'} {sub(args[0])})"
    if name == "is null":
        return f"({sub(args[0])} IS NULL)"
    if name == "in":
        return f"({sub(args[0])} IN ({', '.join(map(sub, args[1:]))}))"
    if name == "like":
        escape = f" ESCAPE {sub(args[2])}" if len(args) == 3 else ""
        return f"{sub(args[0])} LIKE {sub(args[1])}{escape}"
    if name == "field" and isinstance(args[1], Lit):
        return f"{sub(args[0])}.{identifier(args[1].value) if quoted else args[1].value}"
    if name == "try_cast":
        return f"TRY_CAST({sub(args[0])} AS {type_name(args[1].type)})"  # type: ignore[union-attr]
    if name == "add_months" and isinstance(args[1], Lit):
        return f"{sub(args[0])} + INTERVAL '{args[1].value}' MONTH"
    if name == "case":
        whens = [f"WHEN {sub(c)} THEN {sub(v)}" for c, v in zip(args[0 : len(args) - 1 : 2], args[1::2], strict=True)]
        last = [f"ELSE {sub(args[-1])}"] if len(args) % 2 else []
        return " ".join(["CASE", *whens, *last, "END"])
    return f"{name}({', '.join(map(sub, args))})"


def _literal_text(literal: Lit, quoted: bool) -> str:
    if literal.value is None:
        return "NULL"
    if literal.type == DAY_INTERVAL:
        return f"INTERVAL '{literal.value // 86_400}' DAY"
    if kind(literal.type) == "duration":
        return f"INTERVAL '{literal.value}' MICROSECOND"
    if isinstance(literal.value, bytes):
        return f"X'{literal.value.hex().upper()}'"
    if isinstance(literal.value, bool):
        return str(literal.value).lower()
    if isinstance(literal.value, float) and quoted:
        return f"{literal.value!r}D"  # as Spark tells a DOUBLE from a DECIMAL
    if isinstance(literal.value, str) and quoted:
        return "'" + literal.value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return str(literal.value)
