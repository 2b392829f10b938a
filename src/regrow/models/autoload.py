"""Makes ``AutoModelForCausalLM.from_pretrained`` understand bridged checkpoints once ``regrow`` is imported.

transformers is not imported for it: where it is already there it is told at once, otherwise when it loads its own auto
classes. The watcher sits in ``sys.meta_path`` and leaves no trace in the modules it saw.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

# Module of transformers -> the function that tells it. Names, not imports: this file is loaded by `regrow --help`.
_TOLD_BY = {
    "transformers.models.auto.configuration_auto": ("regrow.models.bridged_config", "register_config"),
    "transformers.models.auto.modeling_auto": ("regrow.models.bridged_load", "register_models"),
}


def install() -> None:
    """Register with transformers now where it is loaded, else as soon as it is. Calling it again changes nothing."""
    waiting = [name for name in _TOLD_BY if name not in sys.modules]
    if waiting and not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, cast(Any, _Watcher()))
    for name in _TOLD_BY:
        if name not in waiting:
            # Returns only once the import is complete, should another thread be in the middle of it.
            _tell(importlib.import_module(name))


def _tell(module: ModuleType) -> None:
    target, function = _TOLD_BY[module.__name__]
    getattr(importlib.import_module(target), function)(module)


class _Watcher:
    # Finder and loader by shape, not by base class: importlib.abc costs every `regrow --help` 15 ms.

    def __init__(self) -> None:
        self._busy = threading.local()

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in _TOLD_BY or getattr(self._busy, "now", False):
            return None
        self._busy.now = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy.now = False
        if spec is not None and spec.loader is not None:
            spec.loader = cast(Any, _Telling(spec.loader))
        return spec


class _Telling:
    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return cast(ModuleType | None, self._real.create_module(spec))

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._real
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        self._real.exec_module(module)
        _tell(module)
