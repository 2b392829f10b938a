"""Experiment trackers beside the JSONL log."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from regrow.errors import ConfigError
from regrow.heal.loggers import check_loggers
from regrow.heal.loop import heal
from tests.heal.samples import sample_model, sample_pools, sample_spec


def test_unknown_and_absent_trackers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="unknown tracker 'tensorbord'") as caught:
        check_loggers(["tensorbord"])
    assert "did you mean 'tensorboard'" in str(caught.value.hint)
    monkeypatch.setattr("regrow.heal.loggers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="'wandb' is not installed") as caught:
        check_loggers(["wandb"])
    assert "regrow[wandb]" in str(caught.value.hint)


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_gets_what_the_log_gets(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = heal(sample_model(), sample_pools(), sample_spec(), tmp_path / "run", log_to=["tensorboard"])
    lines = [json.loads(line) for line in result.log_file.read_text().splitlines()]
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    for name in ("loss", "tokens", "learning_rate", "gradient_norm"):
        told = [(event.step, event.value) for event in events.Scalars(name)]
        assert [step for step, _ in told] == [line["update"] for line in lines]
        assert [value for _, value in told] == pytest.approx([line[name] for line in lines], rel=1e-5)
