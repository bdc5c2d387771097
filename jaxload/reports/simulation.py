"""Report of a simulation: a table, JSON and a figure."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console
from rich.table import Table

from jaxload.balance.scenario import Scenario
from jaxload.balance.simulation import Played

_COLOURS = {
    "equal-token": "#9a3b26",
    "dual": "#d08c3c",
    "knapformer": "#7d6b91",
    "lockstep": "#2f6f73",
    "mixed": "#1f3a5f",
}


def to_dict(
    scenario: Scenario, played: Sequence[Played], *, flops_per_second: float
) -> dict:
    """Returns all numbers of a simulation, in types that JSON can hold."""
    chosen = scenario.cover
    return {
        "replicas": scenario.num_replicas,
        "accumulate": scenario.accumulate,
        "max_tokens": scenario.config.max_tokens,
        "cost_model": dataclasses.asdict(scenario.cost_model),
        "catalogue": {
            "shapes": [
                {"pixels": list(shape.pixels), "tokens": shape.tokens, "samples": n}
                for shape, n in zip(chosen.shapes, chosen.num_samples, strict=True)
            ],
            "content": chosen.content,
            "grid_content": chosen.grid_content,
            "kept": chosen.kept,
            "left_out": [dataclasses.asdict(x) for x in chosen.left_out],
        },
        "policies": {p.policy: _figures(p, scenario, flops_per_second) for p in played},
    }


def _figures(played: Played, scenario: Scenario, flops_per_second: float) -> dict:
    seconds = played.total_seconds
    if scenario.cost_model.unit == "FLOP":
        seconds /= flops_per_second
    return {
        **dataclasses.asdict(played.imbalance),
        "throughput_over_ideal": played.throughput,
        "tokens_per_second": played.tokens / seconds,
        "samples_per_second": played.samples / seconds,
        "memory_share": float(played.memory.mean()),
        "max_memory_share": float(played.memory.max()),
        "distinct_shapes_per_step": played.distinct,
        "mixing": played.mixing,
        "num_compiles": played.num_compiles,
        "carried_samples": played.carried,
        "steps": len(played.seconds),
        "seconds_per_step": seconds / len(played.seconds),
        "note": played.note,
    }


def print_simulation(content: dict, title: str, console: Console) -> None:
    """Prints the numbers that `to_dict` returns."""
    catalogue = content["catalogue"]
    _say(
        console,
        f"{len(catalogue['shapes'])} shapes keep {catalogue['kept']:.2%} of the "
        f"content that all candidate shapes keep ({catalogue['content']:.4g} of "
        f"{catalogue['grid_content']:.4g} pixels x frames)",
    )
    for left_out in catalogue["left_out"]:
        examples = "; ".join(left_out["examples"])
        _say(
            console,
            f"  left out {left_out['count']:,}: {left_out['reason']}, such as "
            f"{examples}",
        )
    table = Table(title=title, box=None)
    table.add_column("")
    for policy in content["policies"]:
        table.add_column(policy, justify="right")
    for name, show in _ROWS.items():
        table.add_row(name, *(show(f) for f in content["policies"].values()))
    console.print(table)
    for policy, figures in content["policies"].items():
        if figures["note"]:
            _say(console, f"  {policy}: {figures['note']}")


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


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
    "throughput of the ideal": _percent("throughput_over_ideal"),
    "tokens/s": lambda f: f"{f['tokens_per_second']:,.0f}",
    "samples/s": lambda f: f"{f['samples_per_second']:,.2f}",
    "memory used, mean": _percent("memory_share", 0),
    "memory used, most": _percent("max_memory_share", 0),
    "mixing, of a random draw": lambda f: f"{f['mixing']:.2f}",
    "compiles": lambda f: _number(f["num_compiles"]),
    "samples carried to epoch 2": lambda f: _number(f["carried_samples"]),
}


def draw_simulation(played: Sequence[Played], title: str, path: Path) -> None:
    """Draws the idle share of each step, for each policy."""
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.subplots()
    for p in played:
        mean = 100 * p.imbalance.idle_share
        axes.plot(
            100 * p.idle_by_step,
            label=f"{p.policy}  {mean:.2f}%",
            color=_COLOURS[p.policy],
            linewidth=1.2,
            alpha=0.85,
        )
    axes.set(xlabel="step", ylabel="idle share of the replicas, %", title=title)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=110)
