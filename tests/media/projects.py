"""A media folder that tests prepare, change and prepare again."""

import csv
import dataclasses
import shutil
from pathlib import Path

from PIL import Image

from jaxload import prepare as command
from jaxload.data.manifest import Manifest, read_manifest
from jaxload.data.manifest_metadata import FILE_NAME
from tests.media.media_files import moving_pattern, write_video

CONFIG = ("--set", "shapes.max_frames=17", "--set", "shapes.max_sizes=4")


@dataclasses.dataclass(frozen=True)
class Project:
    """A media folder and its dataset."""

    path: Path

    @property
    def media(self) -> Path:
        return self.path / "media"

    @property
    def out(self) -> Path:
        return self.path / "out"

    def arguments(self, *more: str) -> list[str]:
        options = ["--media", str(self.media), "--out", str(self.out), *CONFIG]
        return [*options, "--max-bad-share", "0.3", "--workers", "0", *more]

    def prepare(self, *more: str) -> None:
        assert command.main(self.arguments(*more)) == 0

    def draw(self, name: str, seed: int, num_frames: int = 1) -> None:
        """Writes an image or a clip, which `seed` determines."""
        frames = moving_pattern(num_frames, 64, 64, seed=seed)
        if num_frames > 1:
            write_video(self.media / name, frames, fps=16)
        else:
            Image.fromarray(frames[0]).save(self.media / name)

    def caption(self, name: str, text: str) -> None:
        (self.media / name).with_suffix(".txt").write_text(text)

    def manifest(self, digest: str | None = None) -> Manifest:
        return read_manifest(self.out, digest=digest)

    def files(self) -> dict[str, bytes]:
        """Returns the shards and the manifest."""
        paths = [*self.out.glob("shard-*"), self.out / FILE_NAME]
        return {path.name: path.read_bytes() for path in paths}

    def copy(self, path: Path) -> "Project":
        shutil.copytree(self.path, path, copy_function=shutil.copy2)
        return Project(path)

    def report(self) -> list[dict[str, str]]:
        with (self.out / "report.csv").open() as file:
            return list(csv.DictReader(file))


def make_finished(path: Path) -> Project:
    """Prepares four images, two clips and an invalid file."""
    project = Project(path)
    project.media.mkdir()
    for i, name in enumerate(["a.png", "b.png", "c.png", "d.png"]):
        project.draw(name, seed=i)
        project.caption(name, f"picture {name}")
    project.draw("e.mp4", seed=10, num_frames=34)  # Two clips of 17.
    project.draw("f.mp4", seed=11, num_frames=17)
    (project.media / "bad.png").write_bytes(b"no picture")
    project.prepare()
    return project


def change_everything(project: Project) -> None:
    """Adds, changes, recaptions and removes files."""
    project.draw("a2.png", seed=20)
    project.draw("g.mp4", seed=21, num_frames=17)
    project.draw("e.mp4", seed=22, num_frames=20)
    project.caption("b.png", "another caption")
    (project.media / "c.png").unlink()
    (project.media / "c.txt").unlink()


def rows(manifest: Manifest) -> list[tuple[str, str, int, str]]:
    """Returns id, source, start and caption of the rows that are used."""
    names = ("id", "source", "start", "caption")
    columns = [manifest.read_column(name).to_pylist() for name in names]
    found = list(zip(*columns, strict=True))
    return [found[row] for row in manifest.used_rows]
