"""Locks of a chain in Python (`concord.Lock`), as users of a real rack meet them; see crates/concord/tests/racks/coord_lock.rs."""

import os
import socket
import sys
import threading
import time

import concord
from concord.lock import _addresses, _Gateways


def raises(kind, act, said=""):
    try:
        act()
    except kind as error:
        assert type(error) is kind, repr(error)
        assert said in str(error) and "\n" not in str(error), str(error)
        return error
    raise AssertionError(f"no {kind.__name__}")


def main(address):
    """What one process sees."""
    os.environ["CONCORD_GATEWAY"] = address
    redis = _Gateways(_addresses(address), [])
    say = lambda text: redis.call(text.split(), 10)

    lock = concord.Lock("@job", ttl=2)
    assert (lock.token, lock.is_held(), lock.remaining()) == (None, False, 0.0)
    with lock as own:
        assert own is lock and own.is_held() and 0 < own.remaining() <= 2
        first = own.token
        assert say("GET @job") == own.value.encode()
        assert own.value.startswith("2000 ") and own.value.endswith(f":{os.getpid()}"), own.value
        other = concord.Lock("@job", ttl=1)
        error = raises(concord.LockNotAcquired, other.acquire, "the lock @job is held by 2000 ")
        assert error.holder == own.value and not other.is_held()
        raises(RuntimeError, own.acquire)
        # It is renewed: three leases later nobody else has had it, and the version has gone on.
        until = own.holds_until
        for _ in range(60):
            time.sleep(0.1)
            assert own.is_held()
        assert own.holds_until > until + 4 and own.token == first
        raises(concord.LockNotAcquired, concord.Lock("@job", wait=0.3).acquire)
    assert say("GET @job") is None and not lock.is_held() and lock.token == first
    with lock:
        assert lock.token > first
        second = lock.token

    # Released while another waits for it.
    with lock:
        waits = concord.Lock("@job", ttl=1, wait=10)
        taken = []
        thread = threading.Thread(target=lambda: taken.append(waits.acquire().token))
        thread.start()
        time.sleep(0.3)
        assert not taken
    thread.join()
    assert taken[0] > lock.token > second
    waits.release()
    waits.release()

    # Somebody deletes its key: it is not held any more, and that is said.
    def lose():
        with concord.Lock("@job", ttl=2) as lost:
            assert say("DEL @job") == 1
            ends = time.monotonic() + 1.9
            while lost.is_held():
                assert time.monotonic() < ends
                time.sleep(0.01)

    raises(concord.LockLost, lose, "the lock @job was lost: its key was deleted, or set by another")

    # What the block raises is not hidden by that, and the lock is given back.
    def fail():
        with concord.Lock("@job"):
            say("SET @job another")
            raise KeyError("own")

    raises(KeyError, fail)
    assert say("GET @job") == b"another", "only its own is released"
    assert say("DEL @job") == 1

    # Mistakes.
    raises(concord.LockError, concord.Lock("job").acquire, "job is no key of a chain: what does coord_prefix")
    assert say("GET job") is None
    raises(concord.LockError, concord.Lock("@" * 33).acquire, "1 to 32 bytes")
    assert say("SET @job 7") == b"OK" and say("DEL @job") == 1
    raises(ValueError, lambda: concord.Lock("@job", ttl=0.01), "ttl: a lease has")
    raises(ValueError, lambda: concord.Lock("@job", wait=-1))
    raises(ValueError, lambda: concord.Lock("@job", address="host"), "HOST:PORT")
    nobody = socket.create_server(("127.0.0.1", 0))
    gone = "127.0.0.1:%d" % nobody.getsockname()[1]
    nobody.close()
    raises(ConnectionError, concord.Lock("@job", address=gone).acquire, "cannot be reached")
    # One of several gateways is enough.
    with concord.Lock("@job", wait=5, address=[gone, address]) as lock:
        assert lock.is_held()
    # An answer that nobody gives.
    silent = socket.create_server(("127.0.0.1", 0))
    mute = "127.0.0.1:%d" % silent.getsockname()[1]
    raises(concord.LockUnknown, concord.Lock("@job", address=mute, timeout=0.2).acquire, "nobody answered in time")
    silent.close()
    print("done")


def hold(address):
    """Takes it, says the token, and when it is not held any more."""
    lock = concord.Lock("@job", ttl=2, wait=30, address=address, timeout=1).acquire()
    print(lock.token, flush=True)
    while lock.is_held():
        time.sleep(0.005)
    print("lost", flush=True)
    raises(concord.LockLost, lock.release, "was lost: its lease was over before it was renewed")
    print("told", flush=True)


def count(address, path, rounds):
    """Adds to a number in a file that has no lock of its own."""
    tokens = []
    for _ in range(int(rounds)):
        with concord.Lock("@count", ttl=5, wait=60, address=address) as lock:
            with open(path) as file:
                number, token = map(int, file.read().split())
            assert lock.token > token, "a later holder has a higher token"
            time.sleep(0.01)
            with open(path, "w") as file:
                file.write(f"{number + 1} {lock.token}")
            tokens.append(lock.token)
    assert tokens == sorted(set(tokens))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
