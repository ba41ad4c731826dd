"""The files of deploy/: they are well-formed, and every command in them is one that Outrider reads.

hadolint, kubernetes-validate, Helm (helm-python-sdk) and systemd-analyze check them too, where they are
installed.
"""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from outrider.cli import completion
from outrider.cli.main import parser
from outrider.cli.migrate_flags import error_of
from outrider.server.http.guard import OPEN
from tests.server.http_support import Running, running, toy_pipeline

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PARSER = parser()


def text_of(name: str) -> str:
    return (DEPLOY / name).read_text("utf-8")


def instructions() -> list[tuple[str, str]]:
    """(instruction, its arguments) of the Containerfile, in order."""
    lines = [line for line in text_of("Containerfile").splitlines() if not line.startswith("#")]
    whole = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in whole.splitlines() if line)]


def argument(name: str) -> Any:
    """The JSON list of an instruction that stands once."""
    (found,) = [rest for instruction, rest in instructions() if instruction == name]
    return json.loads(found)


def health_check() -> list[str]:
    (found,) = [rest for name, rest in instructions() if name == "HEALTHCHECK"]
    command: list[str] = json.loads(found.partition("CMD ")[2])
    return command


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text_of("compose.yaml"))
    return found


def kubernetes() -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in yaml.safe_load_all(text_of("kubernetes.yaml"))}


def container() -> dict[str, Any]:
    (found,) = kubernetes()["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def helm_values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text_of("helm/values.yaml"))
    return found


def helm_arguments(draft: str) -> list[str]:
    """What the chart's container is started with; `test_helm_finds_nothing_…` holds Helm to it."""
    values = helm_values()
    drafts = [f"--model-draft={draft}"] if draft else []
    fixed = ["--host=0.0.0.0", "--port=8000"]
    return ["serve", values["model"], *drafts, *fixed, *values["flags"], "--api-key-file=/keys/keys.txt"]


def unit() -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(text_of("outrider.service"))
    return found


def commands() -> Iterator[Any]:
    """The arguments of `outrider` in every file."""
    entry = argument("ENTRYPOINT")
    assert entry == ["outrider"]
    yield pytest.param(argument("CMD"), id="Containerfile")
    yield pytest.param(compose()["services"]["outrider"]["command"], id="compose.yaml")
    yield pytest.param(container()["args"], id="kubernetes.yaml")
    for name in ("", "qwen-coder-0.5b"):
        yield pytest.param(helm_arguments(name), id=f"helm, draft {name or 'none'}")
    program, *words = shlex.split(unit()["Service"]["ExecStart"])
    assert Path(program).name == "outrider"
    yield pytest.param(words, id="outrider.service")


@pytest.mark.parametrize("words", list(commands()))
def test_every_command_is_read(words: list[str]) -> None:
    command, *rest = words
    assert error_of(completion._subparsers_of(PARSER).choices[command], command, rest) is None
    args = PARSER.parse_args(words)
    assert args.port == 8000
    assert args.host in ("0.0.0.0", "127.0.0.1")
    assert error_of(completion._subparsers_of(PARSER).choices[command], command, [*rest, "--prot=1"])


def test_the_image_has_two_stages_and_no_compiler() -> None:
    stages = [at for at, (name, _) in enumerate(instructions()) if name == "FROM"]
    assert len(stages) == 2
    first, last = instructions()[: stages[1]], instructions()[stages[1] :]
    assert any("g++" in rest for _, rest in first)
    assert not any("g++" in rest or "apt-get" in rest for _, rest in last)
    assert ("COPY", "--from=build /opt/outrider /opt/outrider") in last
    user = next(rest for name, rest in last if name == "USER")
    assert user.split(":")[0] not in ("0", "root")
    assert [name for name, _ in last].index("USER") < [name for name, _ in last].index("ENTRYPOINT")
    assert ("EXPOSE", "8000") in last


def test_what_is_copied_into_the_image_is_there() -> None:
    """And is let through by the list of what the build may see; the build needs all of it."""
    copied = [
        source
        for name, rest in instructions()
        if name == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]
    let_through = [line[1:] for line in text_of("Containerfile.dockerignore").splitlines() if line[:1] == "!"]
    assert sorted(copied) == sorted(let_through)
    for source in copied:
        assert (ROOT / source).exists(), source
    assert {"src", "csrc", "pyproject.toml", "CMakeLists.txt"} <= set(copied)
    option = re.search(r"cmake\.define\.(\w+)=ON", text_of("Containerfile"))
    assert option is not None
    assert f"option({option[1]} " in (ROOT / "CMakeLists.txt").read_text("utf-8")


@pytest.fixture(scope="module")
def served(roomy_file: Path) -> Iterator[Running]:
    with running(toy_pipeline(roomy_file), api_keys=("key",)) as made:
        yield made


def test_the_health_check_tells_a_server_from_none(served: Running) -> None:
    """Without a key, though the server asks for one."""
    program, flag, code = health_check()
    assert program == "python"
    here = code.replace("http://127.0.0.1:8000", served.url)
    assert here != code
    assert subprocess.run([sys.executable, flag, here], check=False).returncode == 0
    for wrong in (here.replace("/health", "/v1/models"), code.replace(":8000", ":1")):
        done = subprocess.run([sys.executable, flag, wrong], check=False, capture_output=True)
        assert done.returncode != 0


def test_probes_ask_a_path_that_needs_no_key() -> None:
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert ports == {"http": 8000}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container()[name]["httpGet"]
        assert probe["path"] in OPEN
        assert probe["port"] in ports
    assert any(path in health_check()[2] for path in OPEN)


def test_the_parts_of_kubernetes_belong_together() -> None:
    found = kubernetes()
    pod = found["Deployment"]["spec"]["template"]
    labels = found["Deployment"]["spec"]["selector"]["matchLabels"]
    assert labels.items() <= pod["metadata"]["labels"].items()
    assert labels == found["Service"]["spec"]["selector"]
    (port,) = found["Service"]["spec"]["ports"]
    assert port["targetPort"] in [each["name"] for each in container()["ports"]]
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    claim = volumes["models"]["persistentVolumeClaim"]["claimName"]
    assert claim == found["PersistentVolumeClaim"]["metadata"]["name"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    assert mounts.keys() == volumes.keys()
    keys = next(word.partition("=")[2] for word in container()["args"] if word.startswith("--api-key-file"))
    assert keys.startswith(mounts["keys"] + "/")
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    context = container()["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"]["drop"] == ["ALL"]


def test_servers_have_time_to_end() -> None:
    """Longer than the server's own limit for requests that run."""
    seconds = PARSER.parse_args(["serve", "m"]).shutdown_timeout
    service = compose()["services"]["outrider"]
    assert int(service["stop_grace_period"].removesuffix("s")) > seconds
    assert int(unit()["Service"]["TimeoutStopSec"]) > seconds
    pod = kubernetes()["Deployment"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > seconds


def test_the_compose_file_names_what_there_is() -> None:
    found = compose()
    service = found["services"]["outrider"]
    build = (DEPLOY / service["build"]["context"]).resolve()
    assert build == ROOT
    assert (build / service["build"]["dockerfile"]) == DEPLOY / "Containerfile"
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    assert [mount.partition(":")[0] for mount in service["volumes"]] == list(found["volumes"])
    assert service["secrets"] == list(found["secrets"]) == ["keys"]
    assert "--api-key-file=/run/secrets/keys" in service["command"]


def test_models_lie_where_the_service_may_write() -> None:
    service = unit()["Service"]
    folder = f"/var/cache/{service['CacheDirectory']}"
    for assignment in service["Environment"].split():
        assert assignment.partition("=")[2].startswith(folder)
    assert "%d/keys" in service["ExecStart"]
    assert service["LoadCredential"].startswith("keys:")


def found_by(*command: str) -> str:
    """What a linter says; nothing if it is content."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"status {done.returncode}: {done.stdout}{done.stderr}"


def tool(name: str) -> str:
    return shutil.which(name) or pytest.skip(f"needs {name}")


def test_hadolint_finds_nothing() -> None:
    assert found_by(tool("hadolint"), str(DEPLOY / "Containerfile")) == ""


def test_kubernetes_schemas_hold() -> None:
    assert found_by(tool("kubernetes-validate"), "--strict", str(DEPLOY / "kubernetes.yaml")) == ""


def without_instance(part: Any) -> Any:
    """Without the label that tells two releases of a chart from each other."""
    if isinstance(part, dict):
        return {k: without_instance(v) for k, v in part.items() if k != "app.kubernetes.io/instance"}
    return [without_instance(each) for each in part] if isinstance(part, list) else part


def test_helm_finds_nothing_and_the_chart_is_the_manifests(tmp_path: Path) -> None:
    chart = pytest.importorskip("helm_python.chart", reason="needs helm-python-sdk")
    report = chart.lint(str(DEPLOY / "helm"), strict=True, quiet=True)
    assert (report["errors"], [m for m in report["messages"] if m["severity"] > 1]) == ([], [])
    loaded = chart.Chart.load(str(DEPLOY / "helm"))

    def rendered(values: dict[str, Any], name: str) -> tuple[str, dict[str, dict[str, Any]]]:
        (text,) = loaded.render(values, name=name).values()
        return text, {document["kind"]: document for document in yaml.safe_load_all(text)}

    text, found = rendered({}, "outrider")
    assert without_instance(found) == kubernetes()
    place = tmp_path / "rendered.yaml"
    place.write_text(text, "utf-8")
    if shutil.which("kubernetes-validate"):
        assert found_by("kubernetes-validate", "--strict", str(place)) == ""
    values = {"draft": "", "flags": ["--ctx-size=4096"], "resources": None, "image": "r/o:1", "keys": "k"}
    _, found = rendered(values, "two")
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (made,) = pod["containers"]
    assert made["args"] == [*helm_arguments("")[:4], "--ctx-size=4096", "--api-key-file=/keys/keys.txt"]
    assert (made["image"], made.get("resources")) == ("r/o:1", None)
    claim = pod["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert claim == found["PersistentVolumeClaim"]["metadata"]["name"] == "two-models"
    labels = found["Deployment"]["spec"]["selector"]["matchLabels"]
    assert found["Service"]["spec"]["selector"] == labels
    assert labels["app.kubernetes.io/instance"] == "two"


def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    program = unit()["Service"]["ExecStart"].split()[0]
    copy = tmp_path / "outrider.service"
    copy.write_text(text_of("outrider.service").replace(program, "/bin/true"), "utf-8")
    assert found_by(tool("systemd-analyze"), "verify", str(copy)) == ""


def rows(document: str) -> Iterator[list[str]]:
    for line in document.splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_documents_passes_are_the_measured_ones() -> None:
    results = ROOT / "benchmarks" / "results"
    small = json.loads((results / "cost_curve-qwen-1.5b.json").read_text("utf-8"))["cost_curve_ms"][
        "outrider"
    ]
    large = json.loads((results / "synthetic-8b-16-cores.json").read_text("utf-8"))["target"]["cost_curve_ms"]
    document = (ROOT / "docs" / "scale.md").read_text("utf-8")
    table = [row for row in rows(document) if row[0].isdigit()]
    assert len(table) == 5
    for n, *cells in table:
        times = [small[n], large[n]]
        assert cells == [text for ms in times for text in (f"{ms:.1f}", f"{int(n) / ms * 1000:.0f}")]


def test_the_documents_load_is_the_measured_one() -> None:
    load = json.loads((ROOT / "benchmarks" / "results" / "serve.json").read_text("utf-8"))["load"]
    with_drafts = {row["clients"]: row for row in load if row["server"] == "outrider"}
    plain = {row["clients"]: row for row in load if row["server"] == "outrider, plain"}
    document = " ".join((ROOT / "docs" / "scale.md").read_text("utf-8").split())
    rates = [f"{with_drafts[n]['tokens_per_s']:.0f}" for n in (1, 2, 4, 8, 16)]
    assert f"{', '.join(rates[:-1])} and {rates[-1]} tokens/s" in document
    firsts = [f"{with_drafts[n]['ttft_ms']['p50'] / 1000:.1f}" for n in (1, 2, 4, 8, 16)]
    assert f"{', '.join(firsts[:-1])} and {firsts[-1]} seconds" in document
    gains = [with_drafts[n]["tokens_per_s"] / plain[n]["tokens_per_s"] - 1 for n in (1, 4, 8, 16)]
    one, four, eight, sixteen = (f"{gain:.0%}" for gain in gains)
    assert f"{one} for one client, {four} for four, {eight} for eight, and {sixteen} for sixteen" in document
