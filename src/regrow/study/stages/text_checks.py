"""What is checked of a calibration text before it is trusted: chunks the model can read, nothing it is evaluated on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from regrow.capabilities.model_call import context_limit
from regrow.capabilities.suites import suite
from regrow.data.calibration import CalibrationSet
from regrow.data.overlap import shared_with_calibration
from regrow.data.text import bundled_text
from regrow.errors import ModelError
from regrow.records.specs import PruneSpec, RepairSpec

S = TypeVar("S", PruneSpec, RepairSpec)


def fitting_chunks(spec: S, model: Any, *, note: Callable[[str], None]) -> S:
    """Return ``spec`` with chunks no longer than the model's context; ``note`` is told when that changes them.

    Models with learned positions (GPT-2) cannot read more. Raises ModelError when not even two tokens fit.
    """
    limit = context_limit(model)
    if limit is None or spec.chunk_tokens <= limit:
        return spec
    if limit < 2:
        raise ModelError(f"the model's context holds {limit} token", hint="use a model with a longer context")
    note(f"note: calibration chunks have {limit} tokens, the model's context, not {spec.chunk_tokens}")
    return spec.model_copy(update={"chunk_tokens": limit})


def overlap_warnings(
    calibration: CalibrationSet, tokenizer: Any, evaluated: Mapping[str, str | Iterable[str]] | None = None
) -> list[str]:
    """Return a warning for each text to be evaluated that also stands in the calibration set.

    ``evaluated`` maps a name to text (default: what ``regrow eval`` reads, the bundled perplexity text and the
    questions of the mini suite). Passages of 13 words count.
    """
    texts = evaluation_texts() if evaluated is None else evaluated
    found = [
        shared_with_calibration(calibration, tokenizer, text, evaluation_name=name) for name, text in texts.items()
    ]
    return [f"{warning}; scores on it will look better than they are" for warning in found if warning]


def evaluation_texts() -> dict[str, str | list[str]]:
    """Return what ``regrow eval`` measures on, by name. Questions are without their few-shot examples, which healing
    prompts share on purpose."""
    questions = [
        str(item.messages[-1]["content"])
        for capability in suite("mini")
        for split in ("dev", "test")
        for item in capability.items(split)
    ]
    return {"the perplexity text": bundled_text(), "the questions of the mini suite": questions}
