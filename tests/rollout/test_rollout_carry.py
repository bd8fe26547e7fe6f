"""Laws of states outside of engines: another engine goes on to the bit, and never on weights or tokens not its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_tools import arrays, engine_of, policy_of, prompts, request
from ray.exceptions import ObjectLostError

from rollout.engine.actor import NativeServer
from rollout.engine.base import Carried, GenerateRequest, Generation, StateMissing
from rollout.engine.carry import export
from rollout.engine.native import NativeEngine
from rollout.engine.weights import describe

ANY = tuple(range(0, 512, 3))
"""Stop ids that end a turn after a few tokens."""


def ask(core: NativeEngine, r: GenerateRequest) -> Generation:
    """Through the server, which looks after what a request goes on from."""
    (g,) = asyncio.run(NativeServer(core).generate(r))
    return g


def carried(core: NativeEngine, g: Generation, before: Carried | None = None) -> Carried:
    """What `EngineRouter.carry` makes of a turn's end, with the values in place of references."""
    assert g.kept is not None
    have = before.length if before else 0
    n, fixed, grown = export(core.prefixes, core.policy.config, g.kept, have)
    return Carried(g.kept, n, fixed, (*(before.grown if before else ()), (have, n, grown)))


def equal(a: Generation, b: Generation) -> None:
    """To the bit: tokens, log-probs, versions, routes (of one token an engine that decoded none has no column)."""
    assert a.token_ids.tolist() == b.token_ids.tolist() and a.versions.tolist() == b.versions.tolist()
    assert a.logprobs.tobytes() == b.logprobs.tobytes() and a.finish is b.finish
    if len(a.token_ids) > 1:
        assert a.routes is not None and b.routes is not None
        np.testing.assert_array_equal(a.routes, b.routes)


def turn(i: int, ids: list[int], **more: Any) -> GenerateRequest:
    """The request of a conversation's turn."""
    r = request(f"t{i}", ids, seeds=(50 + i,), max_tokens=40, stop_ids=ANY, keep=True)
    return replace(r, **more)


@pytest.mark.parametrize("preset", ["tiny", "tiny_odd"])
def test_any_turn_goes_on_elsewhere_to_the_bit_and_reads_nothing_again(preset: str) -> None:
    policy = policy_of(preset)
    home = engine_of(policy, max_context=256)
    ids, state, older = prompts(1, longest=20, seed=3)[0], None, None
    for i in range(4):
        ids = [*ids, 7, 8, 9]
        here = ask(home, turn(i, ids))
        if state is not None:
            away = engine_of(policy, max_context=256)
            with pytest.raises(StateMissing, match=f"state of the {state.length} tokens"):
                ask(away, turn(i, ids, carried=state.named()))
            there = ask(away, turn(i, ids, carried=state))
            equal(here, there)
            assert there.cached_tokens == state.length == here.cached_tokens
            stats = away.stats()
            assert stats["tokens_prefilled"] == len(ids) - state.length and stats["tokens_carried"] == state.length
            assert away.prefixes.bytes <= home.prefixes.bytes
            # What it made of it is carried on in its turn, also by one who has less than it took over.
            third, longer = engine_of(policy, max_context=256), [*ids, *there.token_ids.tolist(), 3]
            equal(ask(third, turn(9, longer, carried=carried(away, there, older))), ask(home, turn(9, longer)))
            older = state
        state = carried(home, here, state)
        assert [end - first for first, end, _ in state.grown] == [x[0].shape[1] for _, _, x in state.grown]
        ids += here.token_ids.tolist()
    assert state is not None and len(state.grown) == 4  # each turn added its own tokens' part alone


def test_a_prompt_is_read_on_one_engine_and_decoded_on_another() -> None:
    policy = policy_of()
    reader, decoder, alone = (engine_of(policy, max_context=256) for _ in range(3))
    (ids,) = prompts(1, longest=60, seed=5)
    r = request("a", ids, seeds=(3,), max_tokens=20)
    read = ask(reader, replace(r, id="a/read", sampling=(replace(r.sampling[0], max_tokens=1),), hand_over=True))
    state = carried(reader, read)
    assert state.length == len(ids)
    want, got = ask(alone, r), ask(decoder, replace(r, carried=state))
    equal(want, got)
    assert decoder.stats()["tokens_prefilled"] == 0 and got.cached_tokens == len(ids)
    np.testing.assert_array_equal(want.prompt_routes, got.prompt_routes)  # type: ignore[arg-type]
    # Also where the prompt goes on from a turn that the reader keeps.
    longer = replace(turn(1, [*ids, *want.token_ids, 9, 9]), hand_over=True, keep=False)
    first = ask(reader, turn(0, ids))
    longer = replace(longer, prompt_ids=np.asarray([*ids, *first.token_ids, 9, 9], np.int32))
    again = ask(reader, longer)
    assert again.cached_tokens > 0 and carried(reader, again).length == len(longer.prompt_ids)


def test_a_state_serves_its_own_weights_model_and_tokens_only() -> None:
    policy = policy_of()
    home = engine_of(policy, max_context=256)
    (ids,) = prompts(1, longest=20, seed=6)
    first = ask(home, turn(0, ids))
    state = carried(home, first)
    longer = [*ids, *first.token_ids.tolist(), 9]
    # Other weights: they are asked for nothing, and take nothing.
    other = engine_of(policy_of(seed=7), max_context=256, version=2)
    for how in (state.named(), state):
        g = ask(other, turn(1, longer, carried=how))
        assert g.cached_tokens == 0 and set(g.versions.tolist()) == {2}
        other.forget()
    # Other tokens: what was taken over is not found for them.
    away = engine_of(policy, max_context=256)
    changed = [(longer[0] + 1) % 512, *longer[1:]]
    assert ask(away, turn(1, changed, carried=state)).cached_tokens == 0
    # Another architecture, another dtype, and parts that do not join, are refused.
    odd = engine_of(policy_of("tiny_odd"), max_context=256)
    with pytest.raises(ValueError, match="another model"):
        ask(odd, turn(1, longer, carried=state))
    hole = replace(state, grown=((0, 4, state.grown[0][2]), (5, state.length, state.grown[0][2])))
    for bad in (hole, replace(state, length=state.length + 1)):
        with pytest.raises(ValueError, match="in parts"):
            ask(engine_of(policy, max_context=256), turn(1, [*longer, 1, 2], carried=bad))
    with pytest.raises(ValueError, match="has none from"):
        export(home.prefixes, policy.config, state.key, state.length + 1)
    assert export(home.prefixes, policy.config, (1, b"gone"), 0) == (0, None, None)


def test_new_weights_leave_no_state_to_carry() -> None:
    home = engine_of(policy_of(), max_context=256)
    first = ask(home, turn(0, prompts(1, seed=8)[0]))
    weights = arrays(policy_of(seed=7))
    home.load(describe(2, weights), weights)
    assert first.kept is not None and export(home.prefixes, home.policy.config, first.kept, 0)[0] == 0


def test_a_state_whose_owner_is_gone_is_read_again_and_counted() -> None:
    policy = policy_of()
    home, away = engine_of(policy, max_context=256), engine_of(policy, max_context=256)
    (ids,) = prompts(1, longest=20, seed=9)
    first = ask(home, turn(0, ids))
    state = carried(home, first)
    longer = [*ids, *first.token_ids.tolist(), 9]

    class Gone:
        def __await__(self) -> Any:
            raise ObjectLostError("0" * 56, None, "")
            yield

    g = ask(away, turn(1, longer, carried=replace(state, fixed=Gone())))
    assert g.cached_tokens == 0 and g.token_ids.tolist() == ask(home, turn(1, longer)).token_ids.tolist()
    stats = away.stats()
    assert stats["tokens_carried_lost"] == state.length and stats["tokens_carried"] == 0


def test_a_turn_copies_its_own_part_into_a_row_that_holds_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit what copying all of it gives, also when other rows were decoded in between."""
    policy = policy_of()
    (ids,), (other,) = prompts(1, longest=20, seed=10), prompts(1, longest=12, seed=11)
    runs: list[list[Generation]] = []
    spared = []
    for whole in (False, True):
        engine = engine_of(policy, max_context=256)
        plain = engine.prefixes.give

        def give(
            checkpoint: Any, state: Any, row: int, there: Any = None, whole: bool = whole, plain: Any = plain
        ) -> None:
            spared.append(not whole and there is not None)
            plain(checkpoint, state, row, None if whole else there)

        monkeypatch.setattr(engine.prefixes, "give", give)
        said, out = list(ids), []
        engine.submit(request("x", other, seeds=(1,), max_tokens=200))  # in the first row all the time
        for i in range(4):
            engine.submit(turn(i, said))
            done: dict[str, list[Generation]] = {}
            while f"t{i}" not in done:
                done |= dict(engine.step())
            (g,) = done[f"t{i}"]
            out.append(g)
            said += [*g.token_ids.tolist(), 7, 8]
            for _ in range(3):  # rows behind it are filled up, and written to
                assert not engine.step()
            if i == 2:  # and others come into the row
                engine.submit(request("y", [3, *other], seeds=(2,), max_tokens=5))
                while "y" not in dict(engine.step()):
                    pass
        runs.append(out)
    assert any(spared) and not all(spared)
    for a, b in zip(*runs, strict=True):
        equal(a, b)
