"""The rules of the house, checked over the syntax trees and texts of the repository.

`tests/offenders.py` lists what breaks a rule today. The lists may only get shorter: an entry that keeps to its rule
fails the test, so whoever repairs something strikes it off. The kernel may have long files and long parameter lists:
its twins share signatures, and numba compiles no objects.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests import offenders

ROOT = Path(__file__).parent.parent
MOST_LINES = 450
MOST_PARAMETERS = 6
MOST_COLUMNS = 100  # of a page

BANNED = {
    "leave memory": r"(?<![a-z])(?:lea(?:ves?|ving)|left)[\s_]+(?:the[\s_]+)?(?:memory|state)(?![a-z])",  # evict, drop
    "give out": r"(?<![a-z])(?:giv(?:e|es|en|ing)|gave)[\s_]+out(?![a-z])",  # emit
    "gone on with": r"(?<![a-z])go(?:ne|es|ing)?[\s_]+on[\s_]+with(?![a-z])",  # resume
    "owe": r"(?<![a-z])ow(?:e|es|ed|ing)(?![a-z])",  # pending
    "settle": r"settl(?:e|es|ed|ing)(?![a-z])",  # emit_pending, mark_emitted, freeze_gc
    "told": r"(?<![a-z])told(?![a-z])",  # emitted, known to
}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def package() -> list[Path]:
    return sorted((ROOT / "spark_mjoin").rglob("*.py"))


def free_of_kernel() -> list[Path]:
    return [path for path in package() if path.parent.name != "kernel"]


def assert_only(found: set[Any], listed: set[Any], rule: str) -> None:
    assert not found - listed, f"{rule}: {sorted(found - listed)}"
    repaired = sorted(listed - found)
    assert not repaired, f"these keep to the rule now, strike them off the list in tests/offenders.py: {repaired}"


# --- files and functions ---------------------------------------------------------------------------------------------


def long_files() -> set[str]:
    return {named(path) for path in free_of_kernel() if len(path.read_text().splitlines()) > MOST_LINES}


def test_files_are_short() -> None:
    assert_only(long_files(), offenders.LONG_FILES, f"more than {MOST_LINES} lines; what is the second subject in it?")


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[str]:
    of = function.args
    names = [each.arg for each in (*of.posonlyargs, *of.args, *of.kwonlyargs)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def long_parameter_lists() -> set[str]:
    return {
        f"{named(path)}:{getattr(function, 'name', 'lambda')}"
        for path in free_of_kernel()
        for function in functions(path)
        if len(parameters(function)) > MOST_PARAMETERS
    }


def test_functions_have_few_parameters() -> None:
    rule = f"more than {MOST_PARAMETERS} parameters; which of them belong together?"
    assert_only(long_parameter_lists(), offenders.LONG_PARAMETER_LISTS, rule)


def test_no_error_is_swallowed() -> None:
    silent = {
        f"{named(path)}:{node.lineno}"
        for path in package()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ExceptHandler) and all(isinstance(each, ast.Pass) for each in node.body)
    }
    assert_only(silent, set(), "an error that is caught and ignored")


# --- private names ---------------------------------------------------------------------------------------------------


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def imported(path: Path) -> dict[str, str]:
    """What a file imports: local names, and what they stand for."""
    found = {}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.split(".")[0]
                found[alias.asname or whole] = whole
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def defined(path: Path) -> set[str]:
    """The private functions, methods and attributes that a file defines."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                found.add(node.attr)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            found.update(target.id for target in targets if isinstance(target, ast.Name))
    return {name for name in found if is_private(name)}


@cache
def private_to_the_package() -> frozenset[str]:
    return frozenset(name for path in package() for name in defined(path))


def root_of(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def reached(path: Path) -> Iterator[str]:
    """Private names of the package that a file outside of it uses."""
    names, own = imported(path), defined(path)
    ours = {local for local, name in names.items() if name.split(".")[0] == "spark_mjoin"}
    foreign = {*(names.keys() - ours), "self", "cls"}
    yield from (local for local in ours if is_private(names[local].rpartition(".")[2]))
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            root = root_of(node.value)
            if root in ours or (root not in foreign and node.attr in private_to_the_package() - own):
                yield node.attr
        elif isinstance(node, ast.Call) and len(node.args) > 1 and root_of(node.args[0]) in ours:
            name = node.args[1]  # setattr(module, "_name", …), with or without a monkeypatch
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and is_private(name.value):
                yield name.value
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            dotted = re.fullmatch(r"spark_mjoin(?:\.\w+)*\.(_[a-zA-Z]\w*)", node.value)
            if dotted:
                yield dotted[1]


def private_names() -> set[tuple[str, str]]:
    outside = [path for folder in ("tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    return {(named(path), name) for path in outside for name in reached(path)}


def test_no_test_reaches_into_private_names() -> None:
    assert_only(private_names(), offenders.PRIVATE_NAMES, "a private name of the package, used from outside")


# --- words -----------------------------------------------------------------------------------------------------------


def texts() -> Iterator[Path]:
    """Code and pages, without the lists of words themselves."""
    lists = (Path(__file__).name, "offenders.py")
    for folder in ("spark_mjoin", "docs", "examples", "benchmarks", "tests", "jvm-shim"):
        for end in ("py", "md", "java"):
            yield from (path for path in (ROOT / folder).rglob(f"*.{end}") if path.name not in lists)
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))


def words() -> set[tuple[str, str]]:
    return {
        (named(path), word)
        for path in texts()
        for word, pattern in BANNED.items()
        if re.search(pattern, path.read_text(), re.IGNORECASE)
    }


def test_one_word_for_one_thing() -> None:
    assert_only(words(), offenders.WORDS, "words that we do not use; CONTRIBUTING.md has those that we do")


# --- pages -----------------------------------------------------------------------------------------------------------


def is_prose(line: str) -> bool:
    """Neither a row of a table nor code, which cannot be folded."""
    return not line.startswith(("|", "    ", ">"))


def unfolded(page: Path) -> list[int]:
    """The lines of a page that should be folded."""
    found, is_code = [], False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code and is_prose(line) and len(line) > MOST_COLUMNS and " " in line.strip():
            found.append(number)
    return found


def test_pages_are_folded() -> None:
    long = {named(page) for page in texts() if page.suffix == ".md" and unfolded(page)}
    assert_only(long, offenders.LONG_LINES, f"pages with lines of more than {MOST_COLUMNS} characters")
