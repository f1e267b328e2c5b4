"""A handler of tasks (docs/internals/falcon.md, Handlers): ``python3 -m concord.worker`` calls what it is told, and answers.

What the called functions print goes to standard error: standard output is the answers'.
"""

import base64
import os
import pickle
import sys
import traceback

from concord import OUTPUT_BYTES_MAX, RAISED, _pickler

#: The task's job, number and attempt, as a command finds them in its environment.
NAMES = (("CONCORD_JOB", 4), ("CONCORD_TASK", 4), ("CONCORD_ATTEMPT", 2))


def _run(parameters):
    """Status and answer of a call."""
    try:
        function, args, kwargs = pickle.loads(base64.b64decode(parameters, validate=True))
        result, status = function(*args, **kwargs), 0
        answer = base64.b64encode(_pickler.dumps(result))
        if len(answer) > OUTPUT_BYTES_MAX:
            raise ValueError(f"the result is {len(answer)} bytes long, of at most {OUTPUT_BYTES_MAX}")
    except Exception as error:
        status, answer = RAISED, _raised(error)
    return status, answer


def _raised(error):
    lines = "".join(traceback.format_exception(error)).rstrip()
    if hasattr(error, "add_note"):
        error.add_note(f"at the worker:\n{lines}")
    try:
        answer = base64.b64encode(_pickler.dumps(error))
        pickle.loads(base64.b64decode(answer))
        if len(answer) <= OUTPUT_BYTES_MAX:
            return answer
    except Exception:
        pass
    # What cannot be pickled is told in words.
    return base64.b64encode(pickle.dumps(RuntimeError(lines[:100_000])))


def main():
    hears = sys.stdin.buffer
    says = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdin = open(os.devnull)
    while True:
        length = hears.read(4)
        if len(length) < 4:
            return
        task = hears.read(int.from_bytes(length, "big"))
        at = 0
        for name, size in NAMES:
            os.environ[name] = str(int.from_bytes(task[at : at + size], "big"))
            at += size
        status, answer = _run(task[at:])
        sys.stdout.flush()
        says.write((len(answer) + 1).to_bytes(4, "big") + bytes([status]) + answer)
        says.flush()


if __name__ == "__main__":
    main()
