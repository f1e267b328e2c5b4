"""Tasks of a Concord rack (``concord up --system falcon``) as Python has them: a ``concurrent.futures.Executor``.

    import concord

    with concord.Executor("127.0.0.1:6400", token) as executor:
        print(list(executor.map(pow, range(1000), [2] * 1000)))

Address and token are those of the rack's owner: ``concord job token`` prints the token. Without them the environment
says it: ``CONCORD_OWNER`` and ``CONCORD_TOKEN``.

Functions, arguments and results are pickled, so the workers must be able to import what they name (``path`` says where), this
package among it. What is defined in ``__main__`` cannot be imported; with ``cloudpickle`` installed, which is used where it
can be imported, it need not be. A worker keeps an interpreter for each task that it runs at a time (docs/internals/falcon.md, Handlers).
"""

import base64
import collections
import concurrent.futures
import contextlib
import http.client
import json
import os
import pickle
import select
import sys
import threading

try:
    import cloudpickle as _pickler
except ImportError:
    _pickler = pickle

__all__ = ["Executor", "TaskError", "OUTPUT_BYTES_MAX"]

#: Longest result, pickled and in base64, in bytes.
OUTPUT_BYTES_MAX = 1 << 20
#: Most tasks of a job, and most bytes of their parameters.
_TASKS_MAX = 1_000
_BYTES_MAX = 4 << 20
#: Jobs that are under way at once; what is submitted meanwhile becomes one job.
_JOBS_MAX = 8
_WAIT_MS = 1_000
#: Exit status of a call that raised; its answer is the exception.
RAISED = 100


class TaskError(Exception):
    """A task that has no result: ``how`` is failed, unknown, lost or cancelled (docs/internals/falcon.md)."""

    def __init__(self, how, why):
        super().__init__(f"{how}: {why}" if why else how)
        self.how = how
        self.why = why


class _Owner:
    """The owner's HTTP interface, over one connection."""

    def __init__(self, address, token, timeout):
        self._address = address
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._timeout = timeout
        self._connection = None

    def ask(self, method, path, body=None):
        """The answer; a ``RuntimeError`` with the owner's line if it refuses."""
        data = None if body is None else json.dumps(body).encode()
        if self._connection is not None and self._connection.sock is not None:
            # What can be read before anything was asked is the end: the owner keeps 64 connections.
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
            except (http.client.HTTPException, OSError):
                self.close()
                # A connection that was kept may have been closed meanwhile. What makes something new is sent once.
                if fresh or attempt == 2 or method == "POST":
                    raise
        try:
            answer = json.loads(text) if text else {}
        except ValueError:
            answer = {"error": text.decode("utf-8", "replace").strip()}
        if response.status >= 300:
            raise RuntimeError(answer.get("error", f"HTTP status {response.status}"))
        return answer

    def close(self):
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Executor(concurrent.futures.Executor):
    """Runs calls as tasks of a rack.

    ``address``: host:port of the rack's owner. ``token``: what it asks for. ``retries``: how often a call that raised, or
    whose interpreter ended, is tried again. ``once``: no call is ever run twice; of one whose worker dies it stays unknown.
    ``limit``: how long a call may take, in seconds. ``python``: the workers' interpreter. ``path``: directories that it imports
    from beside its own, a list. ``timeout``: how long the owner may take to answer, in seconds.
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
    ):
        address = address or os.environ.get("CONCORD_OWNER")
        token = token or os.environ.get("CONCORD_TOKEN")
        if not address or not token:
            raise ValueError("say address and token, or set CONCORD_OWNER and CONCORD_TOKEN")
        where = ["/usr/bin/env", "PYTHONPATH=" + os.pathsep.join(path)] if path else []
        self._job = {
            "handler": [*where, python or sys.executable, "-m", "concord.worker"],
            "retries": retries,
            "once": once,
            # Whoever is gone asks for nothing any more: then its calls are cancelled.
            "attached": True,
            "limit_ms": 0 if limit is None else max(1, round(limit * 1000)),
        }
        self._owner = lambda: _Owner(address, token, timeout)
        self._calls = collections.deque()
        self._open = set()
        self._changed = threading.Condition()
        self._is_over = False
        self._cancels = False
        # Says at once if nobody is there.
        owner = self._owner()
        owner.ask("GET", "/jobs")
        owner.close()
        self._submitter = threading.Thread(target=self._submit_all, name="concord", daemon=True)
        self._submitter.start()

    def submit(self, fn, /, *args, **kwargs):
        call = base64.b64encode(_pickler.dumps((fn, args, kwargs))).decode()
        if len(call) > OUTPUT_BYTES_MAX:
            raise ValueError(f"the call is {len(call)} bytes long, of at most {OUTPUT_BYTES_MAX}")
        future = concurrent.futures.Future()
        with self._changed:
            if self._is_over:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._calls.append((future, call))
            self._changed.notify_all()
        return future

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
            for job in jobs:
                owner.ask("DELETE", f"/jobs/{job}")
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
                job = owner.ask("POST", "/jobs", {**self._job, "lines": [c for _, c in batch]})["job"]
            except Exception as error:  # Whatever it is, it is the futures'.
                _fail(futures, error)
                continue
            with self._changed:
                self._open.add(job)
                cancels = self._cancels
            if cancels:
                # It was on its way when all was cancelled.
                with contextlib.suppress(Exception):  # Who watches it hears of it.
                    owner.ask("DELETE", f"/jobs/{job}")
            watcher = threading.Thread(target=self._watch, args=(job, futures), daemon=True)
            watcher.start()
            watchers = [w for w in watchers if w.is_alive()] + [watcher]
        owner.close()
        for watcher in watchers:
            watcher.join()

    def _watch(self, job, futures):
        """Tells the futures of a job how its tasks ended, as they end."""
        owner, start = self._owner(), 0
        try:
            while True:
                told = owner.ask("GET", f"/jobs/{job}/results?from={start}&wait_ms={_WAIT_MS}")
                for task in told["results"]:
                    _settle(futures[task["task"]], task)
                start = told["next"]
                if told["is_last"]:
                    break
            _fail(futures, TaskError("lost", "the owner knows nothing of it"))
        except Exception as error:
            _fail(futures, error)
        finally:
            owner.close()
            with self._changed:
                self._open.discard(job)
                self._changed.notify_all()


def _fail(futures, error):
    for future in futures:
        if not future.done():
            future.set_exception(error)


def _settle(future, task):
    output = task.get("output", "")
    raised = task.get("status") == RAISED
    if task["how"] == "cancelled":
        return future.set_exception(concurrent.futures.CancelledError())
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
