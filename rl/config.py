"""The run's schema: closed dataclasses, one sentence per field. Imports neither torch nor ray.

`configs/` composes values for it (Hydra); `rl/plan.py` checks every number before anything starts.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RunConfig:
    """Where the run lives."""

    name: str = "default"
    """Folder under `root`; an existing one is refused unless `overwrite`."""
    root: str = "runs"
    overwrite: bool = False


@dataclass
class PolicyConfig:
    """Which weights the run starts from."""

    init: str = "warm"
    """warm (the committed start of the preset), scratch (random), or a folder with safetensors weights (`jointrl ckpt
    export` and `jointrl warmup` write them)."""


@dataclass
class QuantConfig:
    """Quantisation-aware training, the same in learner and engine."""

    expert_weights: str = "mxfp4"
    """Fake-quantisation of routed experts' weights: mxfp4 or none."""
    expert_activations: str = "mxfp8"
    """Fake-quantisation of the inputs of routed experts' GEMMs: mxfp8 (E4M3), mxfp8_e5m2 or none."""
    scale_rule: str = "even"
    """Shared-exponent rule: even (compressed-tensors) or floor (OCP)."""


@dataclass
class ModelConfig:
    """The policy's architecture."""

    kind: str = "k3"
    """k3 (our family, by preset) or hf (a Hugging Face causal language model folder)."""
    preset: str = "tiny"
    """Preset of the K3 family: tiny, tiny_odd, small, k3, k31_pro."""
    path: str | None = None
    """Folder of a Hugging Face model (kind=hf), or of a public checkpoint (kind=k3): its architecture instead of the
    preset's, and with policy.init=warm its weights."""
    vision: str = "none"
    """A vision tower for a preset that has none: none or tiny. Models whose config has one always have it."""
    quant: QuantConfig = field(default_factory=QuantConfig)


@dataclass
class EngineConfig:
    """The generation engines."""

    kind: str = "native"
    """native (K3 family) or vllm (Hugging Face models)."""
    replicas: int = 2
    """Engine actors; requests are spread over them."""
    threads: int = 1
    """CPU threads of each engine."""
    max_batch: int = 256
    """Sequences decoded at once by each engine; more wait."""
    max_context: int = 512
    """Longest sequence (prompt and output), in tokens."""
    record_routes: bool = True
    """Record the experts of every token, for router replay in the learner."""
    record_picks: bool = False
    """Record the keys that sparse attention (K3.1) selects for every token, for index replay in the learner: 2 x
    index_topk bytes for a token and a full-attention layer (4 x beyond a context of 65,535). Tokens at positions below
    index_topk attend to all keys; nothing is recorded for them."""
    prefix_cache_bytes: int = 256 << 20
    """Memory of each native engine for states kept at the ends of prompts and turns, from which siblings and next turns
    go on; the least recently used go first. 0: none are kept. (vLLM has a cache of its own.)"""
    deterministic: bool = False
    """Native, on a CPU: equal bits of tokens and log-probs whatever else is in the batch and however prompts were read
    or cached, at the price of prompts that are read token by token. Otherwise equal up to the order of summation."""
    draft_tokens: int = 0
    """Native: speculative decoding, with so many tokens at most for a step that the sequence itself or a sibling said
    after the same words; the policy's own distribution decides. 0: off."""
    carry_tokens: int = 8192
    """Native: a sequence's state at the end of a turn is carried out of its engine, into Ray's object store, when so
    many tokens would have to be read again without it; then it survives the engine, and another one goes on from it to
    the bit. 0: never."""
    readers: int = 0
    """Native: so many of the replicas only read prompts of `carry_tokens` and more, for the others to decode."""
    request_timeout_s: float = 120.0
    """A request that takes longer is an error naming the engine."""


@dataclass
class RolloutConfig:
    """Workers that run episodes."""

    workers: int = 2
    """Rollout worker actors."""
    episodes_per_worker: int = 512
    """Episodes that one worker runs at once; more groups wait."""
    engine_tokens: int = 0
    """Context (prompt and output, in tokens, as expected from what was seen of the environment at the effort) that
    groups in flight may need of one engine; more wait, the longest first. 0: engine.max_batch x engine.max_context."""
    group_timeout_s: float = 180.0
    """Deadline of one group from its dispatch; then it is re-dispatched once, then retired."""
    min_group: int = 2
    """Valid samples below which a group carries no signal and is retired as too small."""
    enough: int = 0
    """Graded samples with which a group of training is complete: the others are cut then, and counted as `stop/spare`.
    What is cut is what took longest, so lengths are biased towards short ones. 0: all."""


TINY = (
    "primer/*",
    "workshop/*",
    *(
        f"reasoning_gym/{name}"
        for name in (
            "chain_sum",
            "basic_arithmetic",
            "products",
            "gcd",
            "lcm",
            "fraction_simplification",
            "prime_factorization",
            "simple_equations",
            "number_sorting",
            "spell_backward",
            "letter_counting",
        )
    ),
)
"""What a tiny policy can learn, and was trained on: the environments with short prompts and answers."""


@dataclass
class EnvsConfig:
    """The mixture over environments."""

    names: list[str] = field(default_factory=lambda: [*TINY])
    """Catalogue ids or globs (`primer/*`), or import paths `package.module:Class`."""
    exclude: list[str] = field(default_factory=list)
    """Catalogue ids or globs left out."""
    levels: list[int] = field(default_factory=lambda: [1, 2])
    """Levels that training draws from (those that an environment has)."""
    weights: dict[str, float] = field(default_factory=lambda: {"workshop/*": 0.25})
    """Relative weight by id or glob (the last match counts), else 1. A sandbox episode costs about ten others."""
    adaptive: bool = True
    """Prefer what has something to teach, per environment, level and effort: weight contrast ** focus + floor, where
    contrast is 4 s(1-s) of a task's solve rate s, on average over recent tasks."""
    focus: float = 1.5
    """How sharply: 0 draws all alike."""
    floor: float = 0.05
    """Weight that keeps solved and unsolved environments in the mixture."""
    refuse_failing: bool = True
    """Do not start with an environment that fails `jointrl env check`. Your own are checked quickly where they were
    never checked as they stand; the tests guarantee those of the catalogue."""


@dataclass
class EffortLevel:
    """One effort's share and price."""

    enabled: bool = True
    share: float = 1.0
    """Relative share of groups."""
    lam: float = 0.0
    """Price of one base length b0 of output tokens, taken from right answers only, in reward units."""
    tau: float = 8.0
    """Budget as a multiple of the task's base length b0; longer counts as failed."""


@dataclass
class EffortConfig:
    """Effort-conditioned reward: outcome - lam x cost on right answers, and a budget override."""

    kind: str = "budget"
    """budget (price and override), price (price only), or none (outcome alone: the negative control)."""
    low: EffortLevel = field(default_factory=lambda: EffortLevel(lam=1.0, tau=3.0, share=1.5))
    medium: EffortLevel = field(default_factory=lambda: EffortLevel(enabled=False, lam=0.05, tau=4.0))
    high: EffortLevel = field(default_factory=lambda: EffortLevel(lam=0.02, tau=6.0))
    max: EffortLevel = field(default_factory=lambda: EffortLevel(lam=0.0, tau=12.0))
    warmup_steps: int = 0
    """Steps with neither price nor override. What a policy does at every effort in these steps it may keep."""
    ramp_steps: int = 0
    """Steps over which the price rises from 0 to lam; the override speaks when the ramp ends."""
    override_all_failed: bool = False
    """Whether the override speaks in groups without a success (length pressure there is known to collapse training)."""


@dataclass
class AlgorithmConfig:
    """The estimator and the loss."""

    advantage: str = "length_weighted"
    """length_weighted (default), grpo, dr_grpo, rloo, reinforce_pp."""
    loss: str = "two_sided"
    """two_sided (ratio mask with squared-log regulariser, default), ppo_clip, dapo, gspo, cispo."""
    group_size: int = 4
    """Samples of one task and effort."""
    groups_per_step: int = 192
    """Groups in one optimizer step."""
    max_staleness: int = 0
    """0 synchronous, 1 one step off, more: asynchronous, in weight versions."""
    temperature: float = 1.0
    """Sampling temperature of training rollouts; must be positive."""
    clip_low: float = 0.5
    """Two-sided mask: ratios below are masked; clip losses: 1 - clip range."""
    clip_high: float = 2.0
    """Two-sided mask: ratios above are masked; clip losses: 1 + clip range."""
    kl_tau: float = 0.01
    """Weight of the squared log-ratio to the behaviour policy."""
    correction: str = "none"
    """Off-policy correction: none, tis (truncated importance sampling), icepop, sequence_mask; always measured."""
    tis_cap: float = 2.0
    """Cap of the truncated importance weight."""
    dynamic_sampling: bool = True
    """Groups without a signal (all failed; all right at nearly the same price) are retired with their reason."""
    max_sampling_rounds: int = 1
    """Groups drawn for one step at most, in multiples of groups_per_step; more than 1 replaces retired ones, or, with
    max_staleness, draws as many more as are expected to be retired (steps then vary around groups_per_step)."""
    env_advantage_scale: bool = True
    """Divide advantages by the running RMS that those of raw outcomes have in the environment: no domain dominates."""
    effort_advantage_scale: bool = True
    """Multiply advantages per effort by what its prices took from their size, so that no effort is drowned."""


@dataclass
class LearnerConfig:
    """DeepSpeed learners."""

    ranks: int = 2
    expert_parallel: int = 2
    """Ranks that share the experts; must divide ranks and the number of experts."""
    zero_stage: int = 1
    optimizer: str = "tensorwise"
    """tensorwise (momentum over the mean squared gradient of each tensor), adamw or muon."""
    orthogonal: bool = True
    """Whether tensorwise takes all singular directions of a matrix's momentum alike (Newton-Schulz, as Muon does)."""
    lr: float = 7e-4
    lr_scale: dict[str, float] = field(default_factory=lambda: {"model.norm": 250.0})
    """Multiples of lr by part of a parameter's name; the first that matches counts. The gains before the head say how
    sure the policy is of all that it says; their gradient hardly differs from batch to batch, so they can take steps
    that would be noise elsewhere."""
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.99
    """Memory of the mean squares (adamw, tensorwise)."""
    warmup_steps: int = 2
    """Steps of linear learning-rate warm-up."""
    final_lr: float = 0.1
    """Share of lr left at the last step; in between it falls linearly. 1 keeps it constant."""
    clip_grad_norm: float = 1.0
    """Norm over expert and shared parameters together."""
    micro_tokens: int = 8192
    """Token positions that one micro-batch computes at most: a prompt that its rows share counts once."""
    chunk_tokens: int = 0
    """Rows of a micro-batch that is longer than this are computed so many tokens at a time, forwards and backwards:
    the same gradient in the activation memory of one chunk (`model.chunked`), for rows of any length. 0: whole rows."""
    train_vision: str = "projector"
    """What is trained of what sees images, if the model does: none, projector (the tower stays as it is) or all."""
    threads: int = 1
    router_replay: bool = True
    """Train with the experts that the engine chose."""
    index_replay: bool = False
    """Train with the keys that the engine's sparse attention (K3.1) chose; needs engine.record_picks."""
    index_loss: float = 0.0
    """Weight of the indexers' own loss on the selected keys (K3.1), a mean over all tokens of the batch. They learn
    from nothing else, and nothing else from it; it counts in clip_grad_norm. 0: indexers are frozen."""
    index_warmup_steps: int = 0
    """First steps that train the indexers alone, by their loss over all keys, with attention to all keys: for a model
    that was trained without them. Then the optimizer begins anew."""
    mtp_loss: float = 0.0
    """Weight of the multi-token-prediction layer's loss (of a model that has one): cross-entropy of the trained tokens,
    over their global number. It moves that layer alone. 0: the layer is frozen."""
    balance: bool = False
    """Update the router's selection bias by quantile balancing (off in RL while routes are replayed)."""
    max_step_kl: float = 0.1
    """Mean KL per token that one step made (`learner/step_kl`) above which an alert is written."""
    timeout_s: float = 300.0
    """Deadline of one learner call."""


@dataclass
class SandboxConfig:
    """Where multi-turn environments happen."""

    backend: str = "bwrap"
    """bwrap (local bubblewrap), sandboxd (another machine's), docker, podman, kubernetes, e2b, modal or daytona."""
    url: str | None = None
    """sandboxd: where `jointrl sandboxd` listens, as http://HOST:PORT or https://HOST:PORT."""
    token_file: str | None = None
    """sandboxd: file with its token, as `jointrl sandboxd --token-file` wrote it."""
    image: str | None = None
    """docker, podman, kubernetes, e2b (a template), modal, daytona: what sandboxes are made of; needs bash and tar."""
    max_live: int = 64
    """Sandboxes alive at once on one worker; more episodes wait."""
    lifetime_s: float = 600.0
    """Hard lifetime of one sandbox."""
    memory_mb: int = 512
    store: str | None = None
    """Folder of snapshots; inside the run folder by default. Runs may share one: each keeps its own episodes in it."""


@dataclass
class EvaluationConfig:
    """Held-out tasks, the same before and after; and the tasks that a run is calibrated on."""

    tasks: int = 1206
    """Tasks before and after, spread evenly over environments and efforts; each sampled at temperature 1 and greedy."""
    during_tasks: int = 201
    """Tasks of the evaluations in between (sampled only)."""
    every: int = 40
    """Steps between evaluations; 0: only before and after."""
    greedy: bool = True
    calibration_tasks: int = 804
    """Tasks of the train split, apart from those that are drawn, sampled once before training: base lengths b0 and the
    first solve rates come from them. Spread evenly over environments, levels and efforts."""


@dataclass
class WandbConfig:
    """The copy of the log in wandb."""

    mode: str = "offline"
    """offline, online or disabled."""
    project: str = "jointrl"


@dataclass
class LoggingConfig:
    """What the run writes."""

    wandb: WandbConfig = field(default_factory=WandbConfig)
    rollouts: bool = True
    """Write every trajectory to rollouts/: `jointrl traj` shows them."""
    checkpoint_every: int = 10
    keep_checkpoints: int = 2
    progress: bool = True
    """Progress bar on the terminal."""


@dataclass
class ControlsConfig:
    """What must not be trained on."""

    exclude_tags: list[str] = field(default_factory=list)
    """Environments and tasks with one of these tags are never trained on; the audit is `controls.json` of the run."""
    evaluate_excluded: int = 0
    """Held-out tasks of the environments that are left out for their tags, before and after training: what leaving them
    out does to what the policy can do there. Their metrics begin with `excluded/`."""


@dataclass
class ClusterConfig:
    """A cluster that the plan reckons with where the policy is beyond one GPU; a run starts on this machine's own."""

    gpus: int = 64
    """GPUs of the learner."""
    gpu_memory_gb: float = 141.0
    """Memory of one GPU (of learner and rollout) in GB; 141 is an H200's."""
    reserve_gb: float = 8.0
    """Kept free on each: CUDA, communication buffers, fragments."""
    expert_parallel: int = 64
    """GPUs that share the experts; must divide gpus and the number of experts."""
    zero_stage: int = 3
    """What is divided over the GPUs that hold the same: 1 optimizer states, 2 gradients too, 3 parameters too."""
    sequence: int = 131072
    """Longest sequence, in tokens, of training and rollout."""
    micro_batch: int = 1
    """Sequences that one learner GPU trains on at once."""
    chunk: int = 4096
    """Tokens of one chunk: training goes through all layers chunk by chunk."""
    recompute: bool = True
    """Keep the inputs of the sublayers alone and compute each layer again in the backward pass."""
    offload: bool = False
    """Keep the states and latents that chunks hand on in the host's memory."""
    weights: str = "bf16"
    """Dtype of weights and activations: bf16 (with float32 masters) or fp32."""
    gradients: str = "fp32"
    """Dtype in which gradients are summed: fp32 or bf16."""
    moments: str = "fp32"
    """Dtype of the optimizer's moments: fp32 or bf16."""
    rollout_gpus: int = 32
    """GPUs of one engine."""
    rollout_tensor_parallel: int = 8
    """GPUs of an engine that share heads and dense weights; each such group serves its part of the sequences."""
    rollout_batch: int = 32
    """Sequences that one engine holds at once, at full length."""
    rollout_weights: str = "mxfp4"
    """Routed experts in the engine: mxfp4 (packed) or bf16; everything else is bf16."""
    recurrent: str = "fp32"
    """KDA states in the engine: fp32 or bf16."""
    latent: str = "bf16"
    """Latents in the engine: bf16, fp8 or fp8_ds_mla (FlashMLA)."""
    index: str = "bf16"
    """Index keys in the engine: bf16 or fp8."""


@dataclass
class Config:
    """A whole run."""

    steps: int = 50
    """Optimizer steps."""
    seed: int = 0
    """Base seed: tasks, efforts and samples derive from it, never from a rank."""
    run: RunConfig = field(default_factory=RunConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    envs: EnvsConfig = field(default_factory=EnvsConfig)
    effort: EffortConfig = field(default_factory=EffortConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    controls: ControlsConfig = field(default_factory=ControlsConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
