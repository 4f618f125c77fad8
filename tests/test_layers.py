"""Imports point down the layers (DESIGN, section 4), and only the top knows Spark."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = [
    "__main__",
    "explaining",
    "doors",
    "driver",
    "engine",
    "task",
    "plan",
    "query",
    "config",
    "flush",
    "mjoin",
    "metrics",
    "state",
    "sources",
    "kernel",
    "counts",
    "evidence",
    "filesystem",
    "schema",
    "logs",
    "model",
    "quantities",
    "redaction",
    "errors",
]
KNOW_SPARK = {"doors"}
FILES = sorted((ROOT / "spark_mjoin").rglob("*.py"))


def layer_of(module: str) -> str:
    return module.split(".")[1]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) for everything that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            if node.module == "spark_mjoin":
                yield from ((node.lineno, f"spark_mjoin.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down_the_layers(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    if module == "spark_mjoin.__init__":
        assert {m for _, m in imports(path)} <= {
            "spark_mjoin.doors.shim",
            "spark_mjoin.doors.streams",
            "spark_mjoin.explaining",
        }, "the package itself must stay light"
        return
    own = layer_of(module)
    assert own in LAYERS, f"{path}: layer '{own}' is not in the list of layers"
    for line, imported in imports(path):
        if imported.startswith("spark_mjoin."):
            assert not (own == "driver" and imported.startswith("spark_mjoin.engine")), f"{path}:{line}"
            other = layer_of(imported)
            assert other == own or LAYERS.index(other) > LAYERS.index(own), (
                f"{path.relative_to(ROOT)}:{line} imports {imported}: layer '{own}' may not import '{other}'"
            )
        if imported.split(".")[0] in ("pyspark", "py4j"):
            assert own in KNOW_SPARK, f"{path.relative_to(ROOT)}:{line}: only {sorted(KNOW_SPARK)} may import pyspark"


def test_executors_do_not_load_the_sql_parser() -> None:
    for path in FILES:
        if layer_of(".".join(path.relative_to(ROOT).parts)) in ("engine", "mjoin", "state", "kernel"):
            assert not [m for _, m in imports(path) if m.startswith("sqlglot")], path


def loaded_by(statement: str) -> set[str]:
    """The top-level packages that a fresh process has loaded after a statement."""
    report = f"{statement}; import sys; print(*{{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_looking_the_source_up_loads_nothing_heavy() -> None:
    """PySpark imports every `pyspark_*` module whenever it looks up any Python data source."""
    assert loaded_by("import pyspark_mjoin").isdisjoint({"numba", "sqlglot", "pyarrow", "numpy"})


def test_the_driver_does_not_load_the_engine() -> None:
    assert "numba" not in loaded_by(
        "import spark_mjoin.doors.reader, spark_mjoin.query.graph, spark_mjoin.driver.calibrate"
    )


# --- retention -------------------------------------------------------------------------------------------------------

RETENTION = ROOT / "spark_mjoin" / "engine" / "retention"
INTERFACE = {"__init__", "protocol"}
IMPLEMENTATIONS = {
    *(f"spark_mjoin.engine.retention.{p.stem}" for p in RETENTION.glob("*.py") if p.stem not in INTERFACE),
    *(f"spark_mjoin.state.{rule}" for rule in ("progress", "promises", "purged")),
}
KINDS = {"windowed", "promising", "forgetful", "gives_punctuations", "counts_rows", "window"}  # of a spec
PLANNED = {"expiry", "purging", "room"}  # of a plan
RULES = {"progress", "promises", "purged"}  # of what a state knows
ASK_RETENTION = ["engine/pipeline", "engine/batch", "engine/arrival", "engine/replan", "state/store", "state/stored"]


def attributes(path: Path) -> dict[str, int]:
    """Names of attributes that a file uses, and a line in which it does."""
    return {node.attr: node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("name", ASK_RETENTION)
def test_whoever_asks_what_leaves_names_no_reason_for_it(name: str) -> None:
    path = ROOT / "spark_mjoin" / f"{name}.py"
    imported = {module: line for line, module in imports(path)}
    assert not IMPLEMENTATIONS & imported.keys(), f"{name} imports an implementation of retention"
    used = attributes(path).keys() & (KINDS | PLANNED | RULES)
    if name == "engine/arrival":
        used -= {"progress"}  # results have to be inside their windows, whatever leaves
    assert not used, f"{name} asks for {sorted(used)}"


def test_one_place_makes_retentions() -> None:
    assert len(IMPLEMENTATIONS) > 6
    for path in FILES:
        if path.parent != RETENTION:
            found = {m for _, m in imports(path) if m.startswith("spark_mjoin.engine.retention.")} & IMPLEMENTATIONS
            assert not found, f"{path} imports {found}"


def test_rows_leave_for_good_in_one_place() -> None:
    """Whatever lets rows depart takes them off the groups' counts and off what was admitted."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = ast.unparse(node.func)
                if called.endswith("groups.drop") or (".admitted[" in called and node.func.attr in ("leave", "forget")):
                    assert path.name == "operator.py" and path.parent.name == "state", f"{path}:{node.lineno}"
