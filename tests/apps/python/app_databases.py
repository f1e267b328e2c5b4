"""Applications that keep apart by database: a client of database 3 beside one of database 0."""

import redis
from common import HOST, PORT


def main():
    zero, three = redis.Redis(HOST, PORT, db=0), redis.Redis(HOST, PORT, db=3)
    zero.set("a", "zero")
    three.set("a", "three")
    assert zero.get("a") == b"zero" and three.get("a") == b"three"
    three.flushdb()
    assert zero.get("a") == b"zero" and three.get("a") is None
    assert zero.dbsize() == 1 and three.dbsize() == 0


if __name__ == "__main__":
    main()
