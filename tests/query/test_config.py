"""Options: what is accepted, and that every mistake is answered with the option, the alias and the remedy."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_mjoin.config import Options
from spark_mjoin.driver.loading import load
from spark_mjoin.errors import OptionError
from spark_mjoin.model import Expected
from spark_mjoin.quantities import parse_bytes
from spark_mjoin.sources import with_limits
from tests.harness import scripted

TWO = {
    "source.b.format": "parquet", "source.b.path": "/b",
    "source.a.format": "broker", "source.a.client.servers": "h:9092",
    "on": "id",
}  # fmt: skip


def test_sources_are_ordered_by_alias_and_keep_dotted_names() -> None:
    options = Options.parse(TWO)
    assert [s.alias for s in options.sources] == ["a", "b"]
    assert options.sources[0].options == (("client.servers", "h:9092"),)
    assert options.sources[0].format == "broker"


def test_names_match_without_regard_to_case() -> None:
    options = Options.parse({"SOURCE.Orders.Format": "csv", "source.orders.path": "/o", "Query": "SELECT 1"})
    assert options.sources[0].alias == "orders"
    assert options.query == "SELECT 1"


def test_settings() -> None:
    settings = Options.parse(
        TWO | {"partitions": "4", "memory": "512m", "stateLocation": "/s", "overflow": "fail"}
    ).settings
    assert (settings.partitions, settings.memory_bytes, settings.state_location) == (4, 512 << 20, "/s")
    assert Options.parse(TWO).settings.memory_bytes is None


def test_expectations() -> None:
    given = {
        "source.a.expectedRowsPerSecond": "500", "source.b.expectedrowspersecond": "1.5e3",
        "expectedSelectivity": " B.a : 0.001, a.a: 1e-4,",
    }  # fmt: skip
    options = Options.parse(TWO | given)
    assert options.settings.expected == Expected((("a", 500.0), ("b", 1500.0)), (("a", "a", 0.0001), ("a", "b", 0.001)))
    assert dict(options.sources[1].options) == {"path": "/b"}  # the source itself never sees it
    assert Options.parse(TWO).settings.expected == Expected()


@pytest.mark.parametrize(
    ("text", "size"), [("1048576", 1 << 20), ("64k", 65536), ("2g", 2 << 30), ("1 TB", 1 << 40), ("8KiB", 8192)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text, "memory") == size


def test_limits_are_defaults_for_sources_without_their_own() -> None:
    given = TWO | {
        "maxRowsPerTrigger": "10", "maxFilesPerTrigger": "3", "source.b.maxrowspertrigger": "7",
        "source.w.format": "wisconsin", "source.a.format": "csv",
    }  # fmt: skip
    parsed = Options.parse(given)
    a, b, w = (dict(with_limits(s.alias, s.format, s.options, parsed.limits)) for s in parsed.sources)
    assert a["maxRowsPerTrigger"] == "10"
    assert b == {"path": "/b", "maxrowspertrigger": "7", "maxFilesPerTrigger": "3"}
    assert w == {"maxRowsPerTrigger": "10"}


def test_a_limit_for_all_is_handed_to_the_sources_that_know_it() -> None:
    """Which these are their classes say: the source of the tests knows no files."""
    one = pa.table({"k": [1]})
    options = scripted({"a": [one], "b": [one]}, "SELECT a.k FROM a JOIN b ON a.k = b.k", maxRowsPerTrigger="7")
    spec, _ = load(options)
    assert [dict(s.options) for s in spec.sources] == [{"script": n, "maxRowsPerTrigger": "7"} for n in "ab"]
    with pytest.raises(OptionError, match="'maxFilesPerTrigger' has no effect: it does not apply to format scripted"):
        load({**options, "maxFilesPerTrigger": "3"})


def test_partitions_that_have_no_effect_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    one = pa.table({"k": [1], "l": [1]})
    scripts = {alias: [one] for alias in "abc"}
    star = "SELECT a.k FROM a JOIN b ON a.k = b.k JOIN c ON b.k = c.k"
    _, settings = load(scripted(scripts, star, partitions="3"))
    assert settings.partitions == 3 and not caplog.records
    _, settings = load(scripted(scripts, star.replace("b.k = c.k", "b.l = c.l")))
    assert settings.partitions == 1 and not caplog.records
    _, settings = load(scripted(scripts, star.replace("b.k = c.k", "b.l = c.l"), partitions="3"))
    assert settings.partitions == 1
    assert "option 'partitions' = 3 has no effect" in caplog.text


def test_hidden_options_of_spark_pass() -> None:
    Options.parse(TWO | {"__internal": "x"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"partitons": "2"}, "unknown option 'partitons'. Did you mean 'partitions'?"),
        ({"path": "/x"}, "source.<alias>.path"),
        ({"goal": "speed"}, "option 'goal': unknown value 'speed'. Values are: rate, memory"),
        ({"purge": "batch"}, "option 'purge' is given, but no source makes key promises"),
        ({"source.a.punctuationRange": "low, high"}, "but not 'source.a.punctuation'"),
        ({"source.a.unique": "id, ID"}, "'id, ID' is not a column, or several with commas"),
        ({"source.a.ordered": "id up"}, "'id up' is not one column, with 'desc' behind it"),
        (
            {"source.a.unique": "id", "goal": "memory", "purgeEvery": "5"},
            "option 'purgeEvery' has no effect where 'goal' is 'memory'",
        ),
        (
            {"source.a.unique": "id", "overflow": "shed", "maxDelay": "1 second"},
            "'shed' sheds or drops rows, and source 'a' makes key promises",
        ),
        ({"overflow": "shad"}, "unknown value 'shad'. Did you mean 'shed'?"),
        (
            {"maxDelay": "5 seconds"},
            "option 'maxDelay' is about shedding: it needs option 'overflow' to be 'shed' or 'shrink'",
        ),
        ({"overflow": "shed", "maxDelay": "1 second", "minRecall": "0.9"}, "'maxDelay' and 'minRecall' are both"),
        ({"overflow": "shrink"}, "'shrink' makes windows fit into memory: set option 'memory'"),
        ({"overflow": "shrink", "memory": "1m"}, "'shrink' shortens windows, and source 'a' has none"),
        ({"overflow": "shrink", "minRecall": "0.5"}, "it needs option 'overflow' to be 'shed'"),
        ({"overflow": "shed", "memory": "1m", "minRecall": "0.5"}, "'minRecall' and 'memory' are both given"),
        ({"overflow": "shed", "maxDelay": "0 seconds"}, "is no time at all"),
        ({"overflow": "shed", "minRecall": "2"}, "option 'minRecall': '2' is not a number above 0 and up to 1"),
        ({"flush": "randon"}, "unknown value 'randon'. Did you mean 'random'?"),
        ({"diskFuel": "some"}, "option 'diskFuel': 'some' is not a size"),
        ({"blockingThreshold": "0"}, "option 'blockingThreshold'"),
        ({"segmentCompression": "gzip"}, "unknown value 'gzip'. Values are: none, lz4, zstd"),
        ({"overflow": "fial"}, "unknown value 'fial'. Did you mean 'fail'?"),
        ({"memory": "lots"}, "option 'memory': 'lots' is not a size"),
        ({"memory": "0"}, "option 'memory'"),
        ({"partitions": "0"}, "option 'partitions': '0' is not a whole number of at least 1"),
        ({"maxRowsPerTrigger": "-1"}, "option 'maxRowsPerTrigger'"),
        (
            {"source.a.expectedRowsPerSecond": "0"},
            "option 'source.a.expectedRowsPerSecond': '0' is not a number above 0",
        ),
        ({"source.a.hosts": "h1,,h2"}, "option 'source.a.hosts': 'h1,,h2' is not a host, or several with commas"),
        ({"source.a.hosts": "h1, h1"}, "option 'source.a.hosts': 'h1, h1' is not a host, or several with commas"),
        ({"source.a.expectedRowsPerSecond": "many"}, "'many' is not a number above 0, such as 500"),
        ({"expectedSelectivity": "a.b"}, "'a.b' is not of the form <alias>.<alias>: <number>"),
        ({"expectedSelectivity": "a.b.c: 0.1"}, "is not of the form"),
        ({"expectedSelectivity": "a.bb: 0.1"}, "a source 'bb' that is not there. Did you mean 'b'? Sources are: a, b"),
        ({"expectedSelectivity": "a.b: x"}, "option 'expectedSelectivity' of 'a.b': 'x' is not a number above 0"),
        ({"expectedSelectivity": "a.b: 0"}, "'0' is not a number above 0 and up to 1"),
        ({"expectedSelectivity": "a.b: 1.5"}, "'1.5' is not a number above 0 and up to 1"),
        ({"expectedSelectivity": "a.b: nan"}, "'nan' is not a number above 0 and up to 1"),
        ({"expectedSelectivity": "a.b: 0.1, b.a: 0.2"}, "'a.b' is there twice"),
        ({"query": "SELECT 1"}, "both given"),
        ({"on": ""}, "option 'query' is missing"),
        ({"on": "a,,b"}, "comma-separated"),
        ({"on": "a, A"}, "names a column twice"),
        ({"source.c.path": "/c"}, "source 'c' has no format: option 'source.c.format' is missing"),
        ({"source.c.fromat": "csv"}, "misspelt as 'fromat'"),
        ({"source.1x.format": "csv"}, "'1x' is not an SQL identifier"),
        ({"source.c": "csv"}, "source.c.format"),
    ],
)
def test_mistakes(change: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as e:
        Options.parse(TWO | change)
    assert message in str(e.value)


def test_no_sources_and_too_few() -> None:
    with pytest.raises(OptionError, match="no sources"):
        Options.parse({"query": "SELECT 1"})
    with pytest.raises(OptionError, match="only one"):
        Options.parse({"source.a.format": "csv", "on": "id"})


def test_hosts_are_those_of_a_join_of_dataframes() -> None:
    given = TWO | {"source.a.hosts": "h1, h2"}
    assert Options.parse(given).settings.expected.hosts == (("a", ("h1", "h2")),)
    given = scripted(
        {"a": [pa.table({"k": [1]})], "b": [pa.table({"k": [1]})]}, "SELECT a.k FROM a JOIN b ON a.k = b.k"
    )
    with pytest.raises(OptionError, match=r"option 'source.a.hosts' says from where .* spark_mjoin.join"):
        load(given | {"source.a.hosts": "h1"})
