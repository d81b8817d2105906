"""Tools made up at random, so that the model has to read the schema instead of remembering it."""

from . import words as W
from .tools import DONE, Tool, choice, flag, integer, mapping, real, several, text

ACTIONS = """create delete update find open close start stop send fetch check add remove move copy rename book cancel order
count measure show play pause compare record schedule print share lock clean repair paint assign track save load archive
approve build inspect launch refill water charge register search list reset empty collect deliver sort label wrap""".split()

OBJECTS = """invoice ticket folder garden robot playlist recipe lamp meeting parcel account report camera sensor channel boat
train horse house room fence window engine pump tank machine battery screen button page chapter song video picture poster
menu table seat ship truck bus wagon plane drone field pond tree flower seed basket crate shelf barrel bottle letter stamp
map route trip tour lesson course exam class team player match score badge prize coin wallet budget payment loan policy server backup database cluster branch commit build test job queue event alarm signal filter layer shape model
customer worker doctor patient visitor guest member driver pilot teacher pupil""".split()

# Parameter name -> how to make the parameter.
PARAMETERS = {
    "name": lambda: text("Name", W.name), "title": lambda: text("Title", W.title), "label": lambda: text("Label", W.word),
    "owner": lambda: text("Owner", W.name), "author": lambda: text("Author", W.name), "city": lambda: text("City", W.city),
    "destination": lambda: text("Destination", W.city), "origin": lambda: text("Origin", W.city), "color": lambda: text("Color", lambda s: s.pick(W.COLORS)),
    "material": lambda: text("Material", lambda s: s.any(["wood", "iron", "glass", "stone", "wool", "paper"])),
    "code": lambda: text("Code", W.code), "date": lambda: text("Date as YYYY-MM-DD", W.date), "time": lambda: text("Time as HH:MM", W.clock),
    "email": lambda: text("Email address", W.email), "note": lambda: text("Note", W.phrase), "comment": lambda: text("Comment", W.message),
    "topic": lambda: text("Topic", lambda s: s.pick(W.TOPICS)), "language": lambda: text("Language", lambda s: s.pick(W.LANGUAGES)),
    "room": lambda: text("Room", lambda s: s.pick(W.ROOMS)), "file": lambda: text("File name", W.file), "link": lambda: text("Link", W.url),
    "size": lambda: choice("Size", "small", "medium", "large"), "priority": lambda: choice("Priority", "low", "normal", "high"),
    "mode": lambda: choice("Mode", "manual", "auto", "eco"), "format": lambda: choice("Format", "text", "table", "chart"),
    "count": lambda: integer("Count", W.number), "amount": lambda: integer("Amount", W.number), "limit": lambda: integer("Limit", W.number),
    "width": lambda: integer("Width", W.number), "height": lambda: integer("Height", W.number), "depth": lambda: integer("Depth", W.number),
    "year": lambda: integer("Year", lambda s: s.int(1900, 2040)), "age": lambda: integer("Age", lambda s: s.int(1, 99)),
    "level": lambda: integer("Level", W.small), "number": lambda: integer("Number", W.number), "hours": lambda: integer("Hours", W.small),
    "weight": lambda: real("Weight"), "price": lambda: real("Price"), "distance": lambda: real("Distance"), "ratio": lambda: real("Ratio"),
    "speed": lambda: real("Speed"), "urgent": lambda: flag("Whether it is urgent"), "public": lambda: flag("Whether everybody may see it"),
    "quiet": lambda: flag("Whether to be quiet"), "force": lambda: flag("Whether to force it"), "verbose": lambda: flag("Whether to show details"),
    "recursive": lambda: flag("Whether to include everything inside"), "tags": lambda: several("Tags", W.word), "members": lambda: several("Members", W.name),
    "cities": lambda: several("Cities", W.city), "colors": lambda: several("Colors", lambda s: s.pick(W.COLORS)),
    "values": lambda: several("Values", W.number, "integer"), "scores": lambda: several("Scores", W.small, "integer"),
    "position": lambda: mapping("Position", x=W.number, y=W.number), "range": lambda: mapping("Range", low=W.small, high=W.number),
}  # fmt: skip


def say_boolean(value, s):
    return s.any(["on", "true", "yes"] if value else ["off", "false", "no"])


def any_word(s):
    """A word for a name: often any frequent word of the books, so that names have to be read and cannot be guessed."""
    return s.pick(W.COMMON) if W.COMMON and s.chance(0.4) else s.pick(ACTIONS + OBJECTS)


def parameter_name(s, known):
    """The name of a parameter of a known kind: its own, or any one or two words."""
    r = s.rng.random()
    if r < 0.6:
        return known
    if r < 0.85:
        return any_word(s)
    return f"{any_word(s)}_{s.any([known, any_word(s)])}"


class Invented(Tool):
    """A tool whose requests are built from its parameters' names. `near` makes the name share a word with that tool's."""

    def __init__(self, s, near=None):
        action = s.pick(ACTIONS) if s.chance(0.6) else any_word(s)
        thing = s.pick(OBJECTS) if s.chance(0.6) else any_word(s)
        if near and s.chance(0.5) and thing != near.thing:
            action = near.action
        elif near and action != near.action:
            thing = near.thing
        elif s.chance(0.15):
            thing = f"{any_word(s)}_{thing}"
        self.action, self.thing, self.words = action, thing, thing.replace("_", " ")
        camel = "".join(part.capitalize() for part in thing.split("_"))
        names = [f"{action}_{thing}"] * 6 + [action + camel, f"{thing}_{action}", f"{action}-{thing}"]
        name = s.any(names)
        parameters = {}
        for known in s.rng.sample(sorted(PARAMETERS), s.any([1, 1, 2, 2, 3, 3, 4])):
            parameters[parameter_name(s, known)] = PARAMETERS[known]()
        for n, parameter in parameters.items():
            if s.chance(0.5):
                words = n.replace("_", " ")
                parameter.description = s.any([f"The {words}", words.capitalize(), f"The {words} of the {self.words}", ""])
        required = list(parameters)[: s.int(1, len(parameters))]
        what = f"{action} {s.any(['a', 'the'])} {self.words}"
        description = s.any([f"{what.capitalize()}.", what.capitalize(), f"Use this to {what}.", f"Lets you {what}."])
        super().__init__(name, description, parameters, ["{none}"], DONE, [], required)

    @property
    def what(self):
        return f"{self.action} {W.a(self.words)}"

    def request(self, s):
        used = [n for n in self.parameters if n in self.required or s.chance(0.5)]
        arguments, parts = {}, []
        for n in used:
            value = self.parameters[n].make(s)
            arguments[n] = value
            kind = self.parameters[n].kind
            said = say_boolean(value, s) if kind == "boolean" else self.parameters[n].say(value)
            label = n.replace("_", " ")
            if kind == "string" and s.chance(0.3):
                said = f'"{said}"'
            ways = [f"{label} {said}"] * 4 + [f"the {label} {said}", f"{label}: {said}", f"{label} set to {said}", f"{said} as the {label}", f"{label}={said}"]
            parts.append(s.any(ways))
        joined = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + s.any([" and ", " and ", ", "]) + parts[-1]
        article = s.any(["a", "the", "my", "this"])
        ask = s.any(
            [
                f"{self.action.capitalize()} {article} {self.words} with {joined}.",
                f"Please {self.action} {article} {self.words} with {joined}.",
                f"Can you {self.action} {article} {self.words} with {joined}?",
                f"I want to {self.action} {article} {self.words} with {joined}.",
                f"I need you to {self.action} {article} {self.words}. Use {joined}.",
                f"{self.action.capitalize()} {self.words}: {joined}",
                f"{self.action} {self.words}, {joined}",
                f"Use {self.name} with {joined}.",
                f"Call {self.name}: {joined}",
            ]
        )
        return ask, arguments

    def outcome(self, s, arguments):
        kind = s.int(0, 2)
        if kind == 0:
            return {"status": "ok"}, s.any([f"Done. The {self.words} is ready.", f"I did it: {self.action} {self.words}.", "Done!"])
        if kind == 1:
            number = s.int(1, 9999)
            return {"id": number}, s.any([f"Done. The {self.words} has the number {number}.", f"The number of the {self.words} is {number}."])
        reason = s.any(["not found", "no permission", "already exists", "too busy", "not connected"])
        return {"error": reason}, s.any([f"I am sorry, that did not work: {reason}.", f"The {self.words} could not be changed: {reason}."])
