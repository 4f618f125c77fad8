"""The state of one join partition at one version: the operators of its plan, and how far the sources were read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_mjoin.evidence import Edges
from spark_mjoin.model import OperatorSpec, Position, Scheme, Tree
from spark_mjoin.state.manifest import Lineage, Signature
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.residency import Victim
from spark_mjoin.state.sample import Sample
from spark_mjoin.state.traffic import Traffic


@dataclass
class PartitionState:
    tree: Tree
    version: int
    positions: Mapping[str, Position]  # how far each source was read to get here
    operators: list[OperatorState]  # of the tree, in preorder
    results: int = 0  # rows emitted since the query began
    learned: Edges = field(default_factory=dict)  # what probes of earlier plans have seen, over the join's inputs
    lineage: Lineage = ()  # the manifests that led here, the newest last: that of this state
    since: int = 0  # the version that made the plan what it is: rows of results are in the order in which it found them

    @staticmethod
    def empty(
        tree: Tree, layout: Sequence[OperatorSpec], positions: Mapping[str, Position], tracked: bool = False
    ) -> PartitionState:
        return PartitionState(tree, 0, positions, [OperatorState.empty(place, tracked) for place in layout])

    @property
    def root(self) -> OperatorState:
        return self.operators[0]

    @property
    def tracked(self) -> bool:
        return self.root.tracked

    @property
    def sample(self) -> Sample | None:
        """The sample that estimates are made from; None where nothing has to be estimated yet."""
        return self.root.sample

    def watch(self, sample: Sample | None) -> None:
        """Let rows that arrive come into a sample."""
        for operator in self.operators:
            operator.sample = sample

    @property
    def traffic(self) -> Traffic | None:
        """How many rows have come lately, of which keys; None where nobody asks."""
        return self.root.traffic

    def count_keys(self, scheme: Scheme | None) -> None:
        """Let rows that arrive be counted by their keys, for those who divide rows by them; None: nobody asks."""
        if scheme is None:
            self.resume_traffic(None)
        elif self.traffic is None or self.traffic.scheme != scheme:
            self.resume_traffic(Traffic.empty(len(self.inputs()), scheme))

    def resume_traffic(self, traffic: Traffic | None) -> None:
        for operator in self.operators:
            operator.traffic = traffic

    def signatures(self) -> tuple[tuple[Signature | None, ...] | None, ...]:
        """What the rows of each operator mean that are results of others."""
        return tuple(operator.signatures() for operator in self.operators)

    def delivered(self) -> list[int]:
        """How many rows each input of the join has delivered to all partitions."""
        return [operator.admitted[member].delivered for operator, member in self.inputs()]

    def inputs(self) -> list[tuple[OperatorState, int]]:
        """For each input of the join the operator that takes its rows, and as which member."""
        found = {
            leaves[0]: (operator, member)
            for operator in self.operators
            for member, leaves in enumerate(operator.place.leaves)
            if len(leaves) == 1
        }
        return [found[i] for i in sorted(found)]

    def above(self, operator: OperatorState) -> tuple[OperatorState, int] | None:
        """The operator that takes the results of one, and as which member; None for the root."""
        parent = operator.place.parent
        return None if parent is None else (self.operators[parent[0]], parent[1])

    def worth(self) -> list[float]:
        """For each operator, how many results of the whole join one of its results is expected to lead to."""
        out: list[float] = []
        for operator in self.operators:
            parent = operator.place.parent
            above = None if parent is None else float(self.operators[parent[0]].groups.worth(parent[1]))
            out.append(1.0 if parent is None or above is None else out[parent[0]] * above)
        return out

    def evict(self, victims: Iterable[Victim]) -> int:
        """Evict rows, all of which must be saved; returns how many."""
        victims = list(victims)
        return sum(
            self.operators[number].evict(v for v in victims if v.operator == number)
            for number in sorted({v.operator for v in victims})
        )

    def overflowed(self) -> bool:
        """Whether any row was ever evicted."""
        return any(operator.residency.overflowed() for operator in self.operators)

    def nbytes(self) -> int:
        return sum(operator.nbytes() for operator in self.operators)
