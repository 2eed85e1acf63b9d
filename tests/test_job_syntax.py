"""What no cluster takes is refused with its flag before anything is created."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena_topo import cli
from arena_topo.errors import InvalidJob
from arena_topo.job import Device, Duration, EnvVar, KeyValue, MPIJob, Toleration
from arena_topo.names import is_key, is_label_value, is_subdomain, is_word

WORDS = "at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
KEYS = f"{WORDS}, after a DNS name and '/' if need be: team or example.com/team"
NAMES = "at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends"
VARIABLE = "letters, digits, '_', '-' and '.', no digit and no '..' first, and not '.' alone"
IMAGE = "the name of an image, such as team/train:1"
SHELL = "a program such as sh or bash"


def a_job(**said: Any) -> MPIJob:
    return MPIJob(**({"name": "demo", "command": "mpirun true", "image": "horovod:0.20"} | said))


def pair(key: str, value: str = "x") -> tuple[KeyValue]:
    return (KeyValue(key=key, value=value),)


def bears(**said: str) -> tuple[Toleration]:
    return (Toleration(**said),)


@pytest.mark.parametrize(
    ("said", "flag", "why", "form"),
    [
        ({"label": pair("te am")}, "--label", "'te am' is no key", KEYS),
        ({"label": pair("-team")}, "--label", "'-team' is no key", KEYS),
        ({"label": pair("/team")}, "--label", "'/team' is no key", KEYS),
        ({"label": pair("a/b/c")}, "--label", "'a/b/c' is no key", KEYS),
        ({"label": pair("Example.com/team")}, "--label", "'Example.com/team' is no key", KEYS),
        ({"label": pair("k" * 64)}, "--label", f"'{'k' * 60}...' is no key", KEYS),
        ({"label": pair("k", "a b")}, "--label", "'a b' is no value of a label", WORDS),
        ({"label": pair("k", "nlp/")}, "--label", "'nlp/' is no value of a label", WORDS),
        ({"selector": pair("a@b")}, "--selector", "'a@b' is no key", KEYS),
        ({"selector": pair("k", "ä")}, "--selector", "'ä' is no value of a label", WORDS),
        ({"toleration": bears(key="a b")}, "--toleration", "'a b' is no key", KEYS),
        (
            {"toleration": bears(key="a", value="b c")},
            "--toleration",
            "'b c' is no value of a label",
            WORDS,
        ),
        ({"annotation": pair("No key")}, "--annotation", "'No key' is no key", KEYS),
        (
            {"model_name": "my model", "model_source": "s3://m"},
            "--model-name",
            "'my model' is no value of a label",
            WORDS,
        ),
        (
            {"env": (EnvVar(key="1ST", value="x"),)},
            "--env",
            "'1ST' is no name of a variable",
            VARIABLE,
        ),
        (
            {"env": (EnvVar(key="PATH ", value="x"),)},
            "--env",
            "'PATH ' is no name of a variable",
            VARIABLE,
        ),
        *(
            (
                {"env": (EnvVar(key=key, value="x"),)},
                "--env",
                f"{key!r} is no name of a variable",
                VARIABLE,
            )
            for key in (".", "..", "..a", "...")
        ),
        (
            {"image_pull_secret": ("ok", "Not_ok")},
            "--image-pull-secret",
            "nothing can be called 'Not_ok'",
            NAMES,
        ),
        ({"service_account": "a b"}, "--service-account", "nothing can be called 'a b'", NAMES),
        ({"data": ("ok:/a", "My_Claim:/x")}, "--data", "nothing can be called 'My_Claim'", NAMES),
        ({"priority": "High"}, "--priority", "nothing can be called 'High'", NAMES),
        ({"image": "my image:1"}, "--image", "'my image:1' is no image", IMAGE),
        ({"image": "image:1\n"}, "--image", r"'image:1\n' is no image", IMAGE),
        ({"sync_image": "git sync"}, "--sync-image", "'git sync' is no image", IMAGE),
        ({"tensorboard_image": " x"}, "--tensorboard-image", "' x' is no image", IMAGE),
        ({"shell": "bash -l"}, "--shell", "'bash -l' is no shell", SHELL),
        ({"shell": ""}, "--shell", "'' is no shell", SHELL),
    ],
)
def test_what_no_cluster_takes_is_refused_by_flag_with_the_form_that_it_takes(
    said: dict[str, Any], flag: str, why: str, form: str
):
    with pytest.raises(InvalidJob) as caught:
        a_job(**said)
    error = caught.value
    assert (error.message, error.why, error.hint) == (f"{flag} is invalid", why, f"it takes {form}")
    assert error.exit_code == 2


@pytest.mark.parametrize(
    "said",
    [
        {"label": (*pair("example.com/Team_1.x", ""), *pair("k" * 63, "v" * 63))},
        {"selector": pair("feature.node.kubernetes.io/pci-10de.present", "true")},
        {"annotation": pair("Example.com/Note", "any {text}: at all\n")},
        {"toleration": bears(operator="Exists")},
        {"env": (EnvVar(key="my.var-1", value=""), EnvVar(key="_X", value="a b"))},
        {"env": (EnvVar(key=".a", value="x"), EnvVar(key="a..", value="x"))},
        {"image": "registry:5000/team/image@sha256:0123"},
        {"scheduler": "My_Scheduler"},
        {"image_pull_secret": ("",)},
        {"retry": (1 << 31) - 1},
    ],
)
def test_what_clusters_take_passes(said: dict[str, Any]):
    job = a_job(**said)
    assert {name: getattr(job, name) for name in said} == said


@pytest.mark.parametrize(
    ("said", "flag"),
    [
        ({"workers": 1 << 31}, "--workers"),
        ({"retry": 10**12}, "--retry"),
        ({"ttl_after_finished": Duration(1 << 31)}, "--ttl-after-finished"),
        ({"running_timeout": Duration(1 << 31)}, "--running-timeout"),
    ],
)
def test_numbers_that_no_mpijob_can_hold_are_refused(said: dict[str, Any], flag: str):
    with pytest.raises(InvalidJob) as caught:
        a_job(**said)
    assert caught.value.message == f"{flag} is invalid"
    assert caught.value.why is not None
    assert caught.value.why.endswith(" is more than 2147483647")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gpu=1", "invalid device 'gpu=1', refer to amd.com/gpu=1"),
        ("cpu=4", "please use '--cpu 4' instead of '--device cpu=4'"),
        ("memory=1Gi", "please use '--memory 1Gi' instead of '--device memory=1Gi'"),
        ("amd.com/gpu=500m", "device value '500m' is no whole number of devices"),
    ],
)
def test_a_device_that_no_pod_can_ask_for_is_refused(text: str, why: str):
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        Device.parse(text)


@pytest.mark.parametrize("text", ["hugepages-2Mi=64Mi", "ephemeral-storage=1.5Gi", "a.b/c=1k"])
def test_devices_of_kubernetes_itself_need_no_vendor(text: str):
    assert str(Device.parse(text)) == text


def test_a_pull_policy_that_there_is_not_names_those_there_are(capfd: pytest.CaptureFixture[str]):
    line = ["submit", "mpi", "--name=x", "--image=i", "--image-pull-policy=Sometimes", "true"]
    assert cli.run(line) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err == (
        "error: --image-pull-policy is invalid\n"
        "  why:  expected Always, IfNotPresent or Never, got 'Sometimes'\n"
    )


LABELS = st.text("aZ9-_. /ä", max_size=70)


@given(LABELS)
def test_a_key_is_a_word_with_or_without_a_name_before_it(text: str):
    prefix, slash, word = text.rpartition("/")
    assert is_key(text) == (is_word(word) and (is_subdomain(prefix) or not slash))


@given(LABELS)
def test_a_word_has_a_letter_or_digit_at_both_ends_and_at_most_63_characters(text: str):
    legal = set("aZ9-_.")
    ends = not text or {text[0], text[-1]} <= set("aZ9")
    assert is_label_value(text) == (set(text) <= legal and ends and len(text) <= 63)


@pytest.mark.parametrize("length", [253, 254])
def test_a_name_has_at_most_253_characters(length: int):
    name = f"{'a.' * 120}{'b' * (length - 240)}"
    assert is_subdomain(name) == (length == 253)
    assert is_key(f"{name}/k") == (length == 253)


@given(st.text("a9-.", max_size=12))
def test_a_name_is_parts_between_dots_each_with_a_letter_or_digit_at_both_ends(text: str):
    parts = text.split(".")
    assert is_subdomain(text) == all(part and not {part[0], part[-1]} & {"-"} for part in parts)


@pytest.mark.parametrize("name", ["A", "a b", "a.b", "-a", "a" * 64, "\udcff", "a\n", "../a"])
@pytest.mark.parametrize("verb", [("plan",), ("submit",), ("submit", "--dry-run")])
def test_a_text_that_no_namespace_can_be_called_is_refused(run, verb, name: str):
    first, *others = verb
    job = ("--name=a", "--image=local", "--gputopology", "--gpus=1", "--workers=2", "true")
    code, out, err = run(first, "mpi", *others, "--backend=local", f"--namespace={name}", *job)
    assert (code, out) == (2, "")
    assert err.startswith("error: --namespace is invalid\n  why:  no namespace can be called ")
