"""What a repair came to, as plain numbers: one row per method, and the table of several methods on one cut."""

from __future__ import annotations

from regrow.records.checkpoint import BridgeFacts
from regrow.records.results import Frozen, Number


class CutError(Frozen):
    """How far the stream behind one removed run is from the unpruned model's, on held-out tokens.

    Errors are norm(Y - Y') / norm(Y) over all tokens but the first of each sequence. ``fitted`` and ``held_out`` apply
    the operator to the unpruned model's own stream (``held_out_before``: no operator); ``in_model_before`` and
    ``in_model`` compare the running pruned and repaired models, so they carry the errors of earlier cuts. NaN where
    not defined: a method without an operator on the stream, no held-out sequence.
    """

    blocks: tuple[int, ...]
    after_block: int
    fitted: Number = float("nan")
    held_out_before: Number = float("nan")
    held_out: Number = float("nan")
    in_model_before: Number = float("nan")
    in_model: Number = float("nan")
    ridge: Number = float("nan")


class RepairRow(Frozen):
    """One method on one cut. ``final_error`` is that of the stream that leaves the last block; ``perplexity`` is over
    the held-out calibration tokens; ``portable`` tells that the result is a plain checkpoint for any program.
    ``flops_per_token`` are those added (2 per weight). ``tokens`` were fitted on; ``held_out_tokens`` measured on."""

    method: str
    label: str = ""
    cuts: tuple[CutError, ...] = ()
    final_error_before: Number = float("nan")
    final_error: Number = float("nan")
    perplexity_unpruned: Number = float("nan")
    perplexity_before: Number = float("nan")
    perplexity: Number = float("nan")
    added_parameters: int = 0
    flops_per_token: int = 0
    portable: bool = False
    tokens: int = 0
    held_out_tokens: int = 0
    fit_seconds: Number = float("nan")
    bridges: tuple[BridgeFacts, ...] = ()
    warnings: tuple[str, ...] = ()


class RepairTable(Frozen):
    """Several methods on one cut, fitted from one calibration pass."""

    removed_blocks: tuple[int, ...]
    unpruned_blocks: int
    calibration: str
    calibration_fingerprint: str
    calibration_tokens: int
    pass_seconds: Number = float("nan")
    rows: tuple[RepairRow, ...] = ()
