"""The log says what a run is made of."""

from environments.catalogue import resolve
from rl.config import Config
from rl.describe import describe


def test_one_line_and_every_fact_behind_it() -> None:
    config = Config()
    environments = [resolve(id) for id in ("primer/addition", "workshop/fix")]
    ranks = [{"rank": r, "experts": [4 * r, 4 * r + 4]} for r in range(2)]
    said = describe(config, ranks, environments)
    assert said["message"] == (
        "2 learners (experts 0-3, 4-7), 2 engines, 2 workers; 2 environments, 1 of them in sandboxes, "
        "at low, high, max; mxfp4 expert weights and mxfp8 expert activations"
    )
    assert said["learners"] == ranks and said["sandboxed"] == ["workshop/fix"]
    assert said["efforts"] == ["low", "high", "max"]
    config.effort.max.enabled = False
    config.model.quant.expert_weights = config.model.quant.expert_activations = "none"
    said = describe(config, [{"rank": 0, "experts": None}], environments[:1])
    assert said["message"].startswith("1 learner, 2 engines, ") and said["message"].endswith(
        "at low, high; no quantisation"
    )
