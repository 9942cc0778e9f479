"""The `kairos` command, one module for each group of subcommands."""
