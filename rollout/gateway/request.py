"""Bodies of POST /v1/chat/completions: read strictly. What would change the meaning and cannot be done is refused."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import dataclass, field
from io import BytesIO
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from environments.images import image_part
from environments.task import ImagePart, Message, TextPart, Tool, ToolCall
from model.image import MAX_PIXELS
from rewards.efforts import Effort
from rollout.gateway.errors import ApiError

_PENALTY = "the engine samples from the policy's own distribution: leave it out"
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "top_p": ((1,), "the engine samples from the whole distribution, as training needs it: leave it out or give 1"),
    "frequency_penalty": ((0,), _PENALTY),
    "presence_penalty": ((0,), _PENALTY),
    "logit_bias": (({},), _PENALTY),
    "top_logprobs": ((0,), "the engine records the log-prob of the sampled token alone: leave it out"),
    "parallel_tool_calls": ((True,), "the policy decides how many calls it makes: leave it out"),
    "functions": (([],), "give them as `tools`"),
    "function_call": ((), "give it as `tool_choice`"),
    "audio": ((), "the policy writes text"),
    "modalities": ((["text"],), "the policy writes text"),
    "prediction": ((), "the engine has no predicted outputs"),
    "web_search_options": ((), "give the search as one of `tools`"),
    "verbosity": ((), "the policy is asked by `reasoning_effort`"),
    "moderation": ((), "nothing is moderated here"),
    "store": ((False,), "what is said is captured by its session: see docs/serving.md"),
}
"""Fields of the API that are not served: values that ask for nothing beside null, and what to do instead."""

_IGNORED = (
    *("user", "metadata", "service_tier", "safety_identifier"),
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
)
"""Fields that change no reply: listed in the header `x-jointrl-ignored`."""

MAX_N = 64
"""Continuations of one request."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Function(_Strict):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _ToolSpec(_Strict):
    type: Literal["function"]
    function: _Function


class _Named(_Strict):
    name: str


class _NamedTool(_Strict):
    type: Literal["function"]
    function: _Named


class _CalledFunction(_Strict):
    name: Annotated[str, Field(min_length=1)]
    arguments: str


class _Call(_Strict):
    id: str
    type: Literal["function"] = "function"
    function: _CalledFunction
    index: int | None = None


class _ImageUrl(_Strict):
    url: str
    detail: Literal["auto", "high"] | None = None


class _Part(_Strict):
    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: _ImageUrl | None = None


class _Said(_Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    # What clients send back of a message that they were given: null, or they mean something.
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None


class _Schema(_Strict):
    name: str
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class _Format(_Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None


class _StreamOptions(_Strict):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


_Count = Annotated[int, Field(ge=1, le=2**31)]


class _Body(_Strict):
    model: str
    messages: Annotated[list[_Said], Field(min_length=1)]
    tools: list[_ToolSpec] | None = None
    tool_choice: Literal["auto", "none", "required"] | _NamedTool | None = None
    reasoning_effort: str | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    stop: str | list[str] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    logprobs: bool | None = None
    response_format: _Format | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


@dataclass(frozen=True)
class Options:
    """What is said of the next turn alone; see `model.xtml.option_parts`."""

    tool_choice: str | None = None
    response_format: dict[str, Any] | None = None

    def given(self) -> dict[str, Any]:
        """As keyword arguments of the tokenizer; empty where nothing is said."""
        return {k: v for k, v in vars(self).items() if v is not None}


@dataclass(frozen=True)
class Ask:
    """A request that was understood."""

    model: str
    messages: list[Message]
    tools: list[Tool]
    effort: Effort
    options: Options
    temperature: float
    max_tokens: int | None
    seed: int | None
    n: int
    stops: tuple[str, ...]
    logprobs: bool
    stream: bool
    include_usage: bool
    ignored: tuple[str, ...] = field(default=())
    """Fields that change nothing here."""


def read(body: bytes, efforts: tuple[Effort, ...], default: Effort) -> Ask:
    """Read a body. Raises ApiError 400 naming the first parameter that is not understood or cannot be served."""
    given = _fields(body)
    for name, (neutral, instead) in _REFUSED.items():
        value = given.pop(name, None)
        if value is not None and not any(
            value == x and isinstance(value, bool) == isinstance(x, bool) for x in neutral
        ):
            raise ApiError(f"{name} is not served: {instead}", param=name, code="unsupported_parameter")
    ignored = tuple(name for name in _IGNORED if given.pop(name, None) is not None)
    try:
        b = _Body.model_validate(given)
    except ValidationError as error:
        raise _said(error) from None
    tools = [_tool(t, i) for i, t in enumerate(b.tools or ())]
    if len({t["name"] for t in tools}) < len(tools):
        raise ApiError("two tools have the same name", param="tools")
    if None not in (b.max_tokens, b.max_completion_tokens) and b.max_tokens != b.max_completion_tokens:
        raise ApiError("max_tokens and max_completion_tokens differ: give one of them", param="max_tokens")
    stops = tuple([b.stop] if isinstance(b.stop, str) else b.stop or ())
    if len(stops) > 4 or not all(stops):
        raise ApiError("stop takes one to four texts that are not empty", param="stop")
    if b.stream_options is not None and not b.stream:
        raise ApiError("stream_options belong to stream=true", param="stream_options")
    return Ask(
        b.model,
        _messages(b.messages),
        tools,
        _effort(b.reasoning_effort, efforts, default),
        Options(_choice(b.tool_choice, tools), _format(b.response_format)),
        1.0 if b.temperature is None else float(b.temperature),
        b.max_completion_tokens or b.max_tokens,
        b.seed,
        b.n or 1,
        stops,
        bool(b.logprobs),
        bool(b.stream),
        bool(b.stream_options and b.stream_options.include_usage),
        ignored,
    )


def _fields(body: bytes) -> dict[str, Any]:
    try:
        given = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ApiError("the body is not a JSON object")
    return given


def _said(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(x) for x in first["loc"])
    if first["type"] == "extra_forbidden":
        return ApiError(f"unknown parameter {place!r}: leave it out", param=place, code="unknown_parameter")
    return ApiError(f"{place}: {first['msg']}", param=place)


def _tool(spec: _ToolSpec, index: int) -> Tool:
    f = spec.function
    if f.strict:
        raise ApiError(
            "strict tools are not served: decoding is not constrained, arguments may not fit the schema",
            param=f"tools.{index}.function.strict",
            code="unsupported_parameter",
        )
    parameters = {"type": "object", "properties": {}} if f.parameters is None else f.parameters
    return {"name": f.name, "description": f.description or "", "parameters": parameters}


def _effort(given: str | None, efforts: tuple[Effort, ...], default: Effort) -> Effort:
    if given is None:
        return default
    if given not in efforts:
        more = "" if given != "none" else ", this policy always thinks: low thinks least"
        raise ApiError(f"reasoning_effort {given!r}: it must be {', '.join(efforts)}{more}", param="reasoning_effort")
    return Effort(given)


def _choice(choice: str | _NamedTool | None, tools: list[Tool]) -> str | None:
    """What the policy is told of its next turn; None: nothing. It is told, not constrained."""
    names = [t["name"] for t in tools]
    if isinstance(choice, _NamedTool):
        if choice.function.name not in names:
            raise ApiError(f"tool_choice names {choice.function.name!r}, which is no tool here", param="tool_choice")
        if len(names) > 1:
            raise ApiError(
                "the policy can be told to call a tool, not which one: declare that tool alone, or use required",
                param="tool_choice",
                code="unsupported_parameter",
            )
        return "required"
    if choice == "required" and not names:
        raise ApiError("tool_choice=required needs tools", param="tool_choice")
    return choice if choice == "required" or (choice == "none" and names) else None


def _format(format: _Format | None) -> dict[str, Any] | None:
    if format is None or format.type == "text":
        return None
    if format.type == "json_object":
        return {"type": "json_object"}
    if format.json_schema is None:
        raise ApiError("response_format json_schema needs a json_schema", param="response_format")
    if format.json_schema.strict:
        raise ApiError(
            "a strict json_schema is not served: decoding is not constrained; without strict the policy is told the "
            "schema",
            param="response_format",
            code="unsupported_parameter",
        )
    return {"type": "json_schema", "json_schema": {"schema": format.json_schema.schema_}}


# ---- messages


def _messages(said: list[_Said]) -> list[Message]:
    out: list[Message] = []
    names: dict[str, str] = {}
    for i, m in enumerate(said):
        place = f"messages.{i}"
        only = {"reasoning_content": "assistant", "tool_calls": "assistant", "tool_call_id": "tool"}
        for name, role in only.items():
            if getattr(m, name) is not None and m.role != role:
                raise ApiError(f"{place}: {name} belongs to role {role}", param=f"{place}.{name}")
        if m.name is not None and m.role != "tool":
            raise ApiError(f"{place}: name is not shown to the policy: write it into content", param=f"{place}.name")
        if m.content is None and not (m.role == "assistant" and m.tool_calls):
            raise ApiError(f"{place}: content is missing", param=f"{place}.content")
        if m.role == "assistant":
            out.append(_assistant(m, place))
            names |= {c.id: c.function.name for c in m.tool_calls or ()}
        elif m.role == "tool":
            tool = names.get(m.tool_call_id or "")
            if tool is None or m.tool_call_id is None:
                raise ApiError(
                    f"{place}: tool_call_id {m.tool_call_id!r} is that of no call before it",
                    param=f"{place}.tool_call_id",
                )
            out.append({"role": "tool", "content": _content(m, place), "name": tool, "tool_call_id": m.tool_call_id})
        else:
            out.append({"role": "user" if m.role == "user" else "system", "content": _content(m, place)})
    if said[-1].role == "assistant":
        raise ApiError("the last message is the assistant's: no message is continued here", param="messages")
    return out


def _assistant(m: _Said, place: str) -> Message:
    content = "" if m.content is None else _content(m, place)
    if not isinstance(content, str):
        if any(p["type"] != "text" for p in content):
            raise ApiError(f"{place}: an assistant message holds text alone", param=f"{place}.content")
        content = "".join(p["text"] for p in content if p["type"] == "text")
    message: Message = {"role": "assistant", "content": content}
    if m.reasoning_content is not None:
        message["reasoning_content"] = m.reasoning_content
    if m.tool_calls:
        message["tool_calls"] = [_call(c) for c in m.tool_calls]
    return message


def _call(call: _Call) -> ToolCall:
    return {"id": call.id, "name": call.function.name, "arguments": arguments_of(call.function.arguments)}


def arguments_of(text: str) -> dict[str, Any] | str:
    """The object that a text of arguments says; the text itself where it says none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _content(m: _Said, place: str) -> str | list[TextPart | ImagePart]:
    if isinstance(m.content, str) or m.content is None:
        return m.content or ""
    parts: list[TextPart | ImagePart] = []
    for i, p in enumerate(m.content):
        where = f"{place}.content.{i}"
        if p.type == "text" and p.text is not None and p.image_url is None:
            parts.append({"type": "text", "text": p.text})
        elif p.type == "image_url" and p.image_url is not None and p.text is None:
            parts.append(_image(p.image_url.url, where))
        else:
            raise ApiError(f"{where}: a part has a type, and what is called so", param=where)
    if all(p["type"] == "text" for p in parts) and len(parts) == 1:
        return parts[0]["text"]  # type: ignore[typeddict-item]
    return parts


def _image(url: str, where: str) -> ImagePart:
    """A part of a `data:` URL; other formats than PNG are converted. Raises ApiError 400 for what is no image."""
    head, _, data = url.partition(",")
    if not (head.startswith("data:image/") and head.endswith(";base64")):
        raise ApiError(
            f"{where}: give the image itself, as data:image/png;base64,...: nothing is fetched here", param=where
        )
    try:
        file = b64decode(data, validate=True)
        return image_part(file if file[:8] == b"\x89PNG\r\n\x1a\n" else _as_png(file))
    except ValueError as error:
        raise ApiError(f"{where}: no image that can be read: {error}", param=where) from None


def _as_png(file: bytes) -> bytes:
    from PIL import Image

    out = BytesIO()
    try:
        with Image.open(BytesIO(file)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"{image.width} x {image.height} px are more than {MAX_PIXELS}")
            image.convert("RGB").save(out, "PNG")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(str(error)) from None
    return out.getvalue()
