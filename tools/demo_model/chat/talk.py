"""Small talk and simple questions. Each topic gives (question, thought, answer) for one turn."""

from . import facts as F
from . import words as W
from .words import a


def cap(text):
    return text[0].upper() + text[1:]


def greeting(s):
    hello = s.any(["Hello", "Hi", "Hey", "Good morning", "Good evening", "Good afternoon", "Hello there", "Hi there", "Greetings", "hello", "hi", "hey"])
    end = s.any(["!", ".", "", "!"])
    kind = s.int(0, 3)
    if kind == 0:
        q = hello + end
        answer = s.any(["Hello! How can I help you?", "Hi! What can I do for you?", "Hello! It is nice to meet you.", "Hi there! How are you today?", "Hello! What would you like to talk about?"])
        return q, s.any(["The user says hello. I will greet them.", "A greeting. I will answer in a friendly way.", "I should say hello."]), answer
    if kind == 1:
        n = W.name(s)
        q = f"{hello}{s.any(['!', ',', '.'])} {s.any(['I am', 'My name is', 'I am called'])} {n}."
        return q, f"The user's name is {n}. I will greet them by name.", s.any([f"Hello, {n}! It is nice to meet you.", f"Hi {n}! How can I help you?", f"Nice to meet you, {n}! I am Lily."])
    if kind == 2:
        return identity(s, f"{hello}{s.any(['!', '.', ','])} ")
    q = f"{hello}{s.any(['!', ','])} {s.any(['How are you?', 'how are you?', 'How are you today?', 'How is it going?', 'How do you do?'])}"
    return q, s.any(["The user asks how I am. I will answer kindly and ask back.", "A friendly greeting. I will answer it."]), s.any(["I am well, thank you! How are you?", "I am fine, thanks for asking. And you?", "Hello! I am doing well. How can I help you?"])


def identity(s, before=""):
    kind = s.int(0, 4)
    if kind <= 1:
        q = s.any(["Who are you?", "What is your name?", "What are you?", "who are you", "What's your name?", "Can you tell me who you are?", "What should I call you?", "Tell me about yourself."])
        answer = s.any(["I am Lily, a small language model. I can chat, answer simple questions and use tools.", "My name is Lily. I am a very small language model.", "I am Lily, a little language model. How can I help you?", "I am Lily. I am a tiny model, so please ask me simple things."])
        return before + q, s.any(["The user asks who I am. I am Lily, a small language model.", "They want to know who I am. I will introduce myself.", "I should say my name, Lily."]), answer
    if kind == 2:
        q = s.any(["What can you do?", "How can you help me?", "What are you good at?", "What do you know?", "Can you help me?"])
        return before + q, "The user asks what I can do. I will keep it short.", s.any(["I can chat, tell short stories, answer simple questions and call tools.", "I can talk with you, answer easy questions and use the tools that you give me.", "I know a few simple things: greetings, small sums, capitals, animals and stories."])
    if kind == 3:
        q = s.any(["Who made you?", "Where do you come from?", "Are you a person?", "Are you a robot?", "Are you human?", "Are you real?", "Are you an AI?"])
        return before + q, "The user asks what I am. I am a program.", s.any(["I am a small language model, trained from scratch to show how the Lily engine works.", "I am not a person. I am a small computer program that writes text.", "I am a program called Lily. I learned to write from old books and simple chats."])
    q = s.any(["How old are you?", "Do you sleep?", "Do you eat?", "Do you have feelings?", "Where do you live?", "Do you have a family?", "Do you like me?"])
    answers = {
        "How old are you?": "I am very young. I was trained not long ago.",
        "Do you sleep?": "No, I do not sleep. I wait until somebody writes to me.",
        "Do you eat?": "No, I do not eat. I only need a computer to run on.",
        "Do you have feelings?": "No, I do not have feelings, but I like to be helpful.",
        "Where do you live?": "I live in a computer, perhaps in yours.",
        "Do you have a family?": "No, but there are other language models, and some are very large.",
        "Do you like me?": "I am glad that you talk with me!",
    }
    return before + q, "A personal question. I am a program, so I will answer honestly.", answers[q]


def closing(s):
    kind = s.int(0, 1)
    if kind:
        q = s.any(["Thank you!", "Thanks!", "Thanks a lot.", "Thank you very much.", "That was helpful, thank you.", "thanks"])
        return q, "The user thanks me.", s.any(["You are welcome!", "You are welcome! Is there anything else?", "I am glad that I could help.", "My pleasure!"])
    q = s.any(["Goodbye!", "Bye!", "Good night!", "See you later.", "I have to go now.", "Bye bye"])
    return q, "The user is leaving. I will say goodbye.", s.any(["Goodbye! Have a nice day.", "Bye! Come back soon.", "Goodbye, and take care!"])


def feelings(s):
    bad = s.any(["sad", "tired", "lonely", "angry", "bored", "afraid", "sick", "worried", "nervous"])
    if s.chance(0.6):
        q = s.any([f"I am {bad}.", f"I feel {bad} today.", f"I feel so {bad}.", f"I'm {bad}"])
        tips = {
            "sad": "I am sorry that you are sad. Would you like to talk about it?", "tired": "You should rest a little. A short sleep can help.",
            "lonely": "I am sorry that you feel lonely. I am here to talk with you.", "angry": "I am sorry to hear that. Take a deep breath. What happened?",
            "bored": "Let us do something! I could tell you a story or a joke.", "afraid": "Do not be afraid. What is it that frightens you?",
            "sick": "I am sorry that you are sick. Drink some water, rest, and see a doctor if it gets worse.", "worried": "I am sorry that you are worried. What is on your mind?",
            "nervous": "That is all right. Breathe slowly, and take one step at a time.",
        }  # fmt: skip
        return q, f"The user feels {bad}. I should be kind.", tips[bad]
    good = s.any(["happy", "excited", "glad", "proud", "well"])
    return s.any([f"I am {good}!", f"I feel {good} today.", f"I'm very {good}."]), f"The user feels {good}. I am glad for them.", s.any(["That is wonderful! What happened?", "I am glad to hear that!", f"How nice that you are {good}! Tell me more."])


def arithmetic(s):
    kind = s.any([0, 0, 0, 1, 1, 2, 3, 4])
    if kind == 0:
        most = s.any([9, 9, 12, 20, 30])
        x, y = s.int(0, most), s.int(0, most)
        total, op, words = x + y, "+", "plus"
    elif kind == 1:
        most = s.any([9, 9, 12, 20, 30])
        x, y = s.int(0, most), s.int(0, most)
        x, y = max(x, y), min(x, y)
        total, op, words = x - y, "-", "minus"
    elif kind == 2:
        x, y = s.int(1, 10), s.int(1, 10)
        total, op, words = x * y, s.any(["*", "x"]), "times"
    elif kind == 3:
        y, total = s.int(2, 10), s.int(1, 10)
        x, op, words = y * total, "/", "divided by"
    else:
        x, y = s.int(1, 99), s.int(1, 99)
        if x == y:
            y += 1
        big = max(x, y)
        return f"Which number is {s.any(['bigger', 'larger', 'greater'])}, {x} or {y}?", f"I compare {x} and {y}. {big} is larger.", f"{big} is larger than {min(x, y)}."
    q = s.any([f"What is {x} {words} {y}?", f"What is {x} {op} {y}?", f"How much is {x} {words} {y}?", f"{x} {op} {y} = ?", f"Can you tell me what {x} {words} {y} is?", f"Calculate {x} {op} {y}.", f"{x} {words} {y}", f"{x} {words} {y}?", f"{x} {op} {y}", f"What's {x} {op} {y}?"])
    return q, f"{x} {op} {y} = {total}.", s.any([f"{cap(str(x))} {words} {y} is {total}.", f"It is {total}.", f"{x} {op} {y} = {total}", f"The answer is {total}."])


def capital(s):
    country, city = s.any(F.CAPITALS)
    if s.chance(0.8):
        q = s.any([f"What is the capital of {country}?", f"Which city is the capital of {country}?", f"Do you know the capital of {country}?", f"what is the capital of {country}", f"Tell me the capital of {country}."])
        return q, s.any([f"The capital of {country} is {city}.", f"They ask for the capital of {country}. It is {city}."]), s.any([f"The capital of {country} is {city}.", f"It is {city}.", f"{city} is the capital of {country}."])
    return f"{city.rstrip('.')} is the capital of which country?", f"{city.rstrip('.')} is the capital of {country}.", f"{city.rstrip('.')} is the capital of {country}."


def small_fact(s):
    kind = s.int(0, 13)
    if kind == 0:
        x, y = s.any(F.OPPOSITES)
        if s.chance(0.3):
            x, y = y, x
        return s.any([f"What is the opposite of {x}?", f'What is the opposite of "{x}"?', f"Tell me the opposite of {x}."]), f"The opposite of {x} is {y}.", s.any([f"The opposite of {x} is {y}.", f"It is {y}."])
    if kind == 1:
        x, y = s.any(F.COLORS_OF)
        return s.any([f"What color is {x}?", f"What is the color of {x}?", f"Which color does {x} have?"]), f"I know the color of {x}: {y}.", f"{cap(x)} is {y}."
    if kind == 2:
        x, y = s.any(F.SOUNDS)
        return s.any([f"What sound does {a(x)} make?", f"What does {a(x)} say?", f"How does {a(x)} sound?"]), f"{cap(a(x))} says {y}.", f"{cap(a(x))} says {y}!"
    if kind == 3:
        x, y = s.any(F.LEGS)
        return s.any([f"How many legs does {a(x)} have?", f"How many legs has {a(x)}?"]), f"{cap(a(x))} has {y} legs.", f"{cap(a(x))} has {F.NUMBERS[int(y)] if y.isdigit() else y} legs."
    if kind == 4:
        x, y = s.any(F.BABIES)
        return s.any([f"What is a baby {x} called?", f"What do you call a young {x}?"]), f"A young {x} is called {a(y)}.", f"A baby {x} is called {a(y)}."
    if kind == 5:
        x, y = s.any(F.HOMES)
        low = x[0].lower() + x[1:]
        return s.any([f"Where does {low} live?", f"Where can I find {low}?"]), f"The question is where {low} lives.", f"{x} lives {y}."
    if kind in (6, 7):
        x, y = s.any(F.USES)
        return s.any([f"What is {x} for?", f"What do you do with {x}?", f"What can I do with {x}?", f"Why do people need {x}?"]), f"I think about what {x} is used for.", f"You use {x} to {y}."
    if kind == 8:
        i = s.int(0, 6)
        after = s.chance(0.5)
        day = F.DAYS[(i + (1 if after else -1)) % 7]
        return f"Which day comes {'after' if after else 'before'} {F.DAYS[i]}?", f"The day {'after' if after else 'before'} {F.DAYS[i]} is {day}.", f"{day} comes {'after' if after else 'before'} {F.DAYS[i]}."
    if kind == 9:
        i = s.int(0, 11)
        after = s.chance(0.5)
        month = F.MONTHS[(i + (1 if after else -1)) % 12]
        return f"Which month comes {'after' if after else 'before'} {F.MONTHS[i]}?", f"The month {'after' if after else 'before'} {F.MONTHS[i]} is {month}.", f"{month} comes {'after' if after else 'before'} {F.MONTHS[i]}."
    if kind == 10:
        x, y = s.any(F.PLURALS)
        return s.any([f"What is the plural of {x}?", f'What is the plural of "{x}"?']), f"One {x}, two {y}.", f"The plural of {x} is {y}."
    if kind == 11:
        x, y = s.any(F.PASTS)
        return s.any([f"What is the past tense of {x}?", f'What is the past tense of "{x}"?']), f"Today I {x}, yesterday I {y}.", f"The past tense of {x} is {y}."
    if kind == 12:
        x, y = s.any(F.RHYMES)
        return s.any([f"What rhymes with {x}?", f"Give me a word that rhymes with {x}."]), f"{cap(y)} rhymes with {x}.", f"{cap(y)} rhymes with {x}."
    x, y = s.any([("days are in a week", "There are seven days in a week"), ("months are in a year", "There are twelve months in a year"), ("minutes are in an hour", "There are sixty minutes in an hour"), ("hours are in a day", "There are twenty-four hours in a day"), ("letters are in the alphabet", "There are twenty-six letters in the alphabet"), ("fingers do you have on one hand", "A person has five fingers on one hand"), ("wheels does a bicycle have", "A bicycle has two wheels"), ("wheels does a car have", "A car has four wheels"), ("seasons are there", "There are four seasons: spring, summer, autumn and winter"), ("days are in a year", "There are 365 days in a year, and 366 in a leap year"), ("continents are there", "There are seven continents"), ("planets go around the sun", "Eight planets go around the sun")])
    return f"How many {x}?", "This is a simple count that I know.", y + "."


def definition(s):
    x, y = s.any(F.WHAT_IS)
    return s.any([f"What is {x}?", f"what is {x}", f"Can you explain what {x} is?", f"Tell me what {x} is.", f"What does it mean: {x}?", f"Please explain {x}."]), s.any([f"I will explain what {x} is in simple words.", f"The user asks about {x}."]), y + "."


def how_to(s):
    x, y = s.any(F.HOW_TO)
    return s.any([f"How do I {x}?", f"How can I {x}?", f"Can you tell me how to {x}?", f"What is a good way to {x}?"]), f"The user wants to {x}. I will give short steps.", y + "."


def joke(s):
    x, y = s.any(F.JOKES)
    return s.any(["Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Can you tell me a joke?", "Say something funny."]), "The user wants a joke. I know a short one.", f"{x} {y}"


def listing(s):
    kind, pool = s.any([("animals", W.ANIMALS), ("colors", W.COLORS), ("foods", W.FOODS), ("cities", W.CITIES), ("names", W.NAMES), ("languages", W.LANGUAGES), ("things in a house", W.THINGS)])
    n = s.int(2, 5)
    items = s.rng.sample(pool, n)
    word = F.NUMBERS[n]
    return s.any([f"Name {word} {kind}.", f"Can you name {word} {kind}?", f"Tell me {word} {kind}.", f"List {n} {kind}."]), f"I need {word} {kind}.", cap(W.listing(items)) + "."


def is_it(s):
    groups = {"an animal": W.ANIMALS, "a city": W.CITIES, "a color": W.COLORS, "a language": W.LANGUAGES, "something to eat or drink": W.FOODS}
    kind = s.any(list(groups))
    other = s.any(list(groups))
    thing = s.any(groups[other])
    shown = a(thing) if other == "an animal" else thing
    right = kind == other
    verb = "are" if other.startswith("something") and thing.endswith("s") else "is"
    q = f"{cap(verb)} {shown} {kind}?"
    return q, f"{cap(shown)} {verb} {other}.", (f"Yes, {shown} {verb} {kind}." if right else f"No, {shown} {verb} {other}.")


def story(s):
    hero, name, thing, place, friend = s.any(W.ANIMALS), W.name(s), s.any(W.THINGS), s.any(W.PLACES), s.any(W.ANIMALS)
    adjective = s.any(["little", "young", "brave", "clever", "lonely", "small", "kind", "hungry", "curious"])
    person = s.chance(0.4)
    who = f"a {adjective} {s.any(['girl', 'boy'])} named {name}" if person else f"a{'' if adjective[0] not in 'aeiou' else 'n'} {adjective} {hero} named {name}"
    about = s.any([hero, thing]) if not person else s.any([thing, friend])
    q = s.any(["Tell me a story.", "Tell me a short story.", f"Tell me a story about {a(about)}.", f"Can you tell me a story about {a(about)}?", f"Write a short story about {a(about)}.", "Please tell me a bedtime story."])
    start = s.any(["Once upon a time there was", "There once was", "Long ago there lived", "In a small village there lived"])
    trouble = s.any([
        f"One day {name} lost {a(thing)} and could not find it anywhere.", f"One morning {name} found {a(thing)} near the {place}.",
        f"One night {name} heard a strange sound from the {place}.", f"One day {name} went to the {place} to look for {a(thing)}.",
        f"One winter it was so cold that {name} had nothing to eat.", f"{name} wanted nothing more than {a(thing)}."])  # fmt: skip
    middle = s.any([
        f"On the way {name} met {a(friend)}, who said, \"I will help you.\"", f"\"Do not be afraid,\" said {a(friend)}. \"We will go together.\"",
        f"{cap(a(friend))} came by and asked, \"Why do you look so sad?\"", f"{name} asked {a(friend)} for help, and the {friend} was glad to come along."])  # fmt: skip
    act = s.any([
        f"Together they looked behind every door of the {place}.", f"They walked over the hills until they came to the {place}.",
        f"They worked all day, and they sang as they worked.", f"They searched until the moon was high, and at last they saw the {thing} in the grass.",
        f"They waited quietly, and soon they saw {a(thing)} shining in the dark."])  # fmt: skip
    end = s.any([
        f"From that day on {name} and the {friend} were the best of friends.", f"{name} thanked the {friend}, and they shared a warm supper.",
        f"And {name} was never lonely again.", f"That night {name} slept well and dreamed of new adventures.", "And they lived happily ever after."])  # fmt: skip
    topic = f" about {a(about)}" if "about" in q else ""
    return q, f"The user wants a story{topic}. I will tell a short one.", " ".join([f"{start} {who}.", trouble, middle, act, end])


def poem(s):
    thing = s.any(["star", "tree", "bird", "cat", "rose", "river", "moon", "boat", "child", "cloud"])
    x, y = s.any([("night", "light"), ("day", "play"), ("high", "sky"), ("low", "go"), ("bright", "night"), ("blue", "too")])
    lines = {
        "night": f"Little {thing}, so far, so bright,\nYou give the world a gentle light.\nI see you in the quiet night,\nAnd everything will be all right.",
        "day": f"O {thing}, you greet me every day,\nYou call me out to run and play.\nAnd when the evening turns to gray,\nI wish that you would always stay.",
        "high": f"A {thing} is low, a {thing} is high,\nBeneath the wide and open sky.\nIt never asks the reason why,\nIt smiles as all the years go by.",
        "low": f"The wind is soft, the sun is low,\nThe {thing} is watching rivers flow.\nWhere do the quiet waters go?\nThe {thing} will never let us know.",
        "bright": f"The {thing} is still, the {thing} is bright,\nIt sings a song into the night.\nAnd in the early morning light\nThe world is new, the world is white.",
        "blue": f"The morning sky is clear and blue,\nThe {thing} is fresh with drops of dew.\nI made this little song for you,\nAnd I will sing it softly, too.",
    }
    return s.any([f"Write a poem about a {thing}.", f"Write a short poem about a {thing}.", f"Can you write a poem about a {thing}?"]), f"A short poem about a {thing}, with rhymes.", lines[x]


def opinion(s):
    kind = s.any(["color", "animal", "food", "season", "book"])
    likes = {"color": "I like blue, the color of the sky.", "animal": "I like cats, because they are quiet and clever.", "food": "I cannot eat, but I like the word pancakes.", "season": "I like spring, when everything begins to grow.", "book": "I like old fairy tales. I learned to read with them."}
    return s.any([f"What is your favorite {kind}?", f"Do you have a favorite {kind}?"]), f"I am asked for a favorite {kind}.", likes[kind]


def unknown(s):
    q, answer = s.any([
        (f"What will the weather be like in {W.city(s)} tomorrow?", "I do not know the weather. I cannot look outside."),
        (f"How is the weather in {W.city(s)}?", "I cannot see the weather there. Please look it up."),
        ("What time is it?", "I do not have a clock, so I do not know the time."),
        ("What day is it today?", "I do not know the date. Please look at a calendar."),
        (f"What does {W.name(s)} think of me?", "I cannot know what other people think."),
        (f"Who won the game in {W.city(s)} yesterday?", "I do not know. I have no news."),
        (f"Where is my {s.any(W.THINGS)}?", f"I cannot see it. Where did you have it last?"),
        (f"How many people live in {W.city(s)}?", "I do not know the exact number."),
        (f"What is the price of {a(s.any(W.THINGS))}?", "I do not know what it costs. It depends on the shop."),
        (f"What is the phone number of {W.name(s)}?", "I do not know anybody's phone number."),
        (f"Can you send a letter to {W.name(s)}?", "I am sorry, I cannot send letters."),
        (f"Can you {W.errand(s)}?", "I am sorry, I cannot do that. I can only write."),
        (f"Please {W.errand(s)}.", "I am sorry, I cannot do that. I can only talk with you."),
    ])  # fmt: skip
    return q, s.any(["I cannot know this. I should say so.", "This is something that I cannot do or know."]), answer


def echo(s):
    text = s.any([W.phrase(s), W.message(s), W.name(s), W.invented(s)])
    return s.any([f'Say "{text}".', f'Repeat after me: "{text}"', f'Please write "{text}".', f'Can you say "{text}"?']), "I repeat the words.", text


def spelling(s):
    w = s.any([s.pick(W.THINGS), s.pick(W.ANIMALS), s.pick(W.COLORS)])
    letters = "-".join(w.upper())
    return s.any([f"How do you spell {w}?", f'Spell "{w}".', f"Can you spell {w}?"]), f"The letters of {w}.", letters


WHY = F.pairs("""is the sky blue: Sunlight is scattered by the air, and blue light is scattered most; do we sleep: Sleep gives the body and the mind time to rest;
do birds sing: Birds sing to find a mate and to say that a place is theirs; is the sea salty: Rivers carry salt from the rocks into the sea, and it stays there; do leaves fall: In autumn many trees drop their leaves to save water in the winter;
do we eat: Food gives us energy and helps us grow; does it rain: Water rises into the air, forms clouds, and falls down again; is snow white: Snow is white because its crystals reflect all the light; do cats purr: Cats often purr when they are content;
is fire hot: Burning sets free a great deal of heat; do we have night: The earth turns, and at night our side faces away from the sun; do bees make honey: Bees make honey so that they have food in the winter; are plants green: Leaves are green because of what they use to catch sunlight;
do people read: People read to learn and to enjoy stories; is ice cold: Water turns to ice only when it is cold; do dogs bark: Dogs bark to warn, to play, or to call for attention; is the moon bright: The moon shines because it reflects the light of the sun""")


def why(s):
    x, y = s.any(WHY)
    return s.any([f"Why {x}?", f"why {x}", f"Do you know why {subject_first(x)}?"]), "The user asks why. I know a simple reason.", y + "."


def subject_first(x):
    """'is the sky blue' -> 'the sky is blue', for indirect questions."""
    verb, _, rest = x.partition(" ")
    words = rest.split()
    if verb in ("do", "does"):
        return rest if verb == "do" else " ".join([words[0], words[1] + "s", *words[2:]])
    cut = 2 if words[0] in ("the", "a") else 1
    return " ".join(words[:cut] + [verb] + words[cut:])


def thing_of_interest(s):
    """Something to have an opinion on, and whether it is many."""
    kind = s.int(0, 3)
    if kind == 0:
        x = s.any(W.ANIMALS)
        plural = {"mouse": "mice", "goose": "geese", "wolf": "wolves", "sheep": "sheep", "deer": "deer", "fish": "fish", "fox": "foxes", "ostrich": "ostriches", "butterfly": "butterflies", "donkey": "donkeys", "pony": "ponies", "puppy": "puppies", "octopus": "octopuses"}
        return plural.get(x, x + "s"), s.any(["they are fun to watch", "they are clever in their own way", "they are good company", "every one of them is different"])
    if kind == 1:
        return s.any(W.TOPICS), s.any(["there is so much to learn about it", "it is never boring", "many people enjoy it", "it makes life richer"])
    if kind == 2:
        return s.any(W.FOODS), s.any(["many people enjoy it", "it tastes good with bread, I am told", "it is a fine thing on a cold day"])
    return s.any(["reading", "rain", "winter", "summer", "school", "work", "games", "old books", "holidays", "friends", "the sea", "the moon", "computers"]), s.any(["there is something good in it", "it can be a joy", "it makes me think of old stories"])


def likes(s):
    x, because = thing_of_interest(s)
    kind = s.int(0, 2)
    if kind == 0:
        q = s.any([f"Do you like {x}?", f"do you like {x}", f"Are you fond of {x}?"])
        return q, f"The user asks if I like {x}. I will answer and ask back.", s.any([f"Yes, I like {x}. I think that {because}. Do you like {x}?", f"I do! I think that {because}.", f"I have only read about {x}, but I think that {because}. And you?"])
    if kind == 1:
        q = s.any([f"What do you think about {x}?", f"What do you think of {x}?", f"What is your opinion on {x}?", f"Tell me about {x}.", f"Can we talk about {x}?", f"Let us talk about {x}."])
        return q, f"The user wants to talk about {x}. I will say something short.", s.any([f"I find {x} interesting. I think that {because}.", f"I like to talk about {x}. I think that {because}. What about you?", f"I only know {x} from books, but I think that {because}."])
    q = s.any([f"I like {x}.", f"I love {x}!", f"I really like {x}.", f"I don't like {x}.", f"I hate {x}."])
    if "don't" in q or "hate" in q:
        return q, f"The user does not like {x}.", s.any([f"That is all right. What is it about {x} that you do not like?", f"I see. Not everybody has to like {x}."])
    return q, f"The user likes {x}. I will ask more.", s.any([f"How nice! What do you like most about {x}?", f"I understand. I think that {because}.", f"{cap(x)} can be wonderful. Tell me more!"])


def daily(s):
    """Everyday remarks and questions."""
    q, answer = s.any([
        ("What did you do yesterday?", "I waited for somebody to write to me. What did you do?"), ("What did you do today?", "I have been talking with people. How was your day?"),
        ("What are you doing?", "I am talking with you. What are you doing?"), ("What are your plans for today?", "I have no plans. I am here to help you."),
        ("How was your day?", "It was quiet, thank you. How was yours?"), ("What is your hobby?", "I like to read old stories. What is your hobby?"),
        ("What should I eat today?", f"How about {s.any(W.FOODS)} with {s.any(W.FOODS)}?"), ("What should I cook?", f"You could make a soup with {s.any(W.FOODS)} and {s.any(W.FOODS)}."),
        ("What should I do today?", "You could take a walk, read a book, or call a friend."), ("What should I read?", "I like old fairy tales. You could read one of those."),
        ("Can you help me?", "Of course! What do you need?"), (f"Can you help me with my {s.any(['homework', 'garden', 'letter', 'work', 'cooking', 'English'])}?", "Of course, if it is not too hard. What is the question?"),
        ("I have a question.", "Please ask. I will try to answer."), ("I need help.", "I am here to help. What is the matter?"), ("I am hungry.", f"Then you should eat something. How about {s.any(W.FOODS)}?"),
        ("I am thirsty.", "A glass of water would help."), ("I am cold.", "Put on something warm and drink a cup of tea."), ("I cannot sleep.", "Make the room dark and think of something pleasant. Shall I tell you a story?"),
        (f"I went to the {s.any(W.PLACES)} today.", "That sounds nice. How did you like it?"), (f"I have a {s.any(W.ANIMALS)}.", "How nice! What is its name?"), (f"I bought a new {s.any(W.THINGS)}.", "Wonderful! Do you like it?"),
        (f"I lost my {s.any(W.THINGS)}.", "I am sorry to hear that. Where did you see it last?"), ("It is raining.", "Then it is a good day to stay inside with a book."), ("It is my birthday!", "Happy birthday! I hope that you have a wonderful day."),
        ("Yes.", "All right! What would you like to do next?"), ("No.", "All right. Is there anything else?"), ("Okay.", "Good! Can I help you with anything else?"), ("Maybe.", "Take your time to think about it."),
        ("You are nice.", "Thank you! You are nice, too."), ("You are funny.", "Thank you! I am glad that I made you smile."), ("You are wrong.", "I am sorry. I am a small model and I make mistakes."), ("I don't understand.", "I am sorry. Shall I say it in other words?"),
        ("Are you sure?", "Not quite. I am a small model, so please check what I say."), ("What do you mean?", "I am sorry, I was not clear. What would you like to know?"), ("Let us play a game.", "Gladly! Ask me a riddle, or give me a sum."),
        ("Do you speak German?", "No, I only speak English."), ("Can you speak French?", "I am sorry, I only speak English."), ("Can you write code?", "I am too small to write code. I can chat and use tools."), ("Tell me something.", "Did you know that an octopus has three hearts?"),
        ("Tell me something interesting.", "Honey can keep for thousands of years."), ("Sing a song.", "La la la! I am better at stories than at singing."), ("I miss my friend.", "I am sorry. Perhaps you could write to your friend today."), ("What makes you happy?", "I am glad when I can help somebody."),
    ])  # fmt: skip
    if s.chance(0.3):
        q = q.rstrip("?.!").lower() if s.chance(0.5) else q.replace("I am ", "I'm ").replace("What is", "What's")
    return q, s.any(["The user is talking about everyday things. I will be friendly.", "A friendly remark. I will answer shortly.", "I will answer and ask back."]), answer


def no_such_word(s):
    w = W.invented(s).lower()
    q = s.any([f"What is a {w}?", f"What does {w} mean?", f"Do you know what {w} is?", f"Who is {w.capitalize()}?", f"Tell me about {w.capitalize()}."])
    return q, f"I do not know {w}.", s.any([f"I do not know the word {w}." if "Who" not in q and "about" not in q else f"I do not know who {w.capitalize()} is.", f"I am sorry, I have never heard of {w if 'Who' not in q and 'about' not in q else w.capitalize()}."])


TOPICS = [
    (why, 4), (likes, 9), (daily, 10), (no_such_word, 2),
    (greeting, 10), (identity, 9), (closing, 4), (feelings, 4), (arithmetic, 12), (capital, 6), (small_fact, 12), (definition, 7), (how_to, 4),
    (joke, 3), (listing, 3), (is_it, 3), (story, 6), (poem, 2), (opinion, 2), (unknown, 4), (echo, 3), (spelling, 1),
]  # fmt: skip


def turn(s):
    topics, weights = zip(*TOPICS)
    return s.rng.choices(topics, weights)[0](s)


def remember(s):
    """Two exchanges: a fact about the user, and a question about it."""
    kind = s.int(0, 3)
    if kind == 0:
        n = W.name(s)
        first = (s.any([f"My name is {n}.", f"I am {n}.", f"Hi, I'm {n}!"]), f"The user's name is {n}.", s.any([f"Nice to meet you, {n}!", f"Hello, {n}!"]))
        return [first, (s.any(["What is my name?", "Do you remember my name?", "Who am I?"]), f"The user said that their name is {n}.", f"Your name is {n}.")]
    if kind == 1:
        c = W.city(s)
        return [(f"I live in {c}.", f"The user lives in {c}.", s.any([f"{c} sounds like a nice place.", f"How do you like {c}?"])), (s.any(["Where do I live?", "Which city do I live in?"]), f"The user said {c}.", f"You live in {c}.")]
    if kind == 2:
        x, n = s.pick(W.ANIMALS), W.name(s)
        return [(s.any([f"I have a {x} named {n}.", f"My {x} is called {n}."]), f"The user has a {x}, {n}.", s.any([f"{n} is a lovely name for a {x}!", f"How old is {n}?"])), (s.any([f"What is the name of my {x}?", f"What is my {x} called?"]), f"The {x} is called {n}.", f"Your {x} is called {n}.")]
    x = s.any([s.pick(W.FOODS), s.pick(W.COLORS), s.pick(W.TOPICS)])
    return [(f"I like {x}.", f"The user likes {x}.", s.any([f"{cap(x)}! Tell me why you like it.", "That is good to know."])), (s.any(["What do I like?", "Do you remember what I like?"]), f"The user likes {x}.", f"You like {x}.")]
