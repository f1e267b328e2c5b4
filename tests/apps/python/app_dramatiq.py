"""Dramatiq: actors, results, retries, delays, a group with a completion barrier, a rate limiter."""

import dramatiq
import redis
from common import HOST, PORT, until
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage
from dramatiq.rate_limits import ConcurrentRateLimiter, WindowRateLimiter
from dramatiq.rate_limits.backends import RedisBackend as Limits
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend


def main():
    client = redis.Redis(HOST, PORT)
    broker = RedisBroker(host=HOST, port=PORT)
    broker.add_middleware(Results(backend=RedisBackend(client=client)))
    broker.add_middleware(CurrentMessage())
    dramatiq.set_broker(broker)
    tries = []

    @dramatiq.actor(store_results=True)
    def add(a, b):
        return a + b

    @dramatiq.actor(max_retries=2, min_backoff=50, max_backoff=100)
    def second_time():
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("as it should")

    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=4)
    worker.start()
    try:
        messages = [add.send(i, i) for i in range(20)]
        assert [m.get_result(block=True, timeout=20_000) for m in messages] == [2 * i for i in range(20)]
        assert add.send_with_options(args=(1, 1), delay=500).get_result(block=True, timeout=20_000) == 2
        second_time.send()
        until(lambda: len(tries) == 2)
        group = dramatiq.group(add.message(i, 1) for i in range(5)).run()
        assert list(group.get_results(block=True, timeout=20_000)) == [1, 2, 3, 4, 5]
        pipe = (add.message(1, 2) | add.message(3)).run()
        assert pipe.get_result(block=True, timeout=20_000) == 6
        until(lambda: (broker.join(add.queue_name, timeout=10_000), True)[1])
        limits = Limits(client=client)
        with ConcurrentRateLimiter(limits, "one", limit=1).acquire(raise_on_failure=False) as first:
            with ConcurrentRateLimiter(limits, "one", limit=1).acquire(raise_on_failure=False) as second:
                assert first and not second
        window = WindowRateLimiter(limits, "window", limit=2, window=5)
        taken = []
        for _ in range(3):
            with window.acquire(raise_on_failure=False) as ok:
                taken.append(bool(ok))
        assert taken == [True, True, False], taken
    finally:
        worker.stop()
        broker.close()


if __name__ == "__main__":
    main()
