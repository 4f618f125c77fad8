"""Manifests for tests that are about who reads them: everything that a test does not say is nothing."""

from typing import Any

from spark_mjoin.counts import Done, Standing
from spark_mjoin.evidence import Edge, Held, Taken
from spark_mjoin.state.manifest import AdmittedFigures, Manifest, OperatorFigures


def operator(rows: tuple[int, ...], edges: tuple[Edge, ...] = (), **more: Any) -> OperatorFigures:
    unknown, nothing = ("",) * len(rows), (AdmittedFigures(),) * len(rows)
    return OperatorFigures(**{**dict(zip(FIELDS, (rows, (), 0, unknown, edges, nothing), strict=True)), **more})


FIELDS = ("rows", "segments", "results", "orders", "edges", "admitted")


def manifest(rows: tuple[int, ...], **more: Any) -> Manifest:
    """Of a join that is one operator."""
    given = {
        "version": 1,
        "positions": {},
        "tree": tuple(range(len(rows))),
        "rows": rows,
        "dropped": (0,) * len(rows),
        "orders": ("",) * len(rows),
        "results": 0,
        "operators": (operator(rows),),
        "ancestors": (),
        "identities": (),
        "taken": Taken((0,) * len(rows)),
        "held": Held(),
        "done": Done(),
        "standing": Standing(),
    }
    return Manifest(**{**given, **more})
