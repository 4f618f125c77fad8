"""What the driver learns from a clock, with one that the test sets."""

import pytest

from spark_mjoin.driver.admission import DelayLimit
from spark_mjoin.driver.allocation import decide
from spark_mjoin.driver.clock import IDLE_SECONDS, SMOOTHING, SPARK_SECONDS, SYSTEM, Pace, Worked
from spark_mjoin.model import WHOLE
from tests.clock import SetClock

EVERYTHING = (WHOLE, WHOLE)


@pytest.fixture
def clock() -> SetClock:
    return SetClock(now=50.0, day=1e9)


def pace_of(clock: SetClock) -> Pace:
    return Pace(2, ["a", "b"], clock)


def test_rates_are_rows_over_the_time_since_the_batch_began(clock: SetClock) -> None:
    pace = pace_of(clock)
    pace.begins()
    clock.pass_by(4)
    pace.learn_rates([8, 40])
    assert pace.rates == [2.0, 10.0]
    pace.begins()
    clock.pass_by(1)
    pace.learn_rates([0, 0])
    assert pace.rates == [2.0, 10.0], "a batch without rows says nothing"
    pace.learn_rates([12, 0])
    assert pace.rates == pytest.approx([2 + SMOOTHING * (12 - 2), 10 * (1 - SMOOTHING)])


def test_the_time_between_batches_is_that_between_their_beginnings(clock: SetClock) -> None:
    pace = pace_of(clock)
    assert pace.between_batches == 0.0
    clock.pass_by(3)
    pace.begins()
    clock.pass_by(7)
    pace.begins()
    assert pace.between_batches == 7.0 and pace.since_batch == 0.0


@pytest.mark.parametrize(
    ("since", "disk", "spare"),
    [
        (1.9 + SPARK_SECONDS, 0.0, 0.0),  # the next batch began at once
        (6.0 + SPARK_SECONDS, 0.0, 2.0),  # four seconds were free, for two that arrivals took
        (6.0 + SPARK_SECONDS, 1.0, 5.0),  # disk work had one of the two: it could have those four, and its own
        (1.9 + SPARK_SECONDS, 1.0, 0.0),  # disk work delays input as it is
    ],
)
def test_spare_time_is_what_a_batch_leaves(clock: SetClock, since: float, disk: float, spare: float) -> None:
    pace = pace_of(clock)
    pace.begins()
    began = clock.time()
    clock.pass_by(since)
    pace.learn_spare(Worked((10, 0), began, began + 2.0, disk))
    assert pace.spare == pytest.approx(spare)
    pace.learn_spare(Worked((0, 0), began, began + 0.1, disk))
    assert pace.spare == pytest.approx(spare), "a batch of disk work alone says nothing"


def test_all_is_quiet_when_nothing_was_new_for_a_while(clock: SetClock) -> None:
    pace = pace_of(clock)
    clock.pass_by(100)
    assert not pace.is_quiet(), "nobody has asked before"
    clock.pass_by(0.9 * IDLE_SECONDS)
    assert not pace.is_quiet()
    clock.pass_by(0.1 * IDLE_SECONDS)
    assert pace.is_quiet()
    pace.news()
    assert not pace.is_quiet()


def test_a_source_is_silent_that_has_given_nothing_for_too_long(clock: SetClock) -> None:
    pace = pace_of(clock)
    clock.pass_by(8)
    pace.delivers(["b"])
    clock.pass_by(8)
    assert pace.silent(10) == {"a"}
    assert pace.silent(7) == {"a", "b"}
    assert pace.silent(16) == frozenset() == pace.silent(None)
    pace.delivers(["a"])
    assert pace.silent(7) == {"b"}


def overloaded(clock: SetClock, work_seconds: float) -> tuple[int, ...]:
    """What is let in after batches of 100 rows of each input, ten seconds apart, whose tasks take so long."""
    pace, parts = pace_of(clock), EVERYTHING
    for batch in range(4):
        with pace.looking():
            clock.pass_by(1)  # sources take their time, which is not that of the input
            if batch:
                rows = tuple(100 * part // WHOLE for part in parts)
                work = work_seconds * sum(rows) / 200
                began = clock.time() - 10  # as soon as it was planned
                pace.learn_load(Worked(rows, began, began + work), parts)
            parts = decide(pace.load, (parts, None), pace.plans_load(), DelayLimit(), (1.0, 1.0), None)[0]
        clock.pass_by(9)
    return parts


def test_a_join_that_keeps_up_lets_everything_in(clock: SetClock) -> None:
    assert overloaded(clock, work_seconds=4.0) == EVERYTHING


def test_a_join_that_takes_twice_as_long_as_its_input_lets_half_of_it_in(clock: SetClock) -> None:
    parts = overloaded(clock, work_seconds=20.0)
    assert all(0.43 < part / WHOLE < 0.47 for part in parts), "in nine seconds, so that what has built up goes down"


def test_a_look_that_failed_was_none(clock: SetClock) -> None:
    """What arrived since the last one that gave something is what the next batch has."""
    pace = pace_of(clock)
    with pace.looking():
        assert pace.plans_load() == 0.0, "of the first nobody knows"
    clock.pass_by(3)
    with pytest.raises(OSError), pace.looking():
        raise OSError
    clock.pass_by(2)
    with pace.looking():
        assert pace.plans_load() == 5.0


def test_the_clock_of_the_system_goes_forward() -> None:
    before, day = SYSTEM.monotonic(), SYSTEM.time()
    assert SYSTEM.monotonic() >= before and SYSTEM.time() >= day > 1e9
