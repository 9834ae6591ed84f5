"""Reference programs of the task `tools`: they know its text and the state, and no answer."""

from __future__ import annotations

import re

# by the template's name: how it asks, and what does it; groups are variables of the program
SOLUTIONS = {
    "count_lines": (
        r"How many lines of (?P<path>\S+) have level (?P<level>\w+) and user (?P<person>\w+)\?.*",
        "submit(open(path).read().splitlines().count(f'{level} user={person}'))",
    ),
    "sum_column": (
        r"(?P<path>\S+) has .* What do the amounts of (?P<city>\w+) add up to\?.*",
        "import csv\nrows = csv.DictReader(open(path))\n"
        "submit(sum(int(row['amount']) for row in rows if row['city'] == city))",
    ),
    "rename": (
        r"Rename (?P<old>\S+) to (?P<new>\S+)\.",
        "import os\nos.rename(old, new)\nsubmit()",
    ),
    "delete_by_suffix": (
        r"Delete every file in the folder (?P<folder>\w+) whose name ends in (?P<suffix>\.\w+),.*",
        "import glob, os\nfor path in glob.glob(f'{folder}/*{suffix}'):\n"
        "    os.remove(path)\nsubmit()",
    ),
    "change_setting": (
        r"In (?P<path>\S+), set (?P<key>\w+) to (?P<value>\d+) and leave the other lines .*",
        "lines = open(path).read().splitlines()\n"
        "lines = [f'{key} = {value}' if line.split(' = ')[0] == key else line for line in lines]\n"
        "open(path, 'w').write('\\n'.join(lines))\nsubmit()",
    ),
    "merge": (
        r"Write the lines of (?P<one>\S+) and (?P<two>\S+), .* to (?P<target>\S+)\. Keep .*",
        "lines = [line for path in (one, two) for line in open(path).read().split()]\n"
        "open(target, 'w').write('\\n'.join(sorted(lines)))\nsubmit()",
    ),
    "extract": (
        r"(?P<source>\S+) has .* those in (?P<city>\w+) to (?P<target>\S+) in alphabetical .*",
        "import csv\nrows = csv.DictReader(open(source))\n"
        "names = sorted(row['name'] for row in rows if row['city'] == city)\n"
        "open(target, 'w').write('\\n'.join(names))\nsubmit(len(names))",
    ),
    "find_file": (
        r"One file in the folders .* says (?P<text>.*)\. Submit its path, .*",
        "import glob\n[path] = [p for p in glob.glob('*/*.txt') if text in open(p).read()]\n"
        "submit(path)",
    ),
    "split": (
        r"(?P<source>\S+) has the columns name and city\. For each city .*",
        "import csv\nfor row in csv.DictReader(open(source)):\n"
        "    with open(row['city'].lower() + '.txt', 'a') as file:\n"
        "        file.write(row['name'] + '\\n')\nsubmit()",
    ),
    "largest": (
        r"Of (?P<paths>.*), delete the one with most lines\.",
        "import os\nlines = {p: len(open(p).readlines()) for p in paths.split(', ')}\n"
        "os.remove(max(lines, key=lines.get))\nsubmit()",
    ),
    "who": (
        r"Who takes part in the event that starts on (?P<day>\w+) at (?P<start>\d+)\?.*",
        "[e] = [e for e in list_events(day) if e['start'] == start]\nsubmit(sorted(e['people']))",
    ),
    "cancel": (
        r"Cancel the (?P<title>\w+) on \w+\.",
        "[e] = [e for e in list_events() if e['title'] == title]\ncancel_event(e['id'])\nsubmit()",
    ),
    "add": (
        r"Add an event: (?P<title>\w+), (?P<day>\w+) from (?P<start>\d+) to (?P<end>\d+), "
        r"with (?P<people>.*)\.",
        "add_event(title, day, start, end, people.split(' and '))\nsubmit()",
    ),
    "shift": (
        r"Move the (?P<title>\w+) to (?P<day>\w+) at (?P<start>\d+); it stays as long as it is\.",
        "[e] = [e for e in list_events() if e['title'] == title]\n"
        "move_event(e['id'], day, start, start + e['end'] - e['start'])\nsubmit()",
    ),
    "hours": (
        r"How many hours are the events that (?P<one>\w+) or (?P<two>\w+) takes part in,.*",
        "who = {one, two}\n"
        "submit(sum(e['end'] - e['start'] for e in list_events() if who & set(e['people'])))",
    ),
    "invite": (
        r"Invite (?P<person>\w+) to every event on (?P<day>\w+)\.",
        "for e in list_events(day):\n    invite(e['id'], person)\nsubmit()",
    ),
    "first_free": (
        r"Add (?P<title>\w+) with (?P<person>\w+) on (?P<day>\w+): an hour, at the first .*",
        "busy = {h for e in list_events(day) for h in range(e['start'], e['end'])}\n"
        "start = min(h for h in range(9, 17) if h not in busy)\n"
        "add_event(title, day, start, start + 1, [person])\nsubmit(start)",
    ),
    "swap": (
        r"The (?P<one>\w+) and the (?P<two>\w+) are an hour each: .*",
        "events = {e['title']: e for e in list_events()}\n"
        "a, b = events[one], events[two]\n"
        "hours = [(d, h) for d in ('Mon', 'Tue', 'Wed', 'Thu', 'Fri') for h in range(9, 17)]\n"
        "for e in list_events():\n"
        "    busy = [(e['day'], h) for h in range(e['start'], e['end'])]\n"
        "    hours = [hour for hour in hours if hour not in busy]\n"
        "spare = hours[0]\n"
        "move_event(a['id'], spare[0], spare[1], spare[1] + 1)\n"
        "move_event(b['id'], a['day'], a['start'], a['end'])\n"
        "move_event(a['id'], b['day'], b['start'], b['end'])\nsubmit()",
    ),
    "clear": (
        r"(?P<person>\w+) is ill: cancel every event .*",
        "gone = [e['id'] for e in list_events() if person in e['people']]\n"
        "for id in gone:\n    cancel_event(id)\nsubmit(len(gone))",
    ),
    "count_city": (
        r"How many customers are from (?P<cities>.*)\?.*",
        "cities = cities.split(' or ')\n"
        "submit(sum(city in cities for city, in db.execute('SELECT city FROM customers')))",
    ),
    "stock_value": (
        r"What is the stock of (?P<one>\w+) and (?P<two>\w+) worth together,.*",
        "query = 'SELECT sum(price * stock) FROM products WHERE name IN (?, ?)'\n"
        "submit(db.execute(query, (one, two)).fetchone()[0])",
    ),
    "set_price": (
        r"Set the price of (?P<name>\w+) to (?P<price>\d+)\.",
        "db.execute('UPDATE products SET price = ? WHERE name = ?', (price, name))\nsubmit()",
    ),
    "revenue": (
        r"What do all orders of (?P<one>\w+) and (?P<two>\w+) come to,.*",
        "query = '''SELECT sum(o.quantity * p.price) FROM orders o\n"
        "JOIN products p ON p.id = o.product_id JOIN customers c ON c.id = o.customer_id\n"
        "WHERE c.name IN (?, ?)'''\nsubmit(db.execute(query, (one, two)).fetchone()[0])",
    ),
    "restock": (
        r"Of every product with a stock below (?P<least>\d+), raise the stock by (?P<more>\d+)\.",
        "db.execute('UPDATE products SET stock = stock + ? WHERE stock < ?', (more, least))\n"
        "submit()",
    ),
    "move": (
        r"The customers (?P<one>\w+) and (?P<two>\w+) have moved to (?P<city>\w+): .*",
        "db.execute('UPDATE customers SET city = ? WHERE name IN (?, ?)', (city, one, two))\n"
        "query = 'SELECT count(*) FROM customers WHERE city = ?'\n"
        "submit(db.execute(query, (city,)).fetchone()[0])",
    ),
    "new_order": (
        r"(?P<customer>\w+) orders (?P<quantity>\d+) of (?P<product>\w+): .*",
        "one = lambda query, *values: db.execute(query, values).fetchone()[0]\n"
        "c = one('SELECT id FROM customers WHERE name = ?', customer)\n"
        "p = one('SELECT id FROM products WHERE name = ?', product)\n"
        "n = one('SELECT max(id) + 1 FROM orders')\n"
        "db.execute('INSERT INTO orders VALUES (?, ?, ?, ?)', (n, c, p, quantity))\n"
        "db.execute('UPDATE products SET stock = stock - ? WHERE id = ?', (quantity, p))\n"
        "submit(n)",
    ),
    "cancel_order": (
        r"Delete the order (?P<number>\d+) and put .*",
        "query = 'SELECT product_id, quantity FROM orders WHERE id = ?'\n"
        "p, q = db.execute(query, (number,)).fetchone()\n"
        "db.execute('DELETE FROM orders WHERE id = ?', (number,))\n"
        "db.execute('UPDATE products SET stock = stock + ? WHERE id = ?', (q, p))\nsubmit()",
    ),
    "best_customer": (
        r"Which customer from (?P<city>\w+) .* new order of (?P<quantity>\d+) of the product .*",
        "query = '''SELECT c.id, c.name, sum(o.quantity * p.price) AS s FROM customers c\n"
        "JOIN orders o ON c.id = o.customer_id JOIN products p ON p.id = o.product_id\n"
        "WHERE c.city = ? GROUP BY c.id ORDER BY s DESC'''\n"
        "c, name, _ = db.execute(query, (city,)).fetchone()\n"
        "n = db.execute('SELECT max(id) + 1 FROM orders').fetchone()[0]\n"
        "db.execute('INSERT INTO orders VALUES (?, ?, 11, ?)', (n, c, quantity))\nsubmit(name)",
    ),
}


def solution(template: str, ask: str) -> str:
    """The program that does what a task of this template asks."""
    pattern, program = SOLUTIONS[template]
    said = re.fullmatch(pattern, ask)
    assert said is not None, ask
    values = {name: int(v) if v.isdecimal() else v for name, v in said.groupdict().items()}
    return "".join(f"{name} = {value!r}\n" for name, value in values.items()) + program
