"""Runs the tests that are written in JavaScript: the `openai` package, and the page in a browser."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import KEY, ROOT

PLACE = ROOT / "target/clients/js"
SOURCE = Path(__file__).parent / "js"


@pytest.fixture(scope="module")
def installed():
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    PLACE.mkdir(parents=True, exist_ok=True)
    manifest = (SOURCE / "package.json").read_bytes()
    done = PLACE / "package.json"
    if not (done.exists() and done.read_bytes() == manifest and (PLACE / "node_modules").exists()):
        done.write_bytes(manifest)
        command = ["npm", "install", "--silent", "--no-fund", "--no-audit", "--no-package-lock"]
        subprocess.run(command, cwd=PLACE, check=True)
    for script in SOURCE.glob("*.js"):
        shutil.copy(script, PLACE)


def run(script, server, **more):
    environment = {**os.environ, "LILY_URL": server.url, "LILY_KEY": KEY, **more}
    command = ["node", "--test", script]
    result = subprocess.run(command, cwd=PLACE, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr


def test_openai_for_javascript(server, installed):
    run("openai.test.js", server)


def test_the_page_in_a_browser(server, installed):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("there is no Chromium")
    run("page.test.js", server, LILY_BROWSER=browser)
