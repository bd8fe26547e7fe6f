"""Laws of Muon: singular values near one, matrices of a stack move alone, shapes are batched without mixing."""

import pytest
import torch

from rl.muon import Muon, orthogonalise


def slow(p: torch.Tensor, grads: list[torch.Tensor], lr: float, momentum: float = 0.95) -> torch.Tensor:
    """One matrix, in float64, as the paper writes it."""
    p, m = p.double().clone(), torch.zeros_like(p).double()
    for g in grads:
        g = g.double()
        m = momentum * m + (1 - momentum) * g
        x = (1 - momentum) * g + momentum * m
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        x = x / (x.norm() + 1e-7)
        for _ in range(5):
            s = x @ x.T
            x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
        p -= lr * max(1, p.shape[0] / p.shape[1]) ** 0.5 * (x.T if tall else x)
    return p


@pytest.mark.parametrize("shape", [(8, 8), (4, 12), (12, 4), (3, 6, 10)])
def test_singular_values_are_near_one(shape):
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape, generator=torch.Generator().manual_seed(0))))
    assert values.min() > 0.5 and values.max() < 1.3


def test_a_zero_matrix_stays_zero():
    assert not orthogonalise(torch.zeros(4, 6)).any()


def test_steps_equal_the_slow_ones():
    shapes = [(8, 8), (12, 4), (4, 12), (3, 8, 8), (8, 8)]
    parameters = [torch.nn.Parameter(torch.randn(s)) for s in shapes]
    start = [p.detach().clone() for p in parameters]
    grads = [[torch.randn(s) for s in shapes] for _ in range(3)]
    optimizer = Muon(parameters, lr=0.1)
    for step in grads:
        for p, g in zip(parameters, step, strict=True):
            p.grad = g.clone()
        optimizer.step()
    for i, p in enumerate(parameters):
        mine = p.detach().reshape(-1, *p.shape[-2:])
        first = start[i].reshape(mine.shape)
        for j in range(len(mine)):
            history = [step[i].reshape(mine.shape)[j] for step in grads]
            torch.testing.assert_close(mine[j].double(), slow(first[j], history, 0.1), atol=1e-4, rtol=1e-4)


def test_a_parameter_without_gradient_stays():
    still, moving = torch.nn.Parameter(torch.ones(4, 4)), torch.nn.Parameter(torch.ones(4, 4))
    moving.grad = torch.eye(4)
    Muon([still, moving], lr=0.1).step()
    assert torch.equal(still, torch.ones(4, 4)) and not torch.equal(moving, torch.ones(4, 4))


def test_a_vector_is_refused():
    with pytest.raises(ValueError, match="matrices"):
        Muon([torch.nn.Parameter(torch.ones(4))], lr=0.1)
