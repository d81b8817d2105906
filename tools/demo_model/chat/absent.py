"""Things that people ask for and that no tool of this generator does, as (what it is, ways to ask).

What it is follows 'to', as in 'I have no tool to call a taxi'. Every eighth entry is held out for the test prompts.
"""

from . import words as W

SLOTS = {
    "name": W.name, "city": W.city, "thing": lambda s: s.pick(W.THINGS), "food": lambda s: s.pick(W.FOODS), "animal": lambda s: s.pick(W.ANIMALS),
    "place": lambda s: s.pick(W.PLACES), "room": lambda s: s.pick(W.ROOMS), "time": W.clock, "date": W.date, "n": lambda s: s.int(2, 60), "topic": lambda s: s.pick(W.TOPICS),
    "title": W.title, "code": W.code, "errand": W.errand, "color": lambda s: s.pick(W.COLORS), "message": W.message,
}  # fmt: skip

CAPABILITIES = [
    ("call a taxi", ["Call me a taxi to the {place}.", "I need a taxi at {time}.", "Get me a cab to {city}, please."]),
    ("cut hair", ["Cut my hair.", "I want a haircut at {time}.", "Can you cut {name}'s hair?"]),
    ("make an appointment with a doctor", ["Make an appointment with Dr. {name} on {date}.", "I need to see a doctor on {date}.", "Get me an appointment at the dentist for {time}."]),
    ("print a document", ["Print {title}.", "Print {n} copies of my letter.", "Can you print this page for me?"]),
    ("wash clothes", ["Wash my clothes.", "Start the washing machine.", "Do the laundry at {time}, please."]),
    ("make coffee", ["Make me a coffee.", "Brew {n} cups of coffee.", "I would like a cup of tea, please make one."]),
    ("open or close windows", ["Open the window in the {room}.", "Close all windows.", "Shut the {room} window, please."]),
    ("buy tickets", ["Buy {n} tickets for the {place}.", "Get me tickets for {title}.", "I want two seats at the cinema on {date}."]),
    ("scan a picture", ["Scan this picture.", "Scan my passport, please.", "Make a scan of page {n}."]),
    ("take a photo", ["Take a photo of the {thing}.", "Take a picture of me.", "Make a photo of my {animal}."]),
    ("record a video", ["Record a video of the {animal}.", "Film me for {n} minutes.", "Start recording a video."]),
    ("show pictures", ["Show me a picture of a {animal}.", "Show me my photos from {city}.", "I want to see pictures of {topic}."]),
    ("change a password", ["Change my password.", "Set my password to {code}.", "I forgot my password. Please change it."]),
    ("send money to people", ["Send {n} dollars to {name}.", "Give {name} {n} euros.", "Transfer {n} dollars to {name}'s account."]),
    ("lend books", ["Lend me the book {title}.", "I want to borrow {title} from the library.", "Renew my library books."]),
    ("repair things", ["Repair my {thing}.", "My {thing} is broken, please fix it.", "Can you mend the {thing} in the {room}?"]),
    ("build furniture", ["Build a {thing} for me.", "Make a shelf for the {room}.", "Put the {thing} together."]),
    ("paint walls", ["Paint the {room} {color}.", "I want {color} walls in the {room}.", "Paint my house {color}, please."]),
    ("cut the grass", ["Cut the grass.", "Mow the lawn at {time}.", "The grass is too high. Please cut it."]),
    ("sell things", ["Sell my {thing} for {n} dollars.", "I want to sell my {thing}.", "Offer my {thing} in {city}."]),
    ("find a job", ["Find me a job in {city}.", "Is there any work for a teacher in {city}?", "I am looking for a job at the {place}."]),
    ("hire people", ["Hire {name} as a cook.", "Find somebody to clean the {place}.", "I need a gardener on {date}."]),
    ("measure the body", ["How heavy am I?", "Measure my heart rate.", "What is my blood pressure?"]),
    ("charge the car", ["Charge my car.", "How full is the battery of my car?", "Start charging at {time}."]),
    ("park the car", ["Park the car.", "Find a parking place near the {place}.", "Where did I park my car?"]),
    ("start the car", ["Start the car.", "Start my car at {time}.", "Warm up the car, please."]),
    ("feed the fire", ["Light the fire in the {room}.", "Put more wood on the fire.", "Make a fire, please."]),
    ("run a bath", ["Run a bath.", "Fill the bathtub at {time}.", "I want a warm bath, please."]),
    ("change the television channel", ["Switch to channel {n}.", "Turn on the television.", "What is on television tonight?"]),
    ("show a movie", ["Show the movie {title}.", "Start the film {title}.", "I want to watch {title}."]),
    ("read aloud", ["Read {title} aloud.", "Read me the book {title}.", "Read the newspaper to me."]),
    ("play a game of chess", ["Play chess with me.", "Start a game of chess against {name}.", "Move my queen to D4."]),
    ("solve crosswords", ["Solve this crossword.", "Help me with the puzzle in the newspaper.", "I need a word with {n} letters."]),
    ("draw up a contract", ["Write a contract with {name}.", "Draw up a lease for {n} months.", "Sign the contract with {name}."]),
    ("fill in forms", ["Fill in the form for me.", "Do my taxes.", "Fill in my tax form for {date}."]),
    ("vote", ["Vote for {name}.", "Vote for me in {city}.", "Cast my vote on {date}."]),
    ("post pictures on the internet", ["Post this picture.", "Share my photo with {name}.", "Put the picture of the {animal} on my page."]),
    ("follow people", ["Follow {name} online.", "Like the last post of {name}.", "Block {name}, please."]),
    ("join a meeting", ["Join the meeting at {time}.", "Start a video call with {name}.", "Mute my microphone."]),
    ("compile a program", ["Compile my program.", "Run the tests.", "Run the program {title}."]),
    ("restart the computer", ["Restart my computer.", "Shut down the computer at {time}.", "Update my computer."]),
    ("install programs", ["Install {title} on my phone.", "Download the newest version of {title}.", "Remove the game from my phone."]),
    ("connect to the network", ["Connect to the wireless network.", "Turn on the internet.", "What is the password of the network in the {place}?"]),
    ("query a database", ["How many rows has the table {title}?", "Run a query on the database.", "Delete all customers in {city} from the database."]),
    ("find missing things", ["Find my {thing}.", "Where is my {thing}?", "I lost my {thing}. Please find it."]),
    ("walk the dog", ["Walk the dog.", "Take the {animal} out at {time}.", "Please go for a walk with my dog."]),
    ("catch animals", ["Catch the {animal}.", "There is a {animal} in the {room}, take it away.", "Get the {animal} out of the {place}."]),
    ("milk cows", ["Milk the cows.", "Milk the goat at {time}.", "Shear the sheep."]),
    ("guard the house", ["Watch the house until {time}.", "Turn on the alarm of the house.", "Who is at the door?"]),
    ("ring the bell", ["Ring the bell.", "Ring the bell of the {place} at {time}.", "Sound the horn."]),
    ("wrap a present", ["Wrap the {thing} as a present.", "Wrap a gift for {name}.", "Put the {thing} in {color} paper."]),
    ("mail a parcel", ["Mail this parcel to {name}.", "Send the {thing} to {city} by post.", "Take the parcel to the post."]),
    ("cook a meal", ["Cook {food} for dinner.", "Fry some {food}.", "Heat up the {food}."]),
    ("bake a cake", ["Bake a cake with {food}.", "Bake bread at {time}.", "Put the cake into the oven."]),
    ("carry things", ["Carry the {thing} to the {room}.", "Bring me the {thing}.", "Put the {thing} on the table."]),
    ("set the table", ["Set the table for {n} people.", "Put the plates on the table.", "Do the dishes."]),
    ("sing a song to people", ["Sing {title} for {name}.", "Sing at the party on {date}.", "Play the piano for {name}."]),
    ("fly a drone", ["Fly the drone to the {place}.", "Land the drone.", "Send the drone up {n} meters."]),
    ("steer a ship", ["Steer the ship to {city}.", "Turn the boat {n} degrees.", "Drop the anchor."]),
    ("test water", ["Is the water in the {place} clean?", "Test the water of the {place}.", "How warm is the water in the pool?"]),
    ("fill the pool", ["Fill the pool.", "Heat the pool to {n} degrees.", "Empty the pool on {date}."]),
    ("report a crime", ["Call the police.", "Report that my {thing} was stolen.", "Somebody took my {thing}. Tell the police."]),
    ("grade homework", ["Grade my homework.", "What mark did {name} get?", "Check the homework of {name}."]),
    ("teach a lesson", ["Teach {name} to swim.", "Give {name} a piano lesson on {date}.", "Teach my {animal} a trick."]),
    ("identify plants", ["Which plant is in the picture?", "What flower is this?", "Is this mushroom safe to eat?"]),
    ("name a song", ["Which song is this?", "What is playing on the radio?", "Who sings this song?"]),
    ("count calories", ["How many calories has {food}?", "Count the calories of my dinner.", "How much sugar is in {food}?"]),
    ("check a ticket", ["Is ticket {code} valid?", "Check my train ticket {code}.", "What seat do I have on train {code}?"]),
    ("renew a passport", ["Renew my passport.", "When does my passport run out?", "Get {name} a new passport."]),
    ("insure things", ["Insure my {thing}.", "How much is insurance for a {thing}?", "I want to insure my house in {city}."]),
    ("donate blood", ["I want to give blood on {date}.", "Where can I give blood in {city}?", "Register me to give blood."]),
    ("adopt an animal", ["I want to adopt a {animal}.", "Adopt a {animal} from the {place}.", "Find a home for my {animal}."]),
]  # fmt: skip


# Hand-written tools that could serve such a request after all.
SERVED_BY = {
    "call a taxi": {"rent_car", "call_contact"}, "make an appointment with a doctor": {"create_event", "call_contact"}, "buy tickets": {"add_to_cart"},
    "send money to people": {"pay_bill"}, "join a meeting": {"call_contact", "create_event"}, "cook a meal": {"order_food", "find_recipe"}, "bake a cake": {"find_recipe"},
    "report a crime": {"call_contact", "send_message"}, "carry things": {"move_robot"}, "read aloud": {"read_file"}, "sing a song to people": {"play_music"},
    "show a movie": {"play_music"}, "run a bath": {"set_temperature"}, "fill the pool": {"set_temperature"}, "install programs": {"open_url"}, "mail a parcel": {"send_message"},
}  # fmt: skip
QUESTIONS = ("What", "Which", "How", "Who", "Where", "When", "Is ", "Find", "Show", "Get", "Download", "I am looking")


def request(s, names):
    """A request that none of the tools of these names serves, and what it is about."""
    while True:
        what, asks = s.pick(CAPABILITIES)
        ask = s.any(asks)
        if names & SERVED_BY.get(what, set()) or ("search_web" in names and ask.startswith(QUESTIONS)):
            continue
        return ask.format(**{n: make(s) for n, make in SLOTS.items() if "{" + n + "}" in ask}), what
