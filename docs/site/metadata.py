"""The URLs of the package, and its long description: README.md with links that work elsewhere.

A package index shows neither relative links nor pictures of the repository. So each of them becomes
absolute, and names the tag of the version. `address` in pyproject.toml is where the repository is;
while it is empty the package has no URLs, and README.md stays as it is.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<path>[^)\s]+)\)")
_ELSEWHERE = ("#", "http://", "https://", "mailto:")


class CustomMetadataHook(MetadataHookInterface):
    """What hatchling asks for the fields that pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in `readme` and `urls`."""
        address, tag = self.config["address"], f"v{metadata['version']}"
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": long_description(text, address, tag),
        }
        metadata["urls"] = urls(address, tag)


def urls(address: str, tag: str) -> dict[str, str]:
    """The URLs of a version of the package; none without an address."""
    if not address:
        return {}
    return {
        "Documentation": f"{address}/blob/{tag}/docs/index.md",
        "Source": address,
        "Changelog": f"{address}/blob/{tag}/docs/changelog.md",
        "Issues": f"{address}/issues",
    }


def long_description(text: str, address: str, tag: str) -> str:
    """A page of the repository with absolute links; the page itself without an address."""

    def absolute(link: re.Match[str]) -> str:
        picture, path = link["picture"], link["path"]
        words = _LINK.sub(absolute, link["text"])
        if not path.startswith(_ELSEWHERE):
            path = f"{address}/{'raw' if picture else 'blob'}/{tag}/{path}"
        return f"{picture}[{words}]({path})"

    return _LINK.sub(absolute, text) if address else text
