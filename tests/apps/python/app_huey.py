"""Huey: tasks, results, a schedule, a lock, priorities; with the worker in threads of this process."""

import huey
from common import HOST, PORT, until
from huey.consumer import Consumer


def run(queue):
    done = []

    @queue.task()
    def add(a, b):
        return a + b

    @queue.task(retries=1)
    def second_time():
        done.append(1)
        if len(done) == 1:
            raise ValueError("as it should")
        return "well"

    @queue.task()
    @queue.lock_task("one at a time")
    def locked():
        return True

    consumer = Consumer(queue, workers=2, periodic=False, initial_delay=0.05, max_delay=0.2, scheduler_interval=1)
    consumer.start()
    try:
        assert [r.get(blocking=True, timeout=20) for r in [add(i, 1) for i in range(10)]] == list(range(1, 11))
        assert add.schedule((2, 2), delay=1)(blocking=True, timeout=20) == 4
        chained = queue.enqueue(add.s(1, 2).then(add, 3))
        assert chained.get(blocking=True, timeout=20) == [3, 6]
        again = second_time()
        until(lambda: len(done) == 2)
        assert again(blocking=True, timeout=20) == "well"
        assert locked()(blocking=True, timeout=20) is True
        queue.put("kept", 5)
        assert queue.get("kept") == 5
        held = add.schedule((1, 1), delay=60)
        held.revoke()
        assert held.is_revoked()
    finally:
        consumer.stop(graceful=True)
    queue.flush()


def main():
    run(huey.RedisHuey("plain", host=HOST, port=PORT))
    run(huey.PriorityRedisHuey("first", host=HOST, port=PORT))
    run(huey.RedisExpireHuey("soon", host=HOST, port=PORT))


if __name__ == "__main__":
    main()
