"""Declared workflows, read from text as `kairos run` reads them from a file."""

from kairos.workflows.compile.operators import MessageTemplate
from kairos.workflows.declare.yaml_file import read_yaml

__all__ = ["MessageTemplate", "read_yaml"]
