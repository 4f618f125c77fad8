"""Other numbers of partitions after kill -9 of everything, in the middle of the first batches of a number."""

import json
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from tests.spark.joins import FileJoin
from tests.spark.processes import Driver

CRAMPED = {"maxFilesPerTrigger": "1", "memory": "40k", "diskShare": "0", "blockingThreshold": "1"}
WINDOW, FILES, ROWS = 2_500_000, 9, 60
CRASHES = [  # by the version that is made then, and the number of partitions that comes next
    ({"when": "before", "file": "version-0*4[.]", "what": "jvm"}, "3"),
    ({"when": "after", "file": "version-0*6[.]", "what": "jvm"}, "1"),  # one partition has it, the others have not
    ({"when": "before", "file": "version-0*8[.]", "what": "jvm"}, "4"),
    ({"when": "unlinked", "file": "rows-0*10-1-", "what": "jvm"}, "2"),
]


def promising(tmp_path: Path) -> FileJoin:
    """Three inputs with windows of two and a half files, whose keys move on; `a` says which do not come any more."""
    options = {**CRAMPED, "window": f"{WINDOW} microseconds", "source.a.punctuation": "over", "purge": "immediate"}
    for alias in "abc":
        options |= {f"source.{alias}.timestamp": "ts", f"source.{alias}.watermark": "1 second"}
    query = "SELECT a.k, a.v AS x, b.v AS y, c.v AS z FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k"
    join = FileJoin(tmp_path, query, options)
    for number in range(FILES):
        for step, alias in ((1, "a"), (3, "b"), (7, "c")):
            keys = [10 * number + step * i % 30 for i in range(ROWS)]
            times = [1_000_000 * number + i * 10_000 for i in range(ROWS)]
            said = range(10 * number - 10, 10 * number) if alias == "a" else ()
            table = {
                "k": [*keys, *said],
                "v": [*range(ROWS * number, ROWS * (number + 1)), *(None for _ in said)],
                "ts": pa.array([*times, *(None for _ in said)], pa.timestamp("us", "UTC")),
                "over": [*(False for _ in keys), *(True for _ in said)],
            }
            join.add(alias, pa.table(table))
    return join


def in_windows(join: FileJoin) -> str:
    youngest = "greatest(epoch_us(a.ts), epoch_us(b.ts), epoch_us(c.ts))"
    inside = " AND ".join(f"epoch_us({alias}.ts) > {youngest} - {WINDOW} AND NOT {alias}.over" for alias in "abc")
    return f"{join.query} WHERE {inside}"


@pytest.mark.parametrize("kind", ["windows and punctuations", "tree"])
def oracle_everything_dies_in_the_first_batches_of_a_number_of_partitions(tmp_path: Path, kind: str) -> None:
    if kind == "tree":
        join = FileJoin(tmp_path, options={**CRAMPED, "plan": "((a b) c)"}).fill(files=FILES, rows=ROWS, keys=60)
        expected = join.expected()
    else:
        join = promising(tmp_path)
        expected = join.expected(in_windows(join))
    join.options["partitions"] = "2"
    with Driver(join, [fault for fault, _ in CRASHES], log="info") as driver:
        for _, partitions in CRASHES:
            assert driver.wait() == -signal.SIGKILL, driver.errors()[-3000:]
            driver.change(partitions=partitions)
            driver.start()
        assert driver.wait() == 0, driver.errors()[-3000:]
        assert driver.missed() == []
        assert driver.results() == expected
        assert "took over" in driver.errors()
    plans = [plan_of(path) for path in sorted((join.checkpoint / "offsets").iterdir(), key=lambda p: int(p.name))]
    divided = [(plan["routing"]["partitions"], plan["routing"]["since"]) for plan in plans]
    assert list(dict.fromkeys(divided))[:3] == [(2, 1), (3, 6), (1, 8)], "crashes are where the number changes"
    assert {partitions for partitions, _ in divided} == {2, 3, 1, 4}
    assert sum(plan.get("emitsPending", False) for plan in plans) >= 3


def plan_of(offset: Path) -> dict:
    return json.loads(offset.read_text().splitlines()[-1])["plan"]
