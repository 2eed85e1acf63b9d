"""What is packaged: the files of the wheel, and the systems that the program starts on."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import arena_topo

CLONE = Path(__file__).parent.parent
sys.path.insert(0, str(CLONE / ".ci"))

import check_dist  # noqa: E402


def test_the_wheel_has_each_file_of_the_program_and_no_other(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, CLONE],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert check_dist.in_wheel(wheel) == check_dist.expected_in_wheel()


def test_a_file_that_a_build_leaves_out_or_adds_is_named(tmp_path):
    stem = f"arena_topo-{arena_topo.__version__}"
    wheel = tmp_path / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{stem}.dist-info/METADATA", "Version: 0.0\n")
        archive.writestr("arena_topo/left_over.py", "")
        for path in check_dist.expected_in_wheel() - {"DATA/share/man/man1/arena-topo.1"}:
            archive.writestr(path.replace("DATA", f"{stem}.data/data"), "")
    with tarfile.open(tmp_path / f"{stem}.tar.gz", "w:gz") as archive:
        for path in check_dist.tracked() - {"LICENSE"}:
            archive.add(CLONE / path, f"{stem}/{path}")
    assert check_dist.problems(tmp_path, f"v{arena_topo.__version__}") == [
        f"{wheel.name} lacks DATA/share/man/man1/arena-topo.1",
        f"{wheel.name} has arena_topo/left_over.py, which is not its own",
        f"{stem}.tar.gz lacks LICENSE",
        f"the tag v{arena_topo.__version__} is not that of version 0.0",
        "`address` in pyproject.toml is empty: links of the package lead nowhere",
    ]


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


def test_the_image_is_built_from_all_that_the_wheel_is_built_from():
    """A missing folder of shared files is left out by the build without a word."""
    lines = (CLONE / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copies = [line.split()[1:-1] for line in lines if line.startswith("COPY ")]
    copied = {path for paths in copies for path in paths if not paths[0].startswith("--from")}
    needed = {*(folder.rstrip("/") for folder in check_dist.PLACES), "LICENSE", "README.md"}
    assert needed | {"pyproject.toml", "docs/site/metadata.py"} <= copied
    ignored = (CLONE / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line[1:] for line in ignored if line.startswith("!")}
    assert [path for path in copied if not {path, str(Path(path).parent)} & sent] == []


def locked(name):
    """The versions in a file of `.ci/requirements`, by normal name."""
    text = (CLONE / ".ci" / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    pins = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE)
    return {canonicalize_name(package): version for package, version in pins}


def test_what_is_locked_for_the_image_and_the_build_is_what_is_asked_for():
    """Else: .ci/lock, which needs uv."""
    config = tomllib.loads((CLONE / "pyproject.toml").read_text(encoding="utf-8"))
    project, groups = config["project"], config["dependency-groups"]
    asked = {
        "image": [*project["dependencies"], *project["optional-dependencies"]["agent"]],
        "build": [*groups["build"], *config["build-system"]["requires"]],
    }
    for name, requirements in asked.items():
        pins = locked(name)
        for requirement in map(Requirement, requirements):
            version = pins[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{requirement}: {version} is locked"


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
