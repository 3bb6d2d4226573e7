"""The examples that a new user copies: the notebook runs, the files for Slurm, Kubernetes and Docker fit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from nbclient import NotebookClient
from tests.integration.small_training import WORKER
from tests.integration.test_first_minutes import answers, new_user
from tests.rigs.site import ROOT, wait_for
from tests.tidy.test_docs import check_chaosd

from chaos_lab.children import free_port
from chaosd.api.client import LocalClient

pytestmark = pytest.mark.long

DEPLOY = ROOT / "examples" / "deploy"
NOTEBOOK = ROOT / "examples" / "notebook" / "three_sites.ipynb"


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "kept without outputs"
    done = NotebookClient(notebook, timeout=150, resources={"metadata": {"path": str(tmp_path)}}).execute()
    text = "".join(output.get("text", "") for cell in done.cells for output in cell.get("outputs", []))
    assert "together:" in text and "in round 50" in text


def test_the_slurm_job_trains_with_a_member_and_leaves_at_slurms_signal(tmp_path: Path) -> None:
    with new_user(tmp_path) as user:
        folders = [tmp_path / "training-0", tmp_path / "training-1"]
        for folder in folders:
            folder.mkdir()
        train, other = (
            [sys.executable, str(WORKER), "--site", str(number), "--folder", str(folder), "--pace", "0.1"]
            for number, folder in enumerate(folders, start=1)
        )
        log = user.starts(
            "a", "-m", "chaosd", "up", "a", "--name", "A", "--listen", f"127.0.0.1:{free_port()}", "--", *train
        )
        peer = wait_for(lambda: re.search(r"--peer (\S+)", log.read_text()), "what a second one needs")[1]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        variables = {**user.variables, "PATH": path, "CHAOS_PORT": str(free_port()), "SLURM_CPUS_PER_TASK": "1"}
        with (tmp_path / "job.log").open("wb") as output:
            job = subprocess.Popen(
                ["bash", str(DEPLOY / "slurm.sh"), str(tmp_path / "b"), peer, "--", *other],
                env=variables,
                stdout=output,
                stderr=output,
            )
        try:
            member = LocalClient(tmp_path / "a" / "data" / "api.sock")
            wait_for(lambda: answers(member), "the daemon of the member")
            knocked = wait_for(lambda: [one.site for one in member.pending()], "the job knocks")
            member.trust(knocked[0], pending=True)
            wait_for(lambda: member.status().round > 5, "common rounds")
            job.send_signal(signal.SIGTERM)
            assert job.wait(90) == 0, (tmp_path / "job.log").read_text()
            left = wait_for(lambda: [e for e in member.last_events(50) if e.kind == "scale-in"], "its leave")
            assert left[-1].outcome == "done"
        finally:
            job.kill()
            job.wait()
    wrong = subprocess.run(["bash", str(DEPLOY / "slurm.sh"), "x"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "usage" in wrong.stderr


def test_the_shell_script_has_nothing_that_shellcheck_warns_of() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "shellcheck", DEPLOY / "slurm.sh"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def documents() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def test_the_kubernetes_objects_fit_together_and_run_confined() -> None:
    service, site = documents()["Service"]["spec"], documents()["StatefulSet"]["spec"]
    pod = site["template"]["spec"]
    (container,) = pod["containers"]
    labels = site["template"]["metadata"]["labels"]
    assert site["replicas"] == 1 and site["selector"]["matchLabels"] == labels == service["selector"]
    assert site["serviceName"] == documents()["Service"]["metadata"]["name"]
    assert service["ports"][0]["targetPort"] == container["ports"][0]["name"]
    volumes = {one["name"] for one in pod["volumes"]} | {
        one["metadata"]["name"] for one in site["volumeClaimTemplates"]
    }
    assert {one["name"] for one in container["volumeMounts"]} == volumes
    assert pod["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
    check_chaosd(container["args"])
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch", "the key stays its owner's alone"
    program, *words = container["livenessProbe"]["exec"]["command"]
    assert program == "chaosd"
    check_chaosd(words)


def test_the_compose_file_and_the_image_run_commands_that_exist_as_nobody() -> None:
    site = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["site"]
    check_chaosd(site["command"])
    assert site["read_only"] and site["cap_drop"] == ["ALL"]
    assert (DEPLOY / site["build"]["context"]).resolve() == ROOT and (ROOT / site["build"]["dockerfile"]).exists()
    image = (DEPLOY / "Dockerfile").read_text()
    stages = image.split("FROM ")
    assert "USER 10001" in stages[-1] and "USER 0" not in stages[-1]
    health = re.search(r'HEALTHCHECK .*CMD \["chaosd", (.*)\]', image)
    assert health is not None
    check_chaosd([word.strip('"') for word in health[1].split(", ")])
