"""Windows as options: what is accepted, what every mistake is answered with, and how watermarks move."""

from dataclasses import replace

import pyarrow as pa
import pytest

from spark_mjoin.config import Options
from spark_mjoin.config.source_options import parse_window
from spark_mjoin.driver.watermarks import advance
from spark_mjoin.errors import OptionError
from spark_mjoin.mjoin.windows import horizons
from spark_mjoin.model import Expiry, JoinSpec, Window
from spark_mjoin.plan import Plan
from spark_mjoin.quantities import parse_duration
from spark_mjoin.query import tree
from spark_mjoin.query.fingerprint import describe, differences
from spark_mjoin.query.graph import plan_join
from spark_mjoin.schema import TIMESTAMP, TIMESTAMP_NTZ

MINUTE = 60_000_000
SCHEMA = pa.schema([("k", pa.int64()), ("At", TIMESTAMP), ("local", TIMESTAMP_NTZ), ("v", pa.string())])
SOURCES = {"source.a.format": "parquet", "source.b.format": "parquet"}
TIMED = {
    "window": "10 minutes",
    "source.a.timestamp": "at", "source.a.watermark": "1 minute",
    "source.b.timestamp": "at", "source.b.watermark": "2 minutes",
}  # fmt: skip
QUERY = "SELECT a.k, a.v FROM a JOIN b ON a.k = b.k"


def planned(query: str = QUERY, **options: str) -> JoinSpec:
    given = {name.replace("__", "."): value for name, value in options.items()}
    parsed = Options.parse({"query": query, **SOURCES, **given})
    return plan_join(parsed, [SCHEMA] * len(parsed.sources))


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("10 minutes", 10 * MINUTE),
        ("1 hour 30 minutes", 90 * MINUTE),
        ("interval 2 days", 2 * 24 * 60 * MINUTE),
        ("1 week", 7 * 24 * 60 * MINUTE),
        ("5 SECONDS", 5_000_000),
        ("250 milliseconds", 250_000),
        ("0 seconds", 0),
    ],
)
def test_durations(text: str, micros: int) -> None:
    assert parse_duration(text, "x") == micros


@pytest.mark.parametrize("text", ["", "10", "minutes", "1 month", "-1 minute", "1.5 hours", "10 minutes ago", "9" * 30])
def test_no_durations(text: str) -> None:
    with pytest.raises(OptionError, match=r"option 'x': .* is not a duration such as '10 minutes'"):
        parse_duration(text, "x")


def test_windows_as_they_are_written() -> None:
    assert parse_window("none", "window") is None
    rows, time = parse_window("10000 rows", "window"), parse_window("10 minutes", "window")
    assert (rows.size, rows.in_rows, time.size, time.in_rows) == (10_000, True, 10 * MINUTE, False)
    for text in ("", "0 rows", "0 minutes", "ten rows", "10", "rows"):
        with pytest.raises(OptionError, match=r"option 'source.a.window': '.*' is not a window: write a time such as"):
            parse_window(text, "source.a.window")


def test_an_input_stores_what_its_window_is_measured_on() -> None:
    spec = planned(**TIMED, **{"source.b.window": "5 rows"})
    a, b = spec.inputs
    assert a.window == Window(10 * MINUTE, False, a.time) and a.stored[a.time].name == "At"
    assert b.window == Window(5, True, b.window.position) and b.window.position != b.time
    assert "At" in a.columns and b.stored[b.window.position].name not in b.columns
    assert (a.lateness, b.lateness) == (MINUTE, 2 * MINUTE)
    assert spec.windowed and not planned().windowed


def test_event_times_that_are_emitted_or_keys_are_stored_once() -> None:
    both = planned("SELECT a.k, a.at FROM a JOIN b ON a.at = b.at", **TIMED)
    assert [column.name for column in both.inputs[0].stored] == ["At", "k"]
    assert both.inputs[0].time == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"source.a.timestamp": ""}, r"'source.a.timestamp' is missing: option 'window' is a window in time"),
        ({"source.b.watermark": None}, r"'source.b.watermark' is missing: set how far a row of 'b' may be behind"),
        ({"source.a.watermark": "soon"}, r"option 'source.a.watermark': 'soon' is not a duration"),
        ({"window": "10"}, r"option 'window': '10' is not a window"),
        ({"window": "5 rows"}, r"option 'source.a.timestamp' is given, but there is no window in time"),
        ({"source.a.timestamp": "att"}, r"source 'a' has no column 'att'\. Did you mean 'At'\? Its columns are: k, At"),
        ({"source.a.timestamp": "v"}, r"option 'source.a.timestamp': column 'v' is STRING; an event time is TIMESTAMP"),
        ({"source.a.timestamp": "local"}, r"one column is TIMESTAMP and the other TIMESTAMP_NTZ"),
        ({"expiry": "eager"}, r"option 'expiry': unknown value 'eager'\."),
        ({"idleTimeout": "later"}, r"option 'idleTimeout': 'later' is not a duration"),
        ({"source.a.windows": "5 rows"}, None),
    ],
)
def test_mistakes(changed: dict[str, str | None], message: str | None) -> None:
    given = {name: value for name, value in {**TIMED, **changed}.items() if value is not None}
    if message is None:  # an option that the source itself will refuse
        assert ("windows", "5 rows") in Options.parse({"query": QUERY, **SOURCES, **given}).sources[0].options
        return
    with pytest.raises(OptionError, match=message):
        planned(**given)


def test_a_plan_with_intermediate_results_is_refused() -> None:
    query = "SELECT a.k FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k"
    spec = planned(query, **{"window": "5 rows", "source.c.format": "parquet"})
    assert tree.chosen("(a b c)", spec) == tree.single(3)
    with pytest.raises(OptionError, match=r"option 'plan': .* stores intermediate results"):
        tree.chosen("((a b) c)", spec)


def test_a_state_from_before_windows_can_be_resumed_and_a_changed_window_is_named() -> None:
    plain, windowed = describe(planned()), describe(planned(**TIMED))
    for alias in "ab":
        del plain["inputs"][alias]["window"], plain["inputs"][alias]["timestamp"]
    assert differences(plain, describe(planned())) == []
    found = differences(describe(planned(**{**TIMED, "window": "20 minutes"})), windowed)
    assert found[0] == "input a: window was 1200000000 microseconds, is now 600000000 microseconds"
    assert differences(windowed, describe(planned(**{**TIMED, "source.a.watermark": "9 minutes"}))) == []


def test_watermarks_move_up_and_an_idle_input_follows_the_slowest_of_the_others() -> None:
    spec = planned(**TIMED)
    three = replace(spec, inputs=(*spec.inputs, spec.inputs[0]))  # lateness 1, 2 and 1 minutes
    minutes = [m * MINUTE for m in (50, 60, 10)]
    assert advance(three, (None, None, None), minutes, ()) == (49 * MINUTE, 58 * MINUTE, 9 * MINUTE)
    assert advance(three, (99 * MINUTE, None, None), [50 * MINUTE, None, None], ()) == (99 * MINUTE, None, None)
    assert advance(three, (None, None, None), minutes, (2,)) == (49 * MINUTE, 58 * MINUTE, 49 * MINUTE)
    assert advance(three, (None, None, None), [*minutes[:2], None], (2,))[2] == 49 * MINUTE
    assert advance(three, (None, None, None), [None, minutes[1], None], (2,)) == (None, 58 * MINUTE, None)
    assert advance(three, (None, None, 70 * MINUTE), minutes, (2,))[2] == 70 * MINUTE, "never back"


def test_rows_expire_behind_the_slowest_of_the_other_inputs() -> None:
    spec = planned(**TIMED, **{"source.b.window": "5 rows"})
    assert horizons(spec, (100 * MINUTE, 70 * MINUTE), (0, 12)) == [60 * MINUTE, 6]
    assert horizons(spec, (100 * MINUTE, None), (0, 0)) == [None, -6]


def test_a_plan_says_since_when_watermarks_and_admission_are_as_they_are() -> None:
    def plan(watermark: int | None, admission: tuple[int, int] | None = None, active: bool = False) -> Plan:
        return Plan((0, 1), expiry=Expiry((watermark, None), active), admission=admission)

    planned, found = Plan((0, 1)), []
    for version, following in enumerate(
        (plan(None), plan(5), plan(5), plan(5, active=True), plan(5, (1, 2)), plan(5, (1, 2)), plan(5), plan(7)), 1
    ):
        planned = Plan.from_json(following.after(planned, version).to_json(2), 2)
        found.append(planned.for_partition(0).alike_since)
    assert found == [1, 2, 2, 2, 5, 5, 7, 8]
    assert Plan((0, 1)).after(Plan((0, 1)), 9).to_json(2) == {}, "nothing to say where nothing ever changes"
