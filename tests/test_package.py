"""What is packaged: the files of the wheel, and the systems that the program starts on."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import arena_topo

CLONE = Path(__file__).parent.parent

PLACES = {
    "arena_topo": "arena_topo",
    "templates": "arena_topo/templates",
    "completions": "arena_topo/completions",
    "docs/man": "DATA/share/man/man1",
}
"""Folders of the clone, and where the wheel has their files."""

COMPLETIONS = {
    "DATA/share/bash-completion/completions/arena-topo",
    "DATA/share/zsh/site-functions/_arena-topo",
    "DATA/share/fish/vendor_completions.d/arena-topo.fish",
}


def test_the_wheel_has_each_file_of_the_program_and_no_other(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, CLONE],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        data = wheel.name.split("-py3")[0] + ".data/data/"
        packaged = {
            name.replace(data, "DATA/") for name in archive.namelist() if ".dist-info/" not in name
        }
    expected = {
        f"{place}/{path.relative_to(CLONE / folder).as_posix()}"
        for folder, place in PLACES.items()
        for path in (CLONE / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packaged == expected | COMPLETIONS


def metadata_at(address):
    """The metadata of the package if `address` were where the repository is."""
    config = tomllib.loads((CLONE / "pyproject.toml").read_text(encoding="utf-8"))
    config["tool"]["hatch"]["metadata"]["hooks"]["custom"]["address"] = address
    return ProjectMetadata(str(CLONE), PluginManager(), config).core


def test_the_long_description_has_no_link_that_a_package_index_cannot_follow():
    text = metadata_at("https://forge.example/team/arena-topo").readme
    tag = f"v{arena_topo.__version__}"
    targets = re.findall(r"(!?)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)", text)
    places = {"!": f"https://forge.example/team/arena-topo/raw/{tag}/"}
    ours = 0
    for picture, target in targets:
        place = places.get(picture, f"https://forge.example/team/arena-topo/blob/{tag}/")
        assert target.startswith(("#", "https://")), target
        if target.startswith(place):
            path = target.removeprefix(place).partition("#")[0]
            assert (CLONE / path).is_file(), target
            ours += 1
        else:
            assert "forge.example" not in target
    assert ours > 20


def test_the_urls_of_the_package_are_made_of_one_address_and_absent_without_it():
    urls = metadata_at("https://forge.example/team/arena-topo").urls
    assert set(urls) == {"Documentation", "Source", "Changelog", "Issues"}
    assert all(url.startswith("https://forge.example/team/arena-topo") for url in urls.values())
    assert metadata_at("").urls == {}
    assert metadata_at("").readme == (CLONE / "README.md").read_text(encoding="utf-8")


def test_windows_is_refused_in_a_line_that_names_the_way_out():
    # Windows is simulated: its Python has neither SIGHUP nor fcntl.
    start = (
        "import signal, sys; sys.platform = 'win32'; del signal.SIGHUP; "
        "sys.modules['fcntl'] = None; "
        "sys.argv = ['arena-topo', '--version']; from arena_topo.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", start], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "error: arena-topo does not run on Windows\n  try: run it in WSL, on Linux\n"
    )
