"""Simple facts for questions and answers, as `key: value` pairs."""


def pairs(text):
    return [tuple(part.strip() for part in item.split(":", 1)) for item in text.strip().split(";") if item.strip()]


CAPITALS = pairs("""France: Paris; England: London; Italy: Rome; Germany: Berlin; Spain: Madrid; Norway: Oslo; Austria: Vienna;
Ireland: Dublin; Portugal: Lisbon; Greece: Athens; Egypt: Cairo; Japan: Tokyo; South Korea: Seoul; China: Beijing; India: New Delhi;
Kenya: Nairobi; Ghana: Accra; Canada: Ottawa; Peru: Lima; Cuba: Havana; Australia: Canberra; Russia: Moscow; Poland: Warsaw;
Finland: Helsinki; Sweden: Stockholm; Denmark: Copenhagen; Belgium: Brussels; the Netherlands: Amsterdam; Turkey: Ankara;
Iraq: Baghdad; Iran: Tehran; Vietnam: Hanoi; Thailand: Bangkok; Hungary: Budapest; Romania: Bucharest; Bulgaria: Sofia;
Serbia: Belgrade; Croatia: Zagreb; Chile: Santiago; Argentina: Buenos Aires; Brazil: Brasilia; Mexico: Mexico City; the United States: Washington, D.C.;
Switzerland: Bern; Scotland: Edinburgh; Wales: Cardiff; Iceland: Reykjavik; Ukraine: Kyiv; Nepal: Kathmandu; Colombia: Bogota; Ecuador: Quito""")

OPPOSITES = pairs("""hot: cold; big: small; tall: short; fast: slow; happy: sad; old: new; light: dark; hard: soft; wet: dry; full: empty;
early: late; good: bad; high: low; open: closed; up: down; left: right; rich: poor; strong: weak; clean: dirty; loud: quiet;
thick: thin; wide: narrow; near: far; day: night; young: old; first: last; in: out; begin: end; love: hate; push: pull; sweet: sour;
heavy: light; deep: shallow; brave: afraid; true: false; alive: dead; always: never; rough: smooth; sharp: dull; win: lose;
buy: sell; give: take; laugh: cry; friend: enemy; north: south; east: west; summer: winter; black: white; yes: no; before: after""")

COLORS_OF = pairs("""the sky: blue; grass: green; snow: white; blood: red; a banana: yellow; a carrot: orange; coal: black; milk: white;
a lemon: yellow; a tomato: red; the sea: blue; a leaf: green; an orange: orange; chocolate: brown; a cherry: red; the sun: yellow;
a frog: green; a polar bear: white; a crow: black; a flamingo: pink; an elephant: gray; a strawberry: red; a plum: purple; sand: yellow;
a cloud: white; gold: yellow; a fire engine: red; a cucumber: green; a swan: white; a pumpkin: orange; tree bark: brown; a mouse: gray""")

SOUNDS = pairs("""dog: woof; cat: meow; cow: moo; sheep: baa; duck: quack; pig: oink; horse: neigh; lion: roar; frog: ribbit; owl: hoot;
rooster: cock-a-doodle-doo; snake: hiss; bee: buzz; mouse: squeak; wolf: howl; crow: caw; goat: maa; donkey: hee-haw; hen: cluck; bird: tweet""")

LEGS = pairs("""dog: 4; cat: 4; horse: 4; spider: 8; bee: 6; ant: 6; bird: 2; hen: 2; snake: no; fish: no; cow: 4; duck: 2; frog: 4; butterfly: 6;
elephant: 4; octopus: no; worm: no; penguin: 2; crab: 10; lion: 4; pig: 4; sheep: 4; goat: 4; rabbit: 4; mouse: 4; bear: 4""")

BABIES = pairs("""dog: puppy; cat: kitten; cow: calf; horse: foal; sheep: lamb; pig: piglet; duck: duckling; hen: chick; goat: kid; lion: cub;
bear: cub; frog: tadpole; deer: fawn; swan: cygnet; goose: gosling; owl: owlet; kangaroo: joey; wolf: cub""")

HOMES = pairs("""A bird: in a nest; A bee: in a hive; A fish: in the water; A fox: in a den; A rabbit: in a burrow; A dog: with people, in a house;
A horse: in a stable; A spider: in a web; A lion: in the grasslands of Africa; A polar bear: in the Arctic; A penguin: in the far south, where it is cold;
A camel: in the desert; A monkey: in the trees of warm forests; A whale: in the sea; A frog: near ponds; A mole: under the ground;
An ant: in an anthill; A cow: on a farm; An owl: in the woods; A crab: by the sea; A kangaroo: in Australia; A squirrel: in the trees""")

USES = pairs("""an umbrella: keep dry in the rain; a hammer: drive nails; a pencil: write and draw; a spoon: eat soup; a knife: cut things;
a key: open a lock; a clock: tell the time; a book: read stories; a bed: sleep; a chair: sit; a cup: drink; a broom: sweep the floor;
a towel: dry yourself; soap: wash your hands; a lamp: make light; a map: find the way; a phone: talk to people who are far away;
a boat: travel over water; a bicycle: ride from place to place; a saw: cut wood; a ladder: climb up high; a coat: keep warm; glasses: see better;
a camera: take pictures; a bucket: carry water; a stove: cook food; a fridge: keep food cold; a blanket: keep warm in bed; a needle: sew clothes;
a telescope: look at the stars; a mirror: see yourself; a rope: tie things; a comb: tidy your hair; an oven: bake bread; a kite: fly it in the wind""")

WHAT_IS = pairs("""rain: Rain is water that falls from the clouds in drops; snow: Snow is frozen water that falls from the clouds in soft white flakes;
ice: Ice is water that has frozen and become hard; the sun: The sun is a star. It gives the earth light and warmth;
the moon: The moon is a ball of rock that travels around the earth; a star: A star is a huge ball of hot, glowing gas far away in space;
a planet: A planet is a large round body that travels around a star; wind: Wind is air that moves; a river: A river is a long stream of water that flows to the sea;
a lake: A lake is a large body of water with land all around it; the sea: The sea is the great salt water that covers most of the earth;
an island: An island is land with water all around it; a mountain: A mountain is a very high part of the land; a forest: A forest is a large place full of trees;
a desert: A desert is a very dry place where little rain falls; a volcano: A volcano is a mountain that can throw out hot melted rock;
a cloud: A cloud is made of many tiny drops of water in the sky; a rainbow: A rainbow is an arc of colors that appears when the sun shines through rain;
thunder: Thunder is the loud sound that lightning makes; fire: Fire is the light and heat that come from something burning; a tree: A tree is a tall plant with a trunk of wood, branches and leaves;
a flower: A flower is the part of a plant that makes seeds. Many flowers are bright and smell sweet; a seed: A seed is a small thing from which a new plant grows;
a bird: A bird is an animal with wings, feathers and a beak; a fish: A fish is an animal that lives in water and breathes through gills; an insect: An insect is a small animal with six legs;
a whale: A whale is a very large animal that lives in the sea and breathes air; a bat: A bat is a small animal with wings that flies at night;
bread: Bread is a food made from flour and water and baked in an oven; butter: Butter is a soft yellow food made from cream; cheese: Cheese is a food made from milk;
honey: Honey is a sweet food that bees make from flowers; a king: A king is a man who rules a country; a queen: A queen is a woman who rules a country, or the wife of a king;
a doctor: A doctor is a person who helps sick people get well; a teacher: A teacher is a person who helps others learn; a farmer: A farmer is a person who grows food and keeps animals;
a baker: A baker is a person who makes bread and cakes; a sailor: A sailor is a person who works on a ship; a school: A school is a place where children learn;
a library: A library is a place with many books to read and borrow; a museum: A museum is a place where old or beautiful things are shown; a hospital: A hospital is a place where sick people are cared for;
a friend: A friend is somebody whom you like and trust; a dream: A dream is a story that your mind makes while you sleep; a song: A song is music with words to sing;
a poem: A poem is a piece of writing with rhythm, and often with rhymes; a computer: A computer is a machine that follows instructions and works with numbers and words;
a robot: A robot is a machine that can move and do tasks by itself; a language model: A language model is a program that learned from text to guess the next word. I am one;
a triangle: A triangle is a shape with three sides; a square: A square is a shape with four equal sides; a circle: A circle is a perfectly round shape; a year: A year is the time the earth takes to go around the sun, about 365 days;
a week: A week is seven days; an hour: An hour is sixty minutes; money: Money is what people use to buy things; a map: A map is a drawing of a place seen from above;
a dragon: A dragon is a great beast in old stories. It has wings and breathes fire; a fairy: A fairy is a small magic being in stories; a giant: A giant is a very tall and strong man in stories;
gravity: Gravity is the force that pulls things down to the earth; electricity: Electricity is a kind of energy that makes lamps shine and machines run; a magnet: A magnet is a piece of metal that pulls iron to itself;
a bridge: A bridge is a road built over a river or a valley; a castle: A castle is a large strong house with thick walls where lords once lived; a shadow: A shadow is the dark shape behind something that stands in the light""")

HOW_TO = pairs("""make tea: Boil some water, pour it over the tea, wait three minutes, and take out the leaves;
cook rice: Wash the rice, add twice as much water, and let it simmer with a lid on until the water is gone; boil an egg: Put the egg in boiling water for about eight minutes, then cool it in cold water;
plant a seed: Make a small hole in the soil, put the seed in, cover it, and water it a little every day; make a sandwich: Take two slices of bread and put butter and cheese between them;
fall asleep: Make the room dark and quiet, lie down, breathe slowly, and think of something pleasant; learn to read: Start with the letters and their sounds, then short words, and read a little every day;
make a friend: Be kind, listen well, and share something that you like; keep a plant alive: Give it light, water it when the soil is dry, and do not let it freeze; wash a dog: Wet its coat with warm water, rub in a little soap, rinse it well, and dry it;
learn a language: Learn a few words each day, listen often, and do not be afraid to speak; draw a cat: Draw a circle for the head with two pointed ears, an oval for the body, and a long tail; stay healthy: Eat fresh food, sleep well, and move every day;
bake a cake: Mix flour, sugar, butter and eggs, pour it into a pan, and bake it for about forty minutes; write a letter: Begin with a greeting, say what you want to say, and end with your name; make pancakes: Mix flour, milk and eggs, and fry thin rounds of it in a hot pan;
save money: Spend less than you earn, and put a little away every week; calm down: Breathe in slowly, count to ten, and breathe out; clean a window: Wipe it with soapy water and dry it with a soft cloth; tie a knot: Cross the two ends, pass one under the other, and pull both tight""")

JOKES = pairs("""Why did the chicken cross the road?: To get to the other side!; What has hands but cannot clap?: A clock!; What gets wetter the more it dries?: A towel!;
Why do bees hum?: Because they do not know the words!; What has a neck but no head?: A bottle!; Why was the math book sad?: It had too many problems!; What kind of tree fits in your hand?: A palm tree!;
What do you call a sleeping bull?: A bulldozer!; Why did the cookie go to the doctor?: It felt crumbly!; What has teeth but cannot bite?: A comb!; What goes up and never comes down?: Your age!;
Why did the man put his clock in the oven?: He wanted to have a hot time!; What do you call a bear with no teeth?: A gummy bear!; What has one eye but cannot see?: A needle!; Why can't a bicycle stand by itself?: Because it is two tired!;
What did one wall say to the other?: I will meet you at the corner!; What kind of room has no doors?: A mushroom!; Why do birds fly south?: Because it is too far to walk!""")

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
PLURALS = pairs("""dog: dogs; cat: cats; mouse: mice; child: children; man: men; woman: women; foot: feet; tooth: teeth; goose: geese; fox: foxes; leaf: leaves;
knife: knives; baby: babies; city: cities; sheep: sheep; fish: fish; box: boxes; wolf: wolves; person: people; bus: buses; potato: potatoes; story: stories""")
PASTS = pairs("""go: went; eat: ate; see: saw; run: ran; sing: sang; write: wrote; give: gave; take: took; come: came; make: made; buy: bought; think: thought; walk: walked;
find: found; know: knew; swim: swam; drink: drank; sleep: slept; fly: flew; begin: began; bring: brought; teach: taught; play: played; jump: jumped""")
RHYMES = pairs("""cat: hat; dog: frog; tree: bee; night: light; house: mouse; star: car; moon: spoon; ring: king; cake: lake; sun: fun; bed: red; boat: goat; rain: train; sky: fly; door: floor; sheep: sleep; snow: go; bell: well""")
