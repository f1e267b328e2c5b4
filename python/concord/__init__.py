"""Tasks of a Concord rack (``concord up --system falcon``) as Python has them: a ``concurrent.futures.Executor``.

    import concord

    with concord.Executor("127.0.0.1:6400", token) as executor:
        print(list(executor.map(pow, range(1000), [2] * 1000)))

and locks of its chain of switches (``concord.Lock``, see ``concord.lock``).

Address and token are those of the rack's owner: ``concord job token`` prints the token. Without them the environment
says it: ``CONCORD_OWNER`` and ``CONCORD_TOKEN``.

Functions, arguments and results are pickled, so the workers must be able to import what they name (``path`` says where), this
package among it. What is defined in ``__main__`` cannot be imported; with ``cloudpickle`` installed, which is used where it
can be imported, it need not be (else ``submit`` says so). What a call prints is printed here when it is over. A worker keeps an interpreter for each task that it runs at a time (docs/internals/falcon.md, Handlers).
"""

import base64
import collections
import concurrent.futures
import contextlib
import functools
import itertools
import json
import os
import pickle
import select
import socket
import sys
import threading
import time
import types
import uuid

try:
    import cloudpickle as _pickler
except ImportError:
    _pickler = pickle

from concord.lock import Lock, LockError, LockLost, LockNotAcquired, LockUnknown

__all__ = [
    "CALL_BYTES_MAX",
    "Executor",
    "Lock",
    "LockError",
    "LockLost",
    "LockNotAcquired",
    "LockUnknown",
    "OUTPUT_BYTES_MAX",
    "TaskError",
]

#: Longest result, and longest call, pickled and in base64, in bytes.
OUTPUT_BYTES_MAX = 16 << 20
CALL_BYTES_MAX = 1 << 20
#: Most tasks of a job, and most bytes of their parameters.
_TASKS_MAX = 1_000
_BYTES_MAX = 4 << 20
#: Jobs that are under way at once; what is submitted meanwhile becomes one job.
_JOBS_MAX = 8
_WAIT_MS = 1_000
#: How long the submission of one call waits for its result: that of a short one takes one exchange. A longer one is
#: known by its number then, so that it can be cancelled.
_CALL_WAIT_MS = 50
#: How long ``cancel`` of a future waits for that, in seconds.
_PLACE_S = 1.0
#: Longest request that whoever submits a call sends itself, in bytes: it fits where the system keeps what is sent.
_SENT_BYTES_MAX = 64 << 10
#: How long a carrier's thread, in seconds, sleeps at most while calls are submitted now and then, and for how long after the
#: last one it does so.
_LOOK_S = 0.02
_LATELY_S = 1.0
#: Longest head of an answer, in bytes.
_HEAD_BYTES_MAX = 64 << 10
#: How long an owner that is away is asked again, in seconds, and how long until the next time.
_AWAY_S = 60.0
_AGAIN_S = 0.2
#: What a worker's interpreter begins with: directories to import from, beside those of its own environment, are its
#: arguments but for the first one, which is the executor's own name. No two executors share an interpreter: it has the
#: modules as they were when it imported them.
_WORKER = "import sys; sys.path[1:1] = sys.argv[2:]; from concord.worker import main; main()"
#: Types that are pickled in one way.
_PLAIN = frozenset((bool, bytes, complex, float, int, str, type(None)))
#: Exit status of a call that raised; its answer is the exception.
RAISED = 100


class TaskError(Exception):
    """A task that has no result: ``how`` is failed, unknown, lost or dropped (docs/internals/falcon.md)."""

    def __init__(self, how, why):
        super().__init__(f"{how}: {why}" if why else how)
        self.how = how
        self.why = why


class _Submission:
    """A job on its way: its calls with their futures, and what submits it."""

    def __init__(self, batch, job):
        self.batch = batch
        #: In JSON, with its key.
        self.job = job
        #: Whose number it is to have; and the request that says so.
        self.incarnation = None
        self.request = None
        #: Whether that was sent, as far as its carrier's connection stands; and the answer, if whoever waits has read it.
        self.is_sent = False
        self.answer = None
        #: Whether it was sent, and has no answer.
        self.is_unsure = False

    @property
    def futures(self):
        return [future for future, _ in self.batch]


class _Carrier:
    """A connection with a thread, which has one job at a time under way.

    Whoever submits a call sends it on an idle one's connection, and whoever waits for its result reads that there: both
    without a change of threads, which takes longer than all the rest. The thread does it where nobody waits so, or not
    in time.
    """

    def __init__(self, owner):
        self.owner = owner
        #: Held by whoever uses the connection, or changes what follows.
        self.reads = threading.Lock()
        self.submission = None
        self.handed_at = 0.0
        #: Whether its thread is to take what waits: nobody else has it, and it is not idle.
        self.is_free = True
        #: Whether its thread sleeps until it is woken, and whether it was woken for this submission.
        self.sleeps = False
        self.is_awake = True
        self.woken = threading.Event()

    def wake(self, anew=False):
        if anew or not self.is_awake:
            self.is_awake = True
            self.woken.set()

    def sleep(self):
        """Lets its thread wait until there is something to do, or to look for."""
        self.woken.wait(None if self.sleeps else _LOOK_S)
        self.woken.clear()

    def hand(self, submission):
        """Gives it a job, and sends that if it is short and there is a connection."""
        with self.reads:
            self.submission, self.handed_at, self.is_awake = submission, time.monotonic(), False
            if len(submission.request) <= _SENT_BYTES_MAX and self.owner.is_ready():
                try:
                    self.owner.send(submission.request)
                    submission.is_sent = True
                except OSError:
                    # It may be there in part: the thread asks anew.
                    self.owner.close()
            if self.sleeps or not submission.is_sent:
                self.wake()

    def read(self, submission, timeout):
        """Reads for whoever waits for its only call, if nobody else does: the answer, if the job is over with that."""
        if not self.reads.acquire(blocking=False):
            return None
        try:
            if self.submission is not submission or not submission.is_sent or submission.answer is not None:
                return None
            within_ms = 2 * _CALL_WAIT_MS if timeout is None else min(2 * _CALL_WAIT_MS, max(0, timeout * 1000))
            if not self.owner.is_readable(within_ms):
                return None
            submission.answer = self.owner.receive()
            status, text = submission.answer
            told = json.loads(text) if status == 201 else {}
            if not told.get("is_last"):
                # Its thread goes on from that.
                return None
            return told
        except BaseException as error:
            # What was read so far is lost: the thread asks again.
            submission.is_sent, submission.answer, submission.is_unsure = False, None, True
            self.owner.close()
            if not isinstance(error, Exception):
                raise
            return None
        finally:
            self.reads.release()


class _Waiters(list):
    """What ``wait`` and ``as_completed`` leave at a future: they do not read themselves."""

    def __init__(self, future):
        super().__init__()
        self._future = future

    def append(self, waiter):
        super().append(waiter)
        self._future._wake()


class _Future(concurrent.futures.Future):
    """One whose call can be cancelled while it waits at the rack."""

    _is_asked = False

    def __init__(self, executor):
        super().__init__()
        self._executor = executor
        #: Its job, and its number in that, once the owner has answered.
        self._place = None
        #: What its call was sent with, and on, if it was sent alone.
        self._sent = None
        self._waiters = _Waiters(self)

    def _has_ended(self):
        return super().done()

    def _wake(self):
        """Has the carrier's thread read: this one does not."""
        sent = self._sent
        if sent is not None:
            sent[1].wake()

    def _read(self, timeout):
        """Waits for the answer on the connection itself. What is left of the timeout."""
        sent = self._sent
        if sent is None or self._has_ended() or self._executor._process != os.getpid():
            return timeout
        began = time.monotonic()
        submission, carrier = sent
        told = None
        try:
            told = carrier.read(submission, timeout)
        finally:
            if told is None:
                self._wake()
        if told is not None:
            self._executor._end(carrier, submission, told)
        return None if timeout is None else max(0, timeout - (time.monotonic() - began))

    def result(self, timeout=None):
        return super().result(self._read(timeout))

    def exception(self, timeout=None):
        return super().exception(self._read(timeout))

    def done(self):
        self._wake()
        return super().done()

    def running(self):
        self._wake()
        return super().running()

    def add_done_callback(self, fn):
        self._wake()
        super().add_done_callback(fn)

    def cancel(self):
        if super().cancel():
            return True
        self._wake()
        executor = self._executor
        with executor._told:
            # It may be on its way.
            executor._told.wait_for(lambda: self._place or self._has_ended(), _PLACE_S)
        if self._place is None or self._has_ended():
            return self.cancelled()
        # Whoever watches its job may hear of it first.
        self._is_asked = True
        if executor._cancel(*self._place):
            self._end_cancelled()
        return self.cancelled()

    def _end_cancelled(self):
        with self._condition:
            if self._state != concurrent.futures._base.RUNNING:
                return
            self._state = concurrent.futures._base.CANCELLED
            self._condition.notify_all()
        self._invoke_callbacks()
        self.set_running_or_notify_cancel()


class _Away(ConnectionError):
    """The owner does not answer, or ends: with a journal it goes on with its jobs when it is started again."""


class _Other(RuntimeError):
    """The owner was started again without the jobs that it had: it has others of the same numbers."""


class _Answers:
    """What a connection says, as HTTP/1.1: a status, and a body of a known length, in chunks, or to the end."""

    def __init__(self, connection):
        self._connection = connection
        self._here = b""

    def _more(self):
        part = self._connection.recv(1 << 16)
        if not part:
            raise ConnectionResetError("the connection ended")
        self._here += part

    def _until(self, mark):
        start = 0
        while (at := self._here.find(mark, start)) < 0:
            if len(self._here) > _HEAD_BYTES_MAX:
                raise ConnectionError("what answers speaks no HTTP")
            start = max(0, len(self._here) - len(mark) + 1)
            self._more()
        said, self._here = self._here[:at], self._here[at + len(mark) :]
        return said

    def _bytes(self, count):
        if len(self._here) < count:
            parts, missing = [self._here], count - len(self._here)
            while missing:
                part = self._connection.recv(min(missing, 1 << 20))
                if not part:
                    raise ConnectionResetError("the connection ended")
                parts.append(part)
                missing -= len(part)
            self._here = b"".join(parts)
        said, self._here = self._here[:count], self._here[count:]
        return said

    def _chunked(self):
        parts = []
        while size := int(self._until(b"\r\n").split(b";")[0], 16):
            parts.append(self._bytes(size))
            self._until(b"\r\n")
        while self._until(b"\r\n"):
            pass
        return b"".join(parts)

    def _to_the_end(self):
        with contextlib.suppress(ConnectionResetError):
            while True:
                self._more()
        return self._here

    def next(self):
        """Status and body, and whether the connection stays."""
        try:
            status = 100
            while status < 200:
                first, *lines = self._until(b"\r\n\r\n").split(b"\r\n")
                version, status = first.split(None, 2)[:2]
                status = int(status)
            fields = {}
            for line in lines:
                name, value = line.split(b":", 1)
                fields[name.strip().lower()] = value.strip().lower()
            stays = version == b"HTTP/1.1" and fields.get(b"connection") != b"close"
            if fields.get(b"transfer-encoding", b"identity") != b"identity":
                return status, self._chunked(), stays
            if b"content-length" in fields:
                return status, self._bytes(int(fields[b"content-length"])), stays
            if status == 204:
                return status, b"", stays
            return status, self._to_the_end(), False
        except ValueError as error:
            raise ConnectionError(f"what answers speaks no HTTP: {error}") from error


class _Owner:
    """The owner's HTTP interface, over one connection."""

    def __init__(self, address, token, timeout):
        self._address = address
        host, _, port = address.rpartition(":")
        self._socket_address = (host.strip("[]"), int(port)) if host and port.isdecimal() else (address.strip("[]"), 80)
        # They are lines of a head: nothing in them may begin another one.
        if any(byte <= " " for byte in address + token):
            raise ValueError("an address and a token have no spaces and no lines")
        self._fields = f"Host: {address}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        self._timeout = timeout
        self._connection = None
        self._answers = None
        #: What was asked for without an answer may have been done.
        self.is_unsure = False

    def ask(self, method, path, body=None):
        """The answer; a ``RuntimeError`` with the owner's line if it refuses. ``body`` is JSON."""
        return self.ask_for(self.request(method, path, body))

    def request(self, method, path, body=None):
        data = (body or "").encode()
        head = f"{method} {path} HTTP/1.1\r\n{self._fields}Content-Length: {len(data)}\r\n\r\n"
        return head.encode("latin-1", "replace") + data

    def is_ready(self):
        """Whether there is a connection that can be used as it is."""
        if self._connection is not None and self.is_readable(0):
            # What can be read before anything was asked is the end: the owner has ended, or had no room.
            self.close()
        return self._connection is not None

    def is_readable(self, within_ms):
        # No select: it takes no descriptor above 1,023.
        readable = select.poll()
        readable.register(self._connection, select.POLLIN)
        return bool(readable.poll(within_ms))

    def send(self, request):
        self._connection.sendall(request)

    def receive(self):
        """Status and text of the answer; the connection ends where it says so."""
        status, text, stays = self._answers.next()
        if not stays:
            self.close()
        return status, text

    def ask_for(self, request, is_sent=False, answer=None):
        """The answer to a request, which may be on its way already, or answered."""
        for attempt in (1, 2):
            fresh = not (is_sent or self.is_ready())
            try:
                if fresh:
                    self._connect()
                if not is_sent:
                    self.send(request)
                status, text = answer or self.receive()
                break
            except OSError as error:
                self.close()
                is_sent = False
                self.is_unsure = self.is_unsure or not isinstance(error, ConnectionRefusedError)
                # A connection that was kept may have been closed meanwhile. A job has a key: sent twice it is one.
                if fresh or attempt == 2:
                    raise _Away(f"no answer of the owner at {self._address}: {error}") from error
        try:
            answer = json.loads(text) if text else {}
        except ValueError:
            answer = {"error": text.decode("utf-8", "replace").strip()}
        if status == 503:
            self.close()
            self.is_unsure = True
            raise _Away(answer.get("error", "HTTP status 503"))
        if status == 410:
            raise _Other(answer.get("error", "HTTP status 410"))
        if status >= 300:
            raise RuntimeError(answer.get("error", f"HTTP status {status}"))
        return answer

    def _connect(self):
        self._connection = socket.create_connection(self._socket_address, self._timeout)
        # A request is one write: nothing is gained by waiting for more.
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = _Answers(self._connection)

    def ask_again(self, method, path, body=None):
        """As ``ask``; an owner that is away for a while is asked until it is back."""
        until = time.monotonic() + _AWAY_S
        while True:
            try:
                return self.ask(method, path, body)
            except _Away:
                if time.monotonic() >= until:
                    raise
                time.sleep(_AGAIN_S)

    def close(self):
        if self._connection is not None:
            self._connection.close()
            self._connection = self._answers = None


def _chunks(all_arguments, size):
    """Lists of so many of them; the last one may be shorter."""
    while chunk := list(itertools.islice(all_arguments, size)):
        yield chunk


def _call_all(function, chunk):
    return [function(*arguments) for arguments in chunk]


def _check(function):
    """Refuses what no worker could import."""
    while isinstance(function, functools.partial):
        function = function.args[0] if function.func is _call_all else function.func
    if _pickler is pickle and getattr(function, "__module__", None) == "__main__":
        name = getattr(function, "__qualname__", repr(function))
        raise ValueError(
            f"{name} is defined in __main__, which workers cannot import: "
            "put it into a module of its own (path says where that is), or install cloudpickle here and at the workers"
        )


def _dumped_call(fn, args, kwargs):
    """As ``_pickler`` has it. A function of a module with plain arguments is the same to ``pickle``, which is sooner done."""
    registry = getattr(_pickler, "list_registry_pickle_by_value", set)
    is_plain = (
        type(fn) in (types.FunctionType, types.BuiltinFunctionType)
        and fn.__module__ != "__main__"
        and all(type(own) in _PLAIN for own in (*args, *kwargs.values()))
        and not registry()
    )
    if is_plain:
        # It refuses what cannot be imported by its name.
        with contextlib.suppress(Exception):
            return pickle.dumps((fn, args, kwargs))
    return _pickler.dumps((fn, args, kwargs))


def handler_of(python, path):
    """The command of an executor's interpreters, which no other executor has."""
    return [python or sys.executable, "-c", _WORKER, uuid.uuid4().hex, *path]


class Executor(concurrent.futures.Executor):
    """Runs calls as tasks of a rack.

    ``address``: host:port of the rack's owner. ``token``: what it asks for. ``retries``: how often a call that raised, or
    whose interpreter ended, is tried again. ``once``: no call is ever run twice; of one whose worker dies it stays unknown.
    ``limit``: how long a call may take, in seconds. ``python``: the workers' interpreter. ``path``: directories that it imports
    from beside its own, a list. ``timeout``: how long the owner may take to answer, in seconds. ``retry_delay``: how long a call
    that is tried again waits, in seconds, twice as long each further time. ``priority``: from 0 to 3, the most urgent.
    ``needs``: only workers that have this run it. ``directory``: where calls run. ``prints``: print here what a call printed,
    when it is over.

    A future's ``cancel`` also cancels a call that waits at the rack; one that a worker has goes on.
    """

    def __init__(
        self,
        address=None,
        token=None,
        *,
        retries=0,
        once=False,
        limit=None,
        python=None,
        path=(),
        timeout=30.0,
        retry_delay=None,
        priority=0,
        needs=None,
        directory=None,
        prints=True,
    ):
        address = address or os.environ.get("CONCORD_OWNER")
        token = token or os.environ.get("CONCORD_TOKEN")
        if not address or not token:
            raise ValueError("say address and token, or set CONCORD_OWNER and CONCORD_TOKEN")
        self._job = {
            "handler": handler_of(python, path),
            "retries": retries,
            "once": once,
            # Whoever is gone asks for nothing any more: then its calls are cancelled.
            "attached": True,
            "limit_ms": 0 if limit is None else max(1, round(limit * 1000)),
            "priority": priority,
        }
        if retry_delay is not None:
            self._job["retry_delay_ms"] = round(retry_delay * 1000)
        if needs is not None:
            self._job["needs"] = needs
        if directory is not None:
            self._job["directory"] = os.path.abspath(directory)
        self._prints = prints
        self._owner = lambda: _Owner(address, token, timeout)
        #: A process that is forked off has none of its threads, and is to leave its connections alone.
        self._process = os.getpid()
        #: What all of its jobs have, as the beginning of one; and what their keys begin with.
        self._common = json.dumps(self._job)[:-1]
        self._name = uuid.uuid4().hex
        self._ordinals = itertools.count()
        self._calls = collections.deque()
        self._open = set()
        #: Each has a thread; and those that have nothing under way, the last one of which has the warmest caches.
        self._carriers = []
        self._threads = []
        self._idle = []
        self._changed = threading.Lock()
        #: Of where calls are, or how they ended; not the futures' own, whose notice says that they have a result.
        self._told = threading.Condition()
        self._is_over = False
        self._cancels = False
        # Says at once if nobody is there. Whose the numbers of jobs are: without a journal another one's when the
        # owner is started again.
        owner = self._owner()
        self._incarnation = owner.ask("GET", "/owner")["owner"]
        owner.close()

    def _cancel(self, job, task):
        """Whether a task that waits was cancelled."""
        owner = self._owner()
        number, incarnation = job
        try:
            path = f"/jobs/{number}/tasks/{task}?waiting=1&owner={incarnation}"
            return owner.ask("DELETE", path)["cancelled"] > 0
        except (RuntimeError, _Away):
            return False
        finally:
            owner.close()

    def submit(self, fn, /, *args, **kwargs):
        _check(fn)
        if self._process != os.getpid():
            raise RuntimeError("this executor is another process's: make one after the fork")
        call = base64.b64encode(_dumped_call(fn, args, kwargs)).decode()
        if len(call) > CALL_BYTES_MAX:
            raise ValueError(f"the call is {len(call)} bytes long, of at most {CALL_BYTES_MAX}")
        future = _Future(self)
        carrier = None
        with self._changed:
            if self._is_over:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._idle:
                carrier = self._idle.pop()
            else:
                if len(self._threads) < _JOBS_MAX:
                    self._start()
                self._calls.append((future, call))
                for own in self._carriers:
                    own.wake()
        if carrier is not None:
            try:
                future.set_running_or_notify_cancel()
                submission = self._submission(carrier, [(future, call)])
                future._sent = submission, carrier
                carrier.hand(submission)
            except BaseException:
                # Its thread sees what is left to do.
                carrier.is_free = carrier.submission is None
                carrier.wake(anew=True)
                raise
        return future

    def _start(self):
        carrier = _Carrier(self._owner())
        thread = threading.Thread(target=self._carry, args=(carrier,), name="concord", daemon=True)
        thread.start()
        self._threads.append(thread)
        self._carriers.append(carrier)

    def map(self, fn, *iterables, timeout=None, chunksize=1):
        """As that of ``ProcessPoolExecutor``: with ``chunksize`` a task makes so many calls, one after the other."""
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout)
        calls = functools.partial(_call_all, fn)
        chunks = super().map(calls, _chunks(zip(*iterables), chunksize), timeout=timeout)
        return itertools.chain.from_iterable(chunks)

    def shutdown(self, wait=True, *, cancel_futures=False):
        with self._changed:
            self._is_over = True
            self._cancels = self._cancels or cancel_futures
            calls = list(self._calls) if cancel_futures else []
            if cancel_futures:
                self._calls.clear()
            jobs = list(self._open) if cancel_futures else []
            for carrier in self._idle:
                carrier.is_free = True
            self._idle = []
        for carrier in self._carriers:
            carrier.wake(anew=True)
        for future, _ in calls:
            future.cancel()
            future.set_running_or_notify_cancel()
        if jobs:
            owner = self._owner()
            for number, incarnation in jobs:
                with contextlib.suppress(_Other):  # It is over.
                    owner.ask("DELETE", f"/jobs/{number}?owner={incarnation}")
            owner.close()
        if wait:
            for thread in self._threads:
                thread.join()

    def _submission(self, carrier, batch):
        lines = '", "'.join(call for _, call in batch)  # They are in base64: nothing in them is quoted.
        key = f"{self._name}-{next(self._ordinals)}"
        submission = _Submission(batch, f'{self._common}, "key": "{key}", "lines": ["{lines}"]}}')
        self._address(carrier, submission)
        return submission

    def _address(self, carrier, submission):
        submission.incarnation = self._incarnation
        # That of one call waits for its result.
        wait = f"&wait_ms={_CALL_WAIT_MS}" if len(submission.batch) == 1 else ""
        path = f"/jobs?owner={submission.incarnation}{wait}"
        submission.request = carrier.owner.request("POST", path, submission.job)

    def _rest(self, carrier):
        """It has nothing under way: its thread takes what waits, or it is idle."""
        with self._changed:
            if not carrier.is_free:
                return
            takes = self._calls or self._is_over
            if not takes:
                carrier.is_free = False
                self._idle.append(carrier)
        if takes:
            carrier.wake(anew=True)

    def _end(self, carrier, submission, told):
        """Tells how the calls of a job ended that is over, unless its carrier's thread does."""
        futures = submission.futures
        if not carrier.reads.acquire(blocking=False):
            return
        try:
            if carrier.submission is not submission:
                return
            carrier.submission, carrier.is_free = None, True
        finally:
            carrier.reads.release()
        try:
            # Others may have the carrier first: whom the futures call may wait for them.
            self._rest(carrier)
            self._settle_all(futures, told)
        finally:
            futures[0]._sent = None
            # A wait that is interrupted leaves nothing untold.
            if not futures[0]._has_ended():
                self._settle_all(futures, told)
            if not futures[0]._has_ended():
                _fail(futures, TaskError("lost", "the owner knows nothing of it"))

    def _next(self, carrier):
        """The calls of its next job; none if others have it, or it is idle; ``None`` at the end."""
        with self._changed:
            if not carrier.is_free:
                return []
            batch, size = [], 0
            while self._calls and len(batch) < _TASKS_MAX and size < _BYTES_MAX:
                future, call = self._calls.popleft()
                if future.set_running_or_notify_cancel():
                    batch.append((future, call))
                    size += len(call)
            if not batch and self._is_over:
                return None
            carrier.is_free = False
            if not batch:
                self._idle.append(carrier)
        return batch

    def _carry(self, carrier):
        """Submits one job after the other, and tells how their calls ended, where nobody else does."""
        while True:
            with carrier.reads:
                if carrier.submission is not None:
                    self._bring(carrier)
            while (batch := self._next(carrier)) != []:
                if batch is None:
                    carrier.owner.close()
                    return
                with carrier.reads:
                    carrier.submission = self._submission(carrier, batch)
                    self._bring(carrier)
            with carrier.reads:
                carrier.sleeps = time.monotonic() - carrier.handed_at > _LATELY_S
            carrier.sleep()

    def _bring(self, carrier):
        submission = carrier.submission
        futures = submission.futures
        try:
            told = self._submit(carrier, submission)
            job = told["job"], submission.incarnation
        except Exception as error:  # Whatever it is, it is the futures'.
            _fail(futures, error)
        else:
            self._watch(carrier.owner, job, futures, told)
        carrier.submission, carrier.is_free = None, True
        if len(futures) == 1:
            futures[0]._sent = None

    def _submit(self, carrier, submission):
        """The owner's answer. A job that is sent again is one, and is never run twice if it says so."""
        owner = carrier.owner
        until, owner.is_unsure = time.monotonic() + _AWAY_S, submission.is_unsure
        while True:
            try:
                is_sent, submission.is_sent = submission.is_sent, False
                return owner.ask_for(submission.request, is_sent, submission.answer)
            except _Other:
                if self._job["once"] and owner.is_unsure:
                    why = "its owner ended without an answer, and was started again without a journal: it may have been run"
                    raise TaskError("unknown", why) from None
                # If the one before had taken it, it ended with that one.
                self._incarnation = owner.ask_again("GET", "/owner")["owner"]
                self._address(carrier, submission)
            except _Away:
                if time.monotonic() >= until:
                    raise
                time.sleep(_AGAIN_S)
            submission.answer = None

    def _watch(self, owner, job, futures, told):
        """Tells the futures of a job how its tasks ended, as they end, from the answer to its submission on."""
        number, incarnation = job
        try:
            if not told.get("is_last"):
                self._goes_on(owner, job, futures)
            while True:
                self._settle_all(futures, told)
                if told.get("is_last"):
                    break
                path = f"/jobs/{number}/results?from={told.get('next', 0)}&wait_ms={_WAIT_MS}&owner={incarnation}"
                told = owner.ask_again("GET", path)
            _fail([f for f in futures if not f._has_ended()], TaskError("lost", "the owner knows nothing of it"))
        except _Other as error:
            _fail(futures, TaskError("lost", str(error)))
        except Exception as error:
            _fail(futures, error)
        finally:
            with self._changed:
                self._open.discard(job)
            with self._told:
                self._told.notify_all()

    def _settle_all(self, futures, told):
        for task in told.get("results", ()):
            # An owner that was started again tells in the order of its journal.
            future = futures[task["task"]]
            if not future._has_ended():
                # It may be cancelled this moment.
                with contextlib.suppress(concurrent.futures.InvalidStateError):
                    _settle(future, task, self._prints)

    def _goes_on(self, owner, job, futures):
        """Says where a job is whose calls go on, so that they can be cancelled."""
        for task, future in enumerate(futures):
            future._place = (job, task)
        with self._told:
            self._told.notify_all()
        with self._changed:
            self._open.add(job)
            cancels = self._cancels
        if cancels:
            # It was on its way when all was cancelled.
            with contextlib.suppress(Exception):  # Its outcomes say so.
                owner.ask("DELETE", f"/jobs/{job[0]}?owner={job[1]}")


def _fail(futures, error):
    for future in futures:
        # It may be cancelled this moment, and others are to be told.
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            future.set_exception(error)


def _show(printed):
    """Prints what a call printed."""
    with contextlib.suppress(ValueError, OSError):
        for name, text in json.loads(base64.b64decode(printed)).items():
            stream = sys.stdout if name == "out" else sys.stderr
            stream.write(text)
            stream.flush()


def _settle(future, task, prints=False):
    output = task.get("output", "")
    is_answer = task["how"] == "done" or task.get("status") == RAISED
    if is_answer and "\n" in output:
        output, printed = output.split("\n", 1)
        if prints:
            _show(printed)
    raised = task.get("status") == RAISED
    if task["how"] == "cancelled" and future._is_asked:
        return future._end_cancelled()
    if task["how"] == "cancelled":
        why = [task["why"]] if "why" in task else []
        return future.set_exception(concurrent.futures.CancelledError(*why))
    if task.get("is_dropped"):
        why = "its result was dropped: its owner had no room for it"
        return future.set_exception(TaskError("dropped", why))
    if task["how"] != "done" and not raised:
        why = ": ".join(part for part in (task.get("why"), output.strip()) if part)
        return future.set_exception(TaskError(task["how"], why))
    try:
        value = pickle.loads(base64.b64decode(output, validate=True))
    except Exception as error:
        return future.set_exception(TaskError("failed", f"a result that cannot be read: {error}"))
    if raised:
        future.set_exception(value)
    else:
        future.set_result(value)
    return None
