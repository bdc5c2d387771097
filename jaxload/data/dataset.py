"""Opens a data set, drawing it first where the config says so."""

from rich.console import Console

from jaxload.data.manifest import Manifest, read_manifest
from jaxload.data.source import DataConfig
from jaxload.data.synthetic import SyntheticConfig, synthetic_samples
from jaxload.data.writer import write_dataset
from jaxload.errors import InputError
from jaxload.progress import phase

_SAMPLES_PER_SHARD = 256


def open_dataset(
    config: DataConfig, synthetic: SyntheticConfig | None, console: Console
) -> Manifest:
    """Returns the manifest of a data set whose shards are all there."""
    directory = config.directory
    if synthetic is not None and not directory.exists():
        _draw(config, synthetic, console)
    manifest = read_manifest(directory)
    if synthetic is not None:
        _check_fingerprint(manifest, synthetic)
    return manifest


def _draw(config: DataConfig, synthetic: SyntheticConfig, console: Console) -> None:
    title = f"drawing data set {config.path}"
    with phase(console, title, synthetic.num_samples) as advance:

        def samples():
            for sample in synthetic_samples(synthetic):
                yield sample
                advance()

        write_dataset(
            config.directory,
            samples(),
            samples_per_shard=_SAMPLES_PER_SHARD,
            fingerprint=synthetic.fingerprint(),
        )


def _check_fingerprint(manifest: Manifest, synthetic: SyntheticConfig) -> None:
    for name, wanted in synthetic.fingerprint().items():
        found = manifest.fingerprint.get(name)
        if found != wanted:
            raise InputError(
                f"data set {manifest.directory}: was made with {name}={found!r}, this "
                f"config wants {wanted!r}; choose another data.path, or remove the "
                "data set to have it drawn again"
            )
