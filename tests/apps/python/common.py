"""What every application here needs: where the server is, workers, and waiting with an end."""

import contextlib
import os
import subprocess
import sys
import time

HOST, PORT = os.environ["REDIS_HOST"], int(os.environ["REDIS_PORT"])
URL = f"redis://{HOST}:{PORT}/0"


def until(condition, seconds=20):
    """Waits until the condition holds, and returns what it returned."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"did not come true in {seconds} s")
        time.sleep(0.05)
    return value


@contextlib.contextmanager
def worker(*args):
    """A process of this interpreter (`python -m ...`), ended with the block."""
    process = subprocess.Popen([sys.executable, "-m", *args], cwd=os.path.dirname(os.path.abspath(__file__)))
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
