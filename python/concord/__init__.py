"""Tasks of a Concord rack (``concord up --system falcon``) as Python has them: a ``concurrent.futures.Executor``.

    import concord

    with concord.Executor("127.0.0.1:6400", token) as executor:
        print(list(executor.map(pow, range(1000), [2] * 1000)))

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
import http.client
import itertools
import json
import os
import pickle
import select
import sys
import threading
import time
import uuid

try:
    import cloudpickle as _pickler
except ImportError:
    _pickler = pickle

__all__ = ["Executor", "TaskError", "CALL_BYTES_MAX", "OUTPUT_BYTES_MAX"]

#: Longest result, and longest call, pickled and in base64, in bytes.
OUTPUT_BYTES_MAX = 16 << 20
CALL_BYTES_MAX = 1 << 20
#: Most tasks of a job, and most bytes of their parameters.
_TASKS_MAX = 1_000
_BYTES_MAX = 4 << 20
#: Jobs that are under way at once; what is submitted meanwhile becomes one job.
_JOBS_MAX = 8
_WAIT_MS = 1_000
#: How long an owner that is away is asked again, in seconds, and how long until the next time.
_AWAY_S = 60.0
_AGAIN_S = 0.2
#: What a worker's interpreter begins with: directories to import from, beside those of its own environment, are its
#: arguments but for the first one, which is the executor's own name. No two executors share an interpreter: it has the
#: modules as they were when it imported them.
_WORKER = "import sys; sys.path[1:1] = sys.argv[2:]; from concord.worker import main; main()"
#: Exit status of a call that raised; its answer is the exception.
RAISED = 100


class TaskError(Exception):
    """A task that has no result: ``how`` is failed, unknown, lost or dropped (docs/internals/falcon.md)."""

    def __init__(self, how, why):
        super().__init__(f"{how}: {why}" if why else how)
        self.how = how
        self.why = why


class _Future(concurrent.futures.Future):
    """One whose call can be cancelled while it waits at the rack."""

    _place = None
    _executor = None
    _is_asked = False

    def cancel(self):
        if super().cancel():
            return True
        place, executor = self._place, self._executor
        if place is None or self.done():
            return self.cancelled()
        # Whoever watches its job may hear of it first.
        self._is_asked = True
        if executor._cancel(*place):
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


class _Owner:
    """The owner's HTTP interface, over one connection."""

    def __init__(self, address, token, timeout):
        self._address = address
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._timeout = timeout
        self._connection = None
        #: What was asked for without an answer may have been done.
        self.is_unsure = False

    def ask(self, method, path, body=None):
        """The answer; a ``RuntimeError`` with the owner's line if it refuses."""
        data = None if body is None else json.dumps(body).encode()
        if self._connection is not None and self._connection.sock is not None:
            # What can be read before anything was asked is the end: the owner has ended, or had no room.
            # No select: it takes no descriptor above 1,023.
            end = select.poll()
            end.register(self._connection.sock, select.POLLIN)
            if end.poll(0):
                self.close()
        for attempt in (1, 2):
            fresh = self._connection is None
            if fresh:
                self._connection = http.client.HTTPConnection(self._address, timeout=self._timeout)
            try:
                self._connection.request(method, path, data, self._headers)
                response = self._connection.getresponse()
                text = response.read()
                break
            except (http.client.HTTPException, OSError) as error:
                self.close()
                self.is_unsure = self.is_unsure or not isinstance(error, ConnectionRefusedError)
                # A connection that was kept may have been closed meanwhile. A job has a key: sent twice it is one.
                if fresh or attempt == 2:
                    raise _Away(f"no answer of the owner at {self._address}: {error}") from error
        try:
            answer = json.loads(text) if text else {}
        except ValueError:
            answer = {"error": text.decode("utf-8", "replace").strip()}
        if response.status == 503:
            self.close()
            self.is_unsure = True
            raise _Away(answer.get("error", "HTTP status 503"))
        if response.status == 410:
            raise _Other(answer.get("error", "HTTP status 410"))
        if response.status >= 300:
            raise RuntimeError(answer.get("error", f"HTTP status {response.status}"))
        return answer

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
            self._connection = None


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
        self._calls = collections.deque()
        self._open = set()
        self._changed = threading.Condition()
        self._is_over = False
        self._cancels = False
        # Says at once if nobody is there. Whose the numbers of jobs are: without a journal another one's when the
        # owner is started again.
        owner = self._owner()
        self._incarnation = owner.ask("GET", "/owner")["owner"]
        owner.close()
        self._submitter = threading.Thread(target=self._submit_all, name="concord", daemon=True)
        self._submitter.start()

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
        call = base64.b64encode(_pickler.dumps((fn, args, kwargs))).decode()
        if len(call) > CALL_BYTES_MAX:
            raise ValueError(f"the call is {len(call)} bytes long, of at most {CALL_BYTES_MAX}")
        future = _Future()
        with self._changed:
            if self._is_over:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._calls.append((future, call))
            self._changed.notify_all()
        return future

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
            self._changed.notify_all()
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
            self._submitter.join()

    def _submit_all(self):
        """Makes jobs of what was submitted, until nothing more can come and all is over."""
        owner = self._owner()
        watchers = []
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: (self._calls and len(self._open) < _JOBS_MAX)
                    or (self._is_over and not self._calls)
                )
                if not self._calls:
                    break
                batch, size = [], 0
                while self._calls and len(batch) < _TASKS_MAX and size < _BYTES_MAX:
                    batch.append(self._calls.popleft())
                    size += len(batch[-1][1])
            batch = [(f, call) for f, call in batch if f.set_running_or_notify_cancel()]
            if not batch:
                continue
            futures = [future for future, _ in batch]
            try:
                job = {**self._job, "lines": [c for _, c in batch], "key": uuid.uuid4().hex}
                job = self._submit(owner, job)
            except Exception as error:  # Whatever it is, it is the futures'.
                _fail(futures, error)
                continue
            for task, future in enumerate(futures):
                future._executor, future._place = self, (job, task)
            with self._changed:
                self._open.add(job)
                cancels = self._cancels
            if cancels:
                # It was on its way when all was cancelled.
                with contextlib.suppress(Exception):  # Who watches it hears of it.
                    owner.ask("DELETE", f"/jobs/{job[0]}?owner={job[1]}")
            watcher = threading.Thread(target=self._watch, args=(job, futures), daemon=True)
            watcher.start()
            watchers = [w for w in watchers if w.is_alive()] + [watcher]
        owner.close()
        for watcher in watchers:
            watcher.join()

    def _submit(self, owner, job):
        """The job's number, and whose that is. A job that is sent again is one, and is never run twice if it says so."""
        until, owner.is_unsure = time.monotonic() + _AWAY_S, False
        while True:
            try:
                return owner.ask("POST", f"/jobs?owner={self._incarnation}", job)["job"], self._incarnation
            except _Other:
                if job["once"] and owner.is_unsure:
                    why = "its owner ended without an answer, and was started again without a journal: it may have been run"
                    raise TaskError("unknown", why) from None
                # If the one before had taken it, it ended with that one.
                self._incarnation = owner.ask_again("GET", "/owner")["owner"]
            except _Away:
                if time.monotonic() >= until:
                    raise
                time.sleep(_AGAIN_S)

    def _watch(self, job, futures):
        """Tells the futures of a job how its tasks ended, as they end."""
        owner, start = self._owner(), 0
        number, incarnation = job
        try:
            while True:
                path = f"/jobs/{number}/results?from={start}&wait_ms={_WAIT_MS}&owner={incarnation}"
                told = owner.ask_again("GET", path)
                for task in told["results"]:
                    # An owner that was started again tells in the order of its journal.
                    future = futures[task["task"]]
                    if not future.done():
                        # It may be cancelled this moment.
                        with contextlib.suppress(concurrent.futures.InvalidStateError):
                            _settle(future, task, self._prints)
                start = told["next"]
                if told["is_last"]:
                    break
            _fail(futures, TaskError("lost", "the owner knows nothing of it"))
        except _Other as error:
            _fail(futures, TaskError("lost", str(error)))
        except Exception as error:
            _fail(futures, error)
        finally:
            owner.close()
            with self._changed:
                self._open.discard(job)
                self._changed.notify_all()


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
