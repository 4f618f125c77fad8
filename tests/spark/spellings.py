"""What paths mean to Spark and to us: `python -m tests.spark.spellings <mode> <outcome>`, there.

A process has one kind of session, classic or Connect, and its JVM has the working directory that it was started in. For
every spelling, `outcome` gets what `spark.read` finds, what the source finds here, and of some what the source finds
inside Spark: the contents of the files, sorted, or null for an error or nothing. Each once: `spark.read` reads a file
twice where two alternatives in braces name it, which a stream never does.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_mjoin.errors import MJoinError
from spark_mjoin.sources import create
from spark_mjoin.sources.memory_log import MemoryLog
from spark_mjoin.sources.protocol import Limits
from tests.spark.driver import CONF

DIRECTORIES = (
    "in", "in#1", "in%41", "inA", "in b", "in%20b", "in+b", "in?", "in[1]", "in1", "in{a,b}", "ina", "inb", "in*",
    "in\\*", "in\\", "in;p=1", "in@h", "in&a=b", "ä", "in%", "in%zz", ".hid", "_hid", "in^", "in,c", "in!1", "in|x",
    "(a|b)", "$a", "in.x", "a]", "in/sub", "dir=1", "~", " lead", "trail ", "in\ttab", "cwd/in:c", "cwd/c:d", "h/_sub",
    "h/.sub",
)  # fmt: skip
FILES = ("h/_h", "h/.h", "h/_a=b", "h/x._COPYING_", "h/_metadata", "plain.csv")  # some of them are not to be seen
NAMES = (
    "in", "in/", "in//", "./in", "cwd/../in", "in/..//in", "nothere/../in", "in/./f.csv", "in#1", "in%41", "in b",
    "in%20b", "in+b", "in?", "in[1]", "in[!1]", "in[^1]", "in[a-b]", "in{a,b}", "in{a,{b,1}}", "in{a", "ina}", "in*",
    "in\\*", "in\\?", "in\\[1\\]", "in\\{a,b\\}", "in\\{a\\,b\\}", "in\\", "in\\\\", "in;p=1", "in@h", "in&a=b", "ä",
    "in%", "in%zz", ".hid", "_hid", ".h*", "_h*", "in^", "in,c", "in!1", "in|x", "(a|b)", "$a", "in.x", "a]", "[a]]",
    "in?/f.csv", "in/f.csv", "in/*", "{in,ina}/f.csv", "{in/f,inb/f}.csv", "{in\\*/f,inb/f}.csv", "in[ab", "in[]",
    "[[]", "?n", "in*1", "in#*", "in%4*", "?", "??", "in/sub", "in/s*", "nothere", "nothere*", "plain.csv",
    "plain.csv/", "i\\n", "in[\\1]", "{in,nothere}", "~", " lead", "trail ", " in ", "in\ttab", "in?x=1", "in{}",
    "in{a,}", "in{,a}", "in{1..2}", "in[a,b]", "in[{]a,b}", "in[*]", "in[?]", "in[]a]", "in[1-a]", "in/*/", "*/sub",
    "in\\#1", "in\\%41", "in*\\*", "{[i]n,x}", "in[^!a]", "in[a^]", "h", "h/*", "h/_*", "h/.*", "h/{_h,_a=b}", "h/_h",
    "h/_a=b", "h/_sub", "h/_metadata", "in*/../ina", "{in,{ina,inb}/f.csv}", "{{ina,inb}/f,in/f}.csv", "cwd/in:c",
)  # fmt: skip
ALONE = ("./cwd/c:d", "in:c", "c:d", "file:in", "file:./in", "in b:c/d", "../{0}/in", "//{1}/in", "FILE:{2}/in")
ALONE += (
    "file:/{2}/in",
    "file:///{2}/in",
    "file://localhost{2}/in",
    "file://{1}/in",
    "nosuch:{2}/in",
    "nosuch://h/in",
    "in::1",
    "in::",
)
INSIDE = ("in#1", "in%41", "file:{2}/in#1", "file:{2}/in%41", "file://{2}/in b", "in\\*", "{2}/in%20b", " lead", "./in")

Look = Callable[[str], list[str]]


def spellings(root: Path) -> list[str]:
    alone = [each.format(root.name, str(root).lstrip("/"), root) for each in ALONE]
    every = [f"{base}{name}" for base in ("", f"file:{root}/") for name in NAMES]
    return every + [f"{base}{name}" for base in (f"{root}/", f"file://{root}/") for name in NAMES[:24]] + alone


def lay_out(root: Path) -> None:
    """Files that say in which directory they are."""
    for name in (*(f"{directory}/f.csv" for directory in DIRECTORIES), *FILES):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name.encode().hex() + ",1\n")
        os.utime(path, (1, 1))


def by_us(path: str) -> list[str]:
    """As the source reads it, without Spark."""
    source, log = create("s", "csv", {"path": path, "schema": "v STRING, k INT"}), MemoryLog()
    source.schema()
    source.freeze(log)
    end = source.latest(source.initial(), Limits(), log)
    if not len(log):
        raise FileNotFoundError(path)
    ranges = source.plan(source.initial(), end, log)
    return [value for r in ranges for batch in source.read(r, ["v"]) for value in batch["v"].to_pylist()]


def tried(look: Look, path: str, errors: tuple[type[Exception], ...]) -> list[str] | None:
    try:
        return sorted(set(look(path))) or None
    except errors:
        return None


def main(mode: str, outcome: str) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    builder = builder.remote("local[1]") if mode == "connect" else builder.master("local[1]")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark: Any = builder.getOrCreate()

    def by_spark(path: str) -> list[str]:
        return [row[0] for row in spark.read.schema("v STRING, k INT").csv(path).collect()]

    root = Path.cwd()
    found = {}
    for path in spellings(root):
        theirs = tried(by_spark, path, (PySparkException, Py4JJavaError))
        found[path] = theirs, tried(by_us, path, (MJoinError, OSError))
    inside = [each.format(root.name, str(root).lstrip("/"), root) for each in INSIDE]
    aliases = [f"s{number}" for number in range(len(inside))]
    equal = " ".join(f"JOIN {alias} ON {alias}.k = s0.k" for alias in aliases[1:])
    options = {"query": f"SELECT {', '.join(f'{a}.v AS v_{a}' for a in aliases)} FROM s0 {equal}"}
    for number, path in enumerate(inside):
        options |= {f"source.s{number}.path": path, f"source.s{number}.format": "csv"}
        options |= {f"source.s{number}.schema": "v STRING, k INT"}
    rows = [list(row) for row in spark.read.format("mjoin").options(**options).load().collect()]
    missing = {}
    for path in ("file:nothere#1", "nothere%41", f"file:{root}/nothere#1"):
        given = options | {"source.s0.path": path}
        try:
            _ = spark.read.format("mjoin").options(**given).load().schema  # over Connect, only this looks
        except PySparkException as e:
            missing[path] = str(e)
    Path(outcome).write_text(json.dumps({"found": found, "inside": [inside, rows], "missing": missing}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
