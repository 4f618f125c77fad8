"""A source whose arrivals are data: which rows come in which batch is written down by the test.

`SCRIPTS[name]` is a list of Arrow tables, one per batch; an empty table is a batch in which the source has nothing.
Once it is frozen, what is left comes at once, or as many batches of it as `maxRowsPerTrigger` allows, but one at least.
Registered as format `scripted` for tests that drive the reader in this process.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from spark_mjoin import sources
from spark_mjoin.schema import canonical_schema
from spark_mjoin.sources.options import Options
from spark_mjoin.sources.protocol import Limits, SourceLog

SCRIPTS: dict[str, list[pa.Table]] = {}
CHUNK_ROWS = 7  # rows that arrive together

sources.REGISTRY["scripted"] = "tests.scripted:ScriptedSource"


class ScriptedSource:
    OPTIONS = ("script",)
    LIMITS = ("maxRowsPerTrigger",)

    def __init__(self, alias: str, options: Options) -> None:
        self._script = options.required("script", "the name of an entry of SCRIPTS")
        self._all_at_once = False

    def schema(self) -> pa.Schema:
        return canonical_schema(SCRIPTS[self._script][0].schema)

    def assume(self, schema: pa.Schema) -> None:
        assert schema == self.schema()

    def initial(self) -> dict:
        return {"batch": 0}

    def latest(self, start: dict, limits: Limits, log: SourceLog) -> dict:
        last = len(SCRIPTS[self._script])
        end = min(start["batch"] + 1, last)
        rows = sum(table.num_rows for table in SCRIPTS[self._script][start["batch"] : end])
        while self._all_at_once and end < last:
            rows += SCRIPTS[self._script][end].num_rows
            if limits.max_rows is not None and rows > limits.max_rows:
                break
            end += 1
        return {"batch": end}

    def freeze(self, log: SourceLog) -> None:
        self._all_at_once = True

    def plan(self, start: dict, end: dict, log: SourceLog) -> list[dict]:
        return [{"batch": b} for b in range(start["batch"], end["batch"])]

    def behind(self, position: dict, log: SourceLog) -> int:
        return len(SCRIPTS[self._script]) - position["batch"]

    def read(self, range: dict, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        table = SCRIPTS[self._script][range["batch"]].select(list(columns))
        yield from table.to_batches(max_chunksize=CHUNK_ROWS)

    def count(self, range: dict) -> int:
        return SCRIPTS[self._script][range["batch"]].num_rows
