"""What a cut costs: one oracle for every search, which never computes the same prefix twice.

All cuts asked for together are followed through the model as a tree: two of them share a computation up to the first
block in which they differ, and computations that meet at the same block are run as one larger batch. States along the
trunk are kept in bounded memory, so that the next question starts where the last one left off.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from regrow.criteria.head import PIECE_TOKENS, Head
from regrow.criteria.replay import Replay
from regrow.data.calibration import CalibrationSet
from regrow.errors import ConfigError, DataError, ModelError
from regrow.models.families import blocks_of, text_config_of

Kind = Literal["nll", "kl"]
Cut = frozenset[int]
Path = tuple[int, ...]

KEPT_STATES_BYTES = 2**30
LIVE_STATES_BYTES = 2**29
STACKED_TOKENS_CPU = 4_096
STACKED_TOKENS = 65_536


@dataclass(frozen=True)
class ScoredBatch:
    """Token ids (rows, tokens), right-padded, and which positions (bool, same shape) have their NEXT token scored."""

    input_ids: torch.Tensor
    scored: torch.Tensor


@dataclass(frozen=True)
class Answer:
    """The value of a cut. ``complete`` is False when the evaluation was given up: ``value`` is then a lower bound."""

    value: float
    complete: bool


def text_batches(calibration: CalibrationSet, batch_size: int = 8) -> list[ScoredBatch]:
    """Return batches in which every real token but the first of each row is predicted."""
    found = []
    for batch in calibration.batches(batch_size):
        real = batch.attention_mask.bool()
        scored = torch.zeros_like(real)
        scored[:, :-1] = real[:, :-1] & real[:, 1:]
        found.append(ScoredBatch(batch.input_ids, scored))
    return found


def answer_batches(
    examples: Sequence[tuple[Sequence[int], Sequence[int]]], *, max_tokens: int = 512, batch_size: int = 8
) -> list[ScoredBatch]:
    """Return batches of (prompt ids, answer ids) in which only the tokens of the answers are predicted.

    Sorted by length, so that little is padding; sequences are cut at ``max_tokens``. Raises DataError when an example
    has no prompt or no answer token left.
    """
    rows = []
    for number, (prompt, answer) in enumerate(examples):
        ids = [*prompt, *answer][:max_tokens]
        if not prompt or len(ids) <= len(prompt):
            raise DataError(
                f"example {number} has no answer token within {max_tokens} tokens ({len(prompt)} of the prompt)",
                hint="drop long prompts, or raise the limit",
            )
        rows.append((ids, len(prompt)))
    if not rows:
        raise DataError("there are no examples to score", hint="name a capability that has a dev pool")
    rows.sort(key=lambda row: len(row[0]))
    found = []
    for start in range(0, len(rows), batch_size):
        part = rows[start : start + batch_size]
        width = max(len(ids) for ids, _ in part)
        input_ids = torch.zeros((len(part), width), dtype=torch.long)
        scored = torch.zeros((len(part), width), dtype=torch.bool)
        for place, (ids, prompt_tokens) in enumerate(part):
            input_ids[place, : len(ids)] = torch.tensor(ids)
            scored[place, prompt_tokens - 1 : len(ids) - 1] = True
        found.append(ScoredBatch(input_ids, scored))
    return found


class Objective:
    """The mean loss per scored token of a model without some of its blocks.

    ``kind`` "nll": negative log-likelihood of the text; "kl": divergence of the cut model's predictions from those of
    the whole model, KL(whole || cut). ``block_forwards`` counts work in units of one block run over all tokens,
    ``evaluations`` the cuts evaluated; ``on_work`` is told the block forwards so far. Values are exact: the same as
    from a model that was really cut.
    """

    def __init__(
        self,
        model: Any,
        batches: Sequence[ScoredBatch],
        *,
        kind: Kind = "nll",
        kept_bytes: int = KEPT_STATES_BYTES,
        live_bytes: int = LIVE_STATES_BYTES,
        on_work: Callable[[float], None] | None = None,
    ) -> None:
        if not batches:
            raise DataError("there is no text to score", hint="give a calibration text")
        if kind not in ("nll", "kl"):
            raise ConfigError(f"unknown objective '{kind}'", hint="allowed: nll, kl")
        self.kind = kind
        self.block_forwards = 0.0
        self.evaluations = 0
        self.on_work = on_work
        self._model = model
        self._device = next(model.parameters()).device
        self._head = Head(model)
        self.blocks = len(blocks_of(model))
        self._batches = list(batches)
        self.scored_tokens = sum(int(batch.scored.sum()) for batch in batches)
        self._all_tokens = sum(batch.input_ids.numel() for batch in batches)
        if self.scored_tokens == 0:
            raise DataError("no token of the text can be scored", hint="use sequences of at least two tokens")
        self._live_bytes = live_bytes
        self._known: dict[Cut, float] = {}
        self._bounds: dict[Cut, float] = {}
        weight = next(model.parameters())
        per_token = int(text_config_of(model).hidden_size) * weight.element_size()
        self._states = _States(kept_bytes, self.blocks, self._all_tokens * per_token)
        self._open: dict[int, _OpenBatch] = {}

    @property
    def whole(self) -> float:
        """The mean loss of the whole model (0 for "kl")."""
        nothing: Cut = frozenset()
        if nothing not in self._known:
            with torch.inference_mode():
                opened = [self._opened(number)[0] for number in range(len(self._batches))]
            self._known[nothing] = math.fsum(batch.whole for batch in opened) / self.scored_tokens
        return self._known[nothing]

    def __call__(self, cut: Iterable[int]) -> float:
        """Return the mean loss without the blocks of ``cut``; a cut asked for before costs nothing."""
        return self.many([cut])[0]

    def many(self, cuts: Iterable[Iterable[int]]) -> list[float]:
        """Return the mean loss of every cut, in order."""
        return [answer.value for answer in self.race(cuts)]

    def race(self, cuts: Iterable[Iterable[int]], *, keep: int | None = None) -> list[Answer]:
        """Return the mean loss of every cut, giving up those that cannot be among the ``keep`` best any more.

        Losses are never negative, so the sum over the batches seen so far, divided by all tokens, is a lower bound of
        the mean: a cut whose bound exceeds the ``keep``-th best complete value is dropped without changing the answer.
        """
        asked = [self._check(cut) for cut in cuts]
        fresh = [cut for cut in dict.fromkeys(asked) if cut not in self._known]
        if frozenset() in fresh:
            self._known[frozenset()] = self.whole
            fresh.remove(frozenset())
            self.evaluations += 1
        known = sorted(self._known[cut] for cut in set(asked) & set(self._known))
        if keep is not None and len(known) >= keep:
            # Given up before, and still out of reach.
            fresh = [cut for cut in fresh if self._bounds.get(cut, 0.0) <= known[keep - 1]]
        self.evaluations += len(fresh)
        if fresh:
            with torch.inference_mode():
                for cut, bound in self._evaluate(fresh, keep, known).items():
                    self._bounds[cut] = max(bound, self._bounds.get(cut, 0.0))
        return [
            Answer(self._known[cut], True) if cut in self._known else Answer(self._bounds[cut], False) for cut in asked
        ]

    def answers(self) -> dict[Cut, Answer]:
        """Return everything that is known so far, for :meth:`recall` by a later oracle on the same model and text."""
        found = {cut: Answer(bound, False) for cut, bound in self._bounds.items() if cut not in self._known}
        return found | {cut: Answer(value, True) for cut, value in self._known.items()}

    def recall(self, answers: Mapping[Cut, Answer]) -> None:
        """Take over what another oracle found on the same model and text, so that it is not computed again."""
        for cut, answer in answers.items():
            (self._known if answer.complete else self._bounds)[self._check(cut)] = answer.value

    def _evaluate(self, fresh: list[Cut], keep: int | None, known: list[float]) -> dict[Cut, float]:
        losses: dict[Cut, list[float]] = {cut: [] for cut in fresh}
        racing = keep is not None and len(fresh) + len(known) > keep and len(self._batches) > 1
        order = self._hardest_first() if racing else list(range(len(self._batches)))
        first, rest = (order[:1], order[1:]) if racing else (order, [])
        for number in first:
            self._add(losses, fresh, number)
        leaders = sorted(fresh, key=lambda cut: math.fsum(losses[cut]))[:keep] if racing else fresh
        for number in rest:
            self._add(losses, leaders, number)
        for cut in leaders:
            self._known[cut] = math.fsum(losses[cut]) / self.scored_tokens
        alive = [cut for cut in fresh if cut not in self._known]
        if racing and keep is not None:
            limit = sorted([*known, *(self._known[cut] for cut in leaders)])[keep - 1] * self.scored_tokens
            for number in rest:
                alive = [cut for cut in alive if math.fsum(losses[cut]) <= limit]
                self._add(losses, alive, number)
            for cut in alive:
                self._known[cut] = math.fsum(losses[cut]) / self.scored_tokens
        return {cut: math.fsum(found) / self.scored_tokens for cut, found in losses.items() if cut not in self._known}

    def _hardest_first(self) -> list[int]:
        """Return the batches by the whole model's loss per token, highest first: bounds then rise soonest."""
        opened = [self._opened(number)[0] for number in range(len(self._batches))]
        return sorted(range(len(opened)), key=lambda number: (-opened[number].loss_per_token, number))

    def _check(self, cut: Iterable[int]) -> Cut:
        checked = frozenset(cut)
        if any(not 0 <= block < self.blocks for block in checked) or len(checked) >= self.blocks:
            raise ConfigError(
                f"cannot evaluate the cut {sorted(checked)} of a model with {self.blocks} blocks",
                hint=f"name at most {self.blocks - 1} blocks from 0 to {self.blocks - 1}",
            )
        return checked

    def _add(self, losses: dict[Cut, list[float]], cuts: list[Cut], number: int) -> None:
        """Add the loss of one batch to those of each cut."""
        if not cuts:
            return
        batch, trunk = self._opened(number)
        for group in self._groups(cuts, batch.replay):
            exits = self._follow(group, number, batch.replay, trunk)
            for cut, loss in zip(group, self._losses(batch, [exits.pop(cut) for cut in group]), strict=True):
                if not math.isfinite(loss):
                    raise ModelError(
                        f"the loss without blocks {sorted(cut)} is {loss}",
                        hint="non-finite activations; load the model with --dtype float32",
                    )
                losses[cut].append(loss)

    def _opened(self, number: int) -> tuple[_OpenBatch, dict[int, torch.Tensor]]:
        """Return a batch made ready, and at its first use also the streams of the whole model, which come for free."""
        if number in self._open:
            return self._open[number], {}
        trunk: dict[int, torch.Tensor] = {}
        ids = self._batches[number].input_ids.to(self._device)
        scored = self._batches[number].scored.to(self._device).flatten().nonzero().squeeze(1)
        replay = Replay(self._model, ids, trunk.__setitem__)
        self._count(self.blocks * ids.numel())
        batch = _OpenBatch(replay, scored, ids.roll(-1, dims=1).flatten()[scored])
        final = self._final(batch, trunk.pop(self.blocks))
        if self.kind == "kl":
            batch.teacher = final
        else:
            batch.whole = float(self._head.losses(final, batch.targets).sum(dtype=torch.float64))
        for block, state in trunk.items():
            self._states.keep(number, (), block, state)
        self._open[number] = batch
        return batch, trunk

    def _groups(self, cuts: list[Cut], replay: Replay) -> Iterator[list[Cut]]:
        """Yield cuts in groups whose states fit in memory together; neighbours in order share the longest trunks."""
        ordered = sorted(cuts, key=lambda cut: tuple(sorted(cut)))
        size = max(1, self._live_bytes // _bytes(replay.entry))
        for start in range(0, len(ordered), size):
            yield ordered[start : start + size]

    def _follow(
        self, cuts: Sequence[Cut], number: int, replay: Replay, trunk: dict[int, torch.Tensor]
    ) -> dict[Cut, torch.Tensor]:
        """Return the stream after the last block of every cut, walking the tree of their common prefixes once."""
        starts: dict[int, dict[Path, tuple[torch.Tensor, list[Cut]]]] = {}
        for cut in cuts:
            block, path, state = self._states.deepest(number, cut, self.blocks)
            branch = min(cut)
            if branch > block and branch in trunk:
                block, path, state = branch, (), trunk[branch]
            state = replay.entry if state is None else state
            starts.setdefault(block, {}).setdefault(path, (state, []))[1].append(cut)
        live: dict[Path, tuple[torch.Tensor, list[Cut]]] = {}
        for block in range(min(starts), self.blocks):
            for path, (state, members) in starts.get(block, {}).items():
                held = live.get(path)
                live[path] = (held[0] if held else state, [*(held[1] if held else []), *members])
            after: dict[Path, tuple[torch.Tensor, list[Cut]]] = {}
            running: list[Path] = []
            for path, (state, members) in live.items():
                skipping = [cut for cut in members if block in cut]
                staying = [cut for cut in members if block not in cut]
                if skipping:
                    after[(*path, block)] = (state, skipping)
                if staying:
                    after[path] = (state, staying)
                    running.append(path)
            for path, state in self._step(replay, block, {path: after[path][0] for path in running}).items():
                members = after[path][1]
                after[path] = (state, members)
                if block + 1 < self.blocks and (len(members) > 1 or len(cuts) == 1):
                    self._states.keep(number, path, block + 1, state)
            live = after
        return {cut: state for state, members in live.values() for cut in members}

    def _step(self, replay: Replay, block: int, states: dict[Path, torch.Tensor]) -> dict[Path, torch.Tensor]:
        """Return the given states after one block, as many of them stacked in a batch as are worth it."""
        limit = STACKED_TOKENS_CPU if self._device.type == "cpu" else STACKED_TOKENS
        at_once = max(1, limit // (replay.rows * replay.tokens)) if replay.can_stack else 1
        paths = list(states)
        found: dict[Path, torch.Tensor] = {}
        for start in range(0, len(paths), at_once):
            part = paths[start : start + at_once]
            if len(part) == 1:
                found[part[0]] = replay.run(block, states[part[0]])
                continue
            stacked = replay.run(block, torch.cat([states[path] for path in part]))
            found.update(zip(part, stacked.split(replay.rows), strict=True))
        self._count(len(paths) * replay.rows * replay.tokens)
        return found

    def _count(self, block_tokens: int) -> None:
        self.block_forwards += block_tokens / self._all_tokens
        if self.on_work is not None:
            self.on_work(self.block_forwards)

    def _final(self, batch: _OpenBatch, state: torch.Tensor) -> torch.Tensor:
        """Return the normed hidden states (scored tokens, width) that the head reads."""
        normed: torch.Tensor = batch.replay.norm(state.flatten(0, 1)[batch.scored])
        return normed

    def _losses(self, batch: _OpenBatch, exits: list[torch.Tensor]) -> Iterator[float]:
        """Yield the summed loss of every stream; several short ones go through the head together."""
        at_once = max(1, PIECE_TOKENS // max(1, len(batch.targets)))
        for start in range(0, len(exits), at_once):
            finals = [self._final(batch, state) for state in exits[start : start + at_once]]
            joined, copies = torch.cat(finals), len(finals)
            if batch.teacher is not None:
                losses = self._head.divergences(joined, batch.teacher.repeat(copies, 1))
            else:
                losses = self._head.losses(joined, batch.targets.repeat(copies))
            yield from losses.view(copies, -1).sum(dim=1, dtype=torch.float64).tolist()


@dataclass
class _OpenBatch:
    """A batch with its recorded calls, the places that are scored, their targets, and what the whole model gives."""

    replay: Replay
    scored: torch.Tensor
    targets: torch.Tensor
    whole: float = 0.0
    teacher: torch.Tensor | None = None

    @property
    def loss_per_token(self) -> float:
        return self.whole / (self.replay.rows * self.replay.tokens)


class _States:
    """Streams at some blocks of some paths, the least recently used dropped when memory runs out."""

    def __init__(self, limit_bytes: int, blocks: int, bytes_of_all: int) -> None:
        self._limit = limit_bytes
        self._stride = max(1, math.ceil(2 * blocks * bytes_of_all / limit_bytes)) if limit_bytes else blocks + 1
        self._held: OrderedDict[tuple[int, Path, int], torch.Tensor] = OrderedDict()
        self._used = 0

    def keep(self, number: int, path: Path, block: int, state: torch.Tensor) -> None:
        key = (number, path, block)
        if block == 0 or block % self._stride or key in self._held or _bytes(state) > self._limit:
            return
        own = state.clone() if state._is_view() else state
        self._held[key] = own
        self._used += _bytes(own)
        while self._used > self._limit:
            _, old = self._held.popitem(last=False)
            self._used -= _bytes(old)

    def deepest(self, number: int, cut: Cut, blocks: int) -> tuple[int, Path, torch.Tensor | None]:
        """Return the deepest kept state on the path of a cut: the block it enters, the path, the state."""
        for block in range(blocks - blocks % self._stride, 0, -self._stride):
            path = tuple(sorted(removed for removed in cut if removed < block))
            state = self._held.get((number, path, block))
            if state is not None:
                self._held.move_to_end((number, path, block))
                return block, path, state
        return 0, (), None


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
