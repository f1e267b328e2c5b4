"""Celery: broker and result backend; a group, a chord, a task that retries, one with a countdown."""

import celery
from common import URL, worker

app = celery.Celery("app_celery", broker=URL, backend=URL)
app.conf.broker_connection_retry_on_startup = True
app.conf.task_default_queue = "apps"


@app.task
def add(a, b):
    return a + b


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, default_retry_delay=0.1)
def second_time(self):
    if self.request.retries == 0:
        raise self.retry(countdown=0.1)
    return self.request.retries


def main():
    with worker("celery", "-A", "app_celery", "worker", "--pool", "threads", "-c", "4", "-l", "ERROR"):
        assert add.delay(2, 3).get(timeout=20) == 5
        assert celery.group(add.s(i, i) for i in range(10))().get(timeout=20) == [2 * i for i in range(10)]
        assert celery.chord((add.s(i, 1) for i in range(10)), total.s())().get(timeout=20) == 55
        assert celery.chain(add.s(1, 2), add.s(3))().get(timeout=20) == 6
        assert second_time.delay().get(timeout=20) == 1
        assert add.apply_async((1, 1), countdown=0.5).get(timeout=20) == 2
        assert app.control.ping(timeout=5), "the worker hears what is broadcast"


if __name__ == "__main__":
    main()
