"""APScheduler: jobs that are kept in Redis, run, moved, removed, and found again by another scheduler."""

import datetime

from apscheduler.jobstores.redis import RedisJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from common import HOST, PORT, until

RUNS = []


def work(name):
    RUNS.append(name)


def scheduler():
    store = RedisJobStore(host=HOST, port=PORT, jobs_key="apps.jobs", run_times_key="apps.times")
    return BackgroundScheduler(jobstores={"default": store}, timezone="UTC")


def main():
    first = scheduler()
    first.start(paused=True)
    now = datetime.datetime.now(datetime.timezone.utc)
    first.add_job(work, "date", run_date=now + datetime.timedelta(seconds=1), args=["once"], id="once")
    first.add_job(work, "interval", seconds=1, args=["again"], id="again")
    first.add_job(work, "interval", hours=1, args=["never"], id="never")
    first.shutdown()
    second = scheduler()
    second.start()
    assert {job.id for job in second.get_jobs()} >= {"again", "never"}
    until(lambda: RUNS.count("again") >= 2 and "once" in RUNS)
    second.reschedule_job("never", trigger="interval", hours=2)
    second.remove_job("again")
    assert {job.id for job in second.get_jobs()} == {"never"}
    second.remove_all_jobs()
    second.shutdown()


if __name__ == "__main__":
    main()
