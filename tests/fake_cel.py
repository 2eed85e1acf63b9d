"""The part of CEL that admission policies and device selectors are written in.

Parsed into closures; errors read as those of cel-go. Integers, strings, lists, maps, messages
(`JSONPatch{...}`, `Object.spec{...}`, both as maps), macros with one and two variables, optional
selection, and the string library that Kubernetes enables.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

Scope = Mapping[str, Any]
Code = Callable[[Scope], Any]


class CelError(Exception):
    """Why an expression has no value."""


class Lazy:
    """Variables of a policy: each is evaluated when it is first asked for."""

    def __init__(self, sources: Mapping[str, str], scope: Mapping[str, Any]) -> None:
        self._sources, self._scope = sources, scope
        self._values: dict[str, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._sources

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            try:
                self._values[name] = compiled(self._sources[name])(
                    {**self._scope, "variables": self}
                )
            except CelError as error:
                raise CelError(
                    f'composited variable "{name}" fails to evaluate: {error}'
                ) from error
        return self._values[name]


class _Absent:
    """An optional without a value."""


ABSENT = _Absent()

TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>\d+\.\d+|\d+)
  | (?P<string>r?(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'))
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<sign>&&|\|\||==|!=|<=|>=|\[\?|\.\?|[-+*/%!<>?:.,()\[\]{}])
)""",
    re.VERBOSE,
)
MACROS = {"all", "exists", "exists_one", "map", "filter", "transformList", "transformMap"}


@lru_cache(maxsize=512)
def compiled(text: str) -> Code:
    """The closure of an expression; CelError if it is none."""
    parser = _Parser(text)
    code = parser.expression()
    if parser.peek():
        raise CelError(f"Syntax error: mismatched input '{parser.peek()}' in {text}")
    return code


def evaluate(text: str, scope: Scope) -> Any:
    return compiled(text)(scope)


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            found = TOKEN.match(text, at)
            if not found or found.end() == at:
                raise CelError(f"Syntax error: token recognition error at: '{text[at:]}'")
            kind = str(found.lastgroup)
            self.tokens.append((kind, found[kind]))
            at = found.end()
        self.at = 0

    def peek(self, ahead: int = 0) -> str:
        index = self.at + ahead
        return self.tokens[index][1] if index < len(self.tokens) else ""

    def kind(self, ahead: int = 0) -> str:
        index = self.at + ahead
        return self.tokens[index][0] if index < len(self.tokens) else ""

    def take(self, wanted: str | None = None) -> str:
        text = self.peek()
        if not text or (wanted is not None and text != wanted):
            raise CelError(f"Syntax error: mismatched input '{text}' expecting '{wanted}'")
        self.at += 1
        return text

    def accept(self, wanted: str) -> bool:
        if self.kind() == "sign" and self.peek() == wanted:
            self.at += 1
            return True
        return False

    def expression(self) -> Code:
        condition = self.binary(0)
        if not self.accept("?"):
            return condition
        yes = self.expression()
        self.take(":")
        no = self.expression()
        return lambda scope: yes(scope) if condition(scope) else no(scope)

    LEVELS = (
        ("||",),
        ("&&",),
        ("==", "!=", "<", "<=", ">", ">=", "in"),
        ("+", "-"),
        ("*", "/", "%"),
    )

    def binary(self, level: int) -> Code:
        if level == len(self.LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in self.LEVELS[level] and self.kind() != "string":
            sign = self.take()
            left = _binary(sign, left, self.binary(level + 1))
        return left

    def unary(self) -> Code:
        if self.accept("!"):
            inner = self.unary()
            return lambda scope: not inner(scope)
        if self.accept("-"):
            inner = self.unary()
            return lambda scope: -inner(scope)
        return self.postfix(self.primary())

    def primary(self) -> Code:
        kind, text = self.kind(), self.take()
        if kind == "number":
            return _constant(float(text) if "." in text else int(text))
        if kind == "string":
            return _constant(_unquoted(text))
        return self.word(text) if kind == "name" else self.bracketed(text)

    def bracketed(self, text: str) -> Code:
        """What begins with a bracket: an expression, a list or a map."""
        if text == "(":
            inner = self.expression()
            self.take(")")
            return inner
        if text == "[":
            items = self.items("]")
            return lambda scope: [item(scope) for item in items]
        if text == "{":
            return self.map_literal()
        raise CelError(f"Syntax error: extraneous input '{text}'")

    def word(self, text: str) -> Code:
        """What begins with a name: a constant, a message, a call or a variable."""
        if text in {"true", "false", "null"}:
            return _constant({"true": True, "false": False}.get(text))
        if text in {"JSONPatch", "Object"}:
            while self.accept("."):
                self.take()
            self.take("{")
            return self.message()
        if self.kind() != "sign" or self.peek() != "(":
            return lambda scope: _name(scope, text)
        if text == "has":
            return self.has()
        self.take("(")
        arguments = self.items(")")
        return lambda scope: _function(text, [one(scope) for one in arguments])

    def has(self) -> Code:
        self.take("(")
        start = self.at
        # The last selection is what is tested; all before it must be there.
        depth, last = 0, start
        while depth or self.peek() != ")":
            text = self.take()
            depth += text in "([{" and self.tokens[self.at - 1][0] == "sign"
            depth -= text in ")]}" and self.tokens[self.at - 1][0] == "sign"
            if not depth and text == ".":
                last = self.at - 1
        end = self.at
        name = self.tokens[last + 1][1]
        inner = _Parser.__new__(_Parser)
        inner.tokens, inner.at = self.tokens[start:last], 0
        operand = inner.expression()
        self.at = end
        self.take(")")

        def code(scope: Scope) -> bool:
            there = operand(scope)
            return name in there if there is not None else False

        return code

    def items(self, end: str) -> list[Code]:
        found = []
        while not self.accept(end):
            found.append(self.expression())
            if not self.accept(","):
                self.take(end)
                break
        return found

    def map_literal(self) -> Code:
        pairs = []
        while not self.accept("}"):
            key = self.expression()
            self.take(":")
            pairs.append((key, self.expression()))
            if not self.accept(","):
                self.take("}")
                break
        return lambda scope: {key(scope): value(scope) for key, value in pairs}

    def message(self) -> Code:
        pairs = []
        while not self.accept("}"):
            name = self.take()
            self.take(":")
            pairs.append((name, self.expression()))
            if not self.accept(","):
                self.take("}")
                break
        return lambda scope: {name: value(scope) for name, value in pairs}

    def postfix(self, code: Code) -> Code:
        while True:
            if self.accept("."):
                name = self.take()
                if self.kind() == "sign" and self.peek() == "(":
                    code = self.call(code, name)
                else:
                    code = _select(code, name)
            elif self.accept(".?"):
                code = _optional(code, _constant(self.take()))
            elif self.accept("[?"):
                index = self.expression()
                self.take("]")
                code = _optional(code, index)
            elif self.accept("["):
                index = self.expression()
                self.take("]")
                code = _index(code, index)
            else:
                return code

    def call(self, target: Code, name: str) -> Code:
        self.take("(")
        if name in MACROS:
            names = [self.take()]
            self.take(",")
            if self.kind() == "name" and self.peek(1) == ",":
                names.append(self.take())
                self.take(",")
            bodies = self.items(")")
            return _macro(name, target, names, bodies)
        arguments = self.items(")")
        return lambda scope: _method(name, target(scope), [one(scope) for one in arguments])


def _constant(value: Any) -> Code:
    return lambda _: value


def _unquoted(text: str) -> str:
    if text.startswith("r"):
        return text[2:-1]
    escapes = {"n": "\n", "t": "\t", "r": "\r"}
    return re.sub(r"\\(.)", lambda found: escapes.get(found[1], found[1]), text[1:-1])


class _Library:
    """The name before `.escapeKey`."""


def _name(scope: Scope, name: str) -> Any:
    if name in scope:
        return scope[name]
    if name in {"jsonpatch", "cel", "optional"}:
        return _Library
    raise CelError(f"undeclared reference to '{name}' (in container '')")


def _select(code: Code, name: str) -> Code:
    def run(scope: Scope) -> Any:
        there = code(scope)
        if isinstance(there, _Absent):
            return ABSENT
        if there is None or not hasattr(there, "__getitem__") or isinstance(there, (str, list)):
            raise CelError(f"no such key: {name}")
        if name not in there:
            raise CelError(f"no such key: {name}")
        return there[name]

    return run


def _index(code: Code, index: Code) -> Code:
    def run(scope: Scope) -> Any:
        there, key = code(scope), index(scope)
        if isinstance(there, list):
            if not 0 <= key < len(there):
                raise CelError(f"index out of bounds: {key}")
            return there[key]
        if there is None or key not in there:
            raise CelError(f"no such key: {key}")
        return there[key]

    return run


def _optional(code: Code, index: Code) -> Code:
    def run(scope: Scope) -> Any:
        there, key = code(scope), index(scope)
        if isinstance(there, list):
            return there[key] if 0 <= key < len(there) else ABSENT
        if there is None or isinstance(there, _Absent) or key not in there:
            return ABSENT
        return there[key]

    return run


def _binary(sign: str, left: Code, right: Code) -> Code:
    if sign in {"&&", "||"}:
        decides = sign == "||"

        def logical(scope: Scope) -> bool:
            try:
                if left(scope) is decides:
                    return decides
            except CelError:
                # The other side may decide it; else this side's error is the answer.
                if right(scope) is decides:
                    return decides
                raise
            return bool(right(scope))

        return logical
    return lambda scope: _arithmetic(sign, left(scope), right(scope))


def _divided(sign: str, one: Any, other: Any) -> Any:
    if other == 0:
        raise CelError("division by zero" if sign == "/" else "modulus by zero")
    # Towards zero, as in Go.
    whole = int(one / other)
    if sign == "%":
        return one - other * whole
    return whole if isinstance(one, int) else one / other


SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda one, other: _divided("/", one, other),
    "%": lambda one, other: _divided("%", one, other),
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _arithmetic(sign: str, one: Any, other: Any) -> Any:
    match sign:
        case "==":
            return one == other
        case "!=":
            return one != other
        case "in":
            return one in other
    if type(one) is not type(other):
        raise CelError("no such overload")
    return SIGNS[sign](one, other)


def _int(value: Any) -> int:
    if isinstance(value, str) and not re.fullmatch(r"[+-]?\d+", value):
        raise CelError("type conversion error from 'string' to 'int'")
    return int(value)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "dyn": lambda value: value,
    "size": len,
    "int": _int,
    "double": float,
    "string": lambda value: str(value).lower() if isinstance(value, bool) else str(value),
    "bool": lambda value: value in {True, "true", "t", "1"},
    "type": lambda value: type(value).__name__,
}


def _function(name: str, given: list[Any]) -> Any:
    if name not in FUNCTIONS:
        raise CelError(f"undeclared reference to '{name}' (in container '')")
    return FUNCTIONS[name](*given)


def _value(target: Any) -> Any:
    if isinstance(target, _Absent):
        raise CelError("optional.none() dereference")
    return target


def _flattened(target: list[Any]) -> list[Any]:
    return [one for part in target for one in (part if isinstance(part, list) else [part])]


METHODS: dict[str, Callable[..., Any]] = {
    "orValue": lambda target, other: other if isinstance(target, _Absent) else target,
    "hasValue": lambda target: not isinstance(target, _Absent),
    "value": _value,
    "size": len,
    "join": lambda target, between="": between.join(target),
    "flatten": _flattened,
    "reverse": lambda target: target[::-1],
}


def _substring(text: str, start: int, end: int | None = None) -> str:
    end = len(text) if end is None else end
    if not 0 <= start <= end <= len(text):
        raise CelError(f"index out of range: {end}")
    return text[start:end]


TEXTS: dict[str, Callable[..., Any]] = {
    "split": lambda text, at, most=0: text.split(at, most - 1),
    "contains": lambda text, other: other in text,
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
    "replace": str.replace,
    "substring": _substring,
    "indexOf": str.find,
    "lowerAscii": str.lower,
    "upperAscii": str.upper,
    "trim": str.strip,
}


def _method(name: str, target: Any, given: list[Any]) -> Any:
    if target is _Library:
        if name == "escapeKey":
            return given[0].replace("~", "~0").replace("/", "~1")
        return given[0] if given else ABSENT
    if name in METHODS:
        return METHODS[name](target, *given)
    if not isinstance(target, str):
        raise CelError("no such overload")
    if name not in TEXTS:
        raise CelError(f"undeclared reference to '{name}' (in container '')")
    return TEXTS[name](target, *given)


def _macro(name: str, target: Code, names: list[str], bodies: list[Code]) -> Code:
    two, body = len(names) > 1, bodies[-1]

    def scopes(scope: Scope) -> Iterator[tuple[Any, Any, Scope]]:
        over = target(scope)
        pairs = list(over.items()) if isinstance(over, dict) else list(enumerate(over))
        for key, value in pairs:
            if two:
                yield key, value, {**scope, names[0]: key, names[1]: value}
            else:
                alone = key if isinstance(over, dict) else value
                yield key, alone, {**scope, names[0]: alone}

    def chosen(scope: Scope) -> Iterator[tuple[Any, Any, Scope]]:
        for one in scopes(scope):
            if len(bodies) == 1 or bodies[0](one[2]):
                yield one

    runs: dict[str, Code] = {
        "all": lambda scope: all(body(one) for _, _, one in scopes(scope)),
        "exists": lambda scope: any(body(one) for _, _, one in scopes(scope)),
        "exists_one": lambda scope: sum(bool(body(one)) for _, _, one in scopes(scope)) == 1,
        "filter": lambda scope: [value for _, value, one in scopes(scope) if body(one)],
        "transformMap": lambda scope: {key: body(one) for key, _, one in chosen(scope)},
    }
    return runs.get(name, lambda scope: [body(one) for _, _, one in chosen(scope)])
