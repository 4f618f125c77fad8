"""What a join will do, and what it has done: `spark_mjoin.explain` and `spark_mjoin.advise`.

    DataFrames ──join──> stages ──> what is shuffled (shuffles.py) ──> text
    options ──load──> JoinSpec, Settings ──> expected (expected.py) ──┐
    options ──sample the sources─────────> estimates (matching.py) ───┼──> text (explanation.py, advice.py)
    state, progress ─────────────────────> observed (observed.py) ────┘

Both only read: they write no state and start no query. Nothing heavy is imported until one of them is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

if TYPE_CHECKING:
    from spark_mjoin.doors.streams import Input, JoinOptions
    from spark_mjoin.explaining.advice import Advice
    from spark_mjoin.explaining.explanation import Explanation
    from spark_mjoin.explaining.shuffles import ExplainedJoin


@overload
def explain(
    options: Mapping[str, str],
    state: str | None = None,
    query: Any = None,
    *,
    seconds: float | None = None,
    show: bool = True,
) -> Explanation: ...


@overload
def explain(
    options: Mapping[str, Input],
    state: None = None,
    query: str | None = None,
    *,
    seconds: float | None = None,
    show: bool = True,
    on: str | Sequence[str] | None = None,
    **of_join: Unpack[JoinOptions],
) -> ExplainedJoin: ...


def explain(
    options: Mapping[str, Any],
    state: str | None = None,
    query: Any = None,
    *,
    seconds: float | None = None,
    show: bool = True,
    on: str | Sequence[str] | None = None,
    **of_join: Any,
) -> Explanation | ExplainedJoin:
    """Print how a join with these options runs and why: graph, plan, probing orders, rates, state, partitions, policy.

    options are those of `.option(...)`. `state` is the location of the state or the checkpoint, and `query` a
    StreamingQuery or one of its progresses. With one of them the text compares what was expected with what was
    observed. `seconds` is how far the forecast looks. `str()` of the result is the text; with `show=False` nothing is
    printed.

    With DataFrames by alias, and the other arguments of `spark_mjoin.join`, it prints in which stages that join runs,
    what is shuffled to each by which key, and how many bytes are expected.
    """
    from spark_mjoin.explaining import explanation

    made: Explanation | ExplainedJoin
    if any(hasattr(getattr(given, "df", given), "isStreaming") for given in options.values()):
        from spark_mjoin.explaining import shuffles

        made = shuffles.explained(options, query, on, seconds, of_join)
    elif on is not None or of_join:
        raise TypeError(f"explain: {'on' if on is not None else min(of_join)} is an argument for DataFrames by alias")
    else:
        made = explanation.explained(options, state, query, seconds)
    if show:
        print(made)
    return made


def advise(
    options: Mapping[str, Any], sample_rows: int | None = None, seconds: float | None = None, show: bool = True
) -> Advice:
    """Read the first rows of every source, at most `sample_rows` of each, and print what to expect and what to set.

    Estimates rows, rates, keys and selectivities, and from these the state and the results after `seconds`. `.options`
    of the result are the options as advised. With `show=False` nothing is printed.
    """
    from spark_mjoin.explaining import advice

    made = advice.advised(options, sample_rows, seconds)
    if show:
        print(made)
    return made
