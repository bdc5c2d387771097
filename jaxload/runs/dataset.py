"""Opens the dataset of a config; draws and prepares synthetic media if configured."""

from typing import Any

from rich.console import Console

from jaxload.config import Config
from jaxload.console import phase
from jaxload.data.manifest import FILE_NAME, Manifest, read_manifest
from jaxload.errors import InputError
from jaxload.media.config import SyntheticConfig
from jaxload.media.preparation import Preparation
from jaxload.media.preparing import prepare, runner
from jaxload.media.synthetic import ORIGIN, draw_media
from jaxload.media.walking import list_media


def open_dataset(config: Config, console: Console) -> Manifest:
    """Returns the manifest of the config's dataset, all of whose shards exist."""
    directory, synthetic = config.data.directory, config.synthetic
    if synthetic is not None and not (directory / FILE_NAME).exists():
        _draw_and_prepare(config, synthetic, console)
    manifest = read_manifest(directory)
    if synthetic is not None:
        found, wanted = manifest.fingerprint.get("origin"), synthetic.origin()
        if found != wanted:
            raise InputError(
                f"data set {directory}: was made of media {found}, this config wants "
                f"{wanted}; choose another data.path, or remove the data set and its "
                "media to have them drawn again"
            )
    return manifest


def open_if_there(config: Config, console: Console, *, draw: bool) -> Manifest | None:
    """Opens the config's dataset; None if it is missing and random shapes replace it.

    With `draw`, missing synthetic media are drawn and prepared.
    """
    there = (config.data.directory / FILE_NAME).exists()
    shapes = config.random_shapes
    if there or not shapes or (draw and config.synthetic is not None):
        return open_dataset(config, console)
    console.print(
        f"no dataset in {config.data.path}: random latents of {', '.join(shapes)}",
        highlight=False,
        soft_wrap=True,
    )
    return None


def check_dataset_matches(config: Config, manifest: Manifest, console: Console) -> None:
    """Refuses a dataset made for another model; reports captions that are cut."""
    for section, field in (
        ("data", "codec"),
        ("data", "text_encoder"),
        ("model", "channels"),
        ("model", "text_dim"),
    ):
        wanted = getattr(getattr(config, section), field)
        found = manifest.fingerprint.get(field)
        if found != wanted:
            raise InputError(
                f"{section}.{field}={wanted}: dataset {manifest.directory} was made "
                f"with {found}; set {section}.{field}={found}"
            )
    lengths = manifest.read_column("text_tokens").to_numpy()
    num_cut = int((lengths > config.model.num_text_tokens).sum())
    if num_cut:
        console.print(
            f"{num_cut:,} of {len(lengths):,} captions are cut to "
            f"model.num_text_tokens={config.model.num_text_tokens}; the longest has "
            f"{lengths.max()} tokens",
            highlight=False,
        )


def make_preparation(config: Config, **others: Any) -> Preparation:
    """Builds the preparation of a config; `others` are further fields of it."""
    fields = {
        "codec": config.data.codec,
        "text_encoder": config.data.text_encoder,
        "text_dim": config.model.text_dim,
        "rules": config.shapes,
        "max_shapes": config.balance.max_buckets,
    }
    return Preparation(**(fields | others))


def _draw_and_prepare(
    config: Config, synthetic: SyntheticConfig, console: Console
) -> None:
    out = config.data.directory
    media = out.with_name(f"{out.name}-media")
    if not media.exists():
        with phase(console, f"drawing {media}", synthetic.num_samples) as advance:
            draw_media(synthetic, media, fps=config.shapes.fps, on_file=advance)
    found = (media / ORIGIN).read_text() if (media / ORIGIN).exists() else "others"
    if found != synthetic.origin():
        raise InputError(
            f"media {media}: are {found}, this config wants {synthetic.origin()}; "
            "choose another data.path, or remove the media to have them drawn again"
        )
    prepare(
        make_preparation(config, media=media, out=out, origin=synthetic.origin()),
        list_media(media),
        run=runner(num_workers=0),
        max_bad_share=0.0,
        console=console,
    )
