"""Arithmetic written in the question bank, evaluated without eval.

An expression may hold numbers, quoted words, names of parameters, + - * / ** and
parentheses, and calls of functions under `costs` (course.costs), `facts` (course.facts)
and `models` (course.facts_models), with attributes and methods of what they return.
Nothing else is understood.
"""

from __future__ import annotations

import ast
import operator
from functools import cache
from importlib import import_module
from types import ModuleType

_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
ROOTS = {
    "costs": "course.costs",
    "facts": "course.facts",
    "models": "course.facts_models",
}
_HOMES = tuple(ROOTS.values())


@cache
def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(str(text).strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"cannot read expression {text!r}: {error.msg}") from None


def check(text: str) -> None:
    """Raise ValueError unless the text is an expression of the allowed kind."""
    _check_node(_parse(text), text)


def _check_node(node: ast.expr, text: str) -> None:
    if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
        raise ValueError(f"expression {text!r}: names must not begin with _")
    if isinstance(node, ast.BinOp) and type(node.op) not in _BINARY:
        raise ValueError(f"expression {text!r}: only + - * / ** are allowed")
    if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.USub):
        raise ValueError(f"expression {text!r}: only a minus sign is allowed")
    if isinstance(node, ast.Call) and not isinstance(node.func, ast.Attribute):
        raise ValueError(f"expression {text!r}: only costs. and facts. may be called")
    if isinstance(node, ast.Constant) and type(node.value) not in (int, float, str):
        raise ValueError(f"expression {text!r}: {node.value!r} is not a number or a word")
    for child in _children(node, text):
        _check_node(child, text)


def _children(node: ast.expr, text: str) -> list[ast.expr]:
    match node:
        case ast.Constant() | ast.Name():
            return []
        case ast.BinOp():
            return [node.left, node.right]
        case ast.UnaryOp():
            return [node.operand]
        case ast.Attribute():
            return [node.value]
        case ast.List() | ast.Tuple():
            return node.elts
        case ast.Call():
            if any(keyword.arg is None for keyword in node.keywords):
                raise ValueError(f"expression {text!r}: ** in a call is not allowed")
            return [node.func, *node.args, *(keyword.value for keyword in node.keywords)]
    raise ValueError(f"expression {text!r}: {type(node).__name__} is not allowed")


def _root(node: ast.expr) -> str:
    """The first name of a.b(c).d, whatever is called or looked up on the way."""
    while isinstance(node, (ast.Attribute, ast.Call)):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else ""


def calls_costs(text: str) -> bool:
    """Whether some function of course.costs is called in the expression."""
    calls = [node for node in ast.walk(_parse(text)) if isinstance(node, ast.Call)]
    return any(_root(call.func) == "costs" for call in calls)


def evaluate(text: str, names: dict):
    """The value of a checked expression, with parameters taken from `names`.

    Raises ValueError for an unknown name or something that is not allowed.
    """
    check(text)
    return _value(_parse(text), names, text)


def _value(node: ast.expr, names: dict, text: str):
    def value(child):
        return _value(child, names, text)

    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return _lookup(node.id, names, text)
        case ast.BinOp():
            return _BINARY[type(node.op)](value(node.left), value(node.right))
        case ast.UnaryOp():
            return -value(node.operand)
        case ast.List() | ast.Tuple():
            return [value(element) for element in node.elts]
        case ast.Attribute():
            return _attribute(value(node.value), node.attr, text)
        case ast.Call():
            keywords = {keyword.arg: value(keyword.value) for keyword in node.keywords}
            return value(node.func)(*map(value, node.args), **keywords)
    raise AssertionError(f"unchecked node {type(node).__name__}")


def _lookup(name: str, names: dict, text: str):
    if name in names:
        return names[name]
    if name in ROOTS:
        return import_module(ROOTS[name])
    raise ValueError(f"expression {text!r}: unknown name {name!r}")


def _attribute(owner, name: str, text: str):
    if not isinstance(owner, ModuleType):
        if not type(owner).__module__.startswith(_HOMES):
            raise ValueError(f"expression {text!r}: .{name} is asked of {owner!r}")
        return getattr(owner, name)
    if owner.__name__ == "course.costs":
        return import_module(f"course.costs.{name}")
    found = getattr(owner, name)
    # A module may not hand on what it imported itself: costs.topology.math.
    if isinstance(found, ModuleType):
        home = found.__name__
    else:
        home = getattr(found, "__module__", owner.__name__)
    if not home.startswith(_HOMES):
        raise ValueError(f"expression {text!r}: {name} is not part of {owner.__name__}")
    return found
