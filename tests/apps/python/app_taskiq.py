"""taskiq: the list, publish/subscribe and stream brokers, with results, and a schedule source."""

import asyncio
import datetime

from common import URL
from taskiq import ScheduledTask
from taskiq.api import run_receiver_task
from taskiq_redis import (
    ListQueueBroker,
    ListRedisScheduleSource,
    PubSubBroker,
    RedisAsyncResultBackend,
    RedisStreamBroker,
)


async def run(broker):
    broker = broker.with_result_backend(RedisAsyncResultBackend(URL, result_ex_time=60))

    @broker.task(task_name=f"add-{type(broker).__name__}")
    async def add(a: int, b: int) -> int:
        return a + b

    await broker.startup()
    receiver = asyncio.create_task(run_receiver_task(broker))
    await asyncio.sleep(0.5)
    sent = [await add.kiq(i, 1) for i in range(10)]
    results = [(await task.wait_result(timeout=20)).return_value for task in sent]
    assert results == list(range(1, 11)), results
    receiver.cancel()
    await asyncio.gather(receiver, return_exceptions=True)
    await broker.shutdown()


async def main():
    await run(ListQueueBroker(URL, queue_name="list"))
    await run(PubSubBroker(URL, queue_name="pubsub"))
    await run(RedisStreamBroker(URL, queue_name="stream"))
    source = ListRedisScheduleSource(URL)
    await source.startup()
    at = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(minutes=1)
    await source.add_schedule(ScheduledTask(task_name="x", labels={}, args=[], kwargs={}, time=at, schedule_id="1"))
    assert [task.schedule_id for task in await source.get_schedules()] == ["1"]
    await source.delete_schedule("1")


if __name__ == "__main__":
    asyncio.run(main())
