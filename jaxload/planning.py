"""From a config and a manifest to a plan."""

from jaxload.balance.cost import CostModel, analytic_cost
from jaxload.balance.plan import Plan, make_plan
from jaxload.config import Config
from jaxload.data.manifest import Manifest
from jaxload.errors import InputError


def plan_run(config: Config, manifest: Manifest, *, num_replicas: int) -> Plan:
    """Plans a run on a data set."""
    counts = {shape: len(rows) for shape, rows in manifest.rows_by_shape().items()}
    return make_plan(
        counts,
        config=config.balance,
        cost_model=model_cost(config),
        num_replicas=num_replicas,
        dataset=manifest.digest(),
    )


def model_cost(config: Config) -> CostModel:
    """The analytic cost of the config's model."""
    return analytic_cost(
        width=config.model.width,
        depth=config.model.depth,
        mlp_width=config.model.mlp_width,
        num_text_tokens=config.model.num_text_tokens,
    )


def check_plan(plan: Plan, manifest: Manifest, *, num_replicas: int) -> None:
    """Refuses a plan that was made for another data set or another machine."""
    if plan.num_replicas != num_replicas:
        raise InputError(
            f"the run was planned for {plan.num_replicas} replicas, and there are "
            f"{num_replicas} devices; resume on as many, or train in another --workdir"
        )
    if plan.dataset != manifest.digest():
        raise InputError(
            f"data set {manifest.directory}: the run was planned for another "
            f"({plan.dataset}, this one is {manifest.digest()}); restore the first, or "
            "train in another --workdir"
        )
