"""What happens at `load()`: options become the meaning of the join and how it runs, or one clear error.

It looks at the schemas of the sources and at nothing else of them. The data source uses it, and so does everything that
describes a join before it runs. So both say the same and fail alike.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from spark_mjoin import sources
from spark_mjoin.config import Options
from spark_mjoin.driver import access, balance
from spark_mjoin.errors import OptionError, listed
from spark_mjoin.model import JoinSpec, Settings
from spark_mjoin.query import tree
from spark_mjoin.query.graph import plan_join

log = logging.getLogger(__name__)


def load(options: Mapping[str, str]) -> tuple[JoinSpec, Settings]:
    """The join that some options describe; OptionError or QueryError for everything that is wrong with them."""
    parsed = _with_limits(Options.parse(options))
    schemas = []
    for source in parsed.sources:
        sources.limits(source.alias, dict(source.options))
        schemas.append(sources.create(source.alias, source.format, dict(source.options)).schema())
    for alias, _ in parsed.settings.expected.hosts:
        raise OptionError(
            f"option 'source.{alias}.hosts' says from where rows are shuffled. With format(\"mjoin\") tasks read all "
            "rows themselves. Leave it out, or use spark_mjoin.join or spark_mjoin.load"
        )
    spec = plan_join(parsed, schemas)
    used = {input.source for input in spec.inputs}
    for idle in (s.alias for number, s in enumerate(spec.sources) if number not in used):
        raise OptionError(f"source '{idle}' is not in option 'query': join it, or remove 'source.{idle}.…'")
    return spec, fitting(spec, parsed.settings)


def fitting(spec: JoinSpec, settings: Settings) -> Settings:
    """The settings of a join, which must go with what it means."""
    if spec.star_class is None and not settings.shares:
        if settings.partitions > 1:
            log.warning(
                "option 'partitions' = %d has no effect: this join has no key that all inputs have, by which its rows "
                "could be split, and runs in one partition",
                settings.partitions,
            )
        settings = replace(settings, partitions=1)  # no key that all inputs have to split the rows by
    chosen = tree.chosen(settings.plan, spec)  # a plan that does not fit is an error now
    if settings.overflow == "shed" and settings.memory_bytes is not None and chosen != tree.single(len(spec.inputs)):
        raise OptionError(
            "option 'plan': with 'overflow' = 'shed' and 'memory' all inputs are in one join, since dropped rows"
            " must not stay in stored results. Remove option 'plan' or 'memory'"
        )
    access.parse(settings.access, spec)
    balance.check(spec, settings)
    return settings


def _with_limits(parsed: Options) -> Options:
    """The limits for all sources, passed to those that know them."""
    given = parsed.sources
    for name, _ in parsed.limits:
        if not any(name in sources.known_limits(s.alias, s.format) for s in given):
            formats = listed(sorted({s.format for s in given}))
            raise OptionError(f"option '{name}' has no effect: it does not apply to format {formats}. Remove it")
    taken = (sources.with_limits(s.alias, s.format, s.options, parsed.limits) for s in given)
    return replace(parsed, sources=tuple(replace(s, options=o) for s, o in zip(given, taken, strict=True)))
