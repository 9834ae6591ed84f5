r"""Units after a number, with their spellings.

A unit is a product of powers: \mathrm{kJ}\,\mathrm{mol}^{-1}, "kilojoules per mole" and kJ/mol are
equal. SI units take prefixes; no unit is converted into another.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from .tree import Token

Unit = tuple[tuple[str, int], ...]

_PREFIXES = {
    "tera": "T", "giga": "G", "mega": "M", "kilo": "k", "hecto": "h", "deci": "d", "centi": "c",
    "milli": "m", "micro": "u", "nano": "n", "pico": "p", "femto": "f",
}  # fmt: skip
# symbol -> names; these take prefixes
_SI = {
    "m": "meter metre", "g": "gram", "s": "second", "A": "ampere amp", "mol": "mole",
    "L": "liter litre", "Hz": "hertz", "N": "newton", "J": "joule", "W": "watt", "V": "volt",
    "C": "coulomb", "F": "farad", "ohm": "", "T": "tesla", "H": "henry", "Pa": "pascal",
    "eV": "electronvolt", "cal": "calorie", "M": "molar", "K": "kelvin", "bar": "", "pc": "parsec",
    "yr": "year", "Wb": "weber", "rad": "radian", "B": "byte",
}  # fmt: skip
_OTHERS = {
    "inch": "in", "foot": "ft feet", "yard": "yd", "mile": "mi", "pound": "lb", "ounce": "oz",
    "ton": "tonne", "s": "sec", "min": "minute", "h": "hour hr", "day": "", "week": "", "month": "",
    "mL": "ml", "L": "l", "gallon": "gal", "cup": "", "acre": "", "hectare": "ha", "kW*h": "kWh",
    "dollar": "USD", "cent": "", "euro": "EUR", "degree": "deg", "amu": "u Da",
    "celsius": "Celsius", "fahrenheit": "Fahrenheit", "angstrom": "AA", "atm": "",
    "erg": "", "dyn": "dyne", "arcsec": "arcsecond", "arcmin": "arcminute", "torr": "mmHg Torr",
    "AU": "", "rpm": "", "gauss": "G", "ohm": "Omega", "bit": "", "rev": "revolution",
    "atom": "", "molecule": "", "photon": "", "electron": "", "ion": "", "particle": "",
    "ly": "lightyear", "Msun": "", "dB": "decibel", "g": "gm", "rad": "r",
}  # fmt: skip
_COUNTED = (
    "unit point way student integer apple orange coin digit edge meal multiple tile ticket "
    "mark page book toy pencil marble ball card child person man woman pie egg cookie solution "
    "number side vertex face term step turn game car dog cat bird tree flower room table chair box "
    "element permutation combination arrangement triangle square outcome path subset word"
).split()
_PLURALS = {
    "foot": "feet", "inch": "inches", "child": "children", "person": "people", "man": "men",
    "woman": "women", "vertex": "vertices", "box": "boxes", "henry": "henries",
}  # fmt: skip
SCALES = {
    "hundred": 10**2, "dozen": 12, "thousand": 10**3, "million": 10**6, "billion": 10**9,
    "trillion": 10**12,
}  # fmt: skip
HEAT = {"C": "celsius", "F": "fahrenheit"}
CURRENCIES = {r"\$": "dollar", "$": "dollar", "\u20ac": "euro", "\u00a3": "sterling"}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_SHORT = {
    "squared": "^2", "cubed": "^3", "mph": "mile/h", "kph": "km/h", "kmh": "km/h",
    "fps": "foot/s", "per": "/",
}  # fmt: skip
_COMMANDS = ("mu", "AA", "Omega", "frac")
_SHORTENED = re.compile(rf"\b(?:{'|'.join(_SHORT)})\b|\bdegrees?\s+(?=[CF])")
_LONGEST = 16  # most tokens of a unit


def _spellings() -> dict[str, str]:
    found = {unit: unit for unit in (*_SI, *_OTHERS)}

    def add(unit: str, names: str) -> None:
        for name in names.split():
            found.setdefault(name, unit)
            if len(name) > 1:
                found.setdefault(_PLURALS.get(name, f"{name}s"), unit)

    for unit, names in _SI.items():
        add(unit, names)
        for name, prefix in _PREFIXES.items():
            found.setdefault(f"{prefix}{unit}", f"{prefix}{unit}")
            add(f"{prefix}{unit}", " ".join(f"{name}{one}" for one in names.split()))
    for unit, names in _OTHERS.items():
        add(unit, f"{unit} {names}")
    for noun in _COUNTED:
        add(noun, noun)
    return found


UNITS = _spellings()
_TERM = re.compile(r"(/|\A)\s*(?:\(([^()/]*)\)|([^()/\s][^()/]*))")
_FACTOR = re.compile(
    r"\s*(?:(square|sq|cubic|cu)\s+)?([^\W\d_]+)\s*(?:\^\s*([-+]?\d)(?!\d))?[\s.]*(?:\*+(?=\s*\w))?"
)


def unit_of(tokens: Sequence[Token]) -> Unit | None:
    text = ""
    for token in tokens:
        if token.command and token.command not in _COMMANDS:
            return None
        text += f" {token.value} " if token.kind in ("word", "text") else str(token.value)
    text = re.sub(r"\\mu(?![a-zA-Z])\s*", "u", text).replace(r"\cdot", "*")
    text = re.sub(r"\\(AA|Omega|frac)(?![a-zA-Z])", r" \1 ", text)
    text = re.sub(r" frac \{([^{}]*)\}\{([^{}]*)\}", r"(\1)/(\2)", text)
    text = re.sub(r"\\[,;: ]|[~{}\[\]]", " ", text)
    text = _SHORTENED.sub(lambda found: _SHORT.get(found[0], ""), text)
    return _parsed(re.sub(r"[\s*.]*/[\s*./]*", "/", text).strip())


def _parsed(text: str) -> Unit | None:
    """Parse a unit: the bar divides by a bracket, J/(mol*K), else by the next factor only."""
    powers: Counter[str] = Counter()
    for bar, group, plain in _TERM.findall(text):
        sign = -1 if bar else 1
        for more, name, power in _FACTOR.findall(group or plain):
            if name not in UNITS:
                return None
            powers[UNITS[name]] += sign * _POWERS.get(more, 1) * int(power or 1)
            sign = sign if group else 1
        if _FACTOR.sub("", group or plain):
            return None
    unit = tuple(sorted((unit, power) for unit, power in powers.items() if power))
    return None if _TERM.sub("", text) else unit or None


def unit_at_end(tokens: list[Token]) -> tuple[list[Token], Unit | None]:
    """Split off the unit at the end of an item; 5m has none, it is five times m."""
    names = [bool(token.command) or token.kind in ("word", "text") for token in tokens]
    for begin in range(max(1, len(tokens) - _LONGEST), len(tokens)):
        kind, value = tokens[begin]
        if not names[begin] and value not in ("/", "{", "["):
            continue
        letter = kind == "word" and len(value) == 1 and sum(names[begin:]) == 1
        unit = None if letter else unit_of(tokens[begin:])
        if unit is not None:
            return tokens[:begin], unit
    return tokens, None


def named(*units: str) -> Unit:
    return tuple(sorted((unit, 1) for unit in units))
