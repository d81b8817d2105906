"""Schemathesis against every route: requests that fit the description and requests that do not, none of which may be answered with a 5xx or in
another form than described.

With LILY_OPENAI_SPEC=FILE (OpenAI's own description, YAML or JSON) its requests are sent to the routes that it shares with the server, too; only
that no answer is a 5xx is checked then, since this server refuses some of what OpenAI's has.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import KEY, start, stop

OPENAI = os.environ.get("LILY_OPENAI_SPEC")
SHARED = "^/(chat/completions|completions|responses|models)$"


@pytest.fixture(scope="module")
def small():
    # A short context, so that replies without a limit end soon.
    running = start("--context", "128", "--parallel", "4")
    yield running
    stop(running)


def schemathesis(*arguments):
    program = Path(sys.executable).with_name("schemathesis")
    options = ["--seed", "1", "--max-examples", os.environ.get("LILY_SCHEMA_EXAMPLES", "25"), "--generation-deterministic", "--no-color"]
    options += ["--header", f"Authorization: Bearer {KEY}", "--suppress-health-check", "all", "--request-timeout", "60", "--warnings", "off"]
    done = subprocess.run([program, "run", *arguments, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_the_servers_own_description(small):
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    schemathesis(f"{small.url}/openapi.json", "--checks", checks, "--phases", "examples,coverage,fuzzing")


@pytest.mark.skipif(not OPENAI, reason="LILY_OPENAI_SPEC is not set")
def test_openais_description(small):
    arguments = ["--url", f"{small.url}/v1", "--include-path-regex", SHARED, "--include-method", "POST", "--include-method", "GET"]
    schemathesis(OPENAI, *arguments, "--checks", "not_a_server_error", "--phases", "examples,fuzzing")
