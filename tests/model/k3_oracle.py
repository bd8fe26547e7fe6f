"""The K3 / K3.1 forward written a second time: one sequence, token after token, float64, straight from the equations.

It shares nothing with model/ but the config and the weights' public names, so that a silent error would have to be made
twice: 1-based layer lists, the A_log slice, g_proj by layer type, the state's axes, SiTU's caps, the router's input,
the norm after the expert sum, block sums, the shared query latent of the indexer, ties to the smaller index.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.config import K3Config


def _rms(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * w


def _first_best(scores: list[float], k: int) -> list[int]:
    """Indices of the k largest, best first, ties to the smaller index."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]


class Oracle:
    """Logits of one sequence from a dict of named weights (float64, no quantisation)."""

    def __init__(self, config: K3Config, weights: dict[str, Tensor]) -> None:
        self.c, self.w = config, {k: v.double() for k, v in weights.items()}
        self.routes: list[list[list[int]]] = []
        """[layer][token] -> experts, best first."""

    def logits(self, ids: list[int]) -> Tensor:
        """[T, V]."""
        c, w = self.c, self.w
        partial = w["model.embed_tokens.weight"][torch.tensor(ids)]
        blocks: list[Tensor] = []
        for i in range(c.num_hidden_layers):
            p = f"model.layers.{i}."
            x = self._mix([*blocks, partial], p + "self_attention_res")
            x = _rms(x, w[p + "input_layernorm.weight"], c.rms_norm_eps)
            full = i + 1 in c.linear_attn_config.full_attn_layers
            a = (self._full if full else self._kda)(p + "self_attn.", x)
            if i % c.attn_res_block_size == 0:
                blocks.append(partial)
                partial = a
            else:
                partial = partial + a
            x = self._mix([*blocks, partial], p + "mlp_res")
            x = _rms(x, w[p + "post_attention_layernorm.weight"], c.rms_norm_eps)
            if i < c.first_k_dense_replace:
                partial = partial + self._mlp(p + "mlp.", x)
            else:
                partial = partial + self._moe(p + "block_sparse_moe.", x)
        h = self._mix([*blocks, partial], "model.output_attn_res")
        return _rms(h, w["model.norm.weight"], c.rms_norm_eps) @ w["lm_head.weight"].T * c.logit_scale

    def _mix(self, sources: list[Tensor], name: str) -> Tensor:
        scores = []
        for v in sources:
            scores.append(
                _rms(v, self.w[name + "_norm.weight"], self.c.rms_norm_eps) @ self.w[name + "_proj.weight"][0]
            )
        p = torch.softmax(torch.stack(scores, -1), -1)
        return sum(p[:, i, None] * v for i, v in enumerate(sources))  # type: ignore[return-value]

    def _situ(self, g: Tensor, u: Tensor) -> Tensor:
        b, lb = self.c.activation_situ_beta, self.c.activation_situ_linear_beta
        return b * torch.tanh(g / b) * torch.sigmoid(g) * (u if lb is None else lb * torch.tanh(u / lb))

    def _mlp(self, p: str, x: Tensor) -> Tensor:
        w = self.w
        return self._situ(x @ w[p + "gate_proj.weight"].T, x @ w[p + "up_proj.weight"].T) @ w[p + "down_proj.weight"].T

    def _moe(self, p: str, x: Tensor) -> Tensor:
        c, w = self.c, self.w
        scores = torch.sigmoid(x @ w[p + "gate.weight"].T)
        biased = scores + w[p + "gate.e_score_correction_bias"]
        z = x @ w[p + "routed_expert_down_proj.weight"].T
        out, routes = [], []
        for t in range(len(x)):
            chosen = _first_best(biased[t].tolist(), c.num_experts_per_token)
            total = sum(scores[t, e] for e in chosen) if c.moe_renormalize else 1.0
            u = torch.zeros_like(z[0])
            for e in chosen:
                q = f"{p}experts.{e}."
                inner = self._situ(w[q + "w1.weight"] @ z[t], w[q + "w3.weight"] @ z[t])
                u = u + scores[t, e] / total * c.routed_scaling_factor * (w[q + "w2.weight"] @ inner)
            out.append(u)
            routes.append(chosen)
        self.routes.append(routes)
        u = _rms(torch.stack(out), w[p + "routed_expert_norm.weight"], c.rms_norm_eps)
        return u @ w[p + "routed_expert_up_proj.weight"].T + self._mlp(p + "shared_experts.", x)

    def _kda(self, p: str, x: Tensor) -> Tensor:
        c, w, la = self.c, self.w, self.c.linear_attn_config
        n, d = la.num_heads, la.head_dim

        def conv(name: str) -> Tensor:
            u, taps = x @ w[f"{p}{name}_proj.weight"].T, w[f"{p}{name}_conv1d.weight"]
            rows = []
            for t in range(len(u)):
                y = sum(taps[:, 0, j] * u[t - 3 + j] for j in range(4) if t - 3 + j >= 0)
                rows.append(y * torch.sigmoid(y))  # type: ignore[arg-type, operator]
            return torch.stack(rows).view(-1, n, d)

        q, k, v = conv("q"), conv("k"), conv("v")
        q = q / (q.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() * d**-0.5
        k = k / (k.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()
        beta = torch.sigmoid(x @ w[p + "b_proj.weight"].T)
        gate = (x @ w[p + "f_a_proj.weight"].T) @ w[p + "f_b_proj.weight"].T + w[p + "dt_bias"]
        rate = w[p + "A_log"][:n].exp()
        alpha = torch.exp(la.gate_lower_bound * torch.sigmoid(rate[:, None] * gate.view(-1, n, d)))
        outs = []
        state = [torch.zeros(d, d, dtype=torch.float64) for _ in range(n)]
        for t in range(len(x)):
            heads = []
            for h in range(n):
                kk, b = k[t, h], beta[t, h]
                erase = torch.eye(d, dtype=torch.float64) - b * torch.outer(kk, kk)
                state[h] = erase @ torch.diag(alpha[t, h]) @ state[h] + b * torch.outer(kk, v[t, h])
                heads.append(_rms(state[h].T @ q[t, h], w[p + "o_norm.weight"], c.rms_norm_eps))
            outs.append(torch.cat(heads))
        y = torch.sigmoid(x @ w[p + "g_proj.weight"].T) * torch.stack(outs)
        return y @ w[p + "o_proj.weight"].T

    def _full(self, p: str, x: Tensor) -> Tensor:
        c, w = self.c, self.w
        nh, nope, pe, vd, r = (
            c.num_attention_heads,
            c.qk_nope_head_dim,
            c.qk_rope_head_dim,
            c.v_head_dim,
            c.kv_lora_rank,
        )
        cq = _rms(x @ w[p + "q_a_proj.weight"].T, w[p + "q_a_layernorm.weight"], c.rms_norm_eps)
        q = (cq @ w[p + "q_b_proj.weight"].T).view(-1, nh, nope + pe)
        kva = x @ w[p + "kv_a_proj_with_mqa.weight"].T
        kv = _rms(kva[:, :r], w[p + "kv_a_layernorm.weight"], c.rms_norm_eps) @ w[p + "kv_b_proj.weight"].T
        kv, k_pe = kv.view(-1, nh, nope + vd), kva[:, r:]
        outs = []
        for t in range(len(x)):
            seen = list(range(t + 1))
            if c.index_topk is not None:
                seen = _first_best(self._index_scores(p + "indexer.", x, cq, t), c.index_topk)
            heads = []
            for h in range(nh):
                s = torch.stack([q[t, h, :nope] @ kv[i, h, :nope] + q[t, h, nope:] @ k_pe[i] for i in seen])
                prob = torch.softmax(s * (nope + pe) ** -0.5, 0)
                heads.append(sum(prob[j] * kv[i, h, nope:] for j, i in enumerate(seen)))
            outs.append(torch.cat(heads))  # type: ignore[arg-type]
        y = torch.sigmoid(x @ w[p + "g_proj.weight"].T) * torch.stack(outs)
        return y @ w[p + "o_proj.weight"].T

    def _index_scores(self, p: str, x: Tensor, cq: Tensor, t: int) -> list[float]:
        c, w = self.c, self.w
        k = torch.nn.functional.layer_norm(
            x[: t + 1] @ w[p + "wk.weight"].T, (c.index_head_dim,), w[p + "k_norm.weight"], w[p + "k_norm.bias"], 1e-6
        )
        q = (w[p + "wq_b.weight"] @ cq[t]).view(c.index_n_heads, c.index_head_dim)
        weight = (w[p + "weights_proj.weight"] @ x[t]) * c.index_n_heads**-0.5
        return [float((weight * torch.relu(q @ k[s] * c.index_head_dim**-0.5)).sum()) for s in range(t + 1)]


def randomised(policy, seed: int = 0):  # type: ignore[no-untyped-def]
    """The policy with every weight drawn at a useful size (queries, gates, norms, biases too): all of it matters."""
    g = torch.Generator().manual_seed(seed)
    new = {}
    for name, w in policy.named_weights():
        noise = torch.randn(w.shape, generator=g, dtype=torch.float32).to(w.dtype)
        if name.endswith("norm.weight"):
            new[name] = 1 + 0.3 * noise
        elif w.dim() == 1:
            new[name] = 0.3 * noise - (2.0 if name.endswith("dt_bias") else 0.0)
        elif "res_proj" in name or "embed" in name or "conv1d" in name:
            new[name] = 0.5 * noise
        else:
            new[name] = noise * (2.0 / w.shape[-1]) ** 0.5
    policy.load_named_weights(new)
    return policy
