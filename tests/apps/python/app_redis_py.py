"""redis-py itself: pipelines, WATCH, scripts, publish/subscribe, databases, SCAN, streams, in both protocols."""

import redis
from common import HOST, PORT


def run(protocol):
    client = redis.Redis(HOST, PORT, protocol=protocol, decode_responses=True)
    client.flushall()
    with client.pipeline() as pipe:
        pipe.set("a", 1).incr("a").lpush("l", 1, 2, 3).lrange("l", 0, -1)
        assert pipe.execute() == [True, 2, 3, ["3", "2", "1"]]

    def more(pipe):
        value = int(pipe.get("a"))
        pipe.multi()
        pipe.set("a", value + 1)

    client.transaction(more, "a")
    assert client.get("a") == "3"
    script = client.register_script("return redis.call('INCRBY', KEYS[1], redis.call('GET', KEYS[2]))")
    client.set("by", 4)
    assert script(keys=["a", "by"]) == 7
    with client.pipeline() as pipe:
        script(keys=["a", "by"], client=pipe)
        pipe.get("a")
        assert pipe.execute() == [11, "11"]
    pubsub = client.pubsub()
    pubsub.subscribe("news")
    assert pubsub.get_message(timeout=5)["type"] == "subscribe"
    assert client.publish("news", "hello") == 1
    assert pubsub.get_message(timeout=5)["data"] == "hello"
    client.eval("redis.call('PUBLISH', KEYS[1], ARGV[1])", 1, "news", "from a script")
    assert pubsub.get_message(timeout=5)["data"] == "from a script"
    pubsub.close()
    client.mset({f"k{i}": i for i in range(100)})
    assert len(set(client.scan_iter("k*", count=7))) == 100
    client.xgroup_create("x", "g", "0", mkstream=True)
    client.xadd("x", {"f": "v"})
    got = client.xreadgroup("g", "me", {"x": ">"}, count=1)
    assert got
    assert client.xpending("x", "g")["pending"] == 1
    assert len(client.xautoclaim("x", "g", "you", 0)[1]) == 1
    client.delete("a")
    assert client.getex("by", ex=10) == "4" and client.ttl("by") > 5
    assert client.copy("by", "by2") and client.ttl("by2") > 5


def main():
    run(2)
    run(3)


if __name__ == "__main__":
    main()
