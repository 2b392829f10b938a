"""Experiment trackers that get each line of a run's log beside the JSONL file: optional, one extra each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from regrow.errors import ConfigError, did_you_mean

NAMES = ("tensorboard", "trackio", "wandb")
PROJECT = "regrow"


class Logger(Protocol):
    """Takes numbers by name at a step, until it is closed."""

    def log(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


def check_loggers(names: Iterable[str]) -> None:
    """Raise ConfigError for a tracker that is unknown or not installed."""
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"unknown tracker '{name}'", hint=did_you_mean(name, NAMES))
        if find_spec(name) is None:
            raise ConfigError(f"'{name}' is not installed", hint=f"pip install 'regrow[{name}]'")


class Loggers:
    """Several trackers as one. Nothing is imported before :meth:`open`."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = tuple(names)
        check_loggers(self._names)
        self._open: list[Logger] = []

    @contextmanager
    def open(self, folder: Path, described: dict[str, Any]) -> Iterator[None]:
        """Start a run of each tracker, named after ``folder``, described by JSON values, ended with the context."""
        with ExitStack() as stack:
            for name in self._names:
                logger: Logger = _OPENERS[name](folder, described)
                self._open.append(logger)
                stack.callback(logger.close)
            try:
                yield
            finally:
                self._open = []

    def log(self, entry: dict[str, Any]) -> None:
        """Pass a line of the training log on."""
        if not self._open:
            return
        values = {name: float(value) for name, value in entry.items() if isinstance(value, int | float)}
        values |= {f"loss/{name}": float(value) for name, value in entry.get("losses", {}).items()}
        for logger in self._open:
            logger.log(int(entry["update"]), values)


class _Tensorboard:
    def __init__(self, folder: Path, described: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))
        self._writer.add_text("run", "\n".join(f"    {key}: {value}" for key, value in described.items()))

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Hosted:
    """trackio and wandb, whose calls are the same."""

    def __init__(self, package: str, folder: Path, described: dict[str, Any]) -> None:
        import importlib

        self._package = importlib.import_module(package)
        self._package.init(project=PROJECT, name=folder.name.removesuffix(".healing"), config=described)

    def log(self, step: int, values: dict[str, float]) -> None:
        self._package.log(values, step=step)

    def close(self) -> None:
        self._package.finish()


_OPENERS: dict[str, Any] = {
    "tensorboard": _Tensorboard,
    "trackio": lambda folder, described: _Hosted("trackio", folder, described),
    "wandb": lambda folder, described: _Hosted("wandb", folder, described),
}
