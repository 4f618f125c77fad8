"""Conjuncts into filters, key classes and residuals; the columns of the state; what makes state unusable."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest

from spark_mjoin.config import Options
from spark_mjoin.errors import QueryError
from spark_mjoin.mjoin.rendering import render
from spark_mjoin.model import InputSpec, JoinSpec, KeyDomain
from spark_mjoin.query.fingerprint import describe, differences
from spark_mjoin.query.graph import plan_join

TIMESTAMP = pa.timestamp("us", "UTC")
SCHEMAS = {
    "o": pa.schema(
        [("id", pa.int64()), ("name", pa.string()), ("amt", pa.decimal128(10, 2)), ("f", pa.float64()),
         ("ts", TIMESTAMP), ("d", pa.date32()), ("small", pa.int16()), ("tags", pa.list_(pa.string()))]
    ),
    "p": pa.schema(
        [("oid", pa.int32()), ("amount", pa.decimal128(12, 3)), ("g", pa.float32()), ("ts", TIMESTAMP),
         ("note", pa.string()), ("n", pa.timestamp("us")), ("huge", pa.decimal128(38, 20)),
         ("tags", pa.list_(pa.string()))]
    ),
    "s": pa.schema([("id", pa.int64()), ("oid", pa.int64()), ("carrier", pa.string())]),
}  # fmt: skip


def plan(query: str, **more: str) -> JoinSpec:
    given = {f"source.{a}.format": "parquet" for a in SCHEMAS} | {f"source.{a}.path": f"/{a}" for a in SCHEMAS}
    options = Options.parse(given | {"query": query} | {k.replace("__", "."): v for k, v in more.items()})
    return plan_join(options, [SCHEMAS[s.alias] for s in options.sources])


def where(condition: str, select: str = "o.id AS x") -> JoinSpec:
    return plan(f"SELECT {select} FROM o, p WHERE {condition}")


def stored(input: InputSpec) -> list[tuple[str, str, str | None]]:
    return [(c.name, str(c.type), c.domain.kind if c.domain else None) for c in input.stored]


def error(query: str) -> str:
    with pytest.raises(QueryError) as e:
        plan(query)
    return str(e.value)


def test_conjuncts_find_their_places() -> None:
    spec = where(
        "o.id = p.oid AND o.name LIKE 'a%' AND p.amount > 3 AND o.ts < p.ts AND o.id + p.oid = p.oid AND 1 = 1"
    )
    o, p = spec.inputs
    assert o.filter is not None and render(o.filter) == "name LIKE 'a%'"
    assert p.filter is not None and render(p.filter) == "(amount > 3)"
    assert [render(r.expr, "op") for r in spec.residuals] == ["(o.ts < p.ts)", "((o.id + p.oid) = p.oid)"]
    assert spec.residuals[0].inputs == {0, 1}
    assert spec.classes == (KeyDomain("integer"),)


def test_keys_are_shared_with_payload_where_nothing_is_lost() -> None:
    o, p = where("o.id = p.oid AND o.amt = p.amount AND o.ts = p.ts", "o.id, p.oid, o.amt, p.ts, note").inputs
    assert stored(o) == [
        ("id", "int64", "integer"), ("key amt", "int64", "decimal"), ("ts", "int64", "timestamp"),
        ("amt", "decimal128(10, 2)", None),
    ]  # fmt: skip
    assert (o.keys, o.payload) == (((0, 0), (1, 1), (2, 2)), (("id", 0), ("amt", 3)))
    assert p.payload == (("oid", 0), ("ts", 2), ("note", 3))
    assert o.columns == ("id", "amt", "ts")


def test_expressions_can_be_keys() -> None:
    o, p = where("date_trunc('minute', o.ts) = p.ts AND o.id + 1 = p.oid", "o.ts").inputs
    assert stored(o) == [
        ("key date_trunc('minute', ts)", "int64", "timestamp"), ("key (id + 1)", "int64", "integer"),
        ("ts", str(TIMESTAMP), None),
    ]  # fmt: skip
    assert (p.columns, p.payload) == (("oid", "ts"), ())


@pytest.mark.parametrize(
    ("condition", "domain"),
    [
        ("o.small = p.oid", KeyDomain("integer")),
        ("o.amt = p.amount", KeyDomain("decimal", 3, 12)),
        ("p.amount = o.small", KeyDomain("decimal", 3, 12)),
        ("p.amount = o.id", KeyDomain("decimal", 3, 22)),
        ("o.id = p.g", KeyDomain("double")),
        ("o.amt = p.g", KeyDomain("double")),
        ("o.name = p.note", KeyDomain("string")),
        ("CAST(o.ts AS DATE) = CAST(p.n AS DATE)", KeyDomain("date")),
        ("o.ts = CAST(p.n AS TIMESTAMP)", KeyDomain("timestamp")),
        ("CAST(o.name AS BINARY) = CAST(p.note AS BINARY)", KeyDomain("binary")),
        ("(o.id > 1) = (p.oid > 1)", KeyDomain("boolean")),
    ],
)
def test_domains(condition: str, domain: KeyDomain) -> None:
    assert where(condition).classes == (domain,)


def test_wide_decimals_are_bytes() -> None:
    assert stored(where("p.amount = o.id").inputs[0])[0] == ("key id", "binary", "decimal")


def test_classes_are_transitive() -> None:
    spec = plan("SELECT o.id FROM o JOIN p ON o.id = p.oid JOIN s ON p.oid = s.oid AND s.id = o.small")
    assert [i.keys for i in spec.inputs] == [((0, 0), (1, 1)), ((0, 0),), ((0, 0), (1, 1))]
    assert spec.star_class == 0


def test_two_columns_of_one_input_in_a_class_become_a_filter() -> None:
    spec = plan("SELECT o.id FROM o JOIN s ON o.id = s.id AND o.id = s.oid")
    assert len(spec.inputs[1].keys) == 1
    assert spec.inputs[1].filter is not None and render(spec.inputs[1].filter) == "(id = oid)"


def test_exact_and_floating_comparisons_do_not_mix() -> None:
    spec = plan("SELECT o.id FROM o JOIN p ON o.id = p.g JOIN s ON o.id = s.id")
    assert [d.kind for d in spec.classes] == ["double", "integer"]
    assert [k for k, _ in spec.inputs[0].keys] == [0, 1]
    floating = where("o.id = p.g AND o.small = p.g")
    assert floating.inputs[0].filter is not None
    assert render(floating.inputs[0].filter) == "(CAST(id AS DOUBLE) = CAST(small AS DOUBLE))"


def test_output_types_are_known() -> None:
    spec = where("o.id = p.oid", "o.amt * 2 AS a, NULL AS b, p.ts - o.ts AS c, o.tags, o.small + p.oid AS e")
    assert [str(t) for t in spec.schema.types] == [
        "decimal128(12, 2)", "null", "duration[us]", "list<item: string>".replace("item", "element"), "int32"
    ]  # fmt: skip


def test_a_spec_travels() -> None:
    spec = where("o.id = p.oid AND o.ts > '2024-01-01'")
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("condition", "parts"),
    [
        ("o.name = p.oid", ["o.name is STRING", "p.oid is INT", "CAST(p.oid AS STRING)"]),
        ("o.d = p.ts", ["o.d is DATE", "p.ts is TIMESTAMP", "CAST(p.ts AS DATE)"]),
        ("o.ts = p.n", ["TIMESTAMP_NTZ"]),
        ("o.id = p.huge", ["needs 39 decimal digits", "CAST"]),
        ("o.id = p.oid AND o.id + p.oid", ["(o.id + p.oid)", "is BIGINT, not BOOLEAN"]),
        ("o.id = p.oid AND o.id", ["is BIGINT, not BOOLEAN"]),
        ("o.id = p.oid AND 1 = 2", ["(1 = 2)", "always false"]),
        ("o.id = p.oid AND NULL", ["always NULL"]),
        ("o.id = p.oid AND o.name + o.ts > 1", ["(name + ts)", "STRING + TIMESTAMP"]),
        ("o.id = p.oid AND o.ts > '2024-99-01'", ["'2024-99-01' cannot be cast to TIMESTAMP"]),
        ("o.id < p.oid", ["not connected", "{o} and {p}"]),
        ("o.tags = p.tags", ["ARRAY<STRING>"]),
    ],
)
def test_mistakes(condition: str, parts: list[str]) -> None:
    message = error(f"SELECT o.id AS x FROM o, p WHERE {condition}")
    for part in parts:
        assert part in message


def test_disconnected_groups_are_listed() -> None:
    assert "{o, p} and {s}" in error("SELECT o.id AS x FROM o, p, s WHERE o.id = p.oid")


def test_the_fingerprint_knows_what_matters() -> None:
    join = "FROM o JOIN p ON o.id = p.oid"
    base = describe(plan(f"SELECT o.id, amount, p.ts {join}"))
    assert json.loads(json.dumps(base)) == base
    same = plan(f"SELECT p.ts AS t, amount * 2 AS twice {join} AND amount > o.id", source__p__maxFilesPerTrigger="1")
    assert differences(base, describe(same)) == []
    other = plan("SELECT o.id, note FROM o JOIN p ON o.id = p.g AND o.f > 1", source__p__path="/q")
    assert differences(base, describe(other)) == [
        "source p: option path was /p, is now /q",
        "input o: filter was not given, is now (f > 1)",
        "input o: key was id (integer as BIGINT), is now id (double)",
        "input o: column id was not stored",
        "input p: key was oid (integer), is now g (double)",
        "input p: column amount is stored no longer",
        "input p: column ts is stored no longer",
        "input p: column note was not stored",
    ]
    assert "input s is new" in differences(base, describe(plan(f"SELECT o.id {join} JOIN s ON s.id = o.id")))


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("id BIGINT, oid INT", "id  bigint,\n  `oid` integer COMMENT 'of the order'", True),
        ("id BIGINT, oid INT", "id LONG, oid int", True),
        ("id BIGINT, oid INT", "oid INT, id BIGINT", False),
        ("id BIGINT, oid INT", "id BIGINT, oid BIGINT", False),
        (None, "id BIGINT", False),
    ],
)
def test_the_fingerprint_does_not_care_how_a_schema_is_written(before: str | None, after: str, same: bool) -> None:
    was, now = (describe(plan("SELECT o.id FROM o JOIN p ON o.id = p.oid")) for _ in range(2))
    if before is not None:
        was["sources"]["p"]["options"]["schema"] = before
    now["sources"]["p"]["options"]["schema"] = after
    refused = f"source p: option schema was {before or 'not given'}, is now {after}"
    assert differences(was, now) == ([] if same else [refused])


def test_the_fingerprint_sees_a_change_of_partners() -> None:
    first = plan("SELECT 1 AS x FROM o JOIN p ON o.id = p.oid JOIN s ON o.small = s.id")
    second = plan("SELECT 1 AS x FROM o JOIN s ON o.id = s.id JOIN p ON o.small = p.oid")
    assert any("other columns" in d for d in differences(describe(first), describe(second)))


def test_secrets_stay_out_of_the_fingerprint() -> None:
    spec = plan("SELECT o.id FROM o JOIN p ON o.id = p.oid", source__p__password="hunter2")
    assert "hunter2" not in json.dumps(describe(spec))
