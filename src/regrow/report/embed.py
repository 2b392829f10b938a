"""Safe embedding in one HTML file: data that cannot leave its element, and no scripts but the page's own."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import lru_cache
from typing import Any

from markupsafe import Markup

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def json_block(element_id: str, value: Any) -> Markup:
    """Return a data element holding ``value`` as JSON.

    Every "<" in a string is written as an escape, so that no text, whatever a model wrote, can end the element or open
    another. NaN is refused.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return Markup('<script type="application/json" id="{}">{}</script>').format(element_id, Markup(text))


def script(code: str) -> Markup:
    """Return a script element of our own code. Raises ValueError for code that would end the element early."""
    if "</script" in code.lower() or "<!--" in code or "\r" in code:
        raise ValueError("script text must not hold </script, <!-- or carriage returns")
    return Markup(f"<script>{code}</script>")


def script_hash(code: str) -> str:
    """Return the source expression by which a content security policy allows exactly this script."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(code.encode("utf-8")).digest()).decode("ascii") + "'"


def content_policy(scripts: list[str]) -> str:
    """Return a policy under which only ``scripts`` run, nothing is fetched and no text is evaluated as code."""
    allowed = " ".join(script_hash(code) for code in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


@lru_cache(maxsize=1)
def vega_script() -> str:
    """Return the JavaScript that draws Vega-Lite charts, all of it, in the version that altair writes for."""
    import altair
    import vl_convert

    major, minor = altair.SCHEMA_VERSION.lstrip("v").split(".")[:2]
    wanted = f"{major}.{minor}"
    known = vl_convert.get_vegalite_versions()
    version = wanted if wanted in known else known[-1]
    code = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed; window.vega = vega;", vl_version=version)
    # "<\/" means the same to JavaScript and cannot end the element.
    return str(code).replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")
