"""Several processes do what one does; how they share the work."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from regrow.errors import ConfigError
from regrow.heal.loop import heal
from regrow.heal.processes import ALONE, Processes, together
from tests.forked import forked
from tests.heal.distributed_run import heal_together
from tests.heal.samples import sample_model, sample_pools, sample_spec


def start(folder: Path, scope: str, *, stop: int = 0) -> list[int | None]:
    """Return the exit codes of two processes that heal together."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    both = [
        forked(heal_together, {**group, "RANK": str(rank), "LOCAL_RANK": str(rank)}, folder, scope, 2_000, stop)
        for rank in range(2)
    ]
    for one in both:
        one.join()
    return [one.exitcode for one in both]


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["all-lora", "full"])
def test_two_processes_stopped_and_continued_do_what_one_does(tmp_path: Path, scope: str) -> None:
    alone = sample_model()
    rate = 1e-3 if scope == "full" else 1e-2
    spec = sample_spec(tokens=2_000, scope=scope, last_blocks=1, microbatch_tokens=150, learning_rate=rate)
    result = heal(alone, sample_pools(), spec, tmp_path / "alone")
    folder = tmp_path / "two"
    assert start(folder, scope, stop=3) == [130, 130]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["update-000003"]
    assert start(folder, scope) == [0, 0]
    assert (tmp_path / "two.txt").read_text() == f"processes 2 resumed at 3 tokens {result.tokens}"
    found = load_file(tmp_path / "two.safetensors")
    for name, weight in alone.model.named_parameters():
        assert float((found[name] - weight.detach()).abs().max()) < 1e-4, name
    logs = [
        [json.loads(line) for line in (place / "log.jsonl").read_text().splitlines()]
        for place in (tmp_path / "alone", folder)
    ]
    for one, two in zip(*logs, strict=True):
        assert (one["update"], one["tokens"], one["computed_tokens"]) == (
            two["update"],
            two["tokens"],
            two["computed_tokens"],
        )
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert two["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-4)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 500), min_size=1, max_size=12), st.integers(1, 5), st.booleans())
def test_every_microbatch_is_run_by_one_process(sizes: list[int], count: int, even: bool) -> None:
    shares = [Processes(rank, count, even=even).share(sizes) for rank in range(count)]
    counted = sorted(number for share in shares for number, weight in share if weight == 1.0)
    assert counted == list(range(len(sizes)))
    if even:
        assert len({len(share) for share in shares}) == 1
    elif count > 1:
        assert all(weight == 1.0 for share in shares for _, weight in share)
        loads = [sum(sizes[number] for number, _ in share) for share in shares]
        assert max(loads) - min(loads) <= max(sizes)


def test_one_process_is_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with together() as processes:
        assert processes == ALONE
        assert processes.first
    assert torch.equal(ALONE.total(torch.ones(2)), torch.ones(2))
    assert ALONE.tell("word") == "word"
    assert ALONE.any(True)
    assert not ALONE.any(False)


def test_half_a_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match="RANK is not set"), together():
        pass
