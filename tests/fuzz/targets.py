"""What is fuzzed: a target makes inputs from samples of the repository, each from a random source.

A new target is a class with `name`, `share` and `make`, in TARGETS. Where its inputs need a world
(a server, a state folder), `opened` makes that, `prepare` brings it to what one input needs, and
`judged` may find more than `verdicts` does.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from . import mutators, verdicts
from .sandbox import Input, Outcome, Sandbox

TESTS = Path(__file__).resolve().parents[1]
DOCS = TESTS.parent / "docs"

PLAN = ("plan", "mpi", "--name=a", "--image=i", "--gputopology")
SUBMIT = ("submit", "mpi", "--name=a", "--image=i")


class Target:
    """One kind of input."""

    name: ClassVar[str]
    share: ClassVar[float]
    """About how many of 1,000 inputs are of this target: cheap ones get more."""
    few: ClassVar[int] = 60
    """Inputs of the short form."""
    log: ClassVar[bool] = False
    """Whether it shows logs, which may have carriage returns."""

    @contextmanager
    def opened(self, sandbox: Sandbox) -> Iterator[None]:
        """Make the world of the inputs."""
        del sandbox
        yield

    def make(self, rng: random.Random) -> Input:
        """An input, by `rng` alone."""
        raise NotImplementedError

    def prepare(self, given: Input) -> None:
        """Put everything where the input finds it; the folder of the run is the current one."""
        for name, data in given.files.items():
            Path(name).write_bytes(data)

    def judged(self, given: Input, outcome: Outcome) -> Iterator[verdicts.Finding]:
        """What is wrong with the run of an input."""
        del given
        yield from verdicts.of(outcome, log=self.log)


def texts(*patterns: str, below: Path = TESTS) -> tuple[bytes, ...]:
    """The files that match, in the order of their names."""
    found = [path for one in patterns for path in sorted(below.glob(one))]
    assert found, patterns
    return tuple(path.read_bytes() for path in found)


def _output(rng: random.Random, *formats: str) -> tuple[str, ...]:
    chosen = rng.choice(("", *formats))
    return ("-o", chosen) if chosen else ()


# ---------------------------------------------------------------- machines


class Matrices(Target):
    """What `nvidia-smi topo -m` prints."""

    name = "topo"
    share = 240
    samples = texts("machines/*.txt")
    fragments = (
        *mutators.FRAGMENTS,
        *(b"SYS", b"NODE", b"PHB", b"PXB", b"PIX", b"NV12", b"NV-1", b"NV999999999", b"NV" * 500),
        *(
            b"GPU0",
            b"GPU-1",
            b"GPU99999999999",
            b"NIC0",
            b"mlx5_0",
            b"\tGPU8",
            b"N/A",
            b"0-2147483647",
        ),
        *(b"CPU Affinity", b"NUMA Affinity", b"\x1b[4mGPU0", b"Legend:", b"NIC Legend:", b"0-3,5-"),
    )

    def make(self, rng: random.Random) -> Input:
        data = mutators.text(rng, rng.choice(self.samples), self.samples, self.fragments)
        line = ["topology", "show", "--from", "machine.txt"]
        if rng.random() < 0.1:
            line[1:2] = ["publish", "node-0", "--dry-run"]
        else:
            line += _output(rng, "json", "json", "yaml", "svg", "graphml")
        return Input(line=line, files={"machine.txt": data})


class Xml(Target):
    """What NCCL writes."""

    name = "xml"
    share = 150
    samples = texts("machines/*.xml")
    fragments = (
        *mutators.FRAGMENTS,
        b"<!DOCTYPE system [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;&a;'>]>",
        b"<!DOCTYPE x SYSTEM 'file:///etc/passwd'>",
        *(b"&b;", b"&#x1b;", b"&#0;", b"<![CDATA[", b"]]>", b"<!--", b"<topology>", b"</system>"),
        *(b"<?xml version='1.1' encoding='UTF-16'?>", b" dev='99999999999999999999'", b" busid=''"),
        *(b" target='0000:00:00.0'", b" count='-1'", b" count='1e9'", b" numaid='-1'", b"<system>"),
        *(b"<gpu dev='0'/>", b"<pci busid='0' class='0x030200'>", b"<a>" * 200 + b"</a>" * 200),
    )
    _attribute = re.compile(rb'(\w+)="([^"]*)"')

    def make(self, rng: random.Random) -> Input:
        data = rng.choice(self.samples)
        if rng.random() < 0.5:
            for _ in range(rng.choice((1, 2, 4))):
                data = self._other_attribute(rng, data)
        else:
            data = mutators.text(rng, data, self.samples, self.fragments)
        line = ["topology", "show", "--from", "machine.xml", *_output(rng, "json", "json", "svg")]
        return Input(line=line, files={"machine.xml": data})

    def _other_attribute(self, rng: random.Random, data: bytes) -> bytes:
        found = list(self._attribute.finditer(data))
        if not found:
            return data
        one = rng.choice(found)
        new = rng.choice(
            (
                rng.choice(found)[2],
                b"%a" % rng.choice(mutators.INTEGERS),
                rng.choice(mutators.TEXTS).encode("utf-8", "surrogatepass"),
            )
        )
        new = new.replace(b'"', b"&quot;").replace(b"<", b"&lt;")
        return data[: one.start(2)] + new + data[one.end(2) :]


class Documents(Target):
    """Machines as JSON and as ConfigMaps, as the program itself writes them."""

    name = "machines"
    share = 150

    @contextmanager
    def opened(self, sandbox: Sandbox) -> Iterator[None]:
        """Let the program write its presets down."""
        presets = _asked(sandbox, "topology", "presets", "-o", "json")
        lines = [
            (*words, "-o", "json")
            for name in [one["name"] for one in presets["items"]]
            for words in (("show", name), ("publish", "node-0", "--preset", name, "--dry-run"))
        ]
        # A preset of which nobody knows the links is not published.
        found = [_asked(sandbox, "topology", *line) for line in lines]
        self._samples = [mutators.Sample.of(one) for one in found if one is not None]
        yield

    def make(self, rng: random.Random) -> Input:
        data = mutators.encoded(mutators.value(rng, rng.choice(self._samples)), rng)
        if rng.random() < 0.2:
            data = mutators.text(rng, data)
        line = ["topology", "show", "--from", "machine.json"]
        return Input(
            line=[*line, *_output(rng, "json", "yaml", "svg", "graphml")],
            files={"machine.json": data},
        )


def _asked(sandbox: Sandbox, *line: str) -> Any:
    """What the program answers, as JSON; None if that is an error."""
    outcome = sandbox.run(Input(line=line))
    return json.loads(outcome.out) if outcome.code == 0 else None


class Calibrations(Target):
    """Measured bandwidths of machines."""

    name = "calibration"
    share = 160
    samples = tuple(
        mutators.Sample.of(one)
        for one in (
            {"0,1,2,3": 82.1},
            {"0,1": 40, "0,1,2,3,4,5,6,7": 115.81},
            {"node": "node-0", "busBandwidth": {"0,3": 44.2}, "bytes": 4294967296},
        )
    )

    def make(self, rng: random.Random) -> Input:
        data = mutators.encoded(mutators.value(rng, rng.choice(self.samples)), rng)
        if rng.random() < 0.5:
            data = mutators.text(rng, data)
        line = ["topology", "publish", "node-0", "--preset=dgx-1-v100", "--dry-run"]
        return Input(
            line=[*line, "--bus-bandwidth", "measured.json"], files={"measured.json": data}
        )


class Fabrics(Target):
    """Files that say how nodes are linked."""

    name = "fabric"
    share = 25
    few = 50
    pages = texts("fabrics/*.yaml")
    nodes = texts("dumps/racks.yaml")[0]

    def __init__(self) -> None:
        self._samples = [mutators.Sample.of(one) for one in _loaded(self.pages)]

    def make(self, rng: random.Random) -> Input:
        if rng.random() < 0.4:
            data = mutators.text(rng, rng.choice(self.pages), self.pages)
        else:
            changed = mutators.value(rng, rng.choice(self._samples))
            write = rng.choice((mutators.yaml, mutators.encoded))
            data = write(changed, rng)
        line: Sequence[str] = ("topology", "show", *_output(rng, "json", "svg", "graphml"))
        if rng.random() < 0.5:
            line = (*PLAN, "--gpus=2", "--workers=3", "x")
        given = ("--fabric", "fabric.yaml", "--state", "nodes.yaml")
        return Input(line=(*line, *given), files={"fabric.yaml": data, "nodes.yaml": self.nodes})


def _loaded(pages: Sequence[bytes]) -> list[Any]:
    import yaml  # noqa: PLC0415 - slow to load

    return [one for page in pages for one in yaml.safe_load_all(page) if one]


# ---------------------------------------------------------------- clusters


class Dumps(Target):
    """What `kubectl get -o json` or `-o yaml` wrote, for `--state`."""

    name = "state"
    share = 30
    few = 50

    @contextmanager
    def opened(self, sandbox: Sandbox) -> Iterator[None]:
        """Dump a cluster with jobs, besides the samples."""
        from .clusters import dumped  # noqa: PLC0415 - only here

        found = _loaded(texts("dumps/*"))
        found += dumped(sandbox)
        self._whole = [mutators.Sample.of(one) for one in found]
        self._items = [
            (one["items"], [mutators.Sample.of(item) for item in one["items"]])
            for one in found
            if "items" in one
        ]
        yield

    def make(self, rng: random.Random) -> Input:
        given = self._several(rng) if rng.random() < 0.8 else self._one(rng)
        data = (
            mutators.yaml(given, rng)
            if rng.random() < 0.15 and _size(given) < 60
            else mutators.encoded(given, rng)
        )
        if rng.random() < 0.2:
            data = mutators.text(rng, data)
        state = ("--state", "state")
        gang = ("--gpus=2", "--workers=2", "x")
        line = rng.choice(
            (
                (*PLAN, *gang),
                (*PLAN, "--gpus=8", "--workers=2", "-o", "json", "x"),
                (*PLAN, "--gpus=1", "--workers=3", "--policy=spread", *_output(rng, "svg"), "x"),
                (*SUBMIT, "--gputopology", "--dry-run", "-o", "yaml", *gang),
                ("top", "node"),
                ("top", "node", "-d"),
                ("top", "node", "--frag"),
                ("top", "node", "-o", "json"),
                ("top", "job"),
                ("topology", "show", *_output(rng, "json", "svg")),
                ("topology", "show", "node-0"),
            )
        )
        return Input(line=(*line, *state), files={"state": data})

    def _one(self, rng: random.Random) -> Any:
        given = mutators.value(rng, rng.choice(self._whole))
        return (
            {"apiVersion": "v1", "kind": "List", "items": [given]} if rng.random() < 0.2 else given
        )

    def _several(self, rng: random.Random) -> Any:
        """A dump in which some objects are changed."""
        items, samples = rng.choice(self._items)
        changed = list(items)
        for _ in range(rng.choice((1, 1, 2, 4, 10))):
            kind = rng.choice(sorted({one["kind"] for one in items}))
            at = rng.choice([at for at, one in enumerate(items) if one["kind"] == kind])
            changed[at] = mutators.value(rng, samples[at])
        return {"apiVersion": "v1", "kind": "List", "items": changed}


def _size(given: Any) -> int:
    items = given.get("items") if isinstance(given, dict) else None
    return len(items) if isinstance(items, list) else 0


# ---------------------------------------------------------------- logs


class NcclLogs(Target):
    """What NCCL writes with NCCL_DEBUG=INFO, and nccl-tests."""

    name = "nccl"
    share = 120
    samples = (
        *texts("nccl/*.log"),
        b"""# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1073741824
# Rank  0 Group  0 Pid    101 on measure-worker-0 device  0 [0000:06:00] Tesla V100-SXM2-32GB
# Rank  1 Group  0 Pid    102 on measure-worker-0 device  1 [0000:07:00] Tesla V100-SXM2-32GB
#       size         count      type   redop    root     time   algbw   busbw #wrong
  1073741824     268435456     float     sum      -1  16500.0   65.08  113.88      0
""",
    )

    def make(self, rng: random.Random) -> Input:
        data = mutators.text(rng, rng.choice(self.samples), self.samples)
        line = ["logs", "--nccl", "--from", "nccl.log"]
        more = rng.choice(((), (), ("-o", "json"), ("--bus-bandwidth",)))
        return Input(line=[*line, *more], files={"nccl.log": data})


_MEASURED: Mapping[str, Any] = {
    "version": 1,
    "args": ["./build/all_reduce_perf", "-g", "8"],
    "config": {
        "devices": [
            {
                "rank": rank,
                "pid": 1,
                "hostname": "a",
                "device": rank,
                "device_hex": "0000:06:00",
            }
            for rank in range(8)
        ]
    },
    "results": [
        {"size": 1 << power, "out_of_place": {"bus_bw": power * 9.5, "nwrong": 0}}
        for power in (20, 27, 33)
    ],
}
"""What nccl-tests writes with -J."""


class Forecasts(Documents):
    """Machines of any kind with any options, and what nccl-tests measured beside them."""

    name = "forecast"
    share = 100

    def make(self, rng: random.Random) -> Input:
        machine = mutators.encoded(mutators.value(rng, rng.choice(self._samples)), rng)
        line = ["forecast", "machine.json", *_output(rng, "json", "svg")]
        for options in (
            ("--nodes=2", "--nodes=3", "--nodes=0", "--nodes=x"),
            ("--gpus=1", "--gpus=2", "--gpus=5", "--gpus=-1"),
            ("--set=0,1", "--set=3,1,0", "--set=0,0", "--set=,"),
            ("--nics=8x400G", "--nics=1x0.5GB", "--nics=0x400G", "--nics=4x\u0664G"),
            ("--pod-shape=separate", "--pod-shape=fused", "--tcp"),
            ("--algorithm=ring", "--algorithm=tree", "--algorithm=nvls"),
            ("--gpu-model=H100", "--gpu-model=RTX 4090", "--gpu-model=\x1b[31m"),
        ):
            line += [rng.choice(options)] if rng.random() < 0.3 else []
        if rng.random() < 0.5:
            line[1] = "hgx-h100"
        if rng.random() < 0.5:
            return Input(line=line, files={"machine.json": machine})
        log = rng.choice(NcclLogs.samples)
        if rng.random() < 0.6:
            changed = mutators.value(rng, mutators.Sample.of(_MEASURED))
            log = mutators.encoded(changed, rng)
        else:
            log = mutators.text(rng, log, NcclLogs.samples)
        line += ["--against", "measured.log"]
        return Input(line=line, files={"machine.json": machine, "measured.log": log})


# ---------------------------------------------------------------- files of the user


class JobFiles(Target):
    """Jobs as files."""

    name = "job"
    share = 22
    few = 50
    state = texts("dumps/two-dgx-1.json")[0]

    def __init__(self) -> None:
        pages = [(DOCS / f"{name}.md").read_text() for name in ("job-file", "moving-from-arena")]
        blocks = [
            one for page in pages for one in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
        ]
        assert blocks
        self._pages = [
            *(one.encode() for one in blocks),
            b"name: x\ngpus: 2\ngputopology: true\nenv: {NCCL_DEBUG: INFO}\ncommand: mpirun x\n",
        ]
        self._samples = [
            mutators.Sample.of(one) for one in _loaded(self._pages) if isinstance(one, dict)
        ]
        self._keys = sorted(json.loads((DOCS / "job.schema.json").read_text())["properties"])

    def make(self, rng: random.Random) -> Input:
        match rng.randrange(4):
            case 0 | 1:
                data = mutators.text(rng, rng.choice(self._pages), self._pages)
            case 2:
                write = rng.choice((mutators.yaml, mutators.encoded))
                data = write(mutators.value(rng, rng.choice(self._samples)), rng)
            case _:
                data = rng.choice((mutators.yaml, mutators.encoded))(self._any_keys(rng), rng)
        name, stdin = ("-", data) if rng.random() < 0.1 else ("job.yaml", b"")
        line: Sequence[str] = rng.choice(
            (
                ("submit", "mpi", "--dry-run", "--backend=local", *_output(rng, "yaml", "json")),
                ("plan", "mpi", "--state", "state.json"),
                ("submit", "mpi", "--dry-run", "--state", "state.json", "-o", "yaml"),
            )
        )
        if line[0] == "submit":
            line = (*line, "--api-version", rng.choice(("v1", "v1alpha1", "v2beta1")))
        files = {"job.yaml": data, "state.json": self.state}
        return Input(line=(*line, "-f", name), files=files, stdin=stdin)

    def _any_keys(self, rng: random.Random) -> Mapping[str, Any]:
        """A job with some keys that its schema has, each with any value."""
        likely = ("1", 1, True, "a=b", ["a=b"], {"a": "b"}, [{"name": "a"}], "1Gi", "10m", ["a"])
        made = {"name": "x", "image": "local", "gpus": 1, "command": "true"}
        for key in rng.sample(self._keys, rng.randrange(1, min(12, len(self._keys)))):
            made[key] = mutators.hostile(rng) if rng.random() < 0.4 else rng.choice(likely)
        return made


class Settings(Target):
    """Settings files."""

    name = "settings"
    share = 25
    few = 50
    samples = (
        b"""namespace = "team-a"
request-timeout = "10s"
default-profile = "lab"
[submit]
image = "team/horovod:0.28"
image-pull-secret = ["registry"]
gputopology = true
gang = true
env = {NCCL_DEBUG = "WARN", A = "b"}
[profile.lab]
context = "lab"
[profile.prod]
context = "prod"
namespace = "training"
[profile.prod.submit]
priority = "high"
env = {NCCL_DEBUG = "ERROR"}
""",
        b"""backend = "local"
emulate = "dgx-1-v100:2"
color = "never"
quiet = false
loglevel = "info"
timeout = "10s"
as = "x"
as-group = ["a", "b"]
[submit]
workers = 2
gpus = 1
min-bandwidth = 1.5
toleration = ["all"]
label = {a = "b"}
retry = 2
share-memory = "1Gi"
""",
    )
    extra = (
        *(
            b"[[submit]]",
            b"[submit.env]",
            b"a.b.c = 1",
            b"x = 2020-01-01",
            b"x = 1e400",
            b"x = inf",
        ),
        *(b"x = nan", b"x = 0x" + b"f" * 5000, b"x = " + b"[" * 2000, b"x = " + b"9" * 5000),
        *(
            b"[profile]",
            b'"" = 1',
            b'"\\u001b" = "a"',
            b'namespace = "\\u001b[5;45m"',
            b"profile = 3",
        ),
        *(
            b"namespace = '''\n\n'''",
            b"[profile.'']",
            b"default-profile = 3",
            b"request-timeout = 1",
        ),
        *(b"emulate = 'dgx-1-v100:999999999'", b"emulate = 'dgx-1-v100:2,'", b"a" * 3000 + b" = 1"),
        *(
            b"[submit]\nimage = 1979-05-27T07:32:00Z",
            b"a." * 2000 + b"b = 1",
            b"[" + b"a." * 2000 + b"b]",
        ),
        b"[submit]\nenv = {" + b", ".join(b"A%d = 'b'" % at for at in range(3000)) + b"}",
    )
    lines = (
        ("config", "view"),
        ("config", "view", "--resolved"),
        ("config", "view", "--resolved", "-o", "json"),
        ("config", "view", "--profile", "prod"),
        ("list", "--backend", "local"),
        (*SUBMIT, "--backend", "local", "--dry-run", "x"),
    )

    def make(self, rng: random.Random) -> Input:
        data = rng.choice(self.samples)
        for _ in range(rng.choice((0, 1, 2))):
            lines = data.split(b"\n")
            lines.insert(rng.randrange(len(lines) + 1), rng.choice(self.extra))
            data = b"\n".join(lines)
        if rng.random() < 0.7:
            data = mutators.text(rng, data, self.samples)
        variable = rng.choice(("ARENA_TOPO_SETTINGS", "ARENA_TOPO_SETTINGS", "ARENA_CONFIG"))
        return Input(
            line=rng.choice(self.lines),
            files={"settings.toml": data},
            variables={variable: "settings.toml"},
        )


class Kubeconfigs(Target):
    """Kubeconfigs; the servers in them refuse connections."""

    name = "kubeconfig"
    share = 40
    few = 50
    sample = mutators.Sample.of(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [
                {
                    "name": "k",
                    "cluster": {
                        "server": "https://127.0.0.1:1",
                        "certificate-authority-data": "QQ==",
                        "certificate-authority": "ca.pem",
                        "insecure-skip-tls-verify": False,
                        "proxy-url": "http://127.0.0.1:2",
                        "tls-server-name": "x",
                    },
                },
                {"name": "h", "cluster": {"server": "http://127.0.0.1:1"}},
            ],
            "users": [
                {
                    "name": "u",
                    "user": {
                        "token": "a-token",
                        "tokenFile": "token",
                        "username": "a",
                        "password": "a-password",
                        "as": "x",
                        "as-groups": ["g"],
                        "client-certificate-data": "QQ==",
                        "client-key-data": "QQ==",
                        "client-certificate": "client.pem",
                        "client-key": "client.key",
                    },
                },
                {
                    "name": "e",
                    "user": {
                        "exec": {
                            "apiVersion": "client.authentication.k8s.io/v1",
                            "command": "true",
                            "args": ["a"],
                            "env": [{"name": "A", "value": "b"}],
                            "interactiveMode": "Never",
                            "installHint": "x",
                        }
                    },
                },
                {
                    "name": "p",
                    "user": {"auth-provider": {"name": "oidc", "config": {"id-token": "x"}}},
                },
                {"name": "n", "user": {}},
            ],
            "contexts": [
                {"name": "c", "context": {"cluster": "h", "user": "u", "namespace": "ns"}},
                {"name": "d", "context": {"cluster": "k", "user": "e"}},
                {"name": "p", "context": {"cluster": "h", "user": "p"}},
            ],
        }
    )
    lines = (
        ("list",),
        ("whoami",),
        ("config", "view"),
        ("get", "x"),
        ("version",),
        ("top", "node"),
        (*SUBMIT, "x"),
        ("list", "--loglevel", "debug"),
    )
    contexts = (
        *((), (), ("--context", "d"), ("--context", "p"), ("--user", "e"), ("--cluster", "k")),
        ("--user", "n"),
    )

    def __init__(self) -> None:
        import yaml  # noqa: PLC0415 - slow to load

        self._page = yaml.safe_dump(self.sample.value).encode()

    def make(self, rng: random.Random) -> Input:
        if rng.random() < 0.4:
            data = mutators.text(rng, self._page)
        else:
            write = rng.choice((mutators.yaml, mutators.encoded))
            data = write(mutators.value(rng, self.sample), rng)
        more = ("--kubeconfig", "kubeconfig", "--request-timeout", "1s", "--timeout", "5s")
        line = (*rng.choice(self.lines), *more, *rng.choice(self.contexts))
        return Input(line=line, files={"kubeconfig": data})


@functools.cache
def every() -> Mapping[str, type[Target]]:
    """All targets by their names."""
    from .answers import Claims, Reads, Writes  # noqa: PLC0415 - they build on this module
    from .lines import Lines  # noqa: PLC0415
    from .local import KeptLogs, LocalJobs  # noqa: PLC0415

    targets: Sequence[type[Target]] = (
        *(Matrices, Xml, Documents, Calibrations, Fabrics, Dumps, NcclLogs, Forecasts, JobFiles),
        *(Settings, Kubeconfigs, Lines, LocalJobs, KeptLogs, Reads, Writes, Claims),
    )
    return {one.name: one for one in targets}
