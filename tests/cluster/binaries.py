"""The programs of the test cluster: built from their modules once, and kept in a cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

MODULE = Path(__file__).parent / "controlplane"
KWOK = "v0.8.0"
KUBERNETES = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kubelet-logs",
)
VERSION_VARIABLES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


class CannotBuild(Exception):
    """Something that the build needs is missing, or the build failed."""


def cache() -> Path:
    """Where built programs are kept, and nothing else is."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "arena-topo-tests"


def missing() -> list[str]:
    """What has to be installed before the test cluster can be built and started."""
    needed = ["etcd", "openssl", "setpriv"]
    if not built().is_dir():
        needed.insert(0, "go")
    return [name for name in needed if shutil.which(name) is None]


def built() -> Path:
    """The folder of the programs, named after all that they are made from."""
    made_from = hashlib.sha256(KWOK.encode())
    for name in ("go.mod", "go.sum", "kubelet_logs.go", "main.go"):
        made_from.update((MODULE / name).read_bytes())
    return cache() / made_from.hexdigest()[:16]


def build(tell: Callable[[str], object]) -> Path:
    """Build the programs unless that was done before; the folder that has them.

    Raises:
        CannotBuild: Go is missing, or it failed.
    """
    folder = built()
    if folder.is_dir():
        return folder
    if shutil.which("go") is None:
        raise CannotBuild("Go is not installed")
    began = time.monotonic()
    tell("building Kubernetes and kwok, once: about 12 minutes of CPU time")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as name:
        new = Path(name) / "programs"
        new.mkdir()
        release = _go("list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes").strip()
        major, minor, _ = release.removeprefix("v").split(".", 2)
        said = {"gitVersion": release, "gitMajor": major, "gitMinor": minor}
        version = [
            f"-X {package}.{key}={value}"
            for package in VERSION_VARIABLES
            for key, value in said.items()
        ]
        smaller = "-s -w"
        flags = ("-trimpath", "-buildvcs=false")
        _go("build", *flags, f"-ldflags={' '.join([smaller, *version])}", "-o", str(new / "all"))
        for one in KUBERNETES:
            (new / one).symlink_to("all")
        _go("install", *flags, f"-ldflags={smaller}", f"sigs.k8s.io/kwok/cmd/kwok@{KWOK}", to=new)
        # Whoever builds at the same time makes the same: the first one wins.
        if not folder.is_dir():
            new.rename(folder)
    tell(f"built in {time.monotonic() - began:.0f} s: {folder}")
    return folder


def _go(*words: str, to: Path | None = None) -> str:
    environment = {**os.environ, "GOWORK": "off", "CGO_ENABLED": "0"}
    if to is not None:
        environment["GOBIN"] = str(to)
    done = subprocess.run(
        ["go", *words], cwd=MODULE, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CannotBuild(f"go {words[0]}: {done.stderr.strip()[-2000:]}")
    return done.stdout
