"""Claims that are measured, not believed: one module per claim."""

import os
import sys

# They replace parts of the brain, of which compiled code would see nothing. Where Kairos is there
# already, as in tests, it is as it is; processes that are started later are not to be others.
if "kairos" not in sys.modules:
    os.environ["KAIROS_INTERPRETED"] = "1"
