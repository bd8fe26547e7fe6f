"""The server: routes of the OpenAI chat API and of sessions, behind keys and limits."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rollout.gateway import reply
from rollout.gateway.errors import ApiError
from rollout.gateway.keys import Key
from rollout.gateway.reply import Heard, Pieces
from rollout.gateway.request import read
from rollout.gateway.service import Call, Gateway
from rollout.gateway.verdict import grade, opened, rewarded

_LOG = logging.getLogger("jointrl.gateway")
_FAILED = "the server failed: its log says why"
_GONE = 499
"""Status for the log of a request whose client has gone (nginx's number); nobody reads it."""

T = TypeVar("T")
Handler = Callable[[Request, Key], Awaitable[Response]]


def loopback(host: str) -> bool:
    """Whether an address to listen on, or a name that a request was sent to, is this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def make_app(
    gateway: Gateway, local: bool = False, beside: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> Starlette:
    """The application. local: only this machine is served, so that a request that names another host comes from a web
    page that was led here, and is refused. beside: runs as long as the server does."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = None if beside is None else asyncio.ensure_future(beside())
        if task is not None:
            task.add_done_callback(_ended)
        yield
        if task is not None:
            task.cancel()
        await gateway.close()

    def route(path: str, method: str, handler: Handler) -> Route:
        async def guarded(request: Request) -> Response:
            if local and not loopback(_host(request)):
                raise ApiError("this server is for its own machine: call it by 127.0.0.1 or localhost", 403)
            return await handler(request, gateway.door.who(request.headers.get("authorization")))

        return Route(path, guarded, methods=[method])

    paths = _Handlers(gateway)
    routes = [
        Route("/health", paths.health, methods=["GET"]),
        route("/v1/models", "GET", paths.models),
        route("/v1/models/{model:path}", "GET", paths.model),
        route("/v1/chat/completions", "POST", paths.complete),
        route("/v1/sessions", "POST", paths.open),
        route("/v1/sessions/{id}", "GET", paths.session),
        route("/v1/sessions/{id}/trajectory", "GET", paths.trajectory),
        route("/v1/sessions/{id}/reward", "POST", paths.reward),
        route("/v1/sessions/{id}/grade", "POST", paths.grade),
    ]
    handlers: dict[Any, Any] = {
        ApiError: _api_error,
        HTTPException: _http_error,
        ClientDisconnect: _gone,
        500: _failure,
    }
    return Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)


def _ended(task: asyncio.Future[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _LOG.error("what ran beside the server has ended", exc_info=error)


class _Handlers:
    """One method a path."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    async def health(self, request: Request) -> Response:
        """A sign of life, and the version of the weights; 503 while there are none."""
        stats = await self.gateway.engine.stats()
        version = int(stats["version"])
        status = "ok" if version >= 0 else "no weights"
        body = {"status": status, "version": version, "requests": self.gateway.door.running}
        return JSONResponse(body, 200 if version >= 0 else 503)

    async def models(self, request: Request, key: Key) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request, key: Key) -> Response:
        if request.path_params["model"] != self.gateway.settings.model:
            raise ApiError(f"no model {request.path_params['model']!r}", 404, "model", "model_not_found")
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        s = self.gateway.settings
        known = {"max_model_len": s.max_context, "reasoning_efforts": [str(e) for e in s.efforts]}
        return {"id": s.model, "object": "model", "created": 0, "owned_by": "jointrl", **known}

    async def complete(self, request: Request, key: Key) -> Response:
        s = self.gateway.settings
        ask = await asyncio.to_thread(read, await self._body(request), s.efforts, s.effort)
        name, task = (_name(request, h) for h in ("x-jointrl-session", "x-jointrl-task"))
        call = await self.gateway.begin(key, ask, name, task)
        headers = {"x-jointrl-session": call.session.id}
        if ask.ignored:
            headers["x-jointrl-ignored"] = ", ".join(ask.ignored)
        if not ask.stream:
            replies = await self._unless_gone(request, call, call.task)
            body = await asyncio.to_thread(_completion, self.gateway, call, replies)
            return JSONResponse(body, headers=headers)
        events = self._events(call)
        # What the engine refuses is an error of the request, not of its stream.
        first = await self._unless_gone(request, call, asyncio.ensure_future(_next(events)))
        return _Stream(_joined(first, events), lambda: self.gateway.abandon(call), headers)

    async def open(self, request: Request, key: Key) -> Response:
        """A session on a task of one of our environments."""
        return JSONResponse(await opened(self.gateway, key, await self._object(request)))

    async def session(self, request: Request, key: Key) -> Response:
        return JSONResponse(self.gateway.book.get(key.name, request.path_params["id"]).summary())

    async def trajectory(self, request: Request, key: Key) -> Response:
        found = self.gateway.book.get(key.name, request.path_params["id"])
        return JSONResponse(found.trajectory().to_json())

    async def reward(self, request: Request, key: Key) -> Response:
        session = self.gateway.book.get(key.name, request.path_params["id"])
        verdict = rewarded(await self._object(request))
        self.gateway.book.close(session, verdict)
        return JSONResponse(session.summary())

    async def grade(self, request: Request, key: Key) -> Response:
        session = self.gateway.book.get(key.name, request.path_params["id"])
        await grade(self.gateway, session)
        return JSONResponse(session.summary())

    async def _body(self, request: Request) -> bytes:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # a web page may send other kinds to a server of this machine unasked
            raise ApiError("send the body as content-type application/json", 415)
        most, out = self.gateway.settings.max_body, bytearray()
        large = ApiError(f"the body is larger than {most} bytes", 413)
        if (
            request.headers.get("content-length", "0").isdecimal()
            and int(request.headers.get("content-length", 0)) > most
        ):
            raise large
        try:
            async with asyncio.timeout(self.gateway.settings.read_s):
                async for chunk in request.stream():
                    out += chunk
                    if len(out) > most:
                        raise large
        except TimeoutError:
            raise ApiError(f"the body did not arrive in {self.gateway.settings.read_s:g} s", 408) from None
        return bytes(out)

    async def _object(self, request: Request) -> dict[str, Any]:
        try:
            given = from_json(await self._body(request) or b"{}", allow_inf_nan=False)
        except ValueError as error:
            raise ApiError(f"the body is not JSON: {error}") from None
        if not isinstance(given, dict):
            raise ApiError("the body is not a JSON object")
        return given

    async def _unless_gone(self, request: Request, call: Call, work: asyncio.Future[T]) -> T:
        """The result of a part of a call; where its client goes away first, the call is abandoned."""
        gone = asyncio.ensure_future(_disconnected(request))
        both: list[asyncio.Future[Any]] = [work, gone]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientDisconnect
            return work.result()
        except BaseException:
            self.gateway.abandon(call)
            raise
        finally:
            gone.cancel()

    async def _events(self, call: Call) -> AsyncIterator[bytes]:
        """Server-sent events of a call; the first comes with its first token."""
        gateway, n = self.gateway, call.ask.n
        held = max([gateway.chat.unsure_tail, *(len(s) - 1 for s in call.ask.stops)])
        pieces = [Pieces(call.tag(i), held) for i in range(n)]
        tokens = [0] * n
        begun = False

        def chunks(i: int, heard: Heard, ids: Any, logprobs: Any, final: bool) -> list[bytes]:
            deltas = list(pieces[i].new(heard, final))
            score = None
            if call.ask.logprobs and heard.tokens > tokens[i]:
                part = slice(tokens[i], heard.tokens)
                score = reply.openai_logprobs(gateway.chat, ids[part], logprobs[part])
                deltas = deltas or [{}]
            tokens[i] = max(tokens[i], heard.tokens)
            # The log-probs of new tokens come with the first piece that they gave.
            return [_event(call, i, d, score if at == 0 else None) for at, d in enumerate(deltas)]

        try:
            async for state in gateway.updates(call):
                if not any(len(ids) for ids, _ in state):
                    continue
                for i in range(0 if begun else n):
                    yield _event(call, i, {"role": "assistant", "content": ""})
                begun = True
                for i, (ids, logprobs) in enumerate(state):
                    heard = reply.hear(gateway.chat, ids, call.ask.stops)
                    for chunk in chunks(i, heard, ids, logprobs, heard.stopped):
                        yield chunk
            replies = call.task.result()
            for i in range(0 if begun else n):
                yield _event(call, i, {"role": "assistant", "content": ""})
            begun = True
            for i, (heard, g) in enumerate(replies):
                for chunk in chunks(i, heard, g.token_ids, g.logprobs, True):
                    yield chunk
                ours = {"jointrl": _notes(call, replies)}
                yield _event(call, i, {}, None, reply.finish_of(heard, g), _choice_notes(call, heard), ours)
            if call.ask.include_usage:
                head = _head(call, "chat.completion.chunk")
                yield _sse(head | {"choices": [], "usage": gateway.usage(call, replies)})
            yield b"data: [DONE]\n\n"
        except ApiError as error:
            if not begun:
                raise
            yield _sse(error.body())
        except Exception:
            if not begun:
                raise
            _LOG.exception("a stream failed")
            yield _sse(ApiError(_FAILED, 500).body())
        finally:
            gateway.abandon(call)


class _Stream(StreamingResponse):
    """Server-sent events; `ended` is called however they end, also when the client has gone."""

    def __init__(self, events: AsyncIterator[bytes], ended: Callable[[], None], headers: dict[str, str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-cache"} | headers)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


async def _next(events: AsyncIterator[bytes]) -> bytes:
    return await anext(events)


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _host(request: Request) -> str:
    """The host that a request names; empty where it names none that can be read."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _name(request: Request, header: str) -> str | None:
    """A header that names something: short and printable, as it is part of paths and files."""
    given = request.headers.get(header)
    if given is not None and not (
        0 < len(given) <= 128 and given.isascii() and given.isprintable() and "/" not in given
    ):
        raise ApiError(f"{header} must be 1 to 128 printable ASCII characters without /", param=header)
    return given


def _head(call: Call, kind: str) -> dict[str, Any]:
    return {"id": call.id, "object": kind, "created": call.created, "model": call.ask.model}


def _completion(gateway: Gateway, call: Call, replies: list[tuple[Heard, Any]]) -> dict[str, Any]:
    choices = []
    for i, (heard, g) in enumerate(replies):
        score = reply.openai_logprobs(gateway.chat, g.token_ids, g.logprobs) if call.ask.logprobs else None
        message = reply.openai_message(heard.message, call.tag(i))
        choice = {"index": i, "message": message, "logprobs": score, "finish_reason": reply.finish_of(heard, g)}
        choices.append(choice | _choice_notes(call, heard))
    body = _head(call, "chat.completion")
    return body | {"choices": choices, "usage": gateway.usage(call, replies), "jointrl": _notes(call, replies)}


def _notes(call: Call, replies: list[tuple[Heard, Any]]) -> dict[str, Any]:
    """What is ours to say of a call."""
    versions = [int(v) for _, g in replies for v in g.versions]
    seen = [min(versions), max(versions)] if versions else []
    return {"session": call.session.id, "begun": str(call.begun), "versions": seen}


def _choice_notes(call: Call, heard: Heard) -> dict[str, Any]:
    """What is to say of a reply that is not as it was asked for."""
    said = reply.warnings(call.ask, heard)
    notes = ({"problem": heard.problem} if heard.problem else {}) | ({"warnings": said} if said else {})
    return {"jointrl": notes} if notes else {}


def _event(
    call: Call,
    index: int,
    delta: dict[str, Any],
    score: dict[str, Any] | None = None,
    finish: str | None = None,
    notes: dict[str, Any] | None = None,
    ours: dict[str, Any] | None = None,
) -> bytes:
    """One chunk; `notes` belong to its choice, `ours` to the call."""
    choice = {"index": index, "delta": delta, "logprobs": score, "finish_reason": finish} | (notes or {})
    usage = {"usage": None} if call.ask.include_usage else {}
    return _sse(_head(call, "chat.completion.chunk") | {"choices": [choice]} | usage | (ours or {}))


def _sse(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'), allow_nan=False)}\n\n".encode()


async def _api_error(request: Request, error: ApiError) -> Response:
    return JSONResponse(error.body(), error.status, headers=error.headers)


async def _http_error(request: Request, error: HTTPException) -> Response:
    return JSONResponse(ApiError(str(error.detail), error.status_code).body(), error.status_code, headers=error.headers)


async def _gone(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=_GONE)


async def _failure(request: Request, error: Exception) -> Response:
    return JSONResponse(ApiError(_FAILED, 500).body(), 500)
