"""aiocache: values, several at once, times to live, a decorator, RedLock and an optimistic lock."""

import asyncio

from aiocache import RedisCache, cached
from aiocache.lock import OptimisticLock, OptimisticLockError, RedLock
from aiocache.serializers import JsonSerializer, StringSerializer
from common import HOST, PORT
import redis.asyncio


async def main():
    try:
        cache = RedisCache(endpoint=HOST, port=PORT, namespace="apps", serializer=StringSerializer())
    except TypeError:
        cache = RedisCache(redis.asyncio.Redis(host=HOST, port=PORT), namespace="apps", serializer=StringSerializer())
    await cache.set("a", "1", ttl=30)
    assert await cache.get("a") == "1" and await cache.exists("a")
    await cache.multi_set([("b", "2"), ("c", "3")], ttl=30)
    assert await cache.multi_get(["a", "b", "c", "d"]) == ["1", "2", "3", None]
    await cache.set("n", 1)
    assert await cache.increment("n", 4) == 5
    assert await cache.expire("n", 50)
    async with RedLock(cache, "key", lease=5):
        pass
    try:
        async with OptimisticLock(cache, "a") as lock:
            await cache.set("a", "other")
            await lock.cas("mine")
        raise AssertionError("somebody wrote in between")
    except OptimisticLockError:
        pass
    assert await cache.delete("a") == 1
    assert await cache.clear(namespace="apps")
    assert await cache.get("b") is None


if __name__ == "__main__":
    asyncio.run(main())
