"""Report of a simulation: a table, JSON and a figure."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from jaxload.balance.scenario import Scenario
from jaxload.balance.simulation import SimulationResult
from jaxload.console import Console, visible
from jaxload.planning.scenarios import Workload

_COLOURS = {
    "equal-token, grid": "#c98a7a",
    "dual, grid": "#e3bd88",
    "equal-token": "#9a3b26",
    "dual": "#d08c3c",
    "knapformer": "#7d6b91",
    "lockstep": "#2f6f73",
    "mixed": "#1f3a5f",
}


def to_dict(
    workload: Workload, results: Sequence[SimulationResult], *, flops_per_second: float
) -> dict:
    """Returns all numbers of a simulation, in types that JSON can hold."""
    scenario, chosen = workload.scenario, workload.chosen
    return {
        "replicas": scenario.num_replicas,
        "accumulate": scenario.accumulate,
        "max_tokens": scenario.config.max_tokens,
        "cost_model": dataclasses.asdict(scenario.cost_model),
        "catalogue": {
            "forms": [
                {
                    "form": str(samples.form),
                    "tokens": samples.form.tokens,
                    "samples": samples.num_samples,
                    **dataclasses.asdict(samples.lengths),
                }
                for samples in chosen.classes
            ],
            "num_sizes": len({shape.size for shape in workload.samples.cover.shapes}),
            "kept": chosen.kept,
            "num_cut": chosen.num_cut,
            "left_out": [dataclasses.asdict(x) for x in chosen.left_out],
        },
        "policies": {
            p.policy: _figures(p, scenario, flops_per_second) for p in results
        },
    }


def _figures(
    result: SimulationResult, scenario: Scenario, flops_per_second: float
) -> dict:
    seconds = result.total_seconds
    if scenario.cost_model.unit == "FLOP":
        seconds /= flops_per_second
    return {
        **dataclasses.asdict(result.imbalance),
        "throughput_over_ideal": result.throughput,
        "lost": result.lost,
        "padding": result.padding,
        "tokens_per_second": result.tokens / seconds,
        "samples_per_second": result.samples / seconds,
        "memory_share": float(result.memory.mean()),
        "max_memory_share": float(result.memory.max()),
        "distinct_forms_per_step": result.distinct,
        "distinct_shapes_per_step": result.distinct_shapes,
        "mixing": result.mixing,
        "num_compiles": result.num_compiles,
        "carried_samples": result.carried,
        "steps": len(result.seconds),
        "seconds_per_step": seconds / len(result.seconds),
        "note": result.note,
    }


def print_simulation(content: dict, title: str, console: Console) -> None:
    """Prints the numbers that `to_dict` returns."""
    catalogue = content["catalogue"]
    console.say(
        f"{len(catalogue['forms'])} forms for samples of {catalogue['num_sizes']} "
        f"sizes keep {catalogue['kept']:.2%} of the content that all candidate sizes "
        "keep"
    )
    if catalogue["num_cut"]:
        console.say(f"  cut to their first frames: {catalogue['num_cut']:,} samples")
    for left_out in catalogue["left_out"]:
        examples = "; ".join(left_out["examples"])
        console.say(
            f"  left out {left_out['count']:,}: {left_out['reason']}, such as "
            f"{examples}"
        )
    table = Table(title=visible(title), box=None, padding=(0, 0, 0, 1))
    table.add_column("", no_wrap=True)
    for policy in content["policies"]:
        # Broken by hand, so that seven columns fit in 80 characters.
        name = policy.replace("knapformer", "knap-former")
        name = name.replace("-", "-\n").replace(" ", "\n")
        table.add_column(name, justify="right", vertical="bottom")
    for name, show in _ROWS.items():
        table.add_row(name, *(show(f) for f in content["policies"].values()))
    console.print(table)
    for policy, figures in content["policies"].items():
        if figures["note"]:
            console.say(f"  {policy}: {figures['note']}")


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _percent(name: str, digits: int = 2) -> Callable[[dict], str]:
    return lambda figures: f"{100 * figures[name]:.{digits}f}%"


_ROWS: dict[str, Callable[[dict], str]] = {
    "idle share": _percent("idle_share"),
    "mean of (max - t) / max": _percent("mean_wait"),
    "max / mean - 1": _percent("max_over_mean"),
    "(max - min) / max": _percent("spread"),
    "std / mean": _percent("variation"),
    "lost, with padding": _percent("lost"),
    "padding": _percent("padding"),
    "tokens/s": lambda f: f"{f['tokens_per_second']:,.0f}",
    "samples/s": lambda f: f"{f['samples_per_second']:,.2f}",
    "memory used, mean": _percent("memory_share", 0),
    "memory used, maximum": _percent("max_memory_share", 0),
    "mixing / random draw": lambda f: f"{f['mixing']:.2f}",
    "distinct shapes a step": lambda f: f"{f['distinct_shapes_per_step']:.1f}",
    "compiles": lambda f: _number(f["num_compiles"]),
    "carried to epoch 2": lambda f: _number(f["carried_samples"]),
}


def draw_simulation(
    results: Sequence[SimulationResult], title: str, path: Path
) -> None:
    """Draws the idle share of each step, for each policy."""
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.subplots()
    for p in results:
        mean = 100 * p.imbalance.idle_share
        axes.plot(
            100 * p.idle_by_step,
            label=f"{p.policy}  {mean:.2f}%",
            color=_COLOURS[p.policy],
            linewidth=1.2,
            alpha=0.85,
        )
    axes.set(xlabel="step", ylabel="idle share of the replicas, %")
    axes.set_title(visible(title), parse_math=False)  # It has a file's name.
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=110)
