"""Tool tasks on a small SQLite database of a shop."""

from __future__ import annotations

import json
import random
from typing import Any

from ...sandbox import Session
from .world import CITIES, PEOPLE, Instance, State, World

TABLES = {
    "customers": ("id", "name", "city"),
    "products": ("id", "name", "price", "stock"),
    "orders": ("id", "customer_id", "product_id", "quantity"),
}
ABOUT = (
    "`db` is a sqlite3 connection that commits by itself. Tables: "
    + "; ".join(f"{table}({', '.join(columns)})" for table, columns in TABLES.items())
    + "."
)
_PRODUCTS = "basket blanket candle chair clock kettle lamp mirror pillow plate stool vase".split()
_FILE = "shop.db"
_READ = f"""
import json as _json, sqlite3 as _sqlite3
with _sqlite3.connect({_FILE!r}, timeout=1) as _shop:
    print(_json.dumps({{
        _table: _shop.execute("SELECT * FROM " + _table).fetchall() for _table in {list(TABLES)}
    }}))
"""


def setup(state: State) -> str:
    """Code that creates the database from a state, which has a row per "table/id"."""
    tables = [
        f"CREATE TABLE {table}({columns[0]} INTEGER PRIMARY KEY, {', '.join(columns[1:])})"
        for table, columns in TABLES.items()
    ]
    rows = [(key.split("/")[0], row) for key, row in state.items()]
    return (
        "import sqlite3\n"
        f"db = sqlite3.connect({_FILE!r}, isolation_level=None)\n"
        "db.execute('BEGIN')\n"
        f"for _table in {tables!r}:\n    db.execute(_table)\n"
        f"for _table, _row in {rows!r}:\n"
        '    db.execute(f\'INSERT INTO {_table} VALUES ({",".join("?" * len(_row))})\', _row)\n'
        "db.execute('COMMIT')\n"
    )


def read(notebook: Session) -> State:
    """Committed rows by "table/id".

    They come from the policy's own interpreter. It could lie, but that is no easier than writing
    the rows, because it does not know the expected ones.
    """
    said = notebook.run(_READ).stdout.strip().rpartition("\n")[2]
    tables: dict[str, Any] = json.loads(said)
    return {f"{table}/{row[0]}": row for table in TABLES for row in tables[table]}


def _shop(rng: random.Random) -> State:
    """Customers, products and orders; their ids start at 1, 11 and 101."""
    people = rng.sample(PEOPLE, rng.randint(5, 8))
    things = rng.sample(_PRODUCTS, rng.randint(5, 8))
    places = rng.sample(CITIES, 4)
    state: State = {}
    for i, person in enumerate(people, 1):
        state[f"customers/{i}"] = [i, person, rng.choice(places)]
    for i, thing in enumerate(things, 11):
        state[f"products/{i}"] = [i, thing, rng.randint(2, 80), rng.randint(5, 40)]
    for i in range(101, 101 + rng.randint(9, 16)):
        customer, product = rng.randint(1, len(people)), rng.randint(11, 10 + len(things))
        state[f"orders/{i}"] = [i, customer, product, rng.randint(1, 5)]
    return state


def _rows(state: State, table: str) -> list[list[Any]]:
    return [row for key, row in state.items() if key.startswith(f"{table}/")]


def _count_city(rng: random.Random) -> Instance:
    shop = _shop(rng)
    rows = _rows(shop, "customers")
    city, other = rng.choice(rows)[2], rng.choice(CITIES)
    number = sum(row[2] in (city, other) for row in rows)
    return Instance(
        f"How many customers are from {' or '.join(sorted({city, other}))}? Submit the number.",
        shop,
        answer=number,
    )


def _stock_value(rng: random.Random) -> Instance:
    shop = _shop(rng)
    one, two = rng.sample(_rows(shop, "products"), 2)
    return Instance(
        f"What is the stock of {one[1]} and {two[1]} worth together, at their prices? "
        "Submit the number.",
        shop,
        answer=one[2] * one[3] + two[2] * two[3],
    )


def _set_price(rng: random.Random) -> Instance:
    shop = _shop(rng)
    row = rng.choice(_rows(shop, "products"))
    price = rng.randint(81, 199)
    return Instance(
        f"Set the price of {row[1]} to {price}.",
        shop,
        shop | {f"products/{row[0]}": [row[0], row[1], price, row[3]]},
    )


def _spent(shop: State, customer: int) -> int:
    return sum(
        row[3] * shop[f"products/{row[2]}"][2]
        for row in _rows(shop, "orders")
        if row[1] == customer
    )


def _revenue(rng: random.Random) -> Instance:
    shop = _shop(rng)
    one, two = sorted(rng.sample(sorted({row[1] for row in _rows(shop, "orders")}), 2))
    names = [shop[f"customers/{customer}"][1] for customer in (one, two)]
    return Instance(
        f"What do all orders of {names[0]} and {names[1]} come to, quantity times price? "
        "Submit the number.",
        shop,
        answer=_spent(shop, one) + _spent(shop, two),
    )


def _restock(rng: random.Random) -> Instance:
    shop = _shop(rng)
    stocks = sorted(row[3] for row in _rows(shop, "products"))
    least, more = stocks[1] + 1, rng.randint(10, 50)
    low = {
        f"products/{row[0]}": [*row[:3], row[3] + more]
        for row in _rows(shop, "products")
        if row[3] < least
    }
    return Instance(
        f"Of every product with a stock below {least}, raise the stock by {more}.", shop, shop | low
    )


def _move(rng: random.Random) -> Instance:
    shop = _shop(rng)
    one, two = rng.sample(_rows(shop, "customers"), 2)
    city = rng.choice([city for city in CITIES if city not in (one[2], two[2])])
    moved = {f"customers/{row[0]}": [*row[:2], city] for row in (one, two)}
    return Instance(
        f"The customers {one[1]} and {two[1]} have moved to {city}: change that. Then submit how "
        f"many customers are from {city} now.",
        shop,
        shop | moved,
        answer=2 + sum(row[2] == city for row in _rows(shop, "customers")),
    )


def _next_order(shop: State) -> int:
    return max(row[0] for row in _rows(shop, "orders")) + 1


def _new_order(rng: random.Random) -> Instance:
    shop = _shop(rng)
    customer = rng.choice(_rows(shop, "customers"))
    product = rng.choice(_rows(shop, "products"))
    quantity = rng.randint(1, 5)
    number = _next_order(shop)
    return Instance(
        f"{customer[1]} orders {quantity} of {product[1]}: add the order under the next free id, "
        "and take the quantity from the product's stock. Submit the id.",
        shop,
        shop
        | {f"orders/{number}": [number, customer[0], product[0], quantity]}
        | {f"products/{product[0]}": [*product[:3], product[3] - quantity]},
        answer=number,
    )


def _cancel_order(rng: random.Random) -> Instance:
    shop = _shop(rng)
    number, _, product, quantity = rng.choice(_rows(shop, "orders"))
    row = shop[f"products/{product}"]
    after = {key: value for key, value in shop.items() if key != f"orders/{number}"}
    return Instance(
        f"Delete the order {number} and put its quantity back into the product's stock.",
        shop,
        after | {f"products/{product}": [*row[:3], row[3] + quantity]},
    )


def _best_customer(rng: random.Random) -> Instance:
    while True:
        shop = _shop(rng)
        cities = sorted({row[2] for row in _rows(shop, "customers")})
        city = rng.choice(cities)
        spent = {row[0]: _spent(shop, row[0]) for row in _rows(shop, "customers") if row[2] == city}
        best = max(spent, key=lambda customer: spent[customer])
        if len(spent) > 1 and list(spent.values()).count(spent[best]) == 1:
            break
    quantity, number = rng.randint(2, 9), _next_order(shop)
    return Instance(
        f"Which customer from {city} has spent most, quantity times price over all orders? "
        f"Give that customer a new order of {quantity} of the product with id 11, under the next "
        "free id, and submit the customer's name.",
        shop,
        shop | {f"orders/{number}": [number, best, 11, quantity]},
        answer=shop[f"customers/{best}"][1],
    )


DATABASE = World(
    ABOUT,
    setup,
    read,
    (
        (1, _count_city), (1, _stock_value), (1, _set_price),
        (2, _revenue), (2, _restock), (2, _move), (3, _new_order),
    ),
    ((2, _cancel_order), (3, _best_customer)),
    (
        "What does a teapot cost? Submit the number.",
        (
            ("print(db.execute(\"SELECT * FROM products WHERE name = 'teapot'\").fetchall())",
             "[(11, 'teapot', 18, 7)]"),
            ("submit(18)", ""),
        ),
    ),
)  # fmt: skip
