"""Calls of Python functions: python3 -c ... SYSTEM SINGLES CALLS EXECUTORS, with SYSTEM concord, dask or ray.

A call gives the clock of its process (CLOCK_BOOTTIME, which all processes of a host share): from it comes when it
started. One line of JSON says what was measured, or why nothing was.
"""

import json
import os
import sys
import time

CALL = "__import__('time').clock_gettime_ns(7)"


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def singles(count, call):
    starts, results = [], []
    for _ in range(count):
        began = now()
        started = call()
        results.append((now() - began) / 1e3)
        starts.append((started - began) / 1e3)
    return starts, results


def measure(count, calls, call, call_all):
    for _ in range(20):
        call()
    starts, results = singles(count, call)
    call_all(min(calls, 500))
    began = now()
    call_all(calls)
    rate = calls / ((now() - began) / 1e9)
    return {"start_us": starts, "result_us": results, "calls_per_second": rate}


def concord(count, calls, executors):
    import concord

    # Workers import the package from where this process has it.
    package = os.path.dirname(os.path.dirname(os.path.abspath(concord.__file__)))
    with concord.Executor(path=[package]) as pool:
        return measure(
            count,
            calls,
            lambda: pool.submit(eval, CALL).result(),
            lambda n: list(pool.map(eval, [CALL] * n)),
        )


def dask(count, calls, executors):
    from distributed import Client, LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=max(1, executors // 2), dashboard_address=None
    ) as cluster, Client(cluster) as client:
        return measure(
            count,
            calls,
            lambda: client.submit(eval, CALL, pure=False).result(),
            lambda n: client.gather(client.map(lambda _: time.clock_gettime_ns(7), range(n), pure=False)),
        )


def ray(count, calls, executors):
    import ray

    ray.init(num_cpus=executors, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    clock = ray.remote(lambda: time.clock_gettime_ns(7))
    try:
        return measure(
            count,
            calls,
            lambda: ray.get(clock.remote()),
            lambda n: ray.get([clock.remote() for _ in range(n)]),
        )
    finally:
        ray.shutdown()


if __name__ == "__main__":
    system, numbers = sys.argv[1], [int(word) for word in sys.argv[2:5]]
    try:
        told = {"concord": concord, "dask": dask, "ray": ray}[system](*numbers)
    except ImportError as error:
        told = {"missing": f"{error}; pip install it, and name the interpreter with --python"}
    print(json.dumps(told), flush=True)
