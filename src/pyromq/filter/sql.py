"""Subscriptions by an SQL92 expression over a message's properties: `price > 5 AND region IN ('EU', 'US')`.

Source: RocketMQ 4.9.8, SelectorParser.jj, with its peculiarities: NOT binds more tightly than a comparison, and text
after a complete expression is ignored. Our clients refuse such expressions (`check_sql`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from pyromq.errors import StoreCorrupt, SubscriptionParseFailed
from pyromq.filter import sql_terms as terms
from pyromq.filter.sql_terms import Evaluate, Kind, Term
from pyromq.message import PAIRS
from pyromq.record import properties_of

KEYWORDS = frozenset(["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"])
END = "end"

_TOKEN = re.compile(
    r"""
      (?P<skipped> [ \t\n\r\f]+ | --[^\n\r]*[\n\r] | /\*.*?\*/ )
    | (?P<double>  [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<whole>   [1-9][0-9]*[lL]? | 0 )
    | (?P<text>    '(?:''|[^'])*' )
    | (?P<name>    [a-zA-Z_$][a-zA-Z0-9_$]* )
    | (?P<sign>    <> | >= | <= | [=<>(),+-] )
    """,
    re.VERBOSE | re.DOTALL,
)

SQL92 = "SQL92"
MAX_CHARACTERS = 16_384  # limit of an expression: people write hundreds of characters, programs a few thousand

_LEAST_WEIGHT = 8  # least weight: each test copies the properties of the message first
_PAIRS = PAIRS.encode()
_COMPARISONS = ("NOT", "BETWEEN", "IN", *terms.ORDERS)


@dataclass(frozen=True, slots=True, eq=False)
class SqlFilter:
    """A `Filter` by an SQL92 expression, which tests the properties of records."""

    expression: str
    evaluate: Evaluate
    weight: int  # cost in pulls without a filter: a comparison takes 0.3 us or more per message
    codes: None = None
    accepts_code: None = None
    expression_type: str = SQL92

    @property
    def accepts_record(self) -> Callable[[memoryview], bool]:
        """The test whether the properties of a record fulfil the expression.

        An unreadable record passes; its consumer reports the damage.
        """
        return self._accepts

    def accepts_properties(self, text: str) -> bool:
        """Return whether these stored properties fulfil the expression."""
        return self._judge(text.encode())

    def accepts_tag(self, tag: str | None) -> bool:
        """Return True: an expression ignores tags."""
        return True

    def _accepts(self, record: memoryview) -> bool:
        try:
            properties = properties_of(record)
        except StoreCorrupt:
            return True
        return self._judge(properties)

    def _judge(self, properties: memoryview | bytes) -> bool:
        try:
            return self.evaluate(b"".join((_PAIRS, properties, _PAIRS))) is True
        except ValueError:  # a property that must be a number is not a number: the message is not selected
            return False


@lru_cache(maxsize=128)
def parse_sql(expression: str | None) -> SqlFilter:
    """Return the filter of an SQL92 expression.

    Raises `SubscriptionParseFailed` with the fault and its position.
    """
    wanted = _parsed(expression)[0]
    return SqlFilter(expression or "", wanted.evaluate, _LEAST_WEIGHT + wanted.size)


def check_sql(expression: str) -> SqlFilter:
    """Return the filter of an SQL92 expression of pyromq's own client, which is checked more strictly.

    Some expressions that RocketMQ accepts are refused as probable mistakes. These are text after a complete expression,
    a property as a condition, and expressions that are never true.
    """
    wanted, rest = _parsed(expression)
    if rest.kind != END:
        raise _failed(
            expression, f"{rest.text:.80} at character {rest.at} follows a complete expression: is AND or OR missing?"
        )
    if wanted.bare:
        name = f"{wanted.bare:.80}"
        raise _failed(
            expression,
            f"property {name} as a condition is never true; write `{name} = TRUE` or `{name} IS NOT NULL`, and NOT as"
            " `NOT (...)`, since it binds first",
        )
    if wanted.kind is Kind.CONSTANT and wanted.value is not True:
        raise _failed(expression, "it is never true")
    return parse_sql(expression)


def _parsed(expression: str | None) -> tuple[Term, Token]:
    if not expression or not expression.strip():
        raise _failed(expression or "", "it is empty; write a condition like `price > 5`")
    if len(expression) > MAX_CHARACTERS:
        raise _failed(expression, f"it has {len(expression)} characters; the limit is {MAX_CHARACTERS}")
    try:
        parser = _Parser(expression)
        wanted = terms.condition(parser.any_of())
    except ValueError as error:
        raise _failed(expression, str(error)) from error
    return wanted, parser.next


def _failed(expression: str, reason: str) -> SubscriptionParseFailed:
    return SubscriptionParseFailed(f"the SQL92 expression {expression[:200]!r} cannot be used: {reason}")


class _Parser:
    """A parser of SQL92 expressions with one method per level of the grammar, weakest binding first.

    `next` is the next token.
    """

    def __init__(self, expression: str) -> None:
        self._tokens = tokens(expression)
        self._depth = 0
        self.next = next(self._tokens)

    def any_of(self) -> Term:
        operands = [self._all_of()]
        while self._took("OR"):
            operands.append(self._all_of())
        return terms.any_of(operands) if len(operands) > 1 else operands[0]

    def _all_of(self) -> Term:
        operands = [self._equality()]
        while self._took("AND"):
            operands.append(self._equality())
        return terms.all_of(operands) if len(operands) > 1 else operands[0]

    def _equality(self) -> Term:
        left = self._comparison()
        while True:
            if self._took("="):
                left = terms.equal(left, self._comparison())
            elif self._took("<>"):
                left = terms.negated(terms.equal(left, self._comparison()))
            elif self._took("IS"):
                is_not = self._took("NOT")
                self._expect("NULL")
                left = terms.negated(terms.is_null(left)) if is_not else terms.is_null(left)
            else:
                return left

    def _comparison(self) -> Term:
        left = self._unary()
        while self.next.kind in _COMPARISONS:
            sign = self._take().kind
            if sign in terms.ORDERS:
                left = terms.ordered(left, sign, self._unary())
                continue
            negate = sign == "NOT"
            if negate:
                sign = self._expect("BETWEEN", "IN").kind
            if sign == "BETWEEN":
                low = self._unary()
                self._expect("AND")
                left = (terms.not_between if negate else terms.between)(left, low, self._unary())
            else:
                left = terms.one_of(left, self._texts(), negate=negate)
        return left

    def _texts(self) -> list[str]:
        self._expect("(")
        found = [self._text()]
        while self._took(","):
            found.append(self._text())
        self._expect(")")
        return found

    def _text(self) -> str:
        return _unquoted(self._expect("text").text)

    def _unary(self) -> Term:
        self._depth += 1
        if self._depth > terms.MAX_LEVELS:
            raise ValueError(f"at character {self.next.at} it has more than {terms.MAX_LEVELS} levels")
        try:
            if self._took("+"):
                return self._unary()
            if self._took("-"):
                return terms.negative(self._unary())
            if self._took("NOT"):
                return terms.negated(self._unary())
            return self._primary()
        finally:
            self._depth -= 1

    def _primary(self) -> Term:
        if self._took("("):
            inner = self.any_of()
            self._expect(")")
            return inner
        token = self._take()
        match token.kind:
            case "text":
                return terms.constant(_unquoted(token.text), token.text)
            case "whole":
                return terms.whole_constant(token.text)
            case "double":
                return terms.double_constant(token.text)
            case "TRUE" | "FALSE" | "NULL":
                return terms.constant({"TRUE": True, "FALSE": False, "NULL": None}[token.kind], token.kind)
            case "name":
                return terms.prop(token.text)
        raise _unexpected(token, "a property, a number or a 'text'")

    def _take(self) -> Token:
        token, self.next = self.next, next(self._tokens)
        return token

    def _took(self, kind: str) -> bool:
        if self.next.kind != kind:
            return False
        self._take()
        return True

    def _expect(self, *kinds: str) -> Token:
        if self.next.kind not in kinds:
            raise _unexpected(self.next, " or ".join("a 'text'" if kind == "text" else kind for kind in kinds))
        return self._take()


def _unexpected(token: Token, wanted: str) -> ValueError:
    found = "it ends" if token.kind == END else f"{token.text:.80} is found"
    return ValueError(f"{found} at character {token.at}, where {wanted} should be")


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


class Token(NamedTuple):
    """A token of an SQL92 expression; `at` is its position, from 1.

    `kind` is `double`, `whole`, `text`, `name`, `end`, or the keyword or sign.
    """

    kind: str
    text: str
    at: int


def tokens(expression: str) -> Iterator[Token]:
    """Yield the tokens of an SQL92 expression, and `END`. Raises `ValueError` for characters that form no token."""
    position = 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            raise ValueError(f"{_what(expression[position:])} at character {position + 1} has no meaning")
        kind, text, at = str(match.lastgroup), match[0], position + 1
        position = match.end()
        if kind == "sign":
            yield Token(text, text, at)
        elif kind == "name" and text.upper() in KEYWORDS:
            yield Token(text.upper(), text, at)
        elif kind != "skipped":
            yield Token(kind, text, at)
    while True:
        yield Token(END, "", len(expression) + 1)


def _what(rest: str) -> str:
    return "a string without closing quote" if rest[0] == "'" else repr(rest[0])
