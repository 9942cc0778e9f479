"""Import this module to enable the client; nothing else is needed. See the package."""

from kairos_client import frameworks
from kairos_client.hooks import HOOKS
from kairos_client.imports import when_imported
from kairos_client.threads import inherit

inherit()
for module, hook in HOOKS.items():
    when_imported(module, hook)
frameworks.watch()
