"""RQ: jobs, one that fails and is tried again, one that depends on another, one for later, and its registries."""

import datetime

import redis
import rq
from common import HOST, PORT, URL, until, worker


def square(n):
    return n * n


def fails():
    raise ValueError("as it should")


def main():
    connection = redis.Redis(HOST, PORT)
    queue = rq.Queue("apps", connection=connection)
    with worker("rq.cli", "worker", "--url", URL, "--with-scheduler", "--quiet", "apps"):
        jobs = [queue.enqueue("app_rq.square", n) for n in range(10)]
        after = queue.enqueue("app_rq.square", 12, depends_on=jobs[:3])
        later = queue.enqueue_in(datetime.timedelta(seconds=1), "app_rq.square", 11)
        bad = queue.enqueue("app_rq.fails", retry=rq.Retry(max=1))
        until(lambda: all(job.get_status(refresh=True) == "finished" for job in jobs + [after]))
        assert [job.return_value() for job in jobs] == [n * n for n in range(10)]
        until(lambda: bad.get_status(refresh=True) == "failed")
        assert bad.id in queue.failed_job_registry.get_job_ids()
        until(lambda: later.get_status(refresh=True) == "finished")
        assert len(rq.Worker.all(connection=connection)) == 1
        queue.failed_job_registry.requeue(bad.id)
        until(lambda: bad.get_status(refresh=True) == "failed")
        bad.delete()
    assert queue.empty() is not None


if __name__ == "__main__":
    main()
