"""Opens the dataset of a config; draws and prepares synthetic media if configured."""

import functools
from typing import Any

from jaxload.codecs.codec import load_codec
from jaxload.codecs.text_encoder import load_text_encoder
from jaxload.config import Config
from jaxload.console import Console, phase
from jaxload.data.manifest import Manifest, read_manifest
from jaxload.data.manifest_metadata import FILE_NAME
from jaxload.errors import InputError
from jaxload.media.config import SyntheticConfig
from jaxload.media.folder import list_media
from jaxload.media.preparation import Preparation
from jaxload.media.review import Review
from jaxload.media.runners import runner
from jaxload.media.stages import prepare
from jaxload.media.synthetic import ORIGIN, draw_media
from jaxload.shapes.geometry import Geometry
from jaxload.shapes.shape import Shape


def geometry_of(config: Config) -> Geometry:
    """Returns the geometry that the config's codec and model determine.

    Raises:
        InputError: The codec or the model does not support a size in the config.
    """
    codec = load_codec(config.data.codec)
    try:
        # A codec may state a list, or integers of NumPy.
        frames, rows, columns = map(int, codec.strides)
        geometry = Geometry((frames, rows, columns), config.model.patch)
    except (InputError, TypeError, ValueError) as error:
        raise InputError(
            f"data.codec={config.data.codec}: strides={codec.strides!r}: expected "
            f"three whole numbers, 1 or more ({error}); correct the codec"
        ) from error
    config.shapes.check(geometry)
    return geometry


def check_sizes(config: Config) -> Geometry:
    """Returns the geometry, and checks all sizes that training uses.

    Raises:
        InputError: The codec or the model does not support a size in the config.
    """
    geometry = geometry_of(config)
    if config.synthetic is not None:
        config.synthetic.shapes(geometry)
    if config.sample.shape:
        _parse(config.sample.shape, geometry, "sample.shape")
    return geometry


def random_shapes(config: Config) -> tuple[Shape, ...]:
    """Returns the shapes of the random samples that replace a missing dataset."""
    geometry, texts = geometry_of(config), config.data.random_shapes
    if not texts and config.synthetic is not None:
        return config.synthetic.shapes(geometry)
    return tuple(_parse(text, geometry, "data.random_shapes") for text in texts)


def _parse(text: str, geometry: Geometry, field: str) -> Shape:
    try:
        return Shape.parse(text, geometry)
    except InputError as error:
        raise InputError(f"{field}: {error}") from error


def open_dataset(
    config: Config, console: Console, *, digest: str | None = None
) -> Manifest:
    """Opens the config's dataset, and checks that all of its shards exist.

    With the digest that a run has recorded, opens the generation that the run began
    with, and says so if there is a newer one.
    """
    geometry = check_sizes(config)  # Before media are drawn, which takes a while.
    directory, synthetic = config.data.directory, config.synthetic
    if synthetic is not None and not (directory / FILE_NAME).exists():
        _draw_and_prepare(config, synthetic, console)
    manifest = read_manifest(directory, geometry, digest=digest)
    if not manifest.is_newest:
        console.say(
            f"dataset {directory} was updated after this run began: it continues on "
            f"its {len(manifest.used_rows):,} clips; a new run uses the newest"
        )
    if synthetic is not None:
        found, wanted = manifest.fingerprint.get("origin"), synthetic.origin()
        if found != wanted:
            raise InputError(
                f"dataset {directory}: expected media {wanted}, as in this config, got "
                f"{found}; choose another data.path, or remove the dataset and its "
                "media to draw them again"
            )
    return manifest


def open_if_there(config: Config, console: Console, *, draw: bool) -> Manifest | None:
    """Opens the config's dataset; None if it is missing and random shapes replace it.

    With `draw`, missing synthetic media are drawn and prepared.
    """
    there = (config.data.directory / FILE_NAME).exists()
    shapes = random_shapes(config)
    if there or not shapes or (draw and config.synthetic is not None):
        return open_dataset(config, console)
    names = ", ".join(map(str, shapes))
    console.say(f"no dataset in {config.data.path}: random latents of {names}")
    return None


def check_dataset_matches(config: Config, manifest: Manifest, console: Console) -> None:
    """Refuses a dataset made for another model; reports truncated captions."""
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
    _check_names(config, manifest)
    lengths = manifest.read_column("text_tokens").to_numpy()[manifest.used_rows]
    num_cut = int((lengths > config.model.num_text_tokens).sum())
    if num_cut:
        console.say(
            f"{num_cut:,} of {len(lengths):,} captions are truncated to "
            f"model.num_text_tokens={config.model.num_text_tokens}; the longest has "
            f"{lengths.max()} tokens"
        )


def _check_names(config: Config, manifest: Manifest) -> None:
    """Refuses a codec or text encoder that is renamed, and so gives other samples."""
    data, fingerprint = config.data, manifest.fingerprint
    for field, plugin in (
        ("codec", load_codec(data.codec)),
        ("text_encoder", load_text_encoder(data.text_encoder, config.model.text_dim)),
    ):
        found = fingerprint.get(f"{field}_name", plugin.name)
        if found != plugin.name:
            raise InputError(
                f"data.{field}={getattr(data, field)}: named {plugin.name!r}, and "
                f"dataset {manifest.directory} was made with {found!r}; use that "
                "version, or prepare the media again with another --out"
            )


def make_preparation(config: Config, **others: Any) -> Preparation:
    """Builds the preparation of a config; `others` are its remaining fields."""
    fields = {
        "codec": config.data.codec,
        "text_encoder": config.data.text_encoder,
        "text_dim": config.model.text_dim,
        "rules": config.shapes,
        "geometry": geometry_of(config),
        "max_source_pixels": config.data.max_source_pixels,
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
            f"media {media}: expected {synthetic.origin()}, as in this config, got "
            f"{found}; choose another data.path, or remove the media to draw them again"
        )
    # Imported here, because workers of `jaxload.prepare` import this module, and the
    # report imports Matplotlib and JAX.
    from jaxload.reports.prepare import write_report

    prepare(
        make_preparation(config, media=media, out=out, origin=synthetic.origin()),
        list_media(media),
        run=runner(num_workers=0),
        review=Review(
            max_bad_share=0.0, write_report=functools.partial(write_report, out)
        ),
        console=console,
    )
