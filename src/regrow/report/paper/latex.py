"""Tables as LaTeX (booktabs), ready to be put into a paper."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from regrow.report.paper.grids import Grid, Head, Text
from regrow.report.wording import DASH, MINUS

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "≤": r"$\leq$",
    "±": r"$\pm$",
    MINUS: r"$-$",
    DASH: "--",
}


def latex_of(grid: Grid) -> str:
    """Return a table environment with caption and label. Needs the package booktabs; the run folders behind each line
    stand beside it as comments."""
    columns = "".join("r" if head.number else "l" for head in grid.heads)
    lines = [
        f"% {grid.title}: made by regrow; needs \\usepackage{{booktabs}}",
        r"\begin{table*}[t]",
        r"\centering\small",
        rf"\caption{{\textbf{{{escaped(grid.title)}.}} {escaped(grid.caption)} {escaped(' '.join(grid.notes))}}}",
        rf"\label{{tab:{grid.key}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *_heads(grid.heads),
        r"\midrule",
    ]
    for place, line in enumerate(grid.lines):
        if line.first and place:
            lines.append(r"\addlinespace")
        runs = dict.fromkeys(run for cell in line.cells for run in cell.runs.split("; ") if run)
        comment = f" % {', '.join(runs)}" if runs else ""
        lines.append(" & ".join(_cell(cell) for cell in line.cells) + r" \\" + comment)
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table*}", ""]
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Return text in which no character is a command of LaTeX."""
    return "".join(_ESCAPES.get(character, character) for character in text)


def _heads(heads: Sequence[Head]) -> list[str]:
    found = []
    if any(head.group for head in heads):
        cells, rules, at = [], [], 1
        for group, members in groupby(heads, key=lambda head: head.group):
            width = len(list(members))
            if group:
                cells.append(rf"\multicolumn{{{width}}}{{c}}{{{escaped(group)}}}")
                rules.append(rf"\cmidrule(lr){{{at}-{at + width - 1}}}")
            else:
                cells.append(" & ".join([""] * width) if width > 1 else "")
            at += width
        found += [" & ".join(cells) + r" \\", " ".join(rules)]
    found.append(" & ".join(escaped(head.text) for head in heads) + r" \\")
    return found


def _cell(cell: Text) -> str:
    text = escaped(cell.text)
    if cell.bold and text:
        text = rf"\textbf{{{text}}}"
    if cell.small:
        text += (" " if text else "") + rf"{{\scriptsize {escaped(cell.small)}}}"
    return text
