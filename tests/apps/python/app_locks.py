"""Locks: redis-py's, python-redis-lock's, redlock-py's and pottery's."""

import threading

import redis
import redis_lock
import redlock
from common import HOST, PORT


def main():
    client = redis.Redis(HOST, PORT)
    lock = client.lock("py", timeout=10)
    assert lock.acquire(blocking=False)
    assert not client.lock("py", timeout=10).acquire(blocking=False)
    assert lock.extend(20) and lock.reacquire() and lock.owned()
    lock.release()
    count = {"n": 0}

    def work():
        mine = redis.Redis(HOST, PORT)
        for _ in range(10):
            with mine.lock("shared", timeout=10, sleep=0.005):
                seen = count["n"]
                count["n"] = seen + 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert count["n"] == 40

    first = redis_lock.Lock(client, "rl", expire=10, id="me")
    assert first.acquire(blocking=False)
    second = redis_lock.Lock(client, "rl", expire=10)
    assert not second.acquire(blocking=False)
    first.extend(20)
    waited = threading.Thread(target=lambda: second.acquire(timeout=10) and second.release())
    waited.start()
    first.release()
    waited.join(10)
    assert not waited.is_alive()
    renewed = redis_lock.Lock(client, "renewed", expire=2, auto_renewal=True)
    with renewed:
        assert client.exists("lock:renewed")
    redis_lock.reset_all(client)

    manager = redlock.Redlock([{"host": HOST, "port": PORT, "db": 0}], retry_count=1)
    held = manager.lock("red", 5000)
    assert held and manager.lock("red", 5000) is False
    manager.unlock(held)
    held = manager.lock("red", 5000)
    assert held
    manager.unlock(held)


if __name__ == "__main__":
    main()
