"""Schemas written as DDL: what Spark's own means here, and what is refused rather than overlooked."""

import pyarrow as pa
import pytest

from spark_mjoin.errors import OptionError
from spark_mjoin.schema import parse_ddl


def test_names_types_and_what_may_be_said_of_a_column() -> None:
    ddl = (
        "id BIGINT NOT NULL COMMENT 'x', `a.b` DECIMAL(5), d DECIMAL, e DECIMAL(4,4), "
        "s STRUCT<a: INT NOT NULL, `b c`: DATE>"
    )
    nested = pa.struct({"a": pa.int32(), "b c": pa.date32()})
    decimals = {"a.b": pa.decimal128(5, 0), "d": pa.decimal128(10, 0), "e": pa.decimal128(4, 4)}
    assert parse_ddl(ddl, "schema") == pa.schema({"id": pa.int64(), **decimals, "s": nested})


@pytest.mark.parametrize(
    ("ddl", "part"),
    [
        ("s STRING COLLATE UTF8_LCASE", "COLLATE UTF8_LCASE is not supported"),
        ("s ARRAY<STRING COLLATE UTF8_LCASE>", "COLLATE UTF8_LCASE is not supported"),
        ("s MAP<STRING COLLATE UNICODE, INT>", "COLLATE UNICODE is not supported"),
        ("s STRUCT<a: STRING COLLATE UNICODE>", "COLLATE UNICODE is not supported"),
        ("id INT, n INT DEFAULT 3", "DEFAULT 3 is not supported"),
        ("id INT PRIMARY KEY", "PRIMARY KEY is not supported"),
        ("id INT, a.b INT", "backticks"),
        ("`` INT", "is not a name and a type"),
        ("id INT, b", "'b' is not a name and a type"),
        ("id INT, PRIMARY KEY (id)", "is not a name and a type"),
        ("s STRUCT<INT>", "is not a name and a type"),
        ("d DECIMAL(5,10)", "DECIMAL(5, 10) is no DECIMAL"),
        ("d DECIMAL(5,1,1)", "is no DECIMAL"),
        ("d DECIMAL(39,1)", "precision"),
        ("", "no columns"),
    ],
)
def test_what_is_refused(ddl: str, part: str) -> None:
    with pytest.raises(OptionError, match=r"option 'source\.s\.schema'") as e:
        parse_ddl(ddl, "source.s.schema")
    assert part in str(e.value)
