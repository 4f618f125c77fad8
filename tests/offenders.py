"""What breaks a rule of `tests/test_house.py` today. These lists only get shorter."""

LONG_FILES: set[str] = set()

LONG_PARAMETER_LISTS: set[str] = set()

PRIVATE_NAMES: set[tuple[str, str]] = set()

WORDS: set[tuple[str, str]] = {
    ("docs/architecture.md", "give out"),
    ("docs/architecture.md", "gone on with"),
    ("docs/architecture.md", "leave memory"),
    ("docs/architecture.md", "told"),
}

LONG_LINES: set[str] = {
    "docs/architecture.md",
    "docs/performance.md",
}
