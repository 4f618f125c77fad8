"""What inputs have promised, for a partition that takes over rows of others (engine.takeover).

A promise is a fact about what an input delivers to anybody, so a partition may have those of all. Of single keys of the
class by which rows are divided it takes its own. Then the one partition that can have rows with a key emits its
punctuation, and no partition remembers what only others are asked for. Ranges it takes whole: several partitions emit
no punctuations of ranges (query.promises).

A punctuation that was emitted is not emitted again. Several partitions emit none of keys of other classes; those that
they have noted as emitted stay so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_mjoin.model import Array, JoinSpec
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.keysets import ByteSet, Keys, KeySet, WordSet, apart, chosen, ordered, set_of, size
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.promises import OUTPUT, Classes
from spark_mjoin.state.slots import Slots, of_hashes


def unite(heir: OperatorState, donors: Sequence[tuple[OperatorState, float]], slots: Slots) -> None:
    """Give an operator the promises that others have, each with the share of its slots that the operator gets."""
    promises, spec = heir.promises, heir.spec
    for donor, share in donors:
        theirs = donor.promises
        for input, promise in enumerate(theirs.of):
            mine = promises.of[input]
            mine.ended |= promise.ended
            if promise.cluster is not None:
                classes = spec.inputs[input].clustered
                mine.cluster = promise.cluster
                mine.cluster_mine = bool(_own(spec, classes, _one(promise.cluster), slots)[0])
            mine.edge = promise.edge if mine.edge is None else mine.edge  # all see the same rows in the same order
            for classes, keys in promise.sets.items():
                promises.add_set(input, classes, _part(spec, classes, keys, slots))
        for classes, keys in theirs.given.items():
            promises.add_set(OUTPUT, classes, _part(spec, classes, keys, slots))
        promises.waiting = max(promises.waiting, theirs.waiting)
        promises.arrived += round(share * theirs.arrived)
    promises.news = bool(promises)
    promises.changes = 1 + max(donor.promises.changes for donor, _ in donors)  # nothing on disk was looked at yet
    promises.end_given = all(donor.promises.end_given for donor, _ in donors)


def _one(key: int | bytes) -> Keys:
    return np.array([key], np.int64) if isinstance(key, int) else pa.array([key], pa.large_binary())


def _part(spec: JoinSpec, classes: Classes, keys: KeySet, slots: Slots) -> KeySet:
    """The keys of a set that a partition has to know."""
    if slots.is_all or spec.star_class not in classes:
        return keys
    if isinstance(keys, ByteSet):
        if len(classes) > 1 and not spec.gives_punctuations:
            return keys  # to take them apart costs more than to keep them
        return ByteSet(chosen(keys.values, _own(spec, classes, keys.values, slots)), keys.ranges)
    whole = WordSet()
    if not spec.gives_punctuations:  # then keys that follow each other stay together
        many = ~keys.single()
        whole, keys = WordSet(keys.lows[many], keys.highs[many]), WordSet(keys.lows[~many], keys.highs[~many])
    each = keys.each()
    return _united(whole, set_of(each[_own(spec, classes, each, slots)]))


def _united(one: WordSet, other: KeySet) -> WordSet:
    assert isinstance(other, WordSet)
    order = np.argsort(np.concatenate([one.lows, other.lows]), kind="stable")
    lows, highs = np.concatenate([one.lows, other.lows])[order], np.concatenate([one.highs, other.highs])[order]
    return WordSet(lows, highs)


def _own(spec: JoinSpec, classes: Classes, keys: Keys, slots: Slots) -> Array:
    """Which keys, of some classes together, only rows in some slots can have; all where no key decides it."""
    if slots.is_all or spec.star_class not in classes:
        return np.ones(size(keys), np.bool_)
    if len(classes) > 1:
        keys = apart([spec.classes[c] for c in classes], keys)[classes.index(spec.star_class)]
    if isinstance(keys, np.ndarray):
        keys = pa.array(ordered(keys, spec.classes[spec.star_class]))
    return slots.have(of_hashes(hash_array(keys)))
