"""The streamed normal equations of a linear fit: everything a least-squares repair needs, and no token of the data.

Memory is O(p^2 + p q) for p inputs and q outputs, whatever the number of rows. Products are formed and added in
float64: on a CPU that costs about 1.4 % of a forward pass of SmolLM2-135M per product (float32 products would cost
0.5 % and leave errors of 1.5e-6 of sqrt(S_ii S_jj), which a fit with a condition number above 1e6 would see). For n
rows added in any order and any batches, an entry of X'Y is off by at most (n + 1) * 1.1e-16 * sqrt(S_ii T_jj), S and T
being the sums of squares of its column of X and of Y.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regrow.errors import DataError, ModelError

FORMAT = "regrow-sums-1"


@dataclass
class Outputs:
    """Sums of one set of outputs against the inputs: ``xy`` = X'wY (p, q), ``y_sum`` and ``y_squares`` per column."""

    xy: torch.Tensor
    y_sum: torch.Tensor
    y_squares: torch.Tensor

    def __add__(self, other: Outputs) -> Outputs:
        place = self.xy.device
        return Outputs(
            self.xy + other.xy.to(place), self.y_sum + other.y_sum.to(place), self.y_squares + other.y_squares.to(place)
        )


@dataclass(frozen=True)
class Problem:
    """One least-squares problem Y ~ f(X) given by its sums.

    ``xx`` X'wX (p, p), ``xy`` X'wY (p, q), ``x_sum`` (p), ``y_sum`` and ``y_squares`` (q), ``weight`` the sum of row
    weights, ``rows`` their number. All float64 on the CPU.
    """

    xx: torch.Tensor
    xy: torch.Tensor
    x_sum: torch.Tensor
    y_sum: torch.Tensor
    y_squares: torch.Tensor
    weight: float
    rows: int

    @property
    def inputs(self) -> int:
        return int(self.xx.shape[0])

    @property
    def x_mean(self) -> torch.Tensor:
        return self.x_sum / self.weight

    @property
    def y_mean(self) -> torch.Tensor:
        return self.y_sum / self.weight

    def squared_error(self, matrix: torch.Tensor, offset: torch.Tensor | None = None) -> float:
        """Return the weighted sum of squares of Y - (X ``matrix`` + ``offset``), by the sums alone."""
        error = self.y_squares.sum() + (matrix * (self.xx @ matrix)).sum() - 2 * (matrix * self.xy).sum()
        if offset is not None:
            error = error + self.weight * (offset @ offset) + 2 * offset @ (matrix.T @ self.x_sum - self.y_sum)
        # Cancellation can leave a tiny negative number where the fit is exact.
        return max(0.0, error.item())

    def relative_error(self, matrix: torch.Tensor, offset: torch.Tensor | None = None) -> float:
        """Return the Frobenius norm of Y - f(X) over that of Y; NaN when Y is zero or there is no row."""
        total = self.y_squares.sum().item()
        return float("nan") if total <= 0 else (self.squared_error(matrix, offset) / total) ** 0.5

    def through(self, matrix: torch.Tensor, offset: torch.Tensor) -> Problem:
        """Return the problem whose inputs are X ``matrix`` + ``offset`` instead of X, exactly, without the data."""
        seen = matrix.T @ self.x_sum
        return Problem(
            xx=matrix.T @ self.xx @ matrix
            + torch.outer(seen, offset)
            + torch.outer(offset, seen)
            + self.weight * torch.outer(offset, offset),
            xy=matrix.T @ self.xy + torch.outer(offset, self.y_sum),
            x_sum=seen + self.weight * offset,
            y_sum=self.y_sum,
            y_squares=self.y_squares,
            weight=self.weight,
            rows=self.rows,
        )


class NormalSums:
    """Sums of the inputs X (width ``inputs``) against any number of named outputs Y, added batch by batch.

    ``device`` is where the rows are; sums stay there until read. A device without float64 gets its rows moved.
    """

    def __init__(self, inputs: int, outputs: Mapping[str, int], *, device: torch.device | str = "cpu") -> None:
        place = torch.device(device)
        self.device = torch.device("cpu") if place.type == "mps" else place
        self.rows = 0
        self.weight = 0.0
        self.xx = self._zeros(inputs, inputs)
        self.x_sum = self._zeros(inputs)
        self.outputs = {
            name: Outputs(self._zeros(inputs, width), self._zeros(width), self._zeros(width))
            for name, width in outputs.items()
        }

    def add(self, x: torch.Tensor, ys: Mapping[str, torch.Tensor], weights: torch.Tensor | None = None) -> None:
        """Add rows: ``x`` (n, p), ``ys`` (n, q) each, ``weights`` (n) non-negative or None for ones.

        Raises ModelError on a number that is not finite, before anything is added.
        """
        if x.shape[0] == 0:
            return
        x64 = self._exact(x, "the inputs")
        ys64 = {name: self._exact(ys[name], name) for name in self.outputs}
        w = None if weights is None else self._exact(weights, "the row weights")
        xw = x64 if w is None else x64 * w[:, None]
        self.rows += x64.shape[0]
        self.weight += float(x64.shape[0] if w is None else w.sum())
        self.xx.addmm_(xw.T, x64)
        self.x_sum += xw.sum(0)
        for name, y in ys64.items():
            held = self.outputs[name]
            held.xy.addmm_(xw.T, y)
            held.y_sum += y.sum(0) if w is None else w @ y
            held.y_squares += y.square().sum(0) if w is None else w @ y.square()

    def __add__(self, other: NormalSums) -> NormalSums:
        """Return the sums of both data sets; the order does not matter beyond rounding."""
        if self._shape() != other._shape():
            raise DataError(
                f"sums of other inputs or outputs cannot be merged: {self._shape()} and {other._shape()}",
                hint="merge sums gathered for the same cut of the same model",
            )
        total = NormalSums(0, {})
        total.device, total.rows, total.weight = self.device, self.rows + other.rows, self.weight + other.weight
        total.xx = self.xx + other.xx.to(self.device)
        total.x_sum = self.x_sum + other.x_sum.to(self.device)
        total.outputs = {name: held + other.outputs[name] for name, held in self.outputs.items()}
        return total

    def problem(self, output: str) -> Problem:
        """Return the least-squares problem for one of the named outputs."""
        held = self.outputs[output]
        return Problem(
            self.xx.cpu(),
            held.xy.cpu(),
            self.x_sum.cpu(),
            held.y_sum.cpu(),
            held.y_squares.cpu(),
            self.weight,
            self.rows,
        )

    def save(self, file: Path) -> None:
        """Write the sums to ``file`` (safetensors), for example from one of several processes."""
        from safetensors.torch import save

        from regrow.records.atomic import write_bytes

        tensors = {"xx": self.xx, "x_sum": self.x_sum}
        for number, held in enumerate(self.outputs.values()):
            tensors |= {f"xy{number}": held.xy, f"y_sum{number}": held.y_sum, f"y_squares{number}": held.y_squares}
        facts = {"rows": self.rows, "weight": self.weight, "outputs": list(self.outputs)}
        plain = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        write_bytes(file, save(plain, metadata={"format": FORMAT, "facts": json.dumps(facts)}))

    @classmethod
    def load(cls, file: Path) -> NormalSums:
        """Return the sums that :meth:`save` wrote. Raises DataError on any other file."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(file), "pt") as stored:
                metadata = stored.metadata() or {}
                if metadata.get("format") != FORMAT:
                    raise DataError(f"'{file}' holds no sums of regrow", hint="name a file written by NormalSums.save")
                facts: dict[str, Any] = json.loads(metadata["facts"])
                made = cls(0, {})
                made.rows, made.weight = int(facts["rows"]), float(facts["weight"])
                made.xx, made.x_sum = stored.get_tensor("xx"), stored.get_tensor("x_sum")
                for number, name in enumerate(facts["outputs"]):
                    parts = [stored.get_tensor(f"{part}{number}") for part in ("xy", "y_sum", "y_squares")]
                    made.outputs[name] = Outputs(*parts)
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise DataError(f"'{file}' cannot be read as sums: {error}", hint="gather the sums again") from error
        return made

    @property
    def nbytes(self) -> int:
        """Bytes held by the sums."""
        tensors: Iterable[torch.Tensor] = [
            self.xx,
            self.x_sum,
            *(part for held in self.outputs.values() for part in (held.xy, held.y_sum, held.y_squares)),
        ]
        return sum(tensor.nbytes for tensor in tensors)

    def _shape(self) -> tuple[int, tuple[tuple[str, int], ...]]:
        return int(self.xx.shape[0]), tuple((name, int(held.xy.shape[1])) for name, held in self.outputs.items())

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.float64, device=self.device)

    def _exact(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        found = rows.detach().to(self.device).to(torch.float64)
        if not torch.isfinite(found).all():
            raise ModelError(
                f"{name} hold a number that is not finite", hint="run the unpruned model in float32: --dtype float32"
            )
        return found
