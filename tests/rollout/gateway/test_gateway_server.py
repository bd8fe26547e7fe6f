"""Laws of the server, by the official client over HTTP, with the tiny policy behind it."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from gateway_tools import CHAT, CONTEXT, Running, native, recomputed, running, until, weights

from environments.images import image_hash, png
from model import Policy, QuantSpec
from model.chat import ChatTokenizer
from model.checkpoint_config import architecture
from model.image import ImageSpec
from rollout.engine.actor import NativeServer
from rollout.engine.native import NativeEngine
from rollout.engine.weights import describe
from rollout.gateway.keys import Key

SAY: Any = [{"role": "user", "content": "copy: a b c"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(native) as it:
        yield it


def ask(server: Running, messages: Any = SAY, **more: Any) -> Any:
    given = {"model": "policy", "seed": 7, "reasoning_effort": "low", "max_tokens": 60, "temperature": 0.3} | more
    return server.client().chat.completions.create(messages=messages, **given)


def last_ids(server: Running, reply: Any) -> np.ndarray:
    """The newest reply's ids, as they were captured."""
    return server.session(reply).turns[-1].node.token_ids


def test_a_plain_reply_is_what_was_sampled_and_its_log_probs_are_the_policy_s(server: Running) -> None:
    reply = ask(server, logprobs=True, temperature=0.7)
    trajectory = server.trajectory(reply)
    ids, mask = trajectory.column("token_ids"), trajectory.column("loss_mask").astype(bool)
    prompt = CHAT.render_prompt(SAY, (), "low")
    assert ids[~mask].tolist() == prompt
    want = recomputed(ids, 0.7)[mask[1:]]
    np.testing.assert_allclose(trajectory.column("logprobs")[mask], want, atol=1e-6)
    choice = reply.choices[0]
    np.testing.assert_allclose([t.logprob for t in choice.logprobs.content], want, atol=1e-6)
    assert [t.token for t in choice.logprobs.content] == [CHAT.decode([i]) for i in ids[mask]]
    said = CHAT.parse(ids[mask]).message
    assert choice.message.content == said["content"] and choice.message.reasoning_content == said["reasoning_content"]
    assert choice.finish_reason == "stop" and ids[-1] == CHAT.end_id, "the committed start ends its replies"
    usage = reply.usage
    assert usage.prompt_tokens == len(prompt) and usage.completion_tokens == mask.sum()
    assert usage.completion_tokens_details.reasoning_tokens == ids[mask].tolist().index(CHAT.close_id)
    assert (trajectory.column("versions")[mask] == 1).all() and trajectory.nodes[-1].routes is not None
    assert trajectory.nodes[-1].sampling.temperature == 0.7


def joined(chunks: list[Any]) -> dict[int, dict[str, Any]]:
    """What the pieces of a stream say, by choice."""
    out: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for c in chunk.choices:
            one = out.setdefault(c.index, {"content": "", "thinking": "", "finish": None, "logprobs": []})
            one["content"] += c.delta.content or ""
            one["thinking"] += getattr(c.delta, "reasoning_content", None) or ""
            one["finish"] = c.finish_reason or one["finish"]
            one["logprobs"] += [t.logprob for t in c.logprobs.content] if c.logprobs else []
    return out


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_says_what_the_plain_reply_says(server: Running, n: int) -> None:
    more: Any = {"n": n, "logprobs": True, "reasoning_effort": "high"}
    plain = ask(server, **more)
    chunks = list(ask(server, stream=True, stream_options={"include_usage": True}, **more))
    pieces = joined(chunks)
    for choice in plain.choices:
        one = pieces[choice.index]
        assert one["content"] == choice.message.content and one["thinking"] == choice.message.reasoning_content
        assert one["finish"] == choice.finish_reason
        assert one["logprobs"] == [t.logprob for t in choice.logprobs.content]
    a, b = chunks[-1].usage.model_dump(), plain.usage.model_dump()
    del a["prompt_tokens_details"], b["prompt_tokens_details"]  # what was kept of the first call may serve the second
    assert len(pieces) == n and a == b
    assert sum(bool(c.choices and c.choices[0].delta.content) for c in chunks) >= 1


def test_continuations_differ_and_the_first_is_that_of_a_request_for_one(server: Running) -> None:
    one, more = ask(server, temperature=2.0), ask(server, n=4, temperature=2.0)
    texts = [c.message.model_dump_json() for c in more.choices]
    assert texts[0] == one.choices[0].message.model_dump_json() and len(set(texts)) > 1
    assert more.usage.completion_tokens == sum(len(t.node) for t in server.session(more).turns)
    assert len(server.trajectory(more).segments) == 4, "each is a branch"


def test_efforts_are_said_to_the_policy_and_others_refused(server: Running) -> None:
    for effort in ("low", "high", "max"):
        prompt = server.trajectory(ask(server, reasoning_effort=effort)).nodes[0].token_ids
        assert f"thinking_effort={effort}" in CHAT.decode(prompt)
    for effort, word in (("medium", "low, high, max"), ("none", "always thinks")):
        with pytest.raises(openai.BadRequestError, match=word):
            ask(server, reasoning_effort=effort)
    assert ask(server, reasoning_effort=openai.omit).usage.prompt_tokens == len(CHAT.render_prompt(SAY, (), "max"))


@pytest.mark.parametrize("thinking", ["kept", "left out"])
def test_a_conversation_goes_on_from_the_sampled_ids(server: Running, thinking: str) -> None:
    first = ask(server, reasoning_effort="high")
    message = first.choices[0].message
    assert message.reasoning_content and first.choices[0].finish_reason == "stop"
    said: Any = message if thinking == "kept" else {"role": "assistant", "content": message.content}
    second = ask(server, [*SAY, said, {"role": "user", "content": "copy: d a"}], reasoning_effort="high")
    assert second.model_extra["jointrl"]["begun"] == "continued"
    assert first.model_extra["jointrl"]["session"] == second.model_extra["jointrl"]["session"]
    t = server.trajectory(second)
    assert [n.role for n in t.nodes] == ["prompt", "assistant", "user", "assistant"] and t.segments == [0]
    assert CHAT.parse(t.nodes[1].token_ids).message["reasoning_content"] == message.reasoning_content
    assert second.usage.prompt_tokens == sum(len(n) for n in t.nodes[:3])
    # The state at the end of the first turn was kept: all but its last token.
    assert second.usage.prompt_tokens_details.cached_tokens >= len(t.nodes[0]) + len(t.nodes[1]) - 1
    mask = t.column("loss_mask").astype(bool)
    np.testing.assert_allclose(t.column("logprobs")[mask], recomputed(t.column("token_ids"), 0.3)[mask[1:]], atol=1e-6)


def test_an_edited_reply_branches_and_nothing_is_hidden(server: Running) -> None:
    name = {"x-jointrl-session": "edited"}
    first = ask(server, extra_headers=name)
    edited = {"role": "assistant", "content": "something else"}
    second = ask(server, [*SAY, edited, {"role": "user", "content": "copy: d a"}], extra_headers=name)
    assert second.model_extra["jointrl"] == {"session": "edited", "begun": "branched", "versions": [1, 1]}
    t = server.trajectory(second)
    assert t.segments == [0, 2] and [int(n.loss_mask.any()) for n in t.nodes] == [0, 1, 0, 0, 0, 1]
    assert t.nodes[3].token_ids.tolist() == CHAT.encode_assistant(edited)
    assert server.session(first).summary()["branches"] == 2


def test_a_stream_that_is_left_is_ended_in_the_engine(server: Running) -> None:
    core = server.gateway.engine._engine.core  # type: ignore[attr-defined]
    stream = ask(server, temperature=50.0, max_tokens=800, stream=True, extra_headers={"x-jointrl-session": "left"})
    next(iter(stream))
    assert core.busy
    stream.close()
    until(lambda: not core.busy and server.gateway.door.running == 0)
    session = server.gateway.book.get("", "left")
    (turn,) = session.turns
    assert str(turn.finish) == "abort" and 0 < len(turn.node) < 800
    assert session.trajectory().nodes == [] and session.counts["finish/abort"] == 1


def test_a_plain_request_whose_client_goes_is_ended_in_the_engine(server: Running) -> None:
    core = server.gateway.engine._engine.core  # type: ignore[attr-defined]
    with pytest.raises(openai.APITimeoutError):
        server.client().with_options(timeout=0.3).chat.completions.create(
            model="policy", messages=SAY, temperature=50.0, max_tokens=900, n=8
        )
    until(lambda: not core.busy and server.gateway.door.running == 0)


def test_what_cannot_be_served_says_what_to_change(server: Running) -> None:
    with pytest.raises(openai.BadRequestError) as long:
        ask(server, [{"role": "user", "content": "a b c d " * 400}])
    assert long.value.code == "context_length_exceeded" and str(CONTEXT) in str(long.value)
    with pytest.raises(openai.NotFoundError, match="policy"):
        ask(server, model="gpt-4")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    for bad in (
        {"top_p": 0.5},
        {"logit_bias": {"5": 1}},
        {"top_logprobs": 3, "logprobs": True},
        {"frequency_penalty": 1},
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            ask(server, **bad)
        assert refused.value.code == "unsupported_parameter" and refused.value.param in bad
    with pytest.raises(openai.BadRequestError, match="image"):
        ask(server, [{"role": "user", "content": [image]}])
    with pytest.raises(openai.BadRequestError, match="unknown parameter"):
        ask(server, extra_body={"temprature": 1})
    reply = server.client().chat.completions.with_raw_response.create(
        model="policy", messages=SAY, user="me", max_tokens=2, metadata={"a": "b"}, top_p=1
    )
    assert reply.headers["x-jointrl-ignored"] == "user, metadata"
    assert not server.gateway.door.running


def test_a_foreign_page_or_body_is_refused(server: Running) -> None:
    url, body = f"{server.url}/v1/chat/completions", {"model": "policy", "messages": SAY, "max_tokens": 2}
    assert httpx.post(url, json=body, headers={"host": "evil.example"}).status_code == 403
    plain = {"content-type": "text/plain"}
    assert httpx.post(url, content=json.dumps(body), headers=plain).status_code == 415
    assert httpx.get(f"{server.url}/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert httpx.get(url).status_code == 405 and "error" in httpx.get(url).json()
    health = httpx.get(f"{server.url}/health").json()
    assert health["status"] == "ok" and health["version"] == 1
    assert [m.id for m in server.client().models.list()] == ["policy"]


def test_keys_part_clients_and_bound_them() -> None:
    keys = (Key("a", "a" * 20, max_requests=1), Key("b", "b" * 20, tokens_per_minute=100))
    with running(native, keys, max_body=3000) as server:
        given: Any = {"model": "policy", "messages": SAY, "max_tokens": 4, "reasoning_effort": "low"}
        for wrong in ("a" * 19, "none"):
            with pytest.raises(openai.AuthenticationError) as refused:
                server.client(wrong).chat.completions.create(**given)
            assert refused.value.code == "invalid_api_key"
        assert httpx.get(f"{server.url}/v1/models").status_code == 401
        a, b = server.client("a" * 20), server.client("b" * 20)
        mine = a.chat.completions.create(**given, extra_headers={"x-jointrl-session": "s"})
        assert mine.model_extra["jointrl"]["session"] == "s"
        theirs = httpx.get(f"{server.url}/v1/sessions/s", headers={"authorization": f"Bearer {'b' * 20}"})
        assert theirs.status_code == 404, "a session is its owner's"
        stream = a.chat.completions.create(**{**given, "max_tokens": 800, "temperature": 50.0}, stream=True)
        next(iter(stream))
        with pytest.raises(openai.RateLimitError, match="1 requests in flight"):
            a.chat.completions.create(**given)
        stream.close()
        until(lambda: server.gateway.door.running == 0)
        with pytest.raises(openai.RateLimitError, match="a minute") as late:
            for _ in range(9):
                b.chat.completions.create(**given)
        assert int(late.value.response.headers["retry-after"]) >= 1
        with pytest.raises(openai.APIStatusError) as large:
            a.chat.completions.create(**{**given, "messages": [{"role": "user", "content": "a" * 4000}]})
        assert large.value.status_code == 413


def test_32_clients_at_once_get_what_each_gets_alone(server: Running) -> None:
    words = [f"copy: {x} {y}" for x in "abcdefgh" for y in "abcd"]

    def one(word: str) -> tuple[str, str]:
        reply = ask(server, [{"role": "user", "content": word}], seed=3)
        return reply.choices[0].message.content, reply.model_extra["jointrl"]["session"]

    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(one, words))
    assert len({session for _, session in together}) == 32
    for i in (0, 13, 31):
        assert one(words[i])[0] == together[i][0]
    assert not server.gateway.door.running


def test_weights_may_change_while_a_reply_is_sampled() -> None:
    def engine() -> NativeServer:
        out = native()
        step, steps = out.core.step, iter(range(10**6))

        def stepping() -> Any:
            if next(steps) == 20:
                out.core.load(*weights(2, scale=1.5))
            return step()

        out.core.step = stepping  # type: ignore[method-assign]
        return out

    with running(engine) as server:
        more: Any = {"temperature": 50.0, "max_tokens": 40, "extra_headers": {"x-jointrl-session": "two"}}
        last = [c for c in ask(server, stream=True, **more) if c.choices][-1]
        assert last.model_extra["jointrl"]["versions"] == [1, 2]
        versions = server.gateway.book.get("", "two").turns[0].node.versions
        # The first step samples two tokens: the one after the prompt, and the next.
        assert versions.tolist() == [1] * 21 + [2] * 19
        assert httpx.get(f"{server.url}/health").json()["version"] == 2


def test_images_reach_a_policy_that_sees_and_stand_in_what_is_captured() -> None:
    sees = architecture("tiny", vision="tiny")

    def engine() -> NativeServer:
        policy = Policy(sees, QuantSpec("none", "none"))
        policy.reset_parameters(3)
        core = NativeEngine(policy, 4, CONTEXT)
        tensors = {name: w.numpy().copy() for name, w in policy.named_weights()}
        core.load(describe(1, tensors), tensors)
        return NativeServer(core)

    files = [png(np.full((24, 36, 3), shade, np.uint8)) for shade in (0, 250)]

    def shown(file: bytes) -> list[Any]:
        url = f"data:image/png;base64,{b64encode(file).decode()}"
        return [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url}}]

    assert sees.vision is not None
    with running(engine, chat=ChatTokenizer(images=ImageSpec.of(sees.vision))) as server:
        scores = []
        for file in files:
            messages = [{"role": "system", "content": "s"}, {"role": "user", "content": shown(file)}]
            reply = ask(server, messages, max_tokens=4, logprobs=True)
            t = server.trajectory(reply)
            (place,) = t.nodes[0].images
            assert t.image_files() == (file,) and place.image == image_hash(file)
            at = slice(place.at, place.at + place.tokens)
            assert (t.nodes[0].token_ids[at] == sees.media_placeholder_token_id).all()
            scores.append([x.logprob for x in reply.choices[0].logprobs.content])
        assert scores[0] != scores[1], "pixels are part of the prompt"
        with pytest.raises(openai.BadRequestError, match="image"):
            ask(server, [{"role": "user", "content": shown(files[0][:60])}])
