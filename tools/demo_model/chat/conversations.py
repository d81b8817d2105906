"""Whole conversations: messages, tools and whether thinking is on, ready for the chat template."""

import json

from . import absent, talk
from . import words as W
from .invented import Invented
from .tools import TOOLS, Renamed

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


def call_thought(s, calls, tools):
    """A short thought before one or more calls. It names the tools, so that the choice is made where it is easiest."""
    names = [n for n, _ in calls]
    if len(calls) > 1:
        wishes = f"{tools[0].what} twice" if tools[0] is tools[1] else f"{tools[0].what} and to {tools[1].what}"
        return s.any([f"The user wants to {wishes}. I will call {W.listing(names)}.", f"I need {len(calls)} calls: {W.listing(names)}."])
    if s.chance(0.15):
        pairs = ", ".join(f"{k} is {said(v)}" for k, v in calls[0][1].items())
        return f"I can use {names[0]}. The {pairs}."
    return s.any([f"The user wants to {tools[0].what}. The tool {names[0]} does this."] * 2 + [f"I should call {names[0]}."])


def make_tools(s, count):
    """Different tools, some of them renamed."""
    tools, names = [], set()
    while len(tools) < count:
        if s.chance(s.share_invented):
            near = [t for t in tools if isinstance(t, Invented)]
            tool = Invented(s, s.any(near) if near and s.chance(0.4) else None)
        else:
            tool = s.any(TOOLS)
            tool = Renamed(tool, s) if s.chance(s.share_renamed) else tool
        same_requests = {"get_weather", "get_current_weather"}
        if tool.key not in names and tool.name not in names and not (tool.key in same_requests and names & same_requests):
            names |= {tool.key, tool.name}
            tools.append(tool)
    return tools


def sentence(ask):
    """A request as a sentence that another one can follow."""
    return ask if ask[-1] in ".?!" else ask + "."


def join(s, first, second):
    lowered = second[0].lower() + second[1:] if not second.startswith("I ") else second
    return sentence(first) + " " + s.any([second, f"Then {lowered}", f"And {lowered}", f"Also, {lowered}"])


def several_of_one(s, tool):
    """Two calls of one tool in one request, such as the weather in two cities."""
    first, a = tool.request(s)
    second, b = tool.request(s)
    return join(s, first, second), [(tool.name, a), (tool.name, b)], [tool, tool]


def request(s, tools):
    """A request for one call (mostly) or two, with the calls and the tool of each."""
    tool = s.any(tools)
    kind = s.rng.random()
    different = 1 - s.share_two
    if kind < different - 0.12 or (kind >= different and len(tools) == 1):
        ask, arguments = tool.request(s)
        return ask, [(tool.name, arguments)], [tool]
    if kind < different:
        return several_of_one(s, tool)
    other = s.any([t for t in tools if t is not tool])
    first, a = tool.request(s)
    second, b = other.request(s)
    return join(s, first, second), [(tool.name, a), (other.name, b)], [tool, other]


def responses(s, calls, tools):
    """The tools' responses as messages, and a reply."""
    messages, replies = [], []
    for (_, arguments), tool in zip(calls, tools):
        result, reply = tool.outcome(s, arguments)
        messages.append({"role": "tool", "content": json.dumps(result, ensure_ascii=False)})
        replies.append(reply)
    return messages, " ".join(replies)


NO_TOOL = ["No tool is needed here.", "This is a question that I can answer myself.", "The tools do not help here."]


def cannot(s, what):
    """A thought and a reply to a request that no tool serves."""
    thought = s.any([f"The user wants to {what}. None of the tools does this."] * 2 + ["There is no tool for this.", f"No tool here can {what}."])
    reply = s.any([f"I am sorry, I have no tool to {what}."] * 3 + ["I am sorry, I have no tool for that.", f"Sorry, I cannot {what}. None of my tools does that.", f"I am afraid I cannot do that: I have no tool to {what}."])
    return thought, reply


def absent_request(s, tools):
    """A request for what none of the tools does, and what that is: one of this generator's tools that is not given, a
    made-up one, perhaps much like one that is, or something that no tool does."""
    names = {t.key for t in tools}
    r = s.rng.random()
    if r < 0.25:
        return absent.request(s, names)
    if r < 0.25 + 0.5 * s.share_invented:
        near = [t for t in tools if isinstance(t, Invented)]
        other = Invented(s, s.any(near) if near and s.chance(0.6) else None)
        if not any(isinstance(t, Invented) and (t.action, t.words) == (other.action, other.words) for t in tools):
            return other.request(s)[0], other.what
    while True:
        other = s.any(TOOLS)
        if other.key not in names and clearly_absent(other.key, names):
            return other.request(s)[0], other.what


def small_talk(s, tools):
    """A question that needs no tool: (question, thought, answer)."""
    names = {t.key for t in tools}
    while True:
        question, thought, answer = talk.turn(s)
        if not clashes(question, names):
            return question, s.any(NO_TOOL) + " " + thought, answer


# Tools of which one might serve a request that was meant for another.
ALIKE = [
    {"get_weather", "get_current_weather", "get_forecast"}, {"calculate", "add_numbers"}, {"turn_on_light", "turn_off_light", "set_light"}, {"send_message", "send_email"}, {"send_message", "call_contact"},
    {"get_news", "open_url"}, {"create_reminder", "add_task", "create_note", "create_event"}, {"create_reminder", "set_alarm", "set_timer"},
    {"create_note", "write_file"}, {"get_distance", "get_directions"}, {"add_to_cart", "order_food"}, {"book_flight", "get_directions"}, {"random_number", "roll_dice", "choose_random"}, {"translate", "define_word"},
]  # fmt: skip
# Tools for what a search of the web could find as well.
ASKABLE = """get_weather get_current_weather get_forecast get_time calculate add_numbers translate convert_currency convert_unit open_url get_news
define_word find_recipe get_directions get_stock_price get_distance flight_status get_population shop_hours track_package""".split()


def clearly_absent(name, names):
    """Whether none of the tools of these names can do what the tool `name` does."""
    return not any(name in group and group & names for group in ALIKE) and not ("search_web" in names and name in ASKABLE) and not (name == "search_web" and names & {"get_news", "define_word", "open_url", "find_recipe"})


def clashes(question, names):
    """Whether a question of the small talk could be served by one of the tools."""
    q = question.lower()
    served = {
        "weather": {"get_weather", "get_current_weather", "get_forecast", "search_web"}, "time is it": {"get_time"}, "how much": {"calculate", "add_numbers", "get_stock_price"}, "what is": {"calculate", "search_web", "define_word", "translate", "get_stock_price"},
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
    """A conversation with tools of one to six exchanges; thinking is on or off throughout. Requests are as often for a
    tool that is there as not: whether to call must follow from the tools, not from the request."""
    thinking = s.chance(0.5)
    tools = make_tools(s, tool_count(s))
    think = (lambda t: t) if thinking else (lambda t: None)
    messages = maybe_system(s)
    for _ in range(max(1, s.any([1, 2, 3, 4, 5, 6]) - len(tools) // 4)):
        r = s.rng.random()
        if r < 0.15:
            question, thought, answer = small_talk(s, tools)
            messages += [user(question), assistant(answer, think(thought))]
        elif r < 0.5:
            ask, what = absent_request(s, tools)
            thought, reply = cannot(s, what)
            messages += [user(opened(s, ask)), assistant(reply, think(thought))]
        else:
            ask, calls, used = request(s, tools)
            before = s.any(["I will do that.", "Let me look.", "One moment.", "Sure."]) if s.chance(0.04) else ""
            messages += [user(opened(s, ask)), assistant(before, think(call_thought(s, calls, used)), calls)]
            if s.chance(0.3):
                break  # a call without a response ends the conversation
            results, reply = responses(s, calls, used)
            thought = s.any(["I have the result.", "The tool answered. I will tell the user.", "Now I can answer."])
            messages += results + [assistant(reply, think(thought))]
    return messages, [schema(s, t) for t in tools], thinking


VERBS = set(
    """Add Append Bake Book Brew Bring Build Buy Calculate Call Cancel Carry Change Choose Clean Convert Cook Count Create Cut Delete Draw Email Feed
Find Fix Get Give Heat Lock Log Look Make Mark Move Open Order Paint Park Pay Pick Plan Plant Play Print Put Read Record Remind Remove Rent Repair
Reserve Ring Roll Save Search Sell Send Set Show Sing Start Stop Sum Switch Take Tell Text Throw Track Translate Turn Unlock Update Vacuum Wake Wash Water Wrap Write""".split()
)


def opened(s, ask):
    """The request as it is (mostly), in politer words, or after a greeting."""
    if s.chance(0.2) and ask.split()[0] in VERBS and ask.endswith(".") and ask.count(". ") == 0:
        plain = ask[0].lower() + ask[1:-1]
        return s.any([f"Please {plain}.", f"Can you {plain}?", f"Could you {plain}?", f"Could you please {plain}?", f"I want you to {plain}.", f"Would you {plain}?", f"{ask} Thank you.", f"I'd like you to {plain}.", plain])
    return s.any(["Please help me. ", "Hello! ", "Hi, ", "I have a question. ", "Could you do this for me? "]) + ask if s.chance(0.1) else ask


def helpless(s):
    """A request that would need a tool, where there are none."""
    ask, what = absent_request(s, [])
    return ask, s.any([f"The user wants to {what}. I have no tools, so I cannot do it.", "I have no tools for this."]), s.any([f"I am sorry, I cannot {what}. I have no tools here.", "I am sorry, I cannot do that. I can only talk with you.", f"I have no tool to {what}, sorry."])


def plain_chat(s):
    """One to three exchanges of small talk without tools."""
    thinking = s.chance(0.6)
    turns = talk.remember(s) if s.chance(0.12) else [helpless(s) if s.chance(0.05) else talk.turn(s) for _ in range(s.any([1, 1, 2, 3]))]
    if len(turns) > 1 and s.chance(0.2):
        turns = [talk.greeting(s)] + turns
    messages = maybe_system(s)
    for question, thought, answer in turns:
        messages += [user(question), assistant(answer, thought if thinking else None)]
    return messages, None, thinking
