# What every driver begins with. A driver defines `answer(request)` and ends with `run(answer)`: each line of the standard input is a
# request in JSON, each line of the standard output {"result": ..} or {"error": ".."}. What libraries print goes to the error output.
import json
import os
import sys

_replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)


def run(answer):
    for line in sys.stdin:
        try:
            reply = {"result": answer(json.loads(line))}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        _replies.write(json.dumps(reply) + "\n")
        _replies.flush()
