"""deploy/kuberay.yaml: its parts belong together, and its command is one that we and a real vLLM read."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from outrider.cli.main import parser
from outrider.cli.serve_vllm import config
from outrider.engines.vllm.installed import read
from outrider.engines.vllm.process import Child
from outrider.engines.vllm.translate import command, passed_flags
from outrider.server.http.guard import OPEN

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "deploy" / "kuberay.yaml"
RECORDED = sorted((ROOT / "tests" / "data" / "vllm").glob("*.json"))[-1]


def documents() -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in yaml.safe_load_all(FILE.read_text("utf-8"))}


def pods() -> list[dict[str, Any]]:
    """The head's template, then those of the workers."""
    spec = documents()["RayCluster"]["spec"]
    return [spec["headGroupSpec"]["template"], *(group["template"] for group in spec["workerGroupSpecs"])]


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["spec"]["containers"]
    return dict(found)


def arguments() -> Any:
    """The parsed arguments of the head's command."""
    (script,) = container(pods()[0])["args"]
    words = shlex.split(script.partition("exec ")[2])
    assert words[0] == "outrider"
    return parser().parse_args(words[1:])


def test_the_command_is_read_by_us_and_by_vllm() -> None:
    args = arguments()
    assert (args.host, args.port, args.engine) == ("0.0.0.0", 8000, "vllm")
    version = read(RECORDED.read_bytes(), "python")
    passed, left = passed_flags(args.passed, version)
    assert not left
    line = str(command(config(args), version, 8001, passed))
    assert "--tensor-parallel-size=8 --pipeline-parallel-size=2 --distributed-executor-backend=ray" in line
    assert '"draft_tensor_parallel_size": 1' in line


def test_the_cards_are_those_that_vllm_divides_the_model_among() -> None:
    spec = documents()["RayCluster"]["spec"]
    replicas = [1, *(group["replicas"] for group in spec["workerGroupSpecs"])]
    cards = [int(container(pod)["resources"]["limits"]["nvidia.com/gpu"]) for pod in pods()]
    given = dict(word.split("=") for group in arguments().passed for word in group)
    wanted = int(given["--tensor-parallel-size"]) * int(given["--pipeline-parallel-size"])
    assert sum(n * each for n, each in zip(replicas, cards, strict=True)) == wanted


def test_ray_is_started_in_every_pod_and_before_vllm() -> None:
    assert documents()["RayCluster"]["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    for pod in pods():
        (script,) = container(pod)["args"]
        assert container(pod)["command"] == ["/bin/bash", "-c"]
        assert 'eval "$KUBERAY_GEN_RAY_START_CMD"' in script
    (script,) = container(pods()[0])["args"]
    assert script.index("ray status") < script.index("exec outrider")


def test_the_service_and_the_probes_reach_the_head_only() -> None:
    labels = [pod["metadata"]["labels"] for pod in pods()]
    selector = documents()["Service"]["spec"]["selector"]
    assert [selector.items() <= each.items() for each in labels] == [True, False]
    ports = {port["name"]: port["containerPort"] for port in container(pods()[0])["ports"]}
    (port,) = documents()["Service"]["spec"]["ports"]
    assert ports[port["targetPort"]] == arguments().port
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container(pods()[0])[name]["httpGet"]
        assert probe["path"] in OPEN
        assert ports[probe["port"]] == arguments().port


@pytest.mark.parametrize("pod", pods(), ids=("head", "worker"))
def test_volumes_are_there(pod: dict[str, Any]) -> None:
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container(pod)["volumeMounts"]}
    assert mounts.keys() == volumes.keys()
    claim = volumes["models"]["persistentVolumeClaim"]["claimName"]
    assert claim == documents()["PersistentVolumeClaim"]["metadata"]["name"]
    for variable in container(pod)["env"]:
        if "value" in variable:
            assert variable["value"].startswith(mounts["models"] + "/")
    assert container(pod)["securityContext"]["allowPrivilegeEscalation"] is False


def test_it_has_time_to_start_and_to_end() -> None:
    args, pod = arguments(), pods()[0]
    probe = container(pod)["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > args.vllm_start_timeout
    version = read(RECORDED.read_bytes(), "python")
    child = Child(command(config(args), version, 8001), 8001)
    assert pod["spec"]["terminationGracePeriodSeconds"] > args.shutdown_timeout + child.grace_seconds
