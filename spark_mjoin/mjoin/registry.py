"""What a `Call` may name: operators and functions, how many arguments they take, and what runs them.

A function of SQL is one entry of `functions.SCALAR`; operators are here. `query/translate.py` says how a query writes
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_mjoin.errors import QueryError, nearest
from spark_mjoin.mjoin import arithmetic, conditionals
from spark_mjoin.mjoin.arithmetic import Value
from spark_mjoin.mjoin.functions import SCALAR
from spark_mjoin.model import Expr


@dataclass(frozen=True)
class Function:
    """How a call runs: `eager` over evaluated arguments, or `lazy` over the expressions themselves.

    When all arguments are literals, the one at `subject` becomes an array; others may have to stay literals.
    """

    fewest: int
    most: int
    eager: Callable[[Sequence[Value]], Value] | None = None
    lazy: Callable[[conditionals.Rows, Sequence[Expr]], Value] | None = None
    subject: int = 0
    strict: bool = True  # NULL where an argument is; those after it are not evaluated there
    backwards: bool = False  # evaluated from the last argument to the first: a divisor before its dividend
    is_operator: bool = False  # of two values, neither of which has to be a literal
    compares: bool = False  # by size


def _operator(
    run: Callable[[Sequence[Value]], Value], strict: bool = True, backwards: bool = False, compares: bool = False
) -> Function:
    return Function(2, 2, run, strict=strict, backwards=backwards, is_operator=True, compares=compares)


FUNCTIONS: dict[str, Function] = {
    "and": Function(1, 10_000, lazy=conditionals.both),
    "or": Function(1, 10_000, lazy=conditionals.either),
    "not": Function(1, 1, conditionals.negated),
    "=": _operator(arithmetic.equal),
    "<>": _operator(arithmetic.not_equal),
    "<": _operator(arithmetic.less, compares=True),
    "<=": _operator(arithmetic.less_equal, compares=True),
    ">": _operator(arithmetic.greater, compares=True),
    ">=": _operator(arithmetic.greater_equal, compares=True),
    "<=>": _operator(arithmetic.null_safe_equal, strict=False),
    "in": Function(2, 10_000, lazy=conditionals.among),
    "is null": Function(1, 1, conditionals.is_null),
    "+": _operator(arithmetic.add),
    "-": _operator(arithmetic.subtract),
    "*": _operator(arithmetic.multiply),
    "/": _operator(arithmetic.divide, backwards=True),
    "div": _operator(arithmetic.integer_divide, backwards=True),
    "%": _operator(arithmetic.remainder, backwards=True),
    "negate": Function(1, 1, arithmetic.negate),
    "case": Function(2, 10_000, lazy=conditionals.case),
    "if": Function(3, 3, lazy=conditionals.if_else),
    "coalesce": Function(1, 1000, lazy=conditionals.coalesce),
    "nullif": Function(2, 2, lazy=conditionals.nullif),
    "try_cast": Function(2, 2, lazy=conditionals.try_cast),
    "later by": Function(2, 2, arithmetic.later_by),
    "greatest": Function(2, 1000, arithmetic.extreme(arithmetic.greater), strict=False),
    "least": Function(2, 1000, arithmetic.extreme(arithmetic.less), strict=False),
    **{
        name: Function(
            fewest,
            most,
            run,
            subject=1 if name == "date_trunc" else 0,
            is_operator=name == "datediff",
        )
        for name, (run, fewest, most) in SCALAR.items()
    },
}


# What a query may call by these names; the rest it writes as operators, or has other names for.
NAMED = frozenset(f for f in FUNCTIONS if f.replace("_", "").isalpha()) - {
    "and", "or", "not", "in", "div", "like", "case", "if", "negate", "field", "try_cast", "add_months",
}  # fmt: skip


def unknown_function(name: str) -> QueryError:
    known = sorted(NAMED - {name.lower()})
    return QueryError(
        f"the function {name.lower()} is not supported in the join.{nearest(name, known)} Apply it downstream, on the"
        " DataFrame that the join gives"
    )
