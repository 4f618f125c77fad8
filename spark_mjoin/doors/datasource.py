"""`format("mjoin")`: options in, a schema and readers out.

Spark calls `schema()` at `load()`, and `schema()` finds everything that can be wrong with the options. Its outcome
travels with the pickled data source, so a query runs with the schemas that it was loaded with.

Nothing heavy is imported at the top: PySpark imports this module whenever it looks up a data source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from spark_mjoin.model import JoinSpec, Settings


class MJoinDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "mjoin"

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._compiled: tuple[JoinSpec, Settings] | None = None
        if options.get("__checkpointLocation") is not None:
            # The jar sets this option when a query begins, in a process that has parsed queries before. The planner's
            # process, which Spark starts for the query, then need not load the join again, and imports no parser.
            self._compile()

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        spec, _ = self._compile()
        return from_arrow_schema(spec.schema, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_mjoin.doors.reader import MJoinBatchReader

        self._require(schema)
        return MJoinBatchReader(*self._compile())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_mjoin.doors.reader import MJoinStreamReader

        self._require(schema)
        return MJoinStreamReader(*self._compile())

    def _compile(self) -> tuple[JoinSpec, Settings]:
        if self._compiled is None:
            from spark_mjoin.driver.loading import load
            from spark_mjoin.redaction import Secrets

            with Secrets.of(self.options.items()).kept():
                self._compiled = load(self.options)
        return self._compiled

    def _require(self, schema: StructType) -> None:
        """A schema given by the user must be the one that the query has: this source does not cast."""
        from spark_mjoin.errors import OptionError

        if schema != self.schema():
            raise OptionError(
                f"the schema given, {schema.simpleString()}, is not the schema of the join, "
                f"{self.schema().simpleString()}; remove it, and shape the columns in option 'query'"
            )
