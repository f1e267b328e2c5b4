"""The Python executor against a rack. Imported, not run: workers import what it submits."""

import concurrent.futures
import contextlib
import io
import os
import pickle
import sys
import time

import concord


def square(n):
    return n * n


def who(seconds):
    time.sleep(seconds)
    return os.getpid(), os.environ["CONCORD_ATTEMPT"]


def boom(n):
    print("this goes to standard error")
    raise ValueError(f"no {n}")


def long(size):
    return b"x" * size


def once_more(path):
    """Its interpreter ends at the first attempt."""
    if not os.path.exists(path):
        open(path, "w").close()
        os._exit(9)
    return os.environ["CONCORD_ATTEMPT"]


def expect(kind, future):
    try:
        future.result(timeout=30)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind}")


def loud(n):
    print(f"out {n}")
    print(f"err {n}", file=sys.stderr)
    return n


def alone(address, token, path):
    """Calls that wait are cancelled, prints come to the caller, and what cannot be imported is refused."""
    with concord.Executor(address, token, path=path, priority=3, retry_delay=0.01) as executor:
        busy = [executor.submit(time.sleep, 1.5) for _ in range(4)]
        while executor._calls or not all(future.running() for future in busy):
            time.sleep(0.01)
        time.sleep(0.3)
        queued = executor.submit(square, 5)
        while queued._place is None:
            time.sleep(0.01)
        assert queued.cancel() and queued.cancelled() and queued.done()
        assert not busy[0].cancel(), "it runs"
        assert [future.result(timeout=30) for future in busy] == [None] * 4
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            assert executor.submit(loud, 7).result(timeout=30) == 7
            expect(ValueError, executor.submit(boom, 8))
            time.sleep(0.2)
        assert out.getvalue() == "out 7\nthis goes to standard error\n", out.getvalue()
        assert err.getvalue() == "err 7\n", err.getvalue()
        own = type(square)(square.__code__, {})
        own.__module__ = "__main__"
        was, concord._pickler = concord._pickler, pickle
        try:
            executor.submit(own, 3)
        except ValueError as error:
            assert "__main__" in str(error) and "cloudpickle" in str(error), error
        else:
            raise AssertionError("what no worker can import was taken")
        finally:
            concord._pickler = was


def main(address, token, directory):
    path = os.environ["PYTHONPATH"].split(os.pathsep)
    with concord.Executor(address, token, retries=1, path=path) as executor:
        began = time.monotonic()
        assert list(executor.map(square, range(3_000))) == [n * n for n in range(3_000)]
        took = time.monotonic() - began
        chunks = executor.map(square, range(3_000), chunksize=70)
        assert list(chunks) == [n * n for n in range(3_000)]
        seen = {executor.submit(who, 0.001) for _ in range(64)}
        pids = {future.result(timeout=30)[0] for future in seen}
        assert 1 <= len(pids) <= 8, pids
        assert expect(ValueError, executor.submit(boom, 7)) == "no 7"
        assert len(executor.submit(long, 700_000).result(timeout=30)) == 700_000
        some = [executor.submit(long, size) for size in (1_500_000, 4_000_000, 12_000_000)]
        assert [len(future.result(timeout=60)) for future in some] == [1_500_000, 4_000_000, 12_000_000]
        assert "of at most" in expect(ValueError, executor.submit(long, 13_000_000))
        assert executor.submit(once_more, os.path.join(directory, "died")).result(timeout=30) == "2"
    with concord.Executor(address, token, limit=1.0, path=path) as executor:
        told = expect(concord.TaskError, executor.submit(time.sleep, 20))
        assert "limit" in told, told
        executor.submit(square, 3).result(timeout=30)
    alone(address, token, path)
    executor = concord.Executor(address, token, path=path)
    slow = [executor.submit(time.sleep, 60) for _ in range(3)]
    while not all(future.running() for future in slow):
        time.sleep(0.01)
    time.sleep(0.1)
    executor.shutdown(cancel_futures=True)
    for future in slow:
        expect(concurrent.futures.CancelledError, future)
    try:
        concord.Executor(address, "wrong")
    except RuntimeError as error:
        print(f"3000 calls in {took:.2f} s; {error}")
    else:
        raise AssertionError("a wrong token was taken")

