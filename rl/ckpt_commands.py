"""`jointrl ckpt export | verify | reshard`: a run's weights as a public checkpoint, and what can be done with one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from model.checkpoint import Checkpoint, Summary, export, parse_size, reshard, verify
from model.checkpoint_config import CONFIG, architecture
from model.config import K3Config
from model.shards import INDEX, WeightsError, check_manifest
from model.stored import layout
from rl import checkpoint, compose, launch
from rl.errors import UserError, cannot
from rl.learner.masters import Masters

T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """Weights and what is known of them."""

    text: str
    config: K3Config
    read: Callable[[str], Any]
    """A weight by the name that `Policy.named_weights` has for it."""
    rule: str = "even"
    """The scale rule that experts were trained with."""
    trained_as: str = ""
    """mxfp4 or none; empty where it is not known."""


@dataclass(frozen=True)
class Foreign:
    """A training checkpoint of a Hugging Face model, and the folder that its run started from."""

    folder: Path
    start: str


def export_weights(args: argparse.Namespace) -> int:
    """Write a public checkpoint of a run, a checkpoint, a start or another public checkpoint."""
    source = _said(lambda: find_source(args.source, args.preset))
    out = Path(args.out)
    args.format = args.format or ("fp32" if isinstance(source, Foreign) else "mxfp4")
    if args.scale_rule and args.format != "mxfp4":
        raise UserError(f"--scale-rule is of MXFP4, {args.format} has none: leave it out, or set --format mxfp4")
    if isinstance(source, Foreign):
        return _export_foreign(source, out, args)
    rule = args.scale_rule or source.rule
    if args.format == "mxfp4" and (source.trained_as == "none" or (source.trained_as and rule != source.rule)):
        print(f"note: training rounded experts by {source.trained_as}, {source.rule}: MXFP4, {rule} is new to them")
    _said(lambda: export(source.config, source.read, out, args.format, rule, parse_size(args.shard_size)))
    print(f"{source.text} -> {out}: {_describe(_said(lambda: Checkpoint(out)).summary(True))}")
    return 0


def _export_foreign(source: Foreign, out: Path, args: argparse.Namespace) -> int:
    from model.hf_export import Weights, export, summary

    masters = Masters(source.folder)
    # `HFPolicy` holds the transformers model as `model`.
    weights = Weights(lambda name: masters.read(f"model.{name}"), lambda stack, e: masters.expert(f"model.{stack}", e))
    size = parse_size(args.shard_size)
    _said(lambda: export(source.start, weights, out, args.format, size))
    print(f"{source.folder} -> {out}: {summary(out)}, {args.format}")
    return 0


def verify_folder(args: argparse.Namespace) -> int:
    """Read everything in a public checkpoint; print what it is."""
    found = _said(lambda: verify(Path(args.folder)))
    print(f"{args.folder} is whole: {_describe(found)}")
    if found.unread:
        print(f"note: {len(found.unread)} tensors of a vision tower, which no policy here reads")
    if not found.hashed:
        print("note: there is no manifest.json, so the bytes were compared with nothing")
    return 0


def reshard_folder(args: argparse.Namespace) -> int:
    """Copy a public checkpoint into another number of shards."""
    folder, out = Path(args.folder), Path(args.out)
    left_out = _said(lambda: reshard(folder, out, args.shards))
    print(f"{folder} -> {out}: {_describe(_said(lambda: Checkpoint(out)).summary(True))}")
    if left_out:
        print(f"note: not copied, as they are no files: {', '.join(left_out)}")
    return 0


def find_source(name: str, preset: str | None) -> Source | Foreign:
    """What a name stands for: a safetensors file, a public checkpoint, a training checkpoint or a run.

    preset: the architecture of a file. Raises UserError, WeightsError or rl.checkpoint.CheckpointError saying what is
    not there, not as its manifest says, or not to be combined.
    """
    path = Path(name)
    if path.is_file():
        return _start(path, preset)
    if preset is not None:
        raise UserError(f"--preset is of a .safetensors file, {name} says itself what it is: leave --preset out")
    if (path / CONFIG).is_file() or (path / INDEX).is_file():
        found = Checkpoint(path)
        check_manifest(path)  # what is written of it is hashed anew: never what was altered
        return Source(str(path), found.config, found.read)
    if (path / checkpoint.MANIFEST).is_file():
        checkpoint.verify(path)
        return _saved(path, path.resolve().parent.parent)
    run = launch.find(name)
    folder, skipped = checkpoint.latest(run / "checkpoints")
    for reason in skipped:
        print(f"note: skipped {reason}")
    if folder is None:
        raise UserError(f"{run} has no whole checkpoint: let it run longer, or lower logging.checkpoint_every")
    return _saved(folder, run)


def _saved(folder: Path, run: Path) -> Source | Foreign:
    """A checkpoint folder of a run."""
    config = compose.load(run / "config.yaml")
    if config.model.kind == "hf":
        return Foreign(folder, str(config.model.path))
    quant = config.model.quant
    ours = architecture(config.model.preset, config.model.path, config.model.vision)
    return Source(str(folder), ours, Masters(folder).read, quant.scale_rule, quant.expert_weights)


def _start(file: Path, preset: str | None) -> Source:
    """One safetensors file, as `jointrl warmup` writes it beside a log that names its preset."""
    from safetensors import SafetensorError, safe_open

    log = file.with_suffix(".json")
    if preset is None:
        if not log.is_file():
            raise UserError(f"{file} does not say what it is and there is no {log.name} beside it: give --preset NAME")
        try:
            preset = str(json.loads(log.read_text())["preset"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{log} does not name a preset ({error!r}): give --preset NAME") from None
    try:
        stored = safe_open(file, framework="pt")
    except SafetensorError as error:
        raise UserError(f"{file} is not a whole safetensors file ({error}): copy it again") from None

    config = architecture(preset)
    if foreign := sorted(set(stored.keys()) - set(layout(config, "bf16"))):
        raise UserError(f"{file} holds {foreign[0]}, which preset {preset} does not have: give another --preset")

    def read(weight: str) -> Any:
        try:
            return stored.get_tensor(weight)
        except SafetensorError as error:
            raise UserError(f"{file} does not hold preset {preset}: {error}; give another --preset") from None

    return Source(str(file), config, read)


def _describe(found: Summary) -> str:
    return (
        f"{found.parameters:,} parameters as {found.format}, {found.tensors:,} tensors in {found.shards} shard(s), "
        f"{found.bytes / 1e6:,.1f} MB"
    )


def _said(work: Callable[[], T]) -> T:
    """What work gives; what it says is wrong, for the person at the terminal."""
    try:
        return work()
    except (WeightsError, checkpoint.CheckpointError, ValueError) as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(cannot(error)) from None
