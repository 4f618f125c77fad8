"""When generated rows arrive: a Poisson process whose rate can change, drawn in the same way each time.

Time is counted in slots of 10 ms. `rowsPerSecond`, or `rates` over time, times `bursts`, zero in `stalls`, is an
intensity whose integral has a closed form. The counts of blocks of 1,000 slots are Poisson draws, made 4,096 at a time,
and a block's count is dealt to its slots by a multinomial draw. Together that is exactly a Poisson process by slots,
and the rows arrived by any instant cost a draw per block of the past and one split. Every draw comes from a generator
keyed by (seed, number of the block).
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_mjoin.sources.options import Options

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

SLOT_MS = 10
_BLOCK = 1_000  # slots
_DRAWN = 4_096  # blocks drawn at a time: 11.4 hours
_COUNTS, _SPLITS = 0, 1  # which of a seed's streams of random numbers


class Intensity:
    """The expected number of rows up to a slot, for a rate that is constant between changes, times periodic bursts."""

    def __init__(self, changes: list[tuple[int, float]], bursts: tuple[int, int, float] | None) -> None:
        """`changes`: (slot, rows per slot from there on), ascending, from slot 0; `bursts`: (every, for, times)."""
        self._slots = np.array([slot for slot, _ in changes], np.int64)
        self._rates = np.array([rate for _, rate in changes], np.float64)
        self._bursts = bursts
        steps = np.diff(self._stretched(self._slots)) * self._rates[:-1]
        self._before = np.concatenate([[0.0], np.cumsum(steps)])

    def _stretched(self, slots: I64) -> F64:
        """Slots counted as often as bursts multiply them."""
        if self._bursts is None:
            return slots.astype(np.float64)
        every, length, times = self._bursts
        inside = (slots // every) * length + np.minimum(slots % every, length)
        return slots + (times - 1.0) * inside

    def until(self, slots: I64) -> F64:
        segment = np.searchsorted(self._slots, slots, side="right") - 1
        since = self._stretched(slots) - self._stretched(self._slots[segment])
        return self._before[segment] + self._rates[segment] * since


class Arrivals:
    """How many rows have arrived by each slot: a Poisson process (see the head of the module)."""

    def __init__(self, seed: int, intensity: Intensity) -> None:
        self._seed = seed & 0xFFFF_FFFF_FFFF_FFFF
        self._intensity = intensity
        self._forget()

    def _forget(self) -> None:
        self._until: I64 = np.zeros(1, np.int64)  # rows before each block, and before the first that is not drawn yet
        self._split: tuple[int, I64] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_seed": self._seed, "_intensity": self._intensity}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def count(self, slot: int) -> int:
        """Rows that arrive before the end of the slot before `slot`."""
        block, offset = divmod(slot, _BLOCK)
        while len(self._until) <= block + 1:
            self._draw()
        inside = int(self._in_block(block)[offset - 1]) if offset else 0
        return int(self._until[block]) + inside

    def slots(self, start: int, stop: int) -> I64:
        """The slots in which the rows start..stop-1 arrive."""
        while self._until[-1] < stop:
            self._draw()
        found: list[I64] = []
        while start < stop:
            block = int(np.searchsorted(self._until, start, side="right")) - 1
            before = int(self._until[block])
            until = min(stop, int(self._until[block + 1]))
            rows = np.arange(start - before, until - before, dtype=np.int64)
            found.append(block * _BLOCK + np.searchsorted(self._in_block(block), rows, side="right"))
            start = until
        return np.concatenate(found)

    def mean(self, seconds: int) -> float:
        """Rows per second that are expected in the first seconds."""
        return float(self._intensity.until(np.array([seconds * 1000 // SLOT_MS]))[0]) / seconds

    def _draw(self) -> None:
        """Draw the counts of as many blocks again as there are, so that a long past costs few copies."""
        known = len(self._until) - 1
        parts = [self._until]
        for first in range(known, max(_DRAWN, 2 * known), _DRAWN):
            slots = np.arange(first, first + _DRAWN + 1, dtype=np.int64) * _BLOCK
            expected = np.maximum(np.diff(self._intensity.until(slots)), 0.0)
            counts = self._random(_COUNTS, first).poisson(expected)
            parts.append(parts[-1][-1] + np.cumsum(counts))
        self._until = np.concatenate(parts)

    def _in_block(self, block: int) -> I64:
        """Rows of the block that have arrived by the end of each of its slots."""
        if self._split is None or self._split[0] != block:
            slots = np.arange(block * _BLOCK, (block + 1) * _BLOCK + 1, dtype=np.int64)
            expected = np.maximum(np.diff(self._intensity.until(slots)), 0.0)
            rows = int(self._until[block + 1] - self._until[block])
            dealt = self._random(_SPLITS, block).multinomial(rows, expected / expected.sum()) if rows else expected * 0
            self._split = (block, np.cumsum(dealt).astype(np.int64))
        return self._split[1]

    def _random(self, stream: int, number: int) -> np.random.Generator:
        key = np.array([self._seed, (stream << 62) | number], np.uint64)
        return np.random.Generator(np.random.Philox(key=key))


def intensity_of(options: Options) -> Intensity | None:
    """The rate that the options describe; None when there is none and everything is there at once."""
    rate = options.positive_float("rowsPerSecond")
    rates = options.text("rates")
    if rate is not None and rates is not None:
        raise options.error("rates", "replaces 'rowsPerSecond', which is set too")
    if rate is None and rates is None:
        for name in ("bursts", "stalls"):
            if name in options:
                raise options.error(name, "needs 'rowsPerSecond' or 'rates'")
        return None
    changes = [(0, rate)] if rate is not None else _parse_rates(options, rates or "")
    per_slot = [(slot, r * SLOT_MS / 1000) for slot, r in changes]
    return Intensity(_with_stalls(per_slot, _parse_stalls(options)), _parse_bursts(options))


def _slot(options: Options, option: str, text: str) -> int:
    return round(options.seconds(option, text) * 1000 / SLOT_MS)


def _parse_rates(options: Options, text: str) -> list[tuple[int, float]]:
    changes: list[tuple[int, float]] = []
    for item in text.split(","):
        match = re.fullmatch(r"\s*([^:]+):\s*(\d+(?:\.\d+)?)\s*", item)
        if not match:
            raise options.error(
                "rates", f"'{item.strip()}' is not of the form '10s:200' (rows per second from then on)"
            )
        changes.append((_slot(options, "rates", match[1]), float(match[2])))
    slots = [slot for slot, _ in changes]
    if slots != sorted(set(slots)):
        raise options.error("rates", "the times must ascend")
    if changes[-1][1] == 0:
        raise options.error("rates", "the last rate must not be 0, or the source would never end; use 'rows' to end it")
    return changes if slots[0] == 0 else [(0, 0.0), *changes]


def _parse_stalls(options: Options) -> list[tuple[int, int]]:
    stalls = []
    for item in (options.text("stalls") or "").split(","):
        if not item.strip():
            continue
        start, dash, end = item.partition("-")
        stall = (_slot(options, "stalls", start), _slot(options, "stalls", end)) if dash else (0, 0)
        if stall[0] >= stall[1]:
            raise options.error("stalls", f"'{item.strip()}' is not a span of time such as '5s-8s'")
        stalls.append(stall)
    return stalls


def _parse_bursts(options: Options) -> tuple[int, int, float] | None:
    text = options.text("bursts")
    if text is None:
        return None
    match = re.fullmatch(r"\s*every\s+(\S+)\s+for\s+(\S+)\s+x\s*(\d+(?:\.\d+)?)\s*", text, re.IGNORECASE)
    if not match:
        raise options.error("bursts", f"'{text}' is not of the form 'every 10s for 1s x5'")
    every, length, times = _slot(options, "bursts", match[1]), _slot(options, "bursts", match[2]), float(match[3])
    if not (0 < length < every and times > 0):
        raise options.error(
            "bursts", f"'{text}': a burst lasts for at least 10ms, less than its period, and x is over 0"
        )
    return every, length, times


def _with_stalls(changes: list[tuple[int, float]], stalls: list[tuple[int, int]]) -> list[tuple[int, float]]:
    """The rate with every stall cut out of it."""
    slots = sorted({slot for slot, _ in changes} | {slot for stall in stalls for slot in stall})

    def rate(slot: int) -> float:
        if any(start <= slot < end for start, end in stalls):
            return 0.0
        return [r for s, r in changes if s <= slot][-1]

    return [(slot, rate(slot)) for slot in slots]
