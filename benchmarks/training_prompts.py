"""Prompts to train a draft on, of the kinds that people ask for, as JSON lines for `outrider train --data`.

    python benchmarks/training_prompts.py --count 8000 > prompts.jsonl

Each is made from a template and something to fill it: source code and documentation of the Python that runs
this, or names, things and numbers drawn by a seed. None is a prompt of the built-in workloads.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import random
import re
import sys
import textwrap
from collections.abc import Callable, Iterator

WORDS = (300, 1100)  # least and most characters of a text that is to be summarized
LINES = (6, 28)  # of a piece of code

NAMES = """\
Ada Ben Carla David Elif Farid Greta Hugo Ines Jonas Karin Leo Mira Nils Olga Pavel Rosa Samir Tara Uwe
Vera Wanda Yusuf Zoe Amir Bianca Chen Dana Erik Fatima George Hana Ivan Julia Kofi Lucia Marek Nadia
Oscar Priya"""
THINGS = """\
apples chairs notebooks lamps bicycles tickets candles hammers shirts bottles pencils blankets radios
maps keys baskets clocks boots ropes cups shelves batteries stamps bricks kettles brushes ladders
jackets seeds plates"""
PLACES = """\
Hamburg Lyon Porto Krakow Dublin Bergen Turin Graz Ghent Malmo Bristol Nantes Bilbao Split Riga Tampere
Utrecht Leeds Gdansk Bari Ostrava Cork Lille Bremen Aarhus Vilnius Verona Basel Toledo Brno"""
TRADES = """\
baker teacher nurse carpenter driver cook gardener engineer painter librarian plumber tailor farmer
electrician dentist singer pilot welder editor clerk"""
TOPICS = """\
volcanoes;the water cycle;photosynthesis;the French Revolution;bread baking;solar panels;
the human heart;recycling;chess;beekeeping;the Roman roads;electric cars;earthquakes;the moon landing;
knitting;public libraries;vaccines;the Silk Road;coral reefs;sleep;inflation;the printing of money;jazz;
lighthouses;compost;glaciers;sailing;the immune system;tax returns;learning a language;job interviews;
growing tomatoes;stage fright;first aid;budgeting;running a marathon;black holes;the telephone;
steam engines;tea;the Olympic Games;bridges;weather forecasts;magnets;opera;insurance;the alphabet;
whales;rainbows;democracy;batteries;migration of birds;wind turbines;cheese;deserts;the stock market;
dreams;noise in cities;house plants;camping;time zones;satellites;fairy tales;the metric system"""
TASKS = """\
reverses a string word by word;counts the vowels in a text;checks whether a number is a palindrome;
merges two sorted lists;removes duplicates from a list and keeps the order;
finds the second largest number of a list;computes the factorial of a number;
converts a Roman numeral to an integer;validates an IPv4 address;
finds the longest common prefix of some strings;rotates a matrix by 90 degrees;transposes a matrix;
sorts a list of dictionaries by a key;groups words that are anagrams;computes the nth Fibonacci number;
flattens a nested list;checks whether brackets are balanced;finds the shortest path in a grid;
implements a stack with a minimum operation;implements a queue with two stacks;
reads a JSON file and prints its keys;counts the words of a file;downloads a page and prints its title;
parses a date such as 2024-03-01;computes the greatest common divisor;converts Celsius to Fahrenheit;
generates a random password;implements binary search;implements quicksort;implements merge sort;
implements a linked list with insert and delete;implements a binary search tree with insert and search;
computes the edit distance of two strings;solves the knapsack problem with dynamic programming;
prints the prime factors of a number;simulates a bank account with deposit and withdraw;
counts the inversions in a list;finds all permutations of a string;
computes the moving average of a list;splits a list into chunks of equal size;
finds the majority element;checks whether two strings are anagrams;
formats a number of seconds as hours, minutes and seconds;finds the intersection of two lists;
evaluates an expression in reverse Polish notation;encodes a text in Morse code;
implements the Caesar cipher;computes the median of a list;checks whether a year is a leap year;
prints a multiplication table;writes a list of rows to a CSV file;counts the characters of a text;
finds the missing number in a list from 1 to n;
computes the power of a number without the power operator;converts a decimal number to binary;
capitalizes the first letter of each word;implements a priority queue;detects a cycle in a linked list;
finds the largest sum of a contiguous subarray;implements a trie;implements a simple calculator class;
retries a function with exponential backoff;caches the results of a function;
validates a password by five rules;computes the area of a polygon;finds the closest pair of points;
computes the Levenshtein ratio;sums the digits of a number;implements a rate limiter;
walks a directory tree"""
PARTS = ["server", "database", "cache", "logging", "mail", "queue", "storage", "auth"]
FIELDS = ["port", "host", "timeout", "retries", "level", "size_mb", "path", "enabled", "user", "workers"]
LANGUAGES = (
    ["Python"] * 8 + ["JavaScript"] * 3 + ["Java", "C", "C++", "Go", "Rust", "TypeScript", "Ruby", "C#"]
)
WISHES = [
    "",
    "",
    " with type hints and a docstring",
    " and explain how it works",
    " with comments",
    " and show an example",
    " and handle bad input",
    " and give its time complexity",
    " with unit tests",
    " as short as possible",
]


def listed(text: str) -> list[str]:
    found = [" ".join(part.split()) for part in (text.split(";") if ";" in text else text.split())]
    return [part for part in found if part]


class Sources:
    """Code and prose of the standard library."""

    def __init__(self) -> None:
        self.functions: list[tuple[str, str, str]] = []  # name, source without its docstring, docstring
        self.classes: list[tuple[str, str]] = []
        self.prose: list[str] = []
        for name in sorted(sys.stdlib_module_names):
            if not name.startswith("_") and name not in (
                "this",
                "antigravity",
                "idlelib",
                "turtle",
                "turtledemo",
            ):
                self._read(name)
        topics = importlib.import_module("pydoc_data.topics").topics
        for _, text in sorted(topics.items()):
            self._prose(text)

    def _read(self, name: str) -> None:
        try:
            module = importlib.import_module(name)
            source = inspect.getsource(module)
            tree = ast.parse(source)
        except (ImportError, OSError, TypeError, SyntaxError, ValueError):
            return
        self._prose(module.__doc__ or "")
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                text = textwrap.dedent(ast.get_source_segment(source, node, padded=True) or "")
                if not LINES[0] <= text.count("\n") + 1 <= LINES[1] or len(text) > 1200:
                    continue
                if isinstance(node, ast.ClassDef):
                    self.classes.append((node.name, text))
                    continue
                doc = ast.get_docstring(node) or ""
                if doc and isinstance(node.body[0], ast.Expr) and len(node.body) > 1:
                    node.body = node.body[1:]
                    text = ast.unparse(node)
                self.functions.append((node.name, text, " ".join(doc.split("\n\n")[0].split())))

    def _prose(self, text: str) -> None:
        """Runs of paragraphs of plain sentences."""
        kept: list[str] = []
        for part in [*re.split(r"\n\s*\n", text), "::"]:
            flat = " ".join(part.replace("*", "").replace('"', "").split())
            plain = len(flat) > 60 and flat[:1].isupper() and flat.endswith(".") and "::" not in flat
            if plain and sum(map(len, kept)) + len(flat) <= WORDS[1]:
                kept.append(flat)
                continue
            if sum(map(len, kept)) >= WORDS[0]:
                self.prose.append("\n\n".join(kept))
            kept = [flat] if plain and len(flat) <= WORDS[1] else []


class Maker:
    """Draws prompts."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sources = Sources()
        self.names, self.things, self.places = listed(NAMES), listed(THINGS), listed(PLACES)
        self.trades, self.topics, self.tasks = listed(TRADES), listed(TOPICS), listed(TASKS)
        self.kinds: dict[str, Callable[[], str]] = {
            "chat": self.chat,
            "code": self.code,
            "edit": self.edit,
            "extract": self.extract,
            "reasoning": self.reasoning,
            "summary": self.summary,
        }

    def one(self, *options: str) -> str:
        return self.random.choice(options)

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def chat(self) -> str:
        topic, name, trade = (self.random.choice(each) for each in (self.topics, self.names, self.trades))
        place = self.random.choice(self.places)
        return self.one(
            f"What should everyone know about {topic}?",
            f"Explain {topic} to a child of {self.number(6, 13)}.",
            f"Give me {self.number(3, 9)} tips about {topic}.",
            f"What are the advantages and disadvantages of {topic}?",
            f"Write a short story about {name}, a {trade} from {place}, and {topic}.",
            f"Write an e-mail to {name} to ask for help with {topic}.",
            f"Write a letter of application of {name}, who wants to work as a {trade} in {place}.",
            f"I am a {trade} and have to give a talk about {topic}. Suggest an outline.",
            f"How did people think about {topic} a hundred years ago, and what has changed?",
            f"Plan a weekend in {place} for a family with {self.number(1, 4)} children.",
            f"What does a {trade} do all day? Answer in {self.number(3, 6)} sentences.",
            f"Write a poem of {self.number(2, 5)} stanzas about {topic}.",
            f"Correct three common mistakes that people make about {topic}.",
            f"Compare {topic} and {self.random.choice(self.topics)}.",
            f"Write a dialogue between a {trade} and {name} about {topic}.",
        )

    def code(self) -> str:
        if self.random.random() < 0.5:
            task, language = self.random.choice(self.tasks), self.random.choice(LANGUAGES)
            thing = self.one("function", "function", "program", "class")
            return f"Write a {language} {thing} that {task}{self.random.choice(WISHES)}."
        name, text, doc = self.random.choice(self.sources.functions)
        if doc and self.random.random() < 0.5:
            return f"Write a Python function `{name}` for this purpose{self.random.choice(WISHES)}: {doc}"
        return self.one(
            f"Explain what this function does:\n\n{text}",
            f"Write tests for this Python function:\n\n{text}",
            f"Rewrite this function so that it is easier to read:\n\n{text}",
            f"Is there a mistake in this function? Correct it:\n\n{text}",
            f"Translate this Python function into {self.one('JavaScript', 'Java', 'C++', 'Go')}:\n\n{text}",
        )

    def edit(self) -> str:
        return (
            self.edit_code,
            self.edit_code,
            self.edit_table,
            self.edit_json,
            self.edit_settings,
            self.edit_prose,
        )[self.number(0, 5)]()

    def edit_code(self) -> str:
        name, text = self.random.choice(self.sources.classes)
        if self.random.random() < 0.6:
            name, text, _ = self.random.choice(self.sources.functions)
        words = sorted(set(re.findall(r"\b[a-z_]{4,}\b", text)) - {"self", "return", "else", "class", "None"})
        old = self.random.choice(words) if words else name
        new = self.one("value", "current", "found", "item") + "_" + old.strip("_")
        return self.one(
            f"Rename `{old}` to `{new}` everywhere and print the whole code again:\n\n{text}",
            f"Add a docstring to each function of this code and print all of it:\n\n{text}",
            f"Add type hints to this code and print it as a whole, unchanged otherwise:\n\n{text}",
            f"Print this code again, with a comment above each statement:\n\n{text}",
        )

    def edit_table(self) -> str:
        rows = self.people(self.number(4, 8))
        keys = list(rows[0])
        lines = ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
        lines += ["| " + " | ".join(map(str, row.values())) + " |" for row in rows]
        who, key = self.random.choice(rows), self.random.choice(keys[1:])
        what = self.one(
            f"Leave out the column `{key}` of this table and print the rest",
            f"Add a row for {self.random.choice(self.names)} to this table and print it as a whole",
            f"Remove {who['name']} from this table and print the rest of it unchanged",
        )
        return f"{what}:\n\n" + "\n".join(lines)

    def edit_json(self) -> str:
        rows = self.people(self.number(3, 6))
        who, key = self.random.choice(rows), self.random.choice(list(rows[0])[1:])
        value = json.dumps(self.random.choice(self.people(6))[key])
        text = "[\n  " + ",\n  ".join(map(json.dumps, rows)) + "\n]"
        return (
            f"In this JSON set `{key}` of {who['name']} to {value} and repeat the whole document:\n\n{text}"
        )

    def edit_settings(self) -> str:
        lines, places = [], []
        for part in self.random.sample(PARTS, 4):
            lines.append(f"{part}:")
            for key in self.random.sample(FIELDS, self.number(2, 5)):
                value = {
                    "host": "10.0.0." + str(self.number(1, 250)),
                    "level": self.one("info", "debug"),
                    "path": f"/srv/{part}",
                    "enabled": self.one("true", "false"),
                    "user": part,
                }.get(key)
                lines.append(f"  {key}: {value or self.number(1, 9000)}")
                places.append((part, key))
        part, key = self.random.choice(places)
        return (
            f"Change `{key}` of `{part}` in this configuration to {self.number(1, 9000)} and print the "
            "whole file:\n\n" + "\n".join(lines)
        )

    def edit_prose(self) -> str:
        text = self.random.choice(self.sources.prose)
        words = [word for word in set(re.findall(r"\b[a-z]{5,}\b", text)) if text.count(word) > 1]
        old, new = min(words, default="which"), self.random.choice(self.things)
        return self.one(
            f"Replace the word '{old}' by '{new}' everywhere:\n\n{text}",
            f"Repeat this text and correct its grammar where it is wrong:\n\n{text}",
            f"Copy the text word for word, with each sentence on a line of its own:\n\n{text}",
        )

    def people(self, count: int) -> list[dict[str, str | int]]:
        names = self.random.sample(self.names, count)
        return [
            {
                "name": name,
                "city": self.random.choice(self.places),
                "trade": self.random.choice(self.trades),
                "age": self.number(19, 78),
                "since": self.number(1995, 2024),
            }
            for name in names
        ]

    def extract(self) -> str:
        rows = self.people(self.number(3, 5))
        if self.random.random() < 0.5:
            said = [
                self.one(
                    f"{r['name']}, a {r['trade']} from {r['city']}, is {r['age']} and has been "
                    f"with us since {r['since']}.",
                    f"In {r['since']} {r['name']} joined as a {r['trade']}; today {r['age']}, "
                    f"living in {r['city']}.",
                    f"Our {r['trade']} in {r['city']} is {r['name']} ({r['age']}), who came in {r['since']}.",
                )
                for r in rows
            ]
            keys = "name, city, trade, age and since"
        else:
            said = []
            for r in rows:
                thing, count, price = self.random.choice(self.things), self.number(2, 90), self.number(1, 80)
                date = f"{self.number(1, 28)} {self.one('January', 'March', 'May', 'July', 'October')}"
                said.append(
                    self.one(
                        f"{r['name']} of {r['city']} wants {count} {thing} at {price}.50 each by {date}.",
                        f"By {date} {r['name']} needs {count} {thing}, {price} euros apiece, "
                        f"sent to {r['city']}.",
                        f"{count} {thing} go to {r['name']} in {r['city']} on {date}, {price} euros each.",
                    )
                )
            keys = "customer, city, product, quantity, price and date"
        ask = self.one(
            f"Extract all of it as a JSON list of objects with the keys {keys}. Print only the JSON.",
            f"Make a JSON list from this text, with the keys {keys}:",
            f"Make a table from the text, with the columns {keys}:",
            f"Read the text and print JSON with the keys {keys} for each entry, nothing else.",
        )
        return f"{ask}\n\n{' '.join(said)}"

    def reasoning(self) -> str:
        a, b = self.random.sample(self.names, 2)
        x, y, z = self.number(2, 60), self.number(3, 25), self.number(2, 9)
        thing, place, other = self.random.choice(self.things), *self.random.sample(self.places, 2)
        puzzle = self.one(
            f"{a} has {x} {thing} and buys {y} boxes with {z} in each. {b} takes a third of "
            f"them. How many are left?",
            f"A train leaves {place} at {z}:00 at {x + 40} km/h, another leaves {other} towards "
            f"it at {z}:30 at {y + 60} km/h. "
            f"The towns are {x * 10} km apart. When do they meet?",
            f"{a} is {z} times as old as {b}. In {y} years {a} will be twice as old. How old are they?",
            f"A tank holds {x * 10} litres. One pipe fills it in {y} hours, another in {y + z} "
            f"hours. How long do both take?",
            f"{thing.capitalize()} cost {x} euros less {z} percent. {a} buys {y}. What does {a} pay?",
            f"{a} earns {y} euros an hour and half as much again after {x} hours. What are the "
            f"wages for {x + z} hours?",
            f"There are {x} red and {y} blue {thing} in a bag. How many must {a} draw to be sure "
            f"of {z} of one colour?",
            f"{a}, {b} and {self.random.choice(self.trades)} each own one of three houses. The "
            f"first is not {a}'s, and the "
            f"second is {b}'s. Whose is the third?",
            f"A rectangle is {x} cm longer than it is wide, and its perimeter is {4 * x + 2 * y} "
            f"cm. How large is its area?",
            f"What day of the week is it {x * y} days after a "
            f"{self.one('Monday', 'Tuesday', 'Friday', 'Sunday')}?",
            f"{a} walks {z} km in {x} minutes. How far does {a} get in {y} hours at that speed?",
            f"What is the next number after {x}, {x + z}, {x + 2 * z}, {x + 3 * z}, and what is the {y}th?",
        )
        return f"{puzzle} " + self.one(
            "Think step by step.",
            "Explain each step.",
            "Reason carefully before you answer.",
            "Check the result at the end.",
        )

    def summary(self) -> str:
        text = self.random.choice(self.sources.prose)
        return self.one(
            f"Summarise the following text in {self.number(2, 5)} sentences:\n\n{text}",
            f"Summarize this text:\n\n{text}",
            f"What is this text about? Answer in about {self.number(3, 10) * 10} words:\n\n{text}",
            f"List the most important points of this text:\n\n{text}",
            f"Explain the text in simple words:\n\n{text}",
            f"Give this text a title and a summary of one paragraph:\n\n{text}",
        )

    def prompts(self, count: int) -> Iterator[tuple[str, str]]:
        """(kind, prompt), each kind as often as the others, none twice."""
        seen: set[str] = set()
        kinds = list(self.kinds)
        while len(seen) < count:
            kind = kinds[len(seen) % len(kinds)]
            prompt = self.kinds[kind]()
            if prompt not in seen:
                seen.add(prompt)
                yield kind, prompt


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for number, (kind, prompt) in enumerate(Maker(args.seed).prompts(args.count)):
        print(json.dumps({"id": f"{kind}-{number}", "workload": kind, "prompt": prompt}))


if __name__ == "__main__":
    main()
