"""Claims that are measured, not believed: one module per claim."""

import os

# They replace parts of the brain, of which compiled code would see nothing.
os.environ["KAIROS_INTERPRETED"] = "1"
