"""How a join runs: `Settings` from the options that belong to no source."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import cast, get_args

from spark_mjoin import flush
from spark_mjoin.config.names import HOSTS, RATE, SHEDDING
from spark_mjoin.errors import OptionError, listed, nearest
from spark_mjoin.model import SLOTS, Expected, Scheme, Settings
from spark_mjoin.quantities import parse_bytes, parse_choice, parse_count, parse_duration, parse_number

PURGE_EVERY = 100  # punctuations, as in the experiments of Ding 2003
_OVERFLOWS = ("spill", "shed", "shrink", "fail")
_STREAMS = ("auto", "sequential", "priority", "random")
_TUPLES = ("auto", "sequential", "value")
_COMPRESSIONS = ("none", "lz4", "zstd")
_CHECKPOINT = "__checkpointlocation"  # from the jar: the source's own directory in the query's checkpoint


def choice(top: Mapping[str, str], option: str, values: Collection[str], default: str) -> str:
    return parse_choice(top.get(option.lower(), default), option, values)


def read_settings(top: Mapping[str, str], expected: Expected) -> Settings:
    """The settings of a join, from its options by lower-cased name."""
    overflow = choice(top, "overflow", _OVERFLOWS, "spill")
    delay, recall = _shedding_limits(top, overflow)
    defaults = Settings()
    memory = top.get("memory", os.environ.get("SPARK_MJOIN_MEMORY"))  # the variable forces overflow where tests want it
    blocking, fuel, share = top.get("blockingthreshold"), top.get("diskfuel"), top.get("diskshare")
    disk_share = defaults.disk_share
    if share is not None:
        disk_share = parse_number(share, "diskShare", lambda x: x >= 0, "a number from 0 on, such as 0.1")
    compression = choice(top, "segmentCompression", _COMPRESSIONS, "none")
    choice(top, "stickyPartitions", ("true", "false"), "true")  # the jar acts on it
    checkpoint, idle, quota = top.get(_CHECKPOINT), top.get("idletimeout"), top.get("schedulingquota")
    goal = choice(top, "goal", ("rate", "memory"), defaults.goal)
    purge = choice(top, "purge", ("immediate", "batch"), "batch" if goal == "rate" else "immediate")
    if purge == "immediate" and "purgeevery" in top:
        why = "'purge' is 'immediate'" if "purge" in top else "'goal' is 'memory', which means purge=immediate"
        raise OptionError(f"option 'purgeEvery' has no effect where {why}: remove it, or set purge=batch")
    return Settings(
        partitions=_partitions(top),
        partitioning=cast(Scheme, choice(top, "partitioning", get_args(Scheme), defaults.partitioning)),
        splits_hot_keys=choice(top, "splitHotKeys", ("true", "false"), "true") == "true",
        memory_bytes=None if memory is None else parse_bytes(memory, "memory"),
        state_location=top.get("statelocation", "").strip() or (f"{checkpoint}/state" if checkpoint else None),
        shim=checkpoint is not None,
        expected=expected,
        overflow=overflow,
        flush=choice(top, "flush", tuple(flush.REGISTRY), defaults.flush),
        blocking_rows=defaults.blocking_rows if blocking is None else parse_count(blocking, "blockingThreshold"),
        fuel_bytes=defaults.fuel_bytes if fuel is None else parse_bytes(fuel, "diskFuel"),
        disk_share=disk_share,
        compression=None if compression == "none" else compression,
        expiry=choice(top, "expiry", ("lazy", "active"), defaults.expiry),
        idle_seconds=None if idle is None else parse_duration(idle, "idleTimeout") / 1e6,
        plan=top.get("plan", "").strip() or None,
        goal=goal,
        purge_every=1 if purge == "immediate" else parse_count(top.get("purgeevery", str(PURGE_EVERY)), "purgeEvery"),
        verify=choice(top, "verifyConstraints", ("off", "count", "fail"), defaults.verify),
        access=top.get("access", "").strip() or None,
        max_delay=delay,
        min_recall=recall,
        tuple_scheduling=choice(top, "tupleScheduling", _TUPLES, defaults.tuple_scheduling),
        stream_scheduling=choice(top, "streamScheduling", _STREAMS, defaults.stream_scheduling),
        quota_rows=None if quota is None else parse_count(quota, "schedulingQuota"),
    )


def _partitions(top: Mapping[str, str]) -> int:
    number = parse_count(top.get("partitions", "1"), "partitions")
    if number > SLOTS:
        raise OptionError(f"option 'partitions': {number} is more than {SLOTS}, the slots that keys are divided into")
    return number


def _shedding_limits(top: Mapping[str, str], overflow: str) -> tuple[float | None, float | None]:
    """The limit of shedding: the seconds that a batch may take, or the fraction of the results that it keeps."""
    delay, recall = (top.get(name.lower()) for name in SHEDDING)
    if delay is not None and overflow not in ("shed", "shrink"):
        raise OptionError("option 'maxDelay' is about shedding: it needs option 'overflow' to be 'shed' or 'shrink'")
    if recall is not None and overflow != "shed":
        raise OptionError("option 'minRecall' is about shedding: it needs option 'overflow' to be 'shed'")
    if delay is not None and recall is not None:
        raise OptionError(
            "options 'maxDelay' and 'minRecall' are both given: under overload a query cannot keep both. Keep the one"
            " that matters more"
        )
    seconds = None if delay is None else parse_duration(delay, "maxDelay") / 1e6
    if seconds == 0:
        raise OptionError(f"option 'maxDelay': '{delay}' is no time at all: a batch takes some, such as '5 seconds'")
    least = None
    if recall is not None:
        least = parse_number(recall, "minRecall", lambda x: 0 < x <= 1, "a number above 0 and up to 1, such as 0.9")
    return seconds, least


def read_expected(top: Mapping[str, str], per_source: Mapping[str, Mapping[str, str]]) -> Expected:
    """The rates and selectivities that the user expects; sources are named by their aliases."""
    rates, hosts = [], []
    for alias in sorted(per_source):
        for name, value in per_source[alias].items():
            if name.lower() == RATE.lower():
                option = f"source.{alias}.{RATE}"
                rates.append((alias, parse_number(value, option, lambda x: x > 0, "a number above 0, such as 500")))
            if name.lower() == HOSTS:
                hosts.append((alias, _hosts(value, f"source.{alias}.{HOSTS}")))
    selectivities: dict[tuple[str, str], float] = {}
    option = "expectedSelectivity"
    for entry in filter(None, (e.strip() for e in top.get(option.lower(), "").split(","))):
        pair, colon, value = entry.partition(":")
        sources = [alias.strip().lower() for alias in pair.split(".")]
        if not colon or len(sources) != 2:
            raise OptionError(
                f"option '{option}': '{entry}' is not of the form <alias>.<alias>: <number>, such as"
                " 'orders.payments: 0.001'"
            )
        for alias in sources:
            if alias not in per_source:
                raise OptionError(
                    f"option '{option}': '{entry}' names a source '{alias}' that is not there."
                    f"{nearest(alias, per_source)} Sources are: {listed(sorted(per_source))}"
                )
        first, second = sorted(sources)
        if (first, second) in selectivities:
            raise OptionError(f"option '{option}': '{first}.{second}' is there twice")
        number = parse_number(
            value, f"{option}' of '{first}.{second}", lambda x: 0 < x <= 1, "a number above 0 and up to 1"
        )
        selectivities[first, second] = number
    pairs = tuple((a, b, s) for (a, b), s in sorted(selectivities.items()))
    return Expected(tuple(rates), pairs, tuple(hosts))


def _hosts(text: str, option: str) -> tuple[str, ...]:
    hosts = tuple(host.strip() for host in text.split(","))
    if not all(hosts) or len(set(hosts)) < len(hosts):
        raise OptionError(f"option '{option}': '{text}' is not a host, or several with commas between them")
    return hosts
