"""The shell scripts of the pods, of CI and of the tests, as a linter reads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CLONE = Path(__file__).parent.parent


def test_shellcheck_finds_no_fault_in_any_shell_script():
    scripts = [CLONE / ".ci/run", *CLONE.glob("templates/**/*.sh"), *CLONE.glob("tests/**/*.sh")]
    assert len(scripts) > 2
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_templates_leave_shell_to_the_files_that_are_checked():
    blocks = [
        f"{path.name}: {line.strip()}"
        for path in CLONE.glob("templates/mpijob/*.j2")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.endswith("- |")
    ]
    assert blocks == []
