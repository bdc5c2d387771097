"""Rewrites datasets as earlier versions wrote them."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from array_record.python.array_record_module import ArrayRecordWriter
from safetensors.numpy import save

from jaxload.data.manifest_metadata import FILE_NAME, read_metadata
from jaxload.data.record import decode_record
from jaxload.data.shard import Shard, describe_shard
from jaxload.data.source import open_records
from jaxload.shapes.token_order import to_latent
from tests.media.projects import Project

_SHAPES = ["5x8x8", "1x8x8", "3x8x8"]


def to_format(project: Project, version: int) -> None:
    """Rewrites a dataset of latents, in manifest format 2 or 3, with shapes."""
    out = project.out
    manifest, metadata = project.manifest(), read_metadata(out)
    assert metadata is not None
    shards = _write_latents(project)
    fingerprints = [_earlier(dict(g.fingerprint)) for g in metadata.generations]
    content: dict[str, Any] = {"format": version}
    content["shards"] = [dataclasses.asdict(shard) for shard in shards]
    if version == 2:
        (content["fingerprint"],) = fingerprints
    else:
        content["generations"] = [
            dataclasses.asdict(g) | {"fingerprint": fingerprint}
            for g, fingerprint in zip(metadata.generations, fingerprints, strict=True)
        ]
    _rewrite(out / FILE_NAME, b"jaxload", content, with_starts=version > 2)
    for path in (out / "parts").glob("part-*.parquet"):
        content = json.loads(pq.read_schema(path).metadata[b"part"])
        if content["shard"]:
            named = next(s for s in shards if s.name == content["shard"]["name"])
            content["shard"] = dataclasses.asdict(named)
        content["frames"]["beyond_shape"] = 3
        _rewrite(path, b"part", content, with_starts=version > 2)
    claim = json.loads((out / "preparation.json").read_text())
    (out / "preparation.json").write_text(json.dumps(_earlier(claim)))
    for path in (out / "parts").glob("sizes*.json"):
        path.unlink()
    (out / "parts" / "shapes.json").write_text(json.dumps(_SHAPES))
    assert len(manifest)


def _earlier(fingerprint: dict[str, Any]) -> dict[str, Any]:
    """Returns a fingerprint of version 2, with its number of shapes to choose."""
    del fingerprint["is_causal"]
    sizes = fingerprint.pop("sizes")
    rules = {k: v for k, v in fingerprint["rules"].items() if k != "max_sizes"}
    shapes = "chosen, at most 4" if sizes == "chosen" else ", ".join(_SHAPES)
    return fingerprint | {"version": 2, "shapes": shapes, "rules": rules}


def _write_latents(project: Project) -> list[Shard]:
    manifest = project.manifest()
    records, shards, row = open_records(manifest), [], 0
    names = ("frames", "height", "width")
    sizes = [manifest.read_column(name).to_pylist() for name in names]
    samples = []
    for row in range(len(manifest)):
        frames, height, width = (column[row] for column in sizes)
        tokens, text = decode_record(records[row])
        grid = (frames, height // 2, width // 2)
        samples.append({"latent": to_latent(tokens, grid, (1, 2, 2)), "text": text})
    start = 0
    for shard in manifest.shards:
        path = project.out / shard.name
        path.unlink()
        writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
        for sample in samples[start : start + shard.num_records]:
            writer.write(save(sample))
        writer.close()
        start += shard.num_records
        shards.append(describe_shard(path, shard.num_records))
    return shards


def _rewrite(
    path: Path, key: bytes, content: dict[str, Any], *, with_starts: bool
) -> None:
    table = pq.read_table(path)
    if not with_starts:
        table = table.drop_columns(["start"])
    metadata = {key: json.dumps(content).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), path)
