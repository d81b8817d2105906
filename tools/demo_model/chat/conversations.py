"""Whole conversations: messages, tools and whether thinking is on, ready for the chat template."""

import json

from . import talk
from . import words as W
from .invented import Invented
from .tools import HELD_OUT_TOOLS, TRAINING_TOOLS, Renamed

SYSTEM = [
    "You are a helpful assistant.", "You are Lily, a helpful assistant.", "Answer briefly.", "Be kind and short.", "You are a friendly assistant.",
    "You are a polite helper.", "Use simple words.", "Help the user.", "You are a careful assistant. Use tools when they help.",
]  # fmt: skip


def user(text):
    return {"role": "user", "content": text}


def assistant(text, thought=None, calls=()):
    message = {"role": "assistant", "content": text}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [{"type": "function", "function": {"name": n, "arguments": a}} for n, a in calls]
    return message


def maybe_system(s, p=0.2):
    return [{"role": "system", "content": s.any(SYSTEM)}] if s.chance(p) else []


def said(value):
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def call_thought(s, calls):
    """A short thought before one or more calls."""
    names = [n for n, _ in calls]
    arguments = calls[0][1]
    pairs = ", ".join(f"{k} is {said(v)}" for k, v in arguments.items())
    if len(calls) > 1:
        return s.any([f"I need {len(calls)} calls: {W.listing(names)}.", "The user asks for several things. I will call the tools one after the other.", f"This needs {len(calls)} calls."])
    return s.any([f"I can use {names[0]}. The {pairs}.", f"The tool {names[0]} fits. {pairs[0].upper() + pairs[1:]}.", f"I should call {names[0]}.", f"The user wants this done. I will call {names[0]}."])


def make_tool(s, share_invented):
    if s.known_tools:
        return s.any(TRAINING_TOOLS)
    if s.chance(share_invented):
        return Invented(s)
    return s.any(HELD_OUT_TOOLS if s.held else TRAINING_TOOLS)


def make_tools(s, count, share_invented=0.5):
    """Different tools; a test set has some that training never shows."""
    tools, names = [], set()
    while len(tools) < count:
        tool = make_tool(s, share_invented)
        if isinstance(tool, Invented) and s.chance(0.3):
            tool = Invented(s, s.any([t for t in tools if isinstance(t, Invented)] or [None]))
        if s.held and not s.known_tools and not isinstance(tool, Invented) and s.chance(0.5):
            tool = s.any(TRAINING_TOOLS)
        if tool.key not in names:
            names.add(tool.key)
            tools.append(Renamed(tool, s) if not isinstance(tool, Invented) and s.chance(0.4) else tool)
    return tools


def several_of_one(s, tool):
    """Two calls of one tool in one request, such as the weather in two cities."""
    first, a = tool.request(s)
    second, b = tool.request(s)
    lowered = second[0].lower() + second[1:] if not second.startswith("I ") else second
    joined = s.any([f"{first} {second}", f"{first} Then {lowered}", f"{first} And {lowered}", f"{first} Also, {lowered}"])
    return joined, [(tool.name, a), (tool.name, b)], [tool, tool]


def request(s, tools):
    """A request for one call (mostly) or two, with the calls and the tool of each."""
    tool = s.any(tools)
    kind = s.rng.random()
    if kind < 0.76 or (kind >= 0.88 and len(tools) == 1):
        ask, arguments = tool.request(s)
        if s.chance(0.1):
            ask = s.any(["Please help me. ", "Hello! ", "Hi, ", "I have a question. ", "Could you do this for me? "]) + ask
        return ask, [(tool.name, arguments)], [tool]
    if kind < 0.88:
        return several_of_one(s, tool)
    other = s.any([t for t in tools if t is not tool])
    first, a = tool.request(s)
    second, b = other.request(s)
    lowered = second[0].lower() + second[1:] if not second.startswith("I ") else second
    return s.any([f"{first} {second}", f"{first} Also, {lowered}", f"{first} And then {lowered}"]), [(tool.name, a), (other.name, b)], [tool, other]


def responses(s, calls, tools):
    """The tools' responses as messages, and a reply."""
    messages, replies = [], []
    for (_, arguments), tool in zip(calls, tools):
        result, reply = tool.outcome(s, arguments)
        messages.append({"role": "tool", "content": json.dumps(result, ensure_ascii=False)})
        replies.append(reply)
    return messages, " ".join(replies)


NO_TOOL = ["No tool is needed here.", "This is a question that I can answer myself.", "The tools do not help here."]
CANNOT = [
    "I am sorry, I cannot do that.", "I am sorry, I have no way to do that.", "Sorry, that is not something I can do.",
    "I am afraid I cannot help with that.",
]  # fmt: skip


def no_call(s, tools, absent=None):
    """A question that none of the tools serves: small talk, or (`absent`) a request for a tool that is not there."""
    names = {t.key for t in tools}
    if s.chance(0.35) if absent is None else absent:
        other = Invented(s)  # always absent; taken where no known tool clearly is
        for _ in range(20):
            known = make_tool(s, 0.4)
            if known.key not in names and (isinstance(known, Invented) or clearly_absent(known.key, names)):
                other = known
                break
        ask, _ = other.request(s)
        return ask, s.any(["None of the tools can do this.", "There is no tool for this.", "No tool fits this request."]), s.any(CANNOT)
    while True:
        question, thought, answer = talk.turn(s)
        if not clashes(question, names):
            return question, s.any(NO_TOOL) + " " + thought, answer


# Questions that look alike but have different tools: with one absent, the other might serve.
ALIKE = [
    {"get_weather", "get_forecast"}, {"calculate", "add_numbers"}, {"turn_on_light", "turn_off_light", "set_light"}, {"send_message", "send_email", "call_contact"},
    {"search_web", "get_news", "define_word", "open_url", "find_recipe"}, {"create_reminder", "add_task", "create_note", "create_event", "set_alarm", "set_timer"},
    {"read_file", "write_file", "delete_file"}, {"book_hotel", "book_table", "book_flight", "rent_car"}, {"get_distance", "get_directions", "search_web", "get_population"}, {"track_package", "flight_status", "cancel_order"}, {"set_light", "set_temperature", "start_vacuum"}, {"add_to_cart", "order_food"}, {"book_flight", "get_directions"}, {"convert_unit", "convert_currency"}, {"play_music", "create_playlist"},
]  # fmt: skip


def clearly_absent(name, names):
    return not any(name in group and group & names for group in ALIKE) and "search_web" not in names


def clashes(question, names):
    """Whether a question of the small talk could be served by one of the tools."""
    q = question.lower()
    served = {
        "weather": {"get_weather", "get_forecast", "search_web"}, "time is it": {"get_time"}, "how much": {"calculate", "add_numbers", "get_stock_price"}, "what is": {"calculate", "search_web", "define_word", "translate", "get_stock_price"},
        "calculate": {"calculate"}, "plus": {"calculate", "add_numbers"}, "= ?": {"calculate"}, "+": {"calculate", "add_numbers"}, "which number": {"calculate"}, "who ": {"search_web", "get_news"}, "tell me": {"search_web", "send_message", "get_news"},
        "where": {"search_web", "get_directions", "track_package", "get_distance"}, "many people": {"get_population"}, "why": {"search_web"}, "i am": {"log_workout"}, "i did": {"log_workout"}, "recommend": {"search_web", "find_recipe"}, "should i": {"search_web", "find_recipe", "choose_random"}, "or ": {"choose_random"}, "day is it": {"list_events"}, "send a letter": {"send_email", "send_message"}, "please": {"send_message", "create_reminder", "add_task"}, "can you": {"search_web", "create_reminder"},
        "say ": {"send_message", "translate"}, "write": {"create_note", "write_file"}, "price": {"get_stock_price", "search_web"}, "phone": {"call_contact", "add_contact", "search_web"}, "how many people": {"search_web"}, "how can": {"search_web", "find_recipe"}, "how do": {"search_web", "find_recipe", "get_directions"},
        "explain": {"search_web", "define_word"}, "mean": {"define_word", "translate"}, "spell": {"define_word"}, "capital": {"search_web"}, "name": {"search_web"},
    }  # fmt: skip
    return any(key in q and tools & names for key, tools in served.items())


def schema(s, tool):
    """The tool's schema with the small differences that clients have."""
    made = tool.schema()
    parameters = made["function"]["parameters"]
    if s.chance(0.08):
        parameters["additionalProperties"] = False
    if s.chance(0.05):
        made["function"]["strict"] = True
    if s.chance(0.1):
        parameters.pop("required")
    for p in parameters["properties"].values():
        if not p["description"] or s.chance(0.05):
            p.pop("description")
    if s.chance(0.15):
        made["function"]["parameters"] = {k: parameters[k] for k in sorted(parameters)}
    return made


def tool_count(s):
    return s.any([1, 1, 2, 2, 2, 3, 3, 4, 5])


def tool_chat(s):
    """A conversation with tools that ends with an assistant turn; thinking is on or off throughout."""
    thinking = s.chance(0.6)
    tools = make_tools(s, tool_count(s))
    think = (lambda t: t) if thinking else (lambda t: None)
    messages = maybe_system(s)
    if s.chance(0.12):
        question, thought, answer = no_call(s, tools)
        messages += [user(question), assistant(answer, think(thought))]
    for _ in range(s.any([1, 1, 1, 2])):
        if s.chance(0.32):
            question, thought, answer = no_call(s, tools)
            messages += [user(question), assistant(answer, think(thought))]
            continue
        ask, calls, used = request(s, tools)
        before = s.any(["I will do that.", "Let me look.", "One moment.", "Sure."]) if s.chance(0.08) else ""
        messages += [user(ask), assistant(before, think(call_thought(s, calls)), calls)]
        if s.chance(0.55):
            results, reply = responses(s, calls, used)
            thought = s.any(["I have the result.", "The tool answered. I will tell the user.", "Now I can answer."])
            messages += results + [assistant(reply, think(thought))]
        else:
            break  # a call without a response ends the conversation
    return messages, [schema(s, t) for t in tools], thinking


def plain_chat(s):
    """One to three exchanges of small talk without tools."""
    thinking = s.chance(0.6)
    turns = talk.remember(s) if s.chance(0.12) else [talk.turn(s) for _ in range(s.any([1, 1, 2, 3]))]
    if len(turns) > 1 and s.chance(0.2):
        turns = [talk.greeting(s)] + turns
    messages = maybe_system(s)
    for question, thought, answer in turns:
        messages += [user(question), assistant(answer, thought if thinking else None)]
    return messages, None, thinking
