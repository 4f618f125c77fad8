"""A clock that a test sets."""

import time
from dataclasses import dataclass


@dataclass
class SetClock:
    """Stands still until it is moved on. Tasks and files have the system's time, so that is what it says of the day."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time()

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
