"""A bounded memory of recent values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecentValues(Generic[K, V]):
    """The most recently used values, at most ``size`` of them, each for ``keep_s`` seconds. For several threads."""

    def __init__(self, size: int, keep_s: float, clock: Callable[[], float]) -> None:
        self._size, self._keep_s, self._clock = size, keep_s, clock
        self._values: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._values.get(key)
            if found is None or self._clock() >= found[0]:
                return None
            self._values.move_to_end(key)
            return found[1]

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._values[key] = (self._clock() + self._keep_s, value)
            self._values.move_to_end(key)
            if len(self._values) > self._size:
                self._values.popitem(last=False)

    def drop(self, key: K) -> None:
        with self._lock:
            self._values.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
