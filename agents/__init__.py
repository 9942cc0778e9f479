"""Example applications on the agent runtime: questions (QA), reports (RG) and code (CG)."""
