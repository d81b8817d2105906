"""Starts `lily serve` for the tests and stops it after them."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEY = "test-key"
# Another model than the demo model: a directory or a repository.
MODEL = os.environ.get("LILY_TEST_MODEL", "demo")
PROGRAM = os.environ.get("LILY_TEST_PROGRAM", ROOT / "target/release/lily")


class Server:
    """A running server: its address and its process."""

    def __init__(self, url, process):
        self.url = url
        self.process = process


def start(*arguments, key=KEY):
    """Starts a server on a free port; the line that it prints tells which."""
    environment = {**os.environ, "LILY_API_KEY": key}
    command = [PROGRAM, "serve", "--model", MODEL, "--port", "0", *arguments]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert " at http://" in line, f"the server did not start: {line!r}"
    return Server(line.split(" at ")[1].split()[0], process)


def stop(server):
    """Asks the server to stop and checks that it does so in order."""
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=30) == 0


@pytest.fixture(scope="session")
def server():
    running = start()
    yield running
    stop(running)
