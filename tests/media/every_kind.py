"""Writes a folder of more than a hundred kinds of images and videos, good and bad."""

import wave
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image

from tests.media.media_files import moving_pattern, write_audio, write_video

HEIGHT, WIDTH, FRAMES, FPS = 48, 64, 5, 25

# Codec, pixel format, and name, whose suffix is the container's.
CODECS = (
    *[("libx264", f, f"h264-{f}.mkv") for f in ("yuv420p", "yuv422p", "yuv444p")],
    *[("libx264", f, f"h264-{f}.mkv") for f in ("gray", "yuv420p10le", "nv12")],
    *[("libx264rgb", "rgb24", "h264-rgb.mkv"), ("libx265", "yuv420p", "hevc.mkv")],
    *[("libx265", f, f"hevc-{f}.mp4") for f in ("yuv420p10le", "yuv444p", "gray")],
    *[("libvpx", "yuv420p", "vp8.webm"), ("libvpx-vp9", "yuv420p", "vp9.webm")],
    *[("libvpx-vp9", f, f"vp9-{f}.webm") for f in ("yuv444p", "gbrp")],
    *[("libsvtav1", f, f"av1-{f}.mp4") for f in ("yuv420p", "yuv420p10le")],
    *[("libsvtav1", "yuv420p", f"av1.{s}") for s in ("webm", "ivf", "obu")],
    *[("libx264", "yuv420p", f"h264.{s}") for s in ("mp4", "mov", "avi", "flv", "ts")],
    *[("libx264", "yuv420p", f"h264.{s}") for s in ("nut", "m4v", "3gp", "h264")],
    *[("libx264", "yuv420p", f"h264.{s}") for s in ("f4v", "3g2", "ismv")],
    *[("libx265", "yuv420p", f"hevc.{s}") for s in ("mov", "ts", "hevc")],
    *[("mpeg4", "yuv420p", f"mpeg4.{s}") for s in ("mp4", "avi", "mkv", "nut", "mov")],
    *[("mpeg2video", "yuv420p", f"mpeg2.{s}") for s in ("mpg", "ts", "vob", "mkv")],
    ("mpeg2video", "yuv422p", "mpeg2-422.mkv"),
    *[("mpeg1video", "yuv420p", "mpeg1.mpg"), ("mjpeg", "yuvj420p", "mjpeg.avi")],
    *[("mjpeg", f, f"mjpeg-{f}.mov") for f in ("yuvj422p", "yuvj444p")],
    *[("mjpeg", "yuvj420p", "mjpeg.mp4"), ("rawvideo", "yuv420p", "raw.nut")],
    *[("rawvideo", f, f"raw-{f}.nut") for f in ("rgb24", "gray", "rgb565le", "rgba")],
    *[("rawvideo", f, f"raw-{f}.nut") for f in ("uyvy422", "nv21", "gbrp10le")],
    *[("ffv1", f, f"ffv1-{f}.mkv") for f in ("yuv420p", "gray16le", "yuva420p")],
    *[("ffv1", f, f"ffv1-{f}.mkv") for f in ("bgra", "gbrp12le", "yuv411p")],
    *[("ffv1", "yuv420p", "ffv1.avi"), ("png", "rgb24", "png.mov")],
    *[("png", f, f"png-{f}.nut") for f in ("gray", "rgb48be", "rgba")],
    *[("huffyuv", "yuv422p", "huffyuv.avi"), ("huffyuv", "rgb24", "huffyuv-rgb.avi")],
    *[("ffvhuff", "yuv420p", "ffvhuff.avi"), ("utvideo", "gbrp", "utvideo.avi")],
    *[("magicyuv", "gbrp", "magicyuv.avi"), ("prores_ks", "yuv422p10le", "prores.mov")],
    *[
        ("prores_ks", "yuva444p10le", "prores-4444.mov"),
        ("cfhd", "yuv422p10le", "cfhd.mov"),
    ],
    *[("jpeg2000", "rgb24", "jpeg2000.mov"), ("jpegls", "bgr24", "jpegls.nut")],
    *[("ljpeg", "bgr24", "ljpeg.nut"), ("qtrle", "rgb24", "qtrle.mov")],
    *[("dpx", "gray", "dpx.nut"), ("exr", "grayf32le", "exr.mov")],
    *[("targa", "bgr24", "targa.nut"), ("sgi", "rgb24", "sgi.mov")],
    *[("tiff", "rgb24", "tiff.mov")],
    *[("flv", "yuv420p", "sorenson.flv"), ("h263p", "yuv420p", "h263p.avi")],
    *[("wmv1", "yuv420p", "wmv1.asf"), ("wmv2", "yuv420p", "wmv2.wmv")],
    *[("msmpeg4", "yuv420p", "msmpeg4.avi"), ("msmpeg4v2", "yuv420p", "msmpeg4v2.avi")],
    *[("cinepak", "rgb24", "cinepak.avi"), ("msvideo1", "rgb555le", "msvideo1.avi")],
    *[("svq1", "yuv410p", "svq1.mov"), ("rpza", "rgb555le", "rpza.mov")],
    *[("asv1", "yuv420p", "asv1.avi"), ("asv2", "yuv420p", "asv2.avi")],
    *[("snow", "yuv420p", "snow.avi"), ("zlib", "bgr24", "zlib.avi")],
    *[("v210", "yuv422p10le", "v210.mov"), ("v308", "yuv444p", "v308.mov")],
    *[("v410", "yuv444p10le", "v410.mov"), ("r210", "gbrp10le", "r210.mov")],
    *[("avrp", "gbrp10le", "avrp.mov"), ("dxv", "rgba", "dxv.mov")],
    *[("flashsv", "bgr24", "flashsv.flv"), ("speedhq", "yuv420p", "speedhq.nut")],
    *[("y41p", "yuv411p", "y41p.avi"), ("cljr", "yuv411p", "cljr.avi")],
    *[("amv", "yuvj420p", "amv.nut"), ("rawvideo", "yuv420p", "raw.y4m")],
    *[("mpeg2video", "yuv422p", "mpeg2.mxf"), ("mpeg4", "yuv420p", "mpeg4.3gp")],
)

_FORMATS = {
    **{"m4v": "mp4", "obu": "obu", "f4v": "f4v", "wmv": "asf", "y4m": "yuv4mpegpipe"},
    **{"nut": "nut", "ivf": "ivf", "vob": "vob", "mxf": "mxf"},
}
_OPTIONS = {
    "libsvtav1": {"preset": "12", "svtav1-params": "lp=1"},
    "libvpx": {"deadline": "realtime", "cpu-used": "8"},
    "snow": {"strict": "-2"},
    "amv": {"strict": "-1"},
    "cfhd": {"strict": "-2"},
}


def write_every_kind(folder: Path) -> None:
    """Writes all files; those of `CODECS` have `FRAMES` frames of the same size."""
    folder.mkdir()
    frames = moving_pattern(FRAMES, HEIGHT, WIDTH)
    for codec, pix_fmt, name in CODECS:
        suffix = name.rpartition(".")[2]
        write_video(
            folder / name,
            frames,
            fps=FPS,
            codec=codec,
            pix_fmt=pix_fmt,
            container=_FORMATS.get(suffix),
            options=_OPTIONS.get(codec),
            colors={"color_range": 2} if pix_fmt.startswith("yuvj") else None,
        )
    _write_shown(folder)
    _write_images(folder)
    _write_animations(folder)
    _write_bad(folder)


def _write_shown(folder: Path) -> None:
    """Writes videos whose frames are shown otherwise than they are stored."""
    frames = moving_pattern(FRAMES, HEIGHT, WIDTH)

    def write(name: str, video: np.ndarray = frames, **options) -> None:
        write_video(folder / name, video, fps=FPS, **options)

    for degrees in (90, 180, 270):
        write(f"turned-{degrees}.mp4", rotation=degrees)
        write(f"mirrored-{degrees}.mov", rotation=degrees, mirrored=True)
    write("turned-90.mkv", rotation=90)
    narrow = moving_pattern(FRAMES, HEIGHT, WIDTH // 2)
    for suffix in ("mp4", "mkv", "avi", "mpg"):
        codec = {"avi": "mpeg4", "mpg": "mpeg2video"}.get(suffix, "libx264")
        ratio = Fraction(2) if suffix != "mpg" else Fraction(4, 3) / Fraction(32, 48)
        write(f"narrow.{suffix}", narrow, codec=codec, sample_aspect_ratio=ratio)
    write("narrow-turned.mp4", narrow, sample_aspect_ratio=Fraction(2), rotation=90)
    times = [0, 0.02, 0.11, 0.12, 0.31]
    write("varying.mkv", times=times)
    write("varying.mp4", times=times)
    write("one.mp4", frames[:1])
    write("one.webm", frames[:1], codec="libvpx-vp9")
    odd = moving_pattern(FRAMES, HEIGHT - 1, WIDTH - 1)
    write("odd.mp4", odd, pix_fmt="yuv444p")
    write("odd.mkv", odd, codec="ffv1", pix_fmt="yuv420p")
    write("odd.webm", odd, codec="libvpx-vp9")
    write("reordered.mp4", moving_pattern(13, HEIGHT, WIDTH), options=_reordered())
    write("reordered.ts", moving_pattern(13, HEIGHT, WIDTH), options=_reordered())
    write("with-sound.mkv", audio=True)
    write("index-last.mp4", index_first=False)
    for standard, size in {"h261.avi": (144, 176), "h263.avi": (144, 176)}.items():
        codec = standard.partition(".")[0]
        video = moving_pattern(FRAMES, *size)
        options = None
        write(standard, video, codec=codec, options=options)
    write(
        "dnxhd.mov",
        moving_pattern(2, 720, 1280),
        codec="dnxhd",
        pix_fmt="yuv422p",
        options={"b": "60M"},
    )


def _reordered() -> dict[str, str]:
    return {"preset": "medium", "bf": "3"}


def _write_images(folder: Path) -> None:
    picture = Image.fromarray(moving_pattern(1, HEIGHT, WIDTH)[0])
    sixteen = np.arange(HEIGHT * WIDTH, dtype=np.uint16).reshape(HEIGHT, WIDTH) * 20

    def save(name: str, image: Image.Image = picture, **options) -> None:
        image.save(folder / name, **options)

    for suffix in ("png", "bmp", "tiff", "ppm", "webp", "jp2", "qoi", "jpg", "avif"):
        save(f"plain.{suffix}")
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        save(f"exif-{orientation}.jpg", exif=exif)
    exif = Image.Exif()
    exif[0x0112] = 6
    save("exif-6.webp", exif=exif)
    save("cmyk.jpg", picture.convert("CMYK"))
    save("progressive.jpg", progressive=True)
    save("grey.jpg", picture.convert("L"))
    save("444.jpg", subsampling=0)
    for mode in ("1", "L", "LA", "P", "RGBA"):
        save(f"mode-{mode}.png", picture.convert(mode))
    save("sixteen.png", Image.fromarray(sixteen))
    save("sixteen.tiff", Image.fromarray(sixteen))
    save("sixteen.pgm", Image.fromarray(sixteen))
    save("palette.bmp", picture.quantize(16))
    save("alpha.webp", picture.convert("RGBA"), lossless=True)
    save("alpha.tiff", picture.convert("RGBA"))
    for compression in ("tiff_lzw", "tiff_deflate", "packbits", "jpeg"):
        save(f"{compression}.tiff", compression=compression)
    save("pages.tiff", save_all=True, append_images=[picture.rotate(180)])
    save("grey.pgm", picture.convert("L"))
    save("bits.pbm", picture.convert("1"))
    save("odd.png", picture.resize((WIDTH - 1, HEIGHT - 1)))
    save("odd.jpg", picture.resize((WIDTH - 1, HEIGHT - 1)))
    save("one.gif")
    save("icon.ico", sizes=[(WIDTH, HEIGHT)])
    save("large.png", picture.resize((1280, 1024)))


def _write_animations(folder: Path) -> None:
    frames = [Image.fromarray(f) for f in moving_pattern(FRAMES, HEIGHT, WIDTH)]
    first, rest = frames[0], frames[1:]
    for suffix in ("gif", "png", "webp", "avif"):
        first.save(
            folder / f"moving.{suffix}", save_all=True, append_images=rest, duration=60
        )
    first.save(
        folder / "disposed.gif",
        save_all=True,
        append_images=rest,
        duration=60,
        disposal=2,
    )


def _write_bad(folder: Path) -> None:
    """Writes damaged files, and files that are no media."""
    noise = np.random.default_rng(0).integers(-20, 20, (24, HEIGHT, WIDTH, 3))
    noisy = (moving_pattern(24, HEIGHT, WIDTH) + noise).clip(0, 255).astype(np.uint8)
    for name, codec in {
        **{"cut.mp4": "libx264", "cut.mkv": "libx264", "cut.avi": "mpeg4"},
        **{"cut.webm": "libvpx-vp9", "cut.nut": "ffv1"},
    }.items():
        path = write_video(folder / name, noisy, fps=FPS, codec=codec)
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    for name, codec in {"flipped.mp4": "mpeg4", "flipped.mkv": "ffv1"}.items():
        path = write_video(folder / name, noisy, fps=FPS, codec=codec)
        with av.open(str(path)) as container:
            packets = [p.pos for p in container.demux(video=0) if p.size and p.pos]
        data = bytearray(path.read_bytes())
        for i in range(40, 56):
            data[packets[12] + i] ^= 0x5A
        path.write_bytes(data)
    for name in ("plain.png", "plain.jpg", "plain.webp", "one.gif", "plain.tiff"):
        data = (folder / name).read_bytes()
        (folder / f"cut-{name}").write_bytes(data[: len(data) // 2])
    whole = (folder / "h264.mp4").read_bytes()
    (folder / "no-index.mp4").write_bytes(whole[:100])
    (folder / "video-named.jpg").write_bytes(whole)
    (folder / "image-named.mp4").write_bytes((folder / "plain.png").read_bytes())
    (folder / "empty.mp4").write_bytes(b"")
    (folder / "empty.png").write_bytes(b"")
    (folder / "zeros.mp4").write_bytes(bytes(5_000))
    (folder / "noise.mkv").write_bytes(np.random.default_rng(1).bytes(5_000))
    (folder / "words.avi").write_text("This is no video.\n" * 100)
    (folder / "page.webm").write_text("<html><body>404</body></html>\n")
    write_audio(folder / "sound.mkv")
    with wave.open(str(folder / "sound.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(8000))


BAD: dict[str, str] = {
    **dict.fromkeys(("empty.mp4", "empty.png"), "empty file"),
    **dict.fromkeys(
        ("zeros.mp4", "noise.mkv", "words.avi", "page.webm", "sound.wav", "icon.ico"),
        "not an image or video",
    ),
    **dict.fromkeys(
        [f"cut-plain.{s}" for s in ("png", "jpg", "webp", "tiff")] + ["cut-one.gif"],
        "damaged image",
    ),
    **{"no-index.mp4": "damaged video", "sound.mkv": "no video stream"},
    "large.png": "too many pixels",
}
"""Files that give nothing, and the reason."""

DAMAGED = frozenset(
    {*(f"cut.{s}" for s in ("mp4", "mkv", "avi", "webm", "nut")), "flipped.mp4"}
)
"""Videos that are used up to their damage. Changed bytes of FFV1 (flipped.mkv) go
unnoticed by FFmpeg too."""
