"""A clock that a test sets."""

import time
from dataclasses import dataclass


@dataclass
class SetClock:
    """Stands still until it is moved on. Tasks and files have the system's time of day, and so has it by default."""

    now: float = 1000.0
    day: float | None = None  # seconds since 1970

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time() if self.day is None else self.day

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        if self.day is not None:
            self.day += seconds
