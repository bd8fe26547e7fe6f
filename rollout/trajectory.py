"""What was sampled is what is trained: append-only nodes of token ids, never text that is tokenised again."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from environments.images import image_file, image_parts
from environments.task import Message, Task
from rewards.efforts import Effort
from rewards.grade import Grade
from rollout import picks as picked
from rollout import routes as routed

NO_ROUTE = routed.NO_ROUTE
"""Route of a token that no engine has run: one that was sampled last and never fed back."""


class StopReason(StrEnum):
    """Why an episode ended; every member is a metric `stop/<reason>`."""

    DONE = "done"
    """The environment said that the episode is over."""
    TOKENS = "tokens"
    """The output-token limit of the task was reached: truncated."""
    CONTEXT = "context"
    """The engine's context length was reached: truncated."""
    TURNS = "turns"
    """The turn limit was reached."""
    SECONDS = "seconds"
    """The wall-time limit was reached; graded on the state it left."""
    ABORTED = "aborted"
    """The run asked for it to stop; not graded, not trained."""
    SPARE = "spare"
    """Enough samples of its group were graded before it (`rollout.enough`): cut, not graded, not trained."""
    ERROR = "error"
    """Sandbox, engine or environment failed: the grade is masked."""

    @property
    def truncated(self) -> bool:
        """Whether the policy was cut off in the middle of its output."""
        return self in (StopReason.TOKENS, StopReason.CONTEXT)


@dataclass(frozen=True)
class Sampling:
    """How a turn was sampled; stored with the turn, and used again by every scorer.

    `temperature` 0 is greedy and allowed in evaluation only. Log-probs are of the distribution that was sampled from
    (after temperature), in float32.
    """

    temperature: float = 1.0
    max_tokens: int = 128
    seed: int = 0
    stop_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where an image stands among a node's tokens; its file is in the trajectory's conversation."""

    image: str
    """Content hash (`environments.images.image_hash`)."""
    at: int
    """Its first token, counted from the node's."""
    tokens: int


@dataclass(frozen=True, eq=False)
class Node:
    """The tokens that one message ADDS to the sequence.

    token_ids int32 [T]; logprobs float32 [T] (0 where not sampled); loss_mask uint8 [T] (1 = sampled by the policy);
    versions int32 [T] (weight version that sampled the token, -1 where not sampled);
    routes: None or uint16 [T, moe layers, top-k] expert ids (NO_ROUTE = not recorded);
    picks: None or [T, full layers, index_topk] keys that were attended to (`rollout.picks`): None where no token of the
    node has more than index_topk keys, or where they were not asked for.
    Raises ValueError if lengths differ: nothing is ever padded or cut to fit; and for images among sampled tokens.
    """

    role: str
    token_ids: np.ndarray
    logprobs: np.ndarray
    loss_mask: np.ndarray
    versions: np.ndarray
    sampling: Sampling | None = None
    snapshot: str | None = None
    """SnapshotId of the sandbox after this turn."""
    routes: np.ndarray | None = field(default_factory=lambda: None)
    picks: np.ndarray | None = field(default_factory=lambda: None)
    images: tuple[Place, ...] = ()
    """In order; their tokens are placeholders."""

    def __post_init__(self) -> None:
        n = len(self.token_ids)
        if self.images and self.loss_mask.any():
            raise ValueError(f"node of role {self.role}: the policy samples no images, this node has both")
        given = tuple(name for name in ("routes", "picks") if getattr(self, name) is not None)
        for name in ("logprobs", "loss_mask", "versions", *given):
            if len(getattr(self, name)) != n:
                raise ValueError(f"node of role {self.role}: {n} token ids but {len(getattr(self, name))} {name}")
        if not np.isfinite(self.logprobs).all():
            raise ValueError(f"node of role {self.role}: log-probs are not finite")

    def __getstate__(self) -> dict[str, Any]:
        """Records are packed where a node is pickled, and stay so where it arrives, in an object store and a buffer."""
        state = dict(self.__dict__)
        for name in _RECORDS:
            state.pop(name, None)
            record = self.record(name)
            if record is not None:
                state[f"_{name}"] = np.frombuffer(record, np.uint8)
        return state

    def record(self, name: str) -> bytes | memoryview | None:
        """routes or picks as their codec packs them; without unpacking anything in a node that was pickled."""
        packed = self.__dict__.get(f"_{name}")
        if packed is not None:
            return memoryview(packed)
        array = self.__dict__.get(name)
        return None if array is None else _RECORDS[name].pack(array)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __getattr__(self, name: str) -> Any:
        """routes and picks of a node that was pickled: unpacked whenever they are read, and read-only."""
        if name not in _RECORDS:
            raise AttributeError(name)
        packed = self.__dict__.get(f"_{name}")
        if packed is None:
            return None
        array = _RECORDS[name].unpack(packed)
        array.flags.writeable = False
        return array

    def __len__(self) -> int:
        return len(self.token_ids)

    @staticmethod
    def given(role: str, token_ids: list[int] | np.ndarray, images: tuple[Place, ...] = ()) -> Node:
        """A node that the policy did not sample (prompt, tool result): mask 0, version -1."""
        ids = np.asarray(token_ids, dtype=np.int32)
        n = len(ids)
        zeros = (np.zeros(n, np.float32), np.zeros(n, np.uint8), np.full(n, -1, np.int32))
        return Node(role, ids, *zeros, images=images)


_RECORDS: dict[str, Any] = {"routes": routed, "picks": picked}
"""The codecs of what is recorded beside a token."""


@dataclass(eq=False)
class Trajectory:
    """One episode: nodes are appended, never changed; a broken prefix starts a new segment (its first node's index)."""

    id: str
    """`<group>/<sample>`."""
    task: Task
    effort: Effort
    nodes: list[Node] = field(default_factory=list)
    segments: list[int] = field(default_factory=lambda: [0])
    conversation: list[Message] = field(default_factory=list)
    stop: StopReason = StopReason.ABORTED
    grade: Grade | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by kind: generate, environment, grade."""
    error: str | None = None

    def append(self, node: Node) -> None:
        """Add what one message adds."""
        self.nodes.append(node)

    @property
    def output_tokens(self) -> int:
        """Tokens that the policy sampled, over all turns; the cost that efforts are charged for."""
        return int(sum(int(n.loss_mask.sum()) for n in self.nodes))

    @property
    def turns(self) -> int:
        """Assistant messages."""
        return sum(1 for n in self.nodes if n.sampling is not None)

    def version_range(self) -> tuple[int, int]:
        """Oldest and newest weight version among the sampled tokens; (-1, -1) if none was sampled."""
        v = [n.versions[n.loss_mask.astype(bool)] for n in self.nodes if n.loss_mask.any()]
        return (int(min(x.min() for x in v)), int(max(x.max() for x in v))) if v else (-1, -1)

    def column(self, name: str) -> np.ndarray:
        """One column over all nodes, concatenated: token_ids, logprobs, loss_mask or versions; [T]."""
        return np.concatenate([getattr(n, name) for n in self.nodes]) if self.nodes else np.zeros(0)

    def image_files(self, begin: int = 0, end: int | None = None) -> tuple[bytes, ...]:
        """The files of the images of nodes begin..end, in the order of their places."""
        files = {part["image"]: part for part in image_parts(self.conversation)}
        return tuple(image_file(files[p.image]) for n in self.nodes[begin:end] for p in n.images)

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable row; arrays as lists. `from_json` restores it bit for bit."""
        nodes = []
        for n in self.nodes:
            s = n.sampling
            nodes.append(
                {
                    "role": n.role,
                    "token_ids": n.token_ids.tolist(),
                    "logprobs": [float(x) for x in n.logprobs],
                    "loss_mask": n.loss_mask.tolist(),
                    "versions": n.versions.tolist(),
                    "sampling": None
                    if s is None
                    else {
                        "temperature": s.temperature,
                        "max_tokens": s.max_tokens,
                        "seed": s.seed,
                        "stop_ids": list(s.stop_ids),
                    },
                    "snapshot": n.snapshot,
                    "routes": None if n.routes is None else b64encode(routed.pack(n.routes)).decode(),
                    "images": [[p.image, p.at, p.tokens] for p in n.images],
                    **({} if n.picks is None else {"picks": b64encode(picked.pack(n.picks)).decode()}),
                }
            )
        return {
            "id": self.id,
            "task": self.task.to_json(),
            "effort": str(self.effort),
            "nodes": nodes,
            "segments": list(self.segments),
            "conversation": self.conversation,
            "stop": str(self.stop),
            "grade": None if self.grade is None else self.grade.to_json(),
            "seconds": self.seconds,
            "error": self.error,
        }

    @staticmethod
    def from_json(row: dict[str, Any]) -> Trajectory:
        """Inverse of `to_json`."""
        nodes = []
        for n in row["nodes"]:
            s = n["sampling"]
            nodes.append(
                Node(
                    n["role"],
                    np.asarray(n["token_ids"], np.int32),
                    np.asarray(n["logprobs"], np.float32),
                    np.asarray(n["loss_mask"], np.uint8),
                    np.asarray(n["versions"], np.int32),
                    None if s is None else Sampling(s["temperature"], s["max_tokens"], s["seed"], tuple(s["stop_ids"])),
                    n["snapshot"],
                    None if n["routes"] is None else routed.unpack(b64decode(n["routes"])),
                    picked.unpack(b64decode(n["picks"])) if "picks" in n else None,
                    tuple(Place(*p) for p in n["images"]),
                )
            )
        return Trajectory(
            row["id"],
            Task.from_json(row["task"]),
            Effort(row["effort"]),
            nodes,
            list(row["segments"]),
            list(row["conversation"]),
            StopReason(row["stop"]),
            None if row["grade"] is None else Grade.from_json(row["grade"]),
            dict(row["seconds"]),
            row["error"],
        )


@dataclass(frozen=True)
class GroupOrder:
    """What the loop asks of the rollout: G episodes of one task at one effort.

    `seeds` [G] are derived from (base seed, task, effort, sample), never from a rank or a worker. An effort's budget is
    no part of it: it ramps in and is silent where all failed, while an episode cut at it would have failed for good.
    """

    id: str
    task: Task
    effort: Effort
    seeds: tuple[int, ...]
    temperature: float = 1.0
    purpose: str = "train"
    """train or eval; evaluation may be greedy and is never trained on."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable row: what the ledger needs to dispatch the order again."""
        return {
            "id": self.id,
            "task": self.task.to_json(),
            "effort": str(self.effort),
            "seeds": list(self.seeds),
            "temperature": self.temperature,
            "purpose": self.purpose,
        }

    @staticmethod
    def from_json(row: dict[str, Any]) -> GroupOrder:
        """Inverse of `to_json`."""
        return GroupOrder(
            row["id"],
            Task.from_json(row["task"]),
            Effort(row["effort"]),
            tuple(row["seeds"]),
            row["temperature"],
            row["purpose"],
        )


@dataclass(eq=False)
class Group:
    """G trajectories of the same task and the same effort, in the order of the order's seeds."""

    order: GroupOrder
    trajectories: list[Trajectory]
    worker: str = ""
    dispatches: int = 1

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable row with everything of the group."""
        return {
            "order": self.order.to_json(),
            "trajectories": [t.to_json() for t in self.trajectories],
            "worker": self.worker,
            "dispatches": self.dispatches,
        }

    @staticmethod
    def from_json(row: dict[str, Any]) -> Group:
        """Inverse of `to_json`."""
        trajectories = [Trajectory.from_json(t) for t in row["trajectories"]]
        return Group(GroupOrder.from_json(row["order"]), trajectories, row["worker"], row["dispatches"])
