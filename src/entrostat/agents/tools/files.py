"""Tool tasks on a directory of text files."""

from __future__ import annotations

import random
from typing import Any

from ...sandbox import Session
from ..python_tool import SUBMITTED
from .world import CITIES, PEOPLE, Instance, State, World

ABOUT = "The files of the task are in the current directory. Leave no other files behind."
_LEVELS = ("INFO", "WARNING", "ERROR", "DEBUG")
_TOPICS = "budget garden holiday invoice kitchen lecture library museum recipe survey".split()
_SETTINGS = "cache color depth limit port retries seed speed timeout width".split()


def setup(state: State) -> str:
    return (
        "import os as _os\n"
        f"for _path, _text in {state!r}.items():\n"
        "    _os.makedirs(_os.path.dirname(_path) or '.', exist_ok=True)\n"
        "    with open(_path, 'w') as _file:\n"
        "        _file.write(_text + '\\n')\n"
    )


def read(notebook: Session) -> State:
    files = notebook.files()
    return {path: text.rstrip() for path, text in files.items() if path != SUBMITTED}


def _text(lines: Any) -> str:
    return "\n".join(lines)


def _count_lines(rng: random.Random) -> Instance:
    path = f"{rng.choice(_TOPICS)}.log"
    lines = [(rng.choice(_LEVELS), rng.choice(PEOPLE[:6])) for _ in range(rng.randint(12, 30))]
    level, person = rng.choice(lines)
    number = sum(line == (level, person) for line in lines)
    text = _text(f"{a} user={b}" for a, b in lines)
    return Instance(
        f"How many lines of {path} have level {level} and user {person}? Submit the number.",
        {path: text},
        answer=number,
    )


def _sum_column(rng: random.Random) -> Instance:
    topic, city = rng.choice(_TOPICS), rng.choice(CITIES)
    rows = [(rng.choice(CITIES), rng.randint(5, 95)) for _ in range(rng.randint(10, 20))]
    rows += [(city, rng.randint(5, 95)) for _ in range(2)]
    rng.shuffle(rows)
    path = f"{topic}.csv"
    return Instance(
        f"{path} has the columns city and amount. What do the amounts of {city} add up to? "
        "Submit the number.",
        {path: _text(["city,amount", *(f"{a},{b}" for a, b in rows)])},
        answer=sum(amount for place, amount in rows if place == city),
    )


def _notes(rng: random.Random, count: int) -> State:
    topics = rng.sample(_TOPICS, count)
    return {f"{topic}.txt": f"{rng.choice(PEOPLE)} in {rng.choice(CITIES)}" for topic in topics}


def _rename(rng: random.Random) -> Instance:
    before = _notes(rng, rng.randint(3, 6))
    old = rng.choice(sorted(before))
    new = f"{rng.choice(PEOPLE).lower()}_{rng.randint(1, 99)}.txt"
    after = {new if path == old else path: text for path, text in before.items()}
    return Instance(f"Rename {old} to {new}.", before, after)


def _delete_by_suffix(rng: random.Random) -> Instance:
    before = _notes(rng, rng.randint(3, 6))
    folder, suffix = rng.choice(_TOPICS), rng.choice(("tmp", "bak", "old"))
    for number in rng.sample(range(100), rng.randint(1, 3)):
        before[f"{folder}/{number}.{suffix}"] = rng.choice(PEOPLE)
    before[f"{folder}/{suffix}.txt"] = rng.choice(PEOPLE)
    after = {path: text for path, text in before.items() if not path.endswith(f".{suffix}")}
    return Instance(
        f"Delete every file in the folder {folder} whose name ends in .{suffix}, and no others.",
        before,
        after,
    )


def _change_setting(rng: random.Random) -> Instance:
    keys = rng.sample(_SETTINGS, rng.randint(4, 7))
    values = {key: rng.randint(1, 60) for key in keys}
    key, value = rng.choice(keys), rng.randint(61, 99)
    path = f"{rng.choice(_TOPICS)}.cfg"

    def text(table: dict[str, int]) -> str:
        return _text(f"{name} = {number}" for name, number in table.items())

    return Instance(
        f"In {path}, set {key} to {value} and leave the other lines as they are.",
        {path: text(values)},
        {path: text(values | {key: value})},
    )


def _merge(rng: random.Random) -> Instance:
    one, two, target = rng.sample(_TOPICS, 3)
    names = rng.sample(PEOPLE, rng.randint(6, 12))
    cut = rng.randint(2, len(names) - 2)
    before = {f"{one}.txt": _text(names[:cut]), f"{two}.txt": _text(names[cut:])}
    return Instance(
        f"Write the lines of {one}.txt and {two}.txt, taken together in alphabetical order, to "
        f"{target}.txt. Keep the two files.",
        before,
        before | {f"{target}.txt": _text(sorted(names))},
    )


def _extract(rng: random.Random) -> Instance:
    source, target = rng.sample(_TOPICS, 2)
    people = rng.sample(PEOPLE, rng.randint(8, 14))
    places = rng.sample(CITIES, 4)
    rows = [(person, rng.choice(places)) for person in people]
    city = rng.choice(rows)[1]
    found = sorted(person for person, place in rows if place == city)
    before = {f"{source}.csv": _text(["name,city", *(f"{a},{b}" for a, b in rows)])}
    return Instance(
        f"{source}.csv has the columns name and city. Write the names of those in {city} to "
        f"{target}.txt in alphabetical order, one a line. Then submit how many there are.",
        before,
        before | {f"{target}.txt": _text(found)},
        answer=len(found),
    )


def _find_file(rng: random.Random) -> Instance:
    folders = rng.sample(_TOPICS, 3)
    people = rng.sample(PEOPLE, 9)
    before = {
        f"{folder}/{number}.txt": people.pop()
        for folder in folders
        for number in rng.sample(range(1, 40), rng.randint(2, 3))
    }
    path = rng.choice(sorted(before))
    return Instance(
        f"One file in the folders {', '.join(folders)} says {before[path]}. Submit its path, "
        "such as folder/1.txt.",
        before,
        answer=path,
    )


def _split(rng: random.Random) -> Instance:
    source = rng.choice(_TOPICS)
    places = rng.sample(CITIES, rng.randint(2, 3))
    rows = [(person, rng.choice(places)) for person in rng.sample(PEOPLE, rng.randint(6, 10))]
    before = {f"{source}.csv": _text(["name,city", *(f"{a},{b}" for a, b in rows)])}
    parts = {
        f"{city.lower()}.txt": _text(person for person, place in rows if place == city)
        for city in sorted({place for _, place in rows})
    }
    return Instance(
        f"{source}.csv has the columns name and city. For each city write a file such as "
        f"{rows[0][1].lower()}.txt (the city in lower case) with the names of those in it, one a "
        f"line, in the order of {source}.csv.",
        before,
        before | parts,
    )


def _largest(rng: random.Random) -> Instance:
    counts = dict(zip(rng.sample(_TOPICS, 4), rng.sample(range(2, 12), 4), strict=True))
    before = {
        f"{topic}.txt": _text(rng.choice(PEOPLE) for _ in range(count))
        for topic, count in counts.items()
    }
    most = max(counts, key=lambda topic: counts[topic])
    after = {path: text for path, text in before.items() if path != f"{most}.txt"}
    return Instance(f"Of {', '.join(before)}, delete the one with most lines.", before, after)


FILES = World(
    ABOUT,
    setup,
    read,
    (
        (1, _count_lines), (1, _sum_column), (1, _rename), (2, _delete_by_suffix),
        (2, _change_setting), (2, _merge), (2, _find_file), (3, _extract),
    ),
    ((3, _split), (2, _largest)),
    (
        "How many names are in staff.txt? Submit the number.",
        (
            ("print(open('staff.txt').read())", "Anton\nBirgit\nCelia"),
            ("submit(3)", ""),
        ),
    ),
)  # fmt: skip
