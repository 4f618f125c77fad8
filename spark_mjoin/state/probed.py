"""What probes of an operator have seen, which the planner learns from, and how they last went, for people."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_mjoin.evidence import EdgeCounts, Edges, edges_of, faded, rank
from spark_mjoin.model import Access
from spark_mjoin.state.manifest import OperatorFigures


@dataclass
class Probed:
    orders: list[str]  # the last probing order of each member, for people
    scans: Access = ()  # the directions that scanned in the last batch, for people
    edges: Edges = field(default_factory=dict)  # what probes have seen, lately more than long ago

    @staticmethod
    def of(kept: OperatorFigures) -> Probed:
        return Probed(list(kept.orders), (), edges_of(kept.edges))

    def learn(self, edges: Edges, rows: int) -> None:
        """Add what probes saw in a batch of so many arriving rows.

        In the order of manifests: sums over contexts are the same then whether a state was loaded or not.
        """
        known = faded(self.edges, rows)
        for context, counts in edges.items():
            if counts.probes:
                known.setdefault(context, EdgeCounts()).add(counts)
        self.edges = dict(sorted(known.items(), key=lambda entry: rank(entry[0])))
