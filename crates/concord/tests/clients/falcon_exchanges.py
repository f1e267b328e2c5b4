"""The Python executor against an owner of a few lines, which counts what it is asked: how calls become requests, and what
the executor does where an answer is late, cut off, or another owner's."""

import base64
import concurrent.futures
import contextlib
import functools
import itertools
import json
import os
import pickle
import signal
import socket
import threading
import time
import warnings

import concord


class Owner:
    """Answers each request by a function of it, over as many connections as there are."""

    def __init__(self, answer):
        self.answer, self.asked, self.incarnation = answer, [], "a"
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.jobs = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.serve_one, args=(connection,), daemon=True).start()

    def serve_one(self, connection):
        # The client may break off.
        with contextlib.suppress(OSError), connection:
            self.serve(connection)

    def serve(self, connection):
        file = connection.makefile("rb")
        while line := file.readline():
            method, path, _ = line.decode().split()
            length = 0
            while (field := file.readline().strip().lower()) != b"":
                if field.startswith(b"content-length:"):
                    length = int(field.split(b":")[1])
            body = json.loads(file.read(length) or "null")
            if path == "/owner":
                said = {"owner": self.incarnation}
            elif f"owner={self.incarnation}" not in path:
                said = (410, {"error": "another owner"})
            else:
                self.asked.append((method, path, body))
                said = self.answer(self, method, path, body)
            if said is None:
                # Without an answer, or with a part of one.
                break
            status, said = said if isinstance(said, tuple) else (200, said)
            text = said if isinstance(said, bytes) else json.dumps(said).encode()
            head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(text)}\r\n\r\n".encode()
            if status == 299:
                connection.sendall(head + text[: len(text) // 2])
                break
            connection.sendall(head)
            connection.sendall(text)
        connection.shutdown(socket.SHUT_RDWR)

    def executor(self, **more):
        return concord.Executor(self.address, "token", **more)

    def posts(self):
        return [body for method, _, body in self.asked if method == "POST"]


def called(line):
    function, args, kwargs = pickle.loads(base64.b64decode(line))
    return base64.b64encode(pickle.dumps(function(*args, **kwargs))).decode()


def results(job, lines, since=0):
    told = [{"task": at, "how": "done", "attempts": 1, "status": 0, "output": called(line)} for at, line in enumerate(lines)]
    return {"job": job, "tasks": len(lines), "next": len(lines), "is_last": True, "results": told[since:]}


def at_once(owner, method, path, body):
    owner.jobs += 1
    return 201, results(owner.jobs, body["lines"])


def one_call_is_one_request():
    owner = Owner(at_once)
    with owner.executor() as executor:
        for at in range(50):
            assert executor.submit(pow, at, 2).result(timeout=30) == at * at
        assert len(owner.asked) == 50, len(owner.asked)
        assert all("wait_ms=" in path and len(body["lines"]) == 1 for _, path, body in owner.asked)
        assert len({body["key"] for body in owner.posts()}) == 50, "each has a key of its own"
        assert all(len(body["key"]) <= 64 for body in owner.posts())
        # Whoever waits for none of them hears of all.
        heard, ends = [], threading.Semaphore(0)
        for at in range(20):
            future = executor.submit(pow, at, 2)
            future.add_done_callback(lambda future: (heard.append(future.result()), ends.release()))
        for _ in range(20):
            assert ends.acquire(timeout=30)
        assert sorted(heard) == [at * at for at in range(20)]
        futures = [executor.submit(pow, at, 2) for at in range(3_000)]
        done, left = concurrent.futures.wait(futures, timeout=60)
        assert len(done) == 3_000 and not left
        assert [future.result() for future in futures] == [at * at for at in range(3_000)]
        assert len(executor._threads) <= 8
        # Longer than what is sent at once, and several at a time.
        with concurrent.futures.ThreadPoolExecutor(12) as threads:
            long = lambda at: len(executor.submit(bytes.__add__, b"x" * 300_000, bytes(at)).result(timeout=60))
            assert list(threads.map(long, range(60))) == [300_000 + at for at in range(60)]


def a_request_without_an_answer_is_sent_again_with_its_key():
    for ends in ("nothing", "a part"):

        def answer(owner, method, path, body):
            keys = [body["key"] for body in owner.posts()]
            if keys.count(body["key"]) == 1 and len(set(keys)) % 2 == 0:
                return None if ends == "nothing" else (299, b"x" * 100)
            return 201, results(1, body["lines"])

        owner = Owner(answer)
        with owner.executor(once=True) as executor:
            for at in range(10):
                assert executor.submit(pow, at, 2).result(timeout=30) == at * at
        keys = [body["key"] for body in owner.posts()]
        assert len(keys) == 15 and len(set(keys)) == 10, keys


def an_owner_that_is_away_is_asked_again():
    def answer(owner, method, path, body):
        if len(owner.asked) < 3:
            return 503, {"error": "the owner ends"}
        return 201, results(1, body["lines"])

    owner = Owner(answer)
    with owner.executor() as executor:
        assert executor.submit(pow, 3, 2).result(timeout=30) == 9
    assert len({body["key"] for body in owner.posts()}) == 1


def another_owner_has_other_jobs():
    def answer(owner, method, path, body):
        if owner.incarnation == "a" and len(owner.asked) > 1:
            owner.incarnation = "b"
            return None
        return 201, results(1, body["lines"])

    for once, reads in itertools.product((False, True), (False, True)):
        owner = Owner(answer)
        with owner.executor(once=once) as executor:
            assert executor.submit(pow, 3, 2).result(timeout=30) == 9
            time.sleep(0.1)
            future = executor.submit(pow, 4, 2)
            if not reads:
                # Its carrier's thread does.
                concurrent.futures.wait([future], 30)
            if once:
                try:
                    raise AssertionError(future.result(timeout=30))
                except concord.TaskError as error:
                    assert error.how == "unknown", error
            else:
                assert future.result(timeout=30) == 16
            # What that one never had is the next one's.
            owner.incarnation = "c"
            assert executor.submit(pow, 5, 2).result(timeout=30) == 25


def what_takes_longer_is_asked_for_and_can_be_cancelled():
    cancelled = threading.Event()

    def answer(owner, method, path, body):
        if method == "POST":
            time.sleep(0.05)
            owner.jobs += 1
            owner.lines = body["lines"]
            return 201, {"job": owner.jobs, "tasks": 1, "next": 0, "is_last": False, "results": []}
        if method == "DELETE":
            cancelled.set()
            return {"cancelled": 1}
        assert "from=0" in path, path
        if cancelled.wait(0.3):
            told = [{"task": 0, "how": "cancelled", "attempts": 0}]
            return {"job": owner.jobs, "next": 1, "is_last": True, "results": told}
        return results(owner.jobs, owner.lines)

    owner = Owner(answer)
    with owner.executor() as executor:
        future = executor.submit(pow, 3, 2)
        try:
            raise AssertionError(future.result(timeout=0.01))
        except concurrent.futures.TimeoutError:
            pass
        assert future.result(timeout=30) == 9
        future = executor.submit(pow, 3, 2)
        # It is on its way, and cancelled as soon as it is known where it is.
        assert future.cancel() and future.cancelled()
        cancelled.clear()
        slow = executor.submit(pow, 3, 2)
        executor.shutdown(wait=False, cancel_futures=True)
        assert cancelled.wait(10), "it was on its way when all was cancelled"
        try:
            raise AssertionError(slow.result(timeout=30))
        except concurrent.futures.CancelledError:
            pass


def a_wait_that_is_interrupted_loses_nothing():
    def answer(owner, method, path, body):
        time.sleep(0.04)
        return 201, results(1, body["lines"])

    def interrupts(*_):
        raise KeyboardInterrupt

    owner, was = Owner(answer), signal.signal(signal.SIGALRM, interrupts)
    with owner.executor(once=True) as executor:
        for at in range(20):
            future = executor.submit(pow, at, 2)
            signal.setitimer(signal.ITIMER_REAL, 0.005 + at * 0.002)
            try:
                assert future.result(timeout=30) == at * at
            except KeyboardInterrupt:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert future.result(timeout=30) == at * at
    signal.signal(signal.SIGALRM, was)
    assert len({body["key"] for body in owner.posts()}) == 20


def calls_are_pickled_as_cloudpickle_does():
    class Pickler:
        """Says what it was asked for."""

        registered = set()

        @staticmethod
        def dumps(call):
            asked.append(call)
            return b""

        @staticmethod
        def list_registry_pickle_by_value():
            return Pickler.registered

    asked, was, concord._pickler = [], concord._pickler, Pickler
    own = type(called)(called.__code__, {})
    own.__module__ = "__main__"
    try:
        assert pickle.loads(concord._dumped_call(called, (1, "a", None), {"c": b"d"})) == (called, (1, "a", None), {"c": b"d"})
        for call in (own, ()), (lambda: 1, ()), (called, ([],)), (called, (Owner,)), (functools.partial(own), ()):
            concord._dumped_call(*call, {})
        Pickler.registered = {"a module"}
        concord._dumped_call(called, (), {})
        assert len(asked) == 6, asked
    finally:
        concord._pickler = was


def a_callback_may_end_the_executor():
    owner = Owner(at_once)
    for reads in (True, False):
        executor = owner.executor()
        assert executor.submit(pow, 3, 2).result(timeout=30) == 9
        time.sleep(0.05)
        ended = threading.Event()

        def ends(_):
            with contextlib.suppress(RuntimeError):  # In a thread of its own it cannot wait for that.
                executor.shutdown(wait=True)
            ended.set()

        future = executor.submit(pow, 4, 2)
        future.add_done_callback(ends) if not reads else future._done_callbacks.append(ends)
        assert future.result(timeout=30) == 16
        assert ended.wait(30)
        executor.shutdown()
        assert not any(thread.is_alive() for thread in executor._threads)


def a_forked_process_leaves_the_connections_alone():
    owner = Owner(at_once)
    with owner.executor() as executor:
        assert executor.submit(pow, 3, 2).result(timeout=30) == 9
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            try:
                executor.submit(pow, 3, 2)
            except RuntimeError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert executor.submit(pow, 4, 2).result(timeout=30) == 16


def an_older_owner_answers_as_it_does():
    def answer(owner, method, path, body):
        if method == "POST":
            owner.lines = body["lines"]
            return 201, {"job": 1, "tasks": len(body["lines"])}
        return results(1, owner.lines)

    owner = Owner(answer)
    with owner.executor() as executor:
        assert executor.submit(pow, 3, 2).result(timeout=30) == 9
    assert [method for method, _, _ in owner.asked] == ["POST", "GET"]


def main():
    one_call_is_one_request()
    a_request_without_an_answer_is_sent_again_with_its_key()
    an_owner_that_is_away_is_asked_again()
    another_owner_has_other_jobs()
    what_takes_longer_is_asked_for_and_can_be_cancelled()
    a_wait_that_is_interrupted_loses_nothing()
    calls_are_pickled_as_cloudpickle_does()
    a_callback_may_end_the_executor()
    a_forked_process_leaves_the_connections_alone()
    an_older_owner_answers_as_it_does()


if __name__ == "__main__":
    main()
