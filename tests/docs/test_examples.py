"""Every example is short where that was promised, listed, and run by a test (see test_programs)."""

from pathlib import Path

from tests.docs.test_programs import PROMISED

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_every_example_is_tested_and_listed() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == set(PROMISED)
    listed = (EXAMPLES / "README.md").read_text()
    assert not [name for name in names if f"({name}.py)" not in listed]


def test_the_quickstart_stays_short() -> None:
    assert len((EXAMPLES / "quickstart.py").read_text().splitlines()) < 30
