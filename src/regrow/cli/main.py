"""The command line ``regrow``: names every command, turns mistakes into a sentence and exit code 2.

Nothing here imports torch; each command imports what it needs when it runs, so ``--help`` answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from cyclopts import App

if TYPE_CHECKING:
    from regrow.errors import RegrowError

USER_MISTAKE = 2
INTERRUPTED = 130
_USERS_DISK = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EFBIG,
    errno.ELOOP,
}

app = App(
    name="regrow",
    help="Depth-prune language models, repair and heal the cut, and measure what breaks and what comes back.",
    version=lambda: version("regrow"),
    version_flags=["--version"],
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)

WITH_DATA = ("eval", "rescore", "pools")
"""The commands that have the option --data; the others know REGROW_DATA alone."""

_COMMANDS: dict[str, tuple[str, str]] = {
    "quickstart": ("regrow.cli.quickstart:quickstart", "Prune, measure, repair, heal and measure again, in one go."),
    "prune": ("regrow.cli.prune:prune", "Remove the least important blocks and save the checkpoint."),
    "rank": ("regrow.cli.rank:rank", "Show side by side which blocks the criteria would remove."),
    "search-study": (
        "regrow.cli.search_study:search_study",
        "Find out whether the calibration text or the search decides a cut.",
    ),
    "repair": ("regrow.cli.repair:repair", "Bridge the cut of a pruned model without training."),
    "repair-study": ("regrow.cli.repair_study:repair_study", "Compare repairs over cuts, texts and healing runs."),
    "pools": ("regrow.cli.pools:pools", "Make the healing pools: prompts answered by the unpruned model."),
    "heal": ("regrow.cli.heal:heal", "Fine-tune a pruned model under an exact token budget."),
    "eval": ("regrow.cli.evaluate:evaluate", "Measure six capabilities and perplexity."),
    "rescore": ("regrow.cli.rescore:rescore", "Grade an evaluation's answers again, without the model."),
    "transitions": ("regrow.cli.transitions:transitions", "Which items broke, came back or are new between two runs."),
    "validate-refusals": (
        "regrow.cli.validate_refusals:validate_refusals",
        "Compare the refusal classifier with labelled responses.",
    ),
    "plan": ("regrow.cli.plan:plan", "Split a healing budget over pools from pilots; say what planning costs."),
    "report": ("regrow.cli.report:report", "Compare measured stages, or report a study, in tables and one HTML page."),
    "ls": ("regrow.cli.listing:ls", "List criteria, repairs, capabilities, scopes, losses, rules or models."),
}
for _place, (_name, (_target, _help)) in enumerate(_COMMANDS.items()):
    app.command(_target, name=_name, help=_help, sort_key=_place)

models = App(name="models", help="Fetch the embedded models, show what a model is made of.", sort_key=len(_COMMANDS))
models.command("regrow.cli.models:pull", name="pull", help="Fetch an embedded model and check its sha256.")
models.command("regrow.cli.models:show", name="show", help="Show a model's blocks, parameters and history.")
app.command(models)

study = App(name="study", help="Check, plan, run and report a whole study from one file.", sort_key=len(_COMMANDS) + 1)
_STUDY = {
    "list": ("listing", "List the studies that come with regrow."),
    "show": ("show", "Print a study with every default filled in."),
    "check": ("check", "Check that a study can run here."),
    "plan": ("plan", "Say what a study will cost before it runs."),
    "run": ("run", "Run a study to its end; stopped, the same command continues."),
    "status": ("status", "Show how far a study is."),
    "report": ("report", "Write the report of what a study has so far."),
    "clean": ("clean", "Remove what a study no longer needs."),
}
for _place, (_name, (_function, _help)) in enumerate(_STUDY.items()):
    study.command(f"regrow.cli.study:{_function}", name=_name, help=_help, sort_key=_place)
study.command("regrow.cli.study:step", name="step", help="Do one step (what the engines call).", show=False)
app.command(study)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 2 a user's mistake, 130 interrupted, 1 a fault of regrow (traceback)."""
    words = sys.argv[1:] if arguments is None else arguments
    # A refusal must not depend on progress bars of libraries underneath, which write to the same terminal.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        code = _run(words)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; the same command continues where it stopped\n")
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe went away (`| head`): not a fault, and nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def _run(words: list[str]) -> int:
    from cyclopts import CycloptsError

    from regrow.errors import RegrowError
    from regrow.records.hints import without_data_option

    try:
        result = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        _refuse(_plain(error), "regrow --help" if not words else f"regrow {_known(words)} --help".replace("  ", " "))
        return USER_MISTAKE
    except RegrowError as error:
        known = words and words[0] in WITH_DATA
        _refuse(str(error), error.hint if known or error.hint is None else without_data_option(error.hint))
        return USER_MISTAKE
    except MemoryError:
        _refuse("there is not enough memory for this", "use --dtype bfloat16, a smaller model or fewer tokens")
        return USER_MISTAKE
    except Exception as error:
        if _from_an_interrupt(error):
            raise KeyboardInterrupt from None
        mistake = _foreign_mistake(error)
        if mistake is None:
            raise
        _refuse(str(mistake), mistake.hint)
        return USER_MISTAKE
    return result if isinstance(result, int) else 0


def _from_an_interrupt(error: BaseException | None) -> bool:
    """Return whether Ctrl-C was behind an error: libraries turn it into one of theirs while they are imported."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _foreign_mistake(error: Exception) -> RegrowError | None:
    """Return the user's mistake behind an error of a library: memory or disk used up; None when it is a fault."""
    from regrow.errors import ModelError, StudyError

    # "cannot allocate memory" and "can't allocate memory" are how Linux says it
    if type(error).__name__ == "OutOfMemoryError" or any(
        words in str(error).lower() for words in ("not enough memory", "t allocate memory")
    ):
        return ModelError("there is not enough memory for this", hint="use --dtype bfloat16, a smaller model or batch")
    if isinstance(error, OSError) and error.errno in _USERS_DISK:
        name = str(error.filename or "the output")
        shown = name if len(name) <= 120 else f"{name[:60]}...{name[-40:]}"
        return StudyError(f"cannot use '{shown}': {error.strerror}", hint="choose another file or folder")
    return None


def _plain(error: Any) -> str:
    """Return an error of the argument parser as one sentence without a box."""
    return " ".join(str(error).split())


def _known(words: list[str]) -> str:
    kept: list[str] = []
    second = {"models": ("pull", "show"), "study": tuple(_STUDY)}
    for word in words[:2]:
        if not (word in _COMMANDS or word in second) and not (len(kept) == 1 and word in second.get(kept[0], ())):
            break
        kept.append(word)
    return " ".join(kept)


def _refuse(message: str, hint: str | None) -> None:
    from rich.markup import escape

    from regrow.cli.output import stderr_console

    console = stderr_console()
    # A hint such as hub:ID:split would lose its letters to rich's emoji names.
    console.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True, emoji=False)
    if hint:
        console.print(f"  [bold]try:[/] {escape(hint)}", highlight=False, soft_wrap=True, emoji=False)


if __name__ == "__main__":
    main()
