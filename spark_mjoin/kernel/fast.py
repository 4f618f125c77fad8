"""The hot loops, in numba over flat numpy arrays.

Covers hashing, the chained hash index, probing, verification of candidates and gathering. Knows nothing of Arrow,
tables or joins: its callers hand it arrays. `slow.py` has a plain-Python twin of every function, with the same
signature; one test runs both.

The index: `head[b]` is the newest row of slot b and `link[row]` the next older row with the same slot, -1 at the end.
The slot is the top bits of the 64-bit hash (`hash >> shift`), so a range of hashes is a contiguous range of slots.

    hash ──>> shift──> head[slot] ──> row 17 ──link──> row 9 ──link──> row 2 ──> -1

A probe goes over all rows at once, one link of every chain per round, and has no branch that depends on the data:

    heads:   (at, row) for every probing row whose slot is not empty
    advance: found pairs out; candidates whose chain goes on stay          ... again, while there are many
    walk:    the few long chains that are left, each to its end

A scan turns the roles round: the probing rows have a small index, and the rows of the target go through it.

    sieve:   (row of the target, newest probing row of its slot) for every row whose slot is not empty; then as above

Every step has a bounded output, and `walk` can be resumed in the middle of a chain: it returns where it stopped, as
(position, next row of the chain or FRESH). So a join that inflates cannot exhaust memory. `python
-m benchmarks.probe` compares rounds with following one chain after the other.

Every array index is unsigned: with a signed one numba emits wrap-around code (test_kernel checks that there is none).
Prefetches hide the cache misses of head and chain.

`mask` keeps some bits of every hash: all of them normally; few of them when a test forces collisions.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

PADDING = 16  # bytes that must be readable (and writable, in outputs) behind every byte buffer handed in
FRESH = -2  # chain cursor: start the chain of this row at its head


def _cacheable() -> None:
    """Numba keeps compiled code in a directory; where none of the usual ones can be written, in a temporary one."""
    try:
        nb.njit(cache=True)(_cacheable)
    except RuntimeError:
        nb.config.CACHE_DIR = os.path.join(tempfile.gettempdir(), f"spark_mjoin-numba-{os.getuid()}")


_cacheable()
_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "boundscheck": False, "error_model": "numpy"}
njit = nb.njit(**_OPTIONS)
inline = nb.njit(inline="always", **_OPTIONS)

_U0, _U1 = np.uint64(0), np.uint64(1)
_AHEAD = np.uint64(24)  # how far ahead of its use memory is asked for
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S29, _S32 = np.uint64(27), np.uint64(29), np.uint64(32)
_TAIL_MASKS = np.array([0] + [(1 << (8 * i)) - 1 for i in range(1, 9)], dtype=np.uint64)


# --- intrinsics ------------------------------------------------------------------------------------------------


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


@intrinsic
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of array[index], to be read soon."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte_pointer, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        pointer = builder.bitcast(_pointer(context, builder, signature.args[0], args[0], args[1]), byte_pointer)
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)])
        return context.get_dummy_value()

    return types.void(array, types.uint64), codegen


@intrinsic
def _load64(typingctx: Any, data: Any, index: Any) -> Any:
    """Eight bytes at any alignment."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1])
        value = builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()))
        value.align = 1
        return value

    return types.uint64(data, types.uint64), codegen


@intrinsic
def _copy16(typingctx: Any, target: Any, target_index: Any, source: Any, source_index: Any) -> Any:
    """Copy sixteen bytes at any alignment; both buffers are padded."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.IntType(8), 16).as_pointer()
        to = builder.bitcast(_pointer(context, builder, signature.args[0], args[0], args[1]), vector)
        of = builder.bitcast(_pointer(context, builder, signature.args[2], args[2], args[3]), vector)
        value = builder.load(of)
        value.align = 1
        store = builder.store(value, to)
        store.align = 1
        return context.get_dummy_value()

    return types.void(target, types.uint64, source, types.uint64), codegen


# --- hashing ---------------------------------------------------------------------------------------------------


@inline
def _mix(x: Any) -> Any:
    """A bijection of 64-bit words that spreads every input bit over the whole word."""
    x = np.uint64(x)
    x = (x ^ (x >> _S32)) * _MIX1
    x = (x ^ (x >> _S29)) * _MIX2
    return x ^ (x >> _S32)


@njit
def hash_words(words: Any, mask: Any, out: Any) -> None:
    """out[i] = hash of words[i]. It places rows in partitions, on disk too: a change needs a new state format."""
    n = np.uint64(words.size)
    i = _U0
    while i < n:
        out[i] = _mix(words[i]) & mask
        i += _U1


@njit
def hash_bytes(offsets: Any, data: Any, mask: Any, out: Any) -> None:
    """out[i] = hash of data[offsets[i]:offsets[i + 1]]; durable as that of hash_words is."""
    n = np.uint64(out.size)
    i = _U0
    while i < n:
        at = np.uint64(offsets[i])
        left = np.uint64(offsets[i + _U1]) - at
        h = left * _GOLDEN
        while left >= np.uint64(8):
            h = (h ^ _load64(data, at)) * _MIX1
            h ^= h >> _S29
            at += np.uint64(8)
            left -= np.uint64(8)
        if left > _U0:
            h = (h ^ (_load64(data, at) & _TAIL_MASKS[left])) * _MIX2
            h ^= h >> _S32
        out[i] = _mix(h) & mask
        i += _U1


@njit
def combine_hashes(more: Any, mask: Any, out: Any) -> None:
    """Fold the hashes of one more key column into out."""
    n = np.uint64(out.size)
    i = _U0
    while i < n:
        out[i] = _mix(out[i] * _GOLDEN + more[i]) & mask
        i += _U1


@njit
def bucket_words(words: Any, rows: Any, shift: Any, mask: Any, out: Any) -> None:
    """out[i] = the bits of the hash of words[rows[i]] from `shift` on that are in `mask`."""
    shift, mask = np.uint64(shift), np.uint64(mask)
    n = np.uint64(rows.size)
    i = _U0
    while i < n:
        if i + _AHEAD < n:
            prefetch(words, np.uint64(rows[i + _AHEAD]))
        out[i] = np.uint8((_mix(words[np.uint64(rows[i])]) >> shift) & mask)
        i += _U1


# --- the index -------------------------------------------------------------------------------------------------


@njit
def slot_words(words: Any, mask: Any, shift: Any, out: Any) -> None:
    """out[i] = slot of words[i], for keys of one word, whose hash is not stored."""
    shift = np.uint64(shift)
    n = np.uint64(words.size)
    i = _U0
    while i < n:
        out[i] = np.uint32((_mix(words[i]) & mask) >> shift)
        i += _U1


@njit
def slot_hashes(hashes: Any, shift: Any, out: Any) -> None:
    """out[i] = slot of a key with hashes[i]."""
    shift = np.uint64(shift)
    n = np.uint64(hashes.size)
    i = _U0
    while i < n:
        out[i] = np.uint32(hashes[i] >> shift)
        i += _U1


@njit
def insert(slots: Any, start: Any, head: Any, link: Any) -> None:
    """Put rows start, start + 1, ... into the index; slots[i] is the slot of row start + i."""
    n = np.uint64(slots.size)
    row = np.uint64(start)
    i = _U0
    while i < n:
        if i + _AHEAD < n:
            prefetch(head, np.uint64(slots[i + _AHEAD]))
        slot = np.uint64(slots[i])
        link[row] = head[slot]
        head[slot] = np.int32(row)
        row += _U1
        i += _U1


@njit
def heads(slots: Any, head: Any, out_at: Any, out_row: Any) -> Any:
    """The first candidate of every probing row that has one: (position, newest row of its slot); returns how many.

    Without a branch on what is found: half the rows of a selective join find an empty slot, and no processor guesses
    which half.
    """
    n = np.uint64(slots.size)
    k = _U0
    i = _U0
    while i < n:
        if i + _AHEAD < n:
            prefetch(head, np.uint64(slots[i + _AHEAD]))
        row = head[np.uint64(slots[i])]
        out_at[k] = np.int32(i)
        out_row[k] = row
        k += np.uint64(row >= 0)
        i += _U1
    return np.int64(k)


@njit
def advance(probing: Any, at: Any, row: Any, count: Any, values: Any, link: Any, out_at: Any, out_row: Any) -> Any:
    """Compare each candidate once and move it to the next row of its chain; returns (pairs found, candidates left).

    A pair is found where values[row] equals probing[at]. The values are the words of a one-word key, and then pairs are
    matches; or the stored hashes of any other key, and then they are to be verified. The candidates that are left
    replace the old ones. The output must hold `count` pairs.
    """
    n = np.uint64(count)
    found = _U0
    left = _U0
    i = _U0
    while i < n:
        if i + _AHEAD < n:
            soon = np.uint64(row[i + _AHEAD])
            prefetch(values, soon)
            prefetch(link, soon)
        a, r = at[i], row[i]
        u = np.uint64(r)
        out_at[found] = a
        out_row[found] = r
        found += np.uint64(values[u] == probing[np.uint64(a)])
        older = link[u]
        at[left] = a
        row[left] = older
        left += np.uint64(older >= 0)
        i += _U1
    return np.int64(found), np.int64(left)


@njit
def walk(
    probing: Any,
    at: Any,
    row: Any,
    count: Any,
    position: Any,
    cursor: Any,
    values: Any,
    link: Any,
    out_at: Any,
    out_row: Any,
) -> Any:
    """As advance, for few candidates with long chains: each chain to its end, until the output is full.

    Returns (position, cursor) to continue from, the number of pairs written, and how many values were compared.
    """
    n = np.uint64(count)
    capacity = np.uint64(out_at.size)
    i = np.uint64(position)
    r = np.int32(cursor)
    written = _U0
    compared = _U0
    while i < n:
        if r == np.int32(FRESH):
            r = row[i]
        a = at[i]
        value = probing[np.uint64(a)]
        while r >= 0:
            u = np.uint64(r)
            if values[u] == value:
                if written == capacity:
                    return np.int64(i), np.int64(r), np.int64(written), np.int64(compared)
                out_at[written] = a
                out_row[written] = r
                written += _U1
            compared += _U1
            r = link[u]
        r = np.int32(FRESH)
        i += _U1
    return np.int64(n), np.int64(FRESH), np.int64(written), np.int64(compared)


@njit
def present(probing: Any, slots: Any, head: Any, link: Any, values: Any, out: Any) -> None:
    """For every probing value whether the index has a row with it: each chain up to the first such row."""
    n = np.uint64(probing.size)
    i = _U0
    while i < n:
        if i + _AHEAD < n:
            prefetch(head, np.uint64(slots[i + _AHEAD]))
        value = probing[i]
        r = head[np.uint64(slots[i])]
        while r >= 0 and values[np.uint64(r)] != value:
            r = link[np.uint64(r)]
        out[i] = r >= 0
        i += _U1


@inline
def _same_bytes(sought: Any, begin: Any, length: Any, offsets: Any, data: Any, row: Any) -> Any:
    """Whether the byte string of a row is the one of some length that begins somewhere in another buffer."""
    x, y, left = begin, np.uint64(offsets[row]), length
    same = np.uint64(offsets[row + _U1]) - y == left
    while same and left >= np.uint64(8):
        same = _load64(sought, x) == _load64(data, y)
        x += np.uint64(8)
        y += np.uint64(8)
        left -= np.uint64(8)
    if same and left > _U0:
        tail = _TAIL_MASKS[left]
        same = _load64(sought, x) & tail == _load64(data, y) & tail
    return same


@njit
def find_bytes(
    probing: Any,
    slots: Any,
    head: Any,
    link: Any,
    values: Any,
    probing_offsets: Any,
    probing_data: Any,
    offsets: Any,
    data: Any,
    out: Any,
) -> None:
    """For every probing byte string, given with its hash, the newest row of the index that has it; -1: none."""
    n = np.uint64(probing.size)
    i = _U0
    while i < n:
        if i + _AHEAD < n:
            prefetch(head, np.uint64(slots[i + _AHEAD]))
        value = probing[i]
        begin = np.uint64(probing_offsets[i])
        length = np.uint64(probing_offsets[i + _U1]) - begin
        r = head[np.uint64(slots[i])]
        while r >= 0:
            u = np.uint64(r)
            if values[u] == value and _same_bytes(probing_data, begin, length, offsets, data, u):
                break
            r = link[u]
        out[i] = r
        i += _U1


@njit
def small_slots(values: Any, shift: Any, out: Any) -> None:
    """out[i] = slot of values[i], words or hashes, in an index that a scan goes through.

    One multiplication: such an index is small, and a scan hashes every row of the target.
    """
    shift = np.uint64(shift)
    n = np.uint64(values.size)
    i = _U0
    while i < n:
        out[i] = np.uint32((np.uint64(values[i]) * _GOLDEN) >> shift)
        i += _U1


@njit
def sieve(values: Any, start: Any, end: Any, shift: Any, head: Any, out_at: Any, out_row: Any) -> Any:
    """The first candidate of each of rows start..end-1 that has one: (row, newest row of its slot); returns how many.

    As heads, in one go: the slots are those of small_slots, and `head` is in the cache.
    """
    shift = np.uint64(shift)
    n = np.uint64(end)
    k = _U0
    i = np.uint64(start)
    while i < n:
        row = head[(np.uint64(values[i]) * _GOLDEN) >> shift]
        out_at[k] = np.int32(i)
        out_row[k] = row
        k += np.uint64(row >= 0)
        i += _U1
    return np.int64(k)


# --- verification of candidates ----------------------------------------------------------------------------------


@njit
def verify_words(at: Any, row: Any, count: Any, probing_rows: Any, probing_words: Any, words: Any) -> Any:
    """Keep the pairs whose words are equal, in place; returns how many are left.

    Pair p compares probing_words[probing_rows[at[p]]] with words[row[p]].
    """
    n = np.uint64(count)
    kept = _U0
    p = _U0
    while p < n:
        a, r = at[p], row[p]
        if probing_words[np.uint64(probing_rows[np.uint64(a)])] == words[np.uint64(r)]:
            at[kept] = a
            row[kept] = r
            kept += _U1
        p += _U1
    return np.int64(kept)


@njit
def verify_bytes(
    at: Any, row: Any, count: Any, probing_rows: Any, probing_offsets: Any, probing_data: Any, offsets: Any, data: Any
) -> Any:
    """As verify_words, for keys that are byte strings."""
    n = np.uint64(count)
    kept = _U0
    p = _U0
    while p < n:
        if p + _AHEAD < n:
            prefetch(offsets, np.uint64(row[p + _AHEAD]))
            prefetch(probing_offsets, np.uint64(probing_rows[np.uint64(at[p + _AHEAD])]))
        if p + np.uint64(12) < n:
            prefetch(data, np.uint64(offsets[np.uint64(row[p + np.uint64(12)])]))
            soon = np.uint64(probing_rows[np.uint64(at[p + np.uint64(12)])])
            prefetch(probing_data, np.uint64(probing_offsets[soon]))
        a, r = at[p], row[p]
        q, u = np.uint64(probing_rows[np.uint64(a)]), np.uint64(r)
        begin = np.uint64(probing_offsets[q])
        length = np.uint64(probing_offsets[q + _U1]) - begin
        if _same_bytes(probing_data, begin, length, offsets, data, u):
            at[kept] = a
            row[kept] = r
            kept += _U1
        p += _U1
    return np.int64(kept)


# --- gathering ---------------------------------------------------------------------------------------------------


@njit
def gather(source: Any, rows: Any, out: Any) -> None:
    """out[i] = source[rows[i]], converted to the type of out."""
    n = np.uint64(rows.size)
    i = _U0
    while i < n:
        if i + _AHEAD < n:
            prefetch(source, np.uint64(rows[i + _AHEAD]))
        out[i] = source[np.uint64(rows[i])]
        i += _U1


@njit
def gather_offsets(offsets: Any, rows: Any, out: Any) -> Any:
    """Offsets of the gathered strings, from 0; returns their total length, which may exceed what out can hold."""
    n = np.uint64(rows.size)
    total = np.int64(0)
    out[_U0] = 0
    i = _U0
    while i < n:
        if i + _AHEAD < n:
            prefetch(offsets, np.uint64(rows[i + _AHEAD]))
        r = np.uint64(rows[i])
        total += np.int64(offsets[r + _U1]) - np.int64(offsets[r])
        i += _U1
        out[i] = total
    return total


@njit
def gather_bytes(offsets: Any, data: Any, rows: Any, out_offsets: Any, out: Any) -> None:
    """The bytes that belong to gather_offsets; out has PADDING bytes behind its end."""
    n = np.uint64(rows.size)
    i = _U0
    while i < n:
        if i + _AHEAD < n:
            prefetch(data, np.uint64(offsets[np.uint64(rows[i + _AHEAD])]))
        of = np.uint64(offsets[np.uint64(rows[i])])
        to, end = np.uint64(out_offsets[i]), np.uint64(out_offsets[i + _U1])
        while to < end:
            _copy16(out, to, data, of)
            to += np.uint64(16)
            of += np.uint64(16)
        i += _U1


@njit
def append_offsets(incoming: Any, base: Any, start: Any, offsets: Any) -> None:
    """Continue `offsets` behind row `start`, whose bytes end at `base`, with the offsets of an arriving array."""
    n = np.uint64(incoming.size)
    shift = np.int64(base) - np.int64(incoming[_U0])
    i = _U1
    while i < n:
        offsets[np.uint64(start) + i] = np.int64(incoming[i]) + shift
        i += _U1


# --- partitions --------------------------------------------------------------------------------------------------


@njit
def select_slots(hashes: Any, owned: Any, out: Any) -> Any:
    """Positions of the rows whose slot, the lowest bits of the hash, is owned; returns how many. No branch on the data.

    owned: 1 for each slot that is, 0 for the others; as many as a power of two.
    """
    n, bits = np.uint64(hashes.size), np.uint64(owned.size - 1)
    k = _U0
    i = _U0
    while i < n:
        out[k] = np.int32(i)
        k += np.uint64(owned[hashes[i] & bits])
        i += _U1
    return np.int64(k)


# --- residency ---------------------------------------------------------------------------------------------------


@njit
def departed(buckets: Any, arrived: Any, starts: Any, events: Any, below: Any, out: Any) -> None:
    """out[i] = the first event of row i's bucket whose `below` is more than arrived[i]; untouched where there is none.

    The events of bucket b are starts[b]..starts[b + 1] - 1; `below` ascends with them.
    """
    n = np.uint64(buckets.size)
    i = _U0
    while i < n:
        bucket = np.uint64(buckets[i])
        low, high = np.uint64(starts[bucket]), np.uint64(starts[bucket + _U1])
        end = high
        while low < high:
            middle = (low + high) >> _U1
            if below[middle] > arrived[i]:
                high = middle
            else:
                low = middle + _U1
        if low < end:
            out[i] = events[low]
        i += _U1


# --- windows -----------------------------------------------------------------------------------------------------


@njit
def inside_rows(numbers: Any, rounds: Any, starts: Any, sizes: Any, windows: Any, out: Any) -> None:
    """out[c] becomes false where a row of combination c is outside a window that counts rows (mjoin/windows.py).

    There are windows.size rows in a combination, and -1 is no window. numbers has the numbers of the rows, input by
    input; rounds the round of each combination, or nothing where there is one round alone; starts and sizes are round
    by round. Row j is outside iff the row of its own input that pushes it out, the `pusher`-th of the round, comes no
    later than another row of the combination. A product of two sizes fits a word; no branch depends on the data.
    """
    n, members = np.uint64(out.size), np.uint64(windows.size)
    several = rounds.size > 0
    j = _U0
    while j < members:
        i = _U0
        while i < members and windows[j] >= 0:
            first = np.int64(1) if i < j else np.int64(0)  # at the same point the row of i comes before that of j
            base, c = _U0, _U0
            while c < n:
                if several:
                    base = np.uint64(rounds[c]) * members
                size, whole = sizes[base + j], sizes[base + i]
                pusher = numbers[j * n + c] - starts[base + j] + windows[j] + np.int64(1)
                pusher = min(max(pusher, np.int64(0)), size + np.int64(1))
                passed = min(max(numbers[i * n + c] - starts[base + i] + np.int64(1), np.int64(0)), whole)
                sooner = (passed == 0) | (passed * size < pusher * whole + first)
                out[c] &= (pusher > 0) & sooner
                c += _U1
            i += _U1
        j += _U1
