"""Check the built files of a release: `python .ci/check_dist.py FOLDER [TAG]`.

The folder has a wheel and a source distribution, and nothing else. Each has the files that git
tracks for it, and no others: a build that leaves one out fails. With a tag, the tag names the
version, and the package names where the repository is.
"""

from __future__ import annotations

import email
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

CLONE = Path(__file__).resolve().parents[1]

PLACES = {
    "arena_topo/": "arena_topo/",
    "templates/": "arena_topo/templates/",
    "completions/": "arena_topo/completions/",
    "docs/man/": "DATA/share/man/man1/",
}
"""Folders of the clone, and where the wheel has their files."""

COMPLETIONS = frozenset(
    {
        "DATA/share/bash-completion/completions/arena-topo",
        "DATA/share/zsh/site-functions/_arena-topo",
        "DATA/share/fish/vendor_completions.d/arena-topo.fish",
    }
)


def tracked() -> frozenset[str]:
    """The files of the clone that git tracks, or would if they were added."""
    line = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(line, cwd=CLONE, check=True, capture_output=True, text=True)
    return frozenset(path for path in listed.stdout.split("\0") if (CLONE / path).is_file())


def expected_in_wheel() -> frozenset[str]:
    """What the wheel must have beside its `.dist-info`; `DATA` is its folder for shared files."""
    packaged = {
        place + path.removeprefix(folder)
        for folder, place in PLACES.items()
        for path in tracked()
        if path.startswith(folder)
    }
    return packaged | COMPLETIONS


def in_wheel(wheel: Path) -> frozenset[str]:
    """The files of a wheel beside its `.dist-info`, named as in `expected_in_wheel`."""
    data = wheel.name.split("-py3")[0] + ".data/data/"
    with zipfile.ZipFile(wheel) as archive:
        names = (name for name in archive.namelist() if ".dist-info/" not in name)
        return frozenset(name.replace(data, "DATA/") for name in names)


def in_source(source: Path) -> frozenset[str]:
    """The files of a source distribution, without its folder and its PKG-INFO."""
    with tarfile.open(source) as archive:
        names = (member.name.partition("/")[2] for member in archive if member.isfile())
        return frozenset(names) - {"PKG-INFO"}


def difference(what: str, has: frozenset[str], expected: frozenset[str]) -> list[str]:
    """What is wrong with a list of files, one line each."""
    return [
        *(f"{what} lacks {path}" for path in sorted(expected - has)),
        *(f"{what} has {path}, which is not its own" for path in sorted(has - expected)),
    ]


def problems(folder: Path, tag: str | None) -> list[str]:
    """All that is wrong with the files in a folder."""
    wheels, sources = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if (len(wheels), len(sources)) != (1, 1) or len(list(folder.iterdir())) != 2:  # noqa: PLR2004
        return [f"{folder} does not have a wheel, a source distribution, and nothing else"]
    wheel, source = wheels[0], sources[0]
    wrong = difference(wheel.name, in_wheel(wheel), expected_in_wheel())
    wrong += difference(source.name, in_source(source), tracked())
    if tag is not None:
        stem = wheel.name.split("-py3")[0]
        with zipfile.ZipFile(wheel) as archive:
            metadata = email.message_from_bytes(archive.read(f"{stem}.dist-info/METADATA"))
        if tag != f"v{metadata['Version']}":
            wrong.append(f"the tag {tag} is not that of version {metadata['Version']}")
        if not metadata.get_all("Project-URL"):
            wrong.append("`address` in pyproject.toml is empty: links of the package lead nowhere")
    return wrong


if __name__ == "__main__":
    found = problems(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)  # noqa: PLR2004
    sys.exit("\n".join(found) or 0)
