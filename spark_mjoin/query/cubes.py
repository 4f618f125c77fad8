"""A cube in option `plan`: `cube`, with shares that are chosen, or `cube(k1=4, k2=2)`, with these.

Keys are called as `explain` calls them: k1 is the first key class of the join. Not covered: which shares are best
(driver.cubes), and what they mean (state.layouts.Cube).
"""

from __future__ import annotations

import re
from math import prod

from spark_mjoin.errors import OptionError, listed
from spark_mjoin.model import JoinSpec, Settings

Shares = tuple[tuple[int, int], ...]  # (key class, share) by class, without shares of 1

_CUBE = re.compile(r"cube(?:\s*\(([^()]*=[^()]*)\))?", re.IGNORECASE)
_SHARE = re.compile(r"\s*k([1-9]\d*)\s*=\s*([1-9]\d*)\s*", re.IGNORECASE)


def cells(shares: Shares) -> int:
    return prod(share for _, share in shares)


def is_cube(plan: str) -> bool:
    """Whether a plan is a cube and not a tree: no tree has a '=', or one name alone."""
    return _CUBE.fullmatch(plan.strip()) is not None


def parse(plan: str, spec: JoinSpec, settings: Settings) -> Shares | None:
    """The shares that a plan asks for; None: those that are best."""
    found = _CUBE.fullmatch(plan.strip())
    assert found is not None
    if found[1] is None:
        return None
    shares: dict[int, int] = {}
    for entry in found[1].split(","):
        share = _SHARE.fullmatch(entry)
        names = [f"k{number + 1}" for number in range(len(spec.classes))]
        if share is None or int(share[1]) > len(names):
            raise OptionError(
                f"option 'plan': '{entry.strip()}' is not a key and its share, such as 'k1=4'. Keys are: "
                f"{listed(names)}, and spark_mjoin.explain shows which is which"
            )
        if int(share[1]) - 1 in shares:
            raise OptionError(f"option 'plan': '{plan}' has k{share[1]} more than once")
        shares[int(share[1]) - 1] = int(share[2])
    if prod(shares.values()) > settings.partitions:
        raise OptionError(
            f"option 'plan': '{plan}' has {prod(shares.values())} cells, and option 'partitions' is "
            f"{settings.partitions}: choose smaller shares, or more partitions"
        )
    return tuple(sorted((key_class, share) for key_class, share in shares.items() if share > 1))


def render(shares: Shares) -> str:
    """The cube as option `plan` has it."""
    return f"cube({', '.join(f'k{key_class + 1}={share}' for key_class, share in shares)})"
