"""The words of the embedded dialogues: what may stand in a background line, a user turn and a reply.

Text is lower case, one token a word, marks included, so that a word-level tokenizer needs no rules. Every combination
that `corpus` can draw is grammatical, and every reply built from REPLIES names at least one of its slots: that is what
makes "keeps to the facts" checkable. No value is a word of any other phrase (hence no "may" or "march" outside MONTHS).
"""

KINDS = ("fact", "emotion", "advice")  # what the user's turn asks for

# What a person may say of themselves: one value for each topic. Jobs all take "a".
VALUES = {
    "job": ["nurse", "teacher", "baker", "pilot", "farmer", "painter", "lawyer", "plumber", "chef", "writer"],
    "hobby": [
        "hiking",
        "swimming",
        "painting",
        "reading",
        "cycling",
        "fishing",
        "dancing",
        "cooking",
        "running",
        "sailing",
    ],
    "pet": [f"{count} {pet}" for count in ("two", "three") for pet in ["cats", "dogs", "birds", "rabbits", "horses"]],
    "food": ["pizza", "sushi", "pasta", "curry", "soup", "tacos", "salad", "noodles", "pancakes", "steak"],
    "city": ["paris", "london", "rome", "tokyo", "berlin", "madrid", "lisbon", "dublin", "vienna", "prague"],
    "music": ["jazz", "rock", "opera", "blues", "folk", "reggae", "metal", "techno", "soul", "country"],
}
# What the world holds: an event's name, its month and (from VALUES) its city.
EVENTS = [
    "lantern festival",
    "harvest fair",
    "kite parade",
    "winter market",
    "tulip show",
    "river race",
    "puppet week",
    "honey feast",
    "drum night",
    "lemon carnival",
]
MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]

PERSONA_LINES = {
    "job": ["i work as a {value} .", "my job is being a {value} ."],
    "hobby": ["i love {value} .", "my hobby is {value} ."],
    "pet": ["i have {value} .", "there are {value} at my home ."],
    "food": ["my favorite food is {value} .", "i could eat {value} every day ."],
    "city": ["i live in {value} .", "i grew up in {value} ."],
    "music": ["i listen to {value} music .", "i am a fan of {value} music ."],
}
KNOWLEDGE_LINE = "the {event} is held in {month} in {city} ."

USER_TURNS = {
    ("job", "fact"): ["what do you do for a living ?", "where does your money come from ?", "tell me about your job ."],
    ("job", "emotion"): ["i just lost my job .", "my boss yelled at me again .", "work makes me so tired ."],
    ("job", "advice"): [
        "which career should i choose ?",
        "what job would you suggest to me ?",
        "should i change my job ?",
    ],
    ("hobby", "fact"): ["what do you do for fun ?", "do you have a hobby ?", "how do you spend your weekends ?"],
    ("hobby", "emotion"): [
        "i am bored and lonely on weekends .",
        "i got hurt and cannot play anymore .",
        "nobody at my club talks to me .",
    ],
    ("hobby", "advice"): [
        "what should i do with my free time ?",
        "which hobby should i start ?",
        "how can i relax more ?",
    ],
    ("pet", "fact"): ["do you have any pets ?", "are there animals in your house ?", "tell me about your pets ."],
    ("pet", "emotion"): [
        "my puppy is sick and i am worried .",
        "i lost my kitten last week .",
        "my parrot does not sing anymore .",
    ],
    ("pet", "advice"): ["should i get a pet ?", "which animal is good for kids ?", "what pet should i adopt ?"],
    ("food", "fact"): [
        "what do you like to eat ?",
        "what is your favorite dish ?",
        "what should we order , what do you like ?",
    ],
    ("food", "emotion"): ["i burned my dinner again .", "nobody liked the meal i made .", "i am so hungry and sad ."],
    ("food", "advice"): [
        "what should i cook tonight ?",
        "what can i make for my friends ?",
        "which dish should i try ?",
    ],
    ("city", "fact"): ["where do you live ?", "where are you from ?", "tell me about your home town ."],
    ("city", "emotion"): [
        "i just moved and i miss my home .",
        "i feel lost in this new town .",
        "i do not know anyone here .",
    ],
    ("city", "advice"): [
        "where should i go on holiday ?",
        "which city should i visit ?",
        "where should i move to ?",
    ],
    ("music", "fact"): ["what music do you like ?", "what do you listen to ?", "do you enjoy music ?"],
    ("music", "emotion"): [
        "i failed my music exam .",
        "my favorite band broke up .",
        "i got no tickets for the concert .",
    ],
    ("music", "advice"): [
        "what should i listen to at work ?",
        "which records should i buy ?",
        "what can i play at my party ?",
    ],
    ("event", "fact"): ["when is the {event} ?", "tell me about the {event} .", "what do you know of the {event} ?"],
    ("event", "emotion"): [
        "i missed the {event} and i am sad .",
        "nobody wants to see the {event} with me .",
        "i am so worried about the {event} .",
    ],
    ("event", "advice"): [
        "should i go to the {event} ?",
        "how do i plan for the {event} ?",
        "what should i do for the {event} ?",
    ],
}

# A reply is an opening, a core and a closing. Openings and closings depend on the kind alone, so they fit every core.
OPENINGS = {
    "fact": ["", "well , ", "sure , ", "oh , "],
    "emotion": ["i am so sorry , ", "oh no , ", "that touches me , ", "i understand , "],
    "advice": ["", "well , ", "honestly , ", "in my view , "],
}
CLOSINGS = {
    "fact": [".", "and i enjoy it .", "and i am glad of it .", "and that makes me happy ."],
    "emotion": [".", "so stay strong .", "so i feel with you .", "and you are not alone ."],
    "advice": [".", "and take your time .", "because it is worth it .", "and tell me how it goes ."],
}
CORES = {
    ("job", "fact"): [
        "i work as a {value}",
        "i am a {value}",
        "i have been a {value} for years",
        "my job is being a {value}",
    ],
    ("job", "emotion"): [
        "being a {value} is hard too",
        "my life as a {value} has such days",
        "i often feel the same as a {value}",
    ],
    ("job", "advice"): ["you should become a {value}", "try to work as a {value}", "why not train as a {value}"],
    ("hobby", "fact"): ["i love {value}", "i do a lot of {value}", "i spend my time on {value}", "my hobby is {value}"],
    ("hobby", "emotion"): [
        "{value} always lifts my heart",
        "only {value} helped me on such days",
        "{value} makes me feel alive again",
    ],
    ("hobby", "advice"): ["you should try {value}", "why not take up {value}", "give {value} a chance"],
    ("pet", "fact"): ["i have {value}", "i live with {value}", "i own {value}", "there are {value} in my house"],
    ("pet", "emotion"): ["my {value} mean the world to me", "i would cry for my {value}", "my {value} worry me too"],
    ("pet", "advice"): ["you should get {value}", "why not adopt {value} like me", "try to start with {value}"],
    ("food", "fact"): ["i love {value}", "my favorite is {value}", "i eat {value} every day", "i like {value} best"],
    ("food", "emotion"): [
        "some {value} would lift my heart",
        "i always turn to {value} on such days",
        "i cry over bad {value} too",
    ],
    ("food", "advice"): ["you should make {value}", "why not try {value}", "give {value} a chance"],
    ("city", "fact"): ["i live in {value}", "i am from {value}", "my home is {value}", "i was raised in {value}"],
    ("city", "emotion"): [
        "{value} felt strange to me at first",
        "i felt the same way in {value}",
        "my heart belongs to {value}",
    ],
    ("city", "advice"): ["you should visit {value}", "why not go to {value}", "take a trip to {value}"],
    ("music", "fact"): [
        "i listen to {value}",
        "i love {value} music",
        "i am a big {value} fan",
        "i play mostly {value} songs",
    ],
    ("music", "emotion"): [
        "{value} songs make me cry",
        "{value} music lifts my heart",
        "i feel that when i hear {value}",
    ],
    ("music", "advice"): ["you should play {value}", "why not try some {value}", "put on some {value} songs"],
    ("event", "fact"): [
        "the {event} is held in {month}",
        "it takes place in {month} in {city}",
        "the {event} happens in {city}",
        "it is in {month}",
    ],
    ("event", "emotion"): [
        "{city} feels empty after {month}",
        "the {event} in {city} makes me cry too",
        "i would be sad to miss it in {month}",
    ],
    ("event", "advice"): [
        "you should go to {city} in {month}",
        "book a room in {city} for {month}",
        "try to visit {city} early in {month}",
    ],
}

# Answers that fit everything and say nothing: what a dull model, or a distracted person, writes.
GENERIC = [
    "that is nice .",
    "i do not know .",
    "me too .",
    "how are you today ?",
    "i see .",
    "that is cool , what about you ?",
    "i am not sure what you mean .",
    "ok .",
    "sounds good to me .",
    "i like to talk with people .",
]
