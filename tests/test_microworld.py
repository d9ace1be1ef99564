"""The generated language: repeatable, and true to its own rules."""

import re

import pytest

from benchmarks.microworld import BY_SENSE, DEV, FEELINGS, JUDGED, KINDS, TEST, TRAIN, World, tasks

SPLITS = ("train", "dev", "test")


def test_a_world_is_a_function_of_its_seed():
    first, second = World(), World()
    assert first.corpus(20) == second.corpus(20)
    assert first.tag_names("train") == second.tag_names("train")
    # Nothing depends on what was drawn before.
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


def test_names_are_new_at_test_time_and_only_context_types_them():
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
    """The label recomputed from the words alone, by the rules as the docstrings give them."""
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


def test_no_test_sentence_was_seen_with_its_label():
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


def test_answers_stand_in_their_passage_once():
    for example in World().questions("train"):
        assert example.pair.split().count(example.label) == 1
        assert example.label not in example.text.split()


def test_tasks_read_every_split():
    for task in tasks(World()).values():
        for split in SPLITS:
            assert task.read(None, split)
