"""The Python executor against a rack. Imported, not run: workers import what it submits."""

import concurrent.futures
import os
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
        assert "of at most" in expect(ValueError, executor.submit(long, 900_000))
        assert executor.submit(once_more, os.path.join(directory, "died")).result(timeout=30) == "2"
    with concord.Executor(address, token, limit=0.2, path=path) as executor:
        told = expect(concord.TaskError, executor.submit(time.sleep, 20))
        assert "limit" in told, told
        executor.submit(square, 3).result(timeout=30)
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

