"""Tool tasks on a calendar of one week, through a small API."""

from __future__ import annotations

import json
import random
from typing import Any

from ...sandbox import Session
from .world import PEOPLE, Instance, State, World

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri")
_TITLES = (
    "audit briefing budget demo design hiring interview lunch onboarding planning review "
    "retrospective standup training workshop"
).split()
_FIRST, _LAST = 9, 17  # hours of the day that the calendar covers
_FILE = "calendar.json"

ABOUT = """\
A week from Mon to Fri; events are within whole hours from 9 to 17, and no two overlap.
list_events(day=None) -> events as {"id", "title", "day", "start", "end", "people"}
add_event(title, day, start, end, people) -> its id
move_event(id, day, start, end); invite(id, person); cancel_event(id)
Days are "Mon", hours numbers."""

_API = f'''
import json as _json

def _load():
    with open({_FILE!r}) as file:
        return _json.load(file)

def _save(events):
    with open({_FILE!r}, "w") as file:
        _json.dump(events, file)

def _find(events, id):
    for event in events:
        if event["id"] == id:
            return event
    raise ValueError(f"no event has the id {{id!r}}")

def _check(events, new):
    if new["day"] not in {DAYS!r}:
        raise ValueError(f"no such day: {{new['day']!r}}")
    if not {_FIRST} <= new["start"] < new["end"] <= {_LAST}:
        raise ValueError(f"no such hours: {{new['start']!r}} to {{new['end']!r}}")
    for event in events:
        apart = event["end"] <= new["start"] or new["end"] <= event["start"]
        if event["id"] != new["id"] and event["day"] == new["day"] and not apart:
            raise ValueError(f"{{event['title']}} is at that time")

def list_events(day=None):
    """Events of a day, or of the week, in order."""
    events = sorted(_load(), key=lambda e: ({DAYS!r}.index(e["day"]), e["start"]))
    return [event for event in events if day in (None, event["day"])]

def add_event(title, day, start, end, people=()):
    """Add an event; its id."""
    events = _load()
    new = dict(id=max((e["id"] for e in events), default=0) + 1, title=title, day=day,
               start=start, end=end, people=sorted(people))
    _check(events, new)
    _save([*events, new])
    return new["id"]

def move_event(id, day, start, end):
    """Change when an event is."""
    events = _load()
    event = _find(events, id)
    event.update(day=day, start=start, end=end)
    _check(events, event)
    _save(events)

def invite(id, person):
    """Add a person to an event."""
    events = _load()
    event = _find(events, id)
    event["people"] = sorted({{*event["people"], person}})
    _save(events)

def cancel_event(id):
    """Remove an event."""
    events = _load()
    events.remove(_find(events, id))
    _save(events)
'''


def setup(state: State) -> str:
    """Code that creates API and calendar; a state has (day, start, end, people) by title."""
    events = [
        {"id": i, "title": title, "day": day, "start": start, "end": end, "people": people}
        for i, (title, (day, start, end, people)) in enumerate(state.items(), 1)
    ]
    return f"{_API}\n_save({events!r})\n"


def read(notebook: Session) -> State:
    """Title -> [day, start, end, people], or a list of these if events share a title."""
    found: dict[str, list[Any]] = {}
    for event in json.loads(notebook.files()[_FILE]):
        row = [event["day"], event["start"], event["end"], sorted(event["people"])]
        found.setdefault(event["title"], []).append(row)
    return {title: rows[0] if len(rows) == 1 else rows for title, rows in found.items()}


def _week(rng: random.Random, count: int | None = None) -> State:
    titles = rng.sample(_TITLES, count or rng.randint(6, 9))
    taken: set[tuple[str, int]] = set()
    week: State = {}
    for title in titles:
        while True:
            day, start, hours = rng.choice(DAYS), rng.randint(_FIRST, _LAST - 2), rng.randint(1, 2)
            slots = {(day, hour) for hour in range(start, start + hours)}
            if not slots & taken:
                break
        taken |= slots
        people = sorted(rng.sample(PEOPLE, rng.randint(1, 3)))
        week[title] = [day, start, start + hours, people]
    return week


def _free(week: State, day: str) -> list[int]:
    busy = {h for d, start, end, _ in week.values() if d == day for h in range(start, end)}
    return [hour for hour in range(_FIRST, _LAST) if hour not in busy]


def _without(week: State, *titles: str) -> State:
    return {title: event for title, event in week.items() if title not in titles}


def _who(rng: random.Random) -> Instance:
    week = _week(rng)
    day, start, *_, people = week[rng.choice(sorted(week))]
    return Instance(
        f"Who takes part in the event that starts on {day} at {start}? Submit a list of the names "
        "in alphabetical order.",
        week,
        answer=people,
    )


def _cancel(rng: random.Random) -> Instance:
    week = _week(rng)
    title = rng.choice(sorted(week))
    return Instance(f"Cancel the {title} on {week[title][0]}.", week, _without(week, title))


def _add(rng: random.Random) -> Instance:
    week = _week(rng)
    title = rng.choice([title for title in _TITLES if title not in week])
    day = rng.choice([day for day in DAYS if _free(week, day)])
    start, people = rng.choice(_free(week, day)), sorted(rng.sample(PEOPLE, 2))
    return Instance(
        f"Add an event: {title}, {day} from {start} to {start + 1}, with {' and '.join(people)}.",
        week,
        week | {title: [day, start, start + 1, people]},
    )


def _shift(rng: random.Random) -> Instance:
    week = _week(rng)
    title = rng.choice(sorted(week))
    *_, old, end, people = week[title]
    rest = _without(week, title)
    hours = end - old
    places = [
        (day, start)
        for day in DAYS
        for start in range(_FIRST, _LAST - hours + 1)
        if {*range(start, start + hours)} <= {*_free(rest, day)}
        and (day, start) != (week[title][0], old)
    ]
    day, start = rng.choice(places)
    return Instance(
        f"Move the {title} to {day} at {start}; it stays as long as it is.",
        week,
        week | {title: [day, start, start + hours, people]},
    )


def _hours(rng: random.Random) -> Instance:
    week = _week(rng)
    person = rng.choice(sorted({p for event in week.values() for p in event[3]}))
    other = rng.choice([p for p in PEOPLE if p != person])
    total = sum(e[2] - e[1] for e in week.values() if person in e[3] or other in e[3])
    return Instance(
        f"How many hours are the events that {person} or {other} takes part in, all together? "
        "Submit the number.",
        week,
        answer=total,
    )


def _invite(rng: random.Random) -> Instance:
    week = _week(rng)
    day = rng.choice(sorted({event[0] for event in week.values()}))
    there = {title: event for title, event in week.items() if event[0] == day}
    person = rng.choice([p for p in PEOPLE if all(p not in event[3] for event in there.values())])
    return Instance(
        f"Invite {person} to every event on {day}.",
        week,
        week | {title: [*e[:3], sorted([*e[3], person])] for title, e in there.items()},
    )


def _first_free(rng: random.Random) -> Instance:
    week = _week(rng, 9)
    day = rng.choice([day for day in DAYS if _free(week, day)])
    title = rng.choice([title for title in _TITLES if title not in week])
    person, start = rng.choice(PEOPLE), _free(week, day)[0]
    return Instance(
        f"Add {title} with {person} on {day}: an hour, at the first hour that is free. Submit when "
        "it starts.",
        week,
        week | {title: [day, start, start + 1, [person]]},
        answer=start,
    )


def _swap(rng: random.Random) -> Instance:
    week = _week(rng)
    one, two = rng.sample(sorted(week), 2)
    for title in (one, two):  # of equal length, so that they fit
        week[title] = [*week[title][:2], week[title][1] + 1, week[title][3]]
    swapped = {one: [*week[two][:3], week[one][3]], two: [*week[one][:3], week[two][3]]}
    return Instance(
        f"The {one} and the {two} are an hour each: have each take place when the other was.",
        week,
        week | swapped,
    )


def _clear(rng: random.Random) -> Instance:
    week = _week(rng)
    person = rng.choice(sorted({p for event in week.values() for p in event[3]}))
    gone = [title for title, event in week.items() if person in event[3]]
    return Instance(
        f"{person} is ill: cancel every event that {person} takes part in. Submit how many.",
        week,
        _without(week, *gone),
        answer=len(gone),
    )


CALENDAR = World(
    ABOUT,
    setup,
    read,
    ((1, _who), (1, _cancel), (1, _add), (2, _shift), (2, _hours), (2, _invite), (3, _first_free)),
    ((3, _swap), (2, _clear)),
    (
        "Cancel the picnic on Mon.",
        (
            ("print(list_events('Mon'))",
             "[{'id': 1, 'title': 'picnic', 'day': 'Mon', 'start': 12, 'end': 14, "
             "'people': ['Anton', 'Birgit']}]"),
            ("cancel_event(1)\nsubmit()", ""),
        ),
    ),
)  # fmt: skip
