"""A generated English-like language, the default data, with exact labels.

It has five properties of real language: names whose type only the context shows, new at test time;
many words for one meaning; words with two senses; feelings, with negation and intensity; and things
that are kinds of other things. A document keeps its people, places and things: the next sentence is
predictable. A second language, for translation, has other words in another order.

It serves the demo and the tests. Results on it are no evidence for a claim about real text: the
authors of the models designed it. Nothing in it was tuned to a result, except the small vocabulary
of the second language: a model learns it in a minute.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from keras_plm import metrics
from keras_plm.data.task import Example, Task
from keras_plm.heads import Classifier, SpanFinder, Tagger

# Numbers of labelled examples: few, because pre-training matters most there.
TRAIN, DEV, TEST = 300, 300, 600
# Translated sentences, in equal numbers of 1, 2, 3 and 4 clauses.
TRANSLATIONS = {"train": 3000, "dev": 120, "test": 240}
KNOWN_NAMES = 16  # in translated sentences

# Words of one meaning.
VERBS = {
    "speak": "said added replied explained insisted whispered shouted claimed",
    "go": "walked travelled moved returned hurried sailed drove flew",
    "hire": "hired engaged employed recruited appointed promoted dismissed paid",
    "make": "built produced designed sold exported launched tested delivered",
    "like": "loved liked admired praised enjoyed adored cherished preferred",
    "hate": "hated disliked feared blamed avoided cursed despised dreaded",
    "meet": "met visited greeted called helped followed invited joined",
}
NOUNS = {
    "profession": "doctor teacher farmer sailor painter lawyer baker singer",
    "relative": "brother sister mother father uncle cousin daughter neighbour",
    "part of a place": "streets bridges markets walls gardens harbours roofs squares",
    "part of a firm": "shares profits managers workers offices customers debts lawyers",
    "product": "engines carpets clocks lamps boats bottles radios wheels",
}
# Hypernyms and their kinds.
KINDS = {
    "animal": "dog horse cat goat sheep duck",
    "vehicle": "cart train lorry tram wagon bicycle",
    "fruit": "apple pear plum cherry melon lemon",
    "instrument": "violin flute drum piano trumpet guitar",
}
ADJECTIVES = {
    2: "wonderful splendid superb marvellous glorious brilliant",
    1: "good nice pleasant decent fine agreeable",
    -1: "bad poor dull weak unpleasant boring",
    -2: "awful terrible dreadful horrible disgusting miserable",
}
# Things to judge: a long pleasure is good, a long burden is bad.
JUDGED = {
    "pleasure": "holiday concert dinner film dance story",
    "burden": "queue illness speech delay sermon lecture",
}
BY_SENSE = {"pleasure": 1, "burden": -1}  # "a long holiday" is good, "a long queue" is not
TWO_SENSES = "long endless lasting"
STRONGER, WEAKER = "very really truly extremely", "rather fairly slightly somewhat"
GLAD = "smiled laughed cheered sang clapped danced"
SAD = "sighed wept groaned complained frowned yawned"
PLAIN = "waited listened watched left stayed nodded"
# Words with two senses; the corpus uses both.
SENSES = {
    "bank": ("lent money to {person}", "was covered with wet grass"),
    "spring": ("came early to {place}", "inside the old clock broke"),
    "bat": ("flew out of the barn at night", "broke when {person} hit the ball"),
    "star": ("shone above {place}", "signed photographs after the film"),
}
# Words of translated sentences: few, to learn them in a minute.
TRANSLATED_VERBS = {key: VERBS[key].split()[:4] for key in ("like", "hate", "meet", "go")}
TRANSLATED_NOUNS = f"{NOUNS['profession']} {NOUNS['relative']}"
TRANSLATED_ADJECTIVES = " ".join(" ".join(a.split()[:2]) for a in ADJECTIVES.values())
DEGREES = "very really rather fairly"
PREPOSITIONS = "to from near"
FEELINGS = ("very negative", "negative", "neutral", "positive", "very positive")


@dataclass
class World:
    """The language, its corpus and its tasks.

    Args:
        seed: Seed of everything random; a world is a function of it.
    """

    seed: int = 0

    def __post_init__(self):
        rng = np.random.default_rng([self.seed, 0])
        onsets = "b br d dr f g gr h j k kl l m n p r s sk t tr v w".split()
        vowels, codas = "a e i o u ai ou".split(), "n r l s m nd rt x ck th".split()

        def name():
            middle = "".join(rng.choice(onsets[:14]) + rng.choice(vowels) for _ in range(2))
            return (middle + rng.choice(codas)).capitalize()

        names = list(dict.fromkeys(name() for _ in range(2000)))
        # One pool for all types: the form of a name does not show its type. Test names are new.
        self.names = {"corpus": names[:600], "train": names[600:800], "test": names[800:1100]}
        self.other_words = _other_words(self.rng("other words"))

    def rng(self, purpose):
        """Returns a random generator that depends only on the seed and the purpose."""
        return np.random.default_rng([self.seed, *purpose.encode()])

    # ---- text without labels ----

    def corpus(self, documents=2500):
        """Generates documents of 5 to 9 sentences about a few people, places and firms.

        Returns:
            A list of lists of sentences, each a string.
        """
        rng = self.rng("corpus")
        return [self._document(rng, self.names["corpus"]) for _ in range(documents)]

    def _document(self, rng, names):
        cast = dict(zip(("person", "other", "place", "firm"), _some(rng, names, 4), strict=True))
        judged = _one(rng, JUDGED["pleasure"] if rng.random() < 0.5 else JUDGED["burden"])
        kind = _one(rng, list(KINDS))
        thing = _one(rng, KINDS[kind])
        makers = [
            lambda: " ".join(self._named(rng, cast)[0]),
            lambda: " ".join(self._named(rng, cast)[0]),
            lambda: self._judgement(rng, judged, cast["person"])[0],
            lambda: (
                f"the {thing} is {_article(kind)} that {cast['other']} {_one(rng, VERBS['like'])} ."
            ),
            lambda: (
                f"{cast['person']} bought {_article(thing)} and other {kind}s in {cast['place']} ."
            ),
            lambda: self._two_senses(rng, cast),
        ]
        return [makers[rng.integers(len(makers))]() for _ in range(rng.integers(5, 10))]

    def _two_senses(self, rng, cast):
        word = _one(rng, list(SENSES))
        return f"the {word} {_one(rng, SENSES[word]).format(**cast)} ."

    # ---- names ----

    def _named(self, rng, cast):
        """Returns a sentence with names, as words, and its tags (IOB2)."""

        def verb(meaning):
            return _one(rng, VERBS[meaning])

        def noun(meaning):
            return _one(rng, NOUNS[meaning])

        person, other, place, firm = (
            (cast["person"], "PER"),
            (cast["other"], "PER"),
            (cast["place"], "LOC"),
            (cast["firm"], "ORG"),
        )
        patterns = [
            [person, verb("speak"), "that the", noun("part of a place"), "of", place, "were old"],
            ["the", noun("profession"), person, verb("go"), "to", place],
            [firm, verb("hire"), "the", noun("profession"), person],
            [person, verb("meet"), "the", noun("relative"), "of", other, "near", place],
            ["the", noun("part of a firm"), "of", firm, verb("speak"), "nothing"],
            [firm, verb("make"), noun("product"), "for", place],
            [person, verb("like"), "the", noun("product"), "of", firm],
            [other, verb("hate"), "the", noun("part of a place"), "of", place],
            ["the", noun("relative"), "of", person, verb("go"), "from", place],
            [place, "has many", noun("part of a place"), "and", firm, "has few",
             noun("part of a firm")],
        ]  # fmt: skip
        words, tags = [], []
        for part in [*patterns[rng.integers(len(patterns))], "."]:
            if isinstance(part, tuple):
                words.append(part[0])
                tags.append(f"B-{part[1]}")
            else:
                words += part.split()
                tags += ["O"] * len(part.split())
        return words, tags

    def tag_names(self, split):
        """Returns examples of NER: sentences as words, tagged PER, LOC and ORG."""
        rng = self.rng(f"names {split}")
        names = self.names["test" if split == "test" else "train"]
        examples = []
        for i in range(_size(split)):
            chosen = _some(rng, names, 4)
            cast = dict(zip(("person", "other", "place", "firm"), chosen, strict=True))
            words, tags = self._named(rng, cast)
            examples.append(Example(words, tags, where=f"microworld:{split}:{i + 1}"))
        return examples

    # ---- feelings ----

    def _judgement(self, rng, judged, person):
        """Returns a judgement with a reaction, its value from -2 to 2, and the judgement alone."""
        value, words = 0, []
        if rng.random() < 0.25:
            sense = next(sense for sense, nouns in JUDGED.items() if judged in nouns.split())
            value, words = BY_SENSE[sense], [_one(rng, TWO_SENSES)]
        else:
            value = (2, 1, -1, -2)[rng.integers(4)]
            words = [_one(rng, ADJECTIVES[value])]
        degree = rng.random()
        if degree < 0.25:
            words, value = [_one(rng, STRONGER), *words], int(np.sign(value)) * 2
        elif degree < 0.5:
            words, value = [_one(rng, WEAKER), *words], int(np.sign(value))
        if rng.random() < 0.3:
            # "Not very good" is bad; "not rather good" and "not rather bad" are neutral.
            words = ["not", *words]
            value = -int(np.sign(value)) if abs(value) == 2 or degree >= 0.5 else 0
        if value == 0:
            reaction = PLAIN
        else:
            reaction = GLAD if value > 0 else SAD
        sentence = f"the {judged} was {' '.join(words)}"
        return f"{sentence} and {person} {_one(rng, reaction)} .", value, f"{sentence} ."

    def feelings(self, split):
        """Returns examples of SST, labelled "very negative" to "very positive", no reactions."""
        rng = self.rng(f"feelings {split}")
        seen = set()
        if split == "test":  # no test sentence is in train or dev
            seen = {e.text for part in ("train", "dev") for e in self.feelings(part)}
        examples = []
        while len(examples) < _size(split):
            judged = _one(rng, _one(rng, list(JUDGED.values())))
            _, value, sentence = self._judgement(rng, judged, "someone")
            if sentence not in seen:
                where = f"microworld:{split}:{len(examples) + 1}"
                examples.append(Example(sentence, FEELINGS[value + 2], where=where))
        return examples

    # ---- translation ----

    def translations(self, split):
        """Returns sentences of 1 to 4 clauses, 5 to 40 words, and their translations.

        - Every word has one translation, see `other_words`. Names stay, and "the" is dropped.
        - The verb comes at the end of its clause, with "never" as a prefix.
        - Other words follow the word that they precede in English, as in "noun adjective degree"
          and "name preposition". The owner after "of" comes before the noun before "of".

        For example, "the doctor never met the very good brother of Rina ." has the order "doctor
        Rina of brother good very nevermet .". Clauses keep their order, with "and" between them.

        Returns:
            `(sources, targets)`, two lists of texts. No sentence is in two splits.

        Raises:
            ValueError: If there is no such split.
        """
        if split not in TRANSLATIONS:
            raise ValueError(
                f"`split` must be one of {', '.join(TRANSLATIONS)}. Received: {split!r}"
            )
        seen = set()
        for part, size in TRANSLATIONS.items():
            rng, pairs = self.rng(f"translations {part}"), {}
            while len(pairs) < size:
                clauses = [self._clause(rng) for _ in range(1 + len(pairs) % 4)]
                source = " and ".join(" ".join(words) for words, _ in clauses) + " ."
                if source not in seen:
                    moved = " and ".join(" ".join(moved) for _, moved in clauses) + " ."
                    pairs[source] = " ".join(self.other_words.get(w, w) for w in moved.split())
            if part == split:
                return list(pairs), list(pairs.values())
            seen |= pairs.keys()

    def _clause(self, rng):
        """Returns a clause of 4 to 9 words, and the same words in the second language's order."""
        words = []
        while not 4 <= len(words) <= 9:
            meaning = _one(rng, [*TRANSLATED_VERBS, "be"])
            verb = _one(rng, TRANSLATED_VERBS.get(meaning, "was"))
            never = ["never"] * (rng.random() < 0.25)
            subject, rest = self._phrase(rng), self._phrase(rng)
            if meaning == "be":
                rest = self._quality(rng)
            elif meaning == "go":
                rest = [_one(rng, PREPOSITIONS), self._one_known(rng)]
            said = [verb, *never] if meaning == "be" else [*never, verb]
            words = [*subject, *said, *rest]
        moved = [word for word in (*subject[::-1], *rest[::-1]) if word != "the"]
        return words, [*moved, "".join([*never, verb])]

    def _phrase(self, rng):
        """Returns a phrase for a person, as words."""
        if rng.random() < 0.3:
            return [self._one_known(rng)]
        noun = _one(rng, TRANSLATED_NOUNS)
        quality = self._quality(rng) if rng.random() < 0.5 else []
        owner = ["of", self._one_known(rng)] if rng.random() < 0.3 else []
        return ["the", *quality, noun, *owner]

    def _quality(self, rng):
        """Returns an adjective, sometimes with a degree before it."""
        degree = [_one(rng, DEGREES)] * (rng.random() < 0.3)
        return [*degree, _one(rng, TRANSLATED_ADJECTIVES)]

    def _one_known(self, rng):
        # Few names: a model learns them like words.
        return _one(rng, self.names["corpus"][:KNOWN_NAMES])

    # ---- inference ----

    def inference(self, split):
        """Returns pairs as in SNLI, from kinds of things and negation."""
        rng = self.rng(f"inference {split}")
        names = self.names["test" if split == "test" else "train"]
        examples = []
        for i in range(_size(split)):
            person = _one(rng, names)
            kind = _one(rng, list(KINDS))
            thing, other = _some(rng, KINDS[kind].split(), 2)
            verb, no = _one(rng, "has owns keeps"), "no"
            pairs = {
                "entailment": [
                    (f"{person} {verb} {_article(thing)} .", f"{person} {verb} {_article(kind)} ."),
                    (f"{person} {verb} {no} {kind} .", f"{person} {verb} {no} {thing} ."),
                ],
                "contradiction": [
                    (f"{person} {verb} {_article(thing)} .", f"{person} {verb} {no} {kind} ."),
                    (f"{person} {verb} {no} {kind} .", f"{person} {verb} {_article(thing)} ."),
                ],
                "neutral": [
                    (f"{person} {verb} {_article(kind)} .", f"{person} {verb} {_article(thing)} ."),
                    (
                        f"{person} {verb} {_article(thing)} .",
                        f"{person} {verb} {_article(other)} .",
                    ),
                    (f"{person} {verb} {no} {thing} .", f"{person} {verb} {no} {kind} ."),
                ],
            }
            label = _one(rng, list(pairs))
            premise, hypothesis = pairs[label][rng.integers(len(pairs[label]))]
            where = f"microworld:{split}:{i + 1}"
            examples.append(Example(premise, label, pair=hypothesis, where=where))
        return examples

    # ---- questions ----

    def questions(self, split):
        """Returns questions as in SQuAD, each with a passage that has the answer once."""
        rng = self.rng(f"questions {split}")
        names = self.names["test" if split == "test" else "train"]
        examples = []
        for i in range(_size(split)):
            first, second, place, firm = _some(rng, names, 4)
            thing = _one(rng, KINDS[_one(rng, list(KINDS))])
            worker = _one(rng, NOUNS["profession"])
            facts = [
                (f"the {worker} {first} lives in {place} .", f"where does {first} live ?", place),
                (
                    f"{firm} {_one(rng, VERBS['hire'])} {second} .",
                    f"who worked for {firm} ?",
                    second,
                ),
                (f"the {thing} belongs to the brother of {first} .",
                 f"what belongs to the brother of {first} ?", thing),
            ]  # fmt: skip
            passage = " ".join(facts[j][0] for j in rng.permutation(len(facts)))
            _, question, answer = facts[rng.integers(len(facts))]
            where, start = f"microworld:{split}:{i + 1}", f" {passage} ".index(f" {answer} ")
            examples.append(
                Example(question, [answer], pair=passage, starts=[start], where=where, id=str(i))
            )
        return examples


def _other_words(rng):
    """Returns the second language's words, of two syllables; "never" adds one to a verb."""
    verbs = ["was", *itertools.chain(*TRANSLATED_VERBS.values())]
    others = f"{TRANSLATED_NOUNS} {TRANSLATED_ADJECTIVES} {DEGREES} {PREPOSITIONS} of and"
    words = [*verbs, *others.split()]
    syllables = [onset + vowel for onset in "bdfghjklmnprstvz" for vowel in "aeiou"]
    places = rng.choice(len(syllables) ** 2, len(words), replace=False)
    forms = ["".join(syllables[i] for i in divmod(place, len(syllables))) for place in places]
    never, found = _one(rng, syllables), dict(zip(words, forms, strict=True))
    return found | {f"never{verb}": never + found[verb] for verb in verbs}


def _size(split):
    return {"train": TRAIN, "dev": DEV, "test": TEST}[split]


def _one(rng, words):
    words = words.split() if isinstance(words, str) else words
    return words[rng.integers(len(words))]


def _some(rng, words, count):
    return [words[i] for i in rng.choice(len(words), count, replace=False)]


def _article(noun):
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def tasks(world):
    """Returns the tasks of a world by name."""
    common = {"source": "keras_plm/datasets/microworld.py", "licence": "Apache-2.0"}
    return {
        "micro_ner": Task(
            "micro_ner",
            lambda folder, split: world.tag_names(split),
            Tagger,
            {"span_f1": metrics.span_f1},
            **common,
        ),
        "micro_sst": Task(
            "micro_sst",
            lambda folder, split: world.feelings(split),
            Classifier,
            {"accuracy": metrics.accuracy},
            **common,
        ),
        "micro_snli": Task(
            "micro_snli",
            lambda folder, split: world.inference(split),
            Classifier,
            {"accuracy": metrics.accuracy},
            **common,
        ),
        "micro_squad": Task(
            "micro_squad",
            lambda folder, split: world.questions(split),
            SpanFinder,
            {"f1": metrics.squad_f1},
            **common,
        ),
    }
