"""SQL92 expressions and properties at random: sensible ones, odd ones, and ones with a mistake."""

from __future__ import annotations

from random import Random

NAMES = ("a", "b", "c", "price", "_x", "$y", "A")
VALUES = (
    *("5", "6", "5.0", "-3", "+7", "007", "1e3", ".5", "5.", "5d", "5L", " 5 ", "0.0", "-0.0", "0x1p3", "1_000", "٣"),
    *(
        "2147483648",
        "-2147483649",
        "9223372036854775808",
        "NaN",
        "Infinity",
        "x",
        "y",
        "it's",
        "ü",
        "true",
        "TRUE",
        "false",
    ),
)
TEXTS = ("'x'", "'y'", "'it''s'", "''", "'5'", "'ü'")
LITERALS = (
    *("5", "6", "0", "007", "5L", "0L", "2147483648", "9223372036854775807", "9223372036854775808", "-5", "- 3", "+7"),
    *("5.0", ".5", "5.", "1e3", "1E-2", "0.0", "1e999", "1e-999", "TRUE", "false", "Null", "5abc", "--5\n3", "'a", "'"),
    *TEXTS,
)
COMPARISONS = ("=", "<>", ">", ">=", "<", "<=")
RESTS = (")", "#", "foo bar", "= 5", "NOT", "IS", "/", ", 5", "/* c*m **/", "-- x", "-- x\n")


def properties(random: Random) -> str:
    """Return properties as they are stored; some twice, some cut off."""
    text = "".join(f"{random.choice(NAMES)}\x01{random.choice(VALUES)}\x02" for _ in range(random.randrange(7)))
    return text[:-1] if random.random() < 0.2 else text


def expression(random: Random) -> str:
    """Return an expression; every other one is of a sensible form."""
    return _sensible(random) if random.random() < 0.5 else _any(random, random.randrange(1, 4))


def _sensible(random: Random) -> str:
    text = _condition(random)
    for _ in range(random.randrange(4)):
        word, other = random.choice(["AND", "OR"]), _condition(random)
        text = f"{text} {word} {other}" if random.random() < 0.7 else f"({text}) {word} ({other})"
    return text


def _condition(random: Random) -> str:
    name = random.choice(NAMES)
    number = random.choice(["5", "6", "-3", "5.5", "1000", "-1e2", "7L"])
    return random.choice(
        [
            f"{name} {random.choice(COMPARISONS)} {number}",
            f"{name} = {random.choice(TEXTS)}",
            f"{name} {random.choice(['IN', 'NOT IN'])} ('x', 'y', '5')",
            f"{name} IS {random.choice(['', 'NOT '])}NULL",
            f"{name} {random.choice(['', 'NOT '])}BETWEEN 1 AND 6",
            f"NOT ({name} = {random.choice(NAMES)})",
        ]
    )


def _any(random: Random, levels: int) -> str:
    if levels <= 0 or random.random() < 0.15:
        return random.choice(NAMES if random.random() < 0.6 else LITERALS)
    inner, other = _any(random, levels - 1), _any(random, levels - 1)
    name, literal = random.choice(NAMES), random.choice(LITERALS)
    texts = ", ".join(random.choice(TEXTS) for _ in range(random.randrange(1, 7)))
    at = random.randrange(len(inner) + 1)
    return random.choice(
        [
            f"{inner} {random.choice(COMPARISONS)} {other}",
            f"{random.choice([name, literal])} {random.choice(COMPARISONS)} {random.choice([name, literal])}",
            f"{inner} {random.choice(['AND', 'and', 'OR', 'Or'])} {other}",
            f"({inner}) {random.choice(['AND', 'OR'])} ({other})",
            f"{random.choice(['NOT', 'not'])} {random.choice([inner, f'({inner})'])}",
            f"{random.choice([name, inner])} IS {random.choice(['', 'NOT '])}NULL",
            f"{name} {random.choice(['', 'NOT '])}BETWEEN {literal} AND {random.choice(LITERALS)}",
            f"{random.choice([name, f'({name})', literal])} {random.choice(['', 'not '])}IN ({texts})",
            f"({inner})",
            f"{inner} {random.choice(RESTS)}",
            inner[:at] + random.choice([" ", "(", "'", "x", "#", "-", "."]) + inner[at:],
        ]
    )
