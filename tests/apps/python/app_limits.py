"""limits: fixed, moving and sliding windows."""

import limits
from common import HOST, PORT
from limits.storage import RedisStorage
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter


def main():
    storage = RedisStorage(f"redis://{HOST}:{PORT}/0")
    assert storage.check()
    for strategy in (FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter):
        limiter = strategy(storage)
        item = limits.RateLimitItemPerHour(3)
        who = strategy.__name__
        assert [limiter.hit(item, who) for _ in range(5)] == [True, True, True, False, False], who
        assert limiter.test(item, who) is False
        stats = limiter.get_window_stats(item, who)
        assert stats.remaining == 0 and stats.reset_time > 0
        limiter.clear(item, who)
        assert limiter.hit(item, who) is True
    assert storage.reset() > 0


if __name__ == "__main__":
    main()
