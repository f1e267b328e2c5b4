"""Django: its own Redis cache, django-redis with what it adds, and sessions in the cache."""

import django
from common import URL
from django.conf import settings

settings.configure(
    CACHES={
        "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": URL},
        "more": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": URL,
            "KEY_PREFIX": "more",
            "OPTIONS": {"CLIENT_CLASS": "django_redis.client.DefaultClient"},
        },
    },
    SESSION_ENGINE="django.contrib.sessions.backends.cache",
    SESSION_CACHE_ALIAS="more",
    SECRET_KEY="x",
)
django.setup()

from django.contrib.sessions.backends.cache import SessionStore  # noqa: E402
from django.core.cache import caches  # noqa: E402


def plain(cache):
    cache.set("a", {"x": 1}, 30)
    assert cache.get("a") == {"x": 1}
    assert cache.add("a", 2) is False and cache.add("b", 2, 30) is True
    cache.set_many({"c": 3, "d": 4}, 30)
    assert cache.get_many(["b", "c", "d", "none"]) == {"b": 2, "c": 3, "d": 4}
    assert cache.incr("c", 5) == 8 and cache.decr("c") == 7
    assert cache.touch("c", 60) is True and cache.touch("none", 60) is False
    assert cache.get_or_set("e", lambda: 5, 30) == 5
    cache.set("gone", 1, 0)
    assert cache.get("gone") is None
    assert cache.has_key("d") and "none" not in cache
    cache.delete("a")
    cache.delete_many(["b", "c"])
    assert cache.get_many(["a", "b", "c", "d"]) == {"d": 4}
    cache.set("v", 1, version=2)
    assert cache.incr_version("v", version=2) == 3 and cache.get("v", version=3) == 1
    try:
        cache.incr("none")
        raise AssertionError("there is no such key")
    except ValueError:
        pass
    cache.clear()
    assert cache.get("d") is None


def main():
    plain(caches["default"])
    plain(caches["more"])
    cache = caches["more"]
    cache.set("k1", 1, timeout=None)
    cache.set("k2", 2, timeout=50)
    assert cache.ttl("k1") is None and 45 < cache.ttl("k2") <= 50
    assert sorted(cache.keys("k*")) == ["k1", "k2"] and sorted(cache.iter_keys("k*")) == ["k1", "k2"]
    assert cache.persist("k2") and cache.expire("k2", 10) and cache.ttl("k2") <= 10
    with cache.lock("lock", timeout=5):
        assert not cache.lock("lock", timeout=5, blocking_timeout=0.1).acquire()
    assert cache.delete_pattern("k*") == 2
    session = SessionStore()
    session["user"] = 7
    session.save()
    again = SessionStore(session.session_key)
    assert again["user"] == 7
    again.cycle_key()
    again.flush()
    assert not SessionStore(session.session_key).load()


if __name__ == "__main__":
    main()
