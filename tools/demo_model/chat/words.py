"""Pools of words and the kinds of values that questions and tool calls are made of.

Every eighth entry of a pool is held out: training never draws it, the test prompts draw nothing else.
"""

import functools
import random

HELD_EVERY = 8


@functools.cache
def held_out_start(size):
    """Which entries of a pool of this size are held out, modulo HELD_EVERY."""
    return random.Random(size).randrange(HELD_EVERY)


class Source:
    """A random generator that draws from either the training or the held-out part of each pool."""

    def __init__(self, seed, held=False, share_invented=0.3, hard=False):
        self.rng = random.Random(seed)
        self.held = held
        self.share_invented = share_invented  # of the tools; the others are hand-written
        # Shares of what has to be read and cannot be guessed; a hard source has more of it.
        self.share_renamed = 0.75 if hard else 0.4  # of the hand-written tools
        self.share_odd = 0.35 if hard else 0.12  # of the names of renamed tools and of their parameters: any words
        self.share_two = 0.25 if hard else 0.12  # of the requests: for two different tools

    def pick(self, pool):
        """An entry of the part of the pool that this source may use."""
        start = held_out_start(len(pool))
        if len(pool) < HELD_EVERY:
            return self.rng.choice(pool)
        while True:
            i = self.rng.randrange(len(pool))
            if (i % HELD_EVERY == start) == self.held:
                return pool[i]

    def any(self, options):
        """An entry of a list that is not divided, such as ways to phrase something."""
        return self.rng.choice(options)

    def chance(self, p):
        return self.rng.random() < p

    def int(self, low, high):
        return self.rng.randint(low, high)

    def sample(self, make, count):
        """Up to `count` different values of a kind; fewer where the held-out part of a pool is small."""
        out = [make(self)]
        for _ in range(4 * count):
            if len(out) == count:
                break
            value = make(self)
            if value not in out:
                out.append(value)
        return out


NAMES = """Anna Ben Clara David Emma Finn Grace Henry Ida Jack Kate Leo Mia Noah Olivia Paul Queenie Rosa Sam Tom Uma Victor
Wendy Xavier Yara Zoe Alice Arthur Bella Boris Carmen Carlos Daisy Dora Edgar Elena Felix Fiona George Greta Hugo Hanna
Igor Iris Jonas Julia Karim Karl Lara Lucas Maria Martin Nadia Nils Oscar Otto Paula Peter Quinn Rita Robert Sara Simon
Tara Theo Ursula Vera Walter Willa Yusuf Zara Amir Beatrice Cedric Diana Elias Frida Gustav Helen Isaac Jasmine Kevin
Linda Marcus Nora Omar Petra Ralph Sofia Tim Vanessa Will Amina Bruno Chloe Dylan Esther Frank Gloria Harold Irene James
Kofi Laura Miguel Naomi Oliver Priya Ravi Stella Trevor Violet Wanda Yvonne Zach Abel Astrid Bianca Caleb Delia Eric Faye
Gavin Hazel Ivan Joyce Keith Lena Max Nina Olga Pablo Ruth Sven Tina Uwe Vince Wilma Alan Bridget Chris Donna Ed Fatima
Gina Hans Imani Jean Kim Luis Mona Neil Opal Phil Rachel Stan Tessa Umar Vivian Wes Ali Brenda Colin Dean Ella Fred Gail
Heidi Ian Judy Ken Liam Molly Nick Owen Pam Ray Sue Ted Vicky Andrew Barbara Charlie Dorothy Edward Florence Gordon
Harriet Isabel Joseph Katharine Lewis Margaret Nathan Ophelia Patrick Rebecca Samuel Thomas Vincent William""".split()

CITIES = """Paris London Rome Berlin Madrid Oslo Vienna Prague Dublin Lisbon Athens Cairo Tokyo Kyoto Osaka Seoul Beijing
Delhi Mumbai Lagos Nairobi Accra Boston Chicago Denver Dallas Seattle Miami Austin Toronto Montreal Vancouver Lima Quito
Bogota Santiago Havana Sydney Melbourne Perth Auckland Moscow Warsaw Helsinki Stockholm Copenhagen Brussels Amsterdam
Geneva Zurich Milan Venice Naples Florence Barcelona Seville Porto Lyon Nice Munich Hamburg Cologne Dresden Krakow Riga
Tallinn Vilnius Kiev Istanbul Ankara Baghdad Tehran Dubai Doha Riyadh Jerusalem Amman Tunis Algiers Casablanca Dakar Kampala
Harare Lusaka Maputo Hanoi Bangkok Manila Jakarta Singapore Taipei Shanghai Houston Phoenix Portland Atlanta Detroit
Cleveland Memphis Nashville Orlando Tampa Bristol Leeds York Oxford Cambridge Glasgow Edinburgh Belfast Cardiff Salzburg
Ghent Antwerp Malmo Bergen Turku Reykjavik Valletta Sofia Bucharest Belgrade Zagreb Sarajevo Skopje Tirana Caracas Salvador
Brasilia Recife Cordoba Rosario Monterrey Puebla Quebec Calgary Ottawa Adelaide Brisbane Hobart Darwin Wellington Nagoya
Sapporo Busan Nanjing Wuhan Kolkata Chennai Pune Karachi Lahore Dhaka Kabul Tashkent Baku Tbilisi Yerevan""".split()

ANIMALS = """cat dog horse cow pig sheep goat duck hen goose mouse rabbit fox wolf bear lion tiger elephant monkey giraffe
zebra camel donkey frog toad snake turtle lizard fish shark whale dolphin seal penguin owl eagle crow sparrow robin swan
bee ant spider butterfly snail worm hedgehog squirrel deer moose badger otter beaver bat parrot peacock kangaroo koala
panda crab octopus rooster pony kitten puppy lamb""".split()

FOODS = """apples bread cheese rice pasta soup pizza salad beans carrots onions tomatoes potatoes pears plums cherries
grapes oranges lemons bananas honey butter milk eggs flour sugar salt pepper garlic fish chicken mushrooms corn peas
lentils nuts almonds walnuts chocolate cake cookies pancakes waffles yogurt cream jam tea coffee juice water olives
spinach cabbage pumpkin melon peaches berries noodles tofu mustard vinegar oats raisins dates figs""".split()

COLORS = "red blue green yellow orange purple pink brown black white gray gold silver violet turquoise beige".split()

ROOMS = """kitchen bedroom bathroom hall garage office cellar attic nursery library garden porch balcony pantry
study workshop""".split()

THINGS = """lamp chair table book pencil bag box key clock bottle cup plate spoon knife hat coat shoe sock scarf glove
umbrella phone camera radio guitar piano drum violin ball kite doll bicycle car boat train ship wagon ladder hammer nail
rope bucket broom basket blanket pillow carpet curtain mirror window door candle lantern ring necklace watch wallet coin
stamp letter card map flag tent saw shovel rake brush towel soap comb kettle pan oven stove fridge sofa desk shelf drawer
vase painting statue ticket backpack helmet whistle bell magnet battery notebook calendar puzzle robot telescope""".split()

PLACES = """bank school museum park station airport hospital bakery library zoo theater market bridge harbor castle church
hotel restaurant cinema stadium beach lake forest mountain farm garden village pharmacy post_office gym""".replace(
    "post_office", "bookshop"
).split()

LANGUAGES = """French German Spanish Italian Portuguese Dutch Swedish Danish Polish Russian Greek Turkish Arabic Hindi
Chinese Japanese Korean Finnish Czech Latin""".split()

CURRENCIES = "USD EUR GBP JPY CHF SEK NOK DKK PLN CZK INR CNY KRW BRL MXN CAD AUD NZD ZAR TRY".split()

TOPICS = """dragons planets volcanoes trains painting dinosaurs gardening chess history music football sailing weather stars
robots birds insects castles pirates rivers oceans baking magic knights bridges rockets cooking dancing poetry swimming
skiing cycling camping maps coins mushrooms trees flowers horses wolves whales""".split()

ADJECTIVES = """small big old new red blue quiet loud happy sad bright dark warm cold soft hard fast slow tall short clean
dirty heavy light round flat sweet sour fresh dry wet strong weak rich poor young kind brave clever funny gentle hungry
lonely lucky proud silly sleepy tiny wild wise""".split()

VERBS = """call visit thank help meet ask tell remind pay feed water clean wash paint fix move open close lock check find
bring buy sell read write draw cook bake cut fold pack send carry lift count sort""".split()

SYLLABLES = """ba be bi bo bu da de di do du fa fe fi fo ga ge go gu ha he hi ho ja jo ka ke ki ko ku la le li lo lu ma me mi
mo mu na ne ni no nu pa pe pi po ra re ri ro ru sa se si so su ta te ti to tu va ve vi vo wa we wi wo ya yo za ze zi zo
bar den fin gor hal jin kel lom mar nor pel quin ras sol tor van wen yor zan bri cla dra fle gra kri plo sta tri""".split()

COMMON = []  # words of the books
SENTENCES, HELD_OUT_SENTENCES = [], []  # short sentences of the training and of the held-out books


def load(vocabulary):
    """Sets the words and sentences of the books that make free text varied (words.json of prepare.py)."""
    COMMON[:], SENTENCES[:], HELD_OUT_SENTENCES[:] = (vocabulary[k] for k in ("common", "sentences", "held-out sentences"))


def name(s):
    return invented(s) if s.chance(0.15) else s.pick(NAMES)


def city(s):
    return invented(s) if s.chance(0.15) else s.pick(CITIES)


def invented(s):
    """A made-up proper name."""
    return "".join(s.any(SYLLABLES) for _ in range(s.int(2, 3))).capitalize()


def word(s):
    return s.pick(COMMON) if COMMON and s.chance(0.7) else s.pick(THINGS)


def sentence(s):
    """A short sentence of a book, without a full stop."""
    sentences = HELD_OUT_SENTENCES if s.held else SENTENCES
    return s.any(sentences).rstrip(".") if sentences else f"The {s.pick(ADJECTIVES)} {s.pick(THINGS)} is in the {s.pick(ROOMS)}"


def phrase(s):
    """Two to six words; copied, never understood."""
    r = s.rng.random()
    if r < 0.35:
        return f"{s.pick(ADJECTIVES)} {s.pick(THINGS)}"
    if r < 0.6:
        words = sentence(s).rstrip("!?").replace(",", "").split()
        count = s.int(2, 6)
        start = s.int(0, max(0, len(words) - count))
        return " ".join(words[start : start + count])
    if r < 0.97 or s.held:
        return " ".join(s.sample(word, s.int(2, 5)))
    few = [word(s) for _ in range(s.int(1, 3))]
    return " ".join(s.any(few) for _ in range(s.int(2, 5)))  # words that repeat are the hardest to copy


def title(s):
    p = phrase(s)
    return s.any([p, p.title(), p.capitalize()])


def errand(s):
    """Something to do, such as a task or a reminder."""
    verb = s.pick(VERBS)
    return s.any(
        [
            f"{verb} {name(s)}",
            f"{verb} the {s.pick(THINGS)}",
            f"{verb} the {s.pick(ADJECTIVES)} {s.pick(THINGS)}",
            f"buy {s.pick(FOODS)}",
            f"buy {s.pick(FOODS)} and {s.pick(FOODS)}",
            f"{verb} the {s.pick(ANIMALS)}",
            f"go to the {s.pick(PLACES)}",
        ]
    )


def message(s):
    """A sentence to send to somebody."""
    if s.chance(0.3):
        return sentence(s)
    return s.any(
        [
            f"I will be {s.int(5, 55)} minutes late",
            f"See you at the {s.pick(PLACES)}",
            f"Please {errand(s)}",
            f"Happy birthday, {name(s)}!",
            f"The {s.pick(THINGS)} is in the {s.pick(ROOMS)}",
            f"Can you {errand(s)}?",
            f"I found the {s.pick(ADJECTIVES)} {s.pick(THINGS)}",
            f"Do not forget to {errand(s)}",
            f"We need {s.pick(FOODS)} and {s.pick(FOODS)}",
            f"Dinner is at {s.int(5, 9)}",
            f"I am in {city(s)} now",
            f"{phrase(s).capitalize()}.",
        ]
    )


def date(s):
    return f"{s.int(2021, 2032)}-{s.int(1, 12):02}-{s.int(1, 28):02}"


def clock(s):
    return f"{s.int(0, 23):02}:{s.any([0, 5, 10, 15, 20, 25, 30, 40, 45, 50]):02}"


def email(s):
    return f"{name(s).lower()}{s.any(['', '', s.int(1, 99)])}@{word(s)}.{s.any(['com', 'org', 'net'])}"


def phone(s):
    return "-".join([str(s.int(100, 999)), str(s.int(1000, 9999))])


def code(s):
    """An identifier such as KX-4821."""
    letters = "".join(s.any("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(s.int(1, 3)))
    return f"{letters}{s.any(['-', ''])}{s.int(10, 9999)}"


def file(s):
    return f"{s.any([word(s), word(s) + '_' + word(s), word(s) + str(s.int(1, 30))])}.{s.any(['txt', 'pdf', 'png', 'csv', 'md'])}"


def url(s):
    return f"https://{word(s)}.{s.any(['com', 'org', 'net'])}/{word(s)}"


def small(s):
    return s.int(2, 12)


def number(s):
    return s.any([s.int(1, 20), s.int(10, 100), s.int(100, 999), s.int(1000, 9999)])


def decimal(s):
    return s.any([s.int(1, 99) + s.int(1, 9) / 10, round(s.int(1, 20) + s.int(1, 99) / 100, 2)])


def listing(items):
    """How a person says a list."""
    items = [str(i) for i in items]
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def a(noun):
    return ("an " if noun[0].lower() in "aeiou" else "a ") + noun
