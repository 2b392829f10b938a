"""What is checked of a calibration text before it is trusted: chunks the model can read, nothing it is evaluated on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from regrow.capabilities.model_call import context_limit
from regrow.capabilities.suites import suite
from regrow.data.calibration import CalibrationSet
from regrow.data.overlap import shared_with_calibration
from regrow.data.text import bundled_text
from regrow.errors import ModelError
from regrow.records.specs import PruneSpec, RepairSpec


def fitting_chunks(spec: PruneSpec | RepairSpec, model: Any, *, note: Callable[[str], None]) -> PruneSpec | RepairSpec:
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
    calibration: CalibrationSet, tokenizer: Any, evaluated: Mapping[str, str | Iterable[str]]
) -> list[str]:
    """Return a warning for each text to be evaluated that also stands in the calibration set.

    ``evaluated`` maps a name to text. Passages of 13 words count.
    """
    found = [
        shared_with_calibration(calibration, tokenizer, text, evaluation_name=name) for name, text in evaluated.items()
    ]
    return [f"{warning}; scores on it will look better than they are" for warning in found if warning]


def evaluation_texts(*, questions: bool = True) -> dict[str, str | list[str]]:
    """Return what ``regrow eval`` measures on, by name: the perplexity text and the questions of the mini suite, these
    without their few-shot examples, which healing prompts share on purpose."""
    found: dict[str, str | list[str]] = {"the perplexity text": bundled_text()}
    if questions:
        found["the questions of the mini suite"] = [
            str(item.messages[-1]["content"])
            for capability in suite("mini")
            for split in ("dev", "test")
            for item in capability.items(split)
        ]
    return found
