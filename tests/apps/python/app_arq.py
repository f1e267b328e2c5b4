"""arq: jobs, results, one that is put off, one that tries again, an abort, a cron job."""

import asyncio

import arq
from arq.connections import RedisSettings
from arq.jobs import Job, JobStatus
from common import HOST, PORT

SETTINGS = RedisSettings(host=HOST, port=PORT)


async def add(ctx, a, b):
    return a + b


async def second_time(ctx):
    if ctx["job_try"] == 1:
        raise arq.Retry(defer=0.1)
    return ctx["job_try"]


async def sleeps(ctx):
    await asyncio.sleep(60)


async def main():
    pool = await arq.create_pool(SETTINGS)
    worker = arq.Worker(
        functions=[add, second_time, sleeps], redis_settings=SETTINGS, handle_signals=False,
        poll_delay=0.1, allow_abort_jobs=True,
    )
    running = asyncio.create_task(worker.async_run())
    jobs = [await pool.enqueue_job("add", i, 1) for i in range(10)]
    assert [await job.result(timeout=20) for job in jobs] == list(range(1, 11))
    assert await pool.enqueue_job("add", 1, 1, _job_id=jobs[0].job_id) is None, "the same job twice"
    assert await (await pool.enqueue_job("add", 2, 2, _defer_by=0.5)).result(timeout=20) == 4
    assert await (await pool.enqueue_job("second_time")).result(timeout=20) == 2
    long = await pool.enqueue_job("sleeps")
    while await long.status() != JobStatus.in_progress:
        await asyncio.sleep(0.05)
    assert await long.abort(timeout=10)
    assert await Job("unknown", pool).status() == JobStatus.not_found
    assert len(await pool.all_job_results()) >= 12
    await worker.close()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await pool.aclose()


if __name__ == "__main__":
    asyncio.run(main())
