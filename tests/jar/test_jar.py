"""The jar in real sessions, classic and Connect, each in a process of its own (see child.py), against duckdb."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import spark_mjoin
from spark_mjoin.doors import shim
from spark_mjoin.errors import JarError
from tests.examples import FACTOR
from tests.jar.cube_scenarios import CUBES
from tests.jar.engine_scenarios import ENGINE
from tests.jar.fault_scenarios import FAULTS as ON_A_CLUSTER
from tests.jar.layout_scenarios import LAYOUTS
from tests.jar.oracle_scenarios import ORACLES
from tests.jar.scenarios import SCENARIOS
from tests.jar.stage_scenarios import STAGES
from tests.jar.stream_scenarios import STREAMS
from tests.jar.table_scenarios import TABLES
from tests.spark.processes import run_with_children

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "tests" / "spark" / "faults"
ALL = {
    "format": SCENARIOS,
    "streams": STREAMS,
    "tables": TABLES | ENGINE,
    "stages": STAGES | CUBES | LAYOUTS,
    "oracle": ORACLES,
    "faults": ON_A_CLUSTER,
}  # each in a session of its own
CASES = [(door, mode, name) for door, all in ALL.items() for name, s in all.items() for mode in s.modes]

Outcome = Callable[[str, str], dict[str, str | None]]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What came of all scenarios of a door and a mode; they run when the first of them is asked for."""
    known: dict[tuple[str, str], dict[str, str | None]] = {}

    def of(door: str, mode: str) -> dict[str, str | None]:
        if (door, mode) not in known:
            names = [n for n, s in ALL[door].items() if mode in s.modes]
            known[door, mode] = run(mode, names, tmp_path_factory.mktemp("jar"))
        return known[door, mode]

    return of


def run(mode: str, names: list[str], root: Path) -> dict[str, str | None]:
    faults = root / "faults.json"
    faults.write_text("[]")
    path = os.pathsep.join([str(FAULTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "MJOIN_FAULTS": str(faults), "PYTHONPATH": path}
    command = [sys.executable, "-m", "tests.jar.child", mode, str(root), *names]
    run_with_children(command, root / "log", environment, ROOT)
    outcome = root / "outcome.json"
    assert outcome.exists(), (root / "log").read_text()[-5000:]
    return dict(json.loads(outcome.read_text()))


@pytest.mark.skipif(not shim.JAR.exists(), reason="the jar is not built: there is no JDK")
@pytest.mark.timeout(420 * max(1, FACTOR))
@pytest.mark.parametrize(("door", "mode", "scenario"), CASES)
def test_with_the_jar(door: str, mode: str, scenario: str, outcome: Outcome) -> None:
    found = outcome(door, mode)
    assert scenario in found, f"the session ended before; it had finished {sorted(found)}"
    assert found[scenario] is None, found[scenario]


class Session:
    """As much of a session as `enable` looks at before it does anything."""

    def __init__(self, version: str) -> None:
        self.version = version


@pytest.mark.parametrize("version", ["4.1.1", "4.4.0", "3.5.7", "5.0.0"])
def test_enable_refuses_other_versions(version: str) -> None:
    with pytest.raises(JarError, match=f"works with Spark 4.2 and 4.3, and this is Spark {version}.*'stateLocation'"):
        spark_mjoin.enable(Session(version))


def test_an_installation_without_the_jar_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("spark_mjoin.doors.shim.JAR", tmp_path / "spark-mjoin.jar")
    with pytest.raises(JarError, match=r"is not there .* JDK 17 .* 'stateLocation'"):
        spark_mjoin.jar_path()
    with pytest.warns(UserWarning, match="JDK 17"):
        assert spark_mjoin.enable(Session("4.3.0")) is False


def test_a_join_of_streams_says_what_to_do_without_the_jar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(
        JarError, match=r'works with Spark 4.2 and 4.3, and this is Spark 4.4.0.* format\("mjoin"\)'
    ) as e:
        shim.install_node(Session("4.4.0"))
    assert "stateLocation" not in str(e.value)
    monkeypatch.setattr("spark_mjoin.doors.shim.JAR", tmp_path / "spark-mjoin.jar")
    with pytest.raises(JarError, match=r'stateful operator of the jar.* JDK 17 .* format\("mjoin"\)') as e:
        shim.install_node(Session("4.3.0"))
    assert "stateLocation" not in str(e.value)


def test_both_sides_claim_the_same_versions() -> None:
    java = (ROOT / "jvm-shim/src/sparkmjoin/SparkVersions.java").read_text()
    listed = ", ".join(f'"{version}"' for version in shim.SPARK_VERSIONS)
    assert f"Set.of({listed})" in java


def test_a_path_that_spark_would_misread_is_copied(tmp_path: Path) -> None:
    awkward = tmp_path / "a blank, 100%"
    awkward.mkdir()
    (awkward / "spark-mjoin.jar").write_bytes(b"contents")
    plain = shim.plain_path(str(awkward / "spark-mjoin.jar"))
    assert " " not in plain
    assert "%" not in plain
    assert Path(plain).read_bytes() == b"contents"
    assert shim.plain_path("/usr/lib/python3.11/spark-mjoin.jar") == "/usr/lib/python3.11/spark-mjoin.jar"
