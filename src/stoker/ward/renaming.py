"""Renames what a script names itself: classes, functions, variables, attributes and options.

    changed = rename(Path("train.py").read_text())
    changed.text          # the same program; comments and docstrings are gone too
    changed.options       # {"--workers": "--n3", ...}: what it is started with now

What belongs to others keeps its name: imports, builtins, methods that a foreign base class calls, and
attributes that a foreign object may have. One name becomes one other name in the whole file, so scopes
need no regard.
"""

import argparse
import ast
import builtins
import importlib
import os
import pathlib
import random
import threading
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.utils.data import DataLoader

_FOREIGN_OBJECTS: tuple[object, ...] = (
    torch, torch.Tensor, torch.nn, torch.nn.functional, torch.nn.Module, torch.nn.Parameter, torch.optim,
    torch.optim.Optimizer, torch.utils.data, DataLoader, torch.Generator, torch.distributed, torch.autograd,
    np, np.ndarray, np.random, random.Random, argparse.ArgumentParser, pathlib.Path, os, threading.Thread,
    str, bytes, int, float, list, dict, set, tuple,
)  # fmt: skip
_FOREIGN = frozenset(name for thing in _FOREIGN_OBJECTS for name in dir(thing))


@dataclass(frozen=True, kw_only=True)
class Renamed:
    """The program under other names, and its options as they are called now."""

    text: str
    options: dict[str, str]


@dataclass
class _Own:
    """The names that the script gave."""

    imported: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    # What may be given to a call by keyword: parameters and fields, by the name of function or class.
    keywords: dict[str, set[str]] = field(default_factory=dict)
    # Variables that hold parsed options, and the options' names there.
    spaces: set[str] = field(default_factory=set)
    options: dict[str, str] = field(default_factory=dict)


def rename(source: str) -> Renamed:
    """Give everything that the script names a name that says nothing."""
    tree = ast.parse(source)
    own = _collect(tree)
    fresh = {name: f"n{number}" for number, name in enumerate(sorted(own.names | own.attributes))}
    options = {name: f"o{number}" for number, name in enumerate(sorted(set(own.options.values())))}
    changed = ast.fix_missing_locations(_Renamer(own, fresh, options).visit(tree))
    told = {}
    for word, name in own.options.items():
        if word.startswith("--"):
            told[word] = f"--{options[name]}"
            told["--no-" + word[2:]] = f"--no-{options[name]}"
    return Renamed(text=ast.unparse(changed) + "\n", options=told)


def _collect(tree: ast.Module) -> _Own:
    own = _Own()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                own.imported[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                own.imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    methods = {id(item): name for name, node in classes.items() for item in node.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.names.add(node.id)
        elif isinstance(node, ast.ClassDef):
            own.names.add(node.name)
        elif isinstance(node, ast.Lambda):
            own.names.update(arg.arg for arg in _arguments(node.args))
        elif isinstance(node, ast.FunctionDef):
            foreign = id(node) in methods and _is_foreign(node.name, methods[id(node)], classes, own.imported)
            if id(node) not in methods:
                own.names.add(node.name)
            elif not foreign and not _is_dunder(node.name):
                own.attributes.add(node.name)
            # A framework may look at the names of what it calls by name; not at those of `forward`.
            if not foreign or node.name == "forward" or _is_dunder(node.name):
                taken = [arg.arg for arg in _arguments(node.args)]
                own.names.update(taken)
                called = methods[id(node)] if node.name == "__init__" else node.name
                own.keywords.setdefault(called, set()).update(taken)
    for name, item in classes.items():
        own.attributes |= _attributes(item, name, classes, own)
    _collect_options(tree, own)
    shared = set(own.imported) | set(dir(builtins)) | {"_", "__", "__name__"}
    own.names -= shared
    own.attributes -= _kept(tree, own)
    return own


def _attributes(item: ast.ClassDef, name: str, classes: dict[str, ast.ClassDef], own: _Own) -> set[str]:
    """What instances of a class are given: fields, and what is stored on `self`."""
    found = set()
    for line in item.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            found.add(line.target.id)
            own.keywords.setdefault(name, set()).add(line.target.id)
    for node in ast.walk(item):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            found.add(node.attr)
    return {one for one in found if not _is_foreign(one, name, classes, own.imported)}


def _kept(tree: ast.Module, own: _Own) -> set[str]:
    """Attributes that may be a foreign object's: of a foreign name, and not only asked of `self`."""
    elsewhere = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and not _is_self(node.value)
    }
    return {name for name in own.attributes if name in _FOREIGN and name in elsewhere}


def _collect_options(tree: ast.Module, own: _Own) -> None:
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) == "add_argument":
            words = [str(word.value) for word in node.args if isinstance(word, ast.Constant)]
            long = next((word for word in words if word.startswith("--")), words[0])
            for word in words:
                own.options[word] = long.lstrip("-").replace("-", "_")
        elif isinstance(node, ast.Assign) and _is_parsed(node.value):
            own.spaces.update(target.id for target in node.targets if isinstance(target, ast.Name))
    for _ in functions:  # a namespace is handed on at most once from each
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
                taken = functions[node.func.id].args.args
                for given, arg in zip(node.args, taken, strict=False):
                    if _is_parsed(given) or (isinstance(given, ast.Name) and given.id in own.spaces):
                        own.spaces.add(arg.arg)


class _Renamer(ast.NodeTransformer):
    def __init__(self, own: _Own, fresh: dict[str, str], options: dict[str, str]) -> None:
        self._own, self._fresh, self._options = own, fresh, options
        self._fields: set[int] = set()

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._own.names and id(node) not in self._fields:
            node.id = self._fresh[node.id]
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        if node.arg in self._own.names:
            node.arg = self._fresh[node.arg]
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        spaced = isinstance(node.value, ast.Name) and node.value.id in self._own.spaces
        if spaced and node.attr in self._options:
            node.attr = self._options[node.attr]
        elif node.attr in self._own.attributes and not self._is_imported(node):
            node.attr = self._fresh[node.attr]
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self._fresh.get(node.name, node.name)
        # Its fields are attributes, though they are stored as variables are.
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                self._fields.add(id(item.target))
                if item.target.id in self._own.attributes:
                    item.target.id = self._fresh[item.target.id]
        return self._bare(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name in self._own.names or node.name in self._own.attributes:
            node.name = self._fresh[node.name]
        return self._bare(node)

    def visit_Module(self, node: ast.Module) -> ast.AST:
        return self._bare(node)

    def visit_Global(self, node: ast.Global) -> ast.AST:
        node.names = [self._fresh.get(name, name) for name in node.names]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        known = self._own.keywords.get(_called(node), set())
        for keyword in node.keywords:
            if keyword.arg in known and keyword.arg in self._fresh:
                keyword.arg = self._fresh[keyword.arg]
        if _called(node) == "add_argument":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "help"]
            named = [word for word in node.args if isinstance(word, ast.Constant)]
            name = self._options[self._own.options[str(named[-1].value)]]
            optional = str(named[-1].value).startswith("-")
            node.args = [ast.Constant(f"--{name}" if optional else name)]
        return self.generic_visit(node)

    def _is_imported(self, node: ast.expr) -> bool:
        """Whether a dotted path begins with something imported: `http.client`."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self._own.imported

    def _bare(self, node: ast.Module | ast.ClassDef | ast.FunctionDef) -> ast.AST:
        """Without its docstring."""
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)


def _arguments(taken: ast.arguments) -> list[ast.arg]:
    extra = [arg for arg in (taken.vararg, taken.kwarg) if arg is not None]
    return [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, *extra]


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _is_parsed(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _called(node) == "parse_args"


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_foreign(name: str, owner: str, classes: dict[str, ast.ClassDef], imported: dict[str, str]) -> bool:
    """Whether a base class that is not the script's has this attribute, and so may use it."""
    for base in classes[owner].bases:
        words = ast.unparse(base).split("[")[0].split(".")
        if words[0] in classes:
            if _is_foreign(name, words[0], classes, imported):
                return True
        elif words[0] in imported and hasattr(_resolve(imported[words[0]], words[1:]), name):
            return True
    return False


def _resolve(path: str, rest: list[str]) -> object:
    """The object at a dotted path, by importing as much of it as is a module."""
    words = [*path.split("."), *rest]
    for cut in range(len(words), 0, -1):
        try:
            found: object = importlib.import_module(".".join(words[:cut]))
        except ImportError:
            continue
        for word in words[cut:]:
            found = getattr(found, word)
        return found
    raise ImportError(f"no module at {'.'.join(words)}")
