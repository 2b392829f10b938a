"""What broke, what came back and what did not, in sentences that follow from the tests and from nothing else."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from enum import StrEnum

from regrow.records.results import Frozen
from regrow.report.results import Change, Column, MainTable, Row
from regrow.report.wording import blocks_phrase, count, listed, percent, percent_span, points

AS_GOOD = 0.9
"""Retention from which a row that rose counts as back, when no gap to the unpruned model is detected."""

WIDE = 0.10
"""A detectable difference above ten points makes the sentence about small samples appear."""

_PHRASES = {"safety.unsafe": "refusing unsafe requests", "safety.benign": "answering benign requests"}


class Verdict(StrEnum):
    """What the tests say of one row in one column."""

    BROKE = "broke"
    CAME_BACK = "came back"
    PARTLY = "came back in part"
    NOT_BACK = "no recovery detected"
    UNCLEAR = "cannot be told"
    ROSE = "rose above the unpruned model"
    HELD = "no difference detected"


class RowVerdict(Frozen):
    """The verdict on a row, with its scores in the unpruned model (NaN: none), at the cut and in this column."""

    row: str
    name: str
    verdict: Verdict


class ColumnFindings(Frozen):
    """The verdicts on one column and the sentences that state them."""

    column: int
    verdicts: tuple[RowVerdict, ...]
    sentences: tuple[str, ...]


class Findings(Frozen):
    """``lead`` is the answer in short, ``columns`` hold all of it, ``caveats`` what the numbers cannot say."""

    lead: tuple[str, ...]
    columns: tuple[ColumnFindings, ...]
    caveats: tuple[str, ...]

    def sentences(self) -> tuple[str, ...]:
        """Return the lead and the caveats: what a terminal prints below the table."""
        return (*self.lead, *self.caveats)

    def of(self, column: int) -> ColumnFindings | None:
        """Return the verdicts on a column, None where there are none."""
        return next((found for found in self.columns if found.column == column), None)


def findings(table: MainTable) -> Findings:
    """Return what the table's tests show. Every claim of a change is a test significant after Holm's correction."""
    if len(table.columns) == 1:
        only = f"One model was evaluated ({table.columns[0].label}): there is nothing to compare it with."
        return Findings(lead=(only,), columns=(), caveats=_caveats(table))
    if table.base is None and table.cut is None:
        nothing = "There is no unpruned and no pruned model among these, so no change was tested."
        return Findings(lead=(nothing,), columns=(), caveats=_caveats(table))
    if table.base is None:
        columns = [_against_cut(table, later) for later in _after(table, table.cut)]
        return Findings(lead=_sentences(columns), columns=tuple(columns), caveats=_caveats(table))
    if table.cut is None:
        columns = [_against_base(table, later) for later in _after(table, table.base)]
        return Findings(lead=_sentences(columns), columns=tuple(columns), caveats=_caveats(table))
    columns = [_damage(table, table.base, table.cut)]
    columns += [_recovery(table, table.base, table.cut, later) for later in _after(table, table.cut)]
    lead = columns[0].sentences if len(columns) == 1 else (columns[0].sentences[0], *columns[-1].sentences)
    return Findings(lead=lead, columns=tuple(columns), caveats=_caveats(table))


def verdict_of(table: MainTable, row: str, later: int) -> Verdict:
    """Return the verdict on ``row`` at column ``later`` of a table that has an unpruned model."""
    gap = table.change(row, "unpruned", later)
    broke = table.change(row, "unpruned", table.cut) if table.cut is not None else None
    if gap is None:
        return Verdict.UNCLEAR
    if broke is None or later == table.cut or not _fell(broke):
        return Verdict.BROKE if _fell(gap) else Verdict.ROSE if _grew(gap) else Verdict.HELD
    gain = table.change(row, "pruned", later)
    if gain is None or not _grew(gain):
        return Verdict.NOT_BACK if _fell(gap) else Verdict.UNCLEAR
    if _grew(gap):
        return Verdict.ROSE
    kept = table.row(row).kept[later].value
    return Verdict.PARTLY if _fell(gap) or not kept >= AS_GOOD else Verdict.CAME_BACK


def _damage(table: MainTable, base: int, cut: int) -> ColumnFindings:
    rows, verdicts = _judged(table, cut)
    cause = _cut_phrase(table.columns[cut])
    broke = _pick(rows, verdicts, Verdict.BROKE, table, cut)
    sentences = []
    if broke:
        sentences.append(f"{cause} broke {listed([_moved(row, base, cut) for row in broke])}.")
    else:
        sentences.append(f"{cause}: no loss was detected.")
    sentences += _rose_and_held(table, rows, verdicts, cut)
    return ColumnFindings(column=cut, verdicts=verdicts, sentences=tuple(sentences))


def _recovery(table: MainTable, base: int, cut: int, later: int) -> ColumnFindings:
    rows, verdicts = _judged(table, later)
    cause = _cause(table, later)
    back, partly, lost, unclear, above, fell = (
        _pick(rows, verdicts, wanted, table, later)
        for wanted in (
            Verdict.CAME_BACK,
            Verdict.PARTLY,
            Verdict.NOT_BACK,
            Verdict.UNCLEAR,
            Verdict.ROSE,
            Verdict.BROKE,
        )
    )
    sentences = []
    returned = [row for row in rows if row in back or row in above]
    if returned:
        sentences.append(f"{cause} brought back {listed([_moved(row, cut, later) for row in returned])}.")
    if partly:
        parts = [_kept_part(row, cut, later) for row in partly]
        sentences.append(f"{'In part' if returned else cause + ' brought back in part'}: {listed(parts)}.")
    if lost:
        sentences.append(f"No recovery was detected in {listed([_phrase(row) for row in lost], last='or')}.")
    if unclear:
        names = listed([_phrase(row) for row in unclear])
        sentences.append(f"For {names} neither a gain nor a remaining gap was detected.")
    if fell:
        sentences.append(f"{_upper(listed([_moved(row, base, later) for row in fell]))} broke only here.")
    if not sentences:
        sentences.append(f"{cause}: no change from the pruned model was detected.")
    return ColumnFindings(column=later, verdicts=verdicts, sentences=tuple(sentences))


def _against_base(table: MainTable, later: int) -> ColumnFindings:
    base = table.base if table.base is not None else 0
    rows, verdicts = _judged(table, later)
    broke = _pick(rows, verdicts, Verdict.BROKE, table, later)
    label = table.columns[later].label
    worse = listed([_moved(row, base, later) for row in broke])
    first = (
        f"Compared with the unpruned model, '{label}' lost {worse}."
        if broke
        else f"Compared with the unpruned model, no loss of '{label}' was detected."
    )
    return ColumnFindings(
        column=later, verdicts=verdicts, sentences=(first, *_rose_and_held(table, rows, verdicts, later))
    )


def _against_cut(table: MainTable, later: int) -> ColumnFindings:
    cut = table.cut if table.cut is not None else 0
    changes = {row.key: table.change(row.key, "pruned", later) for row in _told(table)}
    up = [row for row in _told(table) if (c := changes[row.key]) and _grew(c)]
    down = [row for row in _told(table) if (c := changes[row.key]) and _fell(c)]
    sentences = []
    if up:
        sentences.append(f"{_cause(table, later)} raised {listed([_moved(row, cut, later) for row in up])}.")
    if down:
        sentences.append(f"{_cause(table, later)} lowered {listed([_moved(row, cut, later) for row in down])}.")
    if not sentences:
        sentences.append(f"{_cause(table, later)}: no change from the pruned model was detected.")
    return ColumnFindings(column=later, verdicts=(), sentences=tuple(sentences))


def _rose_and_held(table: MainTable, rows: Sequence[Row], verdicts: Sequence[RowVerdict], later: int) -> list[str]:
    base = table.base if table.base is not None else 0
    rose = _pick(rows, verdicts, Verdict.ROSE, table, later)
    held = _pick(rows, verdicts, Verdict.HELD, table, later)
    sentences = []
    if rose:
        sentences.append(f"{_upper(listed([_moved(row, base, later) for row in rose]))} rose.")
    if held:
        parts = [f"{_phrase(row)} ({_pair_of(row, base, later)})" for row in held]
        sentences.append(f"No difference was detected in {listed(parts, last='or')}.")
    return sentences


def _caveats(table: MainTable) -> tuple[str, ...]:
    reach = [change.detectable for change in table.changes if math.isfinite(change.detectable)]
    said = list(table.notes)
    sizes = [row.items for row in _told(table) if row.items]
    if reach and statistics.median(reach) > WIDE and sizes:
        items = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
        said.append(
            f"With {items} items a row the intervals are wide: a true change below about "
            f"{points(statistics.median(reach))} would often go undetected, so “no difference detected” does not "
            "mean “equal”."
        )
    return tuple(said)


def _sentences(columns: Sequence[ColumnFindings]) -> tuple[str, ...]:
    return tuple(sentence for column in columns for sentence in column.sentences)


def _after(table: MainTable, reference: int | None) -> range:
    return range((reference if reference is not None else 0) + 1, len(table.columns))


def _told(table: MainTable) -> list[Row]:
    """The rows that sentences speak of; refusal by its two rates, which can move apart while their mean stands."""
    split = {row.part_of for row in table.rows if row.part_of}
    return [row for row in table.rows if row.unit == "share" and row.key not in split and row.items]


def _judged(table: MainTable, later: int) -> tuple[list[Row], tuple[RowVerdict, ...]]:
    rows = _told(table)
    return rows, tuple(
        RowVerdict(row=row.key, name=row.name, verdict=verdict_of(table, row.key, later)) for row in rows
    )


def _pick(
    rows: Sequence[Row], verdicts: Sequence[RowVerdict], wanted: Verdict, table: MainTable, later: int
) -> list[Row]:
    """Rows with the wanted verdict, the largest change first."""
    chosen = [row for row, told in zip(rows, verdicts, strict=True) if told.verdict is wanted]
    sizes = {
        row.key: change.difference if (change := table.change(row.key, "unpruned", later)) else 0 for row in chosen
    }
    return sorted(chosen, key=lambda row: sizes[row.key])


def _fell(change: Change) -> bool:
    return change.significant and change.difference < 0


def _grew(change: Change) -> bool:
    return change.significant and change.difference > 0


def _phrase(row: Row) -> str:
    return _PHRASES.get(row.key, row.name.lower())


def _pair_of(row: Row, earlier: int, later: int) -> str:
    return f"{percent(row.cells[earlier].value)} → {percent(row.cells[later].value)}"


def _moved(row: Row, earlier: int, later: int) -> str:
    return f"{_phrase(row)} ({_pair_of(row, earlier, later)})"


def _kept_part(row: Row, earlier: int, later: int) -> str:
    of = row.kept[later]
    limits = percent_span(of.low, of.high)
    return f"{_moved(row, earlier, later)[:-1]}, {percent(of.value)} kept{f' [{limits}]' if limits else ''})"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _cut_phrase(column: Column) -> str:
    if not column.removed_blocks:
        return f"Pruning ('{column.label}')"
    number = len(column.removed_blocks)
    word = "block" if number == 1 else "blocks"
    return f"Removing {word} {blocks_phrase(column.removed_blocks)} of {column.unpruned_blocks}"


def _cause(table: MainTable, later: int) -> str:
    column = table.columns[later]
    alike = sum(other.stage == column.stage for other in table.columns)
    name = f" '{column.label}'" if alike > 1 else ""
    if column.stage == "healed":
        return f"Healing{name}" + (f" on {count(column.healing_tokens)} tokens" if column.healing_tokens else "")
    if column.stage == "repaired":
        return f"Repair{name}" + (f" ({column.repair})" if column.repair and not name else "")
    return f"'{column.label}'"
