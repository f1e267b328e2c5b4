"""Runs each application against a redis-server and against a rack with each engine; see scripts/apps.

The applications are python/app_*.py, node/app_*.js, go/app_*/, java/app_*.java and ruby/app_*.rb: each a short workload that ends with 0 if everything
came out right. ENGINES and APPS (words) say which are run, CONCORD which binary, RESULTS where the table goes.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
WORK = ROOT / "target/apps"
OUT = pathlib.Path(os.environ.get("RESULTS", ROOT / "results/apps"))
CONCORD = pathlib.Path(os.environ.get("CONCORD", ROOT / "target/release/concord")).resolve()
SERVERS = os.environ.get("ENGINES", "redis-server memory redis").split()
# The applications among what is installed from PyPI; the rest is what they need.
SHOWN = """aiocache apscheduler arq celery django django-redis dramatiq flask-caching flask-limiter flask-session huey
    kombu limits python-redis-lock redis redis-om redlock-py rq taskiq taskiq-redis walrus""".split()
SECONDS = int(os.environ.get("SECONDS_AN_APP", "90"))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(server, port):
    """The process of a redis-server or a rack, once it answers."""
    run = WORK / f"run-{server}"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True)
    if server == "redis-server":
        command = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(run)]
    else:
        command = [str(CONCORD), "up", "--listen", f"127.0.0.1:{port}", "--run-dir", str(run), "--engine", server]
        command += ["--durability", "none"]
    log = open(WORK / f"{server}.log", "wb")
    process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    for _ in range(120):
        if b"PONG" in redis_cli(port, "PING"):
            return process
        time.sleep(0.5)
    process.terminate()
    sys.exit(f"{server} does not answer; see {log.name}")


def redis_cli(port, *args):
    return subprocess.run(["redis-cli", "-p", str(port), *args], capture_output=True).stdout


def apps():
    found = sorted(HERE.glob("python/app_*.py"))
    if (WORK / "node/node_modules").exists():
        found += sorted(HERE.glob("node/app_*.js"))
    found += [path for path in sorted(HERE.glob("go/app_*")) if (WORK / "go" / path.name).exists()]
    if (WORK / "java/lib").exists():
        found += sorted(HERE.glob("java/app_*.java"))
    if shutil.which("sidekiq"):
        found += sorted(HERE.glob("ruby/app_*.rb"))
    wanted = os.environ.get("APPS", "").split()
    return [path for path in found if not wanted or name_of(path) in wanted]


def name_of(path):
    return path.stem.removeprefix("app_")


def run(path, server, port):
    """How an application ended: '' if well, else the last line that it said, or that it took too long."""
    environment = dict(os.environ, REDIS_HOST="127.0.0.1", REDIS_PORT=str(port), PYTHONDONTWRITEBYTECODE="1")
    environment["NODE_PATH"] = str(WORK / "node/node_modules")
    command = {
        ".py": [str(WORK / "venv/bin/python"), path.name],
        ".js": ["node", path.name],
        ".java": ["java", "-cp", str(WORK / "java/lib/*"), path.name],
        ".rb": ["ruby", path.name],
        "": [str(WORK / "go" / path.name)],
    }[path.suffix]
    redis_cli(port, "FLUSHALL")
    log = WORK / f"{name_of(path)}-{server}.log"
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command, cwd=path.parent, env=environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        try:
            # The workers that it started, if it could not end them.
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    if code == 0:
        return ""
    said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    # What the server refused says more than what came of it in the application.
    refused = r"ResponseError|ReplyError|CROSSKEY|does not support|is not supported"
    errors = [line for line in said if re.search(refused, line)]
    errors = errors or [line for line in said if re.search(r"Error\b|Exception\b", line)]
    last = (errors or said or ["(nothing)"])[-1].lstrip("| ")[:160]
    return f"after {SECONDS} s: {last}" if code is None else last


def run_all(server):
    port = free_port()
    process = start(server, port)
    ended = {}
    try:
        for path in apps():
            ended[path] = run(path, server, port)
            print(f"{server:13} {name_of(path):20} {ended[path] or 'ok'}", flush=True)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
    return ended


def versions():
    """What is run, by requirements.txt and package.json."""
    pinned = re.findall(r"^([^#=]+)==(.+)$", (HERE / "requirements.txt").read_text(), re.M)
    node = json.loads((HERE / "node/package.json").read_text())["dependencies"]
    shown = [f"{name} {version}" for name, version in pinned if name.lower() in SHOWN]
    shown += [f"{name} {version}" for name, version in sorted(node.items())]
    go = re.findall(r"^\s+(\S+) v(\S+)$", (HERE / "go/go.mod").read_text(), re.M)
    shown += [f"{name} {version}" for name, version in go]
    java = r"<artifactId>(\S+)</artifactId><version>(\S+)</version>"
    shown += [f"{name} {version}" for name, version in re.findall(java, (HERE / "java/pom.xml").read_text())]
    return ", ".join(shown + ["Sidekiq as Debian has it"])


def table(ended):
    commit = os.environ.get("COMMIT") or subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT
    ).stdout.strip()
    lines = ["# Applications", "", "Written by `make apps`: applications from their registries, each with a short real"]
    lines += ["workload (`tests/apps/`), against a redis-server and against a rack with each engine; what runs and"]
    lines += ["what does not is explained in docs/guides/applications.md.", "", f"Concord at {commit}. {versions()}.", ""]
    lines += ["| application | " + " | ".join(SERVERS) + " |", "|---" * (1 + len(SERVERS)) + "|"]
    for path in apps():
        cells = ["ok" if not ended[s][path] else f"`{ended[s][path].replace('|', '/')}`" for s in SERVERS]
        registry = {".py": "", ".js": " (npm)", ".java": " (Maven)", ".rb": " (Debian)", "": " (Go)"}[path.suffix]
        lines.append(f"| {name_of(path)}{registry} | " + " | ".join(cells) + " |")
    passed = [str(sum(not said for said in ended[s].values())) for s in SERVERS]
    return "\n".join([*lines, f"| of {len(apps())} | " + " | ".join(passed) + " |", ""])


def main():
    with concurrent.futures.ThreadPoolExecutor() as pool:
        ended = dict(zip(SERVERS, pool.map(run_all, SERVERS)))
    if "APPS" in os.environ:
        return
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "README.md").write_text(table(ended))


if __name__ == "__main__":
    main()
