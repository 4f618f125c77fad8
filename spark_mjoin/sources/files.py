"""Directories of files as a source: parquet, csv, json and arrow, with the behaviour of Spark's file source.

    listing -> new, complete files, oldest first -> SourceLog -> position {"files": k, "rows": r} -> ranges -> rows

A position says: k entries of the log are consumed whole, and r rows of entry k. The log holds what was found, once,
in the order in which it is consumed, as {"path", "size", "mtime_ns", "rows"}; "rows" is null where nobody had to
count.

Why it is right. An entry is in the log before a position that counts it is returned, and entries never change, so
`plan` needs nothing but the log and two positions. After a crash between the two, the log has entries that no position
counts: `latest` consumes those before it looks for more. A file is new if the log lacks its path, as in Spark: a change
of a consumed file is no new file. The rows of a file have one order, so (path, row range) names the same rows for ever,
as long as the file is what it was: `read` compares size and time of change with the log, before the first row and after
the last, and refuses a file that changed; the task that has read a mixture then fails before it commits.

Only complete files are logged, and completeness.py says which are complete. It judges a file as it was listed. A file
that changes before it is logged is skipped, and the next listing judges it anew. Empty files are ignored.

An inferred schema is that of the oldest file. It is found once per instance and travels with it when pickled, so
executors must be given the instance on which the driver called `schema()`, and not a new one.

Not covered: partition columns from directory names, cleaning up or archiving consumed files, files that grow.
"""

from __future__ import annotations

import codecs
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from spark_mjoin.errors import OptionError, SourceError, listed
from spark_mjoin.model import Position, Range
from spark_mjoin.schema import parse_ddl
from spark_mjoin.sources.conversion import ColumnError
from spark_mjoin.sources.decoding.arrow import Arrow
from spark_mjoin.sources.decoding.csv import Csv
from spark_mjoin.sources.decoding.file import File, FileFormat
from spark_mjoin.sources.decoding.json import Json
from spark_mjoin.sources.decoding.parquet import Parquet
from spark_mjoin.sources.discovery import Backlog, Place, by_age, logged
from spark_mjoin.sources.globs import compiled
from spark_mjoin.sources.options import Options
from spark_mjoin.sources.protocol import LIMITS, Limits, SourceLog, Survey
from spark_mjoin.sources.storage import FileStat, exists, is_glob, storage
from spark_mjoin.sources.survey import rate, rows_in
from spark_mjoin.sources.taking import Taking

_log = logging.getLogger(__name__)

_COUNTS_KEPT = 10_000


class FileSource:
    """A path that files of one format arrive under. The formats below differ in what they know about a file only."""

    OPTIONS: tuple[str, ...] = (
        "path", "schema", "failOnDataLoss", "latestFirst", "recursiveFileLookup", "pathGlobFilter",
    )  # fmt: skip
    LIMITS = LIMITS

    def __init__(self, alias: str, options: Options, format: FileFormat) -> None:
        self._alias = alias
        self._format = format
        self._secrets = options.secrets
        path = options.required("path", "a directory, a file or a glob")
        try:
            self._store = storage(path)
        except (ValueError, OSError, ImportError, pa.ArrowException) as e:
            raise options.error("path", f"'{path}' cannot be used: {e}") from self._secrets.cause(e)
        ddl = options.text("schema")
        self._declared = None if ddl is None else parse_ddl(ddl, options.name("schema"))
        self._fail_on_data_loss = options.flag("failOnDataLoss", True)
        name_filter = options.text("pathGlobFilter")
        try:
            _ = compiled(name_filter or "")
        except ValueError as e:
            raise options.error("pathGlobFilter", str(e)) from e
        latest_first, recursive = options.flag("latestFirst", False), options.flag("recursiveFileLookup", False)
        self._place = Place(alias, self._store, format, self._secrets, latest_first, recursive, name_filter)
        self._schema: pa.Schema | None = None
        self._end: int | None = None  # of the log, once frozen
        self._forget()

    def _forget(self) -> None:
        """Start over with what is only remembered to save work."""
        self._backlog = Backlog(self._place)
        self._counts: dict[FileStat, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        kept = (
            "_alias",
            "_format",
            "_store",
            "_secrets",
            "_declared",
            "_fail_on_data_loss",
            "_place",
            "_schema",
            "_end",
        )
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    # --- schema ------------------------------------------------------------------------------------------------

    def schema(self) -> pa.Schema:
        if self._schema is None:
            self._schema = self._resolve_schema()
        return self._schema

    def assume(self, schema: pa.Schema) -> None:
        self._schema = schema

    def _resolve_schema(self) -> pa.Schema:
        path_option, schema_option = (f"source.{self._alias}.{name}" for name in ("path", "schema"))
        if self._declared is None and not self._format.carries_schema:
            raise OptionError(
                f"option '{schema_option}' is required: files of this format do not carry their types; "
                f"for example 'id BIGINT, name STRING'"
            )
        if self._declared is not None:
            refusal = self._format.refusal(self._declared)
            names = [n.casefold() for n in self._declared.names]
            twice = sorted({n for n in names if names.count(n) > 1})
            if refusal or twice:
                raise OptionError(f"option '{schema_option}': {refusal or f'column {listed(twice)} occurs twice'}")
        glob = is_glob(self._store.root)
        try:
            if not glob and not exists(self._store):
                raise OptionError(f"option '{path_option}': '{self._store.shown}' does not exist")
            if self._declared is not None:
                return self._declared
            # Not through the backlog, which remembers what it sees: a file that grows later still has its types.
            candidates = sorted(self._place.files(), key=by_age)
            first = next((f for f in candidates if self._format.is_complete(File(self._store, f))), None)
        except OSError as e:
            raise OptionError(
                f"option '{path_option}': '{self._store.shown}' cannot be listed: {self._secrets.hide(str(e))}"
            ) from self._secrets.cause(e)
        if first is None:
            nothing = "matches no complete file" if glob else "has no complete file"
            raise OptionError(
                f"option '{schema_option}' is missing and '{self._store.shown}' (option '{path_option}') {nothing} to "
                f"infer it from: set '{schema_option}', for example to 'id BIGINT, name STRING'"
            )
        try:
            return self._format.infer(File(self._store, first))
        except (pa.ArrowException, OSError, TypeError) as e:
            raise OptionError(
                f"option '{path_option}': no schema can be inferred from '{first.path}': {self._secrets.hide(str(e))}; "
                f"remove the file or set '{schema_option}'"
            ) from self._secrets.cause(e)

    # --- driver ------------------------------------------------------------------------------------------------

    def initial(self) -> Position:
        return {"files": 0, "rows": 0}

    def latest(self, start: Position, limits: Limits, log: SourceLog) -> Position:
        self._check_reach(start, log)
        taking = Taking(start, limits)
        for entry in logged(log, start["files"], len(log) if self._end is None else self._end):
            file = FileStat(entry["path"], entry["size"], entry["mtime_ns"])
            rows = None
            if limits.max_rows is not None:
                rows = entry["rows"] if entry["rows"] is not None else self._count(file)
            if not taking.take(file, rows):
                return taking.position
        if self._end is None:
            self._take_new(taking, limits, log)
        return taking.position

    def freeze(self, log: SourceLog) -> None:
        self._backlog.catch_up(log)
        new = self._backlog.discovered(last_look=True)
        self._backlog.record([_entry(f, None) for f in new], log)
        self._end = len(log)

    def plan(self, start: Position, end: Position, log: SourceLog) -> list[Range]:
        first, last = start["files"], self._check_reach(end, log)
        ranges = []
        for number, entry in enumerate(log.read(first, last), first):
            low = start["rows"] if number == start["files"] else 0
            high = end["rows"] if number == end["files"] else None
            if high is None or low < high:
                ranges.append({k: entry[k] for k in ("path", "size", "mtime_ns")} | {"start": low, "end": high})
        return ranges

    def _check_reach(self, position: Position, log: SourceLog) -> int:
        """How many files a position counts. Resuming from one that counts more than were found would skip files."""
        counted: int = position["files"] + (1 if position["rows"] else 0)
        if counted > len(log):
            raise SourceError(
                f"source '{self._alias}': its log has {len(log)} files where the checkpoint counts {counted}; the "
                "checkpoint and the state directory do not belong together. Restore both of the same time, or start "
                "with a new checkpoint"
            )
        return counted

    def survey(self, rows: int, log: SourceLog) -> Survey:
        self.freeze(log)
        start, entries = self.initial(), log.read(0, len(log))
        ranges = self.plan(start, self.latest(start, Limits(), log), log)
        try:
            found = rows_in(self._store, self._format, entries, self.schema())
        except (ColumnError, pa.ArrowException, OSError) as e:
            raise self._unreadable(self._store.shown, e) from self._secrets.cause(e)
        basis = f"{len(entries)} file{'' if len(entries) == 1 else 's'}, {sum(e['size'] for e in entries):,} bytes"
        sampled = [{**each, "end": rows} for each in ranges]
        return Survey(sampled, found, basis, rate(entries, found, time.time()))

    def may_lose_rows(self) -> bool:
        return not self._fail_on_data_loss

    def behind(self, position: Position, log: SourceLog) -> int:
        found = len(log) + len(self._backlog) if self._end is None else self._end
        return max(0, found - int(position["files"]))

    def _take_new(self, taking: Taking, limits: Limits, log: SourceLog) -> None:
        """Take new files up to the limits, and log those that the position counts."""
        backlog = self._backlog
        backlog.catch_up(log)
        if self._place.latest_first:
            backlog.clear()
        taken: list[dict[str, Any]] = []
        listed_now = False
        while not taking.full:
            if not backlog:
                if listed_now:
                    break
                listed_now = True
                backlog.record(taken, log)  # or the listing would find them again
                taken = []
                backlog.refill()
                continue
            file = backlog.next()
            # A file that was just listed needs no second look, unless it is counted, which takes its time.
            rows, as_listed = None, listed_now or self._is_still(file)
            if as_listed and limits.max_rows is not None:
                try:
                    rows = self._count(file, logged=False)
                except SourceError:
                    if self._is_still(file):
                        raise
                as_listed = rows is not None and self._is_still(file)
            if not as_listed:  # no position counts it: the next listing says what it is now, and whether it is complete
                backlog.remove()
                continue
            before = taking.position
            more = taking.take(file, rows)
            if taking.position != before:
                taken.append(_entry(file, rows))
                backlog.remove()
            if not more:
                break
        backlog.record(taken, log)

    def _count(self, file: FileStat, logged: bool = True) -> int:
        """The rows of a file, counted once; 0 when it is lost and losing it is allowed."""
        if file not in self._counts:
            current = self._checked(file) if logged else file
            if current is None or not current.size:
                return 0
            if len(self._counts) >= _COUNTS_KEPT:
                self._counts.clear()
            try:
                self._counts[file] = self._format.count(File(self._store, current), self.schema())
            except (ColumnError, pa.ArrowException, OSError) as e:
                raise self._unreadable(file.path, e) from self._secrets.cause(e)
        return self._counts[file]

    # --- executor ----------------------------------------------------------------------------------------------

    def read(self, range: Range, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        schema = self.schema()
        unknown = [c for c in columns if c not in schema.names]
        if unknown:
            raise SourceError(f"source '{self._alias}' has no column {listed(unknown)}; it has {listed(schema.names)}")
        file = self._checked(FileStat(range["path"], range["size"], range["mtime_ns"]))
        if file is None or not file.size:
            return
        try:
            yield from self._format.decode(File(self._store, file), schema, columns, range["start"], range["end"])
        except (ColumnError, pa.ArrowException, OSError) as e:
            self._checked(file)  # if it has changed under us, that is the cause, and there is nothing to correct in it
            raise self._unreadable(file.path, e) from self._secrets.cause(e)
        self._checked(file)

    def count(self, range: Range) -> int:
        if range["end"] is not None:
            return int(range["end"] - range["start"])
        counted = self._count(FileStat(range["path"], range["size"], range["mtime_ns"]))
        return max(0, counted - int(range["start"]))

    def _checked(self, logged: FileStat) -> FileStat | None:
        """The file as it is now, if that is as logged or loss is allowed; None when it was removed and loss is."""
        now = self._stat(logged.path)
        if now == logged:
            return now
        problem = "is gone" if now is None else "has changed since it was found"
        if self._fail_on_data_loss:
            raise SourceError(
                f"source '{self._alias}': '{logged.path}' {problem}, so its rows cannot be read as they were. Restore "
                f"the file, or set option 'source.{self._alias}.failOnDataLoss' to false to "
                f"{'skip files that are gone' if now is None else 'read files as they are now'}"
            )
        _log.warning("source '%s': '%s' %s; failOnDataLoss is false", self._alias, logged.path, problem)
        return now

    def _is_still(self, file: FileStat) -> bool:
        return self._stat(file.path) == file

    def _stat(self, path: str) -> FileStat | None:
        try:
            return self._store.stat(path)
        except OSError as e:
            raise self._unreadable(path, e) from self._secrets.cause(e)

    def _unreadable(self, path: str, cause: Exception) -> SourceError:
        column = f", column '{cause.column}'" if isinstance(cause, ColumnError) else ""
        return SourceError(
            f"source '{self._alias}': '{path}'{column} cannot be read: {self._secrets.hide(str(cause))}. "
            f"Compare it with option 'source.{self._alias}.schema'. If the file is wrong, correct or remove it, and "
            f"set option 'source.{self._alias}.failOnDataLoss' to false for one run: the file is recorded as it was"
        )


def _entry(file: FileStat, rows: int | None) -> dict[str, Any]:
    return {"path": file.path, "size": file.size, "mtime_ns": file.mtime_ns, "rows": rows}


# --- the formats -----------------------------------------------------------------------------------------------


class ParquetSource(FileSource):
    def __init__(self, alias: str, options: Options) -> None:
        super().__init__(alias, options, Parquet())


class ArrowSource(FileSource):
    def __init__(self, alias: str, options: Options) -> None:
        super().__init__(alias, options, Arrow())


class JsonSource(FileSource):
    def __init__(self, alias: str, options: Options) -> None:
        super().__init__(alias, options, Json())


class CsvSource(FileSource):
    OPTIONS = (*FileSource.OPTIONS, "header", "sep", "delimiter", "quote", "escape", "nullValue", "encoding")

    def __init__(self, alias: str, options: Options) -> None:
        if "sep" in options and "delimiter" in options:
            raise options.error("delimiter", "is another name of 'sep', which is set too")
        encoding = options.text("encoding") or "utf-8"
        try:
            codecs.lookup(encoding)
        except LookupError as e:
            raise options.error("encoding", f"there is no encoding '{encoding}'") from e
        quote = options.character("quote", '"', none=True)
        escape = options.character("escape", None, none=True)
        csv = Csv(
            header=options.flag("header", False),
            separator=options.character("sep" if "sep" in options else "delimiter", ",") or ",",
            quote=quote,
            escape=None if escape == quote else escape,  # a doubled quote is always one quote
            null_value=options.text("nullValue") or "",
            encoding=encoding,
        )
        super().__init__(alias, options, csv)
