"""Options of the source, read once: strings become `Options`, and no other layer looks at an option string again.

    names.py           which options there are
    options.py         `Options.parse`
    source_options.py  what the join needs to know about one source
    settings.py        how the join runs
    combinations.py    options that are right alone and wrong together

Spark hands over a case-insensitive mapping whose keys are lower-cased when it is copied, so every name here matches
without regard to case and aliases are lower-case. Sources are ordered by alias, because that mapping has no order.

Not covered: what is behind `source.<alias>.*` (each source reads its own options), and the meaning of `query`
(`query/`).
"""

from __future__ import annotations

from spark_mjoin.config.options import Options
from spark_mjoin.config.source_options import Promised, SourceOptions, WindowOption

__all__ = ["Options", "Promised", "SourceOptions", "WindowOption"]
