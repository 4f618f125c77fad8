"""The choice of a schedule, its options, and how it travels in the offset."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_mjoin.config import Options
from spark_mjoin.errors import OptionError
from spark_mjoin.model import JoinSpec, Schedule, Settings
from spark_mjoin.planner.graph import plan_join
from spark_mjoin.planner.plan import Plan
from spark_mjoin.planner.scheduling import QUOTA_ROWS, choose, render

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
        assert choice.reason == "nothing is known of the inputs that speaks for turns"


def test_priority_goes_by_expected_rows() -> None:
    spec, settings = given(streamScheduling="Priority")
    assert choose(spec, settings).schedule == Schedule("priority", (0, 1, 2), (QUOTA_ROWS,) * 3)
    choice = choose(spec, settings, [500.0, 0.0, 20.0])
    assert choice.schedule.order == (2, 0, 1), "and an input of which nothing is known is last"
    assert choice.reason == "option 'streamScheduling' says so; c, a, b: fewer rows are expected of the first"


def test_the_order_stays_while_inputs_are_nearly_alike() -> None:
    spec, settings = given(streamScheduling="priority")
    before = Schedule("priority", (2, 0, 1), (1, 1, 1))
    assert choose(spec, settings, [10.0, 30.0, 19.0], before).schedule.order == (2, 0, 1)
    assert choose(spec, settings, [10.0, 30.0, 21.0], before).schedule.order == (0, 2, 1)


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
            "options 'streamScheduling' = 'random' and 'window' do not go together: a window in rows counts arrivals",
        ),
        (
            {"streamScheduling": "priority", "source__b__window": "10 rows"},
            "options 'streamScheduling' = 'priority' and 'source.b.window' do not go together",
        ),
    ],
)
def test_mistakes(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        given(**options)


def test_windows_in_rows_are_taken_as_they_come() -> None:
    for options in ({}, {"streamScheduling": "sequential"}):
        assert choose(*given(window="10 rows", **options)).schedule == Schedule()


def test_in_the_offset() -> None:
    plain = Plan((0, 1, 2))
    assert plain.to_json(3) == {}
    for schedule in (Schedule("priority", (1, 0, 2), (3, 2, 1)), Schedule("random", (), (9, 9, 9))):
        plan = replace(plain, schedule=schedule)
        assert Plan.from_json(json.loads(json.dumps(plan.to_json(3))), 3) == plan
        assert plan.of_partition(0, 1).schedule == schedule


def test_in_words() -> None:
    assert render(Schedule(), "abc") == "sequential"
    assert render(Schedule("priority", (1, 0, 2), (3, 2, 1)), "abc") == "priority: b 2, a 3, c 1"
    assert render(Schedule("random", (), (4, 4, 4)), "abc") == "random: a 4, b 4, c 4"
