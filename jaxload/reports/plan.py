"""Report of a plan: a table, the samples left out, and a figure."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from jaxload.balance.bucket import Bucket
from jaxload.balance.form import Grid, Length
from jaxload.console import Console
from jaxload.planning.plan import Plan

_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def print_plan(plan: Plan, console: Console) -> None:
    """Prints the catalogue, then the samples that it leaves out, by reason."""
    with_remat = any(bucket.program.remat != "none" for bucket in plan.buckets)
    with_bytes = any(bucket.num_bytes for bucket in plan.buckets)
    by_length = any(isinstance(bucket.form, Length) for bucket in plan.buckets)
    title = f"Catalogue for {plan.num_replicas} replica(s), {plan.config.policy}"
    # With more columns, the usual padding would exceed 80 characters.
    narrow = with_remat or by_length
    table = Table(title=title, box=None, collapse_padding=narrow, pad_edge=not narrow)
    # Tokens of a row, and of its samples: the shortest and the mean.
    columns = ["row", "from", "mean", "pad", "grids"]
    if not by_length:
        columns = ["shape", "pixels", "tokens"]
    columns += ["batch", *(["remat"] if with_remat else []), plan.cost_model.unit]
    columns += ["bytes" if with_bytes else "memory"]
    columns += ["images", "clips"] if by_length else ["samples"]
    over = any(bucket.over_budget for bucket in plan.buckets)
    for name in (*columns, "work", *([""] if over else [])):
        table.add_column(name, justify="right")
    for bucket, share in zip(plan.buckets, plan.work_shares(), strict=True):
        memory = f"{bucket.program.tokens_per_device:,}"
        if with_bytes:
            memory = format_cost(float(bucket.num_bytes), "bytes").replace(" ", "")
        images = bucket.lengths.num_images
        samples = [f"{images:,}", f"{bucket.num_samples - images:,}"]
        table.add_row(
            *_form_cells(bucket),
            f"{bucket.batch:,}",
            *([bucket.program.remat] if with_remat else []),
            format_cost(bucket.cost, plan.cost_model.unit),
            memory,
            *(samples if by_length else [f"{bucket.num_samples:,}"]),
            _percent(share),
            *(["over" if bucket.over_budget else ""] if over else []),
        )
    console.print(table)
    for line in (*_over_budget(plan), *_sources(plan)):
        console.say(line)
    _print_left_out(plan, console)
    if plan.idle_shares:
        shares = ", ".join(f"{k} {v:.2%}" for k, v in plan.idle_shares.items())
        line = f"predicted idle share: {shares}"
        console.say(line)


def _form_cells(bucket: Bucket) -> list[str]:
    """Returns the cells that describe the rows of a bucket and the samples in them."""
    form, lengths = bucket.form, bucket.lengths
    if isinstance(form, Grid):
        pixels = "x".join(map(str, form.shape.pixels))
        return [str(form), pixels, f"{form.tokens:,}"]
    return [
        f"{form.tokens:,}",
        f"{lengths.shortest:,}",
        f"{lengths.mean:,.0f}",
        _percent(bucket.padding),
        f"{lengths.num_grids:,}",
    ]


def _percent(share: float) -> str:
    """Formats a share with at least two digits, unless it is zero."""
    if not share:
        return "0%"
    return f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"


def format_cost(cost: float, unit: str) -> str:
    """Formats a cost with three digits, in the unit of its cost model."""
    if unit == "s":
        return f"{cost:.3g}"
    for size, letter in _UNITS:
        if cost >= size:
            return f"{cost / size:.3g} {letter}"
    return f"{cost:.3g}"


def format_bytes(num_bytes: int) -> str:
    """Formats bytes with three digits, in decimal units (GB, MB, kB)."""
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes} B"


def draw_plan(plan: Plan, path: Path) -> None:
    """Draws the cost of each bucket, and its share of samples and work."""
    figure = Figure(figsize=(11, 1.5 + 0.28 * len(plan.buckets)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _draw_costs(left, plan)
    rows = range(len(plan.buckets))
    samples = sum({b.form: b.num_samples for b in plan.buckets}.values())
    right.barh(
        [row + 0.2 for row in rows],
        [100 * b.num_samples / samples for b in plan.buckets],
        height=0.4,
        label="samples of its form",
        color="#9db4c0",
    )
    right.barh(
        [row - 0.2 for row in rows],
        [100 * share for share in plan.work_shares()],
        height=0.4,
        label="work",
        color="#c4571b",
    )
    right.set(xlabel="% of an epoch")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"{len(plan.buckets)} programs, {plan.config.policy}, "
        f"{plan.num_replicas} replicas"
    )
    figure.savefig(path, dpi=110)


def _draw_costs(axes: Axes, plan: Plan) -> None:
    rows = range(len(plan.buckets))
    axes.barh(rows, [b.cost for b in plan.buckets], color="#2f6f73")
    axes.set_yticks(rows, [_label(b) for b in plan.buckets], fontsize=7)
    axes.set(xlabel=f"{plan.cost_model.unit} of a micro-batch")
    if plan.budget:
        axes.axvline(plan.budget, color="#c4571b", linewidth=1.5)
        axes.annotate("budget", (plan.budget, len(plan.buckets) - 0.4), fontsize=8)


def _label(bucket: Bucket) -> str:
    form = bucket.form
    if isinstance(form, Length):
        return f"{form.tokens:,} tokens  x{bucket.batch}"
    frames, height, width = form.shape.pixels
    return f"{frames}x{height}x{width}  x{bucket.batch}"


def _over_budget(plan: Plan) -> list[str]:
    """Returns a line with remedies if some buckets exceed a budget."""
    over = [str(bucket.form) for bucket in plan.buckets if bucket.over_budget]
    if not over:
        return []
    return [
        f"over budget at batch 1: {', '.join(over)}; raise the budget, shard their "
        "sequences over more devices, or use remat"
    ]


def _sources(plan: Plan) -> list[str]:
    """Returns a line for each budget and cost model, with its origin."""
    lines = [f"memory: {plan.sources['memory']}"]
    if plan.budget:
        unit = plan.cost_model.unit
        gap = " " if unit == "s" else ""  # FLOP follows its prefix directly.
        budget = format_cost(plan.budget, unit) + gap + unit
        if plan.config.rule == "dual" and plan.config.policy == "lockstep":
            budget = f"{plan.budget:.4g} tokens^p"
        lines.append(
            f"compute budget: {budget}, {plan.sources['budget']}; batches "
            f"{plan.sources['batch']}"
        )
    lines.append(f"cost: {plan.sources['cost']}")
    return lines


def _print_left_out(plan: Plan, console: Console) -> None:
    kept = sum({b.form: b.num_samples for b in plan.buckets}.values())
    lost = sum(left_out.count for left_out in plan.left_out)
    console.say(
        f"kept {kept:,} samples and {plan.kept_content:.1%} of the content that all "
        f"candidate sizes keep, left out {lost:,}"
    )
    if plan.num_cut:
        console.say(
            f"  cut to their first frames {plan.num_cut:,}: longer than any program"
        )
    for left_out in plan.left_out:
        console.say(
            f"  left out {left_out.count:,}: {left_out.reason}, such as "
            f"{'; '.join(left_out.examples)}"
        )
