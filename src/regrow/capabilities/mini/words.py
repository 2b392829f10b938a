"""Vocabularies of the mini suite.

A word's place in a long list decides its split (partition.words_of): append, never insert. The short lists at the end
belong to all splits.
"""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words(
    "Anna Ben Clara David Emma Frank Grace Henry Irene Jack Karen Leo Maria Nick Olivia Paul Quinn Rosa Sam Tina "
    "Umar Vera Will Xenia Yusuf Zoe Adam Bella Carl Diana Eric Fiona George Hanna Ivan Julia Kevin Laura Martin "
    "Nora Oscar Petra Ralph Sofia Tom Ursula Victor Wendy Alan Beth Chris Daisy Edgar Freya Greg Helen Isaac "
    "Jenny Kurt Linda Mark Nadia Owen Paula Rick Sara Theo Amy Bruno Cora Dean Elsa"
)

CITIES = _words(
    "Paris Oslo Rome Lima Cairo Tokyo Berlin Madrid Vienna Dublin Athens Prague Lisbon Boston Delhi Seoul Quito "
    "Havana Kyoto Milan Geneva Denver Austin Dallas Miami Munich Warsaw Zurich Lagos Accra Tunis Dakar Sydney "
    "Perth Bogota Santiago Hanoi Manila Jakarta Dubai Doha Muscat Riga Vilnius Tallinn Sofia Zagreb Bergen Malmo "
    "Porto Seville Naples Turin Lyon Nice Bordeaux Krakow Bristol Leeds Cardiff"
)

THINGS = _words(
    "lamp chair table clock mirror basket kettle blanket pillow bottle bucket ladder hammer pencil notebook "
    "backpack umbrella jacket scarf helmet bicycle guitar violin drum camera radio printer keyboard phone tablet "
    "vase candle carpet curtain shelf drawer spoon plate bowl mug pan oven toaster blender fan heater broom brush "
    "towel soap wallet watch ring necklace tent rope torch compass map whistle"
)

FOODS = _words(
    "apples bread milk cheese rice eggs pasta butter onions carrots tomatoes beans grapes lemons peaches pears "
    "plums cherries bananas oranges mushrooms potatoes peppers spinach lettuce garlic honey sugar flour salt nuts "
    "yogurt cream juice tea coffee soup noodles cereal oats corn peas pumpkin celery melons figs dates mangoes "
    "olives cucumbers beets radishes almonds walnuts raisins muffins biscuits pies jam cabbage"
)

ANIMALS = _words(
    "dog cat horse rabbit parrot goat sheep cow duck goose donkey hamster turtle pony hen pig fox owl lizard frog "
    "mouse swan llama ferret pigeon calf lamb puppy kitten canary"
)

SURNAMES = _words(
    "Smith Brown Miller Davis Wilson Moore Taylor Clark Lewis Walker Hall Young King Wright Hill Scott Green "
    "Baker Adams Nelson Carter Mitchell Roberts Turner Phillips Campbell Parker Evans Edwards Collins Stewart "
    "Morris Rogers Reed Cook Morgan Bell Murphy Bailey Cooper Howard Ward Brooks Kelly Price Bennett Wood Barnes"
)

STREETS = _words(
    "Oak Maple Pine Cedar Elm River Lake Park Church Mill Bridge Garden Station Market School Forest Valley Rose "
    "Lily Sunset Harbor Castle Spring Meadow"
)

PLACES = _words(
    "lake beach forest desert river park garden market library museum station airport school farm castle island "
    "mountain village harbor bridge kitchen hotel bakery theater"
)

SUBJECTS = _words(
    "history biology chemistry physics geography music art English Latin economics algebra geometry drawing "
    "poetry grammar astronomy"
)

ADJECTIVES = _words("quiet happy bright gentle simple golden silver sweet strong soft")

TASKS = _words("tea pasta homework laundry reading sleep")

DEVICES = _words("radio television speaker phone tablet")

COLOURS = _words("red blue green yellow black white brown grey pink purple")

DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")

LANGUAGES = _words("French Spanish German Italian Greek Polish Dutch Swedish Turkish Korean Arabic Hindi")

ROOMS = _words("kitchen bedroom bathroom office garage hallway")
