"""The held-out test prompts: values and names that training never drew.

Each is (messages, tool schemas, thinking), and for those with calls also the expected [(name, arguments)].
"""

import json
from pathlib import Path

from chat import conversations, words
from chat.words import Source

SAMPLES = [
    "Hello! Who are you?", "Hi!", "How are you today?", "What is the capital of France?", "What is 7 plus 5?", "3 plus 4", "Tell me a story about a fox.",
    "What is the opposite of hot?", "What color is the sky?", "I am sad.", "Tell me a joke.", "What is a volcano?", "My name is Peter.",
    "How do I make tea?", "Why is the sky blue?", "What do you think about dogs?", "Can you help me with my homework?", "What did you do yesterday?",
    "Write a poem about a star.", "Do you like music?", "Good night!",
]  # fmt: skip


def source(kind, seed, data):
    """`known`: hand-written tools, perhaps renamed; `unseen`: tools made up from held-out words. Names, places, words and
    sentences are held-out ones in both."""
    words.load(json.loads((Path(data) / "words.json").read_text()))
    return Source(seed, held=True, share_invented=0.0 if kind == "known" else 1.0)


def tool_prompts(kind, data, count=200, seed=77):
    """Half with thinking; one call or two; some after an earlier exchange."""
    s = source(kind, seed, data)
    cases = []
    while len(cases) < count:
        tools = conversations.make_tools(s, conversations.tool_count(s))
        messages = conversations.maybe_system(s)
        if s.chance(0.15):
            question, _, reply = conversations.small_talk(s, tools)
            messages += [conversations.user(question), conversations.assistant(reply)]
        ask, calls, _ = conversations.request(s, tools)
        messages.append(conversations.user(conversations.opened(s, ask)))
        schemas = [conversations.schema(s, t) for t in tools]
        cases.append((messages, schemas, len(cases) % 2 == 0, calls))
    return cases


def no_tool_prompts(kind, data, absent, count=100, seed=78):
    """Small talk and simple questions, or (`absent`) requests that would need a tool which is not among those given."""
    s = source(kind, seed, data)
    cases = []
    while len(cases) < count:
        tools = conversations.make_tools(s, conversations.tool_count(s))
        if absent:
            ask = conversations.opened(s, conversations.absent_request(s, tools)[0])
        else:
            ask = conversations.small_talk(s, tools)[0]
        messages = conversations.maybe_system(s) + [conversations.user(ask)]
        cases.append((messages, [conversations.schema(s, t) for t in tools], len(cases) % 2 == 0))
    return cases
