"""Comparison of all policies on the samples of a plan, with its progress."""

import contextlib
from collections.abc import Callable

from jaxload.balance.scenario import Scenario, can_lockstep
from jaxload.balance.simulation import POLICIES, make_schedule, simulate_policy
from jaxload.console import Console, count_up, phase
from jaxload.planning.plan import Plan

_NUM_STEPS = 100


def searching_deal(
    console: Console,
) -> contextlib.AbstractContextManager[Callable[..., None]]:
    """Shows the attempts of a search for a deal."""
    return count_up(console, "searching for a deal", "attempts")


def predicted_idle(
    scenario: Scenario, plan: Plan, console: Console
) -> dict[str, float]:
    """Returns the idle share of each policy over some simulated steps."""
    policies = [p for p in POLICIES if p != "lockstep" or can_lockstep(scenario)]
    if plan.config.policy == "mixed":
        mixed = plan.schedule(scenario.seed)  # Dealing again would take long.
    else:
        with searching_deal(console) as advance:
            mixed = make_schedule("mixed", scenario, advance)
    shares = {}
    with phase(console, "comparing policies", _NUM_STEPS * len(policies)) as advance:
        for policy in policies:
            result = simulate_policy(
                policy,
                scenario,
                num_steps=_NUM_STEPS,
                schedule=mixed if policy == "mixed" else None,
                on_step=advance,
            )
            shares[policy] = result.imbalance.idle_share
    return shares
