"""The plan's questions about a Hugging Face folder: its tokenizer, its chat template, and whether vLLM serves it."""

from __future__ import annotations

from model.hf_folder import read_folder, read_tokenizer
from rl.checks import Check, Verdict, either
from rl.config import Config
from rl.policy_size import PolicySize
from rollout.engine import vllm_limits


def check_folder(config: Config, size: PolicySize, gpus: int) -> list[Check]:
    """Whether the folder of `model.path` can be trained here; empty for a policy of the K3 family."""
    if config.model.kind != "hf":
        return []
    path = str(config.model.path)
    out = [Check(Verdict.FAIL, "engine", text) for text in vllm_limits.check(read_folder(path), gpu=gpus > 0)]
    if not out:
        out.append(
            either(
                size.kind not in vllm_limits.SERVED,
                Verdict.WARN,
                "engine",
                f"vLLM was not measured on {size.kind} (it was on {', '.join(vllm_limits.SERVED)}): the start of the "
                "run compares its log-probs with the learners' and refuses it if they differ",
                f"vLLM computes {size.kind} as the learner does",
            )
        )
    try:
        largest = read_tokenizer(path)
    except (FileNotFoundError, ValueError) as error:
        return [*out, Check(Verdict.FAIL, "tokenizer", str(error))]
    out.append(
        either(
            largest >= size.vocab,
            Verdict.FAIL,
            "tokenizer",
            f"{path} has token id {largest}, but the model's vocabulary has {size.vocab}: they are of different models",
            f"ids up to {largest} of a vocabulary of {size.vocab}",
        )
    )
    return [*out, check_template(path)]


def check_template(path: str) -> Check:
    """Whether a conversation can be held through the folder's chat template, by holding one."""
    from model.hf_chat import HFChatTokenizer

    user = {"role": "user", "content": "a"}
    try:
        chat = HFChatTokenizer(path)
        chat.render_prompt([{"role": "system", "content": "s"}, user], effort="high")
    except Exception as error:  # a damaged tokenizer raises whatever its library does
        return Check(Verdict.FAIL, "chat template", f"{path}: {error}")
    refused = []
    for what, message in (("user", user), ("tool", {"role": "tool", "content": "b", "tool_call_id": "c", "name": "n"})):
        try:
            chat.render_tool_results([message])
        except ValueError as error:
            refused.append(f"no {what} message can follow an assistant's ({error})")
    return either(
        bool(refused),
        Verdict.WARN,
        "chat template",
        f"{'; '.join(refused)}: environments with such turns fail; leave them out (envs.exclude)",
        "conversations are continued by appending",
    )
