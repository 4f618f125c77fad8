"""docs/options.md against the code: every option, function and metric is documented, and nothing that is not there."""

import importlib
import inspect
import re
from pathlib import Path

import pyarrow as pa
import pytest

import spark_mjoin
from spark_mjoin import metrics
from spark_mjoin.__main__ import COMMANDS
from spark_mjoin.config import Options, names
from spark_mjoin.counts import Standing
from spark_mjoin.explaining.advice import SAMPLE_ROWS
from spark_mjoin.explaining.explanation import SECONDS
from spark_mjoin.mjoin.registry import FUNCTIONS
from spark_mjoin.query.graph import plan_join
from spark_mjoin.schema import parse_ddl
from spark_mjoin.sources import REGISTRY, formats
from spark_mjoin.state.layouts import EVEN
from tests.manifests import manifest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/options.md").read_text()
FILES = ("parquet", "csv", "json", "arrow")
FORMATS = [f for f in formats() if REGISTRY[f].startswith("spark_mjoin.")]
COLUMNS = "s STRING, n BIGINT, x DOUBLE, d DATE, at TIMESTAMP, b BOOLEAN"
OPERATORS = {"and", "or", "not", "in", "div", "like", "case", "negate", "field", "try_cast", "add_months"}
"""What a query writes as an operator, or reaches in another way than by this name."""


def section(title: str) -> str:
    """The text below a heading, up to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found, f"no heading '{title}'"
    return found[1]


def rows(title: str) -> list[list[str]]:
    """The cells of the table in a section, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def options(*titles: str) -> set[str]:
    names = {cells[0].strip("`") for title in titles for cells in rows(title)}
    return {name.removeprefix("source.<alias>.") for name in names}


def test_every_option_of_the_join_is_documented_and_exists() -> None:
    assert options("The join") == set(names.OF_THE_JOIN)


@pytest.mark.parametrize("format", FORMATS)
def test_every_option_of_a_source_is_documented_and_exists(format: str) -> None:
    module, _, name = REGISTRY[format].partition(":")
    source = getattr(importlib.import_module(module), name)
    own = {"csv": ["CSV"], "wisconsin": ["Wisconsin"]}.get(format, [])
    documented = options("Sources: common", *(["Files"] if format in FILES else []), *own)
    assert documented == {*names.OF_ANY_SOURCE, *source.OPTIONS, *source.LIMITS}


def test_every_format_is_documented() -> None:
    (cells,) = [cells for cells in rows("Sources: common") if cells[0] == "`source.<alias>.format`"]
    assert sorted(re.findall(r"`(\w+)`", cells[2])) == FORMATS


def test_the_readme_names_only_options_that_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    table = readme.split("## Options\n")[1].split("\n\n")[1]
    named = {n for line in table.splitlines()[2:] for n in re.findall(r"`([^`]+)`", line.split("|")[1])}
    top = {n for n in named if not n.startswith((".", "source."))}
    assert top <= set(names.OF_THE_JOIN)
    assert {n.removeprefix("source.<alias>").removeprefix(".") for n in named - top} <= {"format", "path", "schema"}


def expressions() -> list[str]:
    found = [e for cells in rows("Expressions") for e in re.findall(r"`([^`]+)`", cells[0])]
    return [e.replace("\\|", "|") for e in found]


@pytest.mark.parametrize("expression", expressions())
def test_documented_expressions_are_understood(expression: str) -> None:
    query = f"SELECT {expression} AS result FROM t JOIN u ON t.n = u.n"
    given = {f"source.{alias}.format": "parquet" for alias in "tu"}
    schema = parse_ddl(COLUMNS, "schema")
    assert plan_join(Options.parse({"query": query, **given}), [schema, schema]).schema.names == ["result"]


def test_every_function_is_documented() -> None:
    named = {f for f in FUNCTIONS if f.replace("_", "").isalpha()} - OPERATORS
    text = " ".join(expressions()).lower()
    assert not sorted(f for f in named if f"{f}(" not in text)


def test_the_columns_of_the_expression_table_are_those_that_are_tested() -> None:
    declared = re.findall(r"`t\.(\w+ [A-Z]+)`", section("Expressions").split("\n|")[0])
    assert ", ".join(declared) == COLUMNS


def test_every_metric_is_documented_and_exists() -> None:
    of_one = manifest((1,), orders=("o > p",), standing=Standing(windows=((1, True),)))
    shown = metrics.Shown(1, 1.0, "(o p)", {"o": "p: hash"}, ("sequential", "value"), EVEN)
    reported = metrics.report([of_one], ["o"], shown) | metrics.lag([0])
    expected = {re.sub("^o(?=[AENPR])", "<alias>", name) for name in reported}
    assert {cells[0].strip("`") for cells in rows("Metrics")} == expected | set(of_the_shuffle())


def of_the_shuffle() -> list[str]:
    """Metrics that the jar measures itself."""
    source = (ROOT / "jvm-shim/src/sparkmjoin/JoinMetrics.java").read_text()
    constants = dict(re.findall(r'String (\w+) = "(\w+)";', source))
    return [constants[name] for name in re.findall(r"([A-Z_]+), 0L", source)]


def test_every_function_of_the_package_is_documented_with_its_parameters() -> None:
    documented = dict(re.findall(r"`spark_mjoin\.(\w+)\((.*)\)`", "\n".join(cells[0] for cells in rows("Functions"))))
    assert set(documented) == set(spark_mjoin.__all__)
    for name, parameters in documented.items():
        known = inspect.signature(getattr(spark_mjoin, name)).parameters
        assert {p.split("=")[0] for p in parameters.split(", ") if p} <= set(known), name
    assert (f"seconds={SECONDS:g}", f"sample_rows={SAMPLE_ROWS}") == (
        documented["explain"].split(", ")[-1],
        documented["advise"].split(", ")[1],
    )


def test_every_command_is_documented() -> None:
    text = section("Functions").split("\n\n")[-2]
    assert set(re.findall(r"`(\w+)`", text)) == set(COMMANDS)


def test_key_types_are_what_the_page_says() -> None:
    def keys(left: str, right: str) -> str:
        given = {f"source.{alias}.format": "parquet" for alias in "ab"}
        spec = plan_join(
            Options.parse({"query": "SELECT a.k FROM a JOIN b ON a.k = b.k", **given}),
            [pa.schema([("k", parse_ddl(f"k {kind}", "schema").field(0).type)]) for kind in (left, right)],
        )
        return spec.classes[0].kind

    assert keys("TINYINT", "BIGINT") == "integer"
    assert keys("INT", "DECIMAL(10,2)") == "decimal"
    assert keys("FLOAT", "BIGINT") == "double"
    for kind in ("STRING", "BINARY", "BOOLEAN", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"):
        assert keys(kind, kind) == kind.lower()
    for left, right in (("STRING", "INT"), ("DATE", "TIMESTAMP"), ("TIMESTAMP", "TIMESTAMP_NTZ")):
        with pytest.raises(Exception, match="CAST"):
            keys(left, right)
