"""Whether the hub answers, asked of a server that does, of one that refuses, and of a name that nobody has."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from huggingface_hub import constants

from regrow.models.hub_reach import hub_is_reachable


class Refusing(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_error(403)

    def log_message(self, *args: object) -> None:
        pass


def test_any_answer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        assert hub_is_reachable.__wrapped__()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert not hub_is_reachable.__wrapped__()
        server.shutdown()


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "https://hub.invalid"])
def test_no_answer_is_told_at_once(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert not hub_is_reachable.__wrapped__()
