"""The Triton kernels of KDA, and the torch path beside them, against the float64 recurrence: values and gradients."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from triton_cases import DEVICE, beyond, error, poisoned, rounded_bfloat16

from kernels.kda import kda_attend, kda_decode_
from kernels.paths import ran, use

GATES = {"slow": -9.0, "mixed": 0.0, "bound": 40.0}
"""Shift of the gate's logit: log-decay about -0.0006, -5..0, exactly -5."""
NAMES = ["o", "last", "dq", "dk", "dv", "dz", "db", "da_log", "dbias", "dstate"]


def case(bounds: list[int], gate: str, kd: int = 5, vd: int = 7, heads: int = 2) -> tuple[list[Tensor], Tensor]:
    g = torch.Generator().manual_seed(len(bounds) + bounds[-1])
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)
    t = bounds[-1]
    spread = 0.1 if gate == "bound" else 2.0
    inputs = [draw(t, heads, kd), draw(t, heads, kd), draw(t, heads, vd), spread * draw(t, heads, kd), draw(t, heads)]
    inputs += [0.3 * draw(heads), 0.3 * draw(heads, kd) + GATES[gate]]
    return inputs, draw(len(bounds) - 1, heads, kd, vd)


def run(path: str, inputs: list[Tensor], bounds: list[int], state: Tensor | None, dtype: torch.dtype) -> list[Tensor]:
    """[o, last, gradients of all inputs and the state] with fixed weights of the outputs."""
    given = [x.to(device=DEVICE, dtype=dtype) for x in inputs[:5]] + [x.to(DEVICE, torch.float32) for x in inputs[5:]]
    if path == "reference":
        given = [x.double() for x in given]
    given = [beyond(x).requires_grad_() for x in given]
    leaves = list(given)
    if state is not None:
        state = state.to(DEVICE, given[0].dtype if path == "reference" else torch.float32).requires_grad_()
        leaves.append(state)
    with use(path), poisoned():
        o, last = kda_attend(*given, bounds, state)
        assert ran("kda") == path
        g = torch.Generator().manual_seed(1)
        weights = [torch.randn(x.shape, generator=g, dtype=torch.float64).to(x) for x in (o, last)]
        grads = torch.autograd.grad([o, last], leaves, weights, allow_unused=True)
    return [o.detach(), last.detach(), *grads]


@pytest.mark.parametrize("path", ["torch", "triton"])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(
    "bounds", [[0, 1], [0, 31], [0, 33], [0, 70], [0, 5, 5, 38, 70, 102]], ids=["1", "31", "33", "70", "varlen"]
)
def test_chunks_are_the_recurrence(bounds: list[int], gate: str, path: str) -> None:
    varlen = len(bounds) > 2
    if path == "triton":
        pytest.importorskip("triton")
        if gate != "mixed" and not varlen:
            pytest.skip("the interpreter takes a second for each: other gates with sequences of all lengths alone")
    inputs, state = case(bounds, gate)
    for start in (state, None) if varlen or path == "torch" else (state,):
        want = run("reference", inputs, bounds, start, torch.float32)
        got = run(path, inputs, bounds, start, torch.float32)
        for name, a, b in zip(NAMES, got, want, strict=False):
            # The gate's gradient is a sum of what nearly cancels; at the bound, its slope e^-40 is lost in float32.
            of_gate = name in ("dz", "da_log", "dbias")
            if not (gate == "bound" and of_gate):
                # The bound's cumulated decay reaches 2^-230: float32 keeps it to 1e-5.
                limit = 1e-4 if of_gate or gate == "bound" else 2e-5
                assert error(a, b) < limit, (name, start is None)


def test_bfloat16_at_the_kernels_own_size() -> None:
    pytest.importorskip("triton")
    bounds = [0, 40, 64]
    inputs, state = case(bounds, "mixed", kd=128, vd=128, heads=1)
    want = run("reference", inputs, bounds, state, torch.bfloat16)
    with rounded_bfloat16():
        got = run("triton", inputs, bounds, state, torch.bfloat16)
    for name, a, b in zip(NAMES, got, want, strict=True):
        # The bias takes the sum over all tokens, whose rounding does not cancel as its terms do.
        assert error(a, b) < (4e-2 if name == "dbias" else 1e-2), name


@pytest.mark.parametrize("path", ["torch", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decode_is_the_recurrence_and_touches_its_own_states_alone(dtype: torch.dtype, path: str) -> None:
    if path == "triton":
        pytest.importorskip("triton")
    for kd, vd in ((5, 7), (16, 128)):
        inputs, _ = case([0, 6], "mixed", kd, vd)
        given = [x.to(device=DEVICE, dtype=torch.float32) for x in inputs]
        pool = torch.randn(9, 2, kd, vd, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
        pool[3] = torch.nan  # belongs to nobody here
        index = torch.tensor([4, 0, -1, 8, 7, 1], dtype=torch.int32, device=DEVICE)
        mine, theirs = pool.clone(), pool.clone()
        with use(path), poisoned(), rounded_bfloat16() if path == "triton" else nullcontext():
            o = kda_decode_(*(beyond(x) for x in given), mine, index)
        assert ran("kda_decode") == path
        with use("reference"):
            want = kda_decode_(*(x.double() for x in given), theirs, index)
        assert error(o, want) < 1e-6 and bool((o[2] == 0).all())
        used = index[index >= 0].long()
        assert error(mine[used], theirs[used]) < (1e-6 if dtype == torch.float32 else 1e-3)
        idle = torch.tensor([2, 3, 5, 6], device=DEVICE)
        assert torch.equal(mine[idle].nan_to_num(7.0), pool[idle].nan_to_num(7.0))


def test_wrong_bounds_and_gates_are_refused() -> None:
    inputs, _ = case([0, 4], "mixed")
    for bounds in ([0, 3], [1, 4], [0, 3, 2, 4]):
        with pytest.raises(ValueError, match="bounds"):
            kda_attend(*inputs, bounds)
    with pytest.raises(ValueError, match="gate bound"):
        kda_attend(*inputs, [0, 4], None, -6.0)
    with use("triton"), pytest.raises(ValueError, match="float64"):
        kda_attend(*inputs, [0, 4])
