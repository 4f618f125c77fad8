"""`format("mjoin")`: options in, a schema and readers out.

Everything that can be wrong with the options is found in `schema()`, which Spark calls at `load()`. What is found is
kept and travels with the pickled data source, so a query runs with the schemas that it was loaded with.

Nothing heavy is imported at the top: PySpark imports this module whenever it looks up a data source.
"""

from __future__ import annotations

from dataclasses import replace
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

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        spec, _ = self._compile()
        return from_arrow_schema(spec.schema, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_mjoin.reader import MJoinBatchReader

        self._require(schema)
        return MJoinBatchReader(*self._compile())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_mjoin.reader import MJoinStreamReader

        self._require(schema)
        return MJoinStreamReader(*self._compile())

    def _compile(self) -> tuple[JoinSpec, Settings]:
        if self._compiled is None:
            from spark_mjoin import sources
            from spark_mjoin.config import Options
            from spark_mjoin.errors import OptionError
            from spark_mjoin.planner import tree
            from spark_mjoin.planner.graph import plan_join

            options = Options.parse(self.options)
            schemas = []
            for source in options.sources:
                sources.limits(source.alias, dict(source.options))
                schemas.append(sources.create(source.alias, source.format, dict(source.options)).schema())
            spec, settings = plan_join(options, schemas), options.settings
            used = {input.source for input in spec.inputs}
            for idle in (s.alias for number, s in enumerate(spec.sources) if number not in used):
                raise OptionError(f"source '{idle}' is not in option 'query': join it, or remove 'source.{idle}.…'")
            if spec.star_class is None:
                settings = replace(settings, partitions=1)  # no key that all inputs have to split the rows by
                if settings.flush == "coordinated":
                    raise OptionError(
                        "option 'flush': 'coordinated' needs a key that all inputs have, and this join has none; "
                        "'adaptive', 'largest' and 'random' work on every join"
                    )
            tree.chosen(settings.plan, spec)  # a plan that does not fit is an error now
            self._compiled = spec, settings
        return self._compiled

    def _require(self, schema: StructType) -> None:
        """A schema given by the user must be the one that the query has: this source does not cast."""
        from spark_mjoin.errors import OptionError

        if schema != self.schema():
            raise OptionError(
                f"the schema given, {schema.simpleString()}, is not what the join gives out, "
                f"{self.schema().simpleString()}; leave it out, and shape the columns in option 'query'"
            )
