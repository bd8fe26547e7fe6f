"""Made-up people, companies, towns and dates for texts and records: common names joined at random, no real person.

All functions take a `random.Random` and return other values on every call; `several` makes them distinct.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST = _words(
    "Adrian Aisha Alma Amir Anders Anika Arturo Astrid Beatriz Benoit Bianca Callum Carmen Cedric Chiara Dalia Damian "
    "Daria Dmitri Edith Elena Elias Emeka Esther Farid Felix Fiona Freya Gabriel Gideon Grace Hamid Hanna Hector Ida "
    "Imani Ingrid Isaac Ivana Jamal Jolene Jonas Julia Kamal Karin Kenji Lara Leandro Leila Linus Lucia Magnus Maya "
    "Malik Marta Mei Milan Mirela Nadia Naveen Nils Noor Olga Omar Oscar Paloma Petra Priya Quentin Rafael Renata Rosa "
    "Ruben Samira Sanjay Selma Silas Simone Stefan Sunita Tamar Tariq Teresa Tobias Uma Valerie Viktor Wanda Yara "
    "Yusuf Zoe"
)
LAST = _words(
    "Abara Acheson Adler Almeida Andrade Aslan Barlow Becker Bellamy Berg Bianchi Birch Bjork Boateng Brandt Calloway "
    "Castro Chandra Colby Costa Dahl Danso Delgado Devlin Drake Duarte Ekström Fairley Falk Farrow Ferrer Fontaine "
    "Fraser Garland Gauthier Greer Haddad Hale Hartmann Holm Ibarra Iyer Jansen Kaplan Kato Keane Keller Kimura Klein "
    "Kovac Larkin Lindgren Lowe Madsen Marek Mbeki Mercer Molina Moreau Nakamura Ngata Nolan Novak Okafor Olsen "
    "Ortega Osman Pace Pereira Petrov Quist Rahman Ramsey Reyes Rossi Sandoval Sato Schmitt Sharma Shaw Silva Soto "
    "Stein Sutter Tanaka Thorne Tran Ueda Vance Varga Vega Vogel Walsh Weber Winter Yilmaz Zapata Zeller"
)
_STEM = _words(
    "Alder Amber Arbor Ash Beacon Birch Bright Cedar Clear Cobalt Copper Coral Crest Dawn Delta Ember Fern Flint Glen "
    "Granite Green Harbor Hawk Hazel Helio Iron Jade Juniper Kestrel Lark Linden Lumen Maple Marlin Meridian Mill "
    "Nimbus North Oak Onyx Orchid Otter Pine Quarry Raven Ridge River Saffron Sage Silver Slate Solar Stone Summit "
    "Tern Timber Umber Vale Verdant Violet West Willow Wren"
)
_TRADE = _words(
    "Analytics Biotech Brewing Ceramics Components Devices Electronics Energy Foods Freight Glass Instruments "
    "Laboratories Logistics Marine Materials Media Optics Paper Pharma Plastics Robotics Seeds Shipping Software "
    "Systems Textiles Tools Water Works"
)
_TOWN_END = _words(
    "bridge burgh bury cliff dale field ford gate ham haven holm hurst mere minster mouth stead ton wick"
)
GOODS = _words(
    "adapter backpack blender bookshelf camera charger clipboard coffee-grinder compass desk-lamp drill dustpan "
    "fan flask hammer headset helmet jacket kettle keyboard ladder lantern microphone monitor mouse notebook "
    "office-chair printer projector raincoat router scale scanner screwdriver speaker stapler tablet tent thermos "
    "toaster toolbox tripod umbrella vacuum wallet webcam"
)


def several(rng: random.Random, make: Callable[[random.Random], T], count: int) -> list[T]:
    """`count` different values of `make`, in the order of their making."""
    found: dict[T, None] = {}
    while len(found) < count:
        found[make(rng)] = None
    return list(found)


def person(rng: random.Random) -> str:
    """A full name: `Selma Okafor`."""
    return f"{rng.choice(FIRST)} {rng.choice(LAST)}"


def company(rng: random.Random) -> str:
    """`Harbor Optics`."""
    return f"{rng.choice(_STEM)} {rng.choice(_TRADE)}"


def town(rng: random.Random) -> str:
    """`Cedarmere`."""
    return rng.choice(_STEM) + rng.choice(_TOWN_END)


def email(name: str, domain: str) -> str:
    """The address of a person: `selma.okafor@...`."""
    return f"{name.lower().replace(' ', '.')}@{domain}".encode("ascii", "ignore").decode()


def day(rng: random.Random, first: str, last: str) -> str:
    """An ISO date from first to last, both included."""
    begin, end = datetime.date.fromisoformat(first), datetime.date.fromisoformat(last)
    return (begin + datetime.timedelta(rng.randint(0, (end - begin).days))).isoformat()


def later(date: str, days: int) -> str:
    """The ISO date so many days after (before, if negative) another one."""
    return (datetime.date.fromisoformat(date) + datetime.timedelta(days)).isoformat()


def spoken(date: str) -> str:
    """An ISO date as prose has it: `4 March 2025`."""
    at = datetime.date.fromisoformat(date)
    return f"{at.day} {at:%B} {at.year}"


def listed(items: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
