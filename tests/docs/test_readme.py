"""What the README and the pages refer to is there; their code is run by test_programs."""

import re
from pathlib import Path

import pytest

from tests.docs.test_programs import blocks

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()
    named = set(re.findall(r"`make ([a-z-]+)`", text)) | set(re.findall(r"^make ([a-z-]+)$", text, re.MULTILINE))
    assert named <= targets


def test_the_readme_begins_with_the_two_commands() -> None:
    assert blocks("README.md", "")[0] == "make demo\nmake test\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target} is not there"
        if anchor:
            assert anchor in anchors(file), f"{target}: no such heading"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def test_files_that_the_architecture_page_names_exist() -> None:
    named = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", (ROOT / "docs/architecture.md").read_text())
    assert len(named) > 10
    places = (ROOT, ROOT / "spark_mjoin", ROOT / "spark_mjoin/query")
    assert not [name for name in named if not any((place / name).exists() for place in places)]
