"""Hand-written tools: a schema, ways to ask for it, and what it answers.

A way to ask is a sentence with {slots}; the arguments are the slots that it mentions plus any fixed ones. A parameter
that a sentence does not mention is optional and left out of the call.
"""

from . import words as W


class Parameter:
    """A parameter: JSON schema type, description, how to make a value, how to say it."""

    def __init__(self, kind, description, make, say=str, schema=None):
        self.kind, self.description, self.make, self.say, self.extra = kind, description, make, say, schema or {}

    def schema(self):
        return {"type": self.kind, "description": self.description, **self.extra}


def text(description, make):
    return Parameter("string", description, make)


def choice(description, *options):
    return Parameter("string", description, lambda s: s.any(options), schema={"enum": list(options)})


def integer(description, make=W.small):
    return Parameter("integer", description, make)


def real(description, make=W.decimal):
    return Parameter("number", description, make)


def flag(description):
    return Parameter("boolean", description, lambda s: s.chance(0.5))


def several(description, make, kind="string", low=2, high=4):
    return Parameter("array", description, lambda s: s.sample(make, s.int(low, high)), W.listing, {"items": {"type": kind}})


def mapping(description, **fields):
    """An object of integers; said as 'x 3 and y 5'."""
    properties = {f: {"type": "integer"} for f in fields}
    return Parameter(
        "object",
        description,
        lambda s: {f: make(s) for f, make in fields.items()},
        lambda v: W.listing(f"{k} {n}" for k, n in v.items()),
        {"properties": properties},
    )


class Tool:
    def __init__(self, name, description, parameters, asks, result, answer, required=None):
        self.key = name  # stays when the tool is renamed
        self.name, self.description, self.parameters = name, description, parameters
        self.asks = [(a, {}) if isinstance(a, str) else a for a in asks]
        self.result, self.answer = result, answer
        always = [p for p in parameters if all("{" + p + "}" in a or p in fixed for a, fixed in self.asks)]
        self.required = always if required is None else required

    @property
    def what(self):
        """What the tool does, to follow 'to', such as 'send a text message to a person'."""
        return self.description[0].lower() + self.description[1:].rstrip(".")

    def schema(self):
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": {n: p.schema() for n, p in self.parameters.items()},
                    "required": self.required,
                },
            },
        }

    def request(self, s):
        """A sentence that asks for the tool, and the arguments it implies."""
        ask, fixed = s.any(self.asks)
        values = {n: p.make(s) for n, p in self.parameters.items() if "{" + n + "}" in ask}
        said = {n: self.parameters[n].say(v) for n, v in values.items()}
        arguments = {n: values[n] if n in values else fixed[n] for n in self.parameters if n in values or n in fixed}
        return ask.format(**said), arguments

    def outcome(self, s, arguments):
        """A response of the tool, as a JSON object, and a reply that uses it."""
        result = {k: make(s) if callable(make) else make for k, make in self.result.items()}
        said = {n: self.parameters[n].say(v) for n, v in arguments.items()}
        answers = [a for a in self.answer if all("{" + n + "}" not in a for n in self.parameters if n not in arguments)]
        return result, s.any(answers).format(**{**said, **result})


VERB_NAMES = {
    "get": ["fetch", "lookup", "find", "show", "read"], "set": ["change", "update", "adjust"], "create": ["add", "make", "new"], "send": ["deliver", "write"],
    "add": ["create", "put", "insert"], "turn": ["switch"], "search": ["find", "query"], "find": ["search", "get"], "open": ["show", "load"], "delete": ["remove", "erase"],
    "play": ["start"], "book": ["reserve"], "convert": ["change"], "list": ["show", "get"], "write": ["save"], "read": ["load", "open"], "call": ["phone", "dial"], "draw": ["paint", "make"],
}  # fmt: skip
PARAMETER_NAMES = {
    "city": ["location", "place", "town"], "text": ["content", "message", "words"], "query": ["q", "search_text", "keywords"], "to": ["target", "receiver", "to_value"],
    "from": ["source", "start", "from_value"], "date": ["day", "when"], "time": ["at", "when", "clock_time"], "name": ["person", "full_name"], "title": ["heading", "subject_title"], "days": ["number_of_days"],
    "count": ["n", "how_many"], "quantity": ["amount", "count"], "minutes": ["duration", "length_minutes"], "room": ["area", "place"], "color": ["colour", "paint"], "path": ["file", "filename", "file_path"],
    "content": ["data", "text"], "limit": ["max_results", "top"], "topic": ["subject", "theme"], "task": ["item", "todo"], "language": ["target_language", "lang"], "amount": ["value", "sum"],
    "unit": ["units", "scale"], "level": ["value", "percent"], "word": ["term"], "phone": ["number", "phone_number"], "email": ["mail", "address"], "position": ["goal", "point"],
}  # fmt: skip


class Renamed(Tool):
    """The same tool under another name, with other names for some of its parameters."""

    def __init__(self, base, s):
        self.base, self.key, self.description = base, base.key, base.description
        verb, _, rest = base.name.partition("_")
        if s.chance(0.5):
            verb = s.any(VERB_NAMES.get(verb, [verb]))
        if s.chance(0.15):
            rest = s.any(["current_", "my_", "the_"]) + rest
        if s.chance(s.share_odd) and W.COMMON:
            verb, rest = s.pick(W.COMMON), s.any([rest, s.pick(W.COMMON)])
        words = [verb, *rest.split("_")] if rest else [verb]
        if s.chance(0.2):
            self.name = words[0] + "".join(w.capitalize() for w in words[1:])
        elif s.chance(0.1):
            self.name = "_".join(words[1:] + words[:1])
        else:
            self.name = "_".join(words)
        self.new, used = {}, set(base.parameters)
        for n in base.parameters:
            other = s.any(PARAMETER_NAMES.get(n, [n])) if s.chance(0.4) else n
            if s.chance(s.share_odd) and W.COMMON:
                other = s.pick(W.COMMON)
            self.new[n] = n if other in used else other
            used.add(self.new[n])
        self.parameters = {self.new[n]: p for n, p in base.parameters.items()}
        self.required = [self.new[n] for n in base.required]

    def request(self, s):
        ask, arguments = self.base.request(s)
        return ask, {self.new[n]: v for n, v in arguments.items()}

    def outcome(self, s, arguments):
        old = {new: n for n, new in self.new.items()}
        return self.base.outcome(s, {old[n]: v for n, v in arguments.items()})


def counted(low, high):
    return lambda s: s.int(low, high)


DONE = {"status": "ok"}
SKY = lambda s: s.any(["sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "clear"])  # noqa: E731

TOOLS = [
    Tool("get_weather", "Get the current weather in a city.", {"city": text("Name of the city", W.city), "unit": choice("Temperature unit", "celsius", "fahrenheit")},
         ["What is the weather in {city}?", "What is the weather like in {city}?", "How is the weather in {city} today?", "Is it raining in {city}?", "How warm is it in {city}?", "Is it cold in {city}?", "Tell me the weather in {city} in {unit}.", "What's the weather like in {city}?", "weather in {city}", "Please check the weather in {city}."],
         {"temperature": counted(-5, 35), "sky": SKY}, ["It is {temperature} degrees and {sky} in {city}.", "In {city} it is {sky}, with {temperature} degrees."], ["city"]),
    Tool("get_current_weather", "Get the current weather in a given location.", {"location": text("The city and state, e.g. San Francisco, CA", W.city), "unit": choice("The unit", "celsius", "fahrenheit")},
         ["What is the weather in {location}?", "What's the weather like in {location}?", "What is the weather like in {location} today?", "How warm is it in {location}?", "Weather in {location} in {unit}, please.", "Is it raining in {location}?"],
         {"temperature": counted(-5, 35), "sky": SKY}, ["It is {temperature} degrees and {sky} in {location}.", "In {location} it is {sky}, with {temperature} degrees."], ["location"]),
    Tool("get_forecast", "Get the weather forecast of a city for some days.", {"city": text("The city", W.city), "days": integer("Number of days")},
         ["What will the weather be in {city} for the next {days} days?", "Give me a {days} day forecast for {city}.", "Forecast for {city}, {days} days please."],
         {"sky": SKY, "high": counted(0, 35)}, ["The next {days} days in {city} will be {sky}, with up to {high} degrees."]),
    Tool("get_time", "Get the current local time in a city.", {"city": text("The city", W.city)},
         ["What time is it in {city}?", "Tell me the time in {city}.", "What is the local time in {city}?", "time in {city}?"], {"time": W.clock}, ["It is {time} in {city}.", "The time in {city} is {time}."]),
    Tool("calculate", "Evaluate an arithmetic expression.", {"expression": text("The expression", lambda s: f"{W.number(s)} {s.any('+-*/')} {W.number(s)}")},
         ["Calculate {expression}.", "What is {expression}?", "Please compute {expression}.", "How much is {expression}?"], {"result": counted(2, 9999)}, ["The result is {result}.", "{expression} is {result}."]),
    Tool("add_numbers", "Add a list of numbers.", {"numbers": several("The numbers to add", W.number, "integer", 2, 5)},
         ["Add {numbers}.", "What is the sum of {numbers}?", "Please add the numbers {numbers}.", "Sum up {numbers}."], {"sum": counted(10, 9999)}, ["The sum is {sum}.", "They add up to {sum}."]),
    Tool("roll_dice", "Roll dice.", {"count": integer("How many dice"), "sides": integer("Sides of each die", lambda s: s.any([4, 6, 8, 10, 12, 20]))},
         ["Roll {count} dice.", "Roll {count} dice with {sides} sides.", "Please roll {count} dice with {sides} sides each.", "Throw {count} dice for me."], {"total": counted(3, 60)}, ["You rolled {total}.", "The dice show {total} in total."], ["count"]),
    Tool("random_number", "Pick a random number between two limits.", {"minimum": integer("Lower limit", counted(0, 20)), "maximum": integer("Upper limit", counted(21, 999))},
         ["Pick a number between {minimum} and {maximum}.", "Give me a random number from {minimum} to {maximum}."], {"number": counted(1, 99)}, ["Your number is {number}.", "I picked {number}."]),
    Tool("set_timer", "Start a timer.", {"minutes": integer("Length in minutes", counted(1, 90)), "label": text("Name of the timer", W.word)},
         ["Set a timer for {minutes} minutes.", "Start a {minutes} minute timer.", "Set a {minutes} minute timer called {label}.", "Timer for {minutes} minutes, please."], DONE, ["The timer is set for {minutes} minutes.", "Done. I will ring in {minutes} minutes."], ["minutes"]),
    Tool("set_alarm", "Set an alarm clock.", {"time": text("Time as HH:MM", W.clock), "repeat": flag("Ring every day")},
         ["Set an alarm for {time}.", "Wake me up at {time}.", ("Set an alarm for {time} every day.", {"repeat": True}), ("Set an alarm for {time}, only once.", {"repeat": False})], DONE, ["Your alarm is set for {time}.", "I will wake you at {time}."], ["time"]),
    Tool("create_reminder", "Remind the user of something.", {"text": text("What to remember", W.errand), "time": text("When, as HH:MM", W.clock)},
         ["Remind me to {text} at {time}.", "Please remind me at {time} to {text}.", "Remind me to {text}.", "Do not let me forget to {text}."], DONE, ["I will remind you to {text}.", "All right, I will remind you to {text}."], ["text"]),
    Tool("add_task", "Add a task to the to-do list.", {"task": text("The task", W.errand), "priority": choice("Priority", "low", "medium", "high")},
         ["Add {task} to my to-do list.", "Put {task} on my list.", "Add the task {task} with {priority} priority.", "New task: {task}"], {"id": counted(1, 99)}, ["I added the task. Its number is {id}.", "Done, it is task {id}."], ["task"]),
    Tool("complete_task", "Mark a task as done.", {"id": integer("Number of the task", W.number)},
         ["Mark task {id} as done.", "Task {id} is finished.", "I have done task {id}."], DONE, ["Task {id} is marked as done.", "Well done! Task {id} is finished."]),
    Tool("send_email", "Send an email.", {"to": text("Address of the receiver", W.email), "subject": text("Subject line", W.title), "body": text("Text of the mail", W.message)},
         ['Send an email to {to} with the subject "{subject}" and the text "{body}".', "Email {to} about {subject} and say: {body}", 'Write to {to}, subject "{subject}": "{body}"'], DONE, ["The email to {to} is sent.", "I sent your email to {to}."]),
    Tool("send_message", "Send a text message to a person.", {"to": text("Name of the person", W.name), "text": text("The message", W.message)},
         ['Send {to} the message "{text}".', 'Text {to}: "{text}"', 'Tell {to} "{text}".', 'Write a message to {to}: {text}', 'Message {to} that says "{text}".'], DONE, ["I sent your message to {to}.", "The message to {to} is on its way."]),
    Tool("call_contact", "Call a person on the phone.", {"name": text("Name of the person", W.name)},
         ["Call {name}.", "Please phone {name}.", "I want to talk to {name} on the phone.", "Ring {name} for me."], {"status": "ringing"}, ["I am calling {name}.", "It is ringing at {name}'s."]),
    Tool("add_contact", "Save a contact.", {"name": text("Name", W.name), "phone": text("Phone number", W.phone), "email": text("Email address", W.email)},
         ["Save {name} with the number {phone}.", "Add a contact {name}, phone {phone}.", "Add {name} to my contacts, phone {phone} and email {email}."], DONE, ["I saved {name}.", "{name} is in your contacts now."], ["name", "phone"]),
    Tool("turn_on_light", "Turn on the light in a room.", {"room": text("The room", lambda s: s.pick(W.ROOMS)), "brightness": integer("Brightness in percent", counted(1, 100))},
         ["Turn on the light in the {room}.", "Switch the {room} light on.", "Turn on the {room} light at {brightness} percent.", "Light in the {room}, please."], DONE, ["The light in the {room} is on.", "I turned on the {room} light."], ["room"]),
    Tool("turn_off_light", "Turn off the light in a room.", {"room": text("The room", lambda s: s.pick(W.ROOMS))},
         ["Turn off the light in the {room}.", "Switch off the {room} light.", "Make it dark in the {room}."], DONE, ["The light in the {room} is off.", "The {room} is dark now."]),
    Tool("set_light", "Switch a lamp and set its color.", {"room": text("The room", lambda s: s.pick(W.ROOMS)), "on": flag("Whether the lamp is on"), "color": text("Color", lambda s: s.pick(W.COLORS))},
         [("Turn the {room} lamp on.", {"on": True}), ("Turn the {room} lamp off.", {"on": False}), ("Make the {room} lamp {color}.", {"on": True}), ("Switch the lamp in the {room} off.", {"on": False})], DONE, ["Done. The {room} lamp is set.", "I changed the lamp in the {room}."]),
    Tool("set_temperature", "Set the heating of a room.", {"room": text("The room", lambda s: s.pick(W.ROOMS)), "degrees": real("Degrees celsius", lambda s: s.any([s.int(15, 28), s.int(15, 27) + 0.5]))},
         ["Set the {room} to {degrees} degrees.", "Heat the {room} to {degrees} degrees.", "I want {degrees} degrees in the {room}."], DONE, ["The {room} is set to {degrees} degrees."]),
    Tool("lock_door", "Lock or unlock a door.", {"door": choice("Which door", "front", "back", "garage", "cellar"), "locked": flag("True to lock, false to unlock")},
         [("Lock the {door} door.", {"locked": True}), ("Unlock the {door} door.", {"locked": False}), ("Please lock the {door} door.", {"locked": True}), ("Open the lock of the {door} door.", {"locked": False})], DONE, ["Done, I set the lock of the {door} door."]),
    Tool("play_music", "Play music.", {"title": text("Song, artist or kind of music", W.title), "shuffle": flag("Play in random order")},
         ["Play {title}.", 'Play the song "{title}".', ("Play {title} in random order.", {"shuffle": True}), "I want to hear {title}."], {"status": "playing"}, ["I am playing {title}.", "Here is {title}."], ["title"]),
    Tool("set_volume", "Set the volume.", {"level": integer("Volume from 0 to 100", counted(0, 100))},
         ["Set the volume to {level}.", "Volume {level}, please.", "Change the volume to {level} percent."], DONE, ["The volume is {level} now."]),
    Tool("create_playlist", "Create a playlist of songs.", {"name": text("Name of the playlist", W.title), "songs": several("The songs", W.title)},
         ['Make a playlist "{name}" with {songs}.', "Create a playlist called {name} with the songs {songs}."], {"id": counted(1, 500)}, ["Your playlist {name} is ready."]),
    Tool("translate", "Translate a text into another language.", {"text": text("The text", W.message), "language": text("Target language", lambda s: s.pick(W.LANGUAGES))},
         ['Translate "{text}" into {language}.', 'What is "{text}" in {language}?', 'How do you say "{text}" in {language}?', "Translate into {language}: {text}"], {"translation": W.invented}, ["In {language} it is: {translation}", 'It means "{translation}" in {language}.']),
    Tool("convert_currency", "Convert an amount of money.", {"amount": real("Amount", lambda s: s.any([W.number(s), W.decimal(s)])), "from": text("Currency code to convert from", lambda s: s.pick(W.CURRENCIES)), "to": text("Currency code to convert to", lambda s: s.pick(W.CURRENCIES))},
         ["Convert {amount} {from} to {to}.", "How much is {amount} {from} in {to}?", "Change {amount} {from} into {to}."], {"result": W.decimal}, ["{amount} {from} is {result} {to}.", "It is {result} {to}."]),
    Tool("convert_unit", "Convert a value between units.", {"value": real("The value", lambda s: s.any([W.number(s), W.decimal(s)])), "from": choice("Unit to convert from", "meters", "feet", "miles", "inches"), "to": choice("Unit to convert to", "kilometers", "yards", "centimeters")},
         ["Convert {value} {from} to {to}.", "How many {to} are {value} {from}?", "What is {value} {from} in {to}?"], {"result": W.decimal}, ["{value} {from} are {result} {to}.", "That is {result} {to}."]),
    Tool("search_web", "Search the web.", {"query": text("What to search for", W.phrase), "limit": integer("How many results")},
         ["Search the web for {query}.", 'Search for "{query}".', "Look up {query} on the web.", "Find {limit} results for {query} on the web.", "google {query}"], {"title": W.title}, ["I found a page called {title}.", "The first result is {title}."], ["query"]),
    Tool("open_url", "Open a web page.", {"url": text("Address of the page", W.url)}, ["Open {url}.", "Go to {url}", "Show me the page {url}"], DONE, ["I opened {url}.", "The page is open."]),
    Tool("get_news", "Get the newest headlines on a topic.", {"topic": text("The topic", lambda s: s.pick(W.TOPICS)), "limit": integer("Number of headlines")},
         ["What is the news about {topic}?", "Give me {limit} headlines about {topic}.", "Any news on {topic}?"], {"headline": W.title}, ["The news about {topic}: {headline}.", "Here is a headline: {headline}."], ["topic"]),
    Tool("define_word", "Look up a word in the dictionary.", {"word": text("The word", W.word)},
         ["Look up the word {word}.", 'Look up "{word}" in the dictionary.', "Give me the dictionary entry of {word}."], {"meaning": lambda s: f"a kind of {s.any(W.THINGS)}"}, ["{word} means {meaning}.", "The dictionary says: {meaning}."]),
    Tool("find_recipe", "Find a recipe that uses some ingredients.", {"ingredients": several("The ingredients", lambda s: s.pick(W.FOODS)), "vegetarian": flag("Only recipes without meat")},
         ["Find a recipe with {ingredients}.", "What can I cook with {ingredients}?", ("Find a vegetarian recipe with {ingredients}.", {"vegetarian": True}), "I have {ingredients}. Find me a recipe."], {"recipe": lambda s: f"{s.any(W.FOODS)} soup"}, ["You could make {recipe}.", "I found a recipe for {recipe}."], ["ingredients"]),
    Tool("add_to_cart", "Put a product into the shopping cart.", {"product": text("The product", lambda s: s.any([s.pick(W.FOODS), s.pick(W.THINGS), f"{s.pick(W.COLORS)} {s.pick(W.THINGS)}"])), "quantity": integer("How many")},
         ["Add {quantity} {product} to my cart.", "Put {quantity} {product} in the cart.", "Add {product} to my cart.", "I want to buy {quantity} {product}."], {"items": counted(1, 20)}, ["It is in your cart, which has {items} items now.", "Done. Your cart has {items} items."], ["product"]),
    Tool("order_food", "Order food from a restaurant.", {"items": several("What to order", lambda s: s.pick(W.FOODS), low=1), "address": text("Where to deliver", lambda s: f"{s.int(1, 99)} {W.invented(s)} Street")},
         ["Order {items} to {address}.", "I am hungry. Order {items} to {address}.", "Please order {items} for {address}."], {"minutes": counted(15, 60)}, ["Your order arrives in {minutes} minutes."]),
    Tool("track_package", "Find out where a package is.", {"code": text("Tracking code", W.code)},
         ["Where is my package {code}?", "Track package {code}.", "Where is the parcel with the code {code}?"], {"place": W.city}, ["Your package is in {place}.", "Package {code} is in {place} now."]),
    Tool("book_table", "Book a table at a restaurant.", {"restaurant": text("The restaurant", W.title), "people": integer("Number of people"), "time": text("Time as HH:MM", W.clock)},
         ["Book a table for {people} at {restaurant} at {time}.", "Reserve a table at {restaurant} for {people} people at {time}."], {"number": counted(1, 40)}, ["You have table {number} at {restaurant}, at {time}.", "Table {number} is booked."]),
    Tool("book_flight", "Book a flight.", {"from": text("City of departure", W.city), "to": text("City of arrival", W.city), "date": text("Date as YYYY-MM-DD", W.date), "passengers": integer("Number of passengers")},
         ["Book a flight from {from} to {to} on {date}.", "I want to fly from {from} to {to} on {date}.", "Book {passengers} seats from {from} to {to} on {date}."], {"flight": W.code}, ["Your flight is {flight}.", "You are booked on flight {flight} to {to}."], ["from", "to", "date"]),
    Tool("get_directions", "Find the way between two places.", {"from": text("Start", W.city), "to": text("Goal", W.city), "mode": choice("How to travel", "walk", "drive", "train", "bicycle")},
         ["How do I get from {from} to {to}?", "Show me the way from {from} to {to}.", "Directions from {from} to {to} by {mode}.", "Which way is it from {from} to {to} by {mode}?"], {"kilometers": counted(1, 900)}, ["It is {kilometers} kilometers from {from} to {to}."], ["from", "to"]),
    Tool("create_event", "Put an event into the calendar.", {"title": text("Name of the event", W.title), "date": text("Date as YYYY-MM-DD", W.date), "guests": several("Who is invited", W.name)},
         ['Create an event "{title}" on {date}.', "Put {title} in my calendar on {date}.", "Add {title} on {date} and invite {guests}.", 'Plan "{title}" for {date} with {guests}.'], {"id": counted(1, 999)}, ["{title} is in your calendar on {date}.", "I created the event for {date}."], ["title", "date"]),
    Tool("list_events", "List the events of a day.", {"date": text("Date as YYYY-MM-DD", W.date)}, ["What is in my calendar on {date}?", "Do I have anything on {date}?", "Show my events for {date}."], {"event": W.title, "time": W.clock}, ["On {date} you have {event} at {time}.", "There is one event: {event} at {time}."]),
    Tool("get_stock_price", "Get the price of a stock.", {"symbol": text("Stock symbol", lambda s: "".join(s.any("ABCDEFGHIKLMNOPRSTUVWXYZ") for _ in range(s.int(3, 4))))},
         ["What is the price of {symbol}?", "How much is {symbol} stock?", "Stock price of {symbol}, please."], {"price": W.decimal}, ["{symbol} is at {price} dollars.", "The price is {price} dollars."]),
    Tool("create_note", "Save a note.", {"title": text("Title of the note", W.title), "content": text("Text of the note", W.message), "tags": several("Tags", W.word)},
         ['Make a note "{title}": {content}', 'Save a note with the title "{title}" and the text "{content}".', 'Write a note titled "{title}" that says "{content}" with the tags {tags}.'], {"id": counted(1, 999)}, ["Your note {title} is saved.", "I saved the note."], ["title", "content"]),
    Tool("read_file", "Read a file.", {"path": text("Path of the file", W.file)}, ["Read {path}.", "Show me the file {path}.", "What is in {path}?", "Open the file {path}."], {"content": W.message}, ["The file says: {content}", "{path} contains: {content}"]),
    Tool("write_file", "Write a text to a file.", {"path": text("Path of the file", W.file), "content": text("What to write", W.message), "append": flag("Add to the end")},
         ['Write "{content}" to {path}.', 'Save "{content}" in the file {path}.', ('Append "{content}" to {path}.', {"append": True})], DONE, ["I wrote it to {path}.", "Done, {path} is saved."], ["path", "content"]),
    Tool("delete_file", "Delete a file.", {"path": text("Path of the file", W.file)}, ["Delete {path}.", "Remove the file {path}.", "I do not need {path} any more, delete it."], DONE, ["{path} is deleted."]),
    Tool("move_robot", "Move the robot to a position.", {"position": mapping("Where to go", x=W.number, y=W.number), "speed": real("Speed")},
         ["Move the robot to {position}.", "Send the robot to {position} with speed {speed}.", "Robot, go to {position}."], DONE, ["The robot is at {position}.", "The robot moved to {position}."], ["position"]),
    Tool("draw_shape", "Draw a shape on the canvas.", {"shape": choice("Kind of shape", "circle", "square", "triangle", "star"), "color": text("Color", lambda s: s.pick(W.COLORS)), "size": mapping("Size", width=W.number, height=W.number)},
         ["Draw a {color} {shape}.", "Draw a {color} {shape} with {size}.", "I want a {color} {shape} on the canvas."], DONE, ["Here is your {color} {shape}.", "I drew a {color} {shape}."], ["shape", "color"]),
    Tool("plant_crop", "Plant a crop in the garden.", {"crop": text("What to plant", lambda s: s.pick(W.FOODS)), "rows": integer("Number of rows")}, ["Plant {rows} rows of {crop}.", "Put {rows} rows of {crop} in the garden."], DONE, ["{rows} rows of {crop} are planted."]),
    Tool("feed_pet", "Feed a pet.", {"pet": text("The animal", lambda s: s.pick(W.ANIMALS)), "grams": integer("Food in grams", counted(10, 500))}, ["Feed the {pet} {grams} grams.", "Give the {pet} {grams} grams of food."], DONE, ["The {pet} is fed.", "I gave the {pet} {grams} grams."]),
    Tool("water_plant", "Water a plant.", {"plant": text("Which plant", lambda s: s.any(["rose", "fern", "cactus", "tomato", "lily", "basil", "orchid", W.word(s)])), "liters": real("Liters of water", lambda s: s.any([s.int(1, 9), s.int(1, 9) + 0.5]))},
         ["Water the {plant} with {liters} liters.", "Give the {plant} {liters} liters of water.", "The {plant} needs {liters} liters of water."], DONE, ["I watered the {plant}.", "The {plant} has got its water."]),
    Tool("book_hotel", "Book a hotel room.", {"city": text("The city", W.city), "nights": integer("Number of nights"), "guests": integer("Number of guests")},
         ["Book a hotel in {city} for {nights} nights.", "I need a room in {city} for {nights} nights and {guests} guests.", "Find me a hotel in {city}, {nights} nights."], {"hotel": W.title}, ["Your room is at {hotel} in {city}.", "I booked {hotel} for {nights} nights."], ["city", "nights"]),
    Tool("rent_car", "Rent a car.", {"city": text("Where to pick it up", W.city), "days": integer("Number of days"), "kind": choice("Kind of car", "small", "van", "truck")},
         ["Rent a car in {city} for {days} days.", "I need a {kind} in {city} for {days} days.", "Get me a car in {city}, for {days} days."], {"price": counted(30, 900)}, ["Your car in {city} costs {price} dollars.", "The car is yours for {days} days."], ["city", "days"]),
    Tool("pay_bill", "Pay a bill.", {"company": text("Who gets the money", W.title), "amount": real("Amount in dollars", lambda s: s.any([W.number(s), W.decimal(s)]))},
         ["Pay {amount} dollars to {company}.", "Pay my bill of {amount} dollars at {company}.", "I owe {company} {amount} dollars, please pay."], DONE, ["I paid {amount} dollars to {company}.", "Your bill at {company} is paid."]),
    Tool("start_vacuum", "Start the cleaning robot in some rooms.", {"rooms": several("The rooms", lambda s: s.pick(W.ROOMS), low=1, high=3), "quiet": flag("Quiet mode")},
         ["Clean the {rooms}.", "Vacuum the {rooms}, please.", ("Clean the {rooms} quietly.", {"quiet": True}), "Send the cleaning robot to the {rooms}."], DONE, ["The robot is cleaning the {rooms}.", "I started the robot."], ["rooms"]),
    Tool("count_words", "Count the words of a text.", {"text": text("The text", W.message)}, ['How many words are in "{text}"?', 'Count the words of "{text}".', "Count the words: {text}"], {"words": counted(2, 20)}, ["The text has {words} words.", "I counted {words} words."]),
    Tool("get_distance", "Get the distance between two cities.", {"a": text("First city", W.city), "b": text("Second city", W.city)}, ["How far is it from {a} to {b}?", "What is the distance between {a} and {b}?", "Is {a} far from {b}?"], {"kilometers": counted(20, 9000)}, ["It is {kilometers} kilometers from {a} to {b}."]),
    Tool("rate_movie", "Give a movie a rating.", {"movie": text("Title of the movie", W.title), "stars": integer("Stars from 1 to 5", counted(1, 5))}, ["Give {movie} {stars} stars.", "I rate {movie} with {stars} stars.", "{stars} stars for the movie {movie}."], DONE, ["You gave {movie} {stars} stars."]),
    Tool("flight_status", "Get the status of a flight.", {"flight": text("Flight number", W.code)}, ["Is flight {flight} on time?", "What is the status of flight {flight}?", "When does {flight} land?"], {"status": lambda s: s.any(["on time", "late", "landed", "boarding"])}, ["Flight {flight} is {status}.", "The flight is {status}."]),
    Tool("get_population", "Get how many people live in a place.", {"place": text("City or country", W.city)}, ["How many people live in {place}?", "What is the population of {place}?", "Is {place} a big city?"], {"people": counted(1000, 9000000)}, ["{people} people live in {place}."]),
    Tool("log_workout", "Save a workout.", {"sport": text("Kind of sport", lambda s: s.any(["running", "swimming", "rowing", "cycling", "yoga", "boxing", "hiking", "tennis"])), "minutes": integer("Length in minutes", counted(5, 180))}, ["I did {minutes} minutes of {sport}.", "Save {minutes} minutes of {sport}.", "Log my workout: {sport}, {minutes} minutes."], DONE, ["I saved {minutes} minutes of {sport}.", "Well done! Your workout is saved."]),
    Tool("cancel_order", "Cancel an order.", {"order": integer("Order number", counted(100, 99999)), "reason": text("Why", lambda s: s.any(["too late", "too expensive", "wrong size", "not needed", W.phrase(s)]))}, ["Cancel order {order}.", "I do not want order {order} any more.", "Cancel my order {order} because it is {reason}.", "Please cancel number {order}, reason: {reason}"], DONE, ["Order {order} is canceled."], ["order"]),
    Tool("choose_random", "Choose one of several options.", {"options": several("The options", lambda s: s.any([s.pick(W.FOODS), W.name(s), W.city(s), W.word(s)]))}, ["Choose one of {options}.", "Pick one for me: {options}.", "I cannot decide between {options}."], {"choice": W.word}, ["I choose {choice}.", "Take {choice}."]),
    Tool("shop_hours", "Get the opening hours of a shop.", {"shop": text("Name of the shop", W.title), "day": choice("Day of the week", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")}, ["When does {shop} open on {day}?", "Is {shop} open on {day}?", "Opening hours of {shop} on {day}, please."], {"opens": W.clock}, ["{shop} opens at {opens} on {day}.", "On {day} it opens at {opens}."]),
]  # fmt: skip
