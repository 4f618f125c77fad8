"""The choice of a schedule, its options, and how it travels in the offset."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_mjoin.config import Options
from spark_mjoin.driver.scheduling import QUOTA_ROWS, SMALL_QUOTA_ROWS, choose, render
from spark_mjoin.errors import OptionError
from spark_mjoin.model import JoinSpec, Schedule, Settings
from spark_mjoin.plan import Plan
from spark_mjoin.query.graph import plan_join

QUERY = "SELECT a.v FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k"
SOURCES = {f"source.{alias}.format": "parquet" for alias in "abc"}
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def given(**options: str) -> tuple[JoinSpec, Settings]:
    parsed = Options.parse({"query": QUERY, **SOURCES, **{n.replace("__", "."): v for n, v in options.items()}})
    return plan_join(parsed, [SCHEMA] * 3), parsed.settings


def test_without_a_reason_inputs_come_one_after_the_other() -> None:
    for rates in ([], [5.0, 1.0, 0.0]):
        choice = choose(*given(), rates)
        assert choice.schedule == Schedule()
        assert choice.reason == "there are no key promises, so turns gain nothing"


def test_priority_goes_by_expected_rows() -> None:
    spec, settings = given(streamScheduling="Priority")
    assert choose(spec, settings).schedule == Schedule("priority", (0, 1, 2), (QUOTA_ROWS,) * 3)
    choice = choose(spec, settings, [500.0, 0.0, 20.0])
    assert choice.schedule.order == (2, 0, 1), "and an input of which nothing is known is last"
    assert choice.reason == "option 'streamScheduling' says so; first c, a, b: fewer rows"


def test_the_order_stays_while_inputs_are_nearly_alike() -> None:
    spec, settings = given(streamScheduling="priority")
    before = Schedule("priority", (2, 0, 1), (1, 1, 1))
    assert choose(spec, settings, [10.0, 30.0, 19.0], before).schedule.order == (2, 0, 1)
    assert choose(spec, settings, [10.0, 30.0, 21.0], before).schedule.order == (0, 2, 1)


def test_without_memory_as_a_concern_promises_change_nothing() -> None:
    choice = choose(*given(source__b__unique="k", source__a__punctuation="v = 'end'"), [5.0, 100.0, 1.0])
    assert choice.schedule == Schedule()
    assert choice.reason == "large batches are fastest, and memory is not the goal"


@pytest.mark.parametrize("concern", [{"goal": "memory"}, {"memory": "64m"}])
def test_the_one_side_comes_first_and_the_many_side_need_not_be_stored(concern: dict[str, str]) -> None:
    choice = choose(*given(source__b__unique="k", **concern), [5.0, 100.0, 1.0])
    assert choice.schedule == Schedule("sequential", (1, 2, 0))
    assert choice.reason == (
        "rows of the many side need not be stored when their partner is there; first b, c, a: unique keys"
    )


def test_memory_as_the_goal_takes_small_turns_where_rows_can_leave() -> None:
    assert choose(*given(goal="memory")).schedule == Schedule(), "nothing ever leaves"
    for promise in ("unique", "clustered", "ordered"):
        everyone = {f"source__{alias}__{promise}": "k" for alias in "abc"}
        assert choose(*given(goal="memory", **everyone)).schedule.streams == "priority"
        assert set(choose(*given(goal="memory", **everyone)).schedule.quotas) == {SMALL_QUOTA_ROWS}
    windows = {"window": "9 rows", "source__a__unique": "k", "source__a__punctuation": "v = 'end'", "goal": "memory"}
    choice = choose(*given(**windows))
    assert choice.schedule == Schedule("in step", (), (SMALL_QUOTA_ROWS,) * 3)


def test_turns_are_in_step_with_the_rates_where_keys_come_in_order() -> None:
    options = {"source__a__ordered": "k", "source__b__ordered": "k", "source__c__punctuation": "v = 'end'"}
    spec, settings = given(goal="memory", schedulingQuota="1000", **options)
    choice = choose(spec, settings, [50.0, 1.0, 500.0])
    assert choice.schedule == Schedule("priority", (1, 0, 2), (100, 2, 1000))
    assert "turns in proportion to rates, since keys come in order" in choice.reason
    assert choose(spec, settings, [50.0, 0.0, 500.0]).schedule.quotas == (1000,) * 3, "not all rates are known"


def test_awaited_rows_first() -> None:
    punctuated = {"source__a__punctuation": "v = 'end'"}
    spec, settings = given(goal="memory", **punctuated)
    assert choose(spec, settings).schedule.tuples == "sequential", "punctuations are not passed on"
    assert choose(replace(spec, gives_punctuations=True), settings).schedule.tuples == "value"
    assert choose(replace(spec, gives_punctuations=True), given(**punctuated)[1]).schedule == Schedule()
    forced = choose(*given(tupleScheduling="value", **punctuated))
    assert forced.schedule == Schedule("sequential", (), (QUOTA_ROWS,) * 3, "value")
    assert forced.reason.endswith("option 'tupleScheduling' says so")


def test_quotas() -> None:
    spec, settings = given(streamScheduling="random", schedulingQuota="70")
    assert choose(spec, settings).schedule == Schedule("random", (), (70, 70, 70))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"streamScheduling": "prority"},
            r"option 'streamScheduling': unknown value 'prority'. Did you mean 'priority'",
        ),
        ({"schedulingQuota": "0"}, "option 'schedulingQuota': '0' is not a whole number of at least 1"),
        (
            {"streamScheduling": "sequential", "schedulingQuota": "5"},
            "'schedulingQuota' is the number of rows of a turn, and with 'streamScheduling' = 'sequential' there are",
        ),
        (
            {"streamScheduling": "random", "window": "10 rows"},
            "options 'streamScheduling' = 'random' and 'window' cannot be combined: a window in rows counts arrivals",
        ),
        (
            {"tupleScheduling": "value", "window": "10 rows", "source__a__unique": "k"},
            "options 'tupleScheduling' = 'value' and 'window' cannot be combined",
        ),
        ({"tupleScheduling": "value"}, "option 'tupleScheduling' is 'value', but no source makes key promises"),
        (
            {"streamScheduling": "priority", "source__b__window": "10 rows"},
            "options 'streamScheduling' = 'priority' and 'source.b.window' cannot be combined",
        ),
    ],
)
def test_mistakes(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        given(**options)


def test_windows_in_rows_let_inputs_go_in_step() -> None:
    assert choose(*given(window="1600 rows")).schedule == Schedule("in step", (), (QUOTA_ROWS,) * 3)
    assert choose(*given(source__b__window="80 rows")).schedule.streams == "in step"
    assert choose(*given(window="1600 rows", schedulingQuota="7")).schedule.quotas == (7, 7, 7)
    assert choose(*given(window="1600 rows", memory="1g")).schedule.quotas == (SMALL_QUOTA_ROWS,) * 3
    assert choose(*given(window="10 rows", streamScheduling="sequential")).schedule == Schedule()


def test_in_the_offset() -> None:
    plain = Plan((0, 1, 2))
    assert plain.to_json(3) == {}
    for schedule in (Schedule("priority", (1, 0, 2), (3, 2, 1)), Schedule("random", (), (9, 9, 9), "value")):
        plan = replace(plain, schedule=schedule)
        assert Plan.from_json(json.loads(json.dumps(plan.to_json(3))), 3) == plan
        assert plan.for_partition(0).schedule == schedule


def test_in_words() -> None:
    assert render(Schedule(), "abc") == "sequential"
    assert render(Schedule("priority", (1, 0, 2), (3, 2, 1)), "abc") == "priority: b 2, a 3, c 1"
    assert render(Schedule("sequential", (1, 0, 2)), "abc") == "sequential: b, a, c"
    assert render(Schedule("random", (), (4, 4, 4)), "abc") == "random: a 4, b 4, c 4"
