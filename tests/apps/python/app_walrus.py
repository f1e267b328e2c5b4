"""walrus: containers, a cache, a lock, a rate limit, autocomplete, and streams of a consumer group."""

import walrus
from common import HOST, PORT


def main():
    db = walrus.Database(HOST, PORT)
    h = db.Hash("h")
    h.update(a=1, b=2)
    assert h["a"] == b"1" and len(h) == 2
    z = db.ZSet("z")
    z.add({"a": 1, "b": 2, "c": 3})
    assert z[:2] == [b"a", b"b"] and z.popmin() == [(b"a", 1.0)]
    names = db.List("l")
    names.extend(["a", "b", "c"])
    assert names.pop() == b"c" and names[0] == b"a"
    assert db.Set("s1").add("a", "b") == 2
    cache = db.cache()
    calls = []

    @cache.cached(timeout=30)
    def slow(n):
        calls.append(n)
        return n * 2

    assert [slow(2), slow(2)] == [4, 4] and calls == [2]
    with db.lock("lock", 5000):
        pass
    limit = db.rate_limit("limit", limit=2, per=60)
    assert [limit.limit("me") for _ in range(3)] == [False, False, True]
    words = db.autocomplete()
    words.store("1", "concord of switches")
    words.store("2", "switch of a rack")
    assert len(list(words.search("switch"))) == 2
    group = db.consumer_group("group", ["stream"])
    group.create()
    group.set_id("$")
    first = group.stream.add({"a": "1"})
    group.stream.add({"a": "2"})
    got = group.read(count=10)
    assert len(got[0][1]) == 2
    assert group.stream.ack(first) == 1
    assert len(group.stream.pending()) == 1
    with db.atomic() as pipe:
        pipe.pipe.set("k", "v")
        pipe.pipe.incr("n")
    assert db["k"] == b"v"


if __name__ == "__main__":
    main()
