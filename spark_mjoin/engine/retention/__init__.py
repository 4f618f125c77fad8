"""Retention: which rows leave for good, and when. One protocol, and one place that says who implements it.

protocol.py   what a batch asks
windows.py    late rows and expired ones                    shrinking.py   the same, and windows that give way
promises.py   rows that nothing to come can match           purge.py       how these are found
passing.py    rows for which there is no memory
"""

from __future__ import annotations

from spark_mjoin.counts import BatchCounts
from spark_mjoin.engine.retention.passing import Passing
from spark_mjoin.engine.retention.promises import Promising
from spark_mjoin.engine.retention.protocol import KeepAll, Retention
from spark_mjoin.engine.retention.several import Several
from spark_mjoin.engine.retention.shrinking import Shrinking
from spark_mjoin.engine.retention.windows import Windows
from spark_mjoin.engine.sampling import Sampler
from spark_mjoin.model import Expiry, Purging
from spark_mjoin.plan import Plan
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.store import Draft


def retention_of(state: PartitionState, plan: Plan, draft: Draft, counts: BatchCounts, sampler: Sampler) -> Retention:
    """What makes rows leave a state in a batch with such a plan."""
    root, spec, room = state.root, state.root.spec, plan.room
    parts = list[Retention]()
    if spec.windowed:
        expiry = plan.expiry or Expiry((None,) * len(spec.inputs))
        if room is not None and room.parts is not None:
            parts.append(Shrinking(root, draft.store, expiry, room.memory_bytes, room.parts, sampler))
        else:
            parts.append(Windows(root, draft.store, expiry))
    if spec.promising:
        parts.append(Promising(root, draft, plan.purging or Purging(every=1), counts))
    if room is not None and room.parts is None:
        parts.append(Passing(state, room.memory_bytes, sampler))
    if not parts:
        return KeepAll()
    return parts[0] if len(parts) == 1 else Several(tuple(parts))
