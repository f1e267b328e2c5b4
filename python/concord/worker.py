"""A handler of tasks (docs/internals/falcon.md, Handlers): ``python3 -m concord.worker`` calls what it is told, and answers.

Standard output is the answers'. What a called function prints is told with its answer; what its children do goes to the
worker's standard error.
"""

import base64
import io
import json
import os
import pickle
import sys
import traceback

from concord import OUTPUT_BYTES_MAX, RAISED, _pickler

#: The task's job, number and attempt, as a command finds them in its environment.
NAMES = (("CONCORD_JOB", 4), ("CONCORD_TASK", 4), ("CONCORD_ATTEMPT", 2))


#: Longest prints of a call that are told, in characters.
_PRINTS_MAX = 64 << 10
#: What calls print to, the same for all: what holds one for long, as ``logging`` does, prints to the call that runs.
_STREAMS = {"out": io.StringIO(), "err": io.StringIO()}


def _run(parameters):
    """Status and answer of a call; what it printed is a second line of it."""
    for name, stream in _STREAMS.items():
        if stream.closed:
            _STREAMS[name] = io.StringIO()
        else:
            stream.seek(0)
            stream.truncate()
    were = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _STREAMS["out"], _STREAMS["err"]
    try:
        status, answer = _called(parameters)
    finally:
        sys.stdout, sys.stderr = were
    texts = {name: "" if stream.closed else stream.getvalue() for name, stream in _STREAMS.items()}
    printed = {name: text for name, text in texts.items() if text}
    if printed:
        # What is too long is cut in the middle: its end says how it ended.
        half = _PRINTS_MAX // 2
        short = {n: p if len(p) <= 2 * half else p[:half] + "\n[...]\n" + p[-half:] for n, p in printed.items()}
        line = base64.b64encode(json.dumps(short).encode())
        if len(answer) + 1 + len(line) <= OUTPUT_BYTES_MAX:
            answer += b"\n" + line
    return status, answer


def _called(parameters):
    try:
        function, args, kwargs = pickle.loads(base64.b64decode(parameters, validate=True))
        result, status = function(*args, **kwargs), 0
        answer = base64.b64encode(_dumped(result))
        if len(answer) > OUTPUT_BYTES_MAX:
            raise ValueError(f"the result is {len(answer)} bytes long, of at most {OUTPUT_BYTES_MAX}")
    except Exception as error:
        status, answer = RAISED, _raised(error)
    return status, answer


def _dumped(result):
    """As ``_pickler`` has it, and sooner where all of it can be imported."""
    try:
        return pickle.dumps(result)
    except Exception:
        return _pickler.dumps(result)


def _raised(error):
    # In three parts: before Python 3.10 it takes no exception alone.
    parts = traceback.format_exception(type(error), error, error.__traceback__)
    lines = "".join(parts).rstrip()
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
    # Neither is a call's children's: what one of them reads or writes would be a part of a task or an answer.
    hears = os.fdopen(os.dup(0), "rb")
    says = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdin = open(os.devnull)
    while True:
        length = hears.read(4)
        if len(length) < 4:
            return
        task = hears.read(int.from_bytes(length, "big"))
        at = 0
        for name, size in NAMES:
            value = str(int.from_bytes(task[at : at + size], "big"))
            # Looking is cheaper than setting, and few of them change.
            if os.environ.get(name) != value:
                os.environ[name] = value
            at += size
        status, answer = _run(task[at:])
        sys.stdout.flush()
        says.write((len(answer) + 1).to_bytes(4, "big") + bytes([status]) + answer)
        says.flush()


if __name__ == "__main__":
    main()
