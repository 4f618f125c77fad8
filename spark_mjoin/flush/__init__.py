"""Flush policies by name: which rows are evicted when memory is full. A policy is one file and one line here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the driver wants names only, and not the engine
    from spark_mjoin.flush.protocol import Policy

REGISTRY = {
    "adaptive": "spark_mjoin.flush.adaptive:Adaptive",
    "coordinated": "spark_mjoin.flush.coordinated:Coordinated",
    "largest": "spark_mjoin.flush.largest:Largest",
    "random": "spark_mjoin.flush.scattered:Scattered",
}


def policy(name: str) -> Policy:
    """The policy of that name."""
    module, _, cls = REGISTRY[name].partition(":")
    made: Policy = getattr(import_module(module), cls)()
    return made
