"""How many jobs one process of the API takes, and how long an answer takes.

    .venv/bin/python bench/api.py [seconds]

Starts a Redis server and `callboard api` of its own on free ports. The greatest rate is that of `wrk` (Debian: apt install
wrk) with 32 connections; the latency that of requests which come at even times whatever becomes of those before.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

ROOT = Path(__file__).parent.parent
SECONDS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
MAIL = {
    "type": "email.send",
    "payload": {
        "to": "ada@example.org",
        "subject": "Welcome",
        "template_id": "welcome",
        "context": {"name": "Ada"},
    },
}
HEAD = "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def request(path, document):
    body = json.dumps(document).encode()
    return HEAD.format(path=path, length=len(body)).encode() + body


async def exchange(reader, writer, data):
    writer.write(data)
    status = await reader.readline()
    length = 0
    while (line := await reader.readline()) != b"\r\n":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    await reader.readexactly(length)
    return int(status.split()[1])


async def paced(port, rate, seconds):
    """Requests at even times on 64 connections: the time from when each should have been sent to its answer."""
    free = asyncio.Queue()
    for _ in range(64):
        free.put_nowait(await asyncio.open_connection("127.0.0.1", port))
    data, took, bad = request("/jobs", MAIL), [], []

    async def one(due):
        connection = await free.get()
        status = await exchange(*connection, data)
        took.append(time.perf_counter() - due)
        if status != 202:
            bad.append(status)
        free.put_nowait(connection)

    start = time.perf_counter() + 0.1
    tasks = []
    for number in range(rate * seconds):
        due = start + number / rate
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(due)))
    await asyncio.gather(*tasks)
    took.sort()
    share = lambda part: took[int(len(took) * part)] * 1000
    print(
        f"{rate}/s: p50 {share(0.5):.1f} ms, p99 {share(0.99):.1f} ms, max {took[-1] * 1000:.1f} ms, {len(bad)} refused"
    )


async def batches(port, jobs, count):
    connection = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    data = request("/jobs/batch", {"jobs": [jobs] * 10_000})
    started = time.perf_counter()
    for _ in range(count):
        assert await exchange(*connection, data) == 202
    print(f"batches of 10,000 {jobs['type']}: {count * 10_000 / (time.perf_counter() - started):,.0f} jobs a second")


def main():
    redis_port, port = free_port(), free_port()
    environment = {
        **os.environ,
        "REDIS_URL": f"redis://127.0.0.1:{redis_port}/0",
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        "CALLBOARD_API_HOST": "127.0.0.1",
        "CALLBOARD_API_PORT": str(port),
        "CALLBOARD_LOG_LEVEL": "WARNING",
        "CALLBOARD_ACTORS": "actors,bench_actor",
        "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}",
    }
    with tempfile.TemporaryDirectory() as folder:
        server = shutil.which("redis-server") or shutil.which("valkey-server")
        command = [server, "--port", str(redis_port), "--save", "", "--appendonly", "yes", "--dir", folder]
        running = [
            subprocess.Popen(command, stdout=subprocess.DEVNULL),
            subprocess.Popen([sys.executable, "-m", "service.cli", "api"], env=environment, cwd=ROOT),
        ]
        try:
            for _ in range(100):
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    time.sleep(0.1)
            if wrk := shutil.which("wrk"):
                script = Path(folder) / "post.lua"
                body = json.dumps(MAIL)
                script.write_text(
                    f'wrk.method="POST"\nwrk.headers["Content-Type"]="application/json"\nwrk.body=[[{body}]]\n'
                )
                for connections in (1, 32):
                    options = ["-t1", f"-c{connections}", f"-d{SECONDS}s", "-s", str(script)]
                    print(f"{connections} connections:", end=" ", flush=True)
                    found = subprocess.run(
                        [wrk, *options, f"http://127.0.0.1:{port}/jobs"], capture_output=True, text=True, check=True
                    ).stdout
                    print(*[line.strip() for line in found.splitlines() if "Requests/sec" in line or "Non-2xx" in line])
            uvloop.run(paced(port, 500, SECONDS))
            uvloop.run(paced(port, 1000, SECONDS))
            uvloop.run(batches(port, MAIL, 3))
            uvloop.run(batches(port, {"type": "bench.plain", "payload": {"key": "x" * 60, "number": 17}}, 5))
        finally:
            for process in running:
                process.terminate()
                process.wait()


main()
