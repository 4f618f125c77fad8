"""Which rows were dropped because no result needs them, as long as a segment still holds them.

Per input, keys with an event: the rows with that key, in all classes of the input, that arrived before the event are
gone. A rule and not a list of rows, so that a state that is loaded leaves out the same rows as the one that purged
them; and since a row can go because of its key alone, all rows with the key that were there went with it.

Entries that have come since the last commit go to a file of their own; those of an input are dropped together when its
segments are written anew without the rows that are gone (`state.store`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.model import Array, InputSpec
from spark_mjoin.state.keysets import Keys, among, chosen, joined, keys_of, size, together

KEY, EVENT = "key", "event"
SCHEMA_WORDS = pa.schema([(KEY, pa.int64()), (EVENT, pa.int32())])
SCHEMA_BYTES = pa.schema([(KEY, pa.large_binary()), (EVENT, pa.int32())])


def input_keys(input: InputSpec, batch: pa.RecordBatch) -> Keys:
    """The keys, of all its classes together, of some stored rows of an input."""
    columns = [input.stored[ordinal] for _, ordinal in input.keys]
    return together([keys_of(batch.column(c.field), c.domain) for c in columns if c.domain is not None])


@dataclass
class Purged:
    """Of one input; `keys` are distinct, words in ascending order."""

    keys: Keys | None = None
    events: Array = field(default_factory=lambda: np.empty(0, np.int32))
    fresh: list[pa.RecordBatch] = field(default_factory=list)  # in no file yet

    def __bool__(self) -> bool:
        return self.keys is not None

    def add(self, keys: Keys, event: int) -> None:
        """Rows with these keys, which are distinct, leave at an event."""
        if size(keys):
            self.fresh.append(_batch(keys, np.full(size(keys), event, np.int32)))
            self._take(keys, np.full(size(keys), event, np.int32))

    def read(self, batch: pa.RecordBatch) -> None:
        """Entries of a file; those of later files come later."""
        column = batch.column(KEY)
        keys = column if pa.types.is_large_binary(column.type) else column.to_numpy()
        self._take(keys, batch.column(EVENT).to_numpy())

    def _take(self, keys: Keys, events: Array) -> None:
        if self.keys is not None:
            older = ~among(self.keys, keys)
            keys = joined([keys, chosen(self.keys, older)])
            events = np.concatenate([events, self.events[older]])
        if isinstance(keys, np.ndarray):
            order = np.argsort(keys, kind="stable")
            keys, events = keys[order], events[order]
        self.keys, self.events = keys, events

    def gone(self, keys: Keys, arrived: Array) -> Array:
        """For some rows of the input whether they were dropped."""
        if self.keys is None:
            return np.zeros(arrived.size, np.bool_)
        if isinstance(keys, np.ndarray):
            at = np.minimum(np.searchsorted(self.keys, keys), self.keys.size - 1)
            out: Array = (self.keys[at] == keys) & (arrived < self.events[at])
            return out
        at = pc.fill_null(pc.index_in(keys, value_set=self.keys), -1).to_numpy(zero_copy_only=False)
        found: Array = (at >= 0) & (arrived < self.events[np.maximum(at, 0)])
        return found

    def all(self) -> pa.RecordBatch:
        """Every entry, for a file that replaces the others."""
        assert self.keys is not None
        return _batch(self.keys, self.events)


def _batch(keys: Keys, events: Array) -> pa.RecordBatch:
    words = isinstance(keys, np.ndarray)
    return pa.RecordBatch.from_arrays(
        [pa.array(keys) if words else keys, pa.array(events)], schema=SCHEMA_WORDS if words else SCHEMA_BYTES
    )
