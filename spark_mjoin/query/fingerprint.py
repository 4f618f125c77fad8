"""What the durable state of a join means, as plain JSON, and in words what has changed about it.

State is kept across restarts, and a restart may come with other options. Two specs with equal fingerprints read the
same rows into the same stored columns under the same keys, so one can resume from the state of the other. The order of
the inputs counts too: the state knows them by number. A change of the projection, or of a residual that needs no other
stored column, changes nothing here. Nor do limits, budgets, the number of files per batch, or the number of partitions:
the state is divided anew (engine.takeover).

Not covered: secrets are never written (`redaction`), so a change of them is not seen. That is as it should be: a
password may change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_mjoin.mjoin.casts import type_name
from spark_mjoin.mjoin.rendering import identifier, render
from spark_mjoin.model import InputSpec, JoinSpec, SourceSpec
from spark_mjoin.redaction import public_options
from spark_mjoin.schema import parse_ddl
from spark_mjoin.sources.protocol import LIMITS

_NOT_DATA = {*(limit.lower() for limit in LIMITS), "failondataloss", "latestfirst"}


def describe(spec: JoinSpec) -> dict[str, Any]:
    """The fingerprint: {"order": […], "sources": {alias: …}, "inputs": {alias: …}}, readable and JSON-able."""
    used = sorted({i.source for i in spec.inputs})
    return {
        "order": [i.alias for i in spec.inputs],
        "sources": {spec.sources[s].alias: _source(spec.sources[s]) for s in used},
        "inputs": {i.alias: _input(i, spec) for i in spec.inputs},
        **({} if spec.stages is None else {"stages": spec.stages}),
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The differences between two fingerprints, a part of a sentence each; empty when the state can be used."""
    if old.get("stages") != new.get("stages"):  # all else that differs follows from it
        return [_other_stages(old.get("stages"), new.get("stages"), old["order"])]
    found = [*_members(old, new, "sources", "source"), *_members(old, new, "inputs", "input")]
    if sorted(old["order"]) == sorted(new["order"]):
        found += _changed("the order of the inputs in the query", ", ".join(old["order"]), ", ".join(new["order"]))
    for alias in _shared(old, new, "sources"):
        before, after = old["sources"][alias], new["sources"][alias]
        found += _changed(f"source {alias}: format", before["format"], after["format"])
        for name in sorted({*before["options"], *after["options"]}):
            given = [options["options"].get(name) for options in (before, after)]
            if not (name.lower() == "schema" and _mean_the_same(*given)):
                found += _changed(f"source {alias}: option {name}", *given)
    for alias in _shared(old, new, "inputs"):
        before, after = old["inputs"][alias], new["inputs"][alias]
        found += _changed(f"input {alias}: source", before["source"], after["source"])
        found += _changed(f"input {alias}: filter", before["filter"], after["filter"])
        found += _keys(alias, before["keys"], after["keys"])
        found += _columns(alias, before["columns"], after["columns"])
        for name in ("window", "timestamp", "punctuation", "constraints"):  # not every input has the last two
            found += _changed(f"input {alias}: {name}", before.get(name), after.get(name))
    return found


def _other_stages(before: str | None, after: str | None, inputs: Sequence[str]) -> str:
    was, now = (f"in the stages {each}" if each else "in one stage" for each in (before, after))
    one = f"set option 'plan' to '({' '.join(map(identifier, inputs))})' for one task, or to 'cube'"
    keep = f"set option 'plan' to '{before}' to stay with them" if before else one
    return f"the join ran {was}, and would now run {now}: {keep}"


def _source(source: SourceSpec) -> dict[str, Any]:
    kept = public_options((n, v) for n, v in source.options if n.lower() not in _NOT_DATA)
    return {"format": source.format, "options": kept}


def _input(input: InputSpec, spec: JoinSpec) -> dict[str, Any]:
    return {
        "source": spec.sources[input.source].alias,
        "filter": None if input.filter is None else render(input.filter),
        "keys": {str(c): _key(input, ordinal, spec) for c, ordinal in input.keys},
        "columns": {
            s.name: f"{render(s.expr)} {type_name(s.type)}"
            for s in input.stored
            if s.domain is None and not s.made_up  # row numbers: they follow from `window`
        },
        "window": input.window and f"{input.window.size} {'rows' if input.window.in_rows else 'microseconds'}",
        "timestamp": None if input.time is None else input.stored[input.time].name,
        **_promises(input),
    }


def _promises(input: InputSpec) -> dict[str, str]:
    """The key promises of the input: the join has dropped rows because of them."""
    stored = {c: input.stored[o] for c, o in input.keys}
    found, names = {}, {c: s.name if s.made_up else identifier(s.name) for c, s in stored.items()}
    if input.punctuations is not None:
        more = [
            f"{names[p.key_class]}: {identifier(n)}"
            for p in input.punctuations.patterns
            for n in (p.values, p.low, p.high)
            if n
        ]
        found["punctuation"] = " | ".join([render(input.punctuations.predicate), *more])
    constraints = [
        f"{name} {', '.join(names[c] for c in classes)}"
        for name, classes in (("unique", input.unique), ("clustered", input.clustered))
        if classes
    ]
    if input.ordered is not None:
        constraints.append(f"ordered {names[input.ordered[0]]}{' desc' if input.ordered[1] else ''}")
    if constraints:
        found["constraints"] = "; ".join(constraints)
    return found


def _key(input: InputSpec, ordinal: int, spec: JoinSpec) -> str:
    stored = input.stored[ordinal]
    assert stored.domain is not None
    digits = f" {stored.domain.precision},{stored.domain.scale}" if stored.domain.kind == "decimal" else ""
    # A key that is also payload is emitted in the type of its column, which the domain does not say.
    schema = spec.sources[input.source].schema
    emitted = [f" as {type_name(schema.field(name).type)}" for name, o in input.payload if o == ordinal]
    return f"{render(stored.expr)} ({stored.domain.kind}{digits}{''.join(emitted)})"


def _mean_the_same(before: str | None, after: str | None) -> bool:
    """Whether two schemas differ in nothing but how they are written."""
    if before == after or before is None or after is None:
        return before == after  # nearly always, and then nothing is parsed
    return bool(parse_ddl(before, "schema") == parse_ddl(after, "schema"))


def _members(old: Mapping[str, Any], new: Mapping[str, Any], part: str, what: str) -> list[str]:
    gone = [f"{what} {a} is no longer there" for a in sorted(set(old[part]) - set(new[part]))]
    return gone + [f"{what} {a} is new" for a in sorted(set(new[part]) - set(old[part]))]


def _shared(old: Mapping[str, Any], new: Mapping[str, Any], part: str) -> list[str]:
    return sorted(set(old[part]) & set(new[part]))


def _changed(what: str, before: object, after: object) -> list[str]:
    shown = ["not given" if v is None else v for v in (before, after)]
    return [] if before == after else [f"{what} was {shown[0]}, is now {shown[1]}"]


def _keys(alias: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    shown = [", ".join(keys[c] for c in sorted(keys, key=int)) for keys in (before, after)]
    if before != after and shown[0] == shown[1]:
        return [f"input {alias}: key {shown[0]} is compared with other columns, or in another order of conditions"]
    return _changed(f"input {alias}: key", *shown)


def _columns(alias: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    found = [f"input {alias}: column {c} is stored no longer" for c in before if c not in after]
    found += [f"input {alias}: column {c} was not stored" for c in after if c not in before]
    for column in before:
        if column in after:
            found += _changed(f"input {alias}: column {column}", before[column], after[column])
    return found
