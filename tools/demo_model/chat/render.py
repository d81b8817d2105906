"""Renders conversations through the chat template exactly as transformers does."""

import json
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment


def compile_template(path):
    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    template = environment.from_string(Path(path).read_text())

    def render(messages, tools=None, generate=False, **options):
        return template.render(messages=messages, tools=tools, add_generation_prompt=generate, **options)

    return render
