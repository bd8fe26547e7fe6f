"""What a public checkpoint of the K3 family holds: names, dtypes and shapes of every stored tensor, from the config.

As the released checkpoint has it (spec section 9): text weights under `language_model.`; convolutions, A_log, dt_bias,
o_norm and the selection bias in float32, all else in bfloat16; routed experts, and nothing else, as MXFP4 pairs
`weight_packed` [out, in/2] and `weight_scale` [out, in/32]. The formats bf16 and fp32 store the experts as `weight`.
"""

from __future__ import annotations

import re

import torch

from kernels.mx import BLOCK
from model.config import K3Config
from model.decoder import Policy
from model.shards import Spec, Unit, WeightsError

FORMATS = ("mxfp4", "bf16", "fp32")
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "U8": torch.uint8}
_EXPERT = re.compile(r"\.experts\.\d+\.w[123]\.weight$")
_FLOAT32 = (".A_log", ".dt_bias", ".o_norm.weight", "_conv1d.weight", ".e_score_correction_bias")
_TEXT = "language_model."
VISION = ("vision_tower.", "mm_projector.")
"""Public names that are not the language model's."""


def public_name(name: str) -> str:
    """The stored name of a weight that `Policy.named_weights` calls `name`."""
    return name if name.startswith(VISION) else _TEXT + name


def is_expert(name: str) -> bool:
    """Whether this is a routed expert's matrix, the only kind that is ever packed."""
    return _EXPERT.search(name) is not None


def keeps_float32(name: str) -> bool:
    """Whether the weight is stored in float32 by every format."""
    return name.endswith(_FLOAT32)


def layout(config: K3Config, fmt: str) -> dict[str, Unit]:
    """What stores each weight, by its name in `Policy.named_weights`; a packed expert is a pair. Builds on meta.

    Raises WeightsError for an unknown format, or experts that cannot be packed in blocks of 32.
    """
    if fmt not in FORMATS:
        raise WeightsError(f"format {fmt!r}: give one of {', '.join(FORMATS)}")
    with torch.device("meta"):
        policy = Policy(config)
    out: dict[str, Unit] = {}
    for name, weight in policy.named_weights():
        stored, shape = public_name(name), tuple(weight.shape)
        if fmt == "mxfp4" and is_expert(name):
            rows, columns = shape
            if columns % BLOCK:
                raise WeightsError(
                    f"{stored}: {columns} columns are no multiple of {BLOCK}, so it cannot be packed: use bf16"
                )
            pair = (f"{stored}_packed", columns // 2), (f"{stored}_scale", columns // BLOCK)
            out[name] = tuple(Spec(part, "U8", (rows, width)) for part, width in pair)
        else:
            float32 = fmt == "fp32" or keeps_float32(name)
            out[name] = (Spec(stored, "F32" if float32 else "BF16", shape),)
    return out
