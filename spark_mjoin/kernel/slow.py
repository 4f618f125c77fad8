"""Plain-Python twins of the kernels in `fast.py`: the same signatures, written to be obviously right.

For tests only. Each twin is the definition of what the fast one computes; nothing here is meant to be quick.
"""

from __future__ import annotations

from typing import Any

FRESH = -2
_ALL = (1 << 64) - 1


def _mix(x: int) -> int:
    x &= _ALL
    x = ((x ^ (x >> 32)) * 0xBF58476D1CE4E5B9) & _ALL
    x = ((x ^ (x >> 29)) * 0x94D049BB133111EB) & _ALL
    return x ^ (x >> 32)


def _bytes(offsets: Any, data: Any, row: int) -> bytes:
    return bytes(data[int(offsets[row]) : int(offsets[row + 1])])


def hash_words(words: Any, mask: Any, out: Any) -> None:
    for i, word in enumerate(words):
        out[i] = _mix(int(word)) & int(mask)


def hash_bytes(offsets: Any, data: Any, mask: Any, out: Any) -> None:
    for i in range(len(out)):
        value = _bytes(offsets, data, i)
        h = (len(value) * 0x9E3779B97F4A7C15) & _ALL
        whole = len(value) - len(value) % 8
        for at in range(0, whole, 8):
            h = ((h ^ int.from_bytes(value[at : at + 8], "little")) * 0xBF58476D1CE4E5B9) & _ALL
            h ^= h >> 29
        if tail := value[whole:]:
            h = ((h ^ int.from_bytes(tail, "little")) * 0x94D049BB133111EB) & _ALL
            h ^= h >> 32
        out[i] = _mix(h) & int(mask)


def combine_hashes(more: Any, mask: Any, out: Any) -> None:
    for i in range(len(out)):
        out[i] = _mix(int(out[i]) * 0x9E3779B97F4A7C15 + int(more[i])) & int(mask)


def slot_words(words: Any, mask: Any, shift: int, out: Any) -> None:
    for i, word in enumerate(words):
        out[i] = (_mix(int(word)) & int(mask)) >> shift


def slot_hashes(hashes: Any, shift: int, out: Any) -> None:
    for i, h in enumerate(hashes):
        out[i] = int(h) >> shift


def insert(slots: Any, start: int, head: Any, link: Any) -> None:
    for i, slot in enumerate(slots):
        link[start + i], head[slot] = head[slot], start + i


def probe(
    probing: Any, slots: Any, at: int, cursor: int, head: Any, link: Any, values: Any, out_at: Any, out_row: Any
) -> tuple[int, int, int, int]:
    written = compared = 0
    for i in range(at, len(probing)):
        row = int(cursor if cursor != FRESH else head[slots[i]])
        cursor = FRESH
        while row >= 0:
            compared += 1
            if values[row] == probing[i]:
                if written == len(out_at):
                    return i, row, written, compared
                out_at[written], out_row[written] = i, row
                written += 1
            row = int(link[row])
    return len(probing), FRESH, written, compared


def verify_words(at: Any, row: Any, count: int, probing_rows: Any, probing_words: Any, words: Any) -> int:
    pairs = [(at[p], row[p]) for p in range(count)]
    return _keep(at, row, [(a, r) for a, r in pairs if probing_words[probing_rows[a]] == words[r]])


def verify_bytes(
    at: Any, row: Any, count: int, probing_rows: Any, probing_offsets: Any, probing_data: Any, offsets: Any, data: Any
) -> int:
    kept = []
    for a, r in [(at[p], row[p]) for p in range(count)]:
        if _bytes(probing_offsets, probing_data, probing_rows[a]) == _bytes(offsets, data, r):
            kept.append((a, r))
    return _keep(at, row, kept)


def _keep(at: Any, row: Any, pairs: list[tuple[int, int]]) -> int:
    for p, (a, r) in enumerate(pairs):
        at[p], row[p] = a, r
    return len(pairs)


def gather(source: Any, rows: Any, out: Any) -> None:
    for i, row in enumerate(rows):
        out[i] = source[row]


def gather_offsets(offsets: Any, rows: Any, out: Any) -> int:
    total = 0
    out[0] = 0
    for i, row in enumerate(rows):
        total += int(offsets[row + 1]) - int(offsets[row])
        out[i + 1] = total
    return total


def gather_bytes(offsets: Any, data: Any, rows: Any, out_offsets: Any, out: Any) -> None:
    for i, row in enumerate(rows):
        out[int(out_offsets[i]) : int(out_offsets[i + 1])] = data[int(offsets[row]) : int(offsets[row + 1])]


def append_offsets(incoming: Any, base: int, start: int, offsets: Any) -> None:
    for i in range(1, len(incoming)):
        offsets[start + i] = int(incoming[i]) - int(incoming[0]) + base


def select_partition(hashes: Any, partitions: int, partition: int, out: Any) -> int:
    mine = [i for i, h in enumerate(hashes) if (int(h) & 0xFFFFFFFF) % partitions == partition]
    out[: len(mine)] = mine
    return len(mine)
