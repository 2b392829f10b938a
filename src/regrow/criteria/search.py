"""Search over sets of blocks: seven algorithms, one oracle, budgets in block forwards.

An algorithm is a function of the oracle, the allowed blocks, the number to remove and a budget; it returns the best
set that it saw. It asks no new question once the budget is spent, so it ends at most one question late.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from regrow.criteria.objective import Answer, Objective
from regrow.criteria.order import candidates, select, windows
from regrow.errors import ConfigError
from regrow.records.results import LayerScores
from regrow.registry import Registry

Cut = frozenset[int]
SEARCHES: Registry[Any] = Registry("search algorithm", entry_point_group="regrow.searches")

POPULATION = 12
BEAM_WIDTH = 3
QUESTIONS_AT_ONCE = 8


@dataclass(frozen=True)
class SearchResult:
    """The best cut found, its mean loss, and what it took.

    ``trace`` holds (block forwards, best loss) at every improvement; ``within_budget`` is False when the budget ended
    the search before the algorithm was done.
    """

    algorithm: str
    removed: tuple[int, ...]
    loss: float
    evaluations: int
    block_forwards: float
    trace: tuple[tuple[float, float], ...]
    within_budget: bool


@dataclass
class Task:
    """What an algorithm works with. Ask through :meth:`ask`, which counts, remembers the best and knows the budget."""

    objective: Objective
    allowed: tuple[int, ...]
    remove: int
    budget: float
    generator: np.random.Generator
    best: Cut | None = None
    loss: float = math.inf
    trace: list[tuple[float, float]] = field(default_factory=list)
    stopped: bool = False

    def __post_init__(self) -> None:
        self._start = self.objective.block_forwards
        self._asked = self.objective.evaluations

    @property
    def spent(self) -> float:
        """Block forwards since the task began."""
        return self.objective.block_forwards - self._start

    @property
    def evaluations(self) -> int:
        """Cuts evaluated since the task began."""
        return self.objective.evaluations - self._asked

    @property
    def open(self) -> bool:
        """Whether another question may be asked; remembers when the budget said no."""
        if self.spent >= self.budget:
            self.stopped = True
        return not self.stopped

    def ask(self, cuts: Iterable[Iterable[int]], *, keep: int | None = None) -> list[Answer]:
        """Return the answers, and remember the best complete cut of the wanted size."""
        asked = [frozenset(cut) for cut in cuts]
        answers = self.objective.race(asked, keep=keep)
        for cut, answer in zip(asked, answers, strict=True):
            if answer.complete and len(cut) == self.remove and answer.value < self.loss:
                self.best, self.loss = cut, answer.value
                self.trace.append((self.spent, answer.value))
        return answers

    def draw(self) -> Cut:
        """Return a uniformly drawn cut of the wanted size."""
        chosen = self.generator.choice(len(self.allowed), size=self.remove, replace=False)
        return frozenset(self.allowed[place] for place in chosen)

    def swapped(self, cut: Cut) -> Cut:
        """Return a neighbour: one block of the cut comes back, another one goes. The cut itself when there is none."""
        inside = sorted(cut)
        outside = [block for block in self.allowed if block not in cut]
        if not outside:
            return cut
        back = inside[int(self.generator.integers(len(inside)))]
        return cut - {back} | {outside[int(self.generator.integers(len(outside)))]}


Algorithm = Callable[[Task], None]


def search(
    objective: Objective,
    algorithm: str,
    *,
    remove: int,
    protect: Sequence[int] = (0,),
    contiguous: bool = False,
    budget: float = math.inf,
    generator: np.random.Generator | None = None,
    options: dict[str, Any] | None = None,
) -> SearchResult:
    """Return the best cut of ``remove`` blocks that an algorithm of :data:`SEARCHES` finds within ``budget``.

    ``budget`` counts block forwards over the whole text (one forward pass of an N-block model is N). With
    ``contiguous`` all windows are tried, whatever the algorithm: there are fewer than N. Raises ConfigError on an
    unknown algorithm, or for random, evolutionary and annealing without a finite budget.
    """
    method: Callable[..., None] = SEARCHES.get(algorithm)
    if not budget > 0:
        raise ConfigError(f"the search budget must be positive, got {budget}", hint="try 10 times the number of blocks")
    facts = dict(SEARCHES.entry(algorithm).facts)
    if facts.get("ends") == "no" and not math.isfinite(budget) and not contiguous:
        raise ConfigError(f"the search '{algorithm}' only ends with its budget", hint="give a budget in block forwards")
    allowed = candidates(algorithm, objective.blocks, remove=remove, protect=protect)
    task = Task(objective, allowed, remove, budget, generator or np.random.default_rng(0))
    if contiguous:
        starts = windows(algorithm, remove=remove, allowed=allowed)
        task.ask([range(start, start + remove) for start in starts], keep=1)
    else:
        method(task, **(options or {}))
    if task.best is None:
        task.ask([task.draw()])
    assert task.best is not None
    return SearchResult(
        algorithm,
        tuple(sorted(task.best)),
        task.loss,
        task.evaluations,
        task.spent,
        tuple(task.trace),
        not task.stopped,
    )


def _ranked(task: Task) -> list[int]:
    """Return the allowed blocks by the loss of leaving out each alone."""
    answers = task.ask([(block,) for block in task.allowed])
    order = sorted(zip(task.allowed, answers, strict=True), key=lambda pair: (pair[1].value, pair[0]))
    return [block for block, _ in order]


@SEARCHES.register("one-shot", summary="the blocks that hurt least one at a time", paper="arXiv:2402.02834", ends="yes")
def one_shot(task: Task) -> None:
    """Take the ``remove`` best blocks of a single leave-one-out round."""
    task.ask([_ranked(task)[: task.remove]])


@SEARCHES.register(
    "greedy", summary="one block a round from the model cut so far", paper="arXiv:2402.09025", ends="yes"
)
def greedy(task: Task) -> None:
    """Take the best block of each round; when the budget ends, complete the cut by the last round's order."""
    cut: Cut = frozenset()
    order = list(task.allowed)
    for _ in range(task.remove):
        if not task.open:
            break
        free = [block for block in task.allowed if block not in cut]
        answers = task.ask([cut | {block} for block in free], keep=1)
        order = [block for _, block in sorted(zip((answer.value for answer in answers), free, strict=True))]
        cut |= {order[0]}
    rest = [block for block in order if block not in cut]
    if len(cut) < task.remove:
        task.ask([cut | frozenset(rest[: task.remove - len(cut)])])


@SEARCHES.register("beam", summary="greedy with several cuts kept", paper="beam search", ends="yes")
def beam(task: Task, width: int = BEAM_WIDTH) -> None:
    """Keep the ``width`` best cuts of each round."""
    cuts: list[Cut] = [frozenset()]
    for _ in range(task.remove):
        if not task.open:
            break
        grown = {cut | {block} for cut in cuts for block in task.allowed if block not in cut}
        ordered = sorted(grown, key=sorted)
        answers = task.ask(ordered, keep=width)
        best = sorted(zip((answer.value for answer in answers), map(sorted, ordered), strict=True))
        cuts = [frozenset(blocks) for _, blocks in best[:width]]
    if len(cuts[0]) < task.remove:
        rest = [block for block in task.allowed if block not in cuts[0]]
        task.ask([cuts[0] | frozenset(rest[: task.remove - len(cuts[0])])])


@SEARCHES.register("swap", summary="local search: exchange a block while it helps", paper="local search", ends="yes")
def swap(task: Task) -> None:
    """From the one-shot cut, try exchanges in random order, eight at a time, and take the best that helps."""
    cut = frozenset(_ranked(task)[: task.remove])
    loss = task.ask([cut])[0].value
    improved = True
    while improved and task.open:
        improved = False
        moves = [cut - {back} | {block} for back in sorted(cut) for block in task.allowed if block not in cut]
        order = task.generator.permutation(len(moves))
        for start in range(0, len(order), QUESTIONS_AT_ONCE):
            if not task.open:
                return
            part = [moves[place] for place in order[start : start + QUESTIONS_AT_ONCE]]
            answers = task.ask(part, keep=1)
            best = min(range(len(part)), key=lambda place: answers[place].value)
            if answers[best].complete and answers[best].value < loss:
                cut, loss, improved = part[best], answers[best].value, True
                break


@SEARCHES.register("random", summary="uniform draws", paper="baseline", ends="no")
def random_draws(task: Task) -> None:
    """Draw cuts uniformly until the budget is spent."""
    for part in _until_repeated(task, task.draw):
        task.ask(part, keep=1)


@SEARCHES.register("evolutionary", summary="tournaments, crossover, mutation", paper="evolutionary search", ends="no")
def evolutionary(task: Task, population: int = POPULATION, mutation: float = 0.5) -> None:
    """Breed cuts: parents win tournaments of two, children mix their blocks, half of them have one block exchanged."""
    alive = dict.fromkeys((task.draw() for _ in range(population)), 0.0)
    for cut, answer in zip(alive, task.ask(list(alive)), strict=True):
        alive[cut] = answer.value

    def parent() -> Cut:
        cuts = list(alive)
        pair = task.generator.integers(len(cuts), size=2)
        return min((cuts[place] for place in pair), key=alive.__getitem__)

    def child() -> Cut:
        one, other = parent(), parent()
        shared, either = one & other, sorted(one ^ other)
        extra = task.generator.permutation(len(either))[: task.remove - len(shared)]
        mixed = shared | {either[place] for place in extra}
        return task.swapped(mixed) if task.generator.random() < mutation else mixed

    for part in _until_repeated(task, child):
        for cut, answer in zip(part, task.ask(part), strict=True):
            alive[cut] = answer.value
        best = sorted(alive, key=lambda cut: (alive[cut], sorted(cut)))[:population]
        alive = {cut: alive[cut] for cut in best}


@SEARCHES.register("annealing", summary="random exchanges, worse ones ever more rarely", paper="annealing", ends="no")
def annealing(task: Task, start: float = 0.3, end: float = 0.003) -> None:
    """Walk by random exchanges; a loss higher by D is accepted with probability exp(-D/T), T falls with the budget."""
    cut = task.draw()
    loss = task.ask([cut])[0].value
    idle = 0
    while task.open and idle < 50 * len(task.allowed):
        progress = min(1.0, task.spent / task.budget)
        temperature = start * (end / start) ** progress
        before = task.spent
        other = task.swapped(cut)
        value = task.ask([other])[0].value
        idle = idle + 1 if task.spent == before else 0
        if value <= loss or task.generator.random() < math.exp((loss - value) / temperature):
            cut, loss = other, value


def _until_repeated(task: Task, propose: Callable[[], Cut]) -> Iterator[list[Cut]]:
    """Yield groups of new proposals until the budget is spent, or only known ones keep coming."""
    seen: set[Cut] = set()
    dry = 0
    while task.open and dry < 50 * len(task.allowed):
        part: list[Cut] = []
        while len(part) < QUESTIONS_AT_ONCE and dry < 50 * len(task.allowed):
            cut = propose()
            dry = dry + 1 if cut in seen else 0
            if cut not in seen:
                seen.add(cut)
                part.append(cut)
        if part:
            yield part


def as_scores(
    result: SearchResult, objective: Objective, *, protect: Sequence[int] = (0,), criterion: str, fingerprint: str = ""
) -> LayerScores:
    """Return a search result in the form of a criterion's answer.

    Score of a removed block: how much lower the loss would be with this block kept (its share of the damage); of any
    other block: how much higher with this block gone as well. Costs about one leave-one-out round.
    """
    blocks = objective.blocks
    allowed = candidates(criterion, blocks, remove=len(result.removed), protect=protect)
    cut = frozenset(result.removed)
    changed = [cut - {block} if block in cut else cut | {block} for block in allowed]
    usable = [len(one) < blocks for one in changed]
    values = iter(objective.many([one for one, fine in zip(changed, usable, strict=True) if fine]))
    scores = [math.nan] * blocks
    for block, fine in zip(allowed, usable, strict=True):
        change = next(values) - result.loss if fine else math.inf
        scores[block] = -change if block in cut else change
    order = sorted(allowed, key=lambda block: (block not in cut, scores[block], block))
    finite = [block for block in order if math.isfinite(scores[block])]
    return select(
        criterion,
        scores,
        remove=len(result.removed),
        allowed=finite,
        order=finite,
        removed=result.removed,
        fingerprint=fingerprint,
        reasons={
            "loss": f"mean loss {result.loss:.6f} per token, {objective.whole:.6f} with all blocks",
            "search": f"{result.algorithm}: {result.evaluations} cuts, {result.block_forwards:.0f} block forwards",
        },
    )
