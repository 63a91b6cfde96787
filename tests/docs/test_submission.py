"""The manifest of docs/how-to/submit-spark-checks.md is what the Spark operator accepts, and runs a check."""

import re
from pathlib import Path
from typing import Any

import click
import pyspark
import pytest
import yaml
from kubeflow_spark_api.models.spark_v1beta2_spark_application import SparkV1beta2SparkApplication
from pydantic import ValidationError

from spark_checks.command import load_check
from spark_checks.options import common_options
from tests.docs.test_examples import ROOT, find_blocks

PAGE = (ROOT / "docs" / "how-to" / "submit-spark-checks.md").read_text(encoding="utf-8")


def manifest() -> dict[str, Any]:
    (block,) = find_blocks(PAGE, "yaml")
    loaded: dict[str, Any] = yaml.safe_load(block)
    return loaded


def accepted(resource: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the operator's models keep of a resource. Raises ValidationError."""
    read = SparkV1beta2SparkApplication.from_dict(resource)
    return None if read is None else read.to_dict()


def test_the_operators_models_accept_the_manifest_whole() -> None:
    assert accepted(manifest()) == manifest()


def test_the_operators_models_refuse_what_is_wrong() -> None:
    wrong = manifest()
    wrong["spec"]["executor"]["instances"] = "8"
    with pytest.raises(ValidationError):
        accepted(wrong)
    unknown = manifest()
    unknown["spec"]["executor"]["memoryOverheads"] = "1g"
    assert accepted(unknown) != unknown


def test_the_manifest_has_what_the_models_do_not_check() -> None:
    """The operator's CRD lists the values of these fields (api/v1beta2/sparkapplication_types.go)."""
    found = manifest()
    assert (found["apiVersion"], found["kind"]) == ("sparkoperator.k8s.io/v1beta2", "SparkApplication")
    spec = found["spec"]
    assert spec["type"] in {"Java", "Python", "Scala", "R"}
    assert spec["mode"] in {"cluster", "client"}
    assert spec["restartPolicy"]["type"] in {"Never", "Always", "OnFailure"}
    assert spec["sparkVersion"].rpartition(".")[0] == pyspark.__version__.rpartition(".")[0]


def test_the_manifest_and_the_commands_run_checks_with_options_that_exist() -> None:
    commands = re.findall(r"^ *spark/backflow-check\.py (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 2
    for name, *arguments in (manifest()["spec"]["arguments"], *map(str.split, commands)):
        check = load_check(name)
        command = click.Command(name, params=[*common_options(check), *check.PARAMS])
        assert command.make_context(name, arguments).params["journal"] == "s3://journals/fleet"


def test_the_image_has_the_files_that_the_manifest_names() -> None:
    (image,) = find_blocks(PAGE, "dockerfile")
    copied = {Path(line.split()[-2]).name: line.split()[-1] for line in image.splitlines() if "--chown" in line}
    spec = manifest()["spec"]
    assert spec["mainApplicationFile"] == f"local://{copied['backflow-check.py']}backflow-check.py"
    assert spec["sparkConf"]["spark.pyspark.python"] == f"{copied['backflow-env.tar.gz']}bin/python"
