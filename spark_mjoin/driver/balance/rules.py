"""By which figures layouts are chosen: see the package."""

from __future__ import annotations

from spark_mjoin.state.traffic import KEPT

SKEWED = 1.5  # times the mean: a partition with more rows is too slow
CALM = 1.25  # times the mean, which a partition must not exceed if a key is to come back to it
BETTER = 0.85  # of the rows of the slowest partition: a change must leave it with less
LIGHT = 0.5  # times the mean: a key with fewer rows makes no partition slow by itself
AHEAD = 100  # batches
LEAST_ROWS = 10_000  # of all inputs, lately
STAY = 4  # versions between two changes
COOLED = 24  # versions before a key goes back that was split
LASTS = 20  # versions that ranges should stay even, or they are given up
UNEVEN = 1.5  # times the mean: ranges of which one is expected to have more rows are none
GATHERED = 1.5  # times as many rows as it should have: in such a cell the rows of a key are too alike to be spread
TELLING = 20  # rows that a cell should have, to say so
SHIPPED = 0.1  # of all rows: to divide by rates must save as many from being moved
MOST_CELLS = 64  # of one key
MORE_CELLS = 0.97  # of the rows of the slowest partition, which each larger number of cells must leave
LATELY = KEPT / (1 - KEPT)  # batches whose rows are counted, about
CHANCE = 3.0  # beyond twice its mean: the chi-square of a slot whose rates are not by chance as they are
