"""`spark_mjoin.explain` before a query runs: what is drawn and chosen, and where each figure is said to be from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import spark_mjoin
from spark_mjoin.__main__ import main
from spark_mjoin.driver.calibrate import DEFAULTS, save
from spark_mjoin.driver.choice import HORIZON_SECONDS, Planner
from spark_mjoin.driver.costs import Costs
from spark_mjoin.driver.loading import load
from spark_mjoin.errors import MJoinError, OptionError
from spark_mjoin.explaining import drawing, sizes
from spark_mjoin.explaining.explanation import Explanation, explained
from spark_mjoin.model import JoinSpec
from spark_mjoin.plan import Plan
from spark_mjoin.state.table import Table
from tests.harness import reader, scripted
from tests.scripted import SCRIPTS

EMPTY = {"k": pa.int64(), "a": pa.int64(), "b": pa.int64(), "x": pa.float64(), "s": pa.string()}


@pytest.fixture(autouse=True)
def default_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in [*"abcd", *(f"t{n}" for n in range(10))]:  # other tests have sources of these names too
        monkeypatch.setitem(SCRIPTS, name, [pa.schema(EMPTY).empty_table()])


def join(names: str, query: str = "", **options: str) -> dict[str, str]:
    """Options of a join over sources that have all columns of EMPTY and no rows."""
    tables = {name: [pa.schema(EMPTY).empty_table()] for name in names.split()}
    given = scripted(tables, query, **options)
    return {name: value for name, value in given.items() if value}


def section(text: object, title: str) -> str:
    """The lines of a section, up to the next one."""
    found = re.search(rf"^{re.escape(title)}.*?\n(.*?)(?=^[A-Z]|\Z)", str(text), re.DOTALL | re.MULTILINE)
    assert found, f"no section {title} in\n{text}"
    return found[1]


def drawn(spec: JoinSpec) -> list[frozenset[int]]:
    """The key classes of every input, read back from the drawing, after checking its lines."""
    head, *lines = drawing.graph(spec)
    columns = [at.start() for at in re.finditer(r"k\d+", head)]
    assert [at.group() for at in re.finditer(r"k\d+", head)] == [f"k{n + 1}" for n in range(len(spec.classes))]
    inputs = lines[::2]
    assert [line.split()[0] for line in inputs] == [i.alias for i in spec.inputs]
    marks = [[line[c] if c < len(line) else " " for c in columns] for line in lines]
    for column in zip(*marks, strict=True):
        ends = [n for n, mark in enumerate(column) if mark == "o"]
        assert all(mark in "o|" for mark in column[ends[0] : ends[-1]]), "a line has a gap"
        assert all(mark == " " for mark in (*column[: ends[0]], *column[ends[-1] + 1 :])), "a line goes too far"
    return [frozenset(c for c, mark in enumerate(row) if mark == "o") for row in marks[::2]]


STAR = join("a b c", on="k")
CHAIN = "SELECT a.x FROM a JOIN b ON a.b = b.a JOIN c ON b.b = c.a"
CYCLE = f"{CHAIN} AND c.b = a.a"
SELF = "SELECT l.x FROM a l JOIN a r ON l.k = r.k JOIN b ON b.a = r.a"


def chain_of(count: int) -> str:
    names = [f"t{n}" for n in range(count)]
    joins = "".join(f" JOIN {right} ON {left}.b = {right}.a" for left, right in pairwise(names))
    return f"SELECT t0.x FROM t0{joins}"


@pytest.mark.parametrize(
    "options",
    [
        STAR,
        join("a b c", CHAIN),
        join("a b c", CYCLE),
        join("a b", SELF),
        join(" ".join(f"t{n}" for n in range(10)), on="k"),
        join(" ".join(f"t{n}" for n in range(10)), f"{chain_of(10)} AND t0.a = t9.b"),
    ],
    ids=["star", "chain", "cycle", "self-join", "ten in a star", "ten in a cycle"],
)
def test_the_drawing_has_every_input_and_every_key(options: Mapping[str, str]) -> None:
    spec, _ = load(options)
    assert drawn(spec) == [spec.classes_of(i) for i in range(len(spec.inputs))]
    assert max(map(len, drawing.graph(spec))) < 100
    assert section(explained(options), "JOIN GRAPH").startswith("\n".join(drawing.graph(spec)))


def test_a_drawing() -> None:
    assert section(explained(join("a b c", CYCLE)), "JOIN GRAPH") == (
        "       k1   k2   k3\n"
        "  a    o         o    scripted\n"
        "       |         |\n"
        "  b    o    o    |    scripted\n"
        "            |    |\n"
        "  c         o    o    scripted\n"
        "\n"
        "  k1: a.b = b.a  (integer)\n"
        "  k2: b.b = c.a  (integer)\n"
        "  k3: a.a = c.b  (integer)\n"
        "\n"
    )


def test_filters_and_conditions_are_shown_where_they_are_applied() -> None:
    text = section(explained(join("a b c", f"{CHAIN} WHERE a.x > 1 AND a.x < c.x")), "JOIN GRAPH")
    assert "  filter of a, before a row is stored: (a.x > 1" in text
    assert "  condition, once a, c have met: (a.x < c.x)" in text
    assert "filter of b" not in text


# --- partitions and policies ---------------------------------------------------------------------------------------


def test_a_star_can_be_split_and_a_chain_cannot() -> None:
    assert section(explained(STAR), "PARTITIONING").startswith(
        "  1 partition, by the hash of k1, which all inputs have"
    )
    split = explained(join("a b c", on="k", partitions="4", memory="8m"))
    assert section(split, "PARTITIONING") == (
        "  4 partitions, by the hash of k1, which all inputs have\n"
        "  all partitions get equally many rows, but for frequent keys: one with more than 16.7% of all rows is split\n"
        "  each has 2.0 MiB of 'memory'\n\n"
    )
    ranges = explained(join("a b c", on="k", partitions="4", partitioning="range"))
    assert "by the range of k1" in section(ranges, "PARTITIONING")
    assert "by hash until 10,000 rows have come" in section(ranges, "PARTITIONING")
    shed = explained(join("a b c", on="k", partitions="4", overflow="shed"))
    assert "no key is split, however frequent, since option 'overflow' is 'shed'" in section(shed, "PARTITIONING")
    chain = explained(join("a b c", CHAIN, partitions="4"))
    assert section(chain, "PARTITIONING") == (
        "  one partition: no key is common to all inputs ('partitions' = 4 has no effect)\n\n"
    )


def test_policies_that_apply_and_the_one_in_force() -> None:
    star = section(explained(join("a b c", on="k", memory="8m", flush="coordinated", partitions="2")), "FLUSH POLICIES")
    assert "apply: adaptive, coordinated, largest, random" in star
    assert "in force: coordinated, when rows take more than 3.0 MiB in each partition; a flush leaves 2.4 MiB" in star
    assert "disk work in batches of less than 10,000 rows, up to 256 MiB a batch" in star
    chain = section(explained(join("a b c", CHAIN)), "FLUSH POLICIES")
    assert "apply: adaptive, coordinated, largest, random\n" in chain
    assert "coordinated takes the same bucket of (a b) by k1, (c) by k2\n" in chain
    assert "in force: none, since 'memory' is not set; it would be adaptive" in chain
    failing = section(explained(join("a b", on="k", memory="8m", overflow="fail")), "FLUSH POLICIES")
    assert "in force: none, since 'overflow' is fail: the query ends at 8.0 MiB" in failing


def test_what_is_given_up_under_overload() -> None:
    title = "GIVEN UP UNDER OVERLOAD"
    assert title not in str(explained(join("a b", on="k", memory="8m")))
    assert "input that takes longer than it took to arrive, once a batch takes 5 s" in section(
        explained(join("a b", on="k", overflow="shed", minRecall="0.9")), title
    )
    full = section(explained(join("a b", on="k", overflow="shed", memory="8m", maxDelay="2 seconds")), title)
    assert "input that would make a batch take longer than 2 s" in full
    assert "rows that come when memory of 8.0 MiB is full: they are not kept" in full
    made = explained(join("a b", on="k", overflow="shrink", memory="8m", window="100 rows"))
    assert "the oldest rows, when memory of 8.0 MiB is full: windows get shorter" in section(made, title)
    assert "FLUSH POLICIES" not in str(made)


# --- figures -------------------------------------------------------------------------------------------------------

RATES = {"source.a.expectedRowsPerSecond": "100", "source.b.expectedRowsPerSecond": "50"}
RATES |= {"source.c.expectedRowsPerSecond": "1"}


def test_windows_are_shown_with_the_rows_that_are_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "WINDOWS" not in str(explained(STAR | RATES))
    at = pa.schema({**EMPTY, "at": pa.timestamp("us", "UTC")}).empty_table()
    timed = {"window": "10 minutes", "source.b.window": "500 rows", "source.c.window": "none"}
    for alias in "abc":
        monkeypatch.setitem(SCRIPTS, alias, [at])
        timed |= {f"source.{alias}.timestamp": "at", f"source.{alias}.watermark": "1 minute"}
    made = explained(STAR | RATES | timed)
    shown = [re.split(r"  +", line.strip()) for line in section(made, "WINDOWS").splitlines()[1:4]]
    assert shown == [
        ["a", "10 min", "at", "1 min", "60,000", "99,000"],  # and a minute of rows that are not late, and half of all
        ["b", "500 rows", "at", "1 min", "500", "750"],
        ["c", "none: its rows stay", "at", "1 min", "3,600", "3,600"],
    ]
    assert "because: a join with windows stores no intermediate results" in section(made, "PLAN")
    unknown = section(explained(STAR | timed), "WINDOWS")
    assert re.search(r"a +10 min +at +1 min +\? +\?\n", unknown) and re.search(r"b .* up to 500 +\?\n", unknown)


def test_promises_are_shown() -> None:
    assert "PROMISES" not in str(explained(STAR | RATES))
    given = {"source.a.unique": "k", "source.b.punctuation": "x = 0", "source.b.ordered": "k desc", "purgeEvery": "7"}
    made = section(explained(STAR | RATES | given), "PROMISES")
    shown = [re.split(r"  +", line.strip()) for line in made.splitlines()[1:4]]
    assert shown == [
        ["a", "unique k"],
        ["b", "ordered k desc; punctuations about k"],
        ["c", "nothing: the others keep rows for it"],
    ]
    assert "useless rows are dropped after 7 punctuations" in made and "forgotten" not in made
    bounded = section(explained(STAR | RATES | given | {"memory": "1m"}), "PROMISES")
    assert "promises may take 256 KiB of 'memory'; beyond that the oldest are forgotten" in bounded


def test_without_rates_nothing_is_made_up() -> None:
    made = explained(join("a b c", CHAIN))
    assert re.search(r"a +\? +not known", section(made, "INPUTS"))
    assert "because: no rates of arrival are known" in section(made, "PLAN")
    assert section(made, "RATES AND STATE").startswith(
        "  rates are not known: set 'source.<alias>.expectedRowsPerSecond'"
    )
    assert not re.search(r"\d", section(made, "RATES AND STATE"))


def test_what_is_given_is_marked_apart_from_what_is_assumed() -> None:
    options = join("a b c", CHAIN, expectedSelectivity="a.b: 0.001") | RATES
    inputs = section(explained(options, seconds=1000), "INPUTS")
    assert re.search(r"a +100 +given +\d+ bytes a row +by its types", inputs)
    assert re.search(r"a, b by k1 +0.001 +given +50 +100\n", inputs)
    # c has 1,000 rows and b 50,000: unique keys match with 1 / 50,000.
    assert re.search(r"b, c by k2 +2e-05 +assumed: keys are unique +0.02 +1\n", inputs)
    named = section(explained(join("a b", "SELECT a.s FROM a JOIN b ON a.k = b.k")), "INPUTS")
    assert re.search(r"a +\? +not known +32 bytes a row +assumed: 16 bytes in s", named)


def test_rates_and_state_follow_from_what_is_given() -> None:
    options = join("a b c", CHAIN, expectedSelectivity="a.b: 0.001, b.c: 0.01") | RATES
    made = explained(options, seconds=1000)
    text = section(made, "RATES AND STATE, after 1e+03 s")
    results = 100_000 * 50_000 * 1_000 * 0.001 * 0.01
    assert f"{results:,.0f} results by then" in text
    # Results grow as the cube of time: those of the last second are 1 - 0.999 ** 3 of all.
    rate = results * (1 - 0.999**3)
    assert made.expectation.output_rate == pytest.approx(rate, rel=1e-6)
    assert "  in: 151 rows/s\n" in text and f"out: {rate:,.0f} rows/s" in text
    assert re.search(r"all +151,000", text)
    assert "no limit: option 'memory' is not set" in text


def test_unique_keys_give_as_many_results_a_second_as_the_slowest_input_has_rows() -> None:
    made = explained(STAR | RATES)
    assert made.expectation.results == pytest.approx(3600)
    assert made.expectation.output_rate == pytest.approx(1.0)


@pytest.mark.parametrize(("memory", "said"), [("64m", "fits: "), ("2m", "does not fit: 1.5 MiB of 'memory' = 2.0 MiB")])
def test_the_state_is_compared_with_the_budget(memory: str, said: str) -> None:
    assert said in section(explained(STAR | RATES | {"memory": memory}), "RATES AND STATE")


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 1000, 5000])
@pytest.mark.parametrize("options", [STAR, join("a b c", CYCLE), join("a b", "SELECT a.s FROM a JOIN b ON a.s = b.s")])
def oracle_sizes_are_what_tables_account_for(options: Mapping[str, str], rows: int, tracked: bool) -> None:
    spec, _ = load(options)
    for input in spec.inputs:
        table = Table(input, input.keys[0][0] if tracked else None)
        values = {"string": ["abcd" * 5] * rows, "double": np.ones(rows), "int64": np.arange(rows)}
        table.append([pa.array(values[str(stored.type)], stored.type) for stored in input.stored])
        widths = {sizes.known_as(input, stored): 20.0 for stored in input.stored}
        assert sizes.state_bytes(input, rows, widths) == table.nbytes()


# --- choices -------------------------------------------------------------------------------------------------------


def skewed() -> dict[str, str]:
    """A chain whose first two inputs give few rows, of which the rest make many: worth storing."""
    options = join("a b c d", chain_of(4).replace("t0", "a").replace("t1", "b").replace("t2", "c").replace("t3", "d"))
    rates = {f"source.{alias}.expectedRowsPerSecond": "200" for alias in "abcd"}
    return options | rates | {"expectedSelectivity": "a.b: 1e-5, b.c: 1e-3, c.d: 1e-4"}


def test_the_plan_is_the_one_that_the_reader_chooses(tmp_path: Path) -> None:
    options = skewed()
    made = explained(options)
    spec, settings = load(options)
    planner = Planner(spec, settings, DEFAULTS)
    tree, reason = planner.tree(Plan((0, 1, 2, 3)), [None], [0.0] * 4)
    assert made.expectation.tree == tree and tree != (0, 1, 2, 3)
    text = section(made, "PLAN")
    assert text.startswith(f"  {made.plan}\n  because: {reason}\n")
    assert f"{made.plan} *" in text and "(a b c d) " in text, "the candidates have the single MJoin and the chosen one"
    assert "more than 10% of the work" in text and f"over {HORIZON_SECONDS / 60:g} min" in text
    assert re.search(r"\n +MJoin 1 of ", text)
    state = section(made, "RATES AND STATE")
    assert re.search(r"\(\w.*\) +intermediate +[\d,]+", state)
    # The reader's own plan of the first batch, as it is in the offset.
    first = reader(options | {"stateLocation": str(tmp_path)}).session.planner.next_batch(
        Plan((0, 1, 2, 3)), [None], ["a"], [0.0] * 4, False
    )
    assert first.plan.tree == made.expectation.tree


def test_option_plan_is_followed_and_weighed() -> None:
    text = section(explained(join("a b c", CHAIN, plan="((a b) c)") | RATES), "PLAN")
    assert text.startswith(
        "  ((a b) c)\n  because: option 'plan' says so\n\n  MJoin 0 of (a b), c\n    MJoin 1 of a, b\n"
    )
    assert re.search(r"\(\(a b\) c\) \* +[\d.e-]+ s", text) and re.search(r"\(a b c\) +[\d.e-]+ s +0 ", text)


def test_option_plan_is_weighed_even_if_it_would_not_be_considered() -> None:
    inflating = {"expectedSelectivity": "a.b: 0.5"}  # so that nobody would store what a and b give
    text = section(explained(join("a b c", CHAIN, plan="((a b) c)") | RATES | inflating), "PLAN")
    assert re.search(r"\(\(a b\) c\) \* +[\d.e+-]+ s", text) and re.search(r"\(a b c\) +[\d.e+-]+ s +0 ", text)


def test_orders_have_keys_fan_outs_and_costs() -> None:
    options = join("a b c", CHAIN, expectedSelectivity="a.b: 1e-4, b.c: 0.05") | RATES
    text = section(explained(options, seconds=1000), "PROBING ORDERS")
    # b has 10 partners in a and 50 in c, and comes to c only after a: 1 + 10 probe, 10 + 500 match.
    assert "  b > a > c\n      matches per row: a by k1 10, c by k2 50\n" in text
    assert re.search(r"b > a > c\n.*\n.*; cost 521\n", text)
    assert "An order changes after 100 probes, for a gain of 4%" in text
    unknown = section(explained(join("a b c", CHAIN)), "PROBING ORDERS")
    assert "  a > b > c\n      b by k1, c by k2\n      too few probes to judge by; smallest input first\n" in unknown


def test_ten_inputs_stay_readable_and_quick() -> None:
    names = [f"t{n}" for n in range(10)]
    rates = {f"source.{name}.expectedRowsPerSecond": str(10 + n) for n, name in enumerate(names)}
    made = explained(join(" ".join(names), on="k") | rates)
    assert "45 other pairs: assumed: keys are unique" in section(made, "INPUTS")
    orders = [line for line in section(made, "PROBING ORDERS").splitlines() if line.startswith("  t")]
    assert [line.split()[0] for line in orders] == names and all(line.count(" > ") == 9 for line in orders)


def test_it_says_whether_costs_were_measured(tmp_path: Path) -> None:
    assert "hash 3.5, move 30, compare 6.4, gather 18 (defaults" in str(explained(STAR))
    save(Costs(1e-9, 2e-9, 3e-9, 4e-9))
    assert "hash 1, move 2, compare 3, gather 4 (measured on this machine)" in str(explained(STAR))


# --- the function and the command ----------------------------------------------------------------------------------


def test_it_prints_and_gives_the_text_back(capsys: pytest.CaptureFixture[str]) -> None:
    made = spark_mjoin.explain(STAR)
    assert isinstance(made, Explanation)
    assert capsys.readouterr().out == f"{made}\n"
    assert repr(made) == "<Explanation of a join of 3 inputs, plan (a b c)>"
    assert str(spark_mjoin.explain(STAR, show=False)) == str(made)
    assert capsys.readouterr().out == ""


def test_values_may_be_what_option_takes() -> None:
    assert "4 partitions" in str(explained(STAR | {"partitions": 4, "stickyPartitions": True}))


@pytest.mark.parametrize(
    "broken",
    [{"memry": "1g"}, {"flush": "coordinatd"}, {"plan": "(a b)"}, {"on": "nothing"}, {"source.a.format": "parket"}],
)
def test_errors_are_those_of_load(broken: Mapping[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    options = STAR | dict(broken)
    with pytest.raises(MJoinError) as at_load:
        reader(options)
    with pytest.raises(type(at_load.value), match=re.escape(str(at_load.value))):
        spark_mjoin.explain(options)
    with pytest.raises(type(at_load.value), match=re.escape(str(at_load.value))):
        spark_mjoin.advise(options)
    for command in ("explain", "advise"):
        assert main([command, *arguments(options)]) == 2
        said = capsys.readouterr()
        assert said.err == f"error: {at_load.value}\n" and said.out == ""


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf")])
def test_a_forecast_looks_ahead(seconds: float) -> None:
    for function in (spark_mjoin.explain, spark_mjoin.advise):
        with pytest.raises(OptionError, match=re.escape(f"argument 'seconds' is {seconds}")):
            function(STAR, seconds=seconds)
    with pytest.raises(OptionError, match="argument 'sample_rows' is -1"):
        spark_mjoin.advise(STAR, sample_rows=-1)


def arguments(options: Mapping[str, str]) -> list[str]:
    return [part for name, value in options.items() for part in ("--option", f"{name}={value}")]


def test_the_command_takes_options_and_files_of_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["-o", "source.a.expectedRowsPerSecond=5"]
    assert main(["explain", *arguments(STAR), "--seconds", "60", *more]) == 0
    assert "RATES AND STATE, after 1 min" in capsys.readouterr().out
    file = tmp_path / "options.json"
    file.write_text(json.dumps(STAR | {"partitions": 3}))
    assert main(["explain", "--options", str(file)]) == 0
    assert "3 partitions" in capsys.readouterr().out
    assert main(["explain", "--options", str(file), "-o", "partitions=5"]) == 0
    assert "5 partitions" in capsys.readouterr().out
    file.write_text("[]")
    assert main(["explain", "--options", str(file)]) == 2
    assert "is not an object" in capsys.readouterr().err
    assert main(["explain", "--option", "partitions"]) == 2
    assert "--option partitions is not of the form name=value" in capsys.readouterr().err
