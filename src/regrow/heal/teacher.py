"""The unpruned model beside the one that is healed: its logits, its likeliest tokens, its streams at the cuts.

It runs on the same micro-batches as the healed model, packed the same way, so shared prefixes are computed once here
too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from regrow.data.pools import Example
from regrow.errors import ConfigError, ModelError
from regrow.heal.cut_streams import Cut, streams_at
from regrow.heal.frozen_linear import cast_frozen_linears
from regrow.heal.frozen_prefix import attending, autocast
from regrow.heal.losses import STREAMS, TEACHER_LOGITS, TEACHER_TOP, TopTokens
from regrow.heal.microbatch import MicroBatch
from regrow.heal.per_sequence import PerSequence, Tensors
from regrow.heal.response_logits import outputs_of, response_logits
from regrow.heal.tensor_cache import TensorCache
from regrow.models.families import blocks_of
from regrow.models.load import LoadedModel

_IDS, _LOG_PROBS, _REST = "ids", "log_probs", "rest"


@dataclass(frozen=True)
class Signals:
    """What the unpruned model says of a micro-batch (see losses.LossInputs)."""

    logits: torch.Tensor | None = None
    top: TopTokens | None = None
    streams: tuple[torch.Tensor, ...] = ()


class Teacher:
    """The unpruned model as losses need it.

    ``load`` is called when it must run for the first time; with nothing but kept top-k tokens to read, never.
    """

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        reads: frozenset[str],
        dtype: torch.dtype,
        *,
        cuts: Sequence[Cut] = (),
        temperature: float = 1.0,
        top_k: int = 50,
    ) -> None:
        self._load, self._reads, self._dtype = load, reads, dtype
        self._cuts, self.temperature, self._top_k = tuple(cuts), temperature, top_k
        self._model: Any = None
        self._top: PerSequence | None = None
        self._vocabulary = 0

    def keep_top(
        self,
        examples: Sequence[Example],
        cut: Callable[[Sequence[Example]], list[MicroBatch]],
        cache: TensorCache,
        *,
        identity: object,
    ) -> None:
        """Compute the likeliest tokens of each sequence of a plan once, and keep them in ``cache``."""
        size = 8 * self._top_k + 4
        self._top = PerSequence(
            examples,
            cut,
            self._top_of_each,
            cache,
            identity=["top-k", identity, self._top_k, self.temperature, str(self._dtype)],
            bytes_of=lambda entry: len(entry.response_ids) * size + 512,
        )

    def check(self, student: LoadedModel) -> None:
        """Load the unpruned model where it will be needed for certain, and raise ModelError when it does not fit."""
        if self._reads & {TEACHER_LOGITS, STREAMS}:
            self._loaded()
        self._vocabulary = outputs_of(student.model)
        if self._model is not None:
            self._check_vocabulary()

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Keep the frozen layers in the run's number format while the context lasts."""
        if self._model is None:
            yield
            return
        with cast_frozen_linears(self._model, self._dtype):
            yield

    def signals(self, batch: MicroBatch) -> Signals:
        """Return what the losses of this run read of the unpruned model."""
        top = self._kept_top(batch) if TEACHER_TOP in self._reads else None
        if not self._reads & {TEACHER_LOGITS, STREAMS} and top is not None:
            return Signals(top=top)
        logits, streams = self._run(batch)
        if TEACHER_TOP in self._reads and top is None:
            top = self._likeliest(logits)
        return Signals(logits if TEACHER_LOGITS in self._reads else None, top, streams)

    @torch.no_grad()
    def _run(self, batch: MicroBatch) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        model = self._loaded()
        device = batch.input_ids.device
        places = [cut.unpruned for cut in self._cuts] if STREAMS in self._reads else []
        with attending(model, batch), autocast(device, self._dtype), streams_at(model, places, batch.positions) as seen:
            logits = response_logits(model, batch)
        return logits, tuple(seen)

    def _loaded(self) -> Any:
        if self._model is None:
            self._model = self._load().model.eval()
            self._model.requires_grad_(False)
            for cut in self._cuts:
                if cut.unpruned > len(blocks_of(self._model)):
                    raise ModelError(
                        "the unpruned model has fewer blocks than the cut speaks of", hint="pass it with --unpruned"
                    )
            if self._vocabulary:
                self._check_vocabulary()
        return self._model

    def _check_vocabulary(self) -> None:
        own = outputs_of(self._model)
        if own != self._vocabulary:
            raise ModelError(
                f"the unpruned model knows {own:,} tokens, the healed one {self._vocabulary:,}",
                hint="pass the model that the checkpoint was cut from with --unpruned",
            )

    def _likeliest(self, logits: torch.Tensor) -> TopTokens:
        scores = (logits.float() / self.temperature).log_softmax(-1)
        if not 0 < self._top_k < scores.shape[-1]:
            raise ConfigError(
                f"the {self._top_k} likeliest of {scores.shape[-1]} tokens were asked for",
                hint=f"allowed: 1 to {scores.shape[-1] - 1}",
            )
        best = scores.topk(self._top_k, dim=-1)
        rest = scores.scatter(-1, best.indices, float("-inf")).logsumexp(-1)
        return TopTokens(best.indices, best.values, rest)

    def _top_of_each(self, batch: MicroBatch) -> list[Tensors]:
        device = next(self._loaded().parameters()).device
        logits, _ = self._run(batch.to(device))
        top = self._likeliest(logits)
        sizes = [len(entry.response_ids) for entry in batch.examples]
        parts = (part.cpu().split(sizes) for part in (top.ids.int(), top.log_probs, top.rest))
        return [{_IDS: ids, _LOG_PROBS: logs, _REST: rest} for ids, logs, rest in zip(*parts, strict=True)]

    def _kept_top(self, batch: MicroBatch) -> TopTokens | None:
        if self._top is None or not all(self._top.holds(entry) for entry in batch.examples):
            return None
        each = [self._top.of(entry) for entry in batch.examples]
        device = batch.input_ids.device
        ids, logs, rest = (torch.cat([one[name] for one in each]).to(device) for name in (_IDS, _LOG_PROBS, _REST))
        return TopTokens(ids.long(), logs, rest)
