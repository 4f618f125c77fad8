"""Names that users give: of columns, inputs and sources. None meets one of ours, and no file is named after one."""

import re
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin import metrics
from spark_mjoin.counts import Standing
from spark_mjoin.engine import cache
from spark_mjoin.evidence import Taken
from spark_mjoin.explaining import explain
from spark_mjoin.mjoin.rendering import identifier, qualified
from spark_mjoin.state.manifest import Manifest
from tests.harness import CRASH, OK, ReadAllAvailable, duckdb_join, reader, rows, run, scripted
from tests.manifests import manifest
from tests.oracle.examples import examples

OURS = [
    "__arrived", "arrived", "column k", "made key k", "key k", "key `k`", "key (k + 0)", "row number", "row number'",
    "key", "event", "punctuation", "numRowsTotal", "null", "0", "1", "(a b)", "a > b", "results",
]  # fmt: skip
USERS = [
    "a", "b", "c", "k", "a.b", "b.c", "a.b.c", "`a`.b", "`", "``", "a`b", ".", "..", " ", "a b", "k/v", "../x", "%41",
    "x" * 200, "ü", "名前", "*", "a,b", "a)", "(k + 0)", "k = k", "'", '"', "\\", "a\tb",
]  # fmt: skip
NAME = st.sampled_from(OURS + USERS) | st.text("ab.`_ü ", min_size=1, max_size=4)
FILE = re.compile(
    r"meaning\.json|version-\d{12}\.json|entries-\d{12}-\d{12}\.json|promises-\d{12}-\d+-[0-9a-f]{32}\.arrow"
    r"|sample-\d{12}-[0-9a-f]{32}\.arrow"
    r"|rows-\d{12}-(\d+|r\d+\.\d+)-\d+-[0-9a-f]{32}\.arrow|purged-\d{12}-\d+-[0-9a-f]{32}\.arrow"
)
DIRECTORY = re.compile(r"[0-9a-f]{32}|sources|\d+|partition-\d+-of-\d+")


def distinct(count: int) -> st.SearchStrategy[list[str]]:
    return st.lists(NAME, min_size=count, max_size=count, unique_by=str.lower)


@st.composite
def named_joins(draw: st.DrawFn) -> tuple[list[str], list[list[str]], str, dict[str, str]]:
    """Aliases, the columns of each input, how its key is written, and options."""
    inputs = draw(st.integers(2, 4))
    aliases = draw(distinct(inputs))
    columns = [draw(distinct(3)) for _ in range(inputs)]
    options = draw(st.sampled_from([{}, {"memory": "1"}, {"memory": "20k"}, {"window": "1000 rows"}]))
    if inputs > 2 and "window" not in options and draw(st.booleans()):
        first, *others = map(identifier_of_plan, aliases)
        options = options | {"plan": f"(({first} {others[0]}) {' '.join(others[1:])})"}
    key = draw(st.sampled_from(["{}", "{} + 0", "CAST({} AS DOUBLE)"]))
    return aliases, columns, key, options


def identifier_of_plan(alias: str) -> str:
    return "`" + alias.replace("`", "``") + "`"


def tables(inputs: int, batches: int = 3) -> list[list[pa.Table]]:
    """For each input its batches, with a key, a number and a text, under plain names."""
    return [
        [
            pa.table(
                {
                    "c0": [(i * (n + 1) + batch) % 5 for i in range(8)],
                    "c1": [100 * batch + i for i in range(8)],
                    "c2": [None if i % 3 == 0 else f"{n}-{batch}-{i}" for i in range(8)],
                }
            )
            for batch in range(batches)
        ]
        for n in range(inputs)
    ]


def sql(sources: list[str], aliases: list[str], columns: list[list[str]], key: str) -> str:
    """A join on the first columns, with the others, whatever all of them are called."""
    quoted = identifier_of_plan
    refs = [[f"{quoted(a)}.{quoted(c)}" for c in of] for a, of in zip(aliases, columns, strict=True)]
    selected = ", ".join(f"{ref} AS out_{i}_{j}" for i, of in enumerate(refs) for j, ref in enumerate(of))
    joined = f"{sources[0]} AS {quoted(aliases[0])}"
    for number in range(1, len(aliases)):
        on = f"{key.format(refs[number - 1][0])} = {refs[number][0]}"
        joined += f" JOIN {sources[number]} AS {quoted(aliases[number])} ON {on}"
    return f"SELECT {selected} FROM {joined}"


def check(aliases: list[str], columns: list[list[str]], key: str, options: dict[str, str], root: Path) -> None:
    plain = tables(len(aliases))
    sources = [f"s{n}" for n in range(len(aliases))]
    scripts = {
        source: [table.rename_columns(names) for table in script]
        for source, names, script in zip(sources, columns, plain, strict=True)
    }
    cache.of_worker().clear()
    given = scripted(scripts, sql(sources, aliases, columns, key), **options)
    found = run(given, root, [OK, CRASH, CRASH])
    neutral = sql(sources, sources, [["c0", "c1", "c2"]] * len(aliases), key).replace("`", '"')
    everything = {s: pa.concat_tables(script) for s, script in zip(sources, plain, strict=True)}
    assert rows(found) == rows(duckdb_join(neutral, everything))
    check_files(root)
    text = str(explain(given, state=str(root), show=False))
    assert all(identifier(alias) in text for alias in aliases)


def check_files(root: Path) -> None:
    """Every name in a state directory has a form that is fixed, in ASCII, and less than 100 bytes."""
    for path in root.rglob("*"):
        assert (DIRECTORY if path.is_dir() else FILE).fullmatch(path.name), path.name
        assert len(path.name.encode()) < 100


@examples(100)
@given(join=named_joins())
def oracle_any_name_will_do(join: tuple[list[str], list[list[str]], str, dict[str, str]]) -> None:
    with TemporaryDirectory() as root:
        check(*join, Path(root))


def test_a_column_with_the_name_of_one_of_ours(tmp_path: Path) -> None:
    check(["a", "b"], [["k", "__arrived", "arrived"], ["__arrived", "row number", "key k"]], "{} + 0", {}, tmp_path)


def test_two_names_that_look_like_one_when_they_are_put_together(tmp_path: Path) -> None:
    columns = [["k", "b.c", "x"], ["k", "c", "x"], ["k", "x", "y"]]
    check(["a", "a.b", "d"], columns, "{}", {"plan": "((a `a.b`) d)"}, tmp_path)


def test_seven_inputs_with_long_names_and_a_tree_over_six(tmp_path: Path) -> None:
    aliases = [letter * 26 for letter in "abcdefg"]
    plan = f"(({' '.join(aliases[:6])}) {aliases[6]})"
    few = [[t[:2] for t in script] for script in tables(7)]
    scripts = dict(zip(aliases, few, strict=True))
    query = sql(aliases, aliases, [["c0", "c1", "c2"]] * 7, "{}")
    found = run(scripted(scripts, query, plan=plan), tmp_path, [OK, CRASH, CRASH])
    everything = {alias: pa.concat_tables(script) for alias, script in scripts.items()}
    assert rows(found) == rows(duckdb_join(query.replace("`", '"'), everything))
    assert list(tmp_path.rglob("rows-*-r0.0-*.arrow"))
    check_files(tmp_path)


def test_sources_with_long_names(tmp_path: Path) -> None:
    """And files that are being written: a name for the time being has no more bytes."""
    options = {"stateLocation": str(tmp_path / "state")}
    aliases = ["s" * 300, "t" * 300]
    for alias in aliases:
        (tmp_path / alias[0]).mkdir()
        pq.write_table(pa.table({"k": [1, 2]}), tmp_path / alias[0] / "1.parquet")
        options |= {f"source.{alias}.format": "parquet", f"source.{alias}.path": str(tmp_path / alias[0])}
    query = f"SELECT {aliases[0]}.k FROM {aliases[0]} JOIN {aliases[1]} ON {aliases[0]}.k = {aliases[1]}.k"
    assert sum(t.num_rows for t in run({"query": query, **options}, tmp_path)) == 2
    check_files(tmp_path / "state")


def test_a_state_is_found_again_when_a_source_has_a_new_column_with_the_name_of_ours(tmp_path: Path) -> None:
    """The names of what is stored depend on the query, not on what else a source has."""
    for window in ({}, {"window": "1000 rows"}):
        script = [pa.table({"k": [1, 2], "v": [batch, batch]}) for batch in range(4)]
        query = "SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k + 0 = b.k"
        state = tmp_path / str(len(window))
        options = scripted({"a": script, "b": script}, query, stateLocation=str(state), **window)
        start = reader(options).initialOffset()
        more = {"key (k + 0)": [0, 0], "row number": [0, 0]}
        wider = [pa.table({**more, **t.to_pydict()}) for t in script]
        found = []
        for known in (script, wider):
            cache.of_worker().clear()
            current = reader(scripted({"a": known, "b": known}, query, stateLocation=str(state), **window))
            end = current.latestOffset(start, ReadAllAvailable())
            found += [b for p in current.partitions(start, end) for b in current.read(p)]
            start = end
        seen = pa.concat_tables(script[:2])
        expected = duckdb_join("SELECT a.k, a.v, b.v FROM a JOIN b ON a.k = b.k", {"a": seen, "b": seen})
        assert rows(pa.Table.from_batches(found)) == rows(expected)


def test_columns_are_written_in_a_way_of_their_own() -> None:
    names = [*OURS, *USERS]
    written = [qualified(alias, column) for alias, column in product(names, names)]
    assert len(set(written)) == len(written)
    assert [identifier(name) for name in ("a", "ü1", "a b", "a`b", "1", "Null")] == [
        "a", "ü1", "`a b`", "`a``b`", "`1`", "`Null`"
    ]  # fmt: skip


def of_three() -> Manifest:
    """Of a join of three inputs, with all that becomes a metric of an input."""
    standing = Standing(windows=((1, True),) * 3, fractions=(0.5,) * 3)
    return manifest((4, 5, 6), orders=("x",) * 3, taken=Taken((1, 2, 3)), standing=standing)


@examples(300)
@given(aliases=st.lists(NAME | st.sampled_from(["num", "intermediate", "aNum", "aNumInput", "memory"]), min_size=3,
                        max_size=3, unique_by=str.lower))  # fmt: skip
def test_metrics_of_inputs_meet_no_other(aliases: list[str]) -> None:
    def reported(names: list[str]) -> dict[str, str]:
        used = dict.fromkeys(names, "hash")
        return metrics.report([of_three()], names, metrics.Shown(1, 1.0, "plan", used, ("sequential", "value")))

    found, neutral = reported(aliases), reported(["x", "y", "z"])
    assert len(found) == len(neutral)
    assert [found[f"{alias}NumRowsTotal"] for alias in aliases] == ["4", "5", "6"]
