"""How many tokens answers took, for work that is told of every answer through a journal."""

from __future__ import annotations

from pathlib import Path

from regrow.capabilities.answer_journal import AnswerJournal
from regrow.capabilities.generation import Answer, Request


class AnswerTally(AnswerJournal):
    """A journal that counts: ``prompt_tokens`` and ``generated_tokens`` of all answers used, those kept by a run before
    this one included, of which ``found_tokens`` (prompt and answer) were not run now. Without a path nothing is
    kept."""

    def __init__(self, path: Path | None = None, identity: str = "") -> None:
        super().__init__(path or Path(), identity)
        self._kept = path is not None
        self.prompt_tokens = self.generated_tokens = self.found_tokens = 0

    def find(self, request: Request) -> Answer | None:
        answer = super().find(request)
        if answer is not None:
            self._count(answer)
            self.found_tokens += answer.prompt_tokens + answer.generated_tokens
        return answer

    def keep(self, request: Request, answer: Answer) -> None:
        self._count(answer)
        if self._kept:
            super().keep(request, answer)

    def _count(self, answer: Answer) -> None:
        self.prompt_tokens += answer.prompt_tokens
        self.generated_tokens += answer.generated_tokens
