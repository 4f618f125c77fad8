"""On which executors the partitions of a join run, so that few bytes cross the network.

    bytes that came to each partition, by host ──(decayed)──┐
    executors that there are, and their hosts ──────────────┼──> the executor of each partition
    where partitions run now, and how large they are ───────┘

A row that is on the host of its partition when it is shuffled does not cross the network. Where the rows of a partition
come from is measured: Spark says for each batch how many bytes its senders have on which host for which partition.
Before the first batch of a run, the hosts of inputs (option `hosts`) stand for that, with the rows that the partition
had last.

Partitions are spread evenly: two executors differ by one partition at the most. So rows that come from everywhere alike
leave nothing to choose. What can be saved are the bytes of keys that come from few hosts, such as the customers of a
region, when their partitions run there.

A partition stays where it is, because its state is there. It moves when an executor starts or stops, as few as that
takes, or when two that change places, or one that goes to an executor with fewer, save more bytes within AHEAD batches
than their state has, which is read anew. At most one in SLOWLY partitions moves for that in one batch.

Deterministic, and nothing depends on it but time: any executor can run any partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from spark_mjoin.driver.widths import sent_width
from spark_mjoin.model import Array, JoinSpec
from spark_mjoin.state.manifest import Manifest

AHEAD = 100  # batches
SLOWLY = 8
LEAST_SAVING = 0.05  # of what comes to the partitions that would move: Spark's sizes are not exact
KEPT = 0.7  # of what is known of earlier batches counts beside the newest
MOST = 512  # partitions, beyond which none move to save bytes: each pair would be looked at in every batch

Bytes = Mapping[str, float]  # by the host that they come from


class Places:
    """Where the partitions of one join run, batch after batch."""

    def __init__(self) -> None:
        self._at: list[str] = []  # the executor of each partition
        self._hosts: list[str] = []
        self._coming = np.zeros((0, 0))  # bytes of a batch: partitions × hosts

    @property
    def is_informed(self) -> bool:
        """Whether anything has been measured."""
        return bool(self._coming.size)

    def measure(self, came: Sequence[Bytes]) -> None:
        """Take in what came to each partition in a batch. A batch without rows says nothing."""
        if any(by_host for by_host in came):
            before = self._matrix(len(came)) if len(came) == len(self._coming) else None
            new = self._read(came)
            if before is not None:
                new[:, : before.shape[1]] += KEPT * before  # hosts are only added
            self._coming = new

    def assign(self, executors: Mapping[str, str], state_bytes: Sequence[float]) -> list[str]:
        """The executor of each partition; none where the driver is the only one.

        executors: by name, their hosts. state_bytes: of each partition.
        """
        partitions = len(state_bytes)
        if not executors:
            self._at = []
            return []
        names = sorted(executors)
        local = self._local([executors[name] for name in names], partitions)
        numbers = {name: number for number, name in enumerate(names)}
        at = np.full(partitions, -1)
        for partition, name in enumerate(self._at[:partitions]):
            at[partition] = numbers.get(name, -1)
        _fill(at, local)
        _level(at, local)
        if local.any() and partitions <= MOST:
            _save(at, local, np.asarray(state_bytes, np.float64), self._matrix(partitions).sum(axis=1))
        self._at = [names[number] for number in at]
        return self._at

    def _read(self, came: Sequence[Bytes]) -> Array:
        self._hosts += sorted({host for by_host in came for host in by_host} - set(self._hosts))
        columns = {host: number for number, host in enumerate(self._hosts)}
        out = np.zeros((len(came), len(self._hosts)))
        for partition, by_host in enumerate(came):
            for host, size in by_host.items():
                out[partition, columns[host]] = size
        return out

    def _matrix(self, partitions: int) -> Array:
        """What comes to each partition; nothing is known where there is another number of them."""
        return self._coming if len(self._coming) == partitions else np.zeros((partitions, len(self._hosts)))

    def _local(self, hosts: Sequence[str], partitions: int) -> Array:
        """For each partition and executor, the bytes that are there already."""
        coming, columns = self._matrix(partitions), {host: number for number, host in enumerate(self._hosts)}
        out = np.zeros((partitions, len(hosts)))
        for number, host in enumerate(hosts):
            if host in columns:
                out[:, number] = coming[:, columns[host]]
        return out


def expected(
    spec: JoinSpec, hosts: Sequence[tuple[str, tuple[str, ...]]], last: Sequence[Manifest | None]
) -> list[Bytes]:
    """What comes to partitions, if they get as many rows of each input as in their last batch.

    hosts: of inputs, by alias; nothing is known of others.
    """
    at = dict(hosts)
    out: list[Bytes] = []
    for manifest in last:
        by_host: dict[str, float] = {}
        rows = () if manifest is None else manifest.taken.rows_in
        for input, count in zip(spec.inputs, rows, strict=False):
            for host in at.get(input.alias, ()):
                by_host[host] = by_host.get(host, 0.0) + count * sent_width(spec, input) / len(at[input.alias])
        out.append(by_host)
    return out


def crossing(executors: Mapping[str, str], hosts: Sequence[str] = ()) -> float:
    """The part of some rows that crosses the network, when keys are at all hosts alike.

    executors: their hosts, which have as many partitions each. hosts: where the rows are; none: where Spark reads them,
    which may be on any executor.
    """
    there = list(executors.values())
    at = list(hosts) or there
    return 1 - sum(there.count(host) / len(there) for host in at) / len(at)


def _fill(at: Array, local: Array) -> None:
    """Give a place to partitions that have none: those first that have the most to gain by theirs."""
    count = np.bincount(at[at >= 0], minlength=local.shape[1])
    most = -(-at.size // local.shape[1])
    waiting = np.flatnonzero(at < 0)
    for partition in waiting[np.argsort(-local[waiting].max(axis=1, initial=0.0), kind="stable")]:
        free = count < most
        free = free if free.any() else count == count.min()
        best = local[partition] == local[partition][free].max()
        choice = np.flatnonzero(free & best)
        at[partition] = choice[np.argmin(count[choice])]
        count[at[partition]] += 1


def _level(at: Array, local: Array) -> None:
    """Move as few partitions as it takes until two executors differ by one at the most."""
    count = np.bincount(at, minlength=local.shape[1])
    while count.max() - count.min() > 1:
        to, busiest = int(np.argmin(count)), int(np.argmax(count))
        there = np.flatnonzero(at == busiest)
        loss = local[there, busiest] - local[there, to]
        moved = there[::-1][np.argmin(loss[::-1])]  # of equal ones the last
        at[moved] = to
        count[busiest], count[to] = count[busiest] - 1, count[to] + 1


def _save(at: Array, local: Array, state_bytes: Array, coming: Array) -> None:
    """Let partitions change places, or move to an executor with fewer, where that pays."""
    every, may_move = np.arange(at.size), np.ones(at.size, np.bool_)
    for _ in range(-(-at.size // SLOWLY)):
        gain = local - local[every, at][:, None]  # of each partition at each executor
        count = np.bincount(at, minlength=local.shape[1])
        swapped = gain[:, at] + gain[:, at].T
        cost = state_bytes / AHEAD + LEAST_SAVING * coming
        worth = swapped - cost[:, None] - cost[None, :]
        worth[at[:, None] == at[None, :]] = -np.inf
        worth[~may_move, :] = worth[:, ~may_move] = -np.inf
        alone = np.where(count[None, :] < count[at][:, None], gain - cost[:, None], -np.inf)
        alone[~may_move] = -np.inf
        one, other = np.unravel_index(np.argmax(worth), worth.shape)
        mover, to = np.unravel_index(np.argmax(alone), alone.shape)
        if max(worth[one, other], alone[mover, to]) <= 0:
            return
        if alone[mover, to] >= worth[one, other]:
            at[mover] = to
            may_move[mover] = False
        else:
            at[one], at[other] = at[other], at[one]
            may_move[[one, other]] = False
