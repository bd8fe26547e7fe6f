"""Laws of the vision tower and of image rows in a text: the spec written twice, packed as alone, placed or refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from k3_oracle import randomised
from torch import Tensor

from model.chat import ChatTokenizer
from model.config import K3Config
from model.decoder import Policy
from model.image import ImageSpec
from model.logprob import NEVER
from model.presets import tiny_vision
from model.quant import QuantSpec
from model.vision import Grid, MoonViT, Norm, Placed, Projector, place
from model.vision_config import VisionConfig

PAD = 511
"""Stands for the image token here; no text of these tests holds it."""

PLAIN = QuantSpec("none", "none")


def build(vision: VisionConfig | None = None, preset: str = "tiny_odd", **changes) -> Policy:
    sees = {"vision": vision or tiny_vision(), "media_placeholder_token_id": PAD}
    policy = Policy(replace(K3Config.preset(preset), **sees, **changes), PLAIN).to(torch.float64)
    policy.reset_parameters(0)
    return randomised(policy)


def patches(grids: list[Grid], seed: int = 0, size: int = 6) -> Tensor:
    n = sum(t * h * w for t, h, w in grids)
    return torch.rand(n, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2 - 1


# ---- the tower


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean() + eps).sqrt() * weight


def table_at(table: Tensor, y: int, x: int, h: int, w: int) -> Tensor:
    """The position table [H, W, D] read bilinearly at the centre of cell (y, x) of an h x w grid over it."""
    out = torch.zeros(table.shape[2], dtype=table.dtype)
    (y0, fy), (x0, fx) = (
        divmod(max((i + 0.5) * size / n - 0.5, 0.0), 1.0)
        for i, n, size in ((y, h, table.shape[0]), (x, w, table.shape[1]))
    )
    for dy, wy in ((0, 1 - fy), (1, fy)):
        for dx, wx in ((0, 1 - fx), (1, fx)):
            row, column = min(int(y0) + dy, table.shape[0] - 1), min(int(x0) + dx, table.shape[1] - 1)
            out += wy * wx * table[row, column]
    return out


def turned(v: Tensor, y: int, x: int, c: VisionConfig) -> Tensor:
    """One head's vector with its complex pairs turned: even pairs by x, odd pairs by y."""
    out = []
    for pair in range(c.head_dim // 2):
        angle = (x if pair % 2 == 0 else y) * c.rope_theta ** (-4 * (pair // 2) / c.head_dim)
        z = complex(v[2 * pair], v[2 * pair + 1]) * complex(math.cos(angle), math.sin(angle))
        out += [z.real, z.imag]
    return torch.tensor(out, dtype=v.dtype)


def oracle(policy: Policy, item: Tensor, grid: Grid) -> Tensor:
    """One item's rows, patch by patch and head by head, from the weights by their public names."""
    w = {k: v for k, v in policy.named_weights() if k.startswith(("vision_tower", "mm_projector"))}
    c, (t, h, width) = policy.vision_tower.config, grid
    cells = [(f, y, x) for f in range(t) for y in range(h) for x in range(width)]
    half = c.vt_hidden_size // 2
    state = []
    for patch, (f, y, x) in zip(item, cells, strict=True):
        v = torch.einsum("cij,ocij->o", patch, w["vision_tower.patch_embed.proj.weight"])
        v = v + table_at(w["vision_tower.patch_embed.pos_emb.weight"], y, x, h, width)
        if t > 1:
            waves = [f / 10000 ** (d / half) for d in range(half)]
            v = v + torch.tensor([math.sin(a) for a in waves] + [math.cos(a) for a in waves], dtype=v.dtype)
        state.append(v)
    d, inner = c.head_dim, c.qkv_hidden_size
    for n in range(c.vt_num_hidden_layers):
        b = {
            k: w[f"vision_tower.encoder.blocks.{n}.{k}.weight"]
            for k in ("norm0", "norm1", "wqkv", "wo", "mlp.fc0", "mlp.fc1")
        }
        qkv = [b["wqkv"] @ rms(v, b["norm0"], c.norm_eps) for v in state]
        seen = [[] for _ in state]
        for head in range(c.vt_num_attention_heads):
            cut = slice(head * d, (head + 1) * d)
            q = [turned(z[:inner][cut], y, x, c) for z, (_, y, x) in zip(qkv, cells, strict=True)]
            k = [turned(z[inner : 2 * inner][cut], y, x, c) for z, (_, y, x) in zip(qkv, cells, strict=True)]
            values = torch.stack([z[2 * inner :][cut] for z in qkv])
            for i, mine in enumerate(q):
                p = torch.softmax(torch.stack([mine @ other / math.sqrt(d) for other in k]), 0)
                seen[i].append(p @ values)
        for i, heads in enumerate(seen):
            state[i] = state[i] + b["wo"] @ torch.cat(heads)
            u = b["mlp.fc0"] @ rms(state[i], b["norm1"], c.norm_eps)
            u = 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
            state[i] = state[i] + b["mlp.fc1"] @ u
    state = [rms(v, w["vision_tower.encoder.final_layernorm.weight"], c.norm_eps) for v in state]
    at = {cell: v for cell, v in zip(cells, state, strict=True)}
    down, across = c.merge_kernel_size
    rows = []
    for y in range(0, h, down):
        for x in range(0, width, across):
            near = [(y + i, x + j) for i in range(down) for j in range(across)]
            v = torch.cat([sum(at[f, *cell] for f in range(t)) / t for cell in near])
            v = w["mm_projector.proj.0.weight"] @ v
            v = w["mm_projector.proj.2.weight"] @ (0.5 * v * (1 + torch.erf(v / math.sqrt(2))))
            rows.append(rms(v, w["mm_projector.post_norm.weight"], c.projector_ln_eps))
    return torch.stack(rows)


@pytest.mark.parametrize("grid", [(1, 4, 6), (1, 8, 2), (1, 2, 10), (3, 2, 4)])
@torch.no_grad()
def test_the_tower_is_the_spec_written_twice(grid: Grid) -> None:
    policy = build()
    x = patches([grid])
    want = oracle(policy, x, grid)
    got = policy.see(x, [grid])
    assert got.shape == (grid[1] * grid[2] // 4, 56) and want.std() > 0.1
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


@torch.no_grad()
def test_a_merge_need_not_be_square() -> None:
    policy = build(replace(tiny_vision(), merge_kernel_size=(2, 3), patch_size=5))
    x, grid = patches([(1, 4, 6)], size=5), (1, 4, 6)
    torch.testing.assert_close(policy.see(x, [grid]), oracle(policy, x, grid), rtol=0, atol=1e-10)


@torch.no_grad()
def test_packed_items_are_the_items_alone() -> None:
    policy = build()
    grids: list[Grid] = [(1, 4, 6), (2, 2, 2), (1, 6, 4), (1, 4, 6), (1, 5 * 2, 2)]
    items = patches(grids).split([t * h * w for t, h, w in grids])
    alone = [policy.see(x, [g]) for x, g in zip(items, grids, strict=True)]
    torch.testing.assert_close(policy.see(torch.cat(items), grids), torch.cat(alone), rtol=0, atol=1e-12)
    back = policy.see(torch.cat(items[::-1]), grids[::-1])
    torch.testing.assert_close(back, torch.cat(alone[::-1]), rtol=0, atol=1e-12)


def test_k3s_tower_and_projector_are_counted_and_named() -> None:
    with torch.device("meta"):
        tower, projector = MoonViT(VisionConfig()), Projector(VisionConfig(), 7168)
    assert sum(p.numel() for p in tower.parameters()) == 401_214_464 == VisionConfig().param_count()
    assert sum(p.numel() for p in projector.parameters()) == 46_144_512 == VisionConfig().projector_count(7168)
    shapes = {n: tuple(p.shape) for n, p in build().named_parameters() if n.startswith(("vision", "mm"))}
    block = "vision_tower.encoder.blocks.0."
    assert {n for n in shapes if "blocks.1." not in n} == {
        "vision_tower.patch_embed.proj.weight",
        "vision_tower.patch_embed.pos_emb.weight",
        *(block + n + ".weight" for n in ("norm0", "norm1", "wqkv", "wo", "mlp.fc0", "mlp.fc1")),
        "vision_tower.encoder.final_layernorm.weight",
        "mm_projector.proj.0.weight",
        "mm_projector.proj.2.weight",
        "mm_projector.post_norm.weight",
    }
    assert shapes[block + "wqkv.weight"] == (72, 20) and shapes[block + "wo.weight"] == (20, 24)
    assert shapes["vision_tower.patch_embed.proj.weight"] == (20, 3, 6, 6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@torch.no_grad()
def test_an_eps_that_is_left_open_is_what_public_code_computes_with(dtype: torch.dtype) -> None:
    """By torch itself, in the dtypes that the tower is served in; and one number, so that a dtype changes no model."""
    left_open = replace(tiny_vision(), norm_eps=None)
    small = torch.full((1, 8), 2.0**-10, dtype=dtype)
    public = torch.nn.RMSNorm(8).to(dtype)(small)
    assert 0.93 < public[0, 0] < 0.95, "an input so small that the epsilon shows"
    torch.testing.assert_close(Norm(8, left_open.eps).to(dtype)(small), public, rtol=1e-6, atol=0)
    tower = build(left_open).vision_tower
    assert tower is not None and {m.eps for m in tower.modules() if isinstance(m, Norm)} == {2.0**-23}
    assert tiny_vision().eps == 1e-5 and "norm_eps" not in left_open.to_hf(64), "the public file leaves it open too"


BAD_ITEMS = {
    "odd_rows": ([(1, 3, 4)], 12, "item 0 of 3 x 4.*merge"),
    "odd_columns": ([(1, 2, 2), (1, 2, 5)], 14, "item 1 of 2 x 5.*merge"),
    "too_many_frames": ([(4, 2, 2)], 16, "init_pos_emb_time=3"),
    "too_wide": ([(1, 2, 34)], 68, "rope_max_size=32"),
    "empty": ([(1, 0, 2)], 0, "at least one"),
    "patches_left": ([(1, 2, 2)], 5, r"patches \(5, 3, 6, 6\).*\(4, 3, 6, 6\)"),
    "no_items": ([], 0, "0 items"),
}


@pytest.mark.parametrize("case", BAD_ITEMS)
def test_grids_that_do_not_fit_are_named(case: str) -> None:
    grids, n, why = BAD_ITEMS[case]
    with pytest.raises(ValueError, match=why):
        build().see(torch.zeros(n, 3, 6, 6), grids)


def test_a_policy_without_a_tower_says_so() -> None:
    policy = Policy(K3Config.preset("tiny"), PLAIN)
    with pytest.raises(ValueError, match="no vision tower"):
        policy.see(torch.zeros(4, 3, 6, 6), [(1, 2, 2)])
    with pytest.raises(ValueError, match="no vision tower"):
        policy.freeze_vision()


# ---- image rows in a text


GRIDS: list[Grid] = [(1, 4, 6), (1, 2, 2), (1, 2, 8)]
TOKENS = [[6], [], [1, 4]]
"""Rows of the batch below: one image, none, two."""


def batch() -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, 500, (3, 24), generator=torch.Generator().manual_seed(3))
    ids[0, 5:11] = PAD
    ids[2, 0] = PAD
    ids[2, 2:6] = PAD
    return ids, torch.tensor([24, 13, 19])


def placed(policy: Policy) -> Placed:
    return place(policy.see(patches(GRIDS), GRIDS), TOKENS, *batch(), PAD)


def test_image_rows_stand_where_embeddings_stood() -> None:
    """The oracle: the same rows as embeddings of ids that no text uses."""
    policy = build()
    ids, lengths = batch()
    with torch.no_grad():
        images = placed(policy)
        got = policy(ids, lengths, images=images)
        blind = policy(ids, lengths)
        policy.model.embed_tokens.weight[500:511] = images.features
        ids = ids.masked_scatter(ids == PAD, torch.arange(500, 511))
        want = policy(ids, lengths)
    assert torch.equal(got.hidden, want.hidden) and torch.equal(got.routes, want.routes)
    change = (got.hidden - blind.hidden).abs().amax(-1)
    assert change[0, :5].max() < 1e-11 and change[1].max() < 1e-11, "nothing before an image sees it, nor another row"
    assert change[0, 5:].min() > 1e-3, "every later token sees it"


def test_a_tower_changes_nothing_where_there_is_no_image() -> None:
    config = K3Config.preset("tiny")
    plain, seeing = Policy(config), Policy(replace(config, vision=tiny_vision(), media_placeholder_token_id=PAD))
    for policy in (plain, seeing):
        policy.reset_parameters(5)
    ids, lengths = torch.randint(0, 512, (2, 20)), torch.tensor([20, 11])
    a, b = (p(ids, lengths) for p in (plain, seeing))
    assert torch.equal(a.hidden, b.hidden) and torch.equal(a.routes, b.routes)
    steps = []
    for policy in (plain, seeing):
        state = policy.new_state(2, 24)
        steps.append([policy.prefill(ids, lengths, state, [0, 1])[0], policy.decode(ids[:, 0], state, 2)[0]])
    assert all(torch.equal(x[:, :508], y[:, :508]) for x, y in zip(*steps, strict=True))
    assert all((y[:, 508:] == NEVER).all() for y in steps[1]), "marks of images are never sampled"


@pytest.mark.parametrize("frozen", [(False, False), (True, False), (True, True)])
def test_gradients_reach_what_is_not_frozen(frozen: tuple[bool, bool]) -> None:
    policy = build()
    policy.freeze_vision(*frozen)
    policy(*batch(), images=placed(policy)).hidden.square().sum().backward()
    for part, still in zip((policy.vision_tower, policy.mm_projector), frozen, strict=True):
        for name, p in part.named_parameters():
            assert (p.grad is None) if still else (p.grad.abs().max() > 0), name
    assert policy.model.embed_tokens.weight.grad[PAD].abs().max() == 0, "no row of the table stands at an image"
    assert policy.model.embed_tokens.weight.grad.abs().max() > 0
    policy.freeze_vision(False, False)
    assert all(p.requires_grad for p in policy.parameters())


def test_gradients_of_tower_and_projector_are_the_slopes() -> None:
    policy = build(index_topk=None)
    routes = policy(*batch(), images=placed(policy)).routes
    loss = lambda: policy(*batch(), routes, images=placed(policy)).hidden.tanh().sum()
    loss().backward()
    generator = torch.Generator().manual_seed(1)
    for part in (policy.vision_tower, policy.mm_projector):
        for name, p in part.named_parameters():
            way = torch.randn(p.shape, dtype=p.dtype, generator=generator)
            way *= 1e-5 / way.norm()
            with torch.no_grad():
                p += way
                up = loss()
                p -= 2 * way
                down = loss()
                p += way
            assert float((up - down) / 2) == pytest.approx(float((p.grad * way).sum()), rel=1e-4, abs=1e-9), name


@pytest.mark.parametrize("cut", [1, 4, 5, 7, 10, 11, 16, 23])
def test_a_prompt_cut_through_an_image_is_the_prompt(cut: int) -> None:
    policy = build(preset="tiny")
    ids = batch()[0][:1]
    images = place(policy.see(patches(GRIDS[:1]), GRIDS[:1]), [[6]], ids, torch.tensor([24]), PAD)
    whole, parts = policy.new_state(1, 30), policy.new_state(1, 30)
    want, routes = policy.prefill(ids, torch.tensor([24]), whole, [0], images)
    _, first = policy.prefill(ids[:, :cut], torch.tensor([cut]), parts, [0], images.window(0, cut))
    got, second = policy.extend(ids[:, cut:], torch.tensor([24 - cut]), parts, [0], images.window(cut, 24))
    assert torch.equal(torch.cat((first, second), 1), routes)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    for name, value in whole.export(0).tensors.items():
        torch.testing.assert_close(parts.export(0).tensors[name], value, rtol=0, atol=1e-12)


def test_prefill_and_decode_are_the_forward() -> None:
    policy = build()
    ids, lengths = batch()
    with torch.no_grad():
        images = placed(policy)
        want = policy.logits(policy(ids, lengths, images=images).hidden)
    state = policy.new_state(3, 30)
    start = torch.tensor([11, 9, 6])
    got, _ = policy.prefill(ids[:, :11], start, state, [0, 1, 2], images.window(0, 11))
    torch.testing.assert_close(got, want[range(3), start - 1], rtol=0, atol=1e-10)
    for t in range(4):
        got, _ = policy.decode(ids[range(3), start + t], state, 3)
        torch.testing.assert_close(got, want[range(3), start + t], rtol=0, atol=1e-10)


def test_a_shared_prompt_shares_its_image() -> None:
    policy = build()
    prompt = batch()[0][0, :15]
    rests = torch.randint(0, 500, (2, 4), generator=torch.Generator().manual_seed(8))
    seen = policy.see(patches(GRIDS[:1]), GRIDS[:1])
    whole = torch.stack([torch.cat((prompt, rest)) for rest in rests])
    full = torch.tensor([19, 19])
    want = policy(whole, full, images=place(torch.cat((seen, seen)), [[6], [6]], whole, full, PAD))
    cut = torch.zeros(3, 15, dtype=torch.int64)
    cut[0], cut[1:, :4] = prompt, rests
    lengths, parents = torch.tensor([15, 4, 4]), torch.tensor([-1, 0, 0])
    got = policy(cut, lengths, None, parents, place(seen, [[6], [], []], cut, lengths, PAD))
    torch.testing.assert_close(got.hidden[1:, :4], want.hidden[:, 15:], rtol=0, atol=1e-11)


def test_a_pad_that_the_policy_said_is_a_token_like_others() -> None:
    policy = build()
    ids, lengths = batch()
    ids[1, 7] = PAD
    sampled = torch.zeros(ids.shape, dtype=torch.bool)
    sampled[1, 5:] = True
    images = place(policy.see(patches(GRIDS), GRIDS), TOKENS, ids, lengths, PAD, sampled)
    assert images.row.tolist() == [0] * 6 + [2] * 5 and images.pos.tolist() == [5, 6, 7, 8, 9, 10, 0, 2, 3, 4, 5]
    with pytest.raises(ValueError, match=r"row 1.*\[\] tokens.*\[1\]"):
        place(policy.see(patches(GRIDS), GRIDS), TOKENS, ids, lengths, PAD)


BAD_PLACES = {
    "one_too_few": ([[5], [], [1, 4]], 10, r"b: its images have \[5\] tokens, its ids hold runs of \[6\]"),
    "missing_image": ([[6], [], [1]], 7, r"d: its images have \[1\] tokens"),
    "image_without_a_place": ([[6], [3], [1, 4]], 14, r"c: its images have \[3\] tokens, its ids hold runs of \[\]"),
    "two_on_one_run": ([[3, 3], [], [1, 4]], 11, r"b: its images have \[3, 3\]"),
    "swapped": ([[6], [], [4, 1]], 11, r"d: its images have \[4, 1\] tokens, its ids hold runs of \[1, 4\]"),
    "another_batch": ([[6]], 6, "images of 1 samples for a batch of 3"),
    "rows_of_features": (TOKENS, 12, "12 rows of features for 11"),
}


@pytest.mark.parametrize("case", BAD_PLACES)
def test_pads_and_images_that_do_not_agree_name_the_sample(case: str) -> None:
    tokens, n, why = BAD_PLACES[case]
    with pytest.raises(ValueError, match=why):
        place(torch.zeros(n, 56), tokens, *batch(), PAD, names=["b", "c", "d"])


def test_images_of_another_batch_are_refused() -> None:
    policy = build()
    with pytest.raises(ValueError, match="outside the batch's text"):
        policy(batch()[0], torch.tensor([9, 13, 19]), images=placed(policy))


def test_a_rendered_prompt_fits_the_images_that_it_names() -> None:
    """From the message to the logits: pads by the tokenizer, rows by the tower."""
    import numpy as np
    from PIL import Image

    from model.image import preprocess

    vision = tiny_vision()
    spec = ImageSpec.of(vision)
    tok = ChatTokenizer(images=spec)
    policy = build(vision, vocab_size=tok.vocab_size)
    raw = np.random.default_rng(0).integers(0, 256, (2, 50, 31, 3), dtype=np.uint8)
    pictures = [preprocess(Image.fromarray(raw[0]), spec), preprocess(Image.fromarray(raw[1, :9]), spec)]
    content = [{"type": "image", "width": p.width, "height": p.height} for p in pictures]
    ids = torch.tensor([tok.render_prompt([{"role": "user", "content": [*content, {"type": "text", "text": "a"}]}])])
    grids = [p.grid for p in pictures]
    rows = policy.see(torch.from_numpy(np.concatenate([p.patches for p in pictures])), grids)
    lengths = torch.tensor([ids.shape[1]])
    images = place(rows, [[p.tokens for p in pictures]], ids, lengths, tok.image_id)
    assert policy(ids, lengths, images=images).hidden.isfinite().all()
