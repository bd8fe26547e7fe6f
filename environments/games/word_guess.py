"""Find a hidden five-letter word of a list by letters that are placed, misplaced or absent."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.games.game import Game, Match, Play
from environments.task import Message, Task
from environments.tools import ToolError, tool

_TEXT = (
    "abbey acorn adobe alarm album alley amber apple apron arrow aspen attic bacon badge basil beach beard berry "
    "birch blade blaze bloom board bonus brick bride brook broom brush cabin camel candy canoe cargo cedar chain "
    "chalk charm cheek chess chest cider clamp clerk cliff clock cloud coach cobra comet coral couch crane crate "
    "creek crown daisy dance delta diner dough draft dream drill eagle earth easel elbow ember fable fairy fence "
    "ferry field flame flask fleet flood flute forge frame frost fruit ghost giant glade glass glove grain grape "
    "grass guard guest habit heart hedge heron honey horse hotel house ivory jewel judge juice kayak knife label "
    "ladle laser lemon lever light llama lodge lunch maple march marsh medal melon metal miner model money motor "
    "mount mouse music night noise north novel nurse oasis ocean olive onion opera orbit otter paint panel paper "
    "peach pearl phone piano pilot pitch plant plate poker pouch prism prize quail queen quilt radar ranch raven "
    "ridge river robot rover salad scale scarf shade shark sheep shelf shell shore skate slate slope smoke snail "
    "spice spoon spray squad stage stair stamp steam stone storm sugar swamp swing sword table thorn tiger toast "
    "torch tower trail train trout truck tulip uncle valve vault verse villa viola voice wagon waste watch whale "
    "wheat wheel youth zebra "
)
WORDS = _TEXT.split()
SIZES, GUESSES = (30, 80, 180), (6, 5, 5)


def marks(guess: str, hidden: str) -> str:
    """`G` in place, `Y` elsewhere in the word (each letter of it is used once), `-` absent."""
    left = [h for g, h in zip(guess, hidden, strict=True) if g != h]
    out = ""
    for g, h in zip(guess, hidden, strict=True):
        if g == h:
            out += "G"
        elif g in left:
            left.remove(g)
            out += "Y"
        else:
            out += "-"
    return out


class Letters(Match):
    """The hidden word and the guesses so far."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.left = task.info["guesses"]

    @tool
    def guess(self, word: str) -> dict[str, Any]:
        """Guess a word of the list. The answer has a mark for each letter: G, Y or -."""
        if word not in self.task.info["words"]:
            raise ToolError("only words of the list may be guessed, in small letters; this did not cost a guess")
        self.left -= 1
        told = marks(word, self.task.info["hidden"])
        if told == "GGGGG" or not self.left:
            self.end(told == "GGGGG")
        return {"word": word, "marks": told, "guesses_left": self.left}


class WordGuess(Game):
    """Longer lists and fewer guesses: every guess must split the words that are still possible."""

    id = "games/word_guess"
    skills = ("deduction",)
    world = Letters

    def draw(self, rng: random.Random, level: int) -> Draft:
        guesses = GUESSES[level - 1]
        while True:
            words = sorted(rng.sample(WORDS, SIZES[level - 1]))
            hidden = rng.choice(words)
            if len(_guesses(words, hidden)) <= guesses:
                break
        text = (
            f"I have picked one word of the list below. Find it in at most {guesses} guesses with the tool `guess`. "
            "Each guess is answered with five marks: G for a letter in its right place, Y for a letter that is in the "
            "word at another place (a letter of the hidden word accounts for only one mark), - for a letter that is "
            f"not in the word (or not that often).\n\n{' '.join(words)}"
        )
        return Draft(text, None, {"words": words, "hidden": hidden, "guesses": guesses})

    def play(self, task: Task) -> Play:
        left = task.info["words"]
        while True:
            told = yield "guess", {"word": left[0]}
            left = [w for w in left[1:] if marks(told["word"], w) == told["marks"]]

    def weak(self, task: Task) -> list[Message]:
        """Heeds letters in their places only."""
        return self.script(task, _placed(task))


def _placed(task: Task) -> Play:
    left = task.info["words"]
    while True:
        told = yield "guess", {"word": left[0]}
        right = [i for i, mark in enumerate(told["marks"]) if mark == "G"]
        left = [w for w in left[1:] if all(w[i] == told["word"][i] for i in right)]


def _guesses(words: list[str], hidden: str) -> list[str]:
    """What a player says who always names the first word that fits all marks."""
    said: list[str] = []
    while not said or said[-1] != hidden:
        said.append(words[0])
        told = marks(words[0], hidden)
        words = [w for w in words[1:] if marks(said[-1], w) == told]
    return said
