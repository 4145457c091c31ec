"""A bucket of tokens: how often something may be done, and how often in one go. The time comes in."""

MAX_NAMES = 4096


class Bucket:
    """Tokens that come back with time: `most` at first and at most, `per_second` of them a second."""

    def __init__(self, per_second: float, most: float, now: float) -> None:
        self._per_second = per_second
        self._most = self._tokens = most
        self._then = now

    def tokens(self, now: float) -> float:
        """The number of tokens now."""
        self._tokens = min(self._most, self._tokens + max(now - self._then, 0.0) * self._per_second)
        self._then = now
        return self._tokens

    def take(self, now: float, tokens: float = 1.0) -> bool:
        """Take some if there are as many; return True if there were."""
        if self.tokens(now) < min(tokens, self._most):
            return False
        self._tokens -= min(tokens, self._most)
        return True

    def is_full(self, now: float) -> bool:
        """Tell if nothing was taken for a while."""
        return self.tokens(now) >= self._most


class Buckets:
    """A bucket for each name, such as an address, all alike; beyond MAX_NAMES busy ones share one."""

    def __init__(self, per_second: float, most: float) -> None:
        self._size = per_second, most
        self._buckets: dict[str, Bucket] = {}

    def of(self, name: str, now: float) -> Bucket:
        """The bucket of this name."""
        if name not in self._buckets and len(self._buckets) >= MAX_NAMES:
            self._buckets = {known: kept for known, kept in self._buckets.items() if not kept.is_full(now)}
            name = name if len(self._buckets) < MAX_NAMES else ""
        return self._buckets.setdefault(name, Bucket(*self._size, now))

    def clear(self) -> None:
        """Forget what was taken."""
        self._buckets.clear()
