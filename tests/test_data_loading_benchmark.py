"""Tests of benchmarks.data_loading: data and output, without timing."""

import dataclasses
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.data_loading import __main__ as benchmark
from benchmarks.data_loading import memory, stages, startup, throughput, torch_process
from benchmarks.data_loading.many_rows import ROWS_PER_SHARD, SHAPES, write_many
from benchmarks.data_loading.samples import (
    SCALES,
    Dataset,
    check_batch,
    decoded_batches,
    latent_bytes,
    write_dataset,
)
from benchmarks.data_loading.throughput import Row
from jaxload.data.manifest import read_manifest
from jaxload.data.record import decode_record
from jaxload.data.source import open_records

TINY = dataclasses.replace(SCALES[0], num_samples=150, num_batches=6)


def nothing(count: int = 1) -> None:
    """Ignores progress."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_dataset(TINY, tmp_path_factory.mktemp("loading") / "set", nothing)


def printed(print_to: Callable[[Console], None]) -> str:
    console = Console(width=140, file=io.StringIO(), record=True)
    print_to(console)
    return console.export_text()


def test_scales_go_from_kilobytes_to_megabytes_in_even_micro_batches():
    sizes = [max(map(latent_bytes, scale.shapes)) for scale in SCALES]
    assert sizes == sorted(sizes)
    assert min(map(latent_bytes, SCALES[0].shapes)) == 2_048
    assert sizes[-1] == 4_193_280
    for scale in SCALES:
        for shape in scale.shapes:
            whole = scale.batch(shape) * latent_bytes(shape)
            assert 0.7 * scale.batch_bytes < whole <= scale.batch_bytes
            assert scale.num_samples >= scale.batch(shape)
            assert scale.fewer(1_000).num_samples >= scale.batch(shape)


def test_files_hold_the_same_records_as_the_shards(dataset: Dataset):
    records = open_records(dataset.manifest)
    assert len(dataset.manifest) == 150 * len(TINY.shapes)
    lengths = set()
    for row in range(0, len(dataset.manifest), 7):
        path = dataset.files / f"{row}.safetensors"
        assert path.read_bytes() == records[row]
        lengths.add(len(decode_record(records[row]).text))
    assert min(lengths) >= 4
    assert max(lengths) <= 40
    assert len(lengths) > 20


def test_loaders_are_checked_against_the_records(dataset: Dataset):
    reading = throughput.open_ours(dataset, 0, 6)
    throughput.check(dataset, reading, None, 6)
    reading.close()


@pytest.mark.parametrize("name", ["latent", "text", "id"])
def test_a_wrong_micro_batch_is_refused(dataset: Dataset, name: str):
    (expected,) = decoded_batches(dataset, 1)
    found = {key: array.copy() for key, array in expected.items()}
    check_batch(found, expected, "micro-batch 0")
    found[name].flat[-1] += 1
    with pytest.raises(AssertionError, match=f"micro-batch 0: '{name}' differs"):
        check_batch(found, expected, "micro-batch 0")
    found[name] = expected[name][:-1]
    with pytest.raises(AssertionError, match=f"micro-batch 0: '{name}' differs"):
        check_batch(found, expected, "micro-batch 0")
    del found[name]
    with pytest.raises(AssertionError, match=f"micro-batch 0: no '{name}'"):
        check_batch(found, expected, "micro-batch 0")


def test_a_loader_that_reads_wrong_ends_the_benchmark(dataset: Dataset, monkeypatch):
    real = throughput.open_ours

    def later(dataset: Dataset, num_workers: int, num_steps: int):
        reading = real(dataset, num_workers, num_steps)
        reading.set_state({"step": 1})
        return reading

    monkeypatch.setattr(throughput, "open_ours", later)
    with pytest.raises(AssertionError, match="micro-batch 0 of 'demo'"):
        throughput.measure(dataset, 0, 1, None, nothing)


def test_a_row_of_rates_without_pytorch(dataset: Dataset, monkeypatch):
    monkeypatch.setattr(throughput, "_SETTLE_SECONDS", 0.0)
    row = throughput.measure(dataset, 0, 3, None, nothing)
    assert (row.name, row.num_workers) == ("demo", 0)
    assert row.record_bytes > 10_000
    assert row.raw > 0
    assert row.ours > 0
    assert np.isnan(row.torch)
    text = printed(lambda console: throughput.print_table([row], console))
    assert re.search(r"demo .* 0 .* - .* - ", text)


@pytest.mark.parametrize(
    ("rates", "goals"),
    [
        ({"ours": 81.0}, "held"),
        ({"ours": 79.0}, "[bold red]NOT HELD[/]"),
        ({"ours": 81.0, "torch": 40.0}, "held, held"),
        ({"ours": 81.0, "torch": 41.0}, "held, [bold red]NOT HELD[/]"),
    ],
    ids=["held", "slow", "both", "near-pytorch"],
)
def test_goals_are_told(rates: dict[str, float], goals: str):
    row = Row(name="a", record_bytes=1, num_workers=0, raw=100.0, **rates)
    assert row.goals == goals


def test_where_pytorch_is_not_it_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.setenv(torch_process.VARIABLE, str(tmp_path / "none"))
    monkeypatch.setattr(throughput, "_SETTLE_SECONDS", 0.0)
    size = dataclasses.replace(
        benchmark.QUICK, scales=(TINY,), workers=(0,), num_rounds=1
    )
    monkeypatch.setattr(benchmark, "QUICK", size)
    assert benchmark.main(["--quick", "--only", "throughput"]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "torch" in line]
    assert told == [
        "No PyTorch to compare with: run `make torch`, or set JAXLOAD_BENCH_TORCH to a "
        "Python that has torch and safetensors."
    ]


def test_pytorchs_process_is_spoken_to(dataset: Dataset, tmp_path: Path, monkeypatch):
    """Uses a fake process that answers like torch_loader.py."""
    stand_in = tmp_path / "loader.py"
    stand_in.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    order = json.loads(line)\n"
        "    if 'open' in order: rows = order['open']['batches']\n"
        "    if 'save' in order: sys.exit()\n"
        "    answer = {'seconds': 0.5, 'num_samples': len(rows)}\n"
        "    print(json.dumps(answer), flush=True)\n"
    )
    monkeypatch.setattr(torch_process, "_SCRIPT", stand_in)
    torch = torch_process.TorchProcess(Path(sys.executable))
    torch.open(dataset, [[1, 2], [3]], num_workers=0, num_prefetch=4)
    assert torch.run(1, 1) == (0.5, 2)
    with pytest.raises(RuntimeError, match=r"loader.py ended at 'save'"):
        torch.read(tmp_path / "batch")
    torch.close()


@pytest.mark.parity
@pytest.mark.skipif(not torch_process.find_python(), reason="needs `make torch`")
def test_pytorch_reads_the_same(dataset: Dataset, tmp_path: Path):
    python = torch_process.find_python()
    assert python
    torch = torch_process.TorchProcess(python)
    batches = [dataset.rows(step).tolist() for step in range(6)]
    torch.open(dataset, batches, num_workers=0, num_prefetch=4)
    reading = throughput.open_ours(dataset, 0, 6)
    throughput.check(dataset, reading, torch, 4)
    assert torch.run(1, 1)[1] == len(batches[5])
    reading.close()
    torch.close_loader()
    torch.close()


def test_each_of_many_rows_can_be_read(tmp_path: Path):
    write_many(tmp_path / "many", 2 * ROWS_PER_SHARD, nothing)
    manifest = read_manifest(tmp_path / "many")
    assert len(manifest) == 2 * ROWS_PER_SHARD
    assert set(manifest.rows_by_shape) == set(SHAPES)
    records = open_records(manifest)
    for shape, rows in manifest.rows_by_shape.items():
        for row in (rows[0], rows[-1]):
            size = decode_record(records[int(row)]).latent.shape
            assert size[:3] == (shape.frames, shape.height, shape.width)
    captions = manifest.read_column("caption")
    assert 60 < np.mean([len(c) for c in captions.slice(0, 100).to_pylist()]) < 160
    assert len(set(manifest.read_column("id").to_pylist())) == len(manifest)


def test_start_up_is_printed_with_its_goal():
    start = startup.Start(
        num_rows=10_000,
        import_seconds=1.5,
        check_seconds=0.1,
        plan_seconds=0.2,
        read_seconds=0.3,
        seconds=0.6,
        peak_bytes=10**8,
    )
    slow = dataclasses.replace(start, seconds=2.1)
    rows = [
        startup.Row(num_workers=0, starts=(start, start, slow)),
        startup.Row(num_workers=2, starts=(start, slow, slow)),
    ]
    text = printed(lambda console: startup.print_table(rows, console))
    assert "manifest of 10,000 rows" in text
    assert text.count("NOT HELD") == 1
    assert text.count("held") == 1


@pytest.mark.parametrize(
    ("first", "last", "held"),
    [(100e6, 119e6, True), (100e6, 121e6, False), (1e9, 1.04e9, True)],
    ids=["bytes", "grows", "share"],
)
def test_growth_is_told(first: float, last: float, held: bool):
    row = memory.Row(
        num_workers=0,
        num_batches=8,
        samples=(int(first),) * 4 + (int(last),) * 4,
        shared_growth=0,
    )
    assert row.held == held
    text = printed(lambda console: memory.print_table([row], "some", console))
    assert ("NOT HELD" in text) != held


def test_memory_is_sampled_while_reading(dataset: Dataset):
    row = memory._read(dataset, 0, 1, every=3)
    assert row.num_batches == int(dataset.schedule.epoch_counts().sum())
    assert len(row.samples) == -(-row.num_batches // 3)
    assert min(row.samples) > 10e6


def test_stages_add_up(dataset: Dataset):
    row = stages.measure(dataset, 2)
    assert len(row.stages) == len(stages.STAGES)
    assert sum(row.stages) == pytest.approx(row.seconds)
    text = printed(lambda console: stages.print_table([row], console))
    assert all(name in text for name in stages.STAGES)


@pytest.mark.slow
def test_all_sections_end_to_end(root: Path, tmp_path: Path):
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.data_loading", "--quick"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "", "TMPDIR": str(tmp_path), torch_process.VARIABLE: "/none"},
    )
    for name in ("demo", "small clips"):
        found = re.findall(rf"^│ {name} +│ +\d+ │ +(\d) │", result.stdout, re.M)
        assert found == ["0", "1", "2"]
    assert "manifest of 200,000 rows" in result.stdout
    assert "Resident memory while reading 'small clips'" in result.stdout
    assert "Time of a sample in one thread" in result.stdout
    assert result.stdout.count("make torch") == 1
    assert not any(tmp_path.glob("*/many"))


@pytest.mark.slow
def test_a_start_with_workers(tmp_path: Path):
    write_many(tmp_path / "many", ROWS_PER_SHARD, nothing)
    rows = startup.measure(tmp_path / "many", 1, nothing)
    assert [row.num_workers for row in rows] == [0, 2]
    for row in rows:
        (start,) = row.starts
        assert start.num_rows == ROWS_PER_SHARD
        assert start.seconds > 0
        assert json.dumps(dataclasses.asdict(start))
