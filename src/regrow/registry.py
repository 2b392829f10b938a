"""A named collection of methods: filled by a decorator, by lazy ``module:attribute`` strings or by entry points."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar, cast

from regrow.errors import ConfigError, did_you_mean

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """What is known of a method without importing it.

    ``summary`` is one line; ``paper`` an arXiv id or a short source; ``facts`` are the columns that ``regrow ls`` adds
    (for example ``needs`` or ``cost``).
    """

    name: str
    target: str
    summary: str = ""
    paper: str = ""
    facts: tuple[tuple[str, str], ...] = ()


class Registry(Generic[T]):
    """Methods by name. ``noun`` is the word used in error messages ("criterion", "capability")."""

    def __init__(self, noun: str, *, entry_point_group: str | None = None) -> None:
        self.noun = noun
        self._group = entry_point_group
        self._entries: dict[str, Entry] = {}
        self._loaded: dict[str, T] = {}
        self._scanned = entry_point_group is None

    def declare(self, name: str, target: str, *, summary: str = "", paper: str = "", **facts: str) -> None:
        """Make ``name`` known; ``target`` ("package.module:attribute") is imported at first use."""
        self._refuse_second(name)
        self._entries[name] = Entry(name, target, summary, paper, tuple(facts.items()))

    def register(self, name: str, *, summary: str = "", paper: str = "", **facts: str) -> Callable[[F], F]:
        """Return a decorator that stores the decorated object under ``name``."""

        def store(thing: F) -> F:
            known = self._entries.get(name)
            target = f"{thing.__module__}:{thing.__qualname__}"
            if known is not None and known.target != target:
                self._refuse_second(name)
            if known is None:
                self._entries[name] = Entry(name, target, summary, paper, tuple(facts.items()))
            self._loaded[name] = cast(T, thing)
            return thing

        return store

    def get(self, name: str) -> T:
        """Return the method called ``name``. Raises ConfigError with the nearest name when there is none."""
        self._scan()
        if name not in self._entries:
            raise ConfigError(f"unknown {self.noun} '{name}'", hint=did_you_mean(name, self._entries))
        if name not in self._loaded:
            module, _, attribute = self._entries[name].target.partition(":")
            thing: Any = importlib.import_module(module)
            for part in attribute.split("."):
                thing = getattr(thing, part)
            self._loaded[name] = cast(T, thing)
        return self._loaded[name]

    def entry(self, name: str) -> Entry:
        """Return what is known of ``name`` without importing it."""
        self._scan()
        if name not in self._entries:
            raise ConfigError(f"unknown {self.noun} '{name}'", hint=did_you_mean(name, self._entries))
        return self._entries[name]

    def names(self) -> list[str]:
        """Return all names in the order of declaration."""
        self._scan()
        return list(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        self._scan()
        return iter(self._entries.values())

    def __contains__(self, name: object) -> bool:
        self._scan()
        return name in self._entries

    def _refuse_second(self, name: str) -> None:
        if name in self._entries:
            raise ConfigError(f"the {self.noun} '{name}' is registered twice", hint="give the new one another name")

    def _scan(self) -> None:
        if self._scanned or self._group is None:
            return
        self._scanned = True
        for point in entry_points(group=self._group):
            if point.name not in self._entries:
                self._entries[point.name] = Entry(point.name, point.value, summary="(plug-in)")
