"""checkov on all that is rendered. It needs 290 MB and other versions than ours: it gets an environment of its own."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.chart.charts import ROOT, VALUES, rendered

CHECKOV = "checkov==3.3.30"
#: What is not as the check wants it: for which resources, and why.
WAIVED = {
    "CKV_K8S_11": (".*", "no limit of CPU: a throttled worker renews its leases late, and its jobs run twice"),
    "CKV_K8S_15": (".*", "the tag of a release is not pushed again; image.pullPolicy is a value"),
    "CKV_K8S_35": (
        ".*",
        "settings come from the environment; a Secret's variables are not in the image or the manifest",
    ),
    "CKV_K8S_43": (".*", "image.digest is a value: only who pushes the image knows it"),
    "CKV_K8S_8": (".*-test", "the pod of `helm test` asks once and ends"),
    "CKV_K8S_9": (".*-test", "the pod of `helm test` asks once and ends"),
    "CKV_K8S_40": (".*-(redis|postgresql)", "the users of the official images, whose files are theirs"),
}
#: These take resources and the user away on purpose, to show that it can be done.
ASKING_FOR_LESS = {"nulls-values", "bundled-without-volumes-values"}


@pytest.fixture(scope="module")
def checkov() -> Path:
    folder = ROOT / ".callboard" / "checkov"
    program = folder / "bin" / "checkov"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, timeout=120)
        pip = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", CHECKOV]
        done = subprocess.run(pip, capture_output=True, text=True, timeout=900)
        if done.returncode != 0:
            pytest.skip(f"{CHECKOV} can't be installed: {done.stderr[-500:]}")
    return program


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_what_the_scan_finds_is_waived_with_a_reason(checkov: Path, tmp_path: Path) -> None:
    for path in VALUES:
        if path.stem not in ASKING_FOR_LESS:
            (tmp_path / f"{path.stem}.yaml").write_text("---\n".join(map(yaml.safe_dump, rendered(path))))
    command = [
        checkov,
        "--directory",
        tmp_path,
        "--framework",
        "kubernetes",
        "--compact",
        "--quiet",
        "--output",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    report = json.loads(done.stdout)
    assert report["summary"]["passed"] > 5000
    assert report["summary"]["parsing_errors"] == 0
    found = {(each["check_id"], each["check_name"], each["resource"]) for each in report["results"]["failed_checks"]}
    assert [each for each in sorted(found) if not re.fullmatch(WAIVED.get(each[0], ("",))[0], each[2])] == []
    assert {check for check, _, _ in found} == set(WAIVED)
