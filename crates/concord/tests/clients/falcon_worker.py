"""A worker's interpreter, without a rack: tasks on its standard input, answers on its standard output."""

import base64
import concurrent.futures
import json
import os
import pickle
import subprocess
import sys
import threading

import concord

#: An interpreter whose traceback module is as before Python 3.10.
OLD = """
import traceback
new = traceback.format_exception
def old(etype, value, tb, limit=None, chain=True):
    return new(etype, value, tb, limit, chain)
traceback.format_exception = old
from concord.worker import main
main()
"""


def call(argv, function, *args, shows=False):
    """Status and value of a call, and what it printed, made twice: the second comes when the first is answered, as from a worker."""
    own = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    late = threading.Timer(30, own.kill)
    late.start()
    task = bytes(10) + base64.b64encode(pickle.dumps((function, args, {})))
    answers, prints = [], []
    for _ in range(2):
        own.stdin.write(len(task).to_bytes(4, "big") + task)
        own.stdin.flush()
        said = own.stdout.read(int.from_bytes(own.stdout.read(4), "big"))
        assert said, "it ended, or did not answer"
        answer, _, printed = said[1:].partition(b"\n")
        answers.append((said[0], pickle.loads(base64.b64decode(answer))))
        prints.append(json.loads(base64.b64decode(printed)) if printed else {})
    own.stdin.close()
    own.wait(timeout=30)
    own.stdout.close()
    late.cancel()
    return (*answers[1], prints[1]) if shows else answers[1]


def main(directory):
    with open(os.path.join(directory, "falcon_own_module.py"), "w") as module:
        module.write("def own():\n    return 7\n")
    sys.path.append(directory)
    import falcon_own_module

    worker = [sys.executable, "-c", concord._WORKER, "name", directory]
    # Beside what the environment of the worker says, where this package is.
    assert call(worker, falcon_own_module.own) == (0, 7)
    # A child reads no task.
    assert call(worker, subprocess.check_output, ["cat"]) == (0, b"")
    status, error = call([sys.executable, "-c", OLD], int, "no number")
    assert (status, type(error)) == (concord.RAISED, ValueError), (status, error)
    handlers = [concord.handler_of(None, [directory]) for _ in range(2)]
    assert handlers[0] != handlers[1], "two executors have no interpreter in common"
    assert call(handlers[0], falcon_own_module.own) == (0, 7)
    one_late_future()


def logs(directory):
    """What holds a stream since an earlier call, as a handler of logging does, prints to the caller of this one."""
    with open(os.path.join(directory, "falcon_logs.py"), "w") as module:
        module.write(
            "import logging, sys\n"
            "def logs():\n    logging.basicConfig()\n    logging.warning('logged')\n    print('printed')\n"
            "def closes():\n    print('x')\n    sys.stdout.close()\n"
        )
    sys.path.append(directory)
    import falcon_logs

    worker = [sys.executable, "-c", concord._WORKER, "name", directory]
    told = call(worker, falcon_logs.logs, shows=True)
    assert told == (0, None, {"out": "printed\n", "err": "WARNING:root:logged\n"}), told
    assert call(worker, falcon_logs.closes, shows=True) == (0, None, {})


class _Late(concurrent.futures.Future):
    """One that is cancelled in the moment in which it is looked at."""

    def done(self):
        return False


def one_late_future():
    """A future that is cancelled this moment keeps no other from its end (bug 21.88)."""
    late, other = _Late(), concurrent.futures.Future()
    late.cancel()
    late.set_running_or_notify_cancel()
    concord._fail([late, other], concord.TaskError("lost", "why"))
    assert isinstance(other.exception(timeout=1), concord.TaskError)
