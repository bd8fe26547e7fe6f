"""`jointrl ckpt`: a run's masters become a public checkpoint, whatever ranks saved them; a run starts from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kernels.mx import fake_quantise_mxfp4
from model.checkpoint import Checkpoint, export, verify
from model.config import K3Config
from model.decoder import Policy
from model.stored import is_expert, keeps_float32
from rl import checkpoint, cli, compose
from rl.config import Config
from rl.errors import UserError
from rl.learner import initial
from rl.learner.masters import Masters
from rl.policy_size import policy_size

TINY = K3Config.preset("tiny")


@pytest.fixture(scope="module")
def policy() -> Policy:
    out = Policy(TINY)
    out.reset_parameters(11)
    return out


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


STACKS = (".experts.w1", ".experts.w2", ".experts.w3")


def a_run(
    policy: Any, name: str, spread: bool = False, config: Config | None = None, stacks: tuple[str, ...] = STACKS
) -> Path:
    """A run's folder with one checkpoint as `rl.learner.state` writes it: one rank, or experts spread over two."""
    run = Path("runs") / name
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(compose.dump(config or Config()))

    def write(folder: Path) -> None:
        ranks: list[dict[str, torch.Tensor]] = [{}, {}]
        for name, t in policy.state_dict().items():
            if spread and name.endswith(stacks):
                ranks[0][f"weight/{name}@0:4"], ranks[1][f"weight/{name}@4:8"] = t[:4].clone(), t[4:].clone()
            else:
                ranks[0][f"weight/{name}"] = t.clone()
            ranks[0][f"exp_avg/{name}"] = torch.ones(3)
        for rank, tensors in enumerate(ranks[: 1 + spread]):
            save_file(tensors, folder / f"learner_{rank:05d}.safetensors")

    checkpoint.save(run / "checkpoints", 7, write, {})
    return run


def stored(policy: Policy, fmt: str, rule: str = "even") -> dict[str, torch.Tensor]:
    """What a checkpoint of this policy must give back."""
    exact = {n: w for n, w in policy.named_weights()}
    if fmt == "fp32":
        return exact
    rounded = {n: w if keeps_float32(n) else w.bfloat16().float() for n, w in exact.items()}
    packed = {n: fake_quantise_mxfp4(w, rule) for n, w in exact.items() if is_expert(n)}
    return rounded | (packed if fmt == "mxfp4" else {})


def same(folder: Path, want: dict[str, torch.Tensor]) -> bool:
    read = Checkpoint(folder).read
    return all(torch.equal(read(name), w) for name, w in want.items())


@pytest.mark.parametrize("spread", [False, True])
def test_a_runs_masters_are_found_whatever_ranks_saved_them(policy: Policy, here: Path, spread: bool) -> None:
    folder = a_run(policy, "r", spread) / "checkpoints" / "step_000007"
    masters = Masters(folder)
    for name, w in policy.named_weights():
        assert torch.equal(masters.read(name), w), name
    for name in ("model.layers.1.block_sparse_moe.experts.8.w1.weight", "model.nothing"):
        with pytest.raises(ValueError, match=f"has no weight {name}"):
            masters.read(name)


def test_runs_checkpoints_starts_and_folders_are_exported(
    policy: Policy, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config()
    config.model.quant.scale_rule = "floor"
    run = a_run(policy, "mine", spread=True, config=config)
    assert cli.main(["ckpt", "export", "mine", "packed", "--shard-size", "200KB"]) == 0
    assert "308,152 parameters as mxfp4" in capsys.readouterr().out
    assert same(Path("packed"), stored(policy, "mxfp4", "floor")) and verify(Path("packed")).shards > 2
    assert cli.main(["ckpt", "export", str(run / "checkpoints" / "step_000007"), "exact", "--format", "fp32"]) == 0
    assert same(Path("exact"), stored(policy, "fp32"))
    assert cli.main(["ckpt", "export", "exact", "half", "--format", "bf16"]) == 0
    assert same(Path("half"), stored(policy, "bf16"))
    save_file({n: w.clone() for n, w in policy.named_weights()}, "start.safetensors")
    assert cli.main(["ckpt", "export", "start.safetensors", "a", "--preset", "tiny"]) == 0
    Path("start.json").write_text(json.dumps({"preset": "tiny"}))
    assert cli.main(["ckpt", "export", "start.safetensors", "b"]) == 0
    assert same(Path("a"), stored(policy, "mxfp4")) and same(Path("b"), stored(policy, "mxfp4"))
    assert cli.main(["ckpt", "verify", "b"]) == 0
    assert cli.main(["ckpt", "reshard", "b", "c", "--shards", "3"]) == 0
    assert verify(Path("c")).shards == 3 and same(Path("c"), stored(policy, "mxfp4"))


def test_a_rounding_that_training_never_saw_is_said(
    policy: Policy, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config()
    config.model.quant.expert_weights = "none"
    a_run(policy, "exact", config=config)
    a_run(policy, "even")
    for words in (["exact", "a"], ["even", "b", "--scale-rule", "floor"]):
        assert cli.main(["ckpt", "export", *words]) == 0
        assert "note: training rounded experts" in capsys.readouterr().out
    for words in (["exact", "c", "--format", "bf16"], ["even", "d"]):
        assert cli.main(["ckpt", "export", *words]) == 0
        assert "note" not in capsys.readouterr().out


def test_a_run_starts_from_an_exported_folder(policy: Policy, here: Path) -> None:
    export(TINY, dict(policy.named_weights()).__getitem__, Path("public"), shard_bytes=200_000)
    for config in (Config(), Config()):
        config.policy.init = "public"
        assert len(initial.start_files(config)) == verify(Path("public")).shards
    by_path = Config()  # the folder is the architecture too, and its weights are the warm start
    by_path.model.path, by_path.model.preset = "public", "small"
    assert initial.public_folder(by_path) == Path("public") and initial.start_files(by_path)
    assert policy_size(by_path.model).parameters == TINY.param_count()
    for c in (config, by_path):
        mine = Policy(TINY)
        initial.load(c, mine)
        assert all(torch.equal(w, stored(policy, "mxfp4")[n]) for n, w in mine.named_weights())


def test_a_rank_loads_the_experts_that_it_holds(policy: Policy, here: Path) -> None:
    from rl.learner import weights
    from rl.learner.experts import spread_experts

    export(TINY, dict(policy.named_weights()).__getitem__, Path("public"), "fp32")
    config = Config()
    config.policy.init = "public"
    for rank in (0, 1):
        mine = Policy(TINY)
        mine.reset_parameters(rank)
        spread_experts(mine, 2, rank)
        initial.load(config, mine)
        own = dict(weights.owned_weights(mine))
        want = dict(policy.named_weights())
        assert all(torch.equal(w, want[n]) for n, w in own.items())
        held = {int(n.split(".experts.")[1].split(".")[0]) for n in own if is_expert(n)}
        assert held == set(range(4 * rank, 4 * rank + 4))


def test_a_start_that_was_altered_since_it_was_written_is_refused_before_any_process(
    policy: Policy, here: Path
) -> None:
    export(TINY, dict(policy.named_weights()).__getitem__, Path("public"))
    by_init, by_path = Config(), Config()
    by_init.policy.init = by_path.model.path = "public"
    for config in (by_init, by_path):
        initial.check_start(config)
    initial.check_start(Config())  # the committed start is one file
    file = next(Path("public").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    for config in (by_init, by_path):
        initial.start_files(config)  # its structure is whole
        with pytest.raises(UserError, match=r"start of this run: public/.*does not have the SHA-256"):
            initial.check_start(config)
    by_path.policy.init = "scratch"  # its architecture alone is read
    initial.check_start(by_path)
    (Path("public") / "manifest.json").unlink()
    initial.check_start(by_init)


def test_a_start_of_another_architecture_or_a_torn_one_is_refused_by_the_plan(policy: Policy, here: Path) -> None:
    export(TINY, dict(policy.named_weights()).__getitem__, Path("public"))
    config = Config()
    config.policy.init, config.model.preset = "public", "small"
    with pytest.raises(UserError, match=r"another architecture.*hidden_size=64 \(not 512\).*model\.path=public"):
        initial.start_files(config)
    config.model.preset = "tiny"
    file = next(Path("public").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match="truncated"):
        initial.start_files(config)
    config.policy.init, config.model.path = "warm", "nothing"
    with pytest.raises(UserError, match="nothing does not exist"):
        initial.start_files(config)


@pytest.mark.parametrize("spread", [False, True])
def test_a_hugging_face_run_is_exported_as_its_own_folder(here: Path, spread: bool) -> None:
    from transformers import AutoModelForCausalLM

    from model.hf import HFPolicy
    from model.hf_tiny import make_tiny_qwen3

    start = make_tiny_qwen3(here / "start", experts=8)
    config = Config()
    config.model.kind, config.model.path = "hf", str(start)
    policy = HFPolicy.load(start)
    with torch.no_grad():
        for p in policy.parameters():
            p.mul_(1.1)
    stacks = (".experts.gate_up_proj", ".experts.down_proj")
    a_run(policy, "foreign", spread, config, stacks)
    for words, tolerance in (((), 0.0), (("--format", "bf16"), 0.1)):
        out = here / f"out{len(words)}"
        assert cli.main(["ckpt", "export", "runs/foreign", str(out), "--shard-size", "200KB", *words]) == 0
        model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
        assert len(list(out.glob("*.safetensors"))) > 1 and not (out / "start.json").exists()
        ids = torch.arange(30)[None]
        with torch.no_grad():
            got, want = model(ids).logits, policy.model(ids).logits
        assert float((got - want).abs().max()) <= tolerance
    assert cli.main(["ckpt", "export", "runs/foreign", "out9", "--format", "mxfp4"]) == 2


def test_mistakes_exit_2_with_one_sentence(policy: Policy, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(policy, "mine")
    config = Config()
    config.model.kind, config.model.path = "hf", "gone"
    a_run(policy, "foreign", config=config)
    (Path("runs") / "new").mkdir()
    (Path("runs") / "new" / "config.yaml").write_text(compose.dump(Config()))
    save_file({"x": torch.ones(2)}, "odd.safetensors")
    save_file({"lm_head.weight": torch.ones(512, 64)}, "few.safetensors")
    Path("torn.safetensors").write_bytes(b"abc")
    Path("folder").mkdir()
    for words, meant in (
        (["export", "mein", "out"], "did you mean mine?"),
        (["export", "foreign", "out"], "gone is not a Hugging Face model folder"),
        (["export", "new", "out"], "has no whole checkpoint"),
        (["export", "mine", "folder"], "folder exists: give another folder"),
        (["export", "mine", "out", "--shard-size", "1KB"], "shard size 1000"),
        (["export", "mine", "out", "--shard-size", "huge"], "shard size 'huge'"),
        (["export", "odd.safetensors", "out"], "give --preset NAME"),
        (["export", "odd.safetensors", "out", "--preset", "tiny"], "holds x, which preset tiny does not have"),
        (["export", "few.safetensors", "out", "--preset", "tiny"], "does not hold preset tiny"),
        (["export", "mine", "out", "--preset", "tiny"], "mine says itself what it is: leave --preset out"),
        (["export", "mine", "out", "--format", "bf16", "--scale-rule", "even"], "--scale-rule is of MXFP4"),
        (["export", "foreign", "out", "--scale-rule", "even"], "--scale-rule is of MXFP4"),
        (["export", "odd.safetensors", "out", "--preset", "tinny"], "unknown model preset 'tinny'"),
        (["export", "torn.safetensors", "out", "--preset", "tiny"], "not a whole safetensors file"),
        (["verify", "folder"], "no safetensors file"),
        (["verify", "nothing"], "does not exist"),
        (["reshard", "folder", "out", "--shards", "2"], "no safetensors file"),
    ):
        assert cli.main(["ckpt", *words]) == 2, words
        message = capsys.readouterr().err
        assert message.startswith("jointrl: ") and meant in message and "Traceback" not in message, message
        assert not Path("out").exists()
    save_file({n: w.clone() for n, w in policy.named_weights()}, "start.safetensors")
    for log in ("{", "[]", "{}", '{"other": 1}'):
        Path("start.json").write_text(log)
        assert cli.main(["ckpt", "export", "start.safetensors", "out"]) == 2
        assert "start.json does not name a preset" in capsys.readouterr().err
    learner = next(run.glob("checkpoints/*/learner_00000.safetensors"))
    learner.write_bytes(learner.read_bytes()[:-1])
    assert cli.main(["ckpt", "export", str(learner.parent), "out"]) == 2
    assert "learner_00000.safetensors has" in capsys.readouterr().err


def test_what_the_system_refuses_is_one_sentence(
    policy: Policy, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file({n: w.clone() for n, w in policy.named_weights()}, "start.safetensors")
    words = ["ckpt", "export", "start.safetensors", "--preset", "tiny"]
    assert cli.main([*words, "start.safetensors/out"]) == 2
    assert "a file stands where a folder is needed" in capsys.readouterr().err
    assert cli.main([*words, "n" * 300]) == 2
    assert "file name too long; give a shorter name" in capsys.readouterr().err
    assert cli.main([*words, "out"]) == 0
    for kind in (PermissionError(13, "Permission denied", "out/x"), OSError(28, "No space left on device", "out/x")):

        def refuse(*_: object, kind: OSError = kind) -> None:
            raise kind

        with monkeypatch.context() as patch:
            patch.setattr("model.shards.read_header", refuse)
            assert cli.main(["ckpt", "verify", "out"]) == 2
            said = capsys.readouterr().err
            assert said.startswith("jointrl: out/x: ") and "; " in said
            config = Config()
            config.policy.init = "out"
            with pytest.raises(UserError, match="out/x: "):
                initial.start_files(config)
    shard = next(Path("out").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\1")
    assert cli.main(["ckpt", "export", "out", "again"]) == 2, "a new manifest must not bless what was altered"
    assert "does not have the SHA-256" in capsys.readouterr().err and not Path("again").exists()
    Path("out/config.json").unlink()
    assert cli.main(["ckpt", "export", "out", "again"]) == 2
    assert "config.json is missing" in capsys.readouterr().err
    assert cli.main([*words, "n\udcff"]) == 0, "a name that is no text is printed as well as can be"


@pytest.mark.parametrize("manifest", ["[]", "{}", '{"format": 2}', '{"format": 2, "files": {"a": 1}}', "{"])
def test_a_manifest_of_a_training_checkpoint_that_is_none(policy: Policy, here: Path, manifest: str) -> None:
    folder = a_run(policy, "mine") / "checkpoints" / "step_000007"
    (folder / "manifest.json").write_text(manifest)
    with pytest.raises(checkpoint.CheckpointError, match=r"manifest\.json is not readable"):
        checkpoint.verify(folder)
    folder.rename(folder.with_name("step_old"))
    assert checkpoint.latest(folder.parent) == (None, [])
