"""The generated language is deterministic and follows its rules."""

import re

import pytest

from keras_plm.datasets.microworld import (
    BY_SENSE,
    DEV,
    FEELINGS,
    JUDGED,
    KINDS,
    TEST,
    TRAIN,
    World,
    tasks,
)

pytestmark = pytest.mark.backend_neutral

SPLITS = ("train", "dev", "test")


def test_world_is_determined_by_its_seed():
    first, second = World(), World()
    assert first.corpus(20) == second.corpus(20)
    assert first.tag_names("train") == second.tag_names("train")
    # Results do not depend on earlier draws.
    second.feelings("test")
    assert first.inference("dev") == second.inference("dev")
    assert World(1).corpus(20) != first.corpus(20)


@pytest.mark.parametrize("kind", ["tag_names", "feelings", "inference", "questions"])
def test_label_budget(kind):
    sizes = [len(getattr(World(), kind)(split)) for split in SPLITS]
    assert sizes == [TRAIN, DEV, TEST] == [300, 300, 600]


def names_of(examples):
    return {
        word
        for example in examples
        for word, tag in zip(example.text, example.label, strict=True)
        if tag != "O"
    }


def test_names_are_ambiguous_and_new_in_the_test_split():
    world = World()
    train, test = (names_of(world.tag_names(split)) for split in ("train", "test"))
    corpus = {word for d in world.corpus(300) for s in d for word in s.split()}
    assert not train & test and not corpus & test
    types = {}
    for example in world.tag_names("train"):
        for word, tag in zip(example.text, example.label, strict=True):
            if tag != "O":
                types.setdefault(word, set()).add(tag)
    assert sum(len(found) > 1 for found in types.values()) > 0.3 * len(types)


def test_feelings_follow_negation_and_intensity():
    """Recomputes the label from the words by the rules in the docstrings."""
    strong = "wonderful splendid superb marvellous glorious brilliant awful terrible dreadful"
    strong += " horrible disgusting miserable"
    good = "wonderful splendid superb marvellous glorious brilliant good nice pleasant decent fine"
    good = set(f"{good} agreeable".split())
    for example in World().feelings("test"):
        words = example.text.split()
        judged, adjective = words[1], words[-2]
        if adjective in "long endless lasting".split():
            sense = next(s for s, nouns in JUDGED.items() if judged in nouns.split())
            sign, size = BY_SENSE[sense], 1
        else:
            sign = 1 if adjective in good else -1
            size = 2 if adjective in strong.split() else 1
        degree = next((w for w in words[3:-2] if w != "not"), None)
        if degree in "very really truly extremely".split():
            size = 2
        elif degree is not None:
            size = 1
        if "not" in words:
            sign, size = (0, 0) if degree is not None and size == 1 else (-sign, 1)
        assert example.label == FEELINGS[sign * size + 2], example.text


def test_feelings_of_the_test_split_are_unseen_sentences():
    world = World()
    seen = {e.text for split in ("train", "dev") for e in world.feelings(split)}
    assert not seen & {e.text for e in world.feelings("test")}


def test_inference_follows_kinds_and_negation():
    kind_of = {thing: kind for kind, things in KINDS.items() for thing in things.split()}

    def read(sentence):
        person, verb, article, noun = re.match(r"(\w+) (\w+) (an?|no) (\w+) \.", sentence).groups()
        return person, verb, article == "no", noun

    for example in World().inference("test"):
        person, verb, none, noun = read(example.text)
        other, verb_2, none_2, noun_2 = read(example.pair)
        assert (person, verb) == (other, verb_2)
        below, above = kind_of.get(noun) == noun_2, kind_of.get(noun_2) == noun
        if none == none_2:
            wanted = "entailment" if (above if none else below) else "neutral"
        elif (not none and below) or (none and above):
            wanted = "contradiction"
        else:
            wanted = "neutral"
        assert example.label == wanted, example


def test_answers_occur_once_in_their_passage():
    for example in World().questions("train"):
        (answer,), (start,) = example.label, example.starts
        assert example.pair.split().count(answer) == 1 and answer not in example.text.split()
        assert example.pair[start:].split()[0] == answer
        assert not example.pair[:start].strip() or example.pair[start - 1] == " "


def translated(sentence, other):
    """Translates words by the rules in the docstring of `translations`."""
    verbs = "was loved liked admired praised hated disliked feared blamed met visited greeted"
    verbs = f"{verbs} called walked travelled moved returned".split()
    ranks = {"of": 1, "to": 5, "from": 5, "near": 5}
    ranks |= dict.fromkeys("very really rather fairly".split(), 4)
    adjectives = "wonderful splendid good nice bad poor awful terrible"
    ranks |= dict.fromkeys(adjectives.split(), 3)  # nouns and names: 2

    def phrase(words):
        owner = words[-1] if "of" in words else None
        found = sorted(words, key=lambda word: 0 if word == owner else ranks.get(word, 2))
        return [other.get(word, word) for word in found]

    clauses = []
    for clause in sentence.removesuffix(" .").split(" and "):
        words = [word for word in clause.split() if word not in ("the", "never")]
        (verb,) = (word for word in words if word in verbs)
        place = words.index(verb)
        said = other["neverwas"][:2] * ("never" in clause.split()) + other[verb]
        clauses.append([*phrase(words[:place]), *phrase(words[place + 1 :]), said])
    return f" {other['and']} ".join(" ".join(words) for words in clauses) + " ."


@pytest.mark.quick_cases("0")
@pytest.mark.parametrize("seed", [0, 1])
def test_translations_follow_their_rules(seed):
    world = World(seed)
    for split in SPLITS:
        for source, target in zip(*world.translations(split), strict=True):
            assert target == translated(source, world.other_words), source


def test_translations_by_hand():
    world = World()
    pairs = dict(zip(*world.translations("train"), strict=True))
    by_hand = {
        "Babeck never returned near Kligrouck .": "Babeck Kligrouck near neverreturned .",
        "the very good painter was never really nice .": "painter good very nice really neverwas .",
        "the bad sister of Kligrouck disliked the good farmer and the poor uncle was never very "
        "splendid .": "Kligrouck of sister bad farmer good disliked and uncle poor splendid very "
        "neverwas .",
    }
    for source, order in by_hand.items():
        assert pairs[source] == " ".join(world.other_words.get(w, w) for w in order.split())


@pytest.mark.full
def test_translations_are_unique_and_cover_all_lengths():
    world = World()
    sources = {split: world.translations(split)[0] for split in SPLITS}
    assert [len(sources[split]) for split in SPLITS] == [3000, 120, 240]
    everything = [source for split in SPLITS for source in sources[split]]
    assert len(set(everything)) == len(everything)
    assert {5, 20, 30} <= {len(source.split()) for source in everything} <= set(range(5, 41))
    lengths = [len(source.split()) for source in sources["test"]]
    for low, high in ((5, 10), (10, 20), (20, 41)):
        assert sum(low <= length < high for length in lengths) >= 30
    # The test sentences have no unseen words. They test order and memory.
    assert set(" ".join(sources["test"]).split()) <= set(" ".join(sources["train"]).split())
    with pytest.raises(
        ValueError, match="`split` must be one of train, dev, test. Received: 'valid'"
    ):
        world.translations("valid")


@pytest.mark.full
def test_translated_words_are_unique_and_follow_the_seed():
    world = World()
    words = set(" ".join(world.translations("train")[0]).split())
    others = world.other_words
    assert len(set(others.values())) == len(others) and not words & set(others.values())
    names = {word for word in words if word[0].isupper()}
    assert words - set(others) == {*names, "the", "never", "."} and not names & set(others)
    assert World().other_words == others != World(1).other_words
    assert World().translations("dev") == world.translations("dev") != World(1).translations("dev")


def test_tasks_read_every_split():
    for task in tasks(World()).values():
        for split in SPLITS:
            assert task.read(None, split)
