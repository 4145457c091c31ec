"""A bucket of tokens: how often something may be done, and how often in one go. The time comes in."""


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
