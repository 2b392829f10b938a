"""What is wrong with a record that cannot be read, as a phrase for people."""

from __future__ import annotations

from pydantic import ValidationError


def first_fault(error: Exception) -> str:
    """Return the first fault of an error in one line."""
    if isinstance(error, ValidationError):
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        return f"{where}: {fault['msg']}" if where else str(fault["msg"])
    return (str(error) or type(error).__name__).splitlines()[0]
