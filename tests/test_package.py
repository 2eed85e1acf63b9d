"""What is packaged: the files of the wheel, and the systems that the program starts on."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

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
