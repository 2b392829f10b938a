"""One contract for every engine: same items, same greedy answers, in order, told as they come."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from regrow.capabilities.engines.contract import Engine, Question
from regrow.capabilities.engines.endpoint import KEY_VARIABLE, EndpointEngine
from regrow.capabilities.engines.in_process import TransformersEngine
from regrow.capabilities.engines.vllm import VllmEngine
from regrow.capabilities.evaluate import evaluate
from regrow.capabilities.generation import Answer, Request, generate
from regrow.data.chat import render_chat
from regrow.errors import ConfigError, DataError, ModelError
from regrow.models.load import LoadedModel
from regrow.protocols import Item
from regrow.records.specs import EvalSpec
from tests.capabilities.toys import Choice, HasSign, loaded_toy

MODEL = "toy"


class Server:
    """A real HTTP server of chat completions around a real model; ``faults`` are answered before it does its work."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded, self.turn = loaded, threading.Lock()
        self.faults: list[tuple[int, bytes]] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.rejects_system = False

    def answer(self, body: dict[str, Any]) -> tuple[int, bytes]:
        if self.faults:
            return self.faults.pop(0)
        if body["model"] != MODEL:
            return 404, b'{"error": {"message": "no such model"}}'
        if self.rejects_system and body["messages"][0]["role"] == "system":
            return 500, b'{"error": {"message": "chat template: system role not supported"}}'
        prompt = render_chat(self.loaded.tokenizer, body["messages"], add_generation_prompt=True)
        with self.turn:
            (written,) = generate(self.loaded, [Request(prompt, body["max_tokens"])])
        reply = {
            "choices": [
                {
                    "message": {"role": "assistant", "content": written.text},
                    "finish_reason": "length" if written.stopped == "length" else "stop",
                }
            ],
            "usage": {"prompt_tokens": written.prompt_tokens, "completion_tokens": written.generated_tokens},
        }
        return 200, json.dumps(reply).encode()


@contextmanager
def served(server: Server) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.asked.append(body)
            server.keys.append(self.headers.get("Authorization"))
            status, content = server.answer(body) if self.path == "/v1/chat/completions" else (404, b"{}")
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1"
    finally:
        http.shutdown()
        http.server_close()


@pytest.fixture(scope="module")
def toy() -> LoadedModel:
    return loaded_toy()


@pytest.fixture
def server(toy: LoadedModel) -> Iterator[tuple[Server, str]]:
    one = Server(toy)
    with served(one) as url:
        yield one, url


@pytest.fixture(params=["transformers", "openai", "vllm"])
def engine(request: pytest.FixtureRequest, toy: LoadedModel, tiny_folder: Any) -> Iterator[Engine]:
    if request.param == "transformers":
        yield TransformersEngine(toy)
    elif request.param == "openai":
        with served(Server(toy)) as url:
            yield EndpointEngine(url, MODEL)
    else:
        pytest.importorskip("vllm")
        yield VllmEngine(str(tiny_folder("qwen3")))


def questions(count: int = 6, tokens: int = 9) -> list[Question]:
    return [Question(item, tokens) for item in HasSign("~", count=count).items("test")]


def test_answers_are_those_of_greedy_decoding_in_order(engine: Engine, toy: LoadedModel) -> None:
    assert isinstance(engine, Engine)
    asked = questions()
    direct = [
        Request(render_chat(toy.tokenizer, each.item.messages, add_generation_prompt=True), each.max_new_tokens)
        for each in asked
    ]
    told: list[tuple[int, str]] = []
    progress: list[tuple[int, int]] = []
    found = engine.answer(
        asked,
        batch_size=2,
        on_answer=lambda number, answer: told.append((number, answer.text)),
        on_progress=lambda done, total, speed: progress.append((done, total)),
    )
    assert [answer.text for answer in found] == [answer.text for answer in generate(toy, direct)]
    assert sorted(told) == list(enumerate(answer.text for answer in found))
    assert progress[-1] == (6, 6)
    assert all(1 <= answer.generated_tokens <= 9 and answer.prompt_tokens > 0 for answer in found)
    assert all(answer.seconds > 0 and answer.stopped in ("eos", "length") for answer in found)


def test_no_questions_give_no_answers(engine: Engine) -> None:
    assert engine.answer([]) == []


def test_the_same_item_has_the_same_prompt_and_another_one_another(engine: Engine) -> None:
    one, other = (each.item for each in questions(2))
    assert engine.prompt_of(one) == engine.prompt_of(one) != engine.prompt_of(other)


def test_impossible_counts_are_refused(engine: Engine) -> None:
    with pytest.raises(ConfigError):
        engine.answer(questions(1, tokens=0))
    with pytest.raises(ConfigError):
        engine.answer(questions(1), batch_size=0)


def test_grades_do_not_depend_on_the_engine_or_on_leaving_early(engine: Engine, toy: LoadedModel) -> None:
    letters = sorted({sign for answer in TransformersEngine(toy).answer(questions(10, 16)) for sign in answer.text})
    capability = HasSign(letters[len(letters) // 2])
    spec = EvalSpec(perplexity=False, batch_size=4)
    scores = [
        [
            item.score
            for item in evaluate(None, [capability], spec.model_copy(update={"fast_stop": fast}), engine=own).items
        ]
        for own, fast in ((engine, True), (engine, False), (TransformersEngine(toy), True))
    ]
    assert scores[0] == scores[1] == scores[2]


def test_a_server_that_is_busy_is_asked_again(server: tuple[Server, str]) -> None:
    own, url = server
    own.faults = [(503, b"loading"), (429, b"slow down")]
    engine = EndpointEngine(url, MODEL, pauses=(0.01, 0.01, 0.01))
    assert len(engine.answer(questions(1))) == 1 and len(own.asked) == 3


def test_the_system_text_moves_where_a_template_rejects_its_role(server: tuple[Server, str]) -> None:
    own, url = server
    own.rejects_system = True
    system: Any = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "abc"})
    asked = [Question(Item("any", f"i{at}", "test", system, None), 4) for at in range(3)]
    assert len(EndpointEngine(url, MODEL, pauses=()).answer(asked, batch_size=1)) == 3
    assert [body["messages"][0] for body in own.asked[1:]] == [{"role": "user", "content": "Be brief.\n\nabc"}] * 3


def test_the_key_is_sent_and_never_shown(server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch) -> None:
    own, url = server
    monkeypatch.setenv(KEY_VARIABLE, "secret-7")
    own.faults = [(401, b'{"error": "bad key"}')]
    with pytest.raises(ModelError) as caught:
        EndpointEngine(url, MODEL).answer(questions(1))
    assert own.keys == ["Bearer secret-7"]
    assert "401" in str(caught.value) and "secret-7" not in str(caught.value) + str(caught.value.hint)


@pytest.mark.parametrize(
    "fault", [(200, b"not json"), (200, b"[]"), (200, b'{"choices": []}'), (200, b'{"choices": [{"message": 3}]}')]
)
def test_an_answer_that_is_no_completion_is_refused(server: tuple[Server, str], fault: tuple[int, bytes]) -> None:
    own, url = server
    own.faults = [fault]
    with pytest.raises(ModelError, match="answered something"):
        EndpointEngine(url, MODEL).answer(questions(1))


def test_an_empty_message_is_an_empty_answer(server: tuple[Server, str]) -> None:
    own, url = server
    own.faults = [(200, b'{"choices": [{"message": {"role": "assistant", "content": null}, "finish_reason": "stop"}]}')]
    (answer,) = EndpointEngine(url, MODEL).answer(questions(1))
    assert answer == Answer("", 0, 0, answer.seconds, "eos")


def test_an_unknown_model_and_an_absent_server_are_said(server: tuple[Server, str]) -> None:
    _, url = server
    with pytest.raises(ModelError, match="404"):
        EndpointEngine(url, "other").answer(questions(1))
    with pytest.raises(ModelError, match="cannot be reached"):
        EndpointEngine("http://127.0.0.1:9/v1", MODEL, pauses=()).answer(questions(1))
    with pytest.raises(ConfigError, match="not the address"):
        EndpointEngine("localhost:8000", MODEL)


def test_one_failure_ends_the_work_soon(server: tuple[Server, str]) -> None:
    own, url = server
    own.faults = [(400, b"{}")]
    began = time.monotonic()
    with pytest.raises(ModelError, match="400"):
        EndpointEngine(url, MODEL, pauses=(1.0,) * 60).answer(questions(50), batch_size=1)
    assert len(own.asked) < 50 and time.monotonic() - began < 60


def test_an_endpoint_measures_answers_only(server: tuple[Server, str]) -> None:
    engine = EndpointEngine(server[1], MODEL)
    with pytest.raises(ConfigError, match="choice needs likelihoods"):
        evaluate(None, [HasSign("x"), Choice()], EvalSpec(perplexity=False), engine=engine)
    with pytest.raises(ConfigError, match="perplexity"):
        evaluate(None, [HasSign("x")], EvalSpec(), engine=engine)
    with pytest.raises(DataError, match="not a chat"):
        engine.prompt_of(Item("any", "i", "test", ({"role": "user", "content": "a"},), None, facts={"plain": True}))
    result = evaluate(None, [HasSign("e")], EvalSpec(perplexity=False), engine=engine)
    assert len(result.items) == 10 and result.cost.wall_seconds > 0 and result.cost.generated_tokens > 0


def test_vllm_refuses_bridges_and_names_its_package(tmp_path: Any, tiny_folder: Any) -> None:
    with pytest.raises(ModelError) as caught:
        VllmEngine(str(tiny_folder("llama")))
    assert "regrow[vllm]" in str(caught.value.hint)
