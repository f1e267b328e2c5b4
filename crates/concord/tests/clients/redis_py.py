"""redis-py, unmodified: redis_py.py PORT memory|redis"""

import sys
import threading
import time

import redis

port, engine = int(sys.argv[1]), sys.argv[2]
r = redis.Redis(port=port, decode_responses=True)

assert r.ping()
assert r.set("a", "1") and r.get("a") == "1"
assert r.set("a", "2", nx=True) is None
assert r.incr("n") == 1 and r.incrby("n", 4) == 5
assert r.append("a", "x") == 2 and r.strlen("a") == 2
assert r.mset({"m1": "1", "m2": "2"}) and r.mget("m1", "m2", "m3") == ["1", "2", None]
assert r.delete("m1", "m2", "m3") == 2
assert r.set("t", "v", px=60_000) and 0 < r.pttl("t") <= 60_000
assert r.persist("t") and r.ttl("t") == -1
assert r.hset("h", mapping={"f": "1", "g": "2"}) == 2 and r.hgetall("h") == {"f": "1", "g": "2"}
assert r.rpush("l", "a", "b", "c") == 3 and r.lrange("l", 0, -1) == ["a", "b", "c"]
assert r.sadd("s", "x", "y") == 2 and r.smembers("s") == {"x", "y"}
assert r.zadd("z", {"a": 1.5, "b": 2}) == 2
assert r.zrange("z", 0, -1, withscores=True) == [("a", 1.5), ("b", 2.0)]
assert set(r.scan_iter("m*", count=3)) == set() and "a" in set(r.scan_iter(count=2))
assert r.dbsize() == len(r.keys("*"))

# A pipeline: replies in order, a read sees the writes before it.
p = r.pipeline(transaction=False)
for i in range(500):
    p.set("p", i)
    p.get("p")
replies = p.execute()
assert replies[1::2] == [str(i) for i in range(500)], "a read saw another write"

# A transaction, on one key and on two.
p = r.pipeline(transaction=True)
p.set("x", 1)
p.incr("x")
p.get("x")
assert p.execute() == [True, 2, "2"]
p = r.pipeline(transaction=True)
p.set("x", 7)
p.set("y", 7)
assert p.execute() == [True, True] and r.mget("x", "y") == ["7", "7"]

# WATCH: many clients count in two keys that must always be equal, each reading first and writing then.
EACH, CLIENTS = 50, 4


def count():
    own = redis.Redis(port=port, decode_responses=True)
    for _ in range(EACH):

        def both(p):
            one, two = (int(value or 0) for value in p.mget("w1", "w2"))
            assert one == two, (one, two)
            p.multi()
            p.set("w1", one + 1)
            p.set("w2", two + 1)

        own.transaction(both, "w1", "w2")


clients = [threading.Thread(target=count) for _ in range(CLIENTS)]
for client in clients:
    client.start()
for client in clients:
    client.join()
assert r.mget("w1", "w2") == [str(EACH * CLIENTS)] * 2, r.mget("w1", "w2")
p = r.pipeline()
p.watch("w3")
r.lpush("w3", "x")
p.multi()
p.set("w4", 1)
try:
    p.execute()
    raise SystemExit("what it watched has changed")
except redis.WatchError:
    assert r.get("w4") is None
p.watch("w3", "w4")
r.expire("w3", 100)
p.multi()
p.set("w4", 1)
try:
    p.execute()
    raise SystemExit("a time to live is a change")
except redis.WatchError:
    p.reset()

# Commands that wait: for what is there, for what comes, and until their time is over.
assert r.blpop(["nothing", "l"], 1) == ("l", "a") and r.brpop("l") == ("l", "c")
assert r.blmove("l", "l2", 0) == "b" and r.brpoplpush("l2", "l3", 0) == "b"
assert r.blmpop(0, 1, "l3", direction="LEFT") == ["l3", ["b"]]
assert r.bzpopmin("z") == ("z", "a", 1.5) and r.bzpopmax("z", 1) == ("z", "b", 2.0)
assert r.blpop("l", 0.1) is None and r.bzpopmax("z", 0.1) is None
threading.Timer(0.3, lambda: redis.Redis(port=port).rpush("later", "x")).start()
assert r.brpop(["l", "later"], 10) == ("later", "x")
threading.Timer(0.3, lambda: redis.Redis(port=port).client_unblock(own, error=True)).start()
one = r.client()
own = one.client_id()
try:
    one.blpop("l", 0)
    raise SystemExit("must be unblocked")
except redis.ResponseError as e:
    assert str(e).startswith("UNBLOCKED"), e

assert not r.xread({"entries": "$"}, block=1)
threading.Timer(0.3, lambda: redis.Redis(port=port).xadd("entries", {"f": "v"})).start()
[(name, [(_, entry)])] = r.xread({"entries": "$"}, block=10_000)
assert (name, entry) == ("entries", {"f": "v"}), (name, entry)

# Publish and subscribe: channels, patterns, a subscriber in a thread of its own.
assert r.publish("nobody", "m") == 0
with r.pubsub() as ps:
    ps.subscribe("c1", "c2")
    ps.psubscribe("c*")
    said = [ps.get_message(timeout=5) for _ in range(3)]
    assert [m["type"] for m in said] == ["subscribe", "subscribe", "psubscribe"], said
    assert r.publish("c1", "one") == 2 and r.publish("cx", "two") == 1
    got = [ps.get_message(timeout=5) for _ in range(3)]
    assert [(m["type"], m["channel"], m["data"]) for m in got] == [
        ("message", "c1", "one"), ("pmessage", "c1", "one"), ("pmessage", "cx", "two")], got
    assert r.pubsub_channels() == ["c1", "c2"] and r.pubsub_numpat() == 1
    assert r.pubsub_numsub("c1", "none") == [("c1", 1), ("none", 0)]
ps = r.pubsub()
ps.subscribe("tx")
assert ps.get_message(timeout=5)["type"] == "subscribe"
p = r.pipeline(transaction=True)
p.set("tx", 1)
p.publish("tx", "set")
assert p.execute() == [True, 1]
assert ps.get_message(timeout=5)["data"] == "set" and r.get("tx") == "1"
ps.close()
heard = threading.Event()
ps = r.pubsub()
ps.subscribe(**{"job": lambda message: heard.set()})
thread = ps.run_in_thread(sleep_time=0.05)
deadline = time.time() + 10
while r.publish("job", "done") == 0 and time.time() < deadline:
    time.sleep(0.01)
assert heard.wait(10)
thread.stop()

if engine == "redis":
    lock = r.lock("lock", timeout=10)
    assert lock.acquire(blocking=False)
    assert not r.lock("lock", timeout=10).acquire(blocking=False)
    assert lock.extend(5) and lock.reacquire()
    lock.release()
    assert r.get("lock") is None
    assert r.eval("return redis.call('incrby', KEYS[1], ARGV[1])", 1, "n", 5) == 10
    assert r.xadd("stream", {"f": "v"}) and r.xlen("stream") == 1
    assert r.setrange("bits", 3, "z") == 4 and r.pfadd("hll", "a") == 1

assert r.flushall() and r.dbsize() == 0
print("ok")

# Another database, by its URL: keys, times to live, a lock, a script, a list that is waited for, all keys of it.
r.flushall()
one = redis.Redis.from_url(f"redis://127.0.0.1:{port}/1", decode_responses=True)
assert r.set("k", "zero") and one.get("k") is None and one.set("k", "one", ex=100)
assert (r.get("k"), one.get("k"), one.ttl("k") > 90, r.ttl("k")) == ("zero", "one", True, -1)
with one.lock("lock", timeout=10):
    assert one.exists("lock") and not r.exists("lock")
both = one.register_script("redis.call('SET', ARGV[1], KEYS[1]) return redis.call('GET', KEYS[1])")
assert both(keys=["k"], args=["computed"]) == "one" and one.get("computed") == "k"
assert r.get("computed") is None
pushed = threading.Timer(0.2, lambda: (r.rpush("q", "zero"), one.rpush("q", "one")))
pushed.start()
assert one.blpop("q", timeout=5) == ("q", "one") and r.lrange("q", 0, -1) == ["zero"]
pushed.join()
p = one.pipeline(transaction=True)
p.incr("n")
p.move("computed", 2)
p.copy("k", "k2", destination_db=2)
assert p.execute() == [1, True, 1]
two = redis.Redis(port=port, db=2, decode_responses=True)
assert sorted(two.scan_iter("*", count=2)) == ["computed", "k2"] and two.randomkey() in ("computed", "k2")
assert sorted(one.keys("*")) == ["k", "n"] and (one.dbsize(), r.dbsize()) == (2, 2)
assert one.xadd("s", {"f": "v"}, id="1-1") == "1-1" and one.xread({"s": 0})[0][0] == "s"
assert one.flushdb() and (one.dbsize(), two.dbsize(), r.dbsize()) == (0, 2, 2)
assert two.client_info()["db"] == 2 and r.config_get("databases") == {"databases": "16"}
