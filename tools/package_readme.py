"""README.md as a package index shows it: links into this repository become absolute.

Hatchling runs this at build time. The address is Source in pyproject.toml's [project.urls], the
revision is the tag of the version that is built.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

IMAGE = re.compile(r'(!\[[^]]*\]\(|<img src=")(?![a-z]+:)')
LINK = re.compile(r"((?<=\))\]\(|(?<!!)\[[^][]*\]\()(?![a-z]+:|#)")  # the first: around an image


def absolute(text: str, source: str, version: str) -> str:
    """Markdown whose relative links name the tag of a version at an address."""
    text = IMAGE.sub(rf"\1{source}/raw/v{version}/", text)
    text = LINK.sub(rf"\1{source}/blob/v{version}/", text)
    return re.sub(r"/(?:raw|blob)/[^/]+/\.\./\.\./", "/", text)  # badges: pages of the repository


class CustomMetadataHook(MetadataHookInterface):
    """The field `readme` of the package's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = absolute(text, metadata["urls"]["Source"], metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
