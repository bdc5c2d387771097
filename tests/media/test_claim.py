"""Tests of jaxload.media.claim."""

from pathlib import Path

import pytest

from jaxload.errors import InputError
from jaxload.media.claim import claim

PLUGINS = {
    "version": 1,
    "codec": "haar",
    "codec_name": "haar",
    "channels": 16,
    "text_encoder": "hashed-ngrams",
    "text_dim": 64,
}
OTHER = {**PLUGINS, "codec": "a:B", "codec_name": "b 1", "channels": 3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, r"begun with codec 'haar', got 'a:B'; finish it with the same codec"),
        ({"geometry": "strides 2x8x8"}, r"begun with codec 'haar', got 'a:B'"),
        ({"text_encoder": "c:D", "text_dim": 26}, r"begun with codec 'haar'"),
        ({"codec": "haar"}, r"begun with codec_name 'haar', got 'b 1'"),
    ],
)
def test_another_codec_is_named_before_its_sizes(
    tmp_path: Path, change: dict[str, str | int], message: str
):
    claim(tmp_path, PLUGINS)
    with pytest.raises(InputError, match=message):
        claim(tmp_path, {**OTHER, **change})
