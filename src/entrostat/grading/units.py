"""Units that may stand behind a number, each with its other spellings."""

from __future__ import annotations

_LENGTHS = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre",
    "km": "kilometer kilometre", "inch": "in", "foot": "ft feet", "yard": "yd", "mile": "mi",
}  # fmt: skip
_OTHERS = {
    "mg": "milligram", "g": "gram gm", "kg": "kilogram", "pound": "lb", "ounce": "oz", "ton": "",
    "ms": "millisecond", "second": "s sec", "minute": "min", "hour": "h hr", "day": "", "week": "",
    "month": "", "year": "yr", "ml": "mL milliliter millilitre", "l": "L liter litre",
    "gallon": "gal", "cup": "", "acre": "", "hectare": "ha", "N": "newton", "J": "joule",
    "W": "watt", "V": "volt", "A": "ampere amp", "Hz": "hertz", "Pa": "pascal", "kelvin": "",
    "mol": "mole", "m/s": "", "km/h": "kmh kph", "mph": "", "m/s^2": "", "dollar": "USD",
    "cent": "", "euro": "EUR", "rad": "radian", "degree": "deg", "square unit": "sq unit",
    "cubic unit": "cu unit", "celsius": "Celsius", "fahrenheit": "Fahrenheit",
}  # fmt: skip
_COUNTED = (
    "unit point way student integer apple orange coin digit edge meal multiple tile ticket "
    "mark page book toy pencil marble ball card child person man woman pie egg cookie solution "
    "number side vertex face term step turn game car dog cat bird tree flower room table chair box "
    "element permutation combination arrangement triangle square outcome path subset word game"
).split()
_PLURALS = {
    "foot": "feet", "inch": "inches", "child": "children", "person": "people", "man": "men",
    "woman": "women", "vertex": "vertices", "box": "boxes",
}  # fmt: skip
SCALES = {
    "hundred": 10**2, "dozen": 12, "thousand": 10**3, "million": 10**6, "billion": 10**9,
    "trillion": 10**12,
}  # fmt: skip
HEAT = {"C": "celsius", "F": "fahrenheit"}
CURRENCIES = {r"\$": "dollar", "$": "dollar", "\u20ac": "euro", "\u00a3": "sterling"}


def _spellings() -> dict[str, str]:
    found: dict[str, str] = {}

    def add(unit: str, *others: str) -> None:
        for name in (unit, *others):
            found.setdefault(name, unit)
            found.setdefault(_PLURALS.get(name, f"{name}s"), unit)

    for unit, others in (_LENGTHS | _OTHERS).items():
        add(unit, *others.split())
    for unit, others in _LENGTHS.items():
        for power, words in ((2, ("square", "sq")), (3, ("cubic", "cu"))):
            for name in (unit, *others.split()):
                for spelt in (name, _PLURALS.get(name, f"{name}s")):
                    found |= {f"{word} {spelt}": f"{unit}^{power}" for word in words}
                    found[f"{spelt}^{power}"] = f"{unit}^{power}"
    for noun in _COUNTED:
        add(noun)
    for top in ("mile", "kilometer", "meter", "foot"):
        plural = _PLURALS.get(top, f"{top}s")
        for bottom, short in (("hour", "h"), ("second", "s")):
            unit = {("mile", "h"): "mph"}.get((top, short), f"{found[top]}/{short}")
            found[f"{plural} per {bottom}"] = found[f"{found[top]}/{short}"] = unit
            found[f"{found[top]}/{bottom[:2]}"] = unit
    for power, unit in ((2, "square unit"), (3, "cubic unit")):
        found |= dict.fromkeys((f"unit^{power}", f"units^{power}"), unit)
    for letter, unit in HEAT.items():
        name = unit.capitalize()
        found |= dict.fromkeys((f"degrees {name}", f"degree {name}", rf"^\circ {letter}"), unit)
    return found


UNITS = _spellings()
