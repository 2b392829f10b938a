"""Token vectors turned into sequences."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.data.pools import Example, Pool
from regrow.errors import ConfigError, DataError
from regrow.heal.mixture import draw_mixture, read_mixture, token_quotas


def pool_of(name: str, lengths: list[int]) -> Pool:
    """Return a tokenised pool whose examples have the given total lengths."""
    rows = (Example(name, f"{at}", "", "", (5,) * (length - 1), (2,)) for at, length in enumerate(lengths))
    return Pool(name, tuple(rows))


LENGTHS = st.lists(st.integers(2, 60), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(first=LENGTHS, second=LENGTHS, quota=st.floats(60, 3_000), share=st.floats(0.1, 4), seed=st.integers(0, 9))
def test_quotas_are_met_with_less_than_one_sequence_too_much(
    first: list[int], second: list[int], quota: float, share: float, seed: int
) -> None:
    pools = {"a": pool_of("a", first), "b": pool_of("b", second)}
    quotas = {"a": quota, "b": max(60.0, quota * share)}
    mixture = draw_mixture(pools, quotas, seed=seed)
    assert len(mixture.sequences) == sum(draw.sequences for draw in mixture.draws)
    for draw in mixture.draws:
        mine = [entry for entry in mixture.sequences if entry.pool == draw.pool]
        lengths = first if draw.pool == "a" else second
        assert draw.tokens == sum(entry.tokens for entry in mine)
        assert 0 <= draw.overshoot_tokens < max(lengths)
        assert draw.cycles == len(mine) / len(lengths)
        # Every cycle uses every example once before any is used again.
        times = Counter(entry.example_id for entry in mine)
        whole = len(mine) // len(lengths)
        assert set(times.values()) | {whole} <= {whole, whole + 1}
        assert len(times) == min(len(mine), len(lengths))


def test_the_seed_alone_decides_and_pools_are_drawn_independently() -> None:
    pools = {"a": pool_of("a", list(range(5, 25))), "b": pool_of("b", list(range(5, 25)))}
    one = draw_mixture(pools, {"a": 100.0, "b": 200.0}, seed=3)
    again = draw_mixture(dict(reversed(pools.items())), {"b": 200.0, "a": 100.0}, seed=3)
    other = draw_mixture(pools, {"a": 100.0, "b": 200.0}, seed=4)
    assert one == again
    assert one.sequences != other.sequences
    more = draw_mixture(pools, {"a": 150.0, "b": 200.0}, seed=3)
    of_b = [sorted(entry.example_id for entry in mixture.sequences if entry.pool == "b") for mixture in (one, more)]
    assert of_b[0] == of_b[1]
    assert [entry.pool for entry in one.sequences] != sorted(entry.pool for entry in one.sequences)


def test_cycles_are_shuffled_anew() -> None:
    mixture = draw_mixture({"a": pool_of("a", [10] * 30)}, {"a": 600.0}, seed=0)
    assert mixture.draws[0].cycles == 2.0
    unshuffled = draw_mixture({"a": pool_of("a", [10] * 30)}, {"a": 300.0}, seed=0)
    assert set(Counter(entry.example_id for entry in mixture.sequences).values()) == {2}
    assert len({entry.example_id for entry in unshuffled.sequences}) == 30


def test_uniform_and_proportional_quotas() -> None:
    pools = {name: pool_of(name, [10]) for name in "abc"}
    assert token_quotas("uniform", pools, 900) == {"a": 300.0, "b": 300.0, "c": 300.0}
    assert token_quotas({"a": 600, "c": 300}, pools, 900) == {"a": 600.0, "b": 0.0, "c": 300.0}
    assert token_quotas({"a": 2, "c": 1}, pools, 900) == {"a": 600.0, "b": 0.0, "c": 300.0}
    drawn = draw_mixture(pools, token_quotas({"a": 600, "c": 300}, pools, 900), seed=0)
    assert [draw.pool for draw in drawn.draws] == ["a", "c"]
    assert drawn.tokens == 900


def test_a_mixture_file_is_yaml_or_json(tmp_path: Path) -> None:
    (tmp_path / "mix.yaml").write_text("a: 30000\nb: 0\n")
    (tmp_path / "mix.json").write_text('{"a": 1.5}')
    assert read_mixture(str(tmp_path / "mix.yaml")) == {"a": 30000.0, "b": 0.0}
    assert read_mixture(str(tmp_path / "mix.json")) == {"a": 1.5}
    assert read_mixture("uniform") == "uniform"


@pytest.mark.parametrize("content", ["a: -1", "a: .nan", "a: yes", "a: many", "a: [1]"])
def test_a_mixture_file_holds_numbers(tmp_path: Path, content: str) -> None:
    (tmp_path / "mix.yaml").write_text(content)
    with pytest.raises(ConfigError, match="gives pool 'a'"):
        read_mixture(str(tmp_path / "mix.yaml"))


def test_faults_are_sentences(tmp_path: Path) -> None:
    pools = {"math": pool_of("math", [10, 20]), "empty": Pool("empty", (), {"longer than 512 tokens": 4})}
    with pytest.raises(ConfigError, match="unknown mixture 'unifrom'"):
        read_mixture("unifrom")
    with pytest.raises(ConfigError, match="there is no file"):
        read_mixture(str(tmp_path / "absent.yaml"))
    with pytest.raises(ConfigError, match="pool 'mth'") as caught:
        token_quotas({"mth": 1}, pools, 100)
    assert "did you mean 'math'" in str(caught.value.hint)
    with pytest.raises(ConfigError, match="no pool any tokens"):
        token_quotas({"math": 0}, pools, 100)
    with pytest.raises(DataError, match="no healing pool"):
        token_quotas("uniform", {}, 100)
    with pytest.raises(DataError, match=r"'empty' has no usable example \(dropped: 4 longer than 512 tokens\)"):
        draw_mixture(pools, {"math": 20.0, "empty": 20.0}, seed=0)
    with pytest.raises(ConfigError, match=r"\(4 for 'math'\) are too few for an example of any pool"):
        draw_mixture(pools, {"math": 4.0}, seed=0)
    with pytest.raises(DataError, match=r"2 examples would be used 10\.0 times \(limit: 5\)"):
        draw_mixture(pools, {"math": 300.0}, seed=0, max_cycles=5)


def test_less_than_the_shortest_example_is_rounded_to_it_or_to_nothing() -> None:
    pools = {"math": pool_of("math", [30, 20]), "talk": pool_of("talk", [10, 40])}
    for quota, tokens in ((2.5e-12, 0), (9.9, 0), (10.0, 20), (19.0, 20)):
        mixture = draw_mixture(pools, {"math": quota, "talk": 40.0}, seed=0)
        draws = {draw.pool: draw for draw in mixture.draws}
        assert draws["math"].tokens == tokens and draws["math"].quota_tokens == quota
        assert draws["talk"].tokens >= 40 and mixture.tokens == draws["math"].tokens + draws["talk"].tokens
