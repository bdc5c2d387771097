"""Deals an epoch over replicas and steps so that a step's replicas finish together.

A replica-step is one pattern of micro-batches, run by one replica in one step. If all
patterns cost the same, no replica waits, whichever patterns share a step. Patterns are
therefore chosen for the whole epoch at once: each pattern costs about the budget, and
all patterns together use every sample. Samples that do not divide evenly are packed
into a few patterns that run once an epoch. The size of the deal does not grow with the
number of samples.
"""

from collections.abc import Callable, Sequence

from jaxload.balance.bins import Effort
from jaxload.balance.pattern import BatchOption, Deal
from jaxload.balance.relaxed_deal import GOOD_ENOUGH, RelaxedSolver, preference
from jaxload.balance.supply import Supply
from jaxload.errors import InputError

_TOO_MUCH = 0.02  # Idle share above which budgets for several micro-batches are tried.
_FINE = 20_000  # Units per budget that costs are rounded to in the end.
_MANY_BATCHES = 8  # Least micro-batches per form, in the last attempt of a deal.
_MAX_OFFERS = 1_500_000  # Work of a deal, after which its searches give up sooner.


def make_deal(
    supplies: Sequence[Supply],
    *,
    fixed: float,
    accumulate: int,
    num_replicas: int,
    max_programs: int,
    budget: float = 0.0,
    on_attempt: Callable[[], None] = lambda: None,
) -> Deal:
    """Deals the samples of some forms so that replicas idle as little as possible.

    Args:
      supplies: Samples of each form, at least one.
      fixed: Fixed cost of a micro-batch, in addition to its samples.
      accumulate: Number of compute budgets that a replica may spend in a step.
      num_replicas: Number of replicas; requires at least as many units of samples.
      max_programs: Upper bound on the number of programs, at least one per form.
      budget: Compute budget; 0: searched.
      on_attempt: Called after each budget or choice of batch sizes that was tried.
    """
    _check_enough(supplies, num_replicas)
    deals, effort = [], Effort(most=_MAX_OFFERS)
    # If a form has few samples, its last micro-batch is far from full. Batch sizes
    # that nearly divide the number of samples leave fewer gaps, and small batches leave
    # small gaps.
    for min_batches in (0, 1, _MANY_BATCHES):
        solver = RelaxedSolver(
            supplies, fixed, accumulate, num_replicas, min_batches, effort, on_attempt
        )
        deals.append(_deal(solver, max_programs, budget))
        if solver.idle(deals[-1]) <= GOOD_ENOUGH:
            break
    return min(deals, key=solver.idle)


def deal_again(
    supplies: Sequence[Supply],
    options: Sequence[BatchOption],
    *,
    fixed: float,
    accumulate: int,
    num_replicas: int,
    budget: float,
) -> Deal:
    """Deals other numbers of samples with the given batch sizes.

    Args:
      supplies: Samples of each form, as in `make_deal`.
      options: Batch sizes, at least one for each form.
      fixed: Fixed cost of a micro-batch, in addition to its samples.
      accumulate: Number of compute budgets that a replica may spend in a step.
      num_replicas: Number of replicas.
      budget: Compute budget of the deal that the options come from.
    """
    _check_enough(supplies, num_replicas)
    solver = RelaxedSolver(supplies, fixed, accumulate, num_replicas, 0, Effort())
    return solver.rounded(solver.solve(budget, tuple(options), _FINE))


def _check_enough(supplies: Sequence[Supply], num_replicas: int) -> None:
    """Refuses an epoch in which a replica would have nothing to run."""
    if sum(supply.num_samples // supply.unit for supply in supplies) < num_replicas:
        num_samples = sum(supply.num_samples for supply in supplies)
        unit = max(supply.unit for supply in supplies)
        raise InputError(
            f"{num_samples} samples for {num_replicas} replicas: expected at least "
            f"{'one' if unit == 1 else unit} for each; use fewer replicas, or more data"
        )


def _deal(solver: RelaxedSolver, max_programs: int, budget: float) -> Deal:
    """Returns the deal with the least idle share, for a given or a searched budget.

    Budgets above the cost of every micro-batch within the memory budget are tried only
    if the smaller ones idle too much.
    """
    most = solver.max_cost_in_memory()
    best = solver.best_of([budget] if budget else solver.budgets(most), max_programs)
    if best.idle > _TOO_MUCH and not budget:
        # If memory holds only one or two samples, and forms differ in cost, patterns
        # of several micro-batches come closer to equal costs.
        larger = [b for b in solver.budgets(2 * most) if b > most]
        best = min(best, solver.best_of(larger, max_programs), key=preference)
    return solver.rounded(solver.solve(best.budget, best.programs, _FINE, best))
