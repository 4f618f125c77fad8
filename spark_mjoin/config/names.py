"""The names of all options that are read here, by subject. Case does not matter; errors spell them like this."""

from __future__ import annotations

from spark_mjoin.sources.protocol import LIMITS

OVERFLOW = ("flush", "blockingThreshold", "diskFuel", "diskShare", "segmentCompression")
WINDOWS = ("window", "expiry", "idleTimeout")
SHEDDING = ("maxDelay", "minRecall")
PROMISES = ("goal", "purge", "purgeEvery", "verifyConstraints", "emitPunctuations")
SCHEDULING = ("streamScheduling", "schedulingQuota", "tupleScheduling")
BASIC = (
    "query",
    "on",
    "plan",
    "access",
    "partitions",
    "partitioning",
    "splitHotKeys",
    "memory",
    "overflow",
    "stateLocation",
    "stickyPartitions",
)
OF_THE_JOIN = (*BASIC, *OVERFLOW, *WINDOWS, *SHEDDING, *PROMISES, *SCHEDULING, *LIMITS, "expectedSelectivity")

RATE = "expectedRowsPerSecond"
HOSTS = "hosts"
OF_WINDOWS = ("window", "timestamp", "watermark")
OF_PROMISES = ("punctuation", "punctuationValues", "punctuationRange", "unique", "clustered", "ordered")
OF_ANY_SOURCE = (
    "format",
    *OF_WINDOWS,
    *OF_PROMISES,
    RATE,
    HOSTS,
)  # under `source.<alias>.`; the rest belongs to its source
