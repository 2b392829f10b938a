"""``regrow eval --tasks``: a name with a typing error is found out before a model is looked at."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def test_names_are_looked_up_before_the_model(
    regrow: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from regrow.capabilities.harness import tasks
    from regrow.errors import ConfigError
    from regrow.study.stages import tasks as stage

    asked: list[tuple[str, ...]] = []

    def known(names: list[str], folder: object = None) -> None:
        asked.append(tuple(names))
        raise ConfigError("lm-evaluation-harness knows no task 'bolq'", hint="did you mean 'boolq'?")

    def too_early(*_: object, **__: object) -> None:
        raise AssertionError("a model was looked at")

    monkeypatch.setattr(tasks, "known_tasks", known)
    monkeypatch.setattr(stage, "model_identity", too_early)
    monkeypatch.setattr(stage, "load_model", too_early)
    code, out, err = regrow("eval", "m", "--tasks", "bolq,piqa", "-o", "out")
    assert code == 2 and not out and "did you mean 'boolq'" in err
    assert "looking up the tasks" in err and asked == [("bolq",)]
